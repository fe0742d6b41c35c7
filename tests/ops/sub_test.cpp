// SPDX-License-Identifier: MIT
#include <unitscale/ops/sub.hpp>

#include "support/propagate_checks.hpp"

#include <cmath>
#include <vector>

using namespace unitscale;

namespace {
const auto joined_sub = [](auto&, auto& v) { return ops::sub(v[0], v[1]); };
const auto free_sub = [](auto&, auto& v) { return ops::sub(v[0], v[1], {.constraint = Constraint::none}); };
}  // namespace

TEST_CASE("sub: gradient, factors and value") {
    const double half = std::sqrt(0.5);
    test::check_gradient_and_factors({{3, 4}, {3, 4}}, joined_sub, half, {half, half});
    test::check_gradient_and_factors({{3, 4}, {3, 4}}, free_sub, half, {1.0, 1.0});
    test::check_gradient_and_factors({{2, 1, 4}, {1, 3, 1}}, free_sub, half, {std::sqrt(1.0 / 3), std::sqrt(1.0 / 8)});
    test::check_gradient_and_factors({{1}, {3, 4}}, free_sub, 1.0, {std::sqrt(1.0 / 12), 1.0});
    test::check_gradient_and_factors({{1}, {1}}, joined_sub, 1.0, {1.0, 1.0});
}

TEST_CASE("sub: unit scale") {
    test::check_unit_scale({{100, 200}, {100, 200}}, free_sub, 1.0, {1.0, 1.0});
    test::check_unit_scale({{40, 100}, {50, 40, 100}}, free_sub, 1.0, {1.0, 1.0});
}

TEST_CASE("sub: x - z, and the signs of both gradients") {
    test::OpTape<double> t(Scaling::none);
    const auto x = t.tape.input(Tensor<double>({2}, {5.0, 1.0}), true),
               z = t.tape.input(Tensor<double>({1}, {2.0}), true);
    const auto y = ops::sub(x, z);
    CHECK(y.value()(0) == 3.0);
    CHECK(y.value()(1) == -1.0);
    t.tape.backward(analysis::project(y, full<double>({2}, 1.0)));
    CHECK(x.gradient()(0) == 1.0);
    CHECK(z.gradient()(0) == -2.0);
}

TEST_CASE("sub: empty inputs and shapes that do not broadcast") {
    test::OpTape<float> t;
    test::check_nothing({{0, 3}, {3}}, joined_sub, {0, 3});
    REQUIRE_THROWS_WITH(ops::sub(t.input({2, 3}), t.input({2})), "sub: shapes [2,3] and [2] do not broadcast: 3 != 2");
    REQUIRE_THROWS_WITH(ops::sub(t.input({2}), t.input({2}), {.constraint = Constraint::to_grad_input_scale}),
                        "sub: constraint to_grad_input_scale needs an op with one constrained input, this one has 2");
}

TEST_CASE("sub: propagates scales") {
    test::check_propagate({{3, 4}, {3, 4}}, joined_sub);
    test::check_propagate({{2, 3, 4}, {4}}, joined_sub);
    CHECK(test::propagated_scales({{20, 4}, {4}}, {2.0, 2.0}, joined_sub, 0.5) == std::vector{2.0, 0.5, 2.0});
}
