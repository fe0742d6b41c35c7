// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/analysis/tracker.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/io/atomic_file.hpp>
#include <unitscale/report/json_text.hpp>
#include <unitscale/report/report_page.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace unitscale::report {

/// The data of a report, from tracks of one model under several recipes. A tensor is one of all runs: its label.
class ReportData {
public:
    explicit ReportData(std::span<const analysis::Track> tracks) : tracks_(tracks) {
        check(!tracks.empty(), "report: no run was given");
        for (const analysis::Track& track : tracks) merge(track);
        find_range();
    }

    [[nodiscard]] std::string json() const {
        JsonText json;
        json.open('{').key("exponents").open('[').value(low_).value(high_).close(']').key("ticks").open('[');
        const int step = high_ - low_ > 96 ? 32 : high_ - low_ > 48 ? 16 : 8;
        for (int tick = low_ - 1; tick <= high_; ++tick)
            if (tick >= low_ + 1 && tick < high_ && tick % step == 0) json.value(tick);
        json.close(']').key("runs").open('[');
        for (const analysis::Track& track : tracks_) write_run(json, track);
        json.close(']');
        write_worst(json, "under", &analysis::TensorSummary::underflow);
        write_worst(json, "over", &analysis::TensorSummary::overflow);
        write_groups(json);
        return json.close('}').text();
    }

private:
    using Sides = std::vector<const analysis::TrackedPass*>;  ///< one per run; null: not there

    /// A tensor in every run that has it.
    struct Row {
        std::string label{};
        std::vector<const analysis::TrackedTensor*> tensors{};
        std::vector<std::string> weights{};  ///< labels of the parameters that its op uses
        bool is_weight = false, shown = false;

        [[nodiscard]] const analysis::TrackedTensor& any() const {
            return **std::find_if(tensors.begin(), tensors.end(),
                                  [](const analysis::TrackedTensor* t) { return t != nullptr; });
        }
        [[nodiscard]] Sides sides(Pass pass) const {
            Sides result;
            for (const analysis::TrackedTensor* tensor : tensors)
                result.push_back(tensor == nullptr || tensor->side(pass).steps.empty() ? nullptr : &tensor->side(pass));
            return result;
        }
    };

    /// Adds a run's tensors: known ones in their places, others after the one that stands before them in that run.
    void merge(const analysis::Track& track) {
        const auto run = static_cast<std::size_t>(&track - tracks_.data());
        std::size_t place = 0;
        for (const analysis::TrackedTensor& tensor : track.tensors) {
            if (!tensor.selected) continue;
            const std::string label = tensor.label();
            auto found = std::find_if(rows_.begin(), rows_.end(), [&](const Row& row) { return row.label == label; });
            if (found == rows_.end()) {
                found = rows_.insert(rows_.begin() + static_cast<std::ptrdiff_t>(place), Row{.label = label});
                found->tensors.resize(tracks_.size(), nullptr);
                found->is_weight = tensor.is_parameter();
                for (const std::size_t input : tensor.inputs)
                    if (track.tensors[input].is_parameter()) found->weights.push_back(track.tensors[input].label());
            }
            found->tensors[run] = &tensor;
            place = static_cast<std::size_t>(found - rows_.begin()) + 1;
        }
    }

    /// The exponents that the page shows: those that hold more than 0.2 % of some tensor, and the formats' ends.
    void find_range() {
        const auto widen = [this](int from, int to) {
            low_ = std::min(low_, from);
            high_ = std::max(high_, to);
        };
        for (const analysis::Track& track : tracks_) {
            for (const auto& format : {track.value_format, track.gradient_format})
                if (format && format->exponent_bits < 8)
                    widen(format->quantum_exponent() - 2, format->max_exponent() + 2);
            for (const analysis::TrackedTensor& tensor : track.tensors)
                for (const Pass pass : {Pass::value, Pass::gradient})
                    for (const analysis::ExponentHistogram* histogram :
                         {&tensor.side(pass).first, &tensor.side(pass).last}) {
                        const auto total = static_cast<double>(histogram->total());
                        for (int e = analysis::ExponentHistogram::lowest; e <= analysis::ExponentHistogram::highest;
                             ++e)
                            if (static_cast<double>(histogram->at(e)) > 2e-3 * total) widen(e - 1, e + 2);
                    }
        }
        low_ = std::max(low_, -64);
        high_ = std::min(high_, 64);
    }

    static void write_run(JsonText& json, const analysis::Track& track) {
        json.open('{').member("name", track.name).key("formats").open('[');
        for (const auto& format : {track.value_format, track.gradient_format}) {
            if (!format) {
                json.null();
                continue;
            }
            json.open('{').member("name", name(*format)).member("zero", format->quantum_exponent() - 1);
            json.member("normal", format->min_exponent())
                .member("top", std::log2(static_cast<double>(format->max())))
                .close('}');
        }
        json.close(']').key("non_finite");
        if (track.non_finite) {
            // explain() puts the causes after the first sentence parts, each behind a semicolon.
            analysis::NonFinite head = *track.non_finite;
            head.causes.clear();
            json.open('{').member("text", analysis::explain(head, track)).key("causes").open('[');
            for (const analysis::Cause& cause : track.non_finite->causes) json.value(analysis::explain(cause, track));
            json.close(']').close('}');
        } else {
            json.null();
        }
        json.close('}');
    }

    /// Of every run the six largest shares over tensors, passes and steps; of a tensor's pass its worst step.
    void write_worst(JsonText& json, std::string_view key, std::size_t analysis::TensorSummary::*count) const {
        struct Worst {
            const analysis::TrackedTensor* tensor = nullptr;
            Pass pass = Pass::value;
            const analysis::TrackedStep* step = nullptr;
            double share = 0.0;
        };
        json.key(key).open('[');
        for (std::size_t run = 0; run < tracks_.size(); ++run) {
            std::vector<Worst> all;
            for (const analysis::TrackedTensor& tensor : tracks_[run].tensors)
                for (const Pass pass : {Pass::value, Pass::gradient}) {
                    Worst worst{.tensor = &tensor, .pass = pass};
                    for (const analysis::TrackedStep& step : tensor.side(pass).steps)
                        if (const double share = step.summary.share(step.summary.*count); share > worst.share) {
                            worst.step = &step;
                            worst.share = share;
                        }
                    if (worst.step != nullptr) all.push_back(worst);
                }
            std::stable_sort(all.begin(), all.end(), [](const Worst& a, const Worst& b) { return a.share > b.share; });
            all.resize(std::min<std::size_t>(all.size(), 6));
            for (const Worst& worst : all) {
                json.open('{')
                    .member("tensor", worst.tensor->label())
                    .member("run", run)
                    .member("step", worst.step->step);
                json.member("pass", worst.pass == Pass::value ? "value" : "gradient").member("share", worst.share);
                json.member("rms", worst.step->summary.rms).close('}');
            }
        }
        json.close(']');
    }

    /// The exponents' shares in millionths, after the lowest exponent; what is outside the page's range is at its ends.
    void write_shares(JsonText& json, const analysis::ExponentHistogram& histogram) const {
        std::vector<std::uint64_t> counts(static_cast<std::size_t>(high_ - low_), 0);
        for (int e = analysis::ExponentHistogram::lowest; e <= analysis::ExponentHistogram::highest; ++e)
            counts[static_cast<std::size_t>(std::clamp(e, low_, high_ - 1) - low_)] += histogram.at(e);
        std::size_t begin = 0, end = counts.size();
        while (begin < end && counts[begin] == 0) ++begin;
        while (end > begin && counts[end - 1] == 0) --end;
        const auto total = static_cast<double>(std::max<std::uint64_t>(histogram.total(), 1));
        json.open('[').value(low_ + static_cast<int>(begin));
        for (std::size_t i = begin; i < end; ++i)
            json.value(static_cast<std::int64_t>(std::ceil(1e6 * static_cast<double>(counts[i]) / total)));
        json.close(']');
    }

    static void write_numbers(JsonText& json, std::string_view key, const analysis::TensorSummary& s) {
        const auto rounded = [](double v) {
            return std::isfinite(v) && v != 0.0 ? std::stod(concatenate(v)) : v;
        };  // six digits
        json.key(key)
            .open('{')
            .member("mean", rounded(s.mean))
            .member("std", rounded(s.std))
            .member("rms", rounded(s.rms));
        json.member("smallest", rounded(s.smallest)).member("largest", rounded(s.largest));
        json.member("zeros", rounded(s.share(s.zeros))).member("under", rounded(s.share(s.underflow)));
        json.member("over", rounded(s.share(s.overflow))).member("bad", rounded(s.share(s.non_finite())));
        json.member("noise", rounded(s.noise)).close('}');
    }

    /// One cell of the page: a tensor's side in every run.
    void write_cell(JsonText& json, std::string_view key, const Sides& sides) const {
        json.key(key).open('[');
        for (const analysis::TrackedPass* side : sides) {
            if (side == nullptr) {
                json.null();
                continue;
            }
            json.open('{').key("first");
            write_shares(json, side->first);
            json.key("last");
            write_shares(json, side->last);
            json.key("rms").open('[');
            for (const analysis::TrackedStep& step : side->steps)
                if (step.summary.rms > 0.0) json.value(std::round(100.0 * std::log2(step.summary.rms)) / 100.0);
                else json.null();
            json.close(']');
            write_numbers(json, "start", side->steps.front().summary);
            write_numbers(json, "end", side->steps.back().summary);
            json.close('}');
        }
        json.close(']');
    }

    [[nodiscard]] const Row* find(const std::string& label) const {
        const auto found = std::find_if(rows_.begin(), rows_.end(), [&](const Row& row) { return row.label == label; });
        return found == rows_.end() ? nullptr : &*found;
    }

    /// The module of a path: its first two names, or one where no more than an op follows.
    static std::string_view module_of(std::string_view path) {
        const std::size_t first = path.find('/');
        if (first == std::string_view::npos) return {};
        const std::size_t second = path.find('/', first + 1);
        return path.substr(0, second == std::string_view::npos ? first : second);
    }

    /// Ops in model order, each with the parameter it uses; further parameters, and those whose op is not there, are rows of
    /// their own. Neighbours in one module are a group.
    void write_groups(JsonText& json) const {
        std::vector<std::string> placed;
        const auto is_placed = [&](const std::string& label) {
            return std::find(placed.begin(), placed.end(), label) != placed.end();
        };
        for (const Row& row : rows_)
            if (!row.weights.empty() && find(row.weights.front()) != nullptr && !is_placed(row.weights.front()))
                placed.push_back(row.weights.front());
        std::string group;
        bool open = false;
        json.key("groups").open('[');
        for (const Row& row : rows_) {
            if (row.is_weight && is_placed(row.label)) continue;
            const analysis::TrackedTensor& tensor = row.any();
            const std::string module(module_of(tensor.path));
            if (!open || module != group) {
                if (open) json.close(']').close('}');
                json.open('{').member("name", module.empty() ? "model" : module).key("rows").open('[');
                group = module;
                open = true;
            }
            const Row* weight = row.is_weight ? &row : row.weights.empty() ? nullptr : find(row.weights.front());
            std::string search = row.label;
            if (weight != nullptr && !row.is_weight) search.append(" ").append(weight->label);
            json.open('{')
                .member("name", module.empty() ? row.label : row.label.substr(module.size() + 1))
                .member("search", search);
            json.key("notes").open('[').value(
                concatenate(row.is_weight ? "" : tensor.op, row.is_weight ? "" : " ", to_string(tensor.shape)));
            if (weight != nullptr && !row.is_weight)
                json.value(concatenate(weight->label.substr(weight->label.rfind('/') + 1), ' ',
                                       to_string(weight->any().shape)));
            json.close(']');
            if (!row.is_weight) {
                write_cell(json, "value", row.sides(Pass::value));
                write_cell(json, "gradient", row.sides(Pass::gradient));
            }
            if (weight != nullptr) {
                write_cell(json, "weight", weight->sides(Pass::value));
                write_cell(json, "weight_gradient", weight->sides(Pass::gradient));
            }
            json.close('}');
        }
        if (open) json.close(']').close('}');
        json.close(']');
    }

    std::span<const analysis::Track> tracks_;
    std::vector<Row> rows_{};
    int low_ = -12, high_ = 6;
};

/// One self-contained HTML page about several runs of a model: at the top the first non-finite value and the tensors that
/// leave their format most; then, op by op in model order, exponent histograms of activations, weights and gradients at the
/// start and at the end of training with the format's range behind them, and the rms over training. It needs no network.
/// Error: no run.
[[nodiscard]] inline std::string html_report(std::span<const analysis::Track> tracks, std::string_view title) {
    return report_page(title, ReportData(tracks).json());
}

/// Writes `html_report` to a file, whole or not at all. Error, naming the path: it cannot be written.
/// Test: tests/report/html_report_test.cpp
inline void write_html_report(const std::filesystem::path& path, std::span<const analysis::Track> tracks,
                              std::string_view title) {
    io::write_atomically("report", path, html_report(tracks, title));
}

}  // namespace unitscale::report
