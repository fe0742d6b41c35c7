// SPDX-License-Identifier: MIT
#pragma once

#include "support/catch.hpp"

#include <unitscale/analysis/grad_check.hpp>
#include <unitscale/analysis/scale_check.hpp>
#include <unitscale/compiled.hpp>
#include <unitscale/record/unary.hpp>
#include <unitscale/tensor/cast.hpp>
#include <unitscale/tensor/fill.hpp>
#include <unitscale/tensor/rescale.hpp>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

namespace unitscale::test {

/// Unit-normal tensors of the given shapes.
template <class T>
[[nodiscard]] std::vector<Tensor<T>> normal_inputs(const std::vector<Shape>& shapes, std::uint64_t seed = 1) {
    std::vector<Tensor<T>> inputs;
    for (const Shape& shape : shapes) inputs.push_back(normal<T>(shape, {seed, 100 + inputs.size()}));
    return inputs;
}

/// Positive tensors of the given shapes, between about 0.2 and 5.
[[nodiscard]] inline std::vector<Tensor<double>> positive_inputs(const std::vector<Shape>& shapes,
                                                                 std::uint64_t seed = 1) {
    std::vector<Tensor<double>> inputs = normal_inputs<double>(shapes, seed);
    for (Tensor<double>& input : inputs)
        for (double& x : input.span()) x = std::exp(0.5 * x);
    return inputs;
}

/// An op as the checks below call it: WideOp in double, CheckedOp in double and float.
/// The checks are compiled once, in support/checks.
using WideOp = std::function<Variable<double>(Tape<double>&, std::vector<Variable<double>>&)>;
struct CheckedOp {
    WideOp wide;
    std::function<Variable<float>(Tape<float>&, std::vector<Variable<float>>&)> narrow;

    template <class F>
    requires std::invocable < F&, Tape<double>
    &, std::vector<Variable<double>>& > CheckedOp(F f) : wide(f), narrow(f) {}
    template <class T>
    [[nodiscard]] Variable<T> operator()(Tape<T>& tape, std::vector<Variable<T>>& v) const {
        if constexpr (std::is_same_v<T, double>) return wide(tape, v);
        else return narrow(tape, v);
    }
};

/// Checks an op under scaling `propagate` on given inputs:
/// - data * scale of the value and of every gradient equals the result of the op under `none`;
/// - this holds for any power-of-two scales of the inputs and of the output's gradient;
/// - scales are powers of two;
/// - the op has its own rule.
/// `f` as in check_gradient_and_factors.
void check_propagate_at(const std::vector<Tensor<double>>& inputs, const WideOp& f, double tolerance = 1e-12,
                        const PropagateRule& rule = {.exact_norms = true});
/// check_propagate_at on unit-normal inputs of the given shapes.
void check_propagate(const std::vector<Shape>& shapes, const WideOp& f, double tolerance = 1e-12,
                     const PropagateRule& rule = {.exact_norms = true});

/// The first two of an op's three checks, on given inputs:
/// - gradients under `none` agree with finite differences;
/// - value: the op under `unit` is exactly alpha times the op under `none`;
/// - each gradient under `unit` is exactly its beta times the gradient under `none`;
/// - the op in float agrees with the op in double under both scalings, and 2 threads give the bits of 1 thread.
void check_gradient_and_factors_at(const std::vector<Tensor<double>>& inputs, const CheckedOp& f, double alpha,
                                   const std::vector<double>& betas);
void check_gradient_and_factors(const std::vector<Shape>& shapes, const CheckedOp& f, double alpha,
                                const std::vector<double>& betas);

/// Checks an op with some or all inputs empty, in float and double, under both scalings.
/// The value has the shape `value`, and the gradients have the inputs' shapes. All elements that they have are 0.
void check_nothing(const std::vector<Shape>& shapes, const CheckedOp& f, const Shape& value);

/// The third check, in float and double, with unit-normal inputs and output gradient:
/// the standard deviations of value and gradients are the expected numbers, within the relative `tolerance`.
void check_unit_scale(const std::vector<Shape>& shapes, const CheckedOp& f, double value,
                      const std::vector<double>& gradients, double tolerance = 0.05);

/// Checks an op of one input without a rule under `unit`, called as op(x, UnruledOptions).
/// Value and gradient have the stated factors, which the recipe's rule joins unless the options set a constraint.
/// Without stated factors there is an error that names the op.
template <class Op>
void check_stated_factors(const std::string& name, Op op) {
    const ops::Factors<1> rule{.alpha = 3.0, .betas = {0.5}};
    const auto unjoined = [=](auto&, auto& v) { return op(v[0], {.unit = rule, .constraint = Constraint::none}); };
    const auto joined = [=](auto&, auto& v) { return op(v[0], {.unit = rule}); };
    check_gradient_and_factors_at(positive_inputs({{3, 7}}), unjoined, 3.0, {0.5});
    check_gradient_and_factors_at(positive_inputs({{1}}), joined, 3.0, {3.0});
    check_gradient_and_factors_at(positive_inputs({{}}), joined, 3.0, {3.0});
    check_nothing({{0, 3}}, joined, {0, 3});
    const auto run = [&](const ops::UnruledOptions& options) {
        return analysis::run_op<float>(analysis::plain_recipe(Scaling::unit), normal_inputs<float>({{2}}),
                                       [&](auto&, auto& v) { return op(v[0], options); });
    };
    const std::string advice = "state its factors with {.unit = Factors<1>{.alpha = a, .betas = {b}}}";
    REQUIRE_THROWS_WITH(run({}), name + ": no rule for scaling 'unit'; " + advice);
    REQUIRE_THROWS_WITH(run({.unit = ops::Factors<1>{.alpha = 0.0}}),
                        name + ": alpha is 0; expected a positive number");
    REQUIRE_THROWS_WITH(run({.unit = ops::Factors<1>{.betas = {-1.0}}}),
                        name + ": beta is -1; expected a positive number");
    REQUIRE_THROWS_WITH(
        run({.unit = rule, .constraint = Constraint::to_left_grad_scale}),
        name + ": constraint to_left_grad_scale needs an op with two constrained inputs, this one has 1");
}

/// A tape with its recipe and state, in the middle of a step.
template <class T>
struct OpTape {
    explicit OpTape(Scaling scaling = Scaling::unit, const StepOptions& options = {.retain = true})
        : recipe(recipe_in<T>(analysis::plain_recipe(scaling))), state(1), tape(recipe, state) {
        tape.begin_step(options);
    }
    [[nodiscard]] Variable<T> input(const Shape& shape, std::uint64_t stream = 1) {
        return tape.input(normal<T>(shape, {1, stream}), true);
    }

    Recipe recipe;
    ScalingState state;
    Tape<T> tape;
};

}  // namespace unitscale::test
