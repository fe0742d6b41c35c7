// SPDX-License-Identifier: MIT
#include <unitscale/record/binary.hpp>

#include "support/propagate_checks.hpp"

#include <array>
#include <cmath>
#include <vector>

using namespace unitscale;

namespace {
const ops::Factors<2> rule{.alpha = 3.0, .betas = {0.5, 2.0}};
/// y = alpha x^2 z.
auto with(Constraint constraint) {
    return [=](auto&, auto& v) {
        auto op = ops::begin_op("f", v[0], v[1]);
        op.set_factors(rule, constraint);
        return ops::record_binary(
            op, [](auto u, auto w) { return u * u * w; }, [](auto u, auto w) { return 2 * u * w; },
            [](auto u, auto) { return u * u; });
    };
}
}  // namespace

TEST_CASE("record_binary: value, gradients and factors of an op of one's own, with broadcasting") {
    test::check_gradient_and_factors({{3, 4}, {3, 4}}, with(Constraint::none), 3.0, {0.5, 2.0});
    test::check_gradient_and_factors({{2, 1, 4}, {3, 1}}, with(Constraint::none), 3.0, {0.5, 2.0});
    test::check_gradient_and_factors({{1}, {5}}, with(Constraint::to_right_grad_scale), 2.0, {2.0, 2.0});
    test::check_gradient_and_factors({{1}, {1}}, with(Constraint::to_left_grad_scale), 0.5, {0.5, 0.5});
    test::check_nothing({{2, 0, 4}, {1, 4}}, with(Constraint::none), {2, 0, 4});
    test::OpTape<double> t(Scaling::none);
    std::vector<Variable<double>> inputs{t.tape.input(Tensor<double>({2}, {3.0, -1.0})),
                                         t.tape.input(Tensor<double>({1}, {5.0}))};
    const auto y = with(Constraint::none)(t.tape, inputs);
    CHECK(y.value()(0) == 45.0);
    CHECK(y.value()(1) == 5.0);
}

TEST_CASE("copies of a broadcast input: by size, times the micro-batches where the batch is repeated") {
    test::OpTape<double> t(Scaling::unit, {.micro_batches = 4});
    const auto copies = [&](const Shape& from) {
        return ops::broadcast_copies(t.tape, Tensor<double>(from), Shape{2, 3, 5});
    };
    CHECK(copies({2, 3, 5}) == 1);
    CHECK(copies({2, 1, 5}) == 3);
    CHECK(copies({2, 1, 1}) == 15);
    CHECK(copies({1, 3, 5}) == 8);
    CHECK(copies({5}) == 24);
    CHECK(copies({}) == 120);
    CHECK(ops::broadcast_copies(t.tape, Tensor<double>(Shape{0, 3}), Shape{0, 3}) == 1);
    CHECK(ops::broadcast_copies(t.tape, Tensor<double>(Shape{5}), Shape{1, 5}) == 4);
    CHECK(ops::broadcast_copies(t.tape, Tensor<double>(Shape{1, 5}), Shape{1, 5}) == 1);
    CHECK(ops::broadcast_copies(t.tape, Tensor<double>(Shape{}), Shape{}) == 1);
}

TEST_CASE("broadcast_betas: r^-1/2 for an input that is repeated r times") {
    test::OpTape<double> t(Scaling::unit, {.micro_batches = 4});
    const auto op = ops::begin_op("f", t.input({2, 1, 5}), t.input({5}));
    CHECK(ops::broadcast_betas(op, {2, 3, 5}) == std::array{1.0 / std::sqrt(3.0), 1.0 / std::sqrt(24.0)});
}

TEST_CASE("binary ops: errors of shapes") {
    test::OpTape<float> t;
    std::vector<Variable<float>> inputs{t.input({2, 3}), t.input({2})};
    REQUIRE_THROWS_WITH(with(Constraint::none)(t.tape, inputs), "f: shapes [2,3] and [2] do not broadcast: 3 != 2");
}

TEST_CASE("binary ops of one's own propagate scales") {
    const auto plain = with(Constraint::none);  // x^2 z, without any rule for scales
    const auto apart = [](auto&, auto& v) {
        auto op = ops::begin_op("f", v[0], v[1]);
        op.set_factors(rule, Constraint::none);
        const double s = op.input(0).scale(), t = op.input(1).scale();
        return ops::record_binary(
            op, ops::BinaryScales{.value = s * s * t, .slope_x = s * t, .slope_z = s * s, .product = true},
            [](auto u, auto w) { return u * u * w; }, [](auto u, auto w) { return 2 * u * w; },
            [](auto u, auto) { return u * u; });
    };
    for (const auto& shapes : {std::vector<Shape>{{3, 4}, {3, 4}}, std::vector<Shape>{{2, 1, 4}, {3, 1}}}) {
        test::check_propagate(shapes, plain);
        test::check_propagate(shapes, apart);
    }
    // The rule's factors 3, 0.5 and 2, inverted and rounded down: 1/4, 2 and 1/2.
    CHECK(test::propagated_scales({{3}, {3}}, {8.0, 2.0}, plain, 16.0) == std::vector{0.25, 32.0, 8.0});
    CHECK(test::propagated_scales({{3}, {3}}, {8.0, 2.0}, apart, 16.0) == std::vector{32.0, 512.0, 512.0});
    test::OpTape<double> t(Scaling::propagate);
    std::vector<Variable<double>> inputs{test::scaled_input(t.tape, {3}, 2.0), test::zeros_of_any_scale(t.tape, {3})};
    CHECK(apart(t.tape, inputs).scaled().any_scale());
    CHECK_FALSE(plain(t.tape, inputs).scaled().any_scale());
}
