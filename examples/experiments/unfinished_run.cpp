// SPDX-License-Identifier: MIT
#include "experiments/unfinished_run.hpp"

#include <unitscale/base/error.hpp>
#include <unitscale/io/atomic_file.hpp>
#include <unitscale/io/safetensors.hpp>
#include <unitscale/scaling/recipe.hpp>

#include "experiments/results_file.hpp"

#include <charconv>
#include <cstdint>
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

std::filesystem::path unfinished_path(const std::filesystem::path& folder, const std::string& label,
                                      const std::string& what) {
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

std::string failure_text(const RunFailed& failure) {
    std::string reason = failure.what();
    reason = reason.substr(0, reason.find("; try "));
    if (reason.starts_with("train: ")) reason.erase(0, 7);
    return reason;
}

UnfinishedRun::UnfinishedRun(const std::filesystem::path& folder, const ComparedRun& run, const std::string& what,
                             std::size_t steps) {
    const std::filesystem::path path =
        unfinished_path(folder, concatenate(run.recipe, '-', run.rate, '-', run.seed), what);
    (log_ = path) += ".jsonl";
    (checkpoint_ = path) += ".safetensors";
    std::error_code error;
    // A checkpoint of the last step would leave no step to measure speed and memory by.
    if (const std::size_t step = step_of_checkpoint(checkpoint_); step < steps) read_lines(step);
    if (lines_.empty()) std::filesystem::remove(checkpoint_, error);
    std::string text;
    for (const Json& line : lines_) text += line.dump() + '\n';
    io::write_atomically("comparison", log_, text);
}

void UnfinishedRun::remove() const {
    std::error_code ignored;
    std::filesystem::remove(checkpoint_, ignored);
    std::filesystem::remove(log_, ignored);
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

nlohmann::ordered_json measured_biases(const ScalingState& state) {
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

void add_steps(RunResult& result, const std::vector<nlohmann::ordered_json>& lines) {
    const std::size_t most = 200, group = (lines.size() + most - 1) / most;
    double sum = 0.0;
    std::size_t count = 0;
    for (std::size_t i = 0; i < lines.size(); ++i) {
        const auto& line = lines[i];
        sum += line.at("train").get<double>();
        ++count;
        if (count == group || i + 1 == lines.size()) {
            result.train_steps.push_back(i + 1);
            result.train.push_back(sum / static_cast<double>(count));
            sum = 0.0;
            count = 0;
        }
        if (line.contains("valid")) {
            result.valid_steps.push_back(i + 1);
            result.valid.push_back(line["valid"].get<double>());
        }
        if (line.contains("biases")) {
            result.bias_steps.push_back(i + 1);
            for (const auto& [name, bias] : line["biases"].items()) result.biases[name].push_back(bias.get<int>());
        }
        if (line.contains("zeros"))
            for (const auto& [kind, counts] : line["zeros"].items())
                for (std::size_t k = 0; k < 3; ++k) result.zeros[kind][k] += counts.at(k).get<std::uint64_t>();
    }
    result.steps = lines.size();
    if (lines.empty()) return;
    result.skipped = lines.back().at("skipped").get<std::uint64_t>();
    result.tokens_per_s = lines.back().at("tokens_per_s").get<double>();
}

}  // namespace unitscale::experiments
