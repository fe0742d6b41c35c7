// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/elementwise.hpp>
#include <unitscale/record/binary.hpp>
#include <unitscale/record/same_scale.hpp>

#include <array>
#include <cstddef>
#include <numbers>
#include <optional>

namespace unitscale::ops {

struct AddOptions {
    /// Ideal factors under `unit` in place of `add_unit_factors`. All 1 (`Factors<2>{}`) suit a state that many steps
    /// add to, as they would add to a plain number.
    std::optional<Factors<2>> unit{};
    std::optional<Constraint> constraint{};  ///< joins {alpha, beta_x, beta_z}; empty: the recipe's rule
};

/// Ideal factors of a sum under `unit`: see `add`. `betas`: see `broadcast_betas`.
[[nodiscard]] inline Factors<2> add_unit_factors(bool either_scalar, const std::array<double, 2>& betas) noexcept {
    return {.alpha = either_scalar ? 1.0 : 1.0 / std::numbers::sqrt2, .betas = betas};
}

/// Records y = alpha (x + sign z): the common part of `add` and `sub`. sign: 1 or -1.
template <class T>
[[nodiscard]] Variable<T> record_sum(Op<T, 2>& op, double sign, const AddOptions& options) {
    const Tensor<T>&left = op.input(0), &right = op.input(1);
    const Shape shape = broadcast_shape(op.name(), left.shape(), right.shape());
    const bool either_scalar = left.size() == 1 || right.size() == 1;
    const std::array<double, 2> copies = broadcast_betas(op, shape);
    Factors<2> ideal = add_unit_factors(either_scalar, copies);
    if (options.unit)
        ideal = {.alpha = options.unit->alpha,
                 .betas = {options.unit->betas[0] * copies[0], options.unit->betas[1] * copies[1]}};
    op.set_factors(ideal, options.constraint);
    const double alpha = op.tape().propagates() ? 1.0 : op.factors().alpha,
                 scale = sum_of_scales(op.tape(), op.site(), left, right);
    const ScaledOperand<T> u(op.tape(), left, scale, alpha), v(op.tape(), right, scale, sign * alpha);
    Tensor<T> output = op.make(shape);
    kernels::broadcast_add<T>(op.execution(), u.data(), left.shape(), u.factor(), v.data(), right.shape(), v.factor(),
                              output.data());
    const Recording recording{.reads = reads_nothing, .any_scale = left.any_scale() && right.any_scale()};
    return op.record(std::move(output), scale, recording, [sign](BackwardContext<T>& g) {
        for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
            if (!g.needs(i) || g.pass_item(i, i == 0 ? g.beta(i) : sign * g.beta(i))) continue;
            const Tensor<T>& dy = g.output_gradient();
            Tensor<T> dx = g.make(g.input_shape(i));
            const Scaled scaled = g.scaled_beta(i);
            const auto factor = static_cast<Accum<T>>(i == 0 ? scaled.factor : sign * scaled.factor);
            kernels::sum_to_shape<T>(g.execution(), dy.data(), dy.shape(), dx.data(), dx.shape(), factor);
            g.add(i, std::move(dx), scaled.scale);
        }
    });
}

/// Unit-scaled sum, with broadcasting.
///   y = alpha (x + z)          x, z broadcast to y: aligned at the last axis, extents equal or 1
///   dx = beta_x sum over copies of dy          dz likewise
/// Factors under `unit`: two independent terms of unit variance give variance 2, hence alpha = 2^-1/2 (1 if either
/// input has a single element, which adds no variance); the gradient of an input that broadcasting repeats r times is
/// a sum of r terms, hence beta = r^-1/2; an input repeated along the first axis, the batch, is repeated by every
/// micro-batch of the step as well. All three share one value unless the constraint is `none`.
/// Scale under `propagate`: (s_x^2 + s_z^2)^1/2, rounded; gradients: dy's times r^1/2, rounded.
/// Errors: shapes that do not broadcast.
/// Reference: Blake et al. 2024, arXiv:2407.17465, appendix B. Test: tests/ops/add_test.cpp
template <class T>
[[nodiscard]] Variable<T> add(Variable<T> x, Variable<T> z, const AddOptions& options = {}) {
    auto op = begin_op("add", x, z);
    return record_sum(op, 1.0, options);
}

}  // namespace unitscale::ops
