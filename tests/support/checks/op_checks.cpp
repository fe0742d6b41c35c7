// SPDX-License-Identifier: MIT
// The checks of ops, compiled once for all tests.
#include "support/op_checks.hpp"

#include <unitscale/analysis/scale_check.hpp>
#include <unitscale/tensor/cast.hpp>
#include <unitscale/tensor/rescale.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace unitscale::test {

void check_propagate_at(const std::vector<Tensor<double>>& inputs, const WideOp& f, double tolerance,
                        const PropagateRule& rule) {
    const Recipe plain = analysis::plain_recipe(Scaling::none);
    Recipe recipe = analysis::plain_recipe(Scaling::propagate);
    recipe.propagate = rule;
    const auto want = analysis::run_op<double>(plain, inputs, f);
    for (const int shift : {0, 1, 2, 3}) {
        INFO("scales, choice " << shift);
        ScalingState state(1);
        Tape<double> tape(recipe, state);
        tape.begin_step({.retain = true});
        std::vector<Variable<double>> variables;
        for (std::size_t i = 0; i < inputs.size(); ++i)
            variables.push_back(tape.input(
                set_scaling(
                    inputs[i],
                    std::ldexp(1.0, shift == 0 ? 0 : static_cast<int>(i + 1) * (shift == 1 ? 3 : 5 * (shift - 4)))),
                true));
        const auto y = f(tape, variables);
        const auto noted = state.wide_ops();  // noted before the projection below, which has no rule
        CHECK(noted.empty());
        const auto is_power_of_two = [](double scale) { return pow2_down(scale) == scale; };
        CHECK(is_power_of_two(y.scaled().scale()));
        CHECK(analysis::relative_error(y.value(), want.value) < tolerance);
        const Tensor<double> direction = normal<double>(y.shape(), {1, hash_name("output gradient")});
        tape.backward(analysis::project(y, direction, shift == 0 ? 1.0 : std::ldexp(1.0, 4 * shift - 9)));
        for (std::size_t i = 0; i < inputs.size(); ++i) {
            INFO("gradient of input " << i);
            const Tensor<double>& gradient = variables[i].gradient();
            CHECK(is_power_of_two(gradient.scale()));
            CHECK(analysis::relative_error(value(gradient), want.gradients[i]) < tolerance);
        }
    }
}
void check_propagate(const std::vector<Shape>& shapes, const WideOp& f, double tolerance, const PropagateRule& rule) {
    check_propagate_at(normal_inputs<double>(shapes), f, tolerance, rule);
}

void check_gradient_and_factors_at(const std::vector<Tensor<double>>& inputs, const CheckedOp& f, double alpha,
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
    std::vector<Tensor<double>> rounded;  // to float, so that both precisions start from equal numbers
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
void check_gradient_and_factors(const std::vector<Shape>& shapes, const CheckedOp& f, double alpha,
                                const std::vector<double>& betas) {
    check_gradient_and_factors_at(normal_inputs<double>(shapes), f, alpha, betas);
}

void check_nothing(const std::vector<Shape>& shapes, const CheckedOp& f, const Shape& value) {
    const auto is_zero = [](const auto& tensor) {
        return std::all_of(tensor.span().begin(), tensor.span().end(), [](auto element) { return element == 0; });
    };
    const auto check_type = [&]<class T>(const std::vector<Tensor<T>>& inputs) {
        for (const Scaling scaling : {Scaling::none, Scaling::unit}) {
            const auto run = analysis::run_op<T>(recipe_in<T>(analysis::plain_recipe(scaling)), inputs, f);
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

void check_unit_scale(const std::vector<Shape>& shapes, const CheckedOp& f, double value,
                      const std::vector<double>& gradients, double tolerance) {
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

}  // namespace unitscale::test
