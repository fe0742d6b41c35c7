// SPDX-License-Identifier: MIT
#include <unitscale/ops/select.hpp>

#include "support/propagate_checks.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

using namespace unitscale;

namespace {
const Tensor<std::int32_t> pattern({3, 4}, {1, 0, 0, 1, 0, 0, 1, -5, 1, 0, 1, 0});
auto choose(const Tensor<std::int32_t>& condition, Constraint constraint) {
    return [=](auto&, auto& v) { return ops::select(condition, v[0], v[1], {.constraint = constraint}); };
}
}  // namespace

TEST_CASE("select: gradient, factors and value") {
    test::check_gradient_and_factors({{3, 4}, {3, 4}}, choose(pattern, Constraint::to_output_scale), 1.0, {1.0, 1.0});
    test::check_gradient_and_factors({{3, 4}, {3, 4}}, choose(pattern, Constraint::none), 1.0, {1.0, 1.0});
    test::check_gradient_and_factors({{2, 3, 4}, {4}}, choose(pattern, Constraint::none), 1.0,
                                     {1.0, std::sqrt(1.0 / 6)});
    test::check_gradient_and_factors({{1}, {3, 1}}, choose(pattern, Constraint::none), 1.0, {std::sqrt(1.0 / 12), 0.5});
    test::check_gradient_and_factors({{3, 4}, {3, 4}}, choose(Tensor<std::int32_t>({1}, {1}), Constraint::none), 1.0,
                                     {1.0, 1.0});
    test::check_gradient_and_factors({{1}, {1}}, choose(Tensor<std::int32_t>({1}, {0}), Constraint::none), 1.0,
                                     {1.0, 1.0});
}

TEST_CASE("select: unit scale of the value; a gradient where it was chosen") {
    Tensor<std::int32_t> condition({100, 200});
    for (std::size_t i = 0; i < condition.size(); ++i) condition.data()[i] = i % 2 == 0;
    test::check_unit_scale({{100, 200}, {100, 200}}, choose(condition, Constraint::none), 1.0,
                           {std::sqrt(0.5), std::sqrt(0.5)});
}

TEST_CASE("select: elements that were not chosen reach neither value nor gradient, whatever they are") {
    test::OpTape<double> t;
    const double nan = std::nan("");
    const auto x = t.tape.input(Tensor<double>({3}, {1.0, nan, 3.0}), true),
               z = t.tape.input(Tensor<double>({3}, {nan, 20.0, nan}), true);
    const auto y = ops::select(Tensor<bool>({3}, {true, false, true}), x, z);
    CHECK(y.value()(0) == 1.0);
    CHECK(y.value()(1) == 20.0);
    CHECK(y.value()(2) == 3.0);
    t.tape.backward(analysis::project(y, Tensor<double>({3}, {1.0, 2.0, 3.0})));
    CHECK(x.gradient()(0) == 1.0);
    CHECK(x.gradient()(1) == 0.0);
    CHECK(x.gradient()(2) == 3.0);
    CHECK(z.gradient()(0) == 0.0);
    CHECK(z.gradient()(1) == 2.0);
}

TEST_CASE("select: empty inputs and shapes that do not broadcast") {
    test::OpTape<float> t;
    const auto nothing = choose(Tensor<std::int32_t>(Shape{0, 1}), Constraint::to_output_scale);
    test::check_nothing({{0, 3}, {3}}, nothing, {0, 3});
    REQUIRE_THROWS_WITH(
        ops::select(pattern, t.input({3, 4}), t.input({1}), {.constraint = Constraint::to_grad_input_scale}),
        "select: constraint to_grad_input_scale needs an op with one constrained input, this one has 2");
    REQUIRE_THROWS_WITH(ops::select(pattern, t.input({3, 4}), t.input({3, 2})),
                        "select: shapes [3,4] and [3,2] do not broadcast: 4 != 2");
    REQUIRE_THROWS_WITH(ops::select(pattern, t.input({2, 4}), t.input({1})),
                        "select: shapes [3,4] and [2,4] do not broadcast: 3 != 2");
}

TEST_CASE("select: propagates scales") {
    const Tensor<std::int32_t> condition({3, 4}, {1, 0, 0, 1, 1, 1, 0, 0, 1, 0, 1, 0});
    const auto f = [condition](auto&, auto& v) { return ops::select(condition, v[0], v[1]); };
    test::check_propagate({{3, 4}, {3, 4}}, f);
    test::check_propagate({{2, 3, 4}, {4}}, f);
    CHECK(test::propagated_scales({{3, 4}, {3, 4}}, {0.5, 8.0}, f, 0.25) == std::vector{8.0, 0.25, 0.25});
    CHECK(test::propagated_scales({{3, 4}, {1}}, {0.5, 8.0}, f, 0.25) ==
          std::vector{8.0, 0.25, 0.5});  // 12^1/2, rounded down to 2
    test::OpTape<double> t(Scaling::propagate);
    const auto x = test::scaled_input(t.tape, {3, 4}, 0x1p-60), zero = test::zeros_of_any_scale(t.tape, {3, 4});
    for (const auto& y : {ops::select(condition, x, zero), ops::select(condition, zero, x)}) {
        CHECK(y.scaled().scale() == 0x1p-60);
        CHECK_FALSE(y.scaled().any_scale());
    }
    CHECK(ops::select(condition, zero, zero).scaled().any_scale());
}

TEST_CASE("select: a number in the place of x or z") {
    const auto right = [](auto&, auto& v) { return ops::select(pattern, v[0], 2.5); };
    const auto left = [](auto&, auto& v) { return ops::select(pattern, -1, v[0]); };
    test::check_gradient_and_factors({{3, 4}}, right, 1.0, {1.0});
    test::check_gradient_and_factors({{3, 4}}, left, 1.0, {1.0});
    test::check_propagate({{3, 4}}, right);
    test::check_propagate({{3, 4}}, left);
    test::OpTape<float> t;
    const auto y = ops::select(pattern, t.input({3, 4}), -7.0);
    CHECK(y.value()(0, 1) == -7.0f);
}

TEST_CASE("select: 0, infinity and NaN as numbers leave the other input's scale alone, in 16 bits") {
    test::OpTape<Half> t(Scaling::propagate);
    const auto x = test::scaled_input(t.tape, {3, 4}, 0x1p-26);
    const float infinity = std::numeric_limits<float>::infinity();
    for (const double c : {0.0, static_cast<double>(-infinity), std::nan("")}) {
        const auto constants = t.tape.input(full<Half>({3, 4}, Half(static_cast<float>(c))));
        for (const auto& y : {ops::select(pattern, x, c), ops::select(pattern, x, constants)}) {
            CHECK(y.scaled().scale() == 0x1p-26);
            CHECK(static_cast<float>(y.scaled()(0, 0)) == static_cast<float>(x.scaled()(0, 0)));
            const auto other = static_cast<float>(y.scaled()(0, 1));
            CHECK((std::isnan(c) ? std::isnan(other) : other == static_cast<float>(c)));
        }
        CHECK(ops::select(pattern, c, x).scaled().scale() == 0x1p-26);
    }
}
