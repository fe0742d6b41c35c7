// SPDX-License-Identifier: MIT
#pragma once

#include "support/catch.hpp"

#include <unitscale/analysis/grad_check.hpp>
#include <unitscale/analysis/scale_check.hpp>
#include <unitscale/ops/unary.hpp>
#include <unitscale/tensor/cast.hpp>
#include <unitscale/tensor/fill.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <string>
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
[[nodiscard]] inline std::vector<Tensor<double>> positive_inputs(const std::vector<Shape>& shapes, std::uint64_t seed = 1) {
    std::vector<Tensor<double>> inputs = normal_inputs<double>(shapes, seed);
    for (Tensor<double>& input : inputs)
        for (double& x : input.span()) x = std::exp(0.5 * x);
    return inputs;
}

/// The first two of an op's three checks, on given inputs:
/// - gradients under `none` agree with finite differences;
/// - value: the op under `unit` is alpha times the op under `none`, each gradient is its beta times the plain one, exactly;
/// - the op in float agrees with the op in double under both scalings, and 2 threads give the same bits as 1.
template <class F>
void check_gradient_and_factors_at(const std::vector<Tensor<double>>& inputs, F f, double alpha,
                                   const std::vector<double>& betas) {
    const std::vector<double> errors = analysis::grad_check(inputs, f);
    for (std::size_t i = 0; i < errors.size(); ++i) {
        INFO("finite differences, input " << i);
        CHECK(errors[i] < 1e-8);
    }
    const analysis::FactorReport report = analysis::factor_check(inputs, f);
    CHECK(report.alpha.factor == Approx(alpha).epsilon(1e-12));
    CHECK(report.alpha.error < 1e-12);
    REQUIRE(report.betas.size() == betas.size());
    for (std::size_t i = 0; i < betas.size(); ++i) {
        INFO("beta of input " << i);
        CHECK(report.betas[i].factor == Approx(betas[i]).epsilon(1e-12));
        CHECK(report.betas[i].error < 1e-12);
    }
    std::vector<Tensor<float>> narrow;
    std::vector<Tensor<double>> rounded;  // what float can hold, so that both precisions start from the same numbers
    for (const Tensor<double>& input : inputs) {
        narrow.push_back(cast<float>(input));
        rounded.push_back(cast<double>(narrow.back()));
    }
    for (const Scaling scaling : {Scaling::none, Scaling::unit}) {
        const Recipe recipe = analysis::plain_recipe(scaling);
        const auto wide_run = analysis::run_op<double>(recipe, rounded, f);
        const auto narrow_run = analysis::run_op<float>(
            recipe, narrow, f, cast<float>(normal<double>(wide_run.value.shape(), {1, hash_name("output gradient")})));
        CHECK(analysis::relative_error(cast<double>(narrow_run.value), wide_run.value) < 1e-5);
        for (std::size_t i = 0; i < inputs.size(); ++i)
            CHECK(analysis::relative_error(cast<double>(narrow_run.gradients[i]), wide_run.gradients[i]) < 1e-5);
        const auto threaded = analysis::run_op<double>(recipe, rounded, f, {}, 1, 2);
        CHECK(std::equal(threaded.value.span().begin(), threaded.value.span().end(), wide_run.value.span().begin()));
        for (std::size_t i = 0; i < inputs.size(); ++i)
            CHECK(std::equal(threaded.gradients[i].span().begin(), threaded.gradients[i].span().end(),
                             wide_run.gradients[i].span().begin()));
    }
}
template <class F>
void check_gradient_and_factors(const std::vector<Shape>& shapes, F f, double alpha, const std::vector<double>& betas) {
    check_gradient_and_factors_at(normal_inputs<double>(shapes), f, alpha, betas);
}

/// Inputs with nothing in them, all or some: the value has this shape, and it and the gradients, which have the inputs' shapes, are
/// 0 wherever they have elements; in float and double, under both scalings.
template <class F>
void check_nothing(const std::vector<Shape>& shapes, F f, const Shape& value) {
    const auto is_zero = [](const auto& tensor) {
        return std::all_of(tensor.span().begin(), tensor.span().end(), [](auto element) { return element == 0; });
    };
    const auto check_type = [&]<class T>(const std::vector<Tensor<T>>& inputs) {
        for (const Scaling scaling : {Scaling::none, Scaling::unit}) {
            const auto run = analysis::run_op<T>(analysis::plain_recipe(scaling), inputs, f);
            CHECK(run.value.shape() == value);
            CHECK(is_zero(run.value));
            for (std::size_t i = 0; i < inputs.size(); ++i) {
                INFO("gradient of input " << i);
                CHECK(run.gradients[i].shape() == shapes[i]);
                CHECK(is_zero(run.gradients[i]));
            }
        }
    };
    check_type(normal_inputs<float>(shapes));
    check_type(normal_inputs<double>(shapes));
}

/// An op of one input that has no rule under `unit`, called as op(x, UnruledOptions): gradient and value with the factors that are
/// stated, joined by the recipe's rule unless the options say otherwise; without them an error that names the op.
template <class Op>
void check_stated_factors(const std::string& name, Op op) {
    const ops::UnitRule rule{.alpha = 3.0, .beta_x = 0.5};
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
    const std::string advice = "state its factors with {.unit = UnitRule{.alpha = a, .beta_x = b}}";
    REQUIRE_THROWS_WITH(run({}), name + ": no rule for scaling 'unit'; " + advice);
    REQUIRE_THROWS_WITH(run({.unit = ops::UnitRule{.alpha = 0.0}}), name + ": unit rule {0, 1}; expected positive factors");
    REQUIRE_THROWS_WITH(run({.unit = ops::UnitRule{.beta_x = -1.0}}), name + ": unit rule {1, -1}; expected positive factors");
    REQUIRE_THROWS_WITH(run({.unit = rule, .constraint = Constraint::to_left_grad_scale}),
                        name + ": constraint to_left_grad_scale needs an op with two constrained inputs, this one has 1");
}

/// The third check: with unit-normal inputs and output gradient, standard deviations of value and gradients at the
/// expected numbers (1 unless said), within `tolerance`, in float and double.
template <class F>
void check_unit_scale(const std::vector<Shape>& shapes, F f, double value, const std::vector<double>& gradients,
                      double tolerance = 0.05) {
    const auto check_report = [&](const analysis::ScaleReport& report) {
        CHECK(report.value.std == Approx(value).epsilon(tolerance));
        REQUIRE(report.gradients.size() == gradients.size());
        for (std::size_t i = 0; i < gradients.size(); ++i) {
            INFO("gradient of input " << i);
            CHECK(report.gradients[i].std == Approx(gradients[i]).epsilon(tolerance));
        }
    };
    check_report(analysis::scale_check<float>(shapes, f));
    check_report(analysis::scale_check<double>(shapes, f));
}

/// A tape with its recipe and state, in the middle of a step.
template <class T>
struct OpTape {
    explicit OpTape(Scaling scaling = Scaling::unit, const StepOptions& options = {.retain = true})
        : recipe(analysis::plain_recipe(scaling)), state(1), tape(recipe, state) {
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
