// SPDX-License-Identifier: MIT
#include <unitscale/ops/maximum.hpp>

#include "support/propagate_checks.hpp"

#include <cmath>
#include <numbers>
#include <vector>

using namespace unitscale;

namespace {
auto with(Constraint constraint) {
    return [=](auto&, auto& v) { return ops::maximum(v[0], v[1], {.constraint = constraint}); };
}
const double alpha = 1.0 / std::sqrt(1.0 - 1.0 / std::numbers::pi), beta = std::numbers::sqrt2;
}  // namespace

TEST_CASE("maximum: gradient, factors and value") {
    test::check_gradient_and_factors({{3, 4}, {3, 4}}, with(Constraint::none), alpha, {beta, beta});
    test::check_gradient_and_factors({{3, 4}, {3, 4}}, with(Constraint::to_output_scale), alpha, {alpha, alpha});
    test::check_gradient_and_factors({{2, 3, 4}, {4}}, with(Constraint::none), alpha, {beta, beta / std::sqrt(6.0)});
    test::check_gradient_and_factors({{1}, {3, 1}}, with(Constraint::none), alpha, {beta / std::sqrt(3.0), beta});
    test::check_gradient_and_factors(
        {{3, 4}, {3, 4}},
        [](auto&, auto& v) {
            return ops::maximum(
                v[0], v[1],
                {.unit = ops::Factors<2>{.alpha = 2.0, .betas = {3.0, 4.0}}, .constraint = Constraint::none});
        },
        2.0, {3.0, 4.0});
}

TEST_CASE("maximum: unit scale") {
    test::check_unit_scale({{100, 500}, {100, 500}}, with(Constraint::none), 1.0, {1.0, 1.0}, 0.02);
    CHECK(analysis::scale_check<double>({{100, 500}, {100, 500}}, with(Constraint::none)).value.mean ==
          Approx(alpha * std::numbers::inv_sqrtpi).epsilon(0.02));
}

TEST_CASE("maximum: equal elements and NaN") {
    test::OpTape<double> t(Scaling::none);
    const double nan = std::nan("");
    const auto x = t.tape.input(Tensor<double>({5}, {1.0, 2.0, nan, 3.0, nan}), true),
               z = t.tape.input(Tensor<double>({5}, {1.0, 5.0, 3.0, nan, nan}), true);
    const auto y = ops::maximum(x, z);
    CHECK(y.value()(0) == 1.0);
    CHECK(y.value()(1) == 5.0);
    for (std::size_t i = 2; i < 5; ++i) CHECK(std::isnan(y.value()(i)));
    t.tape.backward(analysis::project(y, full<double>({5}, 1.0)));
    const double expected[] = {1, 0, 1, 0, 1};
    for (std::size_t i = 0; i < 5; ++i) {
        CHECK(x.gradient()(i) == expected[i]);
        CHECK(z.gradient()(i) == 1.0 - expected[i]);
    }
}

TEST_CASE("maximum: empty inputs and errors") {
    test::OpTape<float> t;
    test::check_nothing({{0, 3}, {3}}, with(Constraint::to_output_scale), {0, 3});
    REQUIRE_THROWS_WITH(ops::maximum(t.input({3, 4}), t.input({3, 2})),
                        "maximum: shapes [3,4] and [3,2] do not broadcast: 4 != 2");
}

TEST_CASE("maximum: propagates scales") {
    const auto f = [](auto&, auto& v) { return ops::maximum(v[0], v[1]); };
    test::check_propagate({{3, 4}, {3, 4}}, f);
    test::check_propagate({{2, 3, 4}, {4}}, f);
    CHECK(test::propagated_scales({{3, 4}, {3, 4}}, {0.5, 8.0}, f, 0.25) == std::vector{4.0, 0.125, 0.125});
    test::OpTape<double> t(Scaling::propagate);
    const auto x = test::scaled_input(t.tape, {3, 4}, 0x1p-60), zero = test::zeros_of_any_scale(t.tape, {3, 4});
    CHECK(ops::maximum(zero, x).scaled().scale() == 0x1p-61);
}
