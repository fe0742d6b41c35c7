// SPDX-License-Identifier: MIT
#include <unitscale/ops/clamp.hpp>

#include "support/propagate_checks.hpp"

#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

using namespace unitscale;

namespace {
auto within(double low, double high, Constraint constraint = Constraint::none) {
    return [=](auto&, auto& v) { return ops::clamp(v[0], {.low = low, .high = high, .constraint = constraint}); };
}
const double infinity = std::numeric_limits<double>::infinity();
}  // namespace

TEST_CASE("clamp: gradient, factors and value") {
    // hardtanh has the mean square P(|x| < 1) + 2 Phi(-1) - 2 phi(1) = 0.516059, and 0.682689 of the elements inside.
    const double alpha = 1.0 / std::sqrt(0.5160585509), beta = 1.0 / std::sqrt(0.6826894921);
    CHECK(1.0 / ops::clamped_normal(-1.0, 1.0).variance == Approx(alpha * alpha).epsilon(1e-8));
    CHECK(1.0 / ops::clamped_normal(-1.0, 1.0).inside == Approx(beta * beta).epsilon(1e-8));
    const double exact = 1.0 / std::sqrt(ops::clamped_normal(-1.0, 1.0).variance);
    test::check_gradient_and_factors({{3, 7}}, within(-1.0, 1.0), exact, {1.0 / std::sqrt(std::erf(std::sqrt(0.5)))});
    test::check_gradient_and_factors({{3, 7}}, within(-1.0, 1.0, Constraint::to_output_scale), exact, {exact});
    test::check_gradient_and_factors({{1}}, within(-infinity, infinity), 1.0, {1.0});
    const auto stated = [](auto&, auto& v) {
        return ops::clamp(
            v[0], {.low = -0.5, .unit = ops::Factors<1>{.alpha = 3.0, .betas = {0.5}}, .constraint = Constraint::none});
    };
    test::check_gradient_and_factors({{3, 7}}, stated, 3.0, {0.5});
}

TEST_CASE("clamp: from 0 up it has the factors of relu") {
    const ops::ClampedNormal half = ops::clamped_normal(0.0, infinity);
    CHECK(half.inside == Approx(0.5));
    CHECK(half.mean == Approx(1.0 / std::sqrt(2.0 * std::numbers::pi)));
    CHECK(half.variance == Approx((1.0 - 1.0 / std::numbers::pi) / 2.0));
}

TEST_CASE("clamp: unit scale for bounds on both sides, one side, off centre") {
    test::check_unit_scale({{1000, 50}}, within(-1.0, 1.0), 1.0, {1.0}, 0.02);
    test::check_unit_scale({{1000, 50}}, within(-infinity, 0.5), 1.0, {1.0}, 0.02);
    test::check_unit_scale({{1000, 50}}, within(0.5, 2.0), 1.0, {1.0}, 0.03);
}

TEST_CASE("clamp: bounds pass the gradient, NaN stays") {
    test::OpTape<double> t(Scaling::none);
    const auto x = t.tape.input(Tensor<double>({5}, {-2.0, -1.0, 0.5, 1.0, 7.0}), true);
    const auto y = ops::clamp(x, {.low = -1.0, .high = 1.0});
    t.tape.backward(analysis::project(y, full<double>({5}, 1.0)));
    const double values[] = {-1.0, -1.0, 0.5, 1.0, 1.0}, slopes[] = {0.0, 1.0, 1.0, 1.0, 0.0};
    for (std::size_t i = 0; i < 5; ++i) {
        CHECK(y.value()(i) == values[i]);
        CHECK(x.gradient()(i) == slopes[i]);
    }
    CHECK(std::isnan(ops::clamp(t.tape.input(Tensor<double>({1}, {std::nan("")})), {.low = 0.0, .high = 1.0}).item()));
}

TEST_CASE("clamp: empty inputs and errors") {
    test::OpTape<float> t, none(Scaling::none);
    test::check_nothing({{0, 3}}, within(0.0, infinity), {0, 3});
    REQUIRE_THROWS_WITH(ops::clamp(t.input({2}), {.low = std::nan("")}),
                        "clamp: low is nan and high is inf; expected low below high");
    REQUIRE_THROWS_WITH(ops::clamp(t.input({2}), {.low = 0.0, .unit = ops::Factors<1>{.alpha = 0.0}}),
                        "clamp: alpha is 0; expected a positive number");
    REQUIRE_THROWS_WITH(ops::clamp(t.input({2}), {.low = 0.0, .constraint = Constraint::to_left_grad_scale}),
                        "clamp: constraint to_left_grad_scale needs an op with two constrained inputs, this one has 1");
    REQUIRE_THROWS_WITH(ops::clamp(t.input({2}), {.low = 1.0, .high = 1.0}),
                        "clamp: low is 1 and high is 1; expected low below high");
    REQUIRE_THROWS_WITH(ops::clamp(t.input({2}), {.low = 3.0, .high = 9.0}),
                        "clamp: no rule for scaling 'unit' with bounds [3,9], which unit-normal inputs hardly meet; "
                        "state its factors with "
                        "{.unit = Factors<1>{.alpha = a, .betas = {b}}}");
    CHECK(ops::clamp(none.input({2}), {.low = 3.0, .high = 9.0}).value()(0) == 3.0f);
}

TEST_CASE("clamp: propagates scales, with bounds over the scale") {
    test::check_propagate({{3, 7}}, within(-0.5, 1.0));
    test::check_propagate({{3, 7}}, within(0.0, infinity));
    CHECK(test::propagated_scales({{3, 7}}, {8.0}, within(-0.5, 1.0), 0.25) == std::vector{8.0, 0.25});
    test::OpTape<float> t(Scaling::propagate);
    const auto y = ops::clamp(test::scaled_input(t.tape, {50}, 0x1p-126), {.low = -1e10, .high = 1e10});
    CHECK(y.scaled()(7) == normal<float>({50}, {1, 7})(7));  // no bound, because bound / scale is beyond float
}
