// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/analysis/tracker.hpp>
#include <unitscale/io/atomic_file.hpp>

#include <nlohmann/json.hpp>

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace unitscale::report {

/// Adds the members of a summary to a JSON object. Shares are of all elements. `tested` is the format that underflow,
/// overflow and noise refer to. Without it, the object names the format that the tensor is stored in, if known.
inline void add_summary(nlohmann::ordered_json& object, const analysis::TensorSummary& summary,
                        const std::optional<FloatFormat>& tested, const std::optional<FloatFormat>& storage = {}) {
    object["count"] = summary.count;
    object["finite"] = summary.non_finite() == 0;
    object["nan"] = summary.nans;
    object["infinite"] = summary.infinities;
    object["mean"] = summary.mean;
    object["std"] = summary.std;
    object["rms"] = summary.rms;
    object["smallest"] = summary.smallest;
    object["largest"] = summary.largest;
    object["zeros"] = summary.share(summary.zeros);
    object["format"] = nullptr;
    if (!tested && storage) object["format"] = name(*storage);
    if (!tested) return;
    object["format"] = name(*tested);
    object["underflow"] = summary.share(summary.underflow);
    object["overflow"] = summary.share(summary.overflow);
    object["noise"] = summary.noise;
}

/// {"lowest":-9,"counts":[1,0,7]}: counts from the lowest exponent that occurs to the highest one.
[[nodiscard]] inline nlohmann::ordered_json histogram_json(const analysis::ExponentHistogram& histogram) {
    std::size_t begin = 0, end = histogram.counts.size();
    while (begin < end && histogram.counts[begin] == 0) ++begin;
    while (end > begin && histogram.counts[end - 1] == 0) --end;
    const auto first = histogram.counts.begin();
    const std::vector counts(first + static_cast<std::ptrdiff_t>(begin), first + static_cast<std::ptrdiff_t>(end));
    return {{"lowest", begin == end ? 0 : static_cast<int>(begin) + analysis::ExponentHistogram::lowest},
            {"counts", counts}};
}

/// One line of an operand: what rounding did to it in one step. `tensor` is its label, null if it was put on the tape.
/// A number of the format times a scale is an element, so that bias b is the scale 2^-b.
[[nodiscard]] inline nlohmann::ordered_json operand_json(const analysis::Track& track,
                                                         const analysis::TrackedOperand& operand,
                                                         const analysis::TrackedRounding& rounding) {
    const analysis::OperandSummary& summary = rounding.summary;
    const ScaleRule& scale = operand.rule.scale;
    nlohmann::ordered_json line = {{"run", track.name},
                                   {"step", rounding.step},
                                   {"path", operand.path},
                                   {"op", operand.op},
                                   {"operand", name(operand.slot)}};
    line["tensor"] = nullptr;
    if (operand.tensor != analysis::TrackedOperand::no_tensor) line["tensor"] = track.tensors[operand.tensor].label();
    line["format"] = operand.format_name();
    line["rounding"] = name(operand.rule.element->rounding);
    if (operand.rotation) line["rotation"] = operand.rotation->size;
    line["scaled_by"] = scale.blocks ? "block" : name(scale.granularity);
    line["scales"] = summary.scales;
    if (scale.by_tensor()) line["bias"] = -summary.lowest_scale;
    line["scale_exponents"] = {summary.lowest_scale, summary.highest_scale};
    line["count"] = summary.count;
    line["non_finite"] = summary.non_finite;
    line["saturated"] = summary.share(summary.saturated);
    line["flushed"] = summary.share(summary.flushed);
    line["snr"] = summary.snr();
    line["rms"] = summary.rms();
    return line;
}

/// One JSON object per tensor, pass and tracked step, each on a line; the first and the latest step carry the
/// exponents. One object per group of a tensor's rows and tracked step comes behind them, with the group's name as
/// `rows`. One object per rounded operand and tracked step follows; the first and the latest step carry the
/// exponents of the scales. If a value was not finite, the last line is the first such value with its explanation. NaN
/// and infinity are null, because JSON has no such numbers.
[[nodiscard]] inline std::string json_lines(const analysis::Track& track) {
    using Json = nlohmann::ordered_json;
    std::string text;
    const auto add_line = [&text](const Json& line) {
        text += line.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n';
    };
    const auto pass_name = [](Pass pass) { return pass == Pass::value ? "value" : "gradient"; };
    for (const analysis::TrackedTensor& tensor : track.tensors)
        for (const Pass pass : {Pass::value, Pass::gradient}) {
            const auto add_side = [&](const analysis::TrackedPass& side, const std::string& rows) {
                for (std::size_t i = 0; i < side.steps.size(); ++i) {
                    Json line = {{"run", track.name},
                                 {"step", side.steps[i].step},
                                 {"path", tensor.path},
                                 {"op", tensor.op},
                                 {"output", tensor.index},
                                 {"pass", pass_name(pass)},
                                 {"role", analysis::role(tensor, pass)},
                                 {"shape", std::vector(tensor.shape.begin(), tensor.shape.end())}};
                    if (!rows.empty()) line["rows"] = rows;
                    add_summary(line, side.steps[i].summary, track.format(pass), track.storage);
                    if (i == 0 || i + 1 == side.steps.size())
                        line["exponents"] = histogram_json(i == 0 ? side.first : side.last);
                    add_line(line);
                }
            };
            add_side(tensor.side(pass), "");
            for (const analysis::TrackedRows& rows : tensor.rows) add_side(rows.side(pass), rows.name);
        }
    for (const analysis::TrackedOperand& operand : track.operands)
        for (std::size_t i = 0; i < operand.steps.size(); ++i) {
            Json line = operand_json(track, operand, operand.steps[i]);
            if (i == 0 || i + 1 == operand.steps.size())
                line["scale_counts"] = histogram_json(i == 0 ? operand.first : operand.last);
            add_line(line);
        }
    if (track.non_finite) {
        const analysis::NonFinite& found = *track.non_finite;
        Json line = {{"run", track.name},     {"first_non_finite", analysis::explain(found)},
                     {"step", found.step},    {"pass", pass_name(found.pass)},
                     {"path", found.path},    {"op", found.op},
                     {"tensor", found.label}, {"source", found.source}};
        add_summary(line, found.summary, track.format(found.pass));
        line["causes"] = Json::array();
        for (const analysis::Cause& cause : found.causes) {
            Json& entry = line["causes"].emplace_back(Json{{"tensor", cause.label}, {"pass", pass_name(cause.pass)}});
            if (cause.summary) add_summary(entry, *cause.summary, track.format(cause.pass));
            else entry["largest"] = cause.largest;
        }
        add_line(line);
    }
    return text;
}

/// Writes `json_lines` to a file, whole or not at all. Error, naming the path: the file cannot be written.
/// Test: tests/report/json_lines_test.cpp
inline void write_json_lines(const std::filesystem::path& path, const analysis::Track& track) {
    io::write_atomically("tracker", path, json_lines(track));
}

}  // namespace unitscale::report
