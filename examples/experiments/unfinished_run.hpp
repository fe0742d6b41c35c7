// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/io/atomic_file.hpp>
#include <unitscale/io/safetensors.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/scaling/state.hpp>

#include "experiments/comparison.hpp"
#include "experiments/language_run_options.hpp"
#include "experiments/record_file.hpp"

#include <nlohmann/json.hpp>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

// What a run of a comparison or of a sweep leaves on the disk while it is under way, and how its steps become a record.
namespace unitscale::experiments {

/// The step that a checkpoint was written after; 0: there is none that can be read.
[[nodiscard]] inline std::size_t step_of_checkpoint(const std::filesystem::path& path) {
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

/// Where a run that has not ended keeps its files: a path to which their extensions are added. `label` is for people to read, `what`
/// tells this run from all others; the folder is made. Error: it cannot be.
[[nodiscard]] inline std::filesystem::path unfinished_path(const std::filesystem::path& folder,
                                                           const std::string& label, const std::string& what) {
    std::error_code error;
    std::filesystem::create_directories(folder, error);
    check(std::filesystem::is_directory(folder, error), "unfinished runs: ", folder.string(), " cannot be made");
    std::string name = label.substr(0, 100);
    for (char& c : name) {
        const bool plain =
            (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '-';
        if (!plain) c = '_';
    }
    return folder / (name + "-" + fingerprint(what));
}

/// Why a run has failed, from its error: its last part is advice, and its first says what is known here.
[[nodiscard]] inline std::string failure_text(const RunFailed& failure) {
    std::string reason = failure.what();
    reason = reason.substr(0, reason.find("; try "));
    if (reason.starts_with("train: ")) reason.erase(0, 7);
    return reason;
}

/// What a run that has not ended keeps on the disk: a line for each step, and a checkpoint to go on from. After a kill the lines up to
/// the checkpoint's step count; where one of them is missing, or the checkpoint, the run begins again.
/// Test: tests/experiments/unfinished_run_test.cpp
class UnfinishedRun {
public:
    using Json = nlohmann::ordered_json;

    /// `what` tells this run from all others; the folder is made. Error: the folder cannot be made, a file in it not written.
    UnfinishedRun(const std::filesystem::path& folder, const ComparedRun& run, const std::string& what,
                  std::size_t steps) {
        const std::filesystem::path path =
            unfinished_path(folder, concatenate(run.recipe, '-', run.rate, '-', run.seed), what);
        (log_ = path) += ".jsonl";
        (checkpoint_ = path) += ".safetensors";
        std::error_code error;
        // One of the last step would leave nothing to measure speed and memory by.
        if (const std::size_t step = step_of_checkpoint(checkpoint_); step < steps) read_lines(step);
        if (lines_.empty()) std::filesystem::remove(checkpoint_, error);
        std::string text;
        for (const Json& line : lines_) text += line.dump() + '\n';
        io::write_atomically("comparison", log_, text);
    }

    [[nodiscard]] const std::filesystem::path& log() const noexcept { return log_; }
    [[nodiscard]] const std::filesystem::path& checkpoint() const noexcept { return checkpoint_; }
    /// Of the steps before the checkpoint; none: the run begins.
    [[nodiscard]] const std::vector<Json>& lines() const noexcept { return lines_; }

    /// The run has ended: nothing of it stays.
    void remove() const {
        std::error_code ignored;
        std::filesystem::remove(checkpoint_, ignored);
        std::filesystem::remove(log_, ignored);
    }

private:
    void read_lines(std::size_t steps) {
        std::ifstream stream(log_, std::ios::binary);
        for (std::string text; lines_.size() < steps && std::getline(stream, text);) {
            Json line = Json::parse(text, nullptr, false);
            if (!line.is_object() || !line.contains("step") || line["step"] != lines_.size() + 1) break;
            lines_.push_back(std::move(line));
        }
        if (lines_.size() != steps) lines_.clear();
    }

    std::filesystem::path log_, checkpoint_;
    std::vector<Json> lines_{};
};

/// The biases of this step's scaled operands, by `path|role`: those that amax rules have found.
[[nodiscard]] inline nlohmann::ordered_json measured_biases(const ScalingState& state) {
    nlohmann::ordered_json biases;
    for (const ScalingState::Product& product : state.products())
        for (const OperandRole role : {OperandRole::activation, OperandRole::weight, OperandRole::gradient}) {
            const ScaleRule& rule = product.formats.scale(role);
            const bool measured = rule.source == ScaleSource::amax || rule.source == ScaleSource::delayed;
            if (product.formats.of(role) && measured && rule.granularity == ScaleGranularity::tensor)
                biases[concatenate(state.path(product.site), '|', name(role))] = state.last_bias(product.site, role);
        }
    return biases;
}

/// Puts the steps' lines into a record: curves of at most 200 points, each the mean of the steps before it.
inline void add_steps(RunRecord& record, const std::vector<nlohmann::ordered_json>& lines) {
    const std::size_t most = 200, group = (lines.size() + most - 1) / most;
    double sum = 0.0;
    std::size_t count = 0;
    for (std::size_t i = 0; i < lines.size(); ++i) {
        const auto& line = lines[i];
        sum += line.at("train").get<double>();
        ++count;
        if (count == group || i + 1 == lines.size()) {
            record.train_steps.push_back(i + 1);
            record.train.push_back(sum / static_cast<double>(count));
            sum = 0.0;
            count = 0;
        }
        if (line.contains("valid")) {
            record.valid_steps.push_back(i + 1);
            record.valid.push_back(line["valid"].get<double>());
        }
        if (line.contains("biases")) {
            record.bias_steps.push_back(i + 1);
            for (const auto& [name, bias] : line["biases"].items()) record.biases[name].push_back(bias.get<int>());
        }
        if (line.contains("zeros"))
            for (const auto& [kind, counts] : line["zeros"].items())
                for (std::size_t k = 0; k < 3; ++k) record.zeros[kind][k] += counts.at(k).get<std::uint64_t>();
    }
    record.steps = lines.size();
    if (lines.empty()) return;
    record.skipped = lines.back().at("skipped").get<std::uint64_t>();
    record.tokens_per_s = lines.back().at("tokens_per_s").get<double>();
}

}  // namespace unitscale::experiments
