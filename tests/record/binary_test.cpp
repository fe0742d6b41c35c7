// SPDX-License-Identifier: MIT
#include <unitscale/record/binary.hpp>

#include "support/propagate_checks.hpp"

#include <cmath>
#include <vector>

using namespace unitscale;

namespace {
const ops::BinaryUnitRule rule{.alpha = 3.0, .beta_x = 0.5, .beta_z = 2.0};
/// y = alpha x^2 z.
auto with(Constraint constraint) {
    return [=](auto& tape, auto& v) {
        return ops::record_binary(
            "f", v[0], v[1], ops::effective_factors("f", tape, rule, constraint),
            [](auto u, auto w) { return u * u * w; }, [](auto u, auto w) { return 2 * u * w; },
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
}

TEST_CASE("binary ops: errors of shapes and factors") {
    test::OpTape<float> t;
    std::vector<Variable<float>> inputs{t.input({2, 3}), t.input({2})};
    REQUIRE_THROWS_WITH(with(Constraint::none)(t.tape, inputs), "f: shapes [2,3] and [2] do not broadcast: 3 != 2");
    REQUIRE_THROWS_WITH(ops::effective_factors("f", t.tape, ops::BinaryUnitRule{.alpha = 0.0}, {}),
                        "f: unit rule {0, 1, 1}; expected positive factors");
    REQUIRE_THROWS_WITH(ops::effective_factors("f", t.tape, ops::BinaryUnitRule{.beta_z = std::nan("")}, {}),
                        "f: unit rule {1, 1, nan}; expected positive factors");
}

TEST_CASE("binary ops of one's own propagate scales") {
    const auto wide = with(Constraint::none);  // x^2 z, of which the library knows nothing
    const auto apart = [](auto& tape, auto& v) {
        const double s = v[0].scaled().scale(), t = v[1].scaled().scale();
        return ops::record_binary(
            "f", v[0], v[1], ops::effective_factors("f", tape, rule, Constraint::none),
            {.value = s * s * t, .slope_x = s * t, .slope_z = s * s, .product = true},
            [](auto u, auto w) { return u * u * w; }, [](auto u, auto w) { return 2 * u * w; },
            [](auto u, auto) { return u * u; });
    };
    for (const auto& shapes : {std::vector<Shape>{{3, 4}, {3, 4}}, std::vector<Shape>{{2, 1, 4}, {3, 1}}}) {
        test::check_propagate(shapes, wide);
        test::check_propagate(shapes, apart);
    }
    // The rule's factors 3, 0.5 and 2, inverted and down: 1/4, 2 and 1/2.
    CHECK(test::propagated_scales({{3}, {3}}, {8.0, 2.0}, wide, 16.0) == std::vector{0.25, 32.0, 8.0});
    CHECK(test::propagated_scales({{3}, {3}}, {8.0, 2.0}, apart, 16.0) == std::vector{32.0, 512.0, 512.0});
    test::OpTape<double> t(Scaling::propagate);
    std::vector<Variable<double>> inputs{test::scaled_input(t.tape, {3}, 2.0), test::zeros_of_any_scale(t.tape, {3})};
    CHECK(apart(t.tape, inputs).scaled().any_scale());
    CHECK_FALSE(wide(t.tape, inputs).scaled().any_scale());
}
