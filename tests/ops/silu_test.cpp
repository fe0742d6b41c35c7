// SPDX-License-Identifier: MIT
#include <unitscale/ops/silu.hpp>

#include "support/propagate_checks.hpp"

#include <cmath>
#include <numbers>
#include <vector>

using namespace unitscale;

namespace {
auto with(double mult, Constraint constraint) {
    return [=](auto&, auto& v) { return ops::silu(v[0], {.mult = mult, .constraint = constraint}); };
}
}  // namespace

TEST_CASE("silu: gradient, factors and value") {
    for (const double m : {0.25, 1.0, 4.0}) {
        const ops::Factors<1> ideal = ops::silu_unit_factors(m);
        test::check_gradient_and_factors({{3, 7}}, with(m, Constraint::none), ideal.alpha, {ideal.betas[0]});
        test::check_gradient_and_factors({{3, 7}}, with(m, Constraint::to_output_scale), ideal.alpha, {ideal.alpha});
    }
    test::check_gradient_and_factors({{1}}, with(1.0, Constraint::to_grad_input_scale), std::sqrt(2.0 * std::sqrt(2.0)),
                                     {std::sqrt(2.0 * std::sqrt(2.0))});
}

TEST_CASE("silu: factors in both limits of the multiplier") {
    CHECK(ops::silu_unit_factors(1e-6).alpha == Approx(2.0));
    CHECK(ops::silu_unit_factors(1e-6).betas[0] == Approx(2.0));
    CHECK(ops::silu_unit_factors(1e6).alpha == Approx(std::sqrt(2.0 / (1.0 - 1.0 / std::numbers::pi))));
    CHECK(ops::silu_unit_factors(1e6).betas[0] == Approx(std::numbers::sqrt2));
}

TEST_CASE("silu: unit scale within 4 % for multipliers from 0.25 to 4") {
    for (const double m : {0.25, 0.5, 1.0, 2.0, 4.0})
        test::check_unit_scale({{1000, 50}}, with(m, Constraint::none), 1.0, {1.0}, 0.05);
}

TEST_CASE("silu: the value is alpha x sigmoid(m x)") {
    test::OpTape<double> t(Scaling::none);
    const auto y = ops::silu(t.tape.input(Tensor<double>({3}, {-1.0, 0.0, 2.0})), {.mult = 1.5});
    CHECK(y.value()(0) == Approx(-1.0 / (1.0 + std::exp(1.5))));
    CHECK(y.value()(1) == 0.0);
    CHECK(y.value()(2) == Approx(2.0 / (1.0 + std::exp(-3.0))));
}

TEST_CASE("silu: empty inputs and errors") {
    test::OpTape<float> t;
    test::check_nothing({{0, 3}}, with(1.0, Constraint::none), {0, 3});
    REQUIRE_THROWS_WITH(ops::silu(t.input({2}), {.mult = -1.0}), "silu: mult is -1; expected a positive number");
    REQUIRE_THROWS_WITH(ops::silu(t.input({2}), {.constraint = Constraint::to_right_grad_scale}),
                        "silu: constraint to_right_grad_scale needs an op with two constrained inputs, this one has 1");
}

TEST_CASE("silu: propagates scales") {
    const auto f = [](auto&, auto& v) { return ops::silu(v[0], {.mult = 1.5}); };
    test::check_propagate({{3, 7}}, f);
    CHECK(test::propagated_scales({{3, 7}}, {8.0}, f, 0.25) == std::vector{8.0, 0.25});
}
