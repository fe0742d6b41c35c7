// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/analysis/tracker.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/io/atomic_file.hpp>
#include <unitscale/report/report_page.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace unitscale::report {

/// The data of a report, from tracks of one model under several recipes. Tensors of different runs are one tensor if
/// their labels agree.
class ReportData {
public:
    using Json = nlohmann::ordered_json;

    explicit ReportData(std::span<const analysis::Track> tracks) : tracks_(tracks) {
        check(!tracks.empty(), "report: no run was given");
        for (const analysis::Track& track : tracks) merge(track);
        find_range();
    }

    /// The data as the page's script reads it.
    [[nodiscard]] Json json() const {
        Json ticks = Json::array(), runs = Json::array();
        const int step = high_ - low_ > 96 ? 32 : high_ - low_ > 48 ? 16 : 8;
        for (int tick = low_ + 1; tick < high_; ++tick)
            if (tick % step == 0) ticks.push_back(tick);
        for (const analysis::Track& track : tracks_) runs.push_back(run_json(track));
        return {{"exponents", Json::array({low_, high_})},
                {"ticks", std::move(ticks)},
                {"runs", std::move(runs)},
                {"under", worst_json(&analysis::TensorSummary::underflow)},
                {"over", worst_json(&analysis::TensorSummary::overflow)},
                {"groups", groups_json()}};
    }

private:
    using Sides = std::vector<const analysis::TrackedPass*>;  ///< one per run; null if the run has no such tensor

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

    /// Adds the tensors of a run. A known tensor keeps its place; a new one follows its predecessor in that run.
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

    /// Finds the exponents that the page shows: every exponent with more than 0.2 % of some tensor, and the ends of the
    /// formats' ranges.
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

    [[nodiscard]] static Json run_json(const analysis::Track& track) {
        Json formats = Json::array(), non_finite;
        for (const auto& format : {track.value_format, track.gradient_format}) {
            if (format)
                formats.push_back({{"name", name(*format)},
                                   {"zero", format->quantum_exponent() - 1},
                                   {"normal", format->min_exponent()},
                                   {"top", std::log2(static_cast<double>(format->max()))}});
            else formats.push_back(nullptr);
        }
        if (track.non_finite) {
            // explain() appends the causes behind semicolons; the page lists them on their own.
            analysis::NonFinite head = *track.non_finite;
            head.causes.clear();
            Json causes = Json::array();
            for (const analysis::Cause& cause : track.non_finite->causes)
                causes.push_back(analysis::explain(cause, track));
            non_finite = {{"text", analysis::explain(head, track)}, {"causes", std::move(causes)}};
        }
        return {{"name", track.name}, {"formats", std::move(formats)}, {"non_finite", std::move(non_finite)}};
    }

    /// The six largest shares of every run, over tensors and passes. Each tensor's pass enters with its worst step.
    [[nodiscard]] Json worst_json(std::size_t analysis::TensorSummary::*count) const {
        struct Worst {
            const analysis::TrackedTensor* tensor = nullptr;
            Pass pass = Pass::value;
            const analysis::TrackedStep* step = nullptr;
            double share = 0.0;
        };
        Json json = Json::array();
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
            for (const Worst& worst : all)
                json.push_back({{"tensor", worst.tensor->label()},
                                {"run", run},
                                {"step", worst.step->step},
                                {"pass", worst.pass == Pass::value ? "value" : "gradient"},
                                {"share", worst.share},
                                {"rms", worst.step->summary.rms}});
        }
        return json;
    }

    /// The lowest exponent, then the exponents' shares in millionths. Elements outside the page's range count at its
    /// ends.
    [[nodiscard]] Json shares_json(const analysis::ExponentHistogram& histogram) const {
        std::vector<std::uint64_t> counts(static_cast<std::size_t>(high_ - low_), 0);
        for (int e = analysis::ExponentHistogram::lowest; e <= analysis::ExponentHistogram::highest; ++e)
            counts[static_cast<std::size_t>(std::clamp(e, low_, high_ - 1) - low_)] += histogram.at(e);
        std::size_t begin = 0, end = counts.size();
        while (begin < end && counts[begin] == 0) ++begin;
        while (end > begin && counts[end - 1] == 0) --end;
        const auto total = static_cast<double>(std::max<std::uint64_t>(histogram.total(), 1));
        Json json = Json::array({low_ + static_cast<int>(begin)});
        for (std::size_t i = begin; i < end; ++i)
            json.push_back(static_cast<std::int64_t>(std::ceil(1e6 * static_cast<double>(counts[i]) / total)));
        return json;
    }

    /// The numbers of a summary, rounded to six digits.
    [[nodiscard]] static Json numbers_json(const analysis::TensorSummary& s) {
        const auto rounded = [](double v) { return std::isfinite(v) && v != 0.0 ? std::stod(concatenate(v)) : v; };
        return {{"mean", rounded(s.mean)},
                {"std", rounded(s.std)},
                {"rms", rounded(s.rms)},
                {"smallest", rounded(s.smallest)},
                {"largest", rounded(s.largest)},
                {"zeros", rounded(s.share(s.zeros))},
                {"under", rounded(s.share(s.underflow))},
                {"over", rounded(s.share(s.overflow))},
                {"bad", rounded(s.share(s.non_finite()))},
                {"noise", rounded(s.noise)}};
    }

    /// One cell of the page: one pass of a tensor in every run.
    [[nodiscard]] Json cell_json(const Sides& sides) const {
        Json json = Json::array();
        for (const analysis::TrackedPass* side : sides) {
            if (side == nullptr) {
                json.push_back(nullptr);
                continue;
            }
            Json rms = Json::array();
            for (const analysis::TrackedStep& step : side->steps)
                if (step.summary.rms > 0.0) rms.push_back(std::round(100.0 * std::log2(step.summary.rms)) / 100.0);
                else rms.push_back(nullptr);
            json.push_back({{"first", shares_json(side->first)},
                            {"last", shares_json(side->last)},
                            {"rms", std::move(rms)},
                            {"start", numbers_json(side->steps.front().summary)},
                            {"end", numbers_json(side->steps.back().summary)}});
        }
        return json;
    }

    [[nodiscard]] const Row* find(const std::string& label) const {
        const auto found = std::find_if(rows_.begin(), rows_.end(), [&](const Row& row) { return row.label == label; });
        return found == rows_.end() ? nullptr : &*found;
    }

    /// The module of a path: its first two names, or its first name if only an op follows.
    static std::string_view module_of(std::string_view path) {
        const std::size_t first = path.find('/');
        if (first == std::string_view::npos) return {};
        const std::size_t second = path.find('/', first + 1);
        return path.substr(0, second == std::string_view::npos ? first : second);
    }

    /// Ops in model order, each with the first parameter that it uses. Further parameters are rows of their own, and so
    /// are parameters without their op. Neighbours in one module form a group.
    [[nodiscard]] Json groups_json() const {
        std::vector<std::string> placed;
        const auto is_placed = [&](const std::string& label) {
            return std::find(placed.begin(), placed.end(), label) != placed.end();
        };
        for (const Row& row : rows_)
            if (!row.weights.empty() && find(row.weights.front()) != nullptr && !is_placed(row.weights.front()))
                placed.push_back(row.weights.front());
        Json groups = Json::array();
        std::string group;
        for (const Row& row : rows_) {
            if (row.is_weight && is_placed(row.label)) continue;
            const analysis::TrackedTensor& tensor = row.any();
            const std::string module(module_of(tensor.path));
            if (groups.empty() || module != group) {
                groups.push_back({{"name", module.empty() ? "model" : module}, {"rows", Json::array()}});
                group = module;
            }
            const Row* weight = row.is_weight ? &row : row.weights.empty() ? nullptr : find(row.weights.front());
            std::string search = row.label;
            if (weight != nullptr && !row.is_weight) search.append(" ").append(weight->label);
            Json notes = Json::array(
                {concatenate(row.is_weight ? "" : tensor.op, row.is_weight ? "" : " ", to_string(tensor.shape))});
            if (weight != nullptr && !row.is_weight)
                notes.push_back(concatenate(weight->label.substr(weight->label.rfind('/') + 1), ' ',
                                            to_string(weight->any().shape)));
            Json json = {{"name", module.empty() ? row.label : row.label.substr(module.size() + 1)},
                         {"search", std::move(search)},
                         {"notes", std::move(notes)}};
            if (!row.is_weight) {
                json["value"] = cell_json(row.sides(Pass::value));
                json["gradient"] = cell_json(row.sides(Pass::gradient));
            }
            if (weight != nullptr) {
                json["weight"] = cell_json(weight->sides(Pass::value));
                json["weight_gradient"] = cell_json(weight->sides(Pass::gradient));
            }
            groups.back()["rows"].push_back(std::move(json));
        }
        return groups;
    }

    std::span<const analysis::Track> tracks_;
    std::vector<Row> rows_{};
    int low_ = -12, high_ = 6;
};

/// One self-contained HTML page about several runs of a model. It needs no network.
/// At the top: the first non-finite value, and the tensors that leave their format most.
/// Then, op by op in model order: exponent histograms of activations, weights and gradients, and the rms over training.
/// The histograms show the start and the end of training, with the format's range behind them.
/// Error: no run.
[[nodiscard]] inline std::string html_report(std::span<const analysis::Track> tracks, std::string_view title) {
    return report_page(title, ReportData(tracks).json());
}

/// Writes `html_report` to a file, whole or not at all. Error, naming the path: the file cannot be written.
/// Test: tests/report/html_report_test.cpp
inline void write_html_report(const std::filesystem::path& path, std::span<const analysis::Track> tracks,
                              std::string_view title) {
    io::write_atomically("report", path, html_report(tracks, title));
}

}  // namespace unitscale::report
