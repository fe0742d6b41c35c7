// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/product_along.hpp>
#include <unitscale/record/reduced_axes.hpp>

#include <cmath>
#include <cstddef>
#include <optional>
#include <utility>

namespace unitscale::ops {

/// s^n as a scale or as a factor of data. The other one is 1.
template <class A>
struct ScalePower {
    double scale = 1.0;
    kernels::WideProduct<A> factor{};
};
/// The power is a scale if it and its product with the scale `beside` are in double's range, else a factor.
template <class A>
[[nodiscard]] ScalePower<A> scale_power(double s, std::size_t n, double beside = 1.0) {
    const double power = std::pow(s, static_cast<double>(n));
    if (std::isnormal(power) && std::isnormal(power * beside)) return {.scale = power};
    return {.factor = kernels::WideProduct<A>::power(s, n)};
}

/// Product along axes, or of all elements.
///   y = alpha product over the axes of x     dx_i = beta_x dy times the product of the others
///   x [any shape], y [x without the axes; [1] if none is left]
/// No rule under `unit`: a product of n independent unit normals has unit variance, but for large n its largest values
/// alone make that variance. State the factors with `.unit`; for small n they are 1 and 1.
/// Scale under `propagate`: s^n; gradients: dy's times s^(n-1). A power beyond double's range is a factor of the data.
/// A product of no elements is 1. The product is formed in Accum<T> with an exponent of its own, so that only the
/// result can leave the range of T. Zeros in x need no care.
/// Errors: an axis that x has not, or named twice; scaling `unit` without `.unit`. Test: tests/ops/prod_test.cpp
template <class T>
[[nodiscard]] Variable<T> prod(Variable<T> x, const UnruledReductionOptions& options = {}) {
    using A = Accum<T>;
    auto op = begin_op("prod", x);
    const Tensor<T>& input = op.input(0);
    const ReducedAxes axes = reduced_axes("prod", input.shape(), options.axes, options.keep_axes);
    op.set_factors(op.stated(options.unit), options.constraint);
    const double s = input.scale();
    const auto n = static_cast<std::size_t>(axes.count);
    ScalePower<A> power = scale_power<A>(s, n);
    const Scaled scaled = op.scaled_alpha(power.scale);
    power.factor.multiply(kernels::WideProduct<A>(scaled.factor));
    Tensor<T> output = op.make(axes.result);
    kernels::product_forward<T>(op.execution(), input.data(), input.shape(), output.data(), axes.kept, power.factor);
    const Recording recording{.reads = reads_inputs, .any_scale = input.any_scale() && n > 0};
    return op.record(std::move(output), scaled.scale, recording, [kept = axes.kept, s, n](BackwardContext<T>& g) {
        const Tensor<T>&a = g.input(0), &dy = g.output_gradient();
        ScalePower<A> slope = scale_power<A>(s, n > 0 ? n - 1 : 0, dy.scale());
        const Scaled dx_scaled = g.scaled_beta(0, slope.scale);
        slope.factor.multiply(kernels::WideProduct<A>(dx_scaled.factor));
        Tensor<T> dx = g.make(a.shape());
        Scratch<kernels::WideProduct<A>> before(g.execution(), a.size());
        kernels::product_backward<T>(g.execution(), a.data(), dy.data(), dx.data(), before.data(), a.shape(), kept,
                                     slope.factor);
        g.add(0, std::move(dx), dx_scaled.scale);
    });
}

}  // namespace unitscale::ops
