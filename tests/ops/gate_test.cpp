// SPDX-License-Identifier: MIT
#include <unitscale/ops/gate.hpp>

#include "support/propagate_checks.hpp"

#include <cmath>
#include <vector>

using namespace unitscale;

namespace {
const auto with = [](const ops::GateOptions& options) {
    return [=](auto&, auto& v) { return ops::gate(v[0], v[1], options); };
};
const auto unjoined = with({.constraint = Constraint::none});
}  // namespace

TEST_CASE("gate: the value is x sigmoid(g)") {
    test::OpTape<double> t(Scaling::none);
    const auto x = t.tape.input(Tensor<double>({2}, {3.0, -2.0})), g = t.tape.input(Tensor<double>({2}, {-0.5, 2.0}));
    const auto y = ops::gate(x, g);
    CHECK(y.value()(0) == Approx(3.0 / (1.0 + std::exp(0.5))));
    CHECK(y.value()(1) == Approx(-2.0 / (1.0 + std::exp(-2.0))));
}

TEST_CASE("gate: gradient and factors") {
    const auto f = ops::gate_unit_factors();
    test::check_gradient_and_factors({{3, 7}, {3, 7}}, unjoined, f.alpha, {f.betas[0], f.betas[1]});
    test::check_gradient_and_factors({{3, 7}, {3, 7}}, with({}), f.alpha, {f.alpha, f.alpha});
    test::check_gradient_and_factors({{3, 7}, {3, 7}}, with({.unit = ops::Factors<2>{}}), 1.0, {1.0, 1.0});
    // A gate per row: its gradient is a sum of 4 terms.
    test::check_gradient_and_factors({{3, 4}, {3, 1}}, unjoined, f.alpha, {f.betas[0], f.betas[1] / 2.0});
    test::check_nothing({{0, 3}, {0, 3}}, with({}), {0, 3});
}

TEST_CASE("gate: unit scale of value and gradients") {
    const std::vector<Shape> shapes(2, Shape{1000, 100});
    test::check_unit_scale(shapes, unjoined, 1.0, {1.0, 1.0}, 0.01);
    test::check_unit_scale(shapes, with({}), 1.0, {1.0, 1.846 / 4.723}, 0.01);
}

TEST_CASE("gate: errors") {
    test::OpTape<float> t;
    CHECK_THROWS_WITH(ops::gate(t.input({2, 3}), t.input({3, 2})), Catch::StartsWith("gate: "));
    CHECK_THROWS_WITH(ops::gate(t.input({2}), t.input({2}), {.unit = ops::Factors<2>{.alpha = -1.0}}),
                      "gate: alpha is -1; expected a positive number");
}

TEST_CASE("gate: propagates scales") {
    test::check_propagate({{3, 7}, {3, 7}}, with({}));
    test::check_propagate({{3, 7}, {3, 1}}, with({}));
    CHECK(test::propagated_scales({{3, 7}, {3, 7}}, {8.0, 0.25}, with({}), 4.0) == std::vector{4.0, 2.0, 4.0});
}
