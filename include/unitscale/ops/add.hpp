// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/elementwise.hpp>
#include <unitscale/record/binary.hpp>

#include <cstddef>
#include <numbers>
#include <optional>

namespace unitscale::ops {

struct AddOptions {
    std::optional<Constraint> constraint{};  ///< joins {alpha, beta_x, beta_z}; empty: the recipe's rule
};

/// Ideal factors of a sum under `unit`: see `add`. `copies_*`: how often broadcasting repeats an element of the input.
[[nodiscard]] inline BinaryUnitRule add_unit_factors(bool either_scalar, std::size_t copies_x,
                                                     std::size_t copies_z) noexcept {
    return {.alpha = either_scalar ? 1.0 : 1.0 / std::numbers::sqrt2,
            .beta_x = rsqrt_count(copies_x),
            .beta_z = rsqrt_count(copies_z)};
}

/// Records y = alpha (x + sign z): the common part of `add` and `sub`. sign: 1 or -1.
template <class T>
[[nodiscard]] Variable<T> record_sum(const char* op, Variable<T> x, Variable<T> z, double sign,
                                     const AddOptions& options) {
    Tape<T>& tape = x.tape(op);
    const Tensor<T>&left = x.scaled(), &right = z.scaled();
    const Shape shape = broadcast_shape(op, left.shape(), right.shape());
    const bool either_scalar = left.size() == 1 || right.size() == 1;
    const BinaryUnitRule ideal =
        add_unit_factors(either_scalar, broadcast_copies(tape, left, shape), broadcast_copies(tape, right, shape));
    const BinaryUnitRule factors = effective_factors(op, tape, ideal, options.constraint);
    const Site site = tape.next_site(op);
    const double alpha = tape.propagates() ? 1.0 : factors.alpha, scale = sum_of_scales(tape, site, left, right);
    Tensor<T> output = tape.make(shape);
    kernels::broadcast_add<T>(tape.execution(), left.data(), left.shape(),
                              static_cast<Accum<T>>(alpha * left.scale() / scale), right.data(), right.shape(),
                              static_cast<Accum<T>>(sign * alpha * right.scale() / scale), output.data());
    output.set_scale(scale);
    output.set_any_scale(tape.propagates() && left.any_scale() && right.any_scale());
    return tape.record({.name = op,
                        .site = site,
                        .alpha = factors.alpha,
                        .betas = {factors.beta_x, factors.beta_z},
                        .joined_by = factors.joined_by,
                        .reads = reads_nothing,
                        .propagates = true},
                       {x, z}, std::move(output), [sign](BackwardContext<T>& g) {
                           for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
                               if (!g.needs(i)) continue;
                               const Tensor<T>& dy = g.output_gradient();
                               Tensor<T> dx = g.make(g.input_shape(i));
                               const Scaled scaled = g.scaled_beta(i);
                               const auto factor = static_cast<Accum<T>>(i == 0 ? scaled.factor : sign * scaled.factor);
                               kernels::sum_to_shape<T>(g.execution(), dy.data(), dy.shape(), dx.data(), dx.shape(),
                                                        factor);
                               g.add(i, std::move(dx), scaled.scale);
                           }
                       });
}

/// Unit-scaled sum, with broadcasting.
///   y = alpha (x + z)          x, z broadcast to y: aligned at the last axis, extents equal or 1
///   dx = beta_x sum over copies of dy          dz likewise
/// Factors under `unit`: two independent terms of unit variance give variance 2, hence alpha = 2^-1/2 (1 if either input
/// has one element, whose variance is nothing to speak of); the gradient of an input that broadcasting repeats r times is
/// a sum of r terms, hence beta = r^-1/2; an input repeated along the first axis, the batch, is repeated by every micro-batch
/// of the step as well. All three share one value unless the constraint is `none`.
/// Scale under `propagate`: (s_x^2 + s_z^2)^1/2, rounded; gradients: dy's times r^1/2, rounded.
/// Errors: shapes that do not broadcast.
/// Reference: Blake et al. 2024, arXiv:2407.17465, appendix B. Test: tests/ops/add_test.cpp
template <class T>
[[nodiscard]] Variable<T> add(Variable<T> x, Variable<T> z, const AddOptions& options = {}) {
    return record_sum("add", x, z, 1.0, options);
}

}  // namespace unitscale::ops
