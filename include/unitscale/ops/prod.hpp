// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/product_along.hpp>
#include <unitscale/record/reduced_axes.hpp>

#include <cmath>
#include <cstddef>
#include <optional>
#include <utility>

namespace unitscale::ops {

struct ProdOptions {
    SmallVector<std::ptrdiff_t> axes{};      ///< negative ones count from the end; empty: all
    bool keep_axes = false;                  ///< true: they stay, with extent 1
    std::optional<Factors<1>> unit{};        ///< its ideal factors under `unit`, required there
    std::optional<Constraint> constraint{};  ///< joins {alpha, beta_x}; empty: the recipe's rule
};

/// Product along axes, or of all elements.
///   y = alpha product over the axes of x     dx_i = beta_x dy times the product of the others
///   x [any shape], y [x without the axes; [1] if none is left]
/// No rule under `unit`: a product of n independent unit normals has unit variance, but for large n its largest values
/// alone make that variance. State the factors with `.unit`; for small n they are 1 and 1.
/// Scale under `propagate`: s^n, gradients dy's times s^(n-1). Where s^n leaves double's range: 1, gradients dy's.
/// A product of no elements is 1. It is formed in Accum<T>, and may leave that range. Zeros in x need no care.
/// Errors: an axis that x has not, or named twice; scaling `unit` without `.unit`. Test: tests/ops/prod_test.cpp
template <class T>
[[nodiscard]] Variable<T> prod(Variable<T> x, const ProdOptions& options = {}) {
    using A = Accum<T>;
    auto op = begin_op("prod", x);
    const Tensor<T>& input = op.input(0);
    const ReducedAxes axes = reduced_axes("prod", input.shape(), options.axes, options.keep_axes);
    op.set_factors(op.stated(options.unit), options.constraint);
    const double s = input.scale(), n = static_cast<double>(axes.count);
    double value = std::pow(s, n), slope = std::pow(s, n - 1.0);
    const bool apart = std::isnormal(value) && std::isnormal(slope);
    const Tensor<T>* from = &input;
    Tensor<T> plain;
    if (!apart) {  // the kernels get values
        plain = op.make(input.shape());
        multiply_out(input, plain);
        from = &plain;
        value = slope = 1.0;
    }
    const Scaled scaled = op.scaled_alpha(value);
    Tensor<T> output = op.make(axes.result);
    kernels::product_forward<T>(op.execution(), from->data(), input.shape(), output.data(), axes.kept,
                                static_cast<A>(scaled.factor));
    const bool any_scale = input.any_scale() && axes.count > 0;
    return op.record(std::move(output), scaled.scale, {.reads = reads_inputs, .any_scale = any_scale},
                     [kept = axes.kept, slope, apart](BackwardContext<T>& g) {
                         const Scaled dx_scaled = g.scaled_beta(0, slope);
                         const Tensor<T>& a = g.input(0);
                         Tensor<T> values, dx = g.make(a.shape());
                         if (!apart) {
                             values = g.make(a.shape());
                             multiply_out(a, values);
                         }
                         Scratch<A> before(g.execution(), a.size());
                         kernels::product_backward<T>(g.execution(), (apart ? a : values).data(),
                                                      g.output_gradient().data(), dx.data(), before.data(), a.shape(),
                                                      kept, static_cast<A>(dx_scaled.factor));
                         g.add(0, std::move(dx), dx_scaled.scale);
                     });
}

}  // namespace unitscale::ops
