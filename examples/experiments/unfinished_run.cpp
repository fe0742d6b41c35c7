// SPDX-License-Identifier: MIT
#include "experiments/unfinished_run.hpp"

#include <unitscale/base/error.hpp>
#include <unitscale/io/atomic_file.hpp>
#include <unitscale/io/safetensors.hpp>

#include "experiments/results_file.hpp"

#include <charconv>
#include <fstream>
#include <system_error>
#include <utility>

namespace unitscale::experiments {

std::size_t step_of_checkpoint(const std::filesystem::path& path) {
    std::error_code error;
    if (!std::filesystem::exists(path, error)) return 0;
    try {
        const io::SafetensorsReader reader(path);
        const auto found = reader.metadata().find("state/step");
        if (found == reader.metadata().end()) return 0;
        std::size_t step = 0;
        const std::string& text = found->second;
        const auto end = std::from_chars(text.data(), text.data() + text.size(), step);
        return end.ec == std::errc() && end.ptr == text.data() + text.size() ? step : 0;
    } catch (const Error&) {
        return 0;
    }
}

std::filesystem::path UnfinishedRun::path_in(const std::filesystem::path& folder, const std::string& label,
                                             const std::string& what) {
    std::string name = label.substr(0, 100);
    for (char& c : name) {
        const bool plain =
            (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '-';
        if (!plain) c = '_';
    }
    return folder / (name + "-" + fingerprint(what));
}

void UnfinishedRun::remove(const std::filesystem::path& path) {
    std::error_code ignored;
    for (const char* extension : {".safetensors", ".jsonl"})
        std::filesystem::remove(std::filesystem::path(path) += extension, ignored);
}

UnfinishedRun::UnfinishedRun(std::filesystem::path path, Measured measured, std::size_t steps)
    : log_(path), checkpoint_(checkpoint_at(std::move(path))) {
    log_ += ".jsonl";
    const std::size_t step = step_of_checkpoint(checkpoint_);
    if (measured == Measured::losses) {
        can_resume_ = step > 0;
        return;
    }
    // A checkpoint of the last step would leave no step to measure speed and memory by.
    if (step < steps) read_lines(step);
    can_resume_ = !lines_.empty();
    std::error_code ignored;
    if (!can_resume_) std::filesystem::remove(checkpoint_, ignored);
    std::string text;
    for (const Json& line : lines_) text += line.dump() + '\n';
    io::write_atomically("unfinished run", log_, text);
}

void UnfinishedRun::read_lines(std::size_t steps) {
    std::ifstream stream(log_, std::ios::binary);
    for (std::string text; lines_.size() < steps && std::getline(stream, text);) {
        Json line = Json::parse(text, nullptr, false);
        if (!line.is_object() || !line.contains("step") || line["step"] != lines_.size() + 1) break;
        lines_.push_back(std::move(line));
    }
    if (lines_.size() != steps) lines_.clear();
}

}  // namespace unitscale::experiments
