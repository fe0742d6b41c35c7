// SPDX-License-Identifier: MIT
#include <unitscale/ops/cos.hpp>

#include "support/propagate_checks.hpp"

#include <cmath>
#include <limits>
#include <vector>

using namespace unitscale;

namespace {
auto with(Constraint constraint) {
    return [=](auto&, auto& v) { return ops::cos(v[0], {.constraint = constraint}); };
}
const auto with_rule = [](auto&, auto& v) { return ops::cos(v[0]); };
}  // namespace

TEST_CASE("cos: gradient, factors and value") {
    const auto ideal = ops::cos_unit_factors();
    CHECK(ideal.alpha == Approx(1.327248).epsilon(1e-4));
    CHECK(ideal.betas[0] == Approx(1.520865).epsilon(1e-4));
    test::check_gradient_and_factors({{3, 7}}, with(Constraint::none), ideal.alpha, {ideal.betas[0]});
    test::check_gradient_and_factors({{1}}, with_rule, ideal.alpha, {ideal.alpha});
    test::check_gradient_and_factors({{2, 3, 1}}, with(Constraint::to_grad_input_scale), ideal.betas[0],
                                     {ideal.betas[0]});
}

TEST_CASE("cos: unit root mean square; the standard deviation of the value is 0.593") {
    test::check_unit_scale({{1000, 50}}, with(Constraint::none), 0.593, {1.0}, 0.02);
    CHECK(analysis::scale_check<double>({{1000, 50}}, with(Constraint::none)).value.rms == Approx(1.0).epsilon(0.02));
}

TEST_CASE("cos: large and infinite arguments") {
    test::OpTape<float> t(Scaling::none);
    const float infinity = std::numeric_limits<float>::infinity();
    const auto y = ops::cos(t.tape.input(Tensor<float>({4}, {-infinity, 0.0f, 1e30f, -3.0f}), true));
    CHECK(std::isnan(y.value()(0)));
    CHECK(y.value()(1) == 1.0f);
    CHECK(static_cast<double>(y.value()(2)) == Approx(std::cos(static_cast<double>(1e30f))).epsilon(1e-6));
    CHECK(static_cast<double>(y.value()(3)) == Approx(std::cos(-3.0)).epsilon(1e-6));
}

TEST_CASE("cos: empty inputs and errors") {
    test::OpTape<float> t;
    test::check_nothing({{0, 3}}, with_rule, {0, 3});
    REQUIRE_THROWS_WITH(ops::cos(t.input({2}), {.constraint = Constraint::to_right_grad_scale}),
                        "cos: constraint to_right_grad_scale needs an op with two constrained inputs, this one has 1");
}

TEST_CASE("cos: propagates scales") {
    test::check_propagate({{40}}, with_rule);
    CHECK(test::propagated_scales({{3, 7}}, {8.0}, with_rule, 0.25) == std::vector{1.0, 0.25});
}
