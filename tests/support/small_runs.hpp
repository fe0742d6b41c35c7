// SPDX-License-Identifier: MIT
#pragma once

#include "experiments/language_run_options.hpp"
#include "support/temporary_folder.hpp"

#include <cstddef>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <memory>
#include <string>

// Small training runs of the experiments, and their output as text.
namespace unitscale::test {

/// A text that a small model learns at once.
inline std::string proverb(std::size_t times = 60) {
    std::string text;
    for (std::size_t i = 0; i < times; ++i) text += "the early bird catches the worm\n";
    return text;
}

/// The proverb as a file.
inline std::filesystem::path proverb_in(const TemporaryFolder& folder) { return folder.write("text.txt", proverb()); }

/// A run of seconds on the proverb.
inline experiments::LanguageRunOptions small_run(const TemporaryFolder& folder, std::size_t depth, std::size_t steps) {
    return {
        .data = {proverb_in(folder)}, .width = 16, .depth = depth, .heads = 2, .seq = 16, .batch = 4, .steps = steps};
}

using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;
inline File temporary_file() { return {std::tmpfile(), std::fclose}; }

/// All that was written to a file.
inline std::string text_of(std::FILE* file) {
    std::rewind(file);
    std::string text;
    for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) text += static_cast<char>(c);
    return text;
}

/// The text that `write` writes to the stream which it is given.
template <class Write>
std::string written_by(const Write& write) {
    const File file = temporary_file();
    write(file.get());
    return text_of(file.get());
}

/// The text that `write` writes, up to its error, and the error's message.
struct Outcome {
    std::string text{}, error{};
};
template <class Write>
Outcome outcome_of(const Write& write) {
    Outcome outcome;
    outcome.text = written_by([&](std::FILE* file) {
        try {
            write(file);
        } catch (const std::exception& error) {
            outcome.error = error.what();
        }
    });
    return outcome;
}

}  // namespace unitscale::test
