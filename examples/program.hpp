// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/caches.hpp>
#include <unitscale/base/cpu.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/report/markup.hpp>

#include <CLI/CLI.hpp>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <new>
#include <string>
#include <string_view>
#include <vector>

// The frame of every program with options. Tests: tests/runs/<program>.sh
namespace unitscale::examples {

/// Memory messages of programs that train one model at a time, and of programs that train several.
inline constexpr const char* one_model_too_large = "not enough memory for a model and a batch of these sizes";
inline constexpr const char* many_models_too_large = "not enough memory for models and batches of these sizes";

/// A program's name, as its error messages begin, and its message when memory runs out.
/// A program without a memory message makes no runs: it blames every error on its arguments.
struct Program {
    const char* name;
    const char* out_of_memory = nullptr;
    std::function<void()> before_error{};  ///< called before an error is written
};

/// The command line as it can be typed again: arguments with other characters than letters, digits and %+,-./:=@^_ are
/// quoted.
inline std::string command_line(int argc, char** argv) {
    std::string line;
    for (int i = 0; i < argc; ++i) {
        const std::string argument = argv[i];
        const bool plain = !argument.empty() && std::all_of(argument.begin(), argument.end(), [](unsigned char c) {
            return std::isalnum(c) != 0 ||
                   std::string_view("%+,-./:=@^_").find(static_cast<char>(c)) != std::string_view::npos;
        });
        line += i == 0 ? "" : " ";
        if (plain) line += argument;
        else {
            line += '\'';
            for (const char c : argument) line += c == '\'' ? std::string("'\\''") : std::string(1, c);
            line += '\'';
        }
    }
    return line;
}

/// The origin of a program's page: command line, data and today's date, UTC. SOURCE_DATE_EPOCH, in seconds since 1970,
/// replaces the date, as reproducible builds do.
inline report::PageSource page_source(int argc, char** argv, const std::vector<std::filesystem::path>& data = {}) {
    report::PageSource source{.command = command_line(argc, argv)};
    for (const std::filesystem::path& path : data) (source.data += source.data.empty() ? "" : ", ") += path.string();
    const char* const fixed = std::getenv("SOURCE_DATE_EPOCH");
    const std::time_t now =
        fixed != nullptr ? static_cast<std::time_t>(std::strtoll(fixed, nullptr, 10)) : std::time(nullptr);
    char text[16];
    if (const std::tm* date = std::gmtime(&now); date != nullptr && std::strftime(text, sizeof text, "%F", date) > 0)
        source.date = text;
    return source;
}

/// The origin of a page about one training: with the kernels and the caches that its products ran with.
inline report::PageSource training_source(int argc, char** argv, const std::vector<std::filesystem::path>& data) {
    report::PageSource source = page_source(argc, argv, data);
    source.machine = concatenate("kernels ", name(active_isa()), ", caches ", text(active_caches()));
    return source;
}

/// Rejects arguments with a minus sign for these options. CLI11 alone reads -1 as the largest unsigned number.
inline void require_not_negative(CLI::App& app, std::initializer_list<const char*> options) {
    const CLI::Validator not_negative(
        [](std::string& text) {
            return text.starts_with('-') ? "is " + text + "; expected a whole number, not negative" : "";
        },
        "");
    for (const char* option : options) app.get_option(option)->check(not_negative);
}

/// Reads the arguments, calls `run` and returns the exit code. An error becomes one line on stderr.
/// Exit codes: the value of `run`; 0 for --help; 2 for bad arguments (CLI11's errors, Error); 1 for a run that failed.
inline int run_program(const Program& program, CLI::App& app, int argc, char** argv, const std::function<int()>& run) {
    const auto report = [&](const char* message, int code) {
        if (program.before_error) program.before_error();
        std::fprintf(stderr, "%s: %s\n", program.name, message);
        return code;
    };
    const bool makes_runs = program.out_of_memory != nullptr;
    try {
        app.parse(argc, argv);
        return run();
    } catch (const CLI::Success& done) {  // --help
        return app.exit(done);
    } catch (const CLI::ParseError& error) {
        return report(error.what(), 2);
    } catch (const Error& error) {
        return report(error.what(), 2);
    } catch (const std::bad_alloc& error) {
        return makes_runs ? report(program.out_of_memory, 1) : report(error.what(), 2);
    } catch (const std::exception& error) {
        return report(error.what(), makes_runs ? 1 : 2);
    }
}

}  // namespace unitscale::examples
