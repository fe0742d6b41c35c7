// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/rescale.hpp>
#include <unitscale/record/arguments.hpp>
#include <unitscale/record/op.hpp>
#include <unitscale/scaling/power_of_two.hpp>

#include <cstddef>
#include <limits>
#include <utility>

// Scales set by hand under scaling `propagate`: values stay, but split into data and scale in another way. Under any
// other scaling each of these ops returns x itself.
namespace unitscale::ops {

/// Records y: x's data, of which each 1 stands for `unit` now, under the scale `wanted`, or the nearest scale that is
/// allowed (`with_scale`).
///   y = x unit / s_x    dx = dy unit / s_x    x, y [any shape]
/// The identity if `unit` is x's scale. No copy if the data stays as it is.
template <class T>
[[nodiscard]] Variable<T> record_rescale(const char* name, Variable<T> x, double unit, double wanted) {
    auto op = begin_op(name, x);
    const Tensor<T>& input = op.input(0);
    const double scale = with_scale(unit, wanted).scale, slope = unit / input.scale();
    const auto pass_on = [slope](BackwardContext<T>& g) {
        Tensor<T> dx = g.take_output_gradient();
        const double dx_unit = dx.scale() * slope, dx_scale = with_scale(dx_unit, dx_unit).scale;
        if (slope != 1.0 && dx_scale != dx_unit)
            kernels::rescale<T>(g.execution(), dx.data(), dx.data(), static_cast<std::ptrdiff_t>(dx.size()), dx_unit,
                                dx_scale);
        g.add(0, std::move(dx), slope == 1.0 ? dx_unit : dx_scale);
    };
    if (slope == 1.0 && scale == input.scale())
        return op.template record_repeats<1>({.reads = reads_nothing}, pass_on)[0];
    Tensor<T> output = op.make(input.shape());
    kernels::rescale<T>(op.execution(), input.data(), output.data(), static_cast<std::ptrdiff_t>(input.size()), unit,
                        scale);
    return op.record(std::move(output), scale, {.reads = reads_nothing, .any_scale = input.any_scale()}, pass_on);
}

/// Gives x a scale.
///   y = x, data: x's data times s_x / scale    dx = dy    x, y [any shape]
/// Factors under `unit`: none; it returns x, as under `none`.
/// Scale under `propagate`: the given one; dx: dy's. Exact for powers of two, unless data leaves the range of T.
/// Error: a scale outside [2^-126, 2^127], also under a scaling that ignores it.
/// Reference: Balanca et al. 2024 (Scalify, WANT@ICML). Test: tests/ops/rescale_test.cpp
template <class T>
[[nodiscard]] Variable<T> set_scaling(Variable<T> x, double scale) {
    check(scale >= std::numeric_limits<float>::min() && scale <= 0x1p127, "set_scaling: scale is ", scale,
          "; expected a number in [2^-126, 2^127]");
    if (!x.tape("set_scaling").propagates()) return x;
    return record_rescale("set_scaling", x, x.scaled().scale(), scale);
}

/// Moves a factor from data to scale.
///   y = x, data: x's data over factor    dx = dy    x, y [any shape]
/// Factors under `unit`: none; it returns x, as under `none`.
/// Scale under `propagate`: s_x factor, kept within [2^-126, 2^127] (the rest stays in the data); dx: dy's.
/// Error: a factor that is not positive and finite, also under a scaling that ignores it. Otherwise as `set_scaling`.
template <class T>
[[nodiscard]] Variable<T> rebalance(Variable<T> x, double factor) {
    check_positive("rebalance", "factor", factor);
    if (!x.tape("rebalance").propagates()) return x;
    const double scale = x.scaled().scale();
    return record_rescale("rebalance", x, scale, scale * factor);
}

/// Multiplies the scale out, rounding once.
///   y = x, data: x's data times s_x    dx = dy    x, y [any shape]
/// Factors under `unit`: none; it returns x, as under `none`.
/// Scale under `propagate`: 1; dx: dy's. A number outside the range of T becomes 0 or infinity. Otherwise as
/// `set_scaling`.
template <class T>
[[nodiscard]] Variable<T> stop_scaling(Variable<T> x) {
    if (!x.tape("stop_scaling").propagates()) return x;
    return record_rescale("stop_scaling", x, x.scaled().scale(), 1.0);
}

/// Data and scale apart: the data as a tensor of scale 1, and the scale, which no gradient flows to.
///   y = x / s_x, data: x's data    dx = dy / s_x    x, y [any shape]
/// Factors under `unit`: none; it returns x and 1, as under `none`.
/// Scale under `propagate`: 1; dx: dy's over s_x, so that the product of y and the scale has the gradient of x.
/// Otherwise as `set_scaling`.
template <class T>
[[nodiscard]] std::pair<Variable<T>, double> get_data_and_scale(Variable<T> x) {
    if (!x.tape("get_data_and_scale").propagates()) return {x, 1.0};
    const double scale = x.scaled().scale();
    return {record_rescale("get_data_and_scale", x, 1.0, 1.0), scale};
}

}  // namespace unitscale::ops
