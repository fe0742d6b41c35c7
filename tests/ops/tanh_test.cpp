// SPDX-License-Identifier: MIT
#include <unitscale/ops/tanh.hpp>

#include "support/propagate_checks.hpp"

#include <limits>
#include <vector>

using namespace unitscale;

namespace {
auto with(Constraint constraint) {
    return [=](auto&, auto& v) { return ops::tanh(v[0], {.constraint = constraint}); };
}
const auto joined_op = [](auto&, auto& v) { return ops::tanh(v[0]); };
}  // namespace

TEST_CASE("tanh: gradient, factors and value") {
    test::check_gradient_and_factors({{3, 7}}, with(Constraint::none), 1.593, {1.467});
    test::check_gradient_and_factors({{1}}, joined_op, 1.593, {1.593});
    const auto plain = [](auto&, auto& v) { return ops::tanh(v[0], {.unit = ops::Factors<1>{}}); };
    test::check_gradient_and_factors({{3, 7}}, plain, 1.0, {1.0});
    test::check_gradient_and_factors({{2, 3, 1}}, with(Constraint::to_grad_input_scale), 1.467, {1.467});
}

TEST_CASE("tanh: unit scale") { test::check_unit_scale({{1000, 50}}, with(Constraint::none), 1.0, {1.0}, 0.01); }

TEST_CASE("tanh: limits and infinities") {
    test::OpTape<float> t(Scaling::none);
    const float infinity = std::numeric_limits<float>::infinity();
    const auto x = t.tape.input(Tensor<float>({4}, {-infinity, 1e-20f, infinity, 0.5f}), true);
    const auto y = ops::tanh(x);
    CHECK(y.value()(0) == -1.0f);
    CHECK(y.value()(1) == 1e-20f);
    CHECK(y.value()(2) == 1.0f);
    CHECK(y.value()(3) == Approx(0.46211716f).epsilon(1e-6));
    t.tape.backward(analysis::project(y, full<float>({4}, 1.0f)));
    CHECK(x.gradient()(0) == 0.0f);
    CHECK(x.gradient()(1) == 1.0f);
}

TEST_CASE("tanh: empty inputs and errors") {
    test::OpTape<float> t;
    test::check_nothing({{0, 3}}, joined_op, {0, 3});
    REQUIRE_THROWS_WITH(ops::tanh(t.input({2}), {.unit = ops::Factors<1>{.alpha = 0.0}}),
                        "tanh: alpha is 0; expected a positive number");
    REQUIRE_THROWS_WITH(ops::tanh(t.input({2}), {.constraint = Constraint::to_right_grad_scale}),
                        "tanh: constraint to_right_grad_scale needs an op with two constrained inputs, this one has 1");
}

TEST_CASE("tanh: propagates scales") {
    test::check_propagate({{40}}, [](auto&, auto& v) { return ops::tanh(v[0]); });
    CHECK(test::propagated_scales(
              {{3, 7}}, {8.0}, [](auto&, auto& v) { return ops::tanh(v[0]); }, 0.25) == std::vector{1.0, 0.25});
}
