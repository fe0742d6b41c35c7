// SPDX-License-Identifier: MIT
#include <unitscale/ops/div.hpp>

#include "support/propagate_checks.hpp"

#include <cmath>
#include <limits>
#include <vector>

using namespace unitscale;

namespace {
const ops::Factors<2> rule{.alpha = 3.0, .betas = {0.5, 2.0}};
const auto unjoined = [](auto&, auto& v) {
    return ops::div(v[0], v[1], {.unit = rule, .constraint = Constraint::none});
};
const auto joined_op = [](auto&, auto& v) { return ops::div(v[0], v[1], {.unit = rule}); };
}  // namespace

TEST_CASE("div: gradient and value, with stated factors") {
    test::check_gradient_and_factors_at(test::positive_inputs({{3, 4}, {3, 4}}), unjoined, 3.0, {0.5, 2.0});
    test::check_gradient_and_factors_at(test::positive_inputs({{2, 1, 4}, {1, 3, 1}}), joined_op, 3.0, {3.0, 3.0});
    test::check_gradient_and_factors_at(test::positive_inputs({{3, 4}, {1}}), unjoined, 3.0, {0.5, 2.0});
    test::check_gradient_and_factors_at({Tensor<double>({2}, {-1.0, 2.0}), Tensor<double>({1}, {-0.5})}, joined_op, 3.0,
                                        {3.0, 3.0});
    test::check_gradient_and_factors_at(test::positive_inputs({{1}, {1}}), unjoined, 3.0, {0.5, 2.0});
}

TEST_CASE("div: values and division by zero") {
    test::OpTape<float> t(Scaling::none);
    const auto y = ops::div(t.tape.input(Tensor<float>({3}, {6.0f, -1.0f, 0.0f})),
                            t.tape.input(Tensor<float>({3}, {4.0f, 0.0f, 0.0f})));
    CHECK(y.value()(0) == 1.5f);
    CHECK(y.value()(1) == -std::numeric_limits<float>::infinity());
    CHECK(std::isnan(y.value()(2)));
}

TEST_CASE("div: without factors an error under scaling 'unit', not under 'none'") {
    test::OpTape<float> unit, none(Scaling::none);
    REQUIRE_THROWS_WITH(ops::div(unit.input({2}), unit.input({2})),
                        "div: no rule for scaling 'unit'; state its factors with {.unit = Factors<2>{.alpha = a, "
                        ".betas = {b, ...}}}");
    REQUIRE_THROWS_WITH(ops::div(unit.input({2}), unit.input({2}), {.unit = ops::Factors<2>{.betas = {-1.0, 1.0}}}),
                        "div: beta is -1; expected a positive number");
    REQUIRE_THROWS_WITH(ops::div(none.input({2, 3}), none.input({2})),
                        "div: shapes [2,3] and [2] do not broadcast: 3 != 2");
    test::check_nothing({{0, 3}, {3}}, joined_op, {0, 3});
    REQUIRE_THROWS_WITH(
        ops::div(unit.input({2}), unit.input({2}), {.unit = rule, .constraint = Constraint::to_grad_input_scale}),
        "div: constraint to_grad_input_scale needs an op with one constrained input, this one has 2");
}

TEST_CASE("div: propagates scales") {
    const auto f = [](auto&, auto& v) { return ops::div(v[0], v[1]); };
    test::check_propagate_at(test::positive_inputs({{3, 4}, {3, 4}}), f);
    test::check_propagate_at(test::positive_inputs({{2, 3, 4}, {3, 1}}), f);
    test::check_propagate_at(test::positive_inputs({{3, 4}, {3, 4}}), unjoined);
    CHECK(test::propagated_scales({{3, 4}, {3, 4}}, {8.0, 0.25}, f, 4.0) == std::vector{32.0, 16.0, 512.0});
    CHECK(test::propagated_scales({{20, 4}, {4}}, {8.0, 0.25}, f, 4.0) == std::vector{32.0, 16.0, 2048.0});
    // Stated factors 3, 0.5 and 2: scales are divided by them and rounded down.
    CHECK(test::propagated_scales({{3, 4}, {3, 4}}, {8.0, 0.25}, unjoined, 4.0) == std::vector{8.0, 32.0, 256.0});
}
