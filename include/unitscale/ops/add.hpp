// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/kernels/elementwise.hpp>
#include <unitscale/ops/operands.hpp>

#include <cmath>
#include <cstddef>
#include <numbers>
#include <optional>

namespace unitscale::ops {

struct AddOptions {
    std::optional<Constraint> constraint{};  ///< joins {alpha, beta_x, beta_z}; empty: the recipe's rule
};

struct AddFactors {
    double alpha = 1.0, beta_x = 1.0, beta_z = 1.0;
};

/// Ideal factors of a sum under `unit`: see `add`. `copies_*`: how often broadcasting repeats an element of the input.
[[nodiscard]] inline AddFactors add_unit_factors(bool either_scalar, std::size_t copies_x, std::size_t copies_z) noexcept {
    return {.alpha = either_scalar ? 1.0 : 1.0 / std::numbers::sqrt2, .beta_x = rsqrt_count(copies_x), .beta_z = rsqrt_count(copies_z)};
}

/// Unit-scaled sum, with broadcasting.
///   y = alpha (x + z)          x, z broadcast to y: aligned at the last axis, extents equal or 1
///   dx = beta_x sum over copies of dy          dz likewise
/// Factors under `unit`: two independent terms of unit variance give variance 2, hence alpha = 2^-1/2 (1 if either input
/// has one element, whose variance is nothing to speak of); the gradient of an input that broadcasting repeats r times is
/// a sum of r terms, hence beta = r^-1/2; an input repeated along the first axis, the batch, is repeated by every micro-batch
/// of the step as well. All three share one value unless the constraint is `none`.
/// Errors: shapes that do not broadcast.
/// Reference: Blake et al. 2024, arXiv:2407.17465, appendix B. Test: tests/ops/add_test.cpp
template <class T>
[[nodiscard]] Variable<T> add(Variable<T> x, Variable<T> z, const AddOptions& options = {}) {
    Tape<T>& tape = x.tape("add");
    const Tensor<T>&left = x.value(), &right = z.value();
    const Shape shape = kernels::broadcast_shape("add", left.shape(), right.shape());
    AddFactors factors{};
    if (tape.unit_scaled()) {
        const std::size_t count = element_count(shape);
        const auto copies = [&](const Tensor<T>& input) {
            if (input.empty() || count == input.size()) return std::size_t{1};
            const bool repeated_by_rows = input.rank() < shape.size() || input.shape()[0] != shape[0];
            return repeated_by_rows ? tape.step_rows(count / input.size()) : count / input.size();
        };
        factors = add_unit_factors(left.size() == 1 || right.size() == 1, copies(left), copies(right));
        constrain("add", effective_constraint(tape, options.constraint), factors.alpha, factors.beta_x, factors.beta_z);
    }
    const auto alpha = static_cast<Accum<T>>(factors.alpha);
    Tensor<T> output = tape.make(shape);
    kernels::broadcast_add<T>(tape.execution(), left.data(), left.shape(), alpha, right.data(), right.shape(), alpha, output.data());
    return tape.record({"add", tape.next_site("add"), factors.alpha, {factors.beta_x, factors.beta_z}}, {x, z}, std::move(output),
                       [](BackwardContext<T>& g) {
                           for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
                               if (!g.needs(i)) continue;
                               const Tensor<T>& dy = g.output_gradient();
                               Tensor<T> dx = g.make(g.input(i).shape());
                               kernels::sum_to_shape<T>(g.execution(), dy.data(), dy.shape(), dx.data(), dx.shape(), static_cast<Accum<T>>(g.beta(i)));
                               g.add(i, std::move(dx));
                           }
                       });
}

}  // namespace unitscale::ops
