// SPDX-License-Identifier: MIT
#include <unitscale/ops/weighted_add.hpp>

#include "support/propagate_checks.hpp"

#include <cmath>
#include <vector>

using namespace unitscale;

namespace {
auto with(Constraint constraint) {
    return [=](auto&, auto& v) {
        return ops::weighted_add({v[0], v[1], v[2]}, {1.0, -2.0, 3.0}, {.constraint = constraint});
    };
}
}  // namespace

TEST_CASE("weighted_add: gradient, factors and value") {
    const double alpha = 1.0 / std::sqrt(14.0);
    const std::vector<Shape> shapes = {{3, 4}, {3, 4}, {3, 4}};
    test::check_gradient_and_factors(shapes, with(Constraint::none), alpha, {1.0, 1.0 / 2, 1.0 / 3});
    test::check_gradient_and_factors(shapes, with(Constraint::to_output_scale), alpha, {alpha, alpha, alpha});
    const double gmean = std::pow(alpha / 6.0, 0.25), hmean = 4.0 / (std::sqrt(14.0) + 6.0),
                 amean = (alpha + 11.0 / 6.0) / 4.0;
    test::check_gradient_and_factors(shapes, with(Constraint::gmean), gmean, {gmean, gmean, gmean});
    test::check_gradient_and_factors(shapes, with(Constraint::hmean), hmean, {hmean, hmean, hmean});
    test::check_gradient_and_factors(shapes, with(Constraint::amean), amean, {amean, amean, amean});
}

TEST_CASE("weighted_add: unit scale") {
    test::check_unit_scale({{100, 200}, {100, 200}, {100, 200}}, with(Constraint::none), 1.0, {1.0, 1.0, 1.0});
}

TEST_CASE("weighted_add: the value is the weighted sum") {
    test::OpTape<double> t(Scaling::none);
    const auto x = t.tape.input(Tensor<double>({1}, {10.0})), z = t.tape.input(Tensor<double>({1}, {3.0}));
    CHECK(ops::weighted_add({x, z}, {2.0, -1.0}).item() == 17.0);
}

TEST_CASE("weighted_add: one element, one input, and no elements") {
    const double alpha = 1.0 / std::sqrt(14.0);
    test::check_gradient_and_factors({{1}, {1}, {1}}, with(Constraint::none), alpha, {1.0, 1.0 / 2, 1.0 / 3});
    const auto negated = [](auto&, auto& v) { return ops::weighted_add({v[0]}, {-2.0}); };
    test::check_gradient_and_factors({{4}}, negated, 0.5, {0.5});
    test::check_nothing({{0, 4}, {0, 4}, {0, 4}}, with(Constraint::to_output_scale), {0, 4});
}

TEST_CASE("weighted_add: errors name input and weight") {
    test::OpTape<float> t;
    const auto x = t.input({2});
    REQUIRE_THROWS_WITH(ops::weighted_add<float>(std::span<const Variable<float>>(), std::span<const double>()),
                        "weighted_add: no inputs");
    REQUIRE_THROWS_WITH(ops::weighted_add({x, x}, {1.0}), "weighted_add: 2 inputs and 1 weights");
    REQUIRE_THROWS_WITH(ops::weighted_add({x, t.input({3})}, {1.0, 1.0}),
                        "weighted_add: input 1 [3] and input 0 [2] differ in shape");
    REQUIRE_THROWS_WITH(ops::weighted_add({x, x}, {1.0, 0.0}),
                        "weighted_add: weight 1 is 0; expected a finite number other than 0");
    REQUIRE_THROWS_WITH(ops::weighted_add({x, x}, {std::nan(""), 1.0}),
                        "weighted_add: weight 0 is nan; expected a finite number other than 0");
    REQUIRE_THROWS_WITH(ops::weighted_add({x, x}, {1.0, 1.0}, {.constraint = Constraint::to_left_grad_scale}),
                        "weighted_add: constraint to_left_grad_scale does not join any number of factors; expected "
                        "to_output_scale, gmean, "
                        "hmean or amean");
}

TEST_CASE("weighted_add: propagates scales") {
    const auto f = [](auto&, auto& v) { return ops::weighted_add({v[0], v[1], v[2]}, {3.0, -0.5, 1.0}); };
    test::check_propagate({{3, 4}, {3, 4}, {3, 4}}, f);
    for (const ScaleRounding rounding : {ScaleRounding::up, ScaleRounding::nearest, ScaleRounding::stochastic})
        test::check_propagate({{3, 4}, {3, 4}, {3, 4}}, f, 1e-12, {.rounding = rounding});
    test::check_propagate({{3, 4}}, [](auto&, auto& v) { return ops::weighted_add({v[0]}, {-0.7}); });
    // (6^2 + 4^2 + 2^2)^1/2 = 7.5, rounded down to 4. Gradients: 3 rounded down to 2, 1/2, 1.
    CHECK(test::propagated_scales({{3}, {3}, {3}}, {2.0, 8.0, 2.0}, f, 4.0) == std::vector{4.0, 8.0, 2.0, 4.0});
    test::OpTape<double> t(Scaling::propagate);
    const auto x = test::scaled_input(t.tape, {3}, 0x1p-60), zero = test::zeros_of_any_scale(t.tape, {3});
    CHECK(ops::weighted_add({x, zero}, {1.0, 5.0}).scaled().scale() == 0x1p-60);
    CHECK_FALSE(ops::weighted_add({x, zero}, {1.0, 5.0}).scaled().any_scale());
    CHECK(ops::weighted_add({zero, zero}, {1.0, 5.0}).scaled().any_scale());
}
