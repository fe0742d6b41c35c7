// SPDX-License-Identifier: MIT
#include "experiments/run_task.hpp"

#include <unitscale/base/error.hpp>
#include <unitscale/io/json_log.hpp>

#include "experiments/layer_rms.hpp"
#include "experiments/results_file.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <type_traits>
#include <utility>

namespace unitscale::experiments {

namespace {

std::string line_of(nlohmann::ordered_json json) {
    io::name_non_finite_numbers(json);
    return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

/// Calls field(name, value) for each measurement. Reading and writing share this list.
template <class Trained, class Field>
void describe(Trained& trained, Field&& field) {
    auto& result = trained.result;
    field("failed", trained.failed);
    field("reason", trained.reason);
    field("first_bad", trained.first_bad);
    field("run_seconds", trained.seconds);
    field("recipe", result.recipe);
    field("steps", result.steps);
    field("train", result.train_bpc);
    field("valid", result.valid_bpc);
    field("test", result.test_bpc);
    field("tokens_per_s", result.tokens_per_s);
    field("peak_rss_mb", result.peak_rss_mb);
    field("seconds", result.seconds);
    field("skipped", result.skipped);
    field("weight_bytes", result.weight_bytes);
    field("state_bytes", result.state_bytes);
    field("step_bytes", result.step_bytes);
}

TrainedRun trained_of(const nlohmann::ordered_json& json) {
    TrainedRun trained;
    describe(trained, [&]<class Value>(const char* name, Value& value) {
        if constexpr (!std::is_same_v<Value, std::optional<double>>) read_logged(json.at(name), value);
        else if (json.contains(name)) read_logged(json[name], value.emplace());
    });
    for (const nlohmann::ordered_json& line : json.at("lines")) trained.lines.push_back(line);
    trained.rms = read_layers(json.at("rms"));
    return trained;
}

}  // namespace

std::string RunTask::text() const {
    return line_of({{"point", point}, {"seed", seed}, {"recipe", recipe}, {"settings", settings}});
}

RunTask RunTask::parse(std::string_view text) {
    RunTask task;
    try {
        const nlohmann::ordered_json json = nlohmann::ordered_json::parse(text);
        json.at("point").get_to(task.point);
        json.at("seed").get_to(task.seed);
        json.at("recipe").get_to(task.recipe);
        json.at("settings").get_to(task.settings);
    } catch (const nlohmann::json::exception&) {
        fail("run: '", text, "' is not the task of a run");
    }
    return task;
}

std::string began_line(std::size_t known) { return line_of({{"began", known}}); }

std::string step_line(const LanguageStep& step) { return line_of({{"step", step.step}, {"train", step.train_bpc}}); }

std::string trained_line(const TrainedRun& trained) {
    nlohmann::ordered_json json;
    describe(trained, [&]<class Value>(const char* name, const Value& value) {
        if constexpr (!std::is_same_v<Value, std::optional<double>>) json[name] = value;
        else if (value) json[name] = *value;
    });
    json["lines"] = trained.lines;
    json["rms"] = json_of(trained.rms);
    return line_of({{"trained", std::move(json)}});
}

std::string error_line(std::string_view message, bool arguments) {
    return line_of({{"error", message}, {"arguments", arguments}});
}

void RunLines::read(std::string_view line) {
    try {
        const nlohmann::ordered_json json = nlohmann::ordered_json::parse(line);
        if (json.contains("error")) {
            const auto message = json["error"].get<std::string>();
            check(!json.at("arguments").get<bool>(), message);
            throw RunFailed(message);
        }
        if (json.contains("trained")) {
            trained_ = trained_of(json["trained"]);
        } else if (json.contains("began")) {
            const auto known = json["began"].get<std::size_t>();
            if (!std::exchange(began_, true) && began) began(known);
            steps_ = std::max(steps_, known);
        } else {
            LanguageStep step{.step = json.at("step").get<std::size_t>()};
            read_logged(json.at("train"), step.train_bpc);
            if (step.step > steps_ && stepped) stepped(step);
            steps_ = std::max(steps_, step.step);
        }
    } catch (const nlohmann::json::exception&) {
        fail("run: its process has written '", line.substr(0, 60), "', which is not a line of a run");
    }
}

}  // namespace unitscale::experiments
