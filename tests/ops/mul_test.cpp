// SPDX-License-Identifier: MIT
#include <unitscale/ops/mul.hpp>

#include "support/propagate_checks.hpp"

#include <cmath>
#include <vector>

using namespace unitscale;

namespace {
const auto joined_op = [](auto&, auto& v) { return ops::mul(v[0], v[1]); };
const auto unjoined = [](auto&, auto& v) { return ops::mul(v[0], v[1], {.constraint = Constraint::none}); };
}  // namespace

TEST_CASE("mul: gradient, factors and value") {
    test::check_gradient_and_factors({{3, 4}, {3, 4}}, joined_op, 1.0, {1.0, 1.0});
    test::check_gradient_and_factors({{3, 4}, {4}}, joined_op, 1.0, {1.0, 1.0});
    test::check_gradient_and_factors(
        {{3, 4}, {4}},
        [](auto&, auto& v) { return ops::mul(v[0], v[1], {.constraint = Constraint::to_right_grad_scale}); },
        std::sqrt(1.0 / 3), {std::sqrt(1.0 / 3), std::sqrt(1.0 / 3)});
    test::check_gradient_and_factors({{2, 3, 4}, {3, 4}}, unjoined, 1.0, {1.0, std::sqrt(1.0 / 2)});
    test::check_gradient_and_factors({{2, 1, 4}, {1, 3, 1}}, unjoined, 1.0, {std::sqrt(1.0 / 3), std::sqrt(1.0 / 8)});
    test::check_gradient_and_factors({{3, 4}, {1}}, unjoined, 1.0, {1.0, std::sqrt(1.0 / 12)});
    test::check_gradient_and_factors({{1}, {}}, joined_op, 1.0, {1.0, 1.0});
}

TEST_CASE("mul: unit scale, with the gradient of a repeated input") {
    test::check_unit_scale({{100, 200}, {100, 200}}, unjoined, 1.0, {1.0, 1.0});
    test::check_unit_scale({{50, 40, 100}, {40, 100}}, unjoined, 1.0, {1.0, 1.0});
}

TEST_CASE("mul: an input repeated along the batch is repeated by every micro-batch") {
    test::OpTape<double> t(Scaling::unit, {.micro_batches = 4});
    static_cast<void>(ops::mul(t.input({2, 3, 4}), t.input({3, 4}), {.constraint = Constraint::none}));
    CHECK(t.tape.node(0).betas[0] == 1.0);
    CHECK(t.tape.node(0).betas[1] == Approx(std::sqrt(1.0 / 8)));
}

TEST_CASE("mul: x x adds both gradients to x") {
    test::OpTape<double> t;
    const auto x = t.tape.input(Tensor<double>({1}, {3.0}), true);
    const auto y = ops::mul(x, x);
    CHECK(y.item() == 9.0);
    t.tape.backward(y);
    CHECK(x.gradient()(0) == 6.0);
}

TEST_CASE("mul: empty inputs and shapes that do not broadcast") {
    test::OpTape<float> t;
    test::check_nothing({{0, 3}, {3}}, joined_op, {0, 3});
    test::check_nothing({{1}, {2, 0, 1}}, unjoined, {2, 0, 1});
    REQUIRE_THROWS_WITH(ops::mul(t.input({2}), t.input({2}), {.constraint = Constraint::to_grad_input_scale}),
                        "mul: constraint to_grad_input_scale needs an op with one constrained input, this one has 2");
    REQUIRE_THROWS_WITH(ops::mul(t.input({2, 3}), t.input({4, 3})),
                        "mul: shapes [2,3] and [4,3] do not broadcast: 2 != 4");
}

TEST_CASE("mul: propagates scales") {
    const auto f = [](auto&, auto& v) { return ops::mul(v[0], v[1]); };
    test::check_propagate({{3, 4}, {3, 4}}, f);
    test::check_propagate({{2, 3, 4}, {3, 1}}, f);
    for (const ScaleRounding rounding : {ScaleRounding::up, ScaleRounding::nearest, ScaleRounding::stochastic})
        test::check_propagate({{2, 3, 4}, {3, 1}}, f, 1e-12, {.rounding = rounding});
    CHECK(test::propagated_scales({{3, 4}, {3, 4}}, {8.0, 0.25}, f, 4.0) == std::vector{2.0, 1.0, 32.0});
    // Twenty terms in z's gradient: 20^1/2, rounded down.
    CHECK(test::propagated_scales({{20, 4}, {4}}, {8.0, 0.25}, f, 4.0) == std::vector{2.0, 1.0, 128.0});
    // Parts of a scale outside the range of scales move to the data.
    CHECK(test::propagated_scales({{3}, {3}}, {0x1p-100, 0x1p-60}, f) == std::vector{0x1p-126, 0x1p-60, 0x1p-100});
    test::OpTape<double> t(Scaling::propagate);
    const auto x = test::scaled_input(t.tape, {3}, 0x1p100), z = test::scaled_input(t.tape, {3}, 0x1p60);
    const auto y = ops::mul(x, z);
    CHECK(y.scaled().scale() == 0x1p127);
    CHECK(y.scaled()(1) == x.scaled()(1) * z.scaled()(1) * 0x1p33);
}

TEST_CASE("mul: any scale goes with a product by zeros") {
    test::OpTape<double> t(Scaling::propagate), none(Scaling::none);
    const auto x = test::scaled_input(t.tape, {3}, 4.0), zero = test::zeros_of_any_scale(t.tape, {3});
    const auto y = ops::mul(x, zero);
    CHECK(y.scaled().any_scale());
    t.tape.backward(analysis::project(y, full<double>({3}, 1.0)));
    CHECK(x.gradient().any_scale());
    CHECK_FALSE(ops::mul(none.input({3}), test::zeros_of_any_scale(none.tape, {3})).scaled().any_scale());
}
