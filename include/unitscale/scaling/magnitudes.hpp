// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/formats/format.hpp>
#include <unitscale/scaling/operand_rule.hpp>
#include <unitscale/scaling/tensor_scale.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

namespace unitscale {

/// Magnitudes that scales follow, by the path of the op that measures them: the largest magnitudes of a product's
/// operands, and sizes of values under scaling `propagate`. Those of past training steps are remembered where a rule
/// needs them; micro-batches of one step count as one, with the largest magnitude.
/// Test: tests/scaling/magnitudes_test.cpp
class Magnitudes {
public:
    /// A step, by its number from 1. Only a step that trains is remembered.
    struct Step {
        std::uint64_t number = 0;
        bool trains = false;
    };
    /// The number of sizes that one op may measure.
    static constexpr std::size_t most_sizes = 3;

    /// The bias of an operand of the product at `path` in this step (ScaleRule). `amax()` measures the operand's
    /// largest magnitude and is called where the rule needs it. `operand`: its place in `operand_names`.
    template <class Measure>
    [[nodiscard]] int bias(const std::string& path, std::size_t operand, const FloatFormat& format,
                           const ScaleRule& rule, Step step, Measure&& amax) {
        if (rule.source == ScaleSource::none) return 0;
        Record& record = records_[path][operand];
        record.has_bias = true;
        if (rule.source == ScaleSource::constant) return record.bias = rule.bias;
        const float now = amax();
        if (!(now <= std::numeric_limits<float>::max()) && !std::exchange(record.non_finite, true))
            ++non_finite_operands_;
        if (rule.source == ScaleSource::amax) return record.bias = amax_bias(format, now, rule.margin);
        remember(record, now, rule.history, step);
        const float known = record.past.empty() ? now
                            : rule.latest       ? record.past.back()
                                                : *std::max_element(record.past.begin(), record.past.end());
        return record.bias = amax_bias(format, known, rule.margin);
    }
    /// The bias that was used last; 0 if none was.
    [[nodiscard]] int last_bias(const std::string& path, std::size_t operand) const {
        const auto found = records_.find(path);
        return found == records_.end() ? 0 : found->second[operand].bias;
    }
    /// Whether a bias was used.
    [[nodiscard]] bool has_bias(const std::string& path, std::size_t operand) const {
        const auto found = records_.find(path);
        return found != records_.end() && found->second[operand].has_bias;
    }
    /// Number of operands with a largest magnitude that was infinite or NaN at least once.
    [[nodiscard]] std::size_t non_finite_operands() const noexcept { return non_finite_operands_; }

    /// The size of a value that the op at `path` measured in the last training step before this one; `now` if there was
    /// none. `now` is remembered as float. `which`: below `most_sizes`.
    [[nodiscard]] double delayed_size(const std::string& path, std::size_t which, double now, Step step) {
        Record& record = records_[path][operand_names.size() + which];
        remember(record, static_cast<float>(now), 1, step);
        return record.past.empty() ? now : static_cast<double>(record.past.back());
    }

    /// Calls use(path, place, largest, history) for every magnitude that training step `number` has remembered so far.
    /// `place` and `history` are arguments of `raise`, by which another process gets the magnitude.
    template <class Use>
    void for_each_of_step(std::uint64_t number, const Use& use) const {
        for (const auto& [path, records] : records_)
            for (std::size_t place = 0; place < records.size(); ++place)
                if (const Record& record = records[place]; record.step == number && number > 0)
                    use(path, place, record.current, record.history);
    }
    /// Raises a magnitude of a training step to at least `now`, which a micro-batch of another process has measured.
    /// Error: there is no such place.
    void raise(const std::string& path, std::size_t place, float now, std::size_t history, Step step) {
        check(place < names.size(), "ScalingState: magnitude ", place, " of ", path, "; expected one of ",
              names.size());
        remember(records_[path][place], now, history, step);
    }

    /// Entries path|name|step, path|name|current, and path|name|0, 1, ... for the past, of magnitudes with a past.
    /// Templates, so that programs without checkpoints do not compile them.
    template <class Table>
    [[nodiscard]] Table table() const {
        Table table;
        for (const auto& [path, records] : records_)
            for (std::size_t place = 0; place < records.size(); ++place) {
                const Record& record = records[place];
                if (record.step == 0) continue;
                const std::string key = concatenate(path, '|', names[place], '|');
                table[key + "step"] = static_cast<double>(record.step);
                table[key + "current"] = static_cast<double>(record.current);
                for (std::size_t i = 0; i < record.past.size(); ++i)
                    table[key + std::to_string(i)] = static_cast<double>(record.past[i]);
            }
        return table;
    }
    template <class Table>
    void set_table(const Table& table) {
        records_.clear();
        for (const auto& [key, number] : table) {
            const std::size_t last = key.rfind('|'),
                              middle = last == std::string::npos ? last : key.rfind('|', last - 1);
            check(middle != std::string::npos, "ScalingState: amax entry '", key, "'; expected path|role|name");
            const std::string name = key.substr(middle + 1, last - middle - 1), what = key.substr(last + 1);
            const auto place = std::find(names.begin(), names.end(), name);
            check(place != names.end(), "ScalingState: amax entry '", key, "' has an unknown role");
            Record& record = records_[key.substr(0, middle)][static_cast<std::size_t>(place - names.begin())];
            if (what == "step") record.step = static_cast<std::uint64_t>(number);
            else if (what == "current") record.current = static_cast<float>(number);
            else {
                std::size_t index = 0;
                const auto read = std::from_chars(what.data(), what.data() + what.size(), index);
                check(read.ec == std::errc() && read.ptr == what.data() + what.size() && index < 1'000'000,
                      "ScalingState: amax entry '", key, "'; expected step, current or a number");
                if (record.past.size() <= index) record.past.resize(index + 1, 0.0f);
                record.past[index] = static_cast<float>(number);
            }
        }
    }

private:
    struct Record {
        std::vector<float> past{};  ///< of the training steps before `step`, the latest last
        float current = 0.0f;       ///< of `step`
        std::uint64_t step = 0;
        std::size_t history = 1;  ///< training steps that `past` holds
        int bias = 0;
        bool has_bias = false;
        bool non_finite = false;
    };

    /// At its first use in a training step, the magnitude of the last such step becomes past.
    static void remember(Record& record, float now, std::size_t history, Step step) {
        if (!step.trains) return;
        record.history = history;
        if (record.step != step.number) {
            if (record.step != 0) record.past.push_back(record.current);
            if (record.past.size() > history)
                record.past.erase(record.past.begin(), record.past.end() - static_cast<std::ptrdiff_t>(history));
            record.step = step.number;
            record.current = 0.0f;
        }
        record.current = std::max(record.current, now);
    }

    static constexpr std::array<std::string_view, operand_names.size() + most_sizes> names = [] {
        std::array<std::string_view, operand_names.size() + most_sizes> all{};
        std::copy(operand_names.begin(), operand_names.end(), all.begin());
        constexpr std::array<std::string_view, most_sizes> sizes = {"size", "size.1", "size.2"};
        std::copy(sizes.begin(), sizes.end(), all.begin() + operand_names.size());
        return all;
    }();

    /// Of each path in the order of `names`.
    std::map<std::string, std::array<Record, names.size()>> records_{};
    std::size_t non_finite_operands_ = 0;
};

}  // namespace unitscale
