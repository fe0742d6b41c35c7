// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/analysis/tracker.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/io/atomic_file.hpp>
#include <unitscale/report/judge.hpp>
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
                {"under", worst_json(&analysis::TensorSummary::underflow, &analysis::OperandSummary::flushed)},
                {"over", worst_json(&analysis::TensorSummary::overflow, &analysis::OperandSummary::saturated)},
                {"groups", groups_json()}};
    }

private:
    /// One side of a tensor in each run; null if the run has no such tensor.
    struct Side {
        const analysis::TrackedPass* pass = nullptr;
        std::optional<Judge> judge{};
    };
    using Sides = std::vector<Side>;

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
        [[nodiscard]] Sides sides(std::span<const analysis::Track> tracks, Pass pass) const {
            Sides result(tensors.size());
            for (std::size_t run = 0; run < tensors.size(); ++run)
                if (tensors[run] != nullptr && !tensors[run]->side(pass).steps.empty())
                    result[run] = {&tensors[run]->side(pass), Judge(tracks[run], *tensors[run], pass)};
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

    /// Finds the exponents that the page shows: every exponent with more than 0.2 % of some tensor or of some operand's
    /// scales, and the ends of the formats' ranges.
    void find_range() {
        const auto widen = [this](int from, int to) {
            low_ = std::min(low_, from);
            high_ = std::max(high_, to);
        };
        const auto show = [&widen](const analysis::ExponentHistogram& histogram) {
            const auto total = static_cast<double>(histogram.total());
            for (int e = analysis::ExponentHistogram::lowest; e <= analysis::ExponentHistogram::highest; ++e)
                if (static_cast<double>(histogram.at(e)) > 2e-3 * total) widen(e - 1, e + 2);
        };
        for (const analysis::Track& track : tracks_) {
            for (const auto& format : {track.value_format, track.gradient_format})
                if (format && format->exponent_bits < 8)
                    widen(format->quantum_exponent() - 2, format->max_exponent() + 2);
            for (const analysis::TrackedTensor& tensor : track.tensors)
                for (const Pass pass : {Pass::value, Pass::gradient}) {
                    show(tensor.side(pass).first);
                    show(tensor.side(pass).last);
                    for (const analysis::TrackedRows& rows : tensor.rows)
                        show(rows.side(pass).first), show(rows.side(pass).last);
                }
            for (const analysis::TrackedOperand& operand : track.operands) {
                const FloatFormat& format = operand.rule.element->format;
                if (operand.rule.scale.by_tensor() && format.exponent_bits < 8)
                    for (const analysis::TrackedRounding& rounding : operand.steps)
                        widen(format.quantum_exponent() - 2 + rounding.summary.lowest_scale,
                              format.max_exponent() + 2 + rounding.summary.lowest_scale);
                show(operand.first);
                show(operand.last);
            }
        }
        low_ = std::max(low_, -64);
        high_ = std::min(high_, 64);
    }

    /// `formats`: the names of all formats that judge the run's tensors, each once.
    [[nodiscard]] static Json run_json(const analysis::Track& track) {
        std::vector<std::string> formats;
        const auto add = [&formats](const std::string& one) {
            if (std::find(formats.begin(), formats.end(), one) == formats.end()) formats.push_back(one);
        };
        for (const Pass pass : {Pass::value, Pass::gradient}) {
            if (track.format(pass)) add(name(*track.format(pass)));
            else
                for (const analysis::TrackedOperand& operand : track.operands)
                    if (operand.selected && operand.pass() == pass) add(operand.format_name());
        }
        if (track.storage && !(track.value_format && track.gradient_format)) add(name(*track.storage));
        Json non_finite;
        if (track.non_finite) {
            // explain() appends the causes behind semicolons; the page lists them on their own.
            analysis::NonFinite head = *track.non_finite;
            head.causes.clear();
            Json causes = Json::array();
            for (const analysis::Cause& cause : track.non_finite->causes) causes.push_back(analysis::explain(cause));
            non_finite = {{"text", analysis::explain(head)}, {"causes", std::move(causes)}};
        }
        return {{"name", track.name}, {"formats", formats}, {"non_finite", std::move(non_finite)}};
    }

    /// The six largest shares of every run: of rounded operands, by their own scales, or of tensors if all are tested
    /// against a format. Each enters with its worst step. Storage has lost nothing. A tensor that several products
    /// round alike enters once.
    [[nodiscard]] Json worst_json(std::size_t analysis::TensorSummary::*tested,
                                  std::size_t analysis::OperandSummary::*rounded) const {
        struct Worst {
            std::string label{}, pass{};
            std::uint64_t step = 0;
            double share = 0.0, rms = 0.0;
            std::size_t tensor = analysis::TrackedOperand::no_tensor;  ///< that an operand rounds,
            Pass side = Pass::value;                                   ///< and its side
        };
        Json json = Json::array();
        for (std::size_t run = 0; run < tracks_.size(); ++run) {
            const analysis::Track& track = tracks_[run];
            std::vector<Worst> all;
            for (const analysis::TrackedTensor& tensor : track.tensors)
                for (const Pass pass : {Pass::value, Pass::gradient}) {
                    if (!track.format(pass)) continue;
                    Worst worst{.label = tensor.label(), .pass = pass == Pass::value ? "value" : "gradient"};
                    for (const auto& [step, summary] : tensor.side(pass).steps)
                        if (const double share = summary.share(summary.*tested); share > worst.share) {
                            worst.step = step;
                            worst.share = share;
                            worst.rms = summary.rms;
                        }
                    if (worst.share > 0.0) all.push_back(std::move(worst));
                }
            for (const analysis::TrackedOperand& operand : track.operands) {
                if (track.format(operand.pass())) continue;
                Worst worst{.label = operand.path,
                            .pass = std::string(name(operand.slot)),
                            .tensor = operand.tensor,
                            .side = operand.pass()};
                for (const auto& [step, summary] : operand.steps)
                    if (const double share = summary.share(summary.*rounded); share > worst.share) {
                        worst.step = step;
                        worst.share = share;
                        worst.rms = summary.rms();
                    }
                const bool known = std::any_of(all.begin(), all.end(), [&worst](const Worst& other) {
                    return worst.tensor != analysis::TrackedOperand::no_tensor && other.tensor == worst.tensor &&
                           other.side == worst.side && other.step == worst.step && other.share == worst.share;
                });
                if (worst.share > 0.0 && !known) all.push_back(std::move(worst));
            }
            std::stable_sort(all.begin(), all.end(), [](const Worst& a, const Worst& b) { return a.share > b.share; });
            all.resize(std::min<std::size_t>(all.size(), 6));
            for (const Worst& worst : all)
                json.push_back({{"tensor", worst.label},
                                {"run", run},
                                {"step", worst.step},
                                {"pass", worst.pass},
                                {"share", worst.share},
                                {"rms", number_json(worst.rms)}});
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

    /// One cell of the page: one pass of a tensor in every run. `whole` is false for a group of its rows: a format's
    /// losses are known of whole tensors only.
    [[nodiscard]] Json cell_json(const Sides& sides, bool whole = true) const {
        Json json = Json::array();
        for (const auto& [side, judge] : sides) {
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
                            {"format", judge->format()},
                            {"start", judge->numbers(side->steps.front(), whole)},
                            {"end", judge->numbers(side->steps.back(), whole)}});
        }
        return json;
    }

    /// The groups of a tensor's rows, of all runs, each name once.
    [[nodiscard]] Json row_groups_json(const Row& row) const {
        std::vector<std::string> names;
        for (const analysis::TrackedTensor* tensor : row.tensors)
            for (const analysis::TrackedRows& rows : tensor != nullptr ? tensor->rows : no_rows)
                if (std::find(names.begin(), names.end(), rows.name) == names.end()) names.push_back(rows.name);
        Json json = Json::array();
        for (const std::string& name : names) {
            const auto cell = [&](Pass pass) {
                Sides sides(row.tensors.size());
                for (std::size_t run = 0; run < sides.size(); ++run)
                    for (const analysis::TrackedRows& rows : row.tensors[run] ? row.tensors[run]->rows : no_rows)
                        if (rows.name == name && !rows.side(pass).steps.empty())
                            sides[run] = {&rows.side(pass), Judge(tracks_[run], *row.tensors[run], pass)};
                return cell_json(sides, false);
            };
            json.push_back({{"name", name}, {"value", cell(Pass::value)}, {"gradient", cell(Pass::gradient)}});
        }
        return json;
    }

    /// The rounded operands of the op that made a tensor, of all runs in the order of the slots.
    [[nodiscard]] Json operands_json(const Row& row) const {
        Json json = Json::array();
        for (std::size_t slot = 0; slot < slot_count; ++slot)
            for (std::size_t run = 0; run < row.tensors.size(); ++run) {
                const analysis::TrackedTensor* const tensor = row.tensors[run];
                if (tensor == nullptr || tensor->index != 0) continue;
                for (const analysis::TrackedOperand& operand : tracks_[run].operands) {
                    if (operand.slot != static_cast<OperandSlot>(slot) || operand.path != tensor->path ||
                        operand.op != tensor->op || operand.steps.empty())
                        continue;
                    const auto numbers = [&operand](const analysis::OperandSummary& s) -> Json {
                        return {{"scale", analysis::scale_text(operand, s)},
                                {"saturated", number_json(s.share(s.saturated))},
                                {"flushed", number_json(s.share(s.flushed))},
                                {"snr", number_json(s.snr())}};
                    };
                    json.push_back(
                        {{"run", run},
                         {"slot", name(operand.slot)},
                         {"format", concatenate(operand.format_name(),
                                                operand.rotation ? concatenate(" rotated by ", operand.rotation->size)
                                                                 : std::string())},
                         {"start", numbers(operand.steps.front().summary)},
                         {"end", numbers(operand.steps.back().summary)}});
                    if (operand.rule.scale.by_tensor()) continue;
                    json.back()["first"] = shares_json(operand.first);
                    json.back()["last"] = shares_json(operand.last);
                }
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
                json["value"] = cell_json(row.sides(tracks_, Pass::value));
                json["gradient"] = cell_json(row.sides(tracks_, Pass::gradient));
                if (Json operands = operands_json(row); !operands.empty()) json["operands"] = std::move(operands);
                if (Json groups_of_rows = row_groups_json(row); !groups_of_rows.empty())
                    json["row_groups"] = std::move(groups_of_rows);
            }
            if (weight != nullptr) {
                json["weight"] = cell_json(weight->sides(tracks_, Pass::value));
                json["weight_gradient"] = cell_json(weight->sides(tracks_, Pass::gradient));
            }
            groups.back()["rows"].push_back(std::move(json));
        }
        return groups;
    }

    static inline const std::vector<analysis::TrackedRows> no_rows{};

    std::span<const analysis::Track> tracks_;
    std::vector<Row> rows_{};
    int low_ = -12, high_ = 6;
};

/// One self-contained HTML page about several runs of a model. It needs no network.
/// At the top: the first non-finite value, and the operands that lose most of their elements to zero or to saturation.
/// Then, op by op in model order: exponent histograms of activations, weights and gradients, and the rms over training.
/// The histograms show the start and the end of training. Behind them is the range of the format that rounds the
/// tensor, where it has one scale. A product's operands follow: scales, shares saturated and flushed to zero, SNR.
/// `source` says where the page comes from, at its top. Error: no run.
[[nodiscard]] inline std::string html_report(std::span<const analysis::Track> tracks, std::string_view title,
                                             const PageSource& source = {}) {
    return report_page(title, ReportData(tracks).json(), source);
}

/// Writes `html_report` to a file, whole or not at all. Error, naming the path: the file cannot be written.
/// Test: tests/report/html_report_test.cpp
inline void write_html_report(const std::filesystem::path& path, std::span<const analysis::Track> tracks,
                              std::string_view title, const PageSource& source = {}) {
    io::write_atomically("report", path, html_report(tracks, title, source));
}

}  // namespace unitscale::report
