// SPDX-License-Identifier: MIT
#include <unitscale/ops/sigmoid.hpp>

#include "support/propagate_checks.hpp"

#include <limits>
#include <vector>

using namespace unitscale;

namespace {
auto with(Constraint constraint) {
    return [=](auto&, auto& v) { return ops::sigmoid(v[0], {.constraint = constraint}); };
}
const auto joined_op = [](auto&, auto& v) { return ops::sigmoid(v[0]); };
}  // namespace

TEST_CASE("sigmoid: gradient, factors and value") {
    test::check_gradient_and_factors({{3, 7}}, with(Constraint::none), 4.802, {4.722});
    test::check_gradient_and_factors({{1}}, joined_op, 4.802, {4.802});
    test::check_gradient_and_factors({{2, 3, 1}}, with(Constraint::to_grad_input_scale), 4.722, {4.722});
}

TEST_CASE("sigmoid: unit scale") {
    test::check_unit_scale({{1000, 50}}, with(Constraint::none), 1.0, {1.0}, 0.01);
    CHECK(analysis::scale_check<double>({{1000, 50}}, with(Constraint::none)).value.rms == Approx(2.60).epsilon(0.02));
}

TEST_CASE("sigmoid: limits and infinities") {
    test::OpTape<float> t(Scaling::none);
    const float infinity = std::numeric_limits<float>::infinity();
    const auto x = t.tape.input(Tensor<float>({3}, {-infinity, 0.0f, infinity}), true);
    const auto y = ops::sigmoid(x);
    CHECK(y.value()(0) == 0.0f);
    CHECK(y.value()(1) == 0.5f);
    CHECK(y.value()(2) == 1.0f);
    t.tape.backward(analysis::project(y, full<float>({3}, 1.0f)));
    CHECK(x.gradient()(0) == 0.0f);
    CHECK(x.gradient()(1) == 0.25f);
    CHECK(x.gradient()(2) == 0.0f);
}

TEST_CASE("sigmoid: empty inputs and errors") {
    test::OpTape<float> t;
    test::check_nothing({{0, 3}}, joined_op, {0, 3});
    REQUIRE_THROWS_WITH(
        ops::sigmoid(t.input({2}), {.constraint = Constraint::to_right_grad_scale}),
        "sigmoid: constraint to_right_grad_scale needs an op with two constrained inputs, this one has 1");
}

TEST_CASE("sigmoid: propagates scales") {
    const auto f = [](auto&, auto& v) { return ops::sigmoid(v[0]); };
    test::check_propagate({{3, 7}}, f);
    CHECK(test::propagated_scales({{3, 7}}, {8.0}, f, 0.25) == std::vector{1.0, 0.25});
}
