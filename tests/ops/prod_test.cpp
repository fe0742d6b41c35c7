// SPDX-License-Identifier: MIT
#include <unitscale/ops/prod.hpp>

#include "support/propagate_checks.hpp"

#include <cmath>
#include <vector>

using namespace unitscale;

namespace {
const ops::Factors<1> rule{.alpha = 3.0, .betas = {0.5}};
auto over(SmallVector<std::ptrdiff_t> axes, Constraint constraint, bool keep = false) {
    return [=](auto&, auto& v) {
        return ops::prod(v[0], {.axes = axes, .keep_axes = keep, .unit = rule, .constraint = constraint});
    };
}
}  // namespace

TEST_CASE("prod: gradient and value, with stated factors") {
    test::check_gradient_and_factors({{3, 4}}, over({}, Constraint::none), 3.0, {0.5});
    test::check_gradient_and_factors({{3, 4}}, over({1}, Constraint::to_output_scale), 3.0, {3.0});
    test::check_gradient_and_factors({{2, 3, 4}}, over({0, -1}, Constraint::none), 3.0, {0.5});
    test::check_gradient_and_factors({{2, 3, 4}}, over({1}, Constraint::none, true), 3.0, {0.5});
    test::check_gradient_and_factors({{1}}, over({}, Constraint::none), 3.0, {0.5});
}

TEST_CASE("prod: with factors of 1 a product of a few unit normals has unit scale") {
    const auto f = [](auto&, auto& v) { return ops::prod(v[0], {.axes = {1}, .unit = ops::Factors<1>{}}); };
    test::check_unit_scale({{200000, 2}}, f, 1.0, {1.0}, 0.02);
}

TEST_CASE("prod: zeros leave the gradient of a single zero") {
    test::OpTape<double> t(Scaling::none);
    const auto x = t.tape.input(Tensor<double>({2, 3}, {2, 0, 3, 0, 5, 0}), true);
    const auto y = ops::prod(x, {.axes = {1}});
    CHECK(y.value()(0) == 0.0);
    t.tape.backward(analysis::project(y, full<double>({2}, 1.0)));
    const double expected[] = {0, 6, 0, 0, 0, 0};
    for (std::size_t i = 0; i < 6; ++i) CHECK(x.gradient().data()[i] == expected[i]);
}

TEST_CASE("prod: empty inputs and errors") {
    test::OpTape<float> unit, none(Scaling::none);
    test::check_nothing({{0, 3}}, over({1}, Constraint::none), {0});
    const auto one = ops::prod(none.input({2, 0}), {.axes = {1}});
    CHECK(one.shape() == Shape{2});
    CHECK(one.value()(1) == 1.0f);
    REQUIRE_THROWS_WITH(ops::prod(none.input({2, 3}), {.axes = {0, -2}}), "prod: axis -2 of x [2,3] is named twice");
    REQUIRE_THROWS_WITH(
        ops::prod(unit.input({2, 3})),
        "prod: no rule for scaling 'unit'; state its factors with {.unit = Factors<1>{.alpha = a, .betas = {b}}}");
}

TEST_CASE("prod: propagates scales") {
    const auto f = [](auto&, auto& v) { return ops::prod(v[0], {.axes = {1}}); };
    test::check_propagate({{3, 4}}, f);
    CHECK(test::propagated_scales({{3, 4}}, {8.0}, f, 0.25) == std::vector{4096.0, 128.0});
    // 2^(100 12) is no double: the values are multiplied
    test::OpTape<double> t(Scaling::propagate);
    Tensor<double> small({12});
    fill_constant(small, 0x1p-99);
    small.set_scale(0x1p100);
    const auto y = ops::prod(t.tape.input(small, true));
    CHECK(y.scaled().scale() == 1.0);
    CHECK(y.item() == 4096.0);
}
