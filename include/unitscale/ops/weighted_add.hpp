// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/base/multiply_add.hpp>
#include <unitscale/kernels/elementwise.hpp>
#include <unitscale/record/same_scale.hpp>
#include <unitscale/scaling/constraint.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <list>
#include <optional>
#include <span>
#include <vector>

namespace unitscale::ops {

struct WeightedAddOptions {
    /// Joins alpha and all betas into one value; empty: the recipe's rule. The rules for a left or right input do not
    /// apply.
    std::optional<Constraint> constraint{};
};

/// alpha first, then the betas: the ideal factors of a weighted sum under `unit`, see `weighted_add`.
[[nodiscard]] inline SmallVector<double> weighted_add_unit_factors(std::span<const double> weights) {
    double squares = 0.0;
    for (const double weight : weights) squares = multiply_add(weight, weight, squares);
    SmallVector<double> factors;
    factors.push_back(1.0 / std::sqrt(squares));
    for (const double weight : weights) factors.push_back(1.0 / std::abs(weight));
    return factors;
}

/// Unit-scaled weighted sum.
///   y = alpha sum_i g_i x_i          dx_i = beta_i g_i dy          x_i, y [one shape]
/// Factors under `unit`: independent terms of unit variance give variance sum g_i^2, hence alpha = (sum g_i^2)^-1/2;
/// beta_i = 1/|g_i|. Unless the constraint is `none` all share one value.
/// Scale under `propagate`: (sum (g_i s_i)^2)^1/2, rounded; gradients: dy's times |g_i|, rounded.
/// Errors: no inputs, another number of weights, shapes that differ, a weight of 0 or one that is not finite.
/// Reference: Blake, Orr, Luschi 2023, arXiv:2303.11257, table A.2. Test: tests/ops/weighted_add_test.cpp
template <class T>
[[nodiscard]] Variable<T> weighted_add(std::span<const Variable<T>> inputs, std::span<const double> weights,
                                       const WeightedAddOptions& options = {}) {
    check(!inputs.empty(), "weighted_add: no inputs");
    check(inputs.size() == weights.size(), "weighted_add: ", inputs.size(), " inputs and ", weights.size(), " weights");
    Tape<T>& tape = inputs[0].tape("weighted_add");
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        check(inputs[i].shape() == inputs[0].shape(), "weighted_add: input ", i, " ", shape_text(inputs[i].shape()),
              " and input 0 ", shape_text(inputs[0].shape()), " differ in shape");
        check(std::isfinite(weights[i]) && weights[i] != 0.0, "weighted_add: weight ", i, " is ", weights[i],
              "; expected a finite number other than 0");
    }
    const Site site = tape.next_site("weighted_add");
    SmallVector<double> factors(inputs.size() + 1, 1.0);
    JoinedBy joined_by = JoinedBy::plan;
    if (tape.uses_factors()) factors = weighted_add_unit_factors(weights);
    if (tape.unit_scaled()) {
        const Constraint constraint = options.constraint.value_or(tape.recipe().constraint);
        if (constraint == Constraint::automatic) {
            factors[0] = tape.forward_factor("weighted_add", site, factors[0]);
        } else {
            joined_by = JoinedBy::hand;
            if (constraint != Constraint::none)
                std::fill(factors.begin(), factors.end(),
                          joined_factor("weighted_add", constraint, {factors.data(), factors.size()}));
        }
    }
    const auto count = static_cast<std::ptrdiff_t>(inputs[0].scaled().size());
    double sum = 0.0, sum_of_any = 0.0;  // of inputs that go with any scale: for the case that all do
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        double& total = inputs[i].scaled().any_scale() ? sum_of_any : sum;
        total = std::hypot(total, weights[i] * inputs[i].scaled().scale());
    }
    const bool any_scale = sum == 0.0;
    const double alpha = tape.propagates() ? 1.0 : factors[0];
    const double scale = tape.scaled_sum(site, any_scale ? sum_of_any : sum, 0.0);
    SmallVector<const T*> data;
    SmallVector<Accum<T>> scaled;
    std::list<SameScale<T>> moved;  // see ScaledOperand
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        const Tensor<T>& x = inputs[i].scaled();
        const double weight = alpha * weights[i], factor = weight * (x.scale() / scale);
        const bool in_range = holds_factor<Accum<T>>(std::abs(factor));
        data.push_back(in_range ? x.data() : moved.emplace_back(tape, &x, scale).data());
        scaled.push_back(static_cast<Accum<T>>(in_range ? factor : weight));
    }
    Tensor<T> output = tape.make(inputs[0].shape());
    kernels::weighted_sum<T>(tape.execution(), {data.data(), data.size()}, {scaled.data(), scaled.size()},
                             output.data(), count);
    output.set_scale(scale);
    output.set_any_scale(tape.propagates() && any_scale);
    SmallVector<double> kept(weights.size());
    std::copy(weights.begin(), weights.end(), kept.begin());
    return tape.record({.name = "weighted_add",
                        .site = site,
                        .alpha = factors[0],
                        .betas = std::span<const double>(factors.data() + 1, weights.size()),
                        .joined_by = joined_by,
                        .reads = reads_nothing,
                        .propagates = true},
                       inputs, std::move(output), [count, kept](BackwardContext<T>& g) {
                           for (std::size_t i = 0; i < kept.size(); ++i) {
                               if (!g.needs(i) || g.pass_item(i, g.beta(i) * kept[i])) continue;
                               const Scaled part = g.scaled_beta(i);
                               Tensor<T> dx = g.make(g.input_shape(i));
                               kernels::scale<T>(g.execution(), g.output_gradient().data(), dx.data(), count,
                                                 static_cast<Accum<T>>(part.factor * kept[i]));
                               g.add(i, std::move(dx), part.scale);
                           }
                       });
}
template <class T>
[[nodiscard]] Variable<T> weighted_add(const std::vector<Variable<T>>& inputs, const std::vector<double>& weights,
                                       const WeightedAddOptions& options = {}) {
    return weighted_add<T>(std::span<const Variable<T>>(inputs), std::span<const double>(weights), options);
}
template <class T>
[[nodiscard]] Variable<T> weighted_add(std::initializer_list<Variable<T>> inputs, std::initializer_list<double> weights,
                                       const WeightedAddOptions& options = {}) {
    return weighted_add<T>(std::span<const Variable<T>>(inputs.begin(), inputs.size()),
                           std::span<const double>(weights.begin(), weights.size()), options);
}

}  // namespace unitscale::ops
