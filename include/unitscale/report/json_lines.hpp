// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/analysis/tracker.hpp>
#include <unitscale/io/atomic_file.hpp>
#include <unitscale/report/json_text.hpp>

#include <cstddef>
#include <filesystem>
#include <string>

namespace unitscale::report {

/// The members of a summary, within an object that is open. Shares are of all elements; `format` is what they are tested
/// against, null for none.
inline void write_summary(JsonText& json, const analysis::TensorSummary& summary,
                          const std::optional<FloatFormat>& format) {
    json.member("count", summary.count).member("finite", summary.non_finite() == 0);
    json.member("nan", summary.nans).member("infinite", summary.infinities);
    json.member("mean", summary.mean).member("std", summary.std).member("rms", summary.rms);
    json.member("smallest", summary.smallest).member("largest", summary.largest);
    json.member("zeros", summary.share(summary.zeros)).key("format");
    if (!format) {
        json.null();
        return;
    }
    json.value(name(*format)).member("underflow", summary.share(summary.underflow));
    json.member("overflow", summary.share(summary.overflow)).member("noise", summary.noise);
}

/// {"lowest":-9,"counts":[1,0,7]}: counts from the lowest exponent that occurs to the highest one.
inline void write_histogram(JsonText& json, const analysis::ExponentHistogram& histogram) {
    std::size_t begin = 0, end = histogram.counts.size();
    while (begin < end && histogram.counts[begin] == 0) ++begin;
    while (end > begin && histogram.counts[end - 1] == 0) --end;
    json.open('{')
        .member("lowest", begin == end ? 0 : static_cast<int>(begin) + analysis::ExponentHistogram::lowest)
        .key("counts")
        .open('[');
    for (std::size_t i = begin; i < end; ++i) json.value(histogram.counts[i]);
    json.close(']').close('}');
}

/// One JSON object per tensor, pass and tracked step, each on a line; the first and the latest step carry the exponents. The
/// last line is the first non-finite value, if there was one, with its explanation.
[[nodiscard]] inline std::string json_lines(const analysis::Track& track) {
    JsonText json;
    for (const analysis::TrackedTensor& tensor : track.tensors)
        for (const Pass pass : {Pass::value, Pass::gradient}) {
            const analysis::TrackedPass& side = tensor.side(pass);
            for (std::size_t i = 0; i < side.steps.size(); ++i) {
                json.open('{').member("run", track.name).member("step", side.steps[i].step).member("path", tensor.path);
                json.member("op", tensor.op)
                    .member("output", tensor.index)
                    .member("pass", pass == Pass::value ? "value" : "gradient");
                json.member("role", analysis::role(tensor, pass)).key("shape").open('[');
                for (const std::size_t extent : tensor.shape) json.value(extent);
                json.close(']');
                write_summary(json, side.steps[i].summary, track.format(pass));
                if (i == 0 || i + 1 == side.steps.size()) {
                    json.key("exponents");
                    write_histogram(json, i == 0 ? side.first : side.last);
                }
                json.close('}').newline();
            }
        }
    if (track.non_finite) {
        const analysis::NonFinite& found = *track.non_finite;
        json.open('{')
            .member("run", track.name)
            .member("first_non_finite", analysis::explain(found, track))
            .member("step", found.step);
        json.member("pass", found.pass == Pass::value ? "value" : "gradient")
            .member("path", found.path)
            .member("op", found.op);
        json.member("tensor", found.label).member("source", found.source);
        write_summary(json, found.summary, track.format(found.pass));
        json.key("causes").open('[');
        for (const analysis::Cause& cause : found.causes) {
            json.open('{')
                .member("tensor", cause.label)
                .member("pass", cause.pass == Pass::value ? "value" : "gradient");
            if (cause.summary) write_summary(json, *cause.summary, track.format(cause.pass));
            else json.member("largest", cause.largest);
            json.close('}');
        }
        json.close(']').close('}').newline();
    }
    return json.text();
}

/// Writes `json_lines` to a file, whole or not at all. Error, naming the path: it cannot be written.
/// Test: tests/report/json_lines_test.cpp
inline void write_json_lines(const std::filesystem::path& path, const analysis::Track& track) {
    io::write_atomically("tracker", path, json_lines(track));
}

}  // namespace unitscale::report
