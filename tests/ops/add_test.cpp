// SPDX-License-Identifier: MIT
#include <unitscale/ops/add.hpp>

#include "support/op_checks.hpp"

#include <cmath>

using namespace unitscale;

namespace {
const auto joined_op = [](auto&, auto& v) { return ops::add(v[0], v[1]); };
const auto free_add = [](auto&, auto& v) { return ops::add(v[0], v[1], {.constraint = Constraint::none}); };
const double half = std::sqrt(0.5);
}  // namespace

TEST_CASE("add: gradient, factors and value") {
    test::check_gradient_and_factors({{3, 4}, {3, 4}}, joined_op, half, {half, half});
    test::check_gradient_and_factors({{3, 4}, {3, 4}}, free_add, half, {1.0, 1.0});
    test::check_gradient_and_factors({{2, 3, 4}, {3, 4}}, free_add, half, {1.0, std::sqrt(1.0 / 2)});
    test::check_gradient_and_factors({{2, 1, 4}, {1, 3, 1}}, free_add, half, {std::sqrt(1.0 / 3), std::sqrt(1.0 / 8)});
    test::check_gradient_and_factors({{3, 4}, {1}}, free_add, 1.0, {1.0, std::sqrt(1.0 / 12)});
    test::check_gradient_and_factors({{1}, {1}}, joined_op, 1.0, {1.0, 1.0});
}

TEST_CASE("add: unit scale") {
    test::check_unit_scale({{100, 200}, {100, 200}}, free_add, 1.0, {1.0, 1.0});
    test::check_unit_scale({{50, 40, 100}, {40, 100}}, free_add, 1.0, {1.0, 1.0});
}

TEST_CASE("add: an input repeated along the batch is repeated by every micro-batch") {
    test::OpTape<double> t(Scaling::unit, {.micro_batches = 4});
    static_cast<void>(ops::add(t.input({2, 3, 4}), t.input({3, 4}), {.constraint = Constraint::none}));
    CHECK(t.tape.node(0).betas[0] == 1.0);
    CHECK(t.tape.node(0).betas[1] == Approx(std::sqrt(1.0 / 8)));
    static_cast<void>(ops::add(t.input({2, 3, 4}), t.input({2, 1, 4}), {.constraint = Constraint::none}));
    CHECK(t.tape.node(1).betas[1] == Approx(std::sqrt(1.0 / 3)));
}

TEST_CASE("add: x + x adds both gradients to x") {
    test::OpTape<double> t(Scaling::none);
    const auto x = t.input({2});
    t.tape.backward(analysis::project(ops::add(x, x), full<double>({2}, 1.0)));
    CHECK(x.gradient()(0) == 2.0);
}

TEST_CASE("add: empty inputs and shapes that do not broadcast") {
    test::OpTape<float> t;
    test::check_nothing({{0, 3}, {3}}, joined_op, {0, 3});
    test::check_nothing({{1}, {2, 0, 1}}, free_add, {2, 0, 1});
    REQUIRE_THROWS_WITH(ops::add(t.input({2, 3}), t.input({2})), "add: shapes [2,3] and [2] do not broadcast: 3 != 2");
    REQUIRE_THROWS_WITH(ops::add(t.input({2}), t.input({2}), {.constraint = Constraint::to_grad_input_scale}),
                        "add: constraint to_grad_input_scale needs an op with one constrained input, this one has 2");
}

TEST_CASE("add: propagates scales") {
    const auto f = [](auto&, auto& v) { return ops::add(v[0], v[1]); };
    test::check_propagate({{3, 4}, {3, 4}}, f);
    test::check_propagate({{2, 3, 4}, {4}}, f);
}
