// SPDX-License-Identifier: MIT
#include <unitscale/ops/erf.hpp>

#include "support/propagate_checks.hpp"

#include <cmath>
#include <limits>
#include <vector>

using namespace unitscale;

namespace {
auto with(Constraint constraint) {
    return [=](auto&, auto& v) { return ops::erf(v[0], {.constraint = constraint}); };
}
const auto with_rule = [](auto&, auto& v) { return ops::erf(v[0]); };
}  // namespace

TEST_CASE("erf: gradient, factors and value") {
    const auto ideal = ops::erf_unit_factors();
    CHECK(ideal.alpha == Approx(1.467075).epsilon(1e-4));
    CHECK(ideal.betas[0] == Approx(1.325209).epsilon(1e-4));
    test::check_gradient_and_factors({{3, 7}}, with(Constraint::none), ideal.alpha, {ideal.betas[0]});
    test::check_gradient_and_factors({{1}}, with_rule, ideal.alpha, {ideal.alpha});
    test::check_gradient_and_factors({{2, 3, 1}}, with(Constraint::to_grad_input_scale), ideal.betas[0],
                                     {ideal.betas[0]});
}

TEST_CASE("erf: unit scale") { test::check_unit_scale({{1000, 50}}, with(Constraint::none), 1.0, {1.0}, 0.01); }

TEST_CASE("erf: limits and infinities") {
    test::OpTape<float> t(Scaling::none);
    const float infinity = std::numeric_limits<float>::infinity();
    const auto x = t.tape.input(Tensor<float>({4}, {-infinity, 1e-20f, infinity, 0.5f}), true);
    const auto y = ops::erf(x);
    CHECK(y.value()(0) == -1.0f);
    CHECK(y.value()(1) == Approx(1.1283792e-20f).epsilon(1e-6));
    CHECK(y.value()(2) == 1.0f);
    CHECK(y.value()(3) == Approx(0.52049988f).epsilon(1e-6));
    t.tape.backward(analysis::project(y, full<float>({4}, 1.0f)));
    CHECK(x.gradient()(0) == 0.0f);
    CHECK(x.gradient()(1) == Approx(1.1283792f).epsilon(1e-6));
}

TEST_CASE("erf: empty inputs and errors") {
    test::OpTape<float> t;
    test::check_nothing({{0, 3}}, with_rule, {0, 3});
    REQUIRE_THROWS_WITH(ops::erf(t.input({2}), {.constraint = Constraint::to_right_grad_scale}),
                        "erf: constraint to_right_grad_scale needs an op with two constrained inputs, this one has 1");
}

TEST_CASE("erf: propagates scales") {
    test::check_propagate({{40}}, with_rule);
    CHECK(test::propagated_scales({{3, 7}}, {8.0}, with_rule, 0.25) == std::vector{1.0, 0.25});
}
