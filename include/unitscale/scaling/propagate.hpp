// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/base/multiply_add.hpp>
#include <unitscale/scaling/power_of_two.hpp>
#include <unitscale/tensor/rescale.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>

// Scaling `propagate` (Scalify): a tensor is data times a scalar scale. Every op finds the scale of its result from the
// scales of its inputs. Data then stays near unit scale while the value is the textbook one.
// Reference: Balanca et al. 2024 (WANT@ICML), Scalify: scale propagation for efficient low-precision LLM training.
namespace unitscale {

/// How a scale becomes a power of two: the power below, the power above, the power nearest in the logarithm, or
/// (stochastic) one of both neighbours. The random choice has the right mean. `none` leaves the scale as it is.
enum class ScaleRounding { down, none, up, nearest, stochastic };

inline constexpr std::array<std::string_view, 5> scale_rounding_names = {"down", "none", "up", "nearest", "stochastic"};
[[nodiscard]] constexpr std::string_view name(ScaleRounding rounding) noexcept {
    return scale_rounding_names[static_cast<std::size_t>(rounding)];
}

/// A recipe's rule for scaling `propagate`.
struct PropagateRule {
    ScaleRounding rounding = ScaleRounding::down;
    /// True: the epsilon of norms acts on values. False: it acts on data, as in Scalify.
    bool exact_norms = false;
    /// Gradients around attention and behind norms are brought to unit data by their rms.
    bool rescale_gradients = false;
    /// So are the gradients that gelu, relu, silu and gated silu send back.
    bool rescale_activation_gradients = false;
    /// Both rules take the rms of the value (data times scale) of the last training step, and measure the present one
    /// for the next step.
    bool delayed_sizes = false;
    /// `Tape::plan` measures the root mean square of values and gradients, and the plan's numbers become the scales.
    bool measured = false;

    friend constexpr bool operator==(const PropagateRule&, const PropagateRule&) = default;
};

/// A positive number as a scale; `random` is a uniform word, for `stochastic` only.
/// Test: tests/scaling/propagate_test.cpp
[[nodiscard]] inline double as_scale(ScaleRounding rounding, double x, std::uint32_t random = 0) {
    switch (rounding) {
        case ScaleRounding::down:
            return pow2_down(x);
        case ScaleRounding::up:
            return pow2_up(x);
        case ScaleRounding::nearest:
            return pow2_nearest(x);
        case ScaleRounding::stochastic:
            return pow2_stochastic(x, random);
        default:
            return x;
    }
}

/// The factor that a kernel applies to its data, and the scale of the kernel's result.
struct Scaled {
    double factor = 1.0, scale = 1.0;
};

/// Splits `true_scale`, the value of a result's data 1, into a factor for the data and a scale. The scale is `wanted`,
/// kept within [2^-126, 2^127]. The data is multiplied by `true_scale / scale`.
[[nodiscard]] inline Scaled with_scale(double true_scale, double wanted) noexcept {
    constexpr double least = std::numeric_limits<float>::min(), most = 0x1p127;
    const double scale = std::clamp(wanted, least, most);
    return {true_scale / scale, scale};
}

/// The scale of a product: its inputs have scales that multiply to `scales`, and `ideal` is the op's factor under
/// `unit`. With r = 1 / `ideal`, rounded: data times 1/r, scale `scales` r.
[[nodiscard]] inline Scaled product_scale(ScaleRounding rounding, double scales, double ideal,
                                          std::uint32_t random = 0) {
    return with_scale(scales, scales * as_scale(rounding, 1.0 / ideal, random));
}

/// The scale of a sum of independent terms of scales a and b: (a^2 + b^2)^1/2, rounded.
[[nodiscard]] inline double sum_scale(ScaleRounding rounding, double a, double b, std::uint32_t random = 0) {
    const double large = std::max(a, b), ratio = std::min(a, b) / large;
    return with_scale(1.0, as_scale(rounding, large * std::sqrt(multiply_add(ratio, ratio, 1.0)), random)).scale;
}

/// The power of two by which dynamic rescaling divides data of this norm: pow2_down(max(norm, 2^-14)). It is 1 if the
/// norm is 0, infinite or NaN. 2^-14, the smallest normal number of FP16, bounds the effect of one rescaling.
/// Reference: Balanca et al. 2024 (Scalify, WANT@ICML).
[[nodiscard]] inline double rescaling(double norm) {
    if (!(norm > 0.0 && norm <= std::numeric_limits<double>::max())) return 1.0;
    return pow2_down(std::max(norm, 0x1p-14));
}
/// `rescaling` of the root mean square of `count` numbers with this sum of squares. 1 for no numbers.
[[nodiscard]] inline double rms_rescaling(double squares, std::size_t count) {
    return rescaling(std::sqrt(squares / static_cast<double>(count)));
}

/// A constant of scale 1 as a mantissa in [1,2), with its sign, and a power of two: one element, or an array filled
/// with one number. The search for another number ends at the first. A single 0, infinity or NaN keeps its data and has
/// any scale (`Tensor::any_scale`); an array of them has it by the fill that made it. Other tensors stay as they are.
template <RealElement T>
[[nodiscard]] Tensor<T> split_constant(Tensor<T> tensor) {
    if (tensor.empty() || tensor.scale() != 1.0) return tensor;
    const T first = tensor.data()[0];
    if (is_scale_free(first)) {
        if (tensor.size() == 1) tensor.set_any_scale(true);
        return tensor;
    }
    const auto numbers = tensor.span();
    if (!std::all_of(numbers.begin(), numbers.end(), [first](T x) { return x == first; })) return tensor;
    return rebalance(std::move(tensor), pow2_down(std::abs(widest(first))));
}

}  // namespace unitscale
