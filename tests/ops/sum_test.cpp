// SPDX-License-Identifier: MIT
#include <unitscale/ops/sum.hpp>

#include "support/propagate_checks.hpp"

#include <cmath>
#include <vector>

using namespace unitscale;

namespace {
auto over(SmallVector<std::ptrdiff_t> axes, Constraint constraint, bool keep = false) {
    return [=](auto&, auto& v) { return ops::sum(v[0], {.axes = axes, .keep_axes = keep, .constraint = constraint}); };
}
}  // namespace

TEST_CASE("sum: gradient, factors and value") {
    test::check_gradient_and_factors({{3, 4}}, over({}, Constraint::none), std::sqrt(1.0 / 12), {1.0});
    test::check_gradient_and_factors({{3, 4}}, [](auto&, auto& v) { return ops::sum(v[0]); }, std::sqrt(1.0 / 12),
                                     {std::sqrt(1.0 / 12)});
    test::check_gradient_and_factors({{3, 4}}, over({1}, Constraint::none), 0.5, {1.0});
    test::check_gradient_and_factors({{3, 4}}, over({0}, Constraint::to_grad_input_scale), 1.0, {1.0});
    test::check_gradient_and_factors({{2, 3, 4}}, over({0, -1}, Constraint::none), std::sqrt(1.0 / 8), {1.0});
    test::check_gradient_and_factors({{2, 3, 4}}, over({1}, Constraint::none, true), std::sqrt(1.0 / 3), {1.0});
    test::check_gradient_and_factors({{1}}, over({}, Constraint::none), 1.0, {1.0});
    test::check_gradient_and_factors({{}}, over({}, Constraint::none), 1.0, {1.0});
}

TEST_CASE("sum: unit scale") {
    test::check_unit_scale({{100, 20, 100}}, over({1}, Constraint::none), 1.0, {1.0});
    test::check_unit_scale({{20, 10000}}, over({0}, Constraint::none), 1.0, {1.0});
}

TEST_CASE("sum: values and shapes") {
    test::OpTape<double> t(Scaling::none);
    const auto x = t.tape.input(Tensor<double>({2, 3}, {1, 2, 3, 4, 5, 6}));
    CHECK(ops::sum(x).item() == 21.0);
    CHECK(ops::sum(x).shape() == Shape{1});
    CHECK(ops::sum(x, {.keep_axes = true}).shape() == Shape{1, 1});
    CHECK(ops::sum(x, {.axes = {0}}).shape() == Shape{3});
    CHECK(ops::sum(x, {.axes = {0}}).value()(1) == 7.0);
    CHECK(ops::sum(x, {.axes = {-1}, .keep_axes = true}).shape() == Shape{2, 1});
    CHECK(ops::sum(x, {.axes = {-1}}).value()(1) == 15.0);
}

TEST_CASE("sum: the sums of micro-batches add up to the batch's sum") {
    test::OpTape<double> whole, part(Scaling::unit, {.micro_batches = 2});
    const auto x = whole.tape.input(Tensor<double>({4}, {1, 2, 3, 4}));
    const double first = ops::sum(part.tape.input(Tensor<double>({2}, {1, 2}))).item(),
                 second = ops::sum(part.tape.input(Tensor<double>({2}, {3, 4}))).item();
    CHECK(first + second == Approx(ops::sum(x).item()));
    CHECK(ops::sum(x).item() == 5.0);
    CHECK(ops::sum(part.tape.input(Tensor<double>({1, 4}, {1, 2, 3, 4})), {.axes = {1}}).item() == 5.0);
}

TEST_CASE("sum: empty inputs and errors") {
    test::OpTape<float> t;
    test::check_nothing({{0, 3}}, over({}, Constraint::none), {1});
    test::check_nothing({{0, 3}}, over({0}, Constraint::to_output_scale), {3});
    test::check_nothing({{0, 3}}, over({1}, Constraint::none, true), {0, 1});
    REQUIRE_THROWS_WITH(ops::sum(t.input({2, 3}), {.constraint = Constraint::to_left_grad_scale}),
                        "sum: constraint to_left_grad_scale needs an op with two constrained inputs, this one has 1");
    REQUIRE_THROWS_WITH(ops::sum(t.input({2, 3}), {.axes = {2}}), "sum: axis 2 is outside x [2,3]");
    REQUIRE_THROWS_WITH(ops::sum(t.input({2, 3}), {.axes = {0, -2}}), "sum: axis -2 of x [2,3] is named twice");
}

TEST_CASE("sum: propagates scales") {
    const auto all = [](auto&, auto& v) { return ops::sum(v[0]); };
    const auto rows = [](auto&, auto& v) { return ops::sum(v[0], {.axes = {1}}); };
    test::check_propagate({{3, 7}}, all);
    for (const ScaleRounding rounding : {ScaleRounding::up, ScaleRounding::nearest, ScaleRounding::stochastic})
        test::check_propagate({{3, 7}}, all, 1e-12, {.rounding = rounding});
    test::check_propagate({{2, 5, 3}}, rows);
    CHECK(test::propagated_scales({{4, 6}}, {8.0}, all, 0.25) == std::vector{32.0, 0.25});    // 24^1/2, down to 4
    CHECK(test::propagated_scales({{4, 17}}, {8.0}, rows, 0.25) == std::vector{32.0, 0.25});  // 17^1/2, down to 4
    CHECK(test::propagated_scales({{4, 17}}, {8.0}, rows, 0.25, ScaleRounding::up) == std::vector{64.0, 0.25});
}
