// SPDX-License-Identifier: MIT
#include <unitscale/ops/sin.hpp>

#include "support/propagate_checks.hpp"

#include <cmath>
#include <limits>
#include <vector>

using namespace unitscale;

namespace {
auto with(Constraint constraint) {
    return [=](auto&, auto& v) { return ops::sin(v[0], {.constraint = constraint}); };
}
const auto with_rule = [](auto&, auto& v) { return ops::sin(v[0]); };
}  // namespace

TEST_CASE("sin: gradient, factors and value") {
    const auto ideal = ops::sin_unit_factors();
    CHECK(ideal.alpha == Approx(1.520865).epsilon(1e-4));
    CHECK(ideal.betas[0] == Approx(1.327248).epsilon(1e-4));
    test::check_gradient_and_factors({{3, 7}}, with(Constraint::none), ideal.alpha, {ideal.betas[0]});
    test::check_gradient_and_factors({{1}}, with_rule, ideal.alpha, {ideal.alpha});
    test::check_gradient_and_factors({{2, 3, 1}}, with(Constraint::to_grad_input_scale), ideal.betas[0],
                                     {ideal.betas[0]});
}

TEST_CASE("sin: unit scale") { test::check_unit_scale({{1000, 50}}, with(Constraint::none), 1.0, {1.0}, 0.01); }

TEST_CASE("sin: large and infinite arguments") {
    test::OpTape<float> t(Scaling::none);
    const float infinity = std::numeric_limits<float>::infinity();
    const auto y = ops::sin(t.tape.input(Tensor<float>({4}, {-infinity, 0.0f, 1e30f, -3.0f}), true));
    CHECK(std::isnan(y.value()(0)));
    CHECK(y.value()(1) == 0.0f);
    CHECK(static_cast<double>(y.value()(2)) == Approx(std::sin(static_cast<double>(1e30f))).epsilon(1e-6));
    CHECK(static_cast<double>(y.value()(3)) == Approx(std::sin(-3.0)).epsilon(1e-6));
}

TEST_CASE("sin: empty inputs and errors") {
    test::OpTape<float> t;
    test::check_nothing({{0, 3}}, with_rule, {0, 3});
    REQUIRE_THROWS_WITH(ops::sin(t.input({2}), {.constraint = Constraint::to_right_grad_scale}),
                        "sin: constraint to_right_grad_scale needs an op with two constrained inputs, this one has 1");
}

TEST_CASE("sin: propagates scales") {
    test::check_propagate({{40}}, with_rule);
    CHECK(test::propagated_scales({{3, 7}}, {8.0}, with_rule, 0.25) == std::vector{1.0, 0.25});
}
