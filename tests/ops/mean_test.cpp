// SPDX-License-Identifier: MIT
#include <unitscale/ops/mean.hpp>

#include "support/propagate_checks.hpp"

#include <cmath>
#include <vector>

using namespace unitscale;

namespace {
auto over(SmallVector<std::ptrdiff_t> axes, Constraint constraint, bool keep = false) {
    return [=](auto&, auto& v) { return ops::mean(v[0], {.axes = axes, .keep_axes = keep, .constraint = constraint}); };
}
}  // namespace

TEST_CASE("mean: gradient, factors and value") {
    test::check_gradient_and_factors({{3, 4}}, over({}, Constraint::none), std::sqrt(12.0), {12.0});
    test::check_gradient_and_factors({{3, 4}}, [](auto&, auto& v) { return ops::mean(v[0]); }, std::sqrt(12.0),
                                     {std::sqrt(12.0)});
    test::check_gradient_and_factors({{3, 4}}, over({1}, Constraint::none), 2.0, {4.0});
    test::check_gradient_and_factors({{2, 3, 4}}, over({0, -1}, Constraint::none, true), std::sqrt(8.0), {8.0});
    test::check_gradient_and_factors({{1}}, over({}, Constraint::none), 1.0, {1.0});
    test::check_gradient_and_factors({{}}, over({}, Constraint::none), 1.0, {1.0});
}

TEST_CASE("mean: unit scale") { test::check_unit_scale({{100, 20, 100}}, over({1}, Constraint::none), 1.0, {1.0}); }

TEST_CASE("mean: values and shapes") {
    test::OpTape<double> t(Scaling::none);
    const auto x = t.tape.input(Tensor<double>({2, 3}, {1, 2, 3, 4, 5, 6}));
    CHECK(ops::mean(x).item() == 3.5);
    CHECK(ops::mean(x, {.axes = {0}}).value()(1) == 3.5);
    CHECK(ops::mean(x, {.axes = {1}, .keep_axes = true}).shape() == Shape{2, 1});
}

TEST_CASE("mean: under scaling 'unit' it is the scaled sum, also of micro-batches") {
    test::OpTape<double> whole, part(Scaling::unit, {.retain = true});
    const auto x = whole.tape.input(Tensor<double>({4}, {1, 2, 3, 4}));
    CHECK(ops::mean(x).item() == 5.0);
    part.tape.begin_step({.micro_batches = 2});
    const double first = ops::mean(part.tape.input(Tensor<double>({2}, {1, 2}))).item(),
                 second = ops::mean(part.tape.input(Tensor<double>({2}, {3, 4}))).item();
    CHECK(first + second == Approx(5.0));
}

TEST_CASE("mean: empty inputs and errors") {
    test::OpTape<float> t;
    test::check_nothing({{0, 3}}, over({1}, Constraint::none), {0});
    REQUIRE_THROWS_WITH(ops::mean(t.input({0, 3})), "mean: x [0,3] has no elements along the axes");
    REQUIRE_THROWS_WITH(ops::mean(t.input({0, 3}), {.axes = {0}}), "mean: x [0,3] has no elements along the axes");
    REQUIRE_THROWS_WITH(ops::mean(t.input({2, 3}), {.axes = {1, -1}}), "mean: axis -1 of x [2,3] is named twice");
    REQUIRE_THROWS_WITH(ops::mean(t.input({2, 3}), {.constraint = Constraint::to_left_grad_scale}),
                        "mean: constraint to_left_grad_scale needs an op with two constrained inputs, this one has 1");
    REQUIRE_THROWS_WITH(ops::mean(t.input({2, 3}), {.axes = {-3}}), "mean: axis -3 is outside x [2,3]");
}

TEST_CASE("mean: propagates scales") {
    const auto all = [](auto&, auto& v) { return ops::mean(v[0]); };
    const auto rows = [](auto&, auto& v) { return ops::mean(v[0], {.axes = {1}}); };
    test::check_propagate({{3, 7}}, all);
    for (const ScaleRounding rounding : {ScaleRounding::up, ScaleRounding::nearest, ScaleRounding::stochastic})
        test::check_propagate({{3, 7}}, all, 1e-12, {.rounding = rounding});
    test::check_propagate({{2, 5, 3}}, rows);
    // n = 16: 16^1/2 / 16.
    // n = 24 = 16 * 1.5: 24^1/2, rounded down to 4, / 16.
    // n = 6 = 4 * 1.5: 2 / 4; dy / n = dy / 8 * 4/3.
    CHECK(test::propagated_scales({{4, 4}}, {8.0}, all, 0.25) == std::vector{2.0, 0x1p-6});
    CHECK(test::propagated_scales({{4, 6}}, {8.0}, all, 0.25) == std::vector{2.0, 0x1p-7});
    CHECK(test::propagated_scales({{4, 6}}, {8.0}, rows, 0.25) == std::vector{4.0, 0x1p-5});
    test::OpTape<float> t(Scaling::propagate);
    CHECK(ops::mean(t.input({0, 0}), {.axes = {0}}).shape() == Shape{0});
}
