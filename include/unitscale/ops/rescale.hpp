// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/kernels/rescale.hpp>
#include <unitscale/record/operands.hpp>

#include <cstddef>
#include <limits>
#include <utility>

// Scales set by hand, under scaling `propagate`: the same values, cut into data and scale otherwise. Under another scaling each of
// these ops is nothing at all: it returns x itself.
namespace unitscale::ops {

/// Records y: x's data, each worth `worth` now, under the scale `wanted`, or the nearest that scales may have (`with_scale`).
///   y = x worth / s_x    dx = dy worth / s_x    x, y [any shape]
/// The identity where `worth` is x's scale. No copy where data stays as it is.
template <class T>
[[nodiscard]] Variable<T> record_rescale(const char* op, Variable<T> x, double worth, double wanted) {
    Tape<T>& tape = x.tape(op);
    const Tensor<T>& input = x.scaled();
    const double scale = with_scale(worth, wanted).scale, slope = worth / input.scale();
    const OpInfo info{.name = op,
                      .site = tape.next_site(op),
                      .alpha = 1.0,
                      .betas = {1.0},
                      .reads = reads_nothing,
                      .propagates = true};
    const auto pass_on = [slope](BackwardContext<T>& g) {
        Tensor<T> dx = g.take_output_gradient();
        const double dx_worth = dx.scale() * slope, dx_scale = with_scale(dx_worth, dx_worth).scale;
        if (slope != 1.0 && dx_scale != dx_worth)
            kernels::rescale<T>(g.execution(), dx.data(), dx.data(), static_cast<std::ptrdiff_t>(dx.size()), dx_worth,
                                dx_scale);
        g.add(0, std::move(dx), slope == 1.0 ? dx_worth : dx_scale);
    };
    if (slope == 1.0 && scale == input.scale()) return tape.template record_repeats<1>(info, {x}, pass_on)[0];
    Tensor<T> output = tape.make(input.shape());
    kernels::rescale<T>(tape.execution(), input.data(), output.data(), static_cast<std::ptrdiff_t>(input.size()), worth,
                        scale);
    output.set_scale(scale);
    output.set_any_scale(input.any_scale());
    return tape.record(info, {x}, std::move(output), pass_on);
}

/// The same value with the given scale.
///   y = x, data: that of x times s_x / scale    dx = dy    x, y [any shape]
/// Factors under `unit`: none; it returns x, as under `none`.
/// Scale under `propagate`: the given one; dx: dy's. Exact for powers of two, unless data leaves the range of T.
/// Error: a scale outside [2^-126, 2^127], also where it is not used.
/// Reference: Balanca et al. 2024 (Scalify, WANT@ICML). Test: tests/ops/rescale_test.cpp
template <class T>
[[nodiscard]] Variable<T> set_scaling(Variable<T> x, double scale) {
    check(scale >= std::numeric_limits<float>::min() && scale <= 0x1p127, "set_scaling: scale is ", scale,
          "; expected a number in [2^-126, 2^127]");
    if (!x.tape("set_scaling").propagates()) return x;
    return record_rescale("set_scaling", x, x.scaled().scale(), scale);
}

/// The same value with a factor moved from data to scale.
///   y = x, data: that of x over factor    dx = dy    x, y [any shape]
/// Factors under `unit`: none; it returns x, as under `none`.
/// Scale under `propagate`: s_x factor, kept within [2^-126, 2^127] (the rest stays in the data); dx: dy's.
/// Error: a factor that is not positive and finite, also where it is not used. Otherwise as `set_scaling`.
template <class T>
[[nodiscard]] Variable<T> rebalance(Variable<T> x, double factor) {
    check_positive("rebalance", "factor", factor);
    if (!x.tape("rebalance").propagates()) return x;
    const double scale = x.scaled().scale();
    return record_rescale("rebalance", x, scale, scale * factor);
}

/// The same value as plain numbers, rounded once.
///   y = x, data: that of x times s_x    dx = dy    x, y [any shape]
/// Factors under `unit`: none; it returns x, as under `none`.
/// Scale under `propagate`: 1; dx: dy's. What leaves the range of T becomes 0 or infinity. Otherwise as `set_scaling`.
template <class T>
[[nodiscard]] Variable<T> stop_scaling(Variable<T> x) {
    if (!x.tape("stop_scaling").propagates()) return x;
    return record_rescale("stop_scaling", x, x.scaled().scale(), 1.0);
}

/// Data and scale apart: the data as a tensor of scale 1, and the scale, which no gradient flows to.
///   y = x / s_x, data: that of x    dx = dy / s_x    x, y [any shape]
/// Factors under `unit`: none; it returns x and 1, as under `none`.
/// Scale under `propagate`: 1; dx: dy's over s_x, so that y times the scale, set back by the caller, has the gradient of x.
/// Otherwise as `set_scaling`.
template <class T>
[[nodiscard]] std::pair<Variable<T>, double> get_data_and_scale(Variable<T> x) {
    if (!x.tape("get_data_and_scale").propagates()) return {x, 1.0};
    const double scale = x.scaled().scale();
    return {record_rescale("get_data_and_scale", x, 1.0, 1.0), scale};
}

}  // namespace unitscale::ops
