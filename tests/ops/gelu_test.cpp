// SPDX-License-Identifier: MIT
#include <unitscale/ops/gelu.hpp>

#include "support/op_checks.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

using namespace unitscale;

namespace {
auto with(double mult, Constraint constraint) {
    return [=](auto&, auto& v) { return ops::gelu(v[0], {.mult = mult, .constraint = constraint}); };
}
}  // namespace

TEST_CASE("gelu: gradient, factors and value") {
    for (const double m : {0.25, 1.0, 4.0}) {
        const ops::Factors<1> ideal = ops::gelu_unit_factors(m);
        test::check_gradient_and_factors({{3, 7}}, with(m, Constraint::none), ideal.alpha, {ideal.betas[0]});
        test::check_gradient_and_factors({{3, 7}}, with(m, Constraint::to_output_scale), ideal.alpha, {ideal.alpha});
        test::check_gradient_and_factors({{1}}, with(m, Constraint::to_grad_input_scale), ideal.betas[0],
                                         {ideal.betas[0]});
    }
}

TEST_CASE("gelu: factors at m = 1 and in both limits") {
    CHECK(ops::gelu_unit_factors(1.0).alpha == Approx(1.767).epsilon(1e-3));
    CHECK(ops::gelu_unit_factors(1.0).betas[0] == Approx(1.516).epsilon(1e-3));
    CHECK(ops::gelu_unit_factors(1e-6).alpha == Approx(2.0));
    CHECK(ops::gelu_unit_factors(1e6).alpha == Approx(std::sqrt(2.0 / (1.0 - 1.0 / std::numbers::pi))));
    CHECK(ops::gelu_unit_factors(1e6).betas[0] == Approx(std::numbers::sqrt2));
}

TEST_CASE("gelu: unit scale within 4 % for multipliers from 0.25 to 4") {
    for (const double m : {0.25, 0.5, 1.0, 2.0, 4.0})
        test::check_unit_scale({{1000, 50}}, with(m, Constraint::none), 1.0, {1.0}, 0.05);
}

TEST_CASE("gelu: the value is alpha x Phi(m x)") {
    test::OpTape<double> t(Scaling::none);
    const auto y = ops::gelu(t.tape.input(Tensor<double>({3}, {-1.0, 0.0, 2.0})), {.mult = 1.5});
    CHECK(y.value()(0) == Approx(-0.5 * std::erfc(1.5 / std::numbers::sqrt2)));
    CHECK(y.value()(1) == 0.0);
    CHECK(y.value()(2) == Approx(std::erfc(-3.0 / std::numbers::sqrt2)));
}

TEST_CASE("gelu: the tanh form has the same factors and is close to the other") {
    for (const double m : {0.5, 1.0, 2.0}) {
        const ops::Factors<1> ideal = ops::gelu_unit_factors(m);
        const auto f = [=](auto&, auto& v) {
            return ops::gelu(v[0], {.mult = m, .form = ops::GeluForm::tanh, .constraint = Constraint::none});
        };
        test::check_gradient_and_factors({{3, 7}}, f, ideal.alpha, {ideal.betas[0]});
        test::check_unit_scale({{1000, 50}}, f, 1.0, {1.0}, 0.05);
    }
    test::OpTape<double> t(Scaling::none);
    double largest = 0.0;
    for (double x = -5.0; x < 5.0; x += 0.01) {
        const auto at = t.tape.input(full<double>({1}, x));
        const double y = ops::gelu(at, {.form = ops::GeluForm::tanh}).item();
        CHECK(y == Approx(0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x))))
                       .margin(1e-12));
        largest = std::max(largest, std::abs(y - ops::gelu(at).item()));
    }
    CHECK(largest < 5e-4);
    CHECK(largest > 1e-4);
}

TEST_CASE("gelu: the constants of the Unit Scaling paper") {
    const auto f = [](auto&, auto& v) {
        return ops::gelu(v[0], {.constants = ops::GeluConstants::unit_scaling_paper, .constraint = Constraint::none});
    };
    test::check_gradient_and_factors({{3, 7}}, f, 1.701, {1.481});
    test::check_unit_scale({{1000, 50}}, f, 1.0, {1.0}, 0.01);
    // A recipe chooses them too, unless the call says otherwise.
    Recipe recipe = analysis::plain_recipe(Scaling::unit);
    recipe.gelu_constants = GeluConstants::unit_scaling_paper;
    const auto inputs = test::normal_inputs<double>({{3, 7}});
    const auto value = [&](const Recipe& of, const ops::GeluOptions& options) {
        const auto run = [&](auto&, auto& v) { return ops::gelu(v[0], options); };
        return analysis::run_op<double>(of, inputs, run).value;
    };
    const auto plain = value(analysis::plain_recipe(Scaling::none), {});
    CHECK(analysis::relative_error(value(recipe, {}), plain, 1.701) < 1e-14);
    CHECK(analysis::relative_error(value(recipe, {.constants = GeluConstants::fitted}), plain,
                                   ops::gelu_unit_factors(1.0).alpha) < 1e-14);
    test::OpTape<float> t;
    REQUIRE_THROWS_WITH(ops::gelu(t.input({2}), {.mult = 2.0, .constants = ops::GeluConstants::unit_scaling_paper}),
                        "gelu: mult is 2, but the constants of the Unit Scaling paper hold for 1 only");
}

TEST_CASE("gelu: empty inputs and errors") {
    test::OpTape<float> t;
    test::check_nothing({{0, 3}}, with(1.0, Constraint::none), {0, 3});
    REQUIRE_THROWS_WITH(ops::gelu(t.input({2}), {.mult = 0.0}), "gelu: mult is 0; expected a positive number");
    REQUIRE_THROWS_WITH(ops::gelu(t.input({2}), {.mult = std::numeric_limits<double>::infinity()}),
                        "gelu: mult is inf; expected a positive number");
    REQUIRE_THROWS_WITH(ops::gelu(t.input({2}), {.constraint = Constraint::to_right_grad_scale}),
                        "gelu: constraint to_right_grad_scale needs an op with two constrained inputs, this one has 1");
    REQUIRE_THROWS_WITH(ops::gelu(Variable<float>()),
                        "gelu: an empty Variable; make one with Tape::input, Tape::parameter or an op");
}

TEST_CASE("gelu: propagates scales") {
    test::check_propagate({{40}}, [](auto&, auto& v) { return ops::gelu(v[0], {.mult = 1.5}); });
    test::check_propagate({{40}}, [](auto&, auto& v) { return ops::gelu(v[0], {.form = ops::GeluForm::tanh}); });
}
