// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/parameter.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/kernels/amax.hpp>
#include <unitscale/kernels/vector_math.hpp>
#include <unitscale/optim/clip.hpp>
#include <unitscale/scaling/loss_scaling.hpp>
#include <unitscale/tensor/half_lanes.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <utility>

namespace unitscale::optim {

/// How many of x[0 .. count) have a magnitude above `limit`. NaN has none.
template <class T>
[[nodiscard]] std::uint64_t count_above(const T* x, std::ptrdiff_t count, double limit) noexcept {
    std::int64_t above = 0;
    for (std::ptrdiff_t i = 0; i < count; ++i) above += std::abs(static_cast<double>(widen(x[i]))) > limit ? 1 : 0;
    return static_cast<std::uint64_t>(above);
}

/// The factor of the loss from step to step. `scale()` is the seed of the backward pass.
/// `unscale` divides the gradients by it, in their scales alone: the gradients' data stays.
/// `measure` looks at the gradients where the kind of loss scaling asks for it, and else does nothing.
/// `update` says whether the step may be taken, and prepares the next step.
///   tape.backward(loss, static_cast<float>(scaler.scale()));
///   scaler.unscale<float>(parameters);
///   scaler.measure<float>(execution, parameters);
///   if (scaler.update(std::isfinite(norm))) optimiser.step(execution, rate);
/// Test: tests/optim/loss_scaler_test.cpp
class LossScaler {
public:
    explicit LossScaler(const LossScaling& how = {})
        : how_(how), scale_(how.kind == LossScaleKind::none ? 1.0 : how.initial) {
        how.validate();
    }

    [[nodiscard]] double scale() const noexcept { return scale_; }
    /// Skipped steps: all of them, and the number since the last step that was taken.
    [[nodiscard]] std::uint64_t skipped() const noexcept { return skipped_; }
    [[nodiscard]] std::uint64_t skipped_in_a_row() const noexcept { return skipped_in_a_row_; }

    /// Divides the gradients by the scale of the step that made them.
    /// Call it once per step, when all gradients of the step are complete.
    template <class T>
    void unscale(std::span<Parameter<T>* const> parameters) const {
        for (Parameter<T>* parameter : parameters) parameter->mark(GradientStep::unscale);
        if (scale_ == 1.0) return;
        for (Parameter<T>* parameter : parameters)
            if (is_updated(*parameter)) parameter->set_gradient_scale(parameter->gradient_scale() / scale_);
    }

    /// Measures the gradients g for `update`, without parameters that are frozen or have no gradient:
    ///   histogram: the share of elements with |g| scale() above `edge` times the largest number of T
    ///   log_normal: the largest |g|
    /// Gradients that are kept as codes are their codes' numbers. Call it after `unscale` and before clipping.
    /// The results are counts and maxima, so they have the same bits for any thread count, and for any number of
    /// processes that hold a part of the gradients each (`sum`).
    /// The execution provides scratch. Error: a gradient that was not unscaled.
    template <class T>
    void measure(const Execution& execution, std::span<Parameter<T>* const> parameters,
                 const SumOfProcesses& sum = {}) {
        if (!is_measured()) return;
        const auto largest_number = static_cast<double>(static_cast<Accum<T>>(std::numeric_limits<T>::max()));
        Scratch<double> parts(execution, 2 * parameters.size());  // of each gradient: elements, and the measurement
        std::ranges::fill(parts.span(), 0.0);
        double* part = parts.data();
        for (const Parameter<T>* parameter : parameters) {
            double &elements = *part++, &measurement = *part++;
            if (!is_updated(*parameter)) continue;
            check(parameter->has_made(GradientStep::unscale), "LossScaler: parameter ", parameter->name(),
                  ": measured with the loss scale in its gradient; expected optim::LossScaler::unscale before");
            const double scale = parameter->gradient_scale();
            elements = static_cast<double>(parameter->size());
            if (how_.kind == LossScaleKind::histogram) {
                const double limit = how_.edge * largest_number / (scale * scale_);
                for_each_chunk(
                    execution, *parameter,
                    [limit](const auto* x, std::ptrdiff_t count) { return count_above(x, count, limit); },
                    [&measurement](std::uint64_t above) { measurement += static_cast<double>(above); });
            } else {
                for_each_chunk(
                    execution, *parameter,
                    [](const auto* x, std::ptrdiff_t count) {
                        return kernels::largest_magnitude(Execution{}, x, count);
                    },
                    [&measurement, scale](Accum<T> largest) {
                        measurement = std::max(measurement, static_cast<double>(largest) * scale);
                    });
            }
        }
        if (sum) sum(parts.span());
        Measured found{.largest_number = largest_number};
        for (part = parts.data(); part != parts.data() + parts.span().size(); part += 2) {
            found.elements += part[0];
            if (how_.kind == LossScaleKind::histogram) found.above += part[1];
            else found.largest = std::max(found.largest, part[1]);
        }
        measured_ = found;
    }

    /// Reports whether a step's gradients were finite, and returns whether to take the step.
    /// Under `none` every step is taken, so that the caller sees a broken step; else a finite step is taken.
    /// All kinds but `none` and `constant` change the scale, within [2^-126, 2^127].
    ///   automatic, histogram: a step is good if it is finite; under `histogram` also few elements must be large
    ///     scale := scale backoff     after a step that is not good
    ///     scale := scale growth      after `interval` good steps in a row
    ///   log_normal: x is log2 of the largest magnitude of a finite step with a gradient other than zero
    ///     scale := min(2^floor(log2(largest number) - (mean + deviations sigma)), limit)
    ///     limit := scale backoff     after a step that is not finite
    ///     limit := limit growth      after `interval` finite steps in a row
    ///   The limit begins at 2^127. It lowers the scale where other tensors than the parameters' gradients overflow.
    ///   Before the second x the scale follows `automatic`.
    /// Error: under `histogram` and `log_normal`, a step that was not measured.
    bool update(bool finite) {
        if (how_.kind == LossScaleKind::none) return true;
        const Measured seen = measured_.value_or(Measured{});
        check(measured_.has_value() || !is_measured(), "LossScaler: update of a step that was not measured; under ",
              name(how_.kind), " expected optim::LossScaler::measure before");
        measured_.reset();
        finite = finite && std::isfinite(seen.largest);
        skipped_ += finite ? 0 : 1;
        skipped_in_a_row_ = finite ? 0 : skipped_in_a_row_ + 1;
        if (how_.kind == LossScaleKind::log_normal) {
            const double factor = next_factor(finite);
            limit_ = within_range((finite ? limit_ : scale_) * factor);
            if (finite && seen.largest > 0.0) observe(std::log2(seen.largest));
            const double wanted = observed_ < 2 ? scale_ * factor : scale_for(seen.largest_number);
            scale_ = within_range(std::min(wanted, limit_));
        } else if (how_.kind != LossScaleKind::constant) {
            const bool few = seen.above <= how_.most * seen.elements;
            scale_ = within_range(scale_ * next_factor(finite && few));
        }
        return finite;
    }

    /// Names the state to a visitor: visitor.number(name, double&), visitor.scalar(name, std::uint64_t&).
    template <class Visitor>
    void visit_state(Visitor&& visitor) {
        visitor.number("loss_scale", scale_);
        visitor.scalar("loss_scale/good", good_);
        visitor.scalar("loss_scale/skipped", skipped_);
        visitor.scalar("loss_scale/skipped_in_a_row", skipped_in_a_row_);
        if (how_.kind != LossScaleKind::log_normal) return;
        visitor.number("loss_scale/limit", limit_);
        visitor.scalar("loss_scale/observed", observed_);
        visitor.number("loss_scale/mean", mean_);
        visitor.number("loss_scale/slow_mean", slow_mean_);
        visitor.number("loss_scale/variance", variance_);
    }

private:
    struct Measured {
        double largest_number = 0.0;
        double largest = 0.0;
        double above = 0.0, elements = 0.0;
    };

    static constexpr double largest_scale = 0x1p127;
    [[nodiscard]] static double within_range(double scale) noexcept {
        return std::clamp(scale, static_cast<double>(std::numeric_limits<float>::min()), largest_scale);
    }
    [[nodiscard]] bool is_measured() const noexcept {
        return how_.kind == LossScaleKind::histogram || how_.kind == LossScaleKind::log_normal;
    }

    /// The factor after one more step.
    [[nodiscard]] double next_factor(bool good) noexcept {
        good_ = good ? good_ + 1 : 0;
        if (!good) return how_.backoff;
        if (good_ < how_.interval) return 1.0;
        good_ = 0;
        return how_.growth;
    }

    /// Adds x to the moving mean and variance.
    /// Decay d gives the x of k steps ago the weight d^k over the sum of all weights.
    void observe(double x) noexcept {
        ++observed_;
        mean_ += newest_weight(how_.mean_decay) * (x - mean_);
        const double weight = newest_weight(how_.variance_decay);
        const double away = x - slow_mean_;
        slow_mean_ += weight * away;
        variance_ = (1.0 - weight) * (variance_ + weight * away * away);
    }
    /// (1 - d) / (1 - d^n): the weight of the newest of n = `observed_` steps, 1 for the first.
    [[nodiscard]] double newest_weight(double decay) const noexcept { return (1.0 - decay) / (1.0 - power(decay)); }
    [[nodiscard]] double power(double decay) const noexcept { return std::pow(decay, static_cast<double>(observed_)); }

    /// 2^floor(log2(largest number) - (mean + deviations sigma)).
    /// The variance is divided by 1 - sum of squared weights, so that few steps do not make it too small.
    /// With n equal weights this puts n - 1 in place of n.
    [[nodiscard]] double scale_for(double largest_number) const noexcept {
        const double d = how_.variance_decay;
        const double squares = newest_weight(d) * (1.0 + power(d)) / (1.0 + d);
        const double sigma = std::sqrt(variance_ / (1.0 - squares));
        const double exponent = std::floor(std::log2(largest_number) - (mean_ + how_.deviations * sigma));
        return std::ldexp(1.0, static_cast<int>(std::clamp(exponent, -126.0, 127.0)));
    }

    LossScaling how_;
    double scale_;
    std::uint64_t good_ = 0, skipped_ = 0, skipped_in_a_row_ = 0;
    std::optional<Measured> measured_{};  ///< of the step that waits for its update
    double limit_ = largest_scale;        ///< log_normal, as all below
    std::uint64_t observed_ = 0;
    double mean_ = 0.0, slow_mean_ = 0.0, variance_ = 0.0;
};

}  // namespace unitscale::optim
