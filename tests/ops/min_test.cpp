// SPDX-License-Identifier: MIT
#include <unitscale/ops/min.hpp>

#include "support/propagate_checks.hpp"

#include <cmath>
#include <vector>

using namespace unitscale;

namespace {
const ops::Factors<1> rule{.alpha = 3.0, .betas = {0.5}};
auto over(SmallVector<std::ptrdiff_t> axes, Constraint constraint, bool keep = false) {
    return [=](auto&, auto& v) {
        return ops::min(v[0], {.axes = axes, .keep_axes = keep, .unit = rule, .constraint = constraint});
    };
}
}  // namespace

TEST_CASE("min: gradient and value, with stated factors") {
    test::check_gradient_and_factors({{3, 4}}, over({}, Constraint::none), 3.0, {0.5});
    test::check_gradient_and_factors({{3, 4}}, over({1}, Constraint::to_output_scale), 3.0, {3.0});
    test::check_gradient_and_factors({{2, 3, 4}}, over({0, -1}, Constraint::none), 3.0, {0.5});
    test::check_gradient_and_factors({{2, 3, 4}}, over({1}, Constraint::none, true), 3.0, {0.5});
    test::check_gradient_and_factors({{1}}, over({}, Constraint::none), 3.0, {0.5});
    test::check_gradient_and_factors({{}}, over({}, Constraint::none, true), 3.0, {0.5});
}

TEST_CASE("min: the gradient goes to the first of equals") {
    test::OpTape<double> t(Scaling::none);
    const auto x = t.tape.input(Tensor<double>({2, 3}, {9, 7, 7, 4, 5, 4}), true);
    const auto y = ops::min(x, {.axes = {1}});
    CHECK(y.shape() == Shape{2});
    CHECK(y.value()(0) == 7.0);
    CHECK(y.value()(1) == 4.0);
    t.tape.backward(analysis::project(y, Tensor<double>({2}, {10.0, 20.0})));
    const double expected[] = {0, 10, 0, 20, 0, 0};
    for (std::size_t i = 0; i < 6; ++i) CHECK(x.gradient().data()[i] == expected[i]);
    CHECK(ops::min(x).shape() == Shape{1});
}

TEST_CASE("min: a NaN is the smallest") {
    test::OpTape<double> t(Scaling::none);
    CHECK(std::isnan(ops::min(t.tape.input(Tensor<double>({3}, {1.0, std::nan(""), 3.0}))).item()));
}

TEST_CASE("min: empty inputs and errors") {
    test::OpTape<float> unit, none(Scaling::none);
    test::check_nothing({{0, 3}}, over({1}, Constraint::none), {0});
    test::check_nothing({{0, 3}}, over({-1}, Constraint::to_output_scale, true), {0, 1});
    REQUIRE_THROWS_WITH(ops::min(none.input({2, 3}), {.axes = {0, -2}}), "min: axis -2 of x [2,3] is named twice");
    REQUIRE_THROWS_WITH(ops::min(unit.input({2, 3}), {.unit = rule, .constraint = Constraint::to_left_grad_scale}),
                        "min: constraint to_left_grad_scale needs an op with two constrained inputs, this one has 1");
    REQUIRE_THROWS_WITH(ops::min(none.input({0, 3}), {.axes = {0}}), "min: x [0,3] has no elements along the axes");
    REQUIRE_THROWS_WITH(ops::min(none.input({0})), "min: x [0] has no elements along the axes");
    REQUIRE_THROWS_WITH(ops::min(none.input({2, 3}), {.axes = {2}}), "min: axis 2 is outside x [2,3]");
    REQUIRE_THROWS_WITH(
        ops::min(unit.input({2, 3})),
        "min: no rule for scaling 'unit'; state its factors with {.unit = Factors<1>{.alpha = a, .betas = {b}}}");
}

TEST_CASE("min: propagates scales") {
    const auto f = [](auto&, auto& v) { return ops::min(v[0], {.axes = {1}}); };
    test::check_propagate({{3, 7}}, f);
    CHECK(test::propagated_scales({{3, 7}}, {8.0}, f, 0.25) == std::vector{8.0, 0.25});
    const auto stated = [](auto&, auto& v) {
        return ops::min(v[0], {.unit = ops::Factors<1>{.alpha = 0.5, .betas = {4.0}}});
    };
    test::check_propagate({{3, 7}}, stated);
    CHECK(test::propagated_scales({{3, 7}}, {8.0}, stated, 0.25) == std::vector{16.0, 0.0625});
}
