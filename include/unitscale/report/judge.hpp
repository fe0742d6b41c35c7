// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/analysis/track.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/formats/format.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace unitscale::report {

/// A number rounded to six digits; NaN and infinity as text, which JSON has no numbers for.
[[nodiscard]] inline nlohmann::ordered_json number_json(double v) {
    if (std::isnan(v)) return "NaN";
    if (std::isinf(v)) return v > 0.0 ? "infinite" : "-infinite";
    return v == 0.0 ? v : std::stod(concatenate(v));
}

/// What judges one side of a tensor of a run: the format that all tensors are tested against, else the operands that
/// round it, else the format that it is stored in, which loses nothing. Test: tests/report/judge_test.cpp
class Judge {
public:
    using Json = nlohmann::ordered_json;

    Judge(const analysis::Track& track, const analysis::TrackedTensor& tensor, Pass pass)
        : tested_(track.format(pass)), storage_(track.storage) {
        if (!tested_) operands_ = track.roundings(tensor, pass);
    }

    /// The judging format and its range, as exponents: values up to 2^zero become zero, values from 2^normal to 2^top
    /// are normal. Several scales have no range. Null if nothing is known.
    [[nodiscard]] Json format() const {
        if (tested_) return range(name(*tested_), *tested_, 0.0);
        std::vector<std::string> names;
        for (const analysis::TrackedOperand* operand : operands_)
            if (std::string own = operand->format_name(); std::find(names.begin(), names.end(), own) == names.end())
                names.push_back(std::move(own));
        if (names.empty()) return storage_ ? Json::object({{"name", name(*storage_)}}) : Json();
        std::string label;
        for (const std::string& one : names) label += (label.empty() ? "" : ", ") + one;
        for (const analysis::TrackedOperand* operand : operands_) {
            if (!operand->rule.scale.by_tensor() || operand->steps.empty()) continue;
            const analysis::OperandSummary& last = operand->steps.back().summary;
            return range(label, operand->rule.element->format,
                         last.lowest_scale + std::log2(std::abs(last.tensor_scale)));
        }
        return Json::object({{"name", label}});
    }

    /// The numbers of a step. `under`, `over` and `snr` (in dB) are the judge's: of several operands the worst.
    /// `whole` is false for a group of the tensor's rows, of which operands know no losses: these numbers are left out.
    [[nodiscard]] Json numbers(const analysis::TrackedStep& step, bool whole = true) const {
        const analysis::TensorSummary& s = step.summary;
        double under = 0.0, over = 0.0, snr = std::numeric_limits<double>::infinity();
        if (tested_) {
            under = s.share(s.underflow);
            over = s.share(s.overflow);
            if (s.noise > 0.0) snr = -20.0 * std::log10(s.noise);
        }
        for (const analysis::TrackedOperand* operand : operands_)
            if (const analysis::OperandSummary* own = operand->at(step.step)) {
                under = std::max(under, own->share(own->flushed));
                over = std::max(over, own->share(own->saturated));
                if (const double ratio = own->snr(); !std::isnan(snr) && !(ratio >= snr)) snr = ratio;
            }
        Json json = {{"mean", number_json(s.mean)},
                     {"std", number_json(s.std)},
                     {"rms", number_json(s.rms)},
                     {"smallest", number_json(s.smallest)},
                     {"largest", number_json(s.largest)},
                     {"zeros", number_json(s.share(s.zeros))},
                     {"bad", number_json(s.share(s.non_finite()))}};
        if (!whole) return json;
        json["under"] = number_json(under);
        json["over"] = number_json(over);
        json["snr"] = number_json(snr);
        return json;
    }

private:
    /// The range of a format whose numbers are multiplied by 2^shift.
    [[nodiscard]] static Json range(const std::string& label, const FloatFormat& format, double shift) {
        return {{"name", label},
                {"zero", format.quantum_exponent() - 1 + shift},
                {"normal", format.min_exponent() + shift},
                {"top", std::log2(static_cast<double>(format.max())) + shift}};
    }

    std::optional<FloatFormat> tested_{};
    std::vector<const analysis::TrackedOperand*> operands_{};
    std::optional<FloatFormat> storage_{};
};

}  // namespace unitscale::report
