// SPDX-License-Identifier: MIT
#pragma once

#include "support/reduction_checks.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <string>
#include <vector>

// Checks that an op for the largest element shares with its mirror image for the smallest element.
namespace unitscale::test {

// `maximum` and `minimum`, called as op(x, z, options).

inline const double extreme_alpha = 1.0 / std::sqrt(1.0 - std::numbers::inv_pi);

template <class Op>
[[nodiscard]] auto of_pair(Op op, Constraint constraint) {
    return [=](auto&, auto& v) { return op(v[0], v[1], {.constraint = constraint}); };
}

template <class Op>
void check_extreme_factors(Op op) {
    const double alpha = extreme_alpha, beta = std::numbers::sqrt2;
    const auto unjoined = of_pair(op, Constraint::none);
    check_gradient_and_factors({{3, 4}, {3, 4}}, unjoined, alpha, {beta, beta});
    check_gradient_and_factors({{3, 4}, {3, 4}}, of_pair(op, Constraint::to_output_scale), alpha, {alpha, alpha});
    check_gradient_and_factors({{2, 3, 4}, {4}}, unjoined, alpha, {beta, beta / std::sqrt(6.0)});
    check_gradient_and_factors({{1}, {3, 1}}, unjoined, alpha, {beta / std::sqrt(3.0), beta});
    const auto stated = [=](auto&, auto& v) {
        return op(v[0], v[1],
                  {.unit = ops::Factors<2>{.alpha = 2.0, .betas = {3.0, 4.0}}, .constraint = Constraint::none});
    };
    check_gradient_and_factors({{3, 4}, {3, 4}}, stated, 2.0, {3.0, 4.0});
}

/// Checks unit scale for unit-normal inputs. Returns the mean of the value.
template <class Op>
[[nodiscard]] double check_extreme_unit_scale(Op op) {
    const auto unjoined = of_pair(op, Constraint::none);
    check_unit_scale({{100, 500}, {100, 500}}, unjoined, 1.0, {1.0, 1.0}, 0.02);
    return analysis::scale_check<double>({{100, 500}, {100, 500}}, unjoined).value.mean;
}

/// x = {1, 2, NaN, 3, NaN} and z = {1, 5, 3, NaN, NaN}: the value is {1, second, NaN, NaN, NaN}.
/// The gradient goes to x at the first place, where both are equal, and at the last. It goes to the NaN between them.
/// `second_from_x`: whether x = 2 is chosen at the second place.
template <class Op>
void check_extreme_of_equals_and_nan(Op op, double second, bool second_from_x) {
    OpTape<double> t(Scaling::none);
    const double nan = std::nan("");
    const auto x = t.tape.input(Tensor<double>({5}, {1.0, 2.0, nan, 3.0, nan}), true),
               z = t.tape.input(Tensor<double>({5}, {1.0, 5.0, 3.0, nan, nan}), true);
    const auto y = op(x, z, {});
    CHECK(y.value()(0) == 1.0);
    CHECK(y.value()(1) == second);
    for (std::size_t i = 2; i < 5; ++i) CHECK(std::isnan(y.value()(i)));
    t.tape.backward(analysis::project(y, full<double>({5}, 1.0)));
    const double expected[] = {1, second_from_x ? 1.0 : 0.0, 1, 0, 1};
    for (std::size_t i = 0; i < 5; ++i) {
        CHECK(x.gradient()(i) == expected[i]);
        CHECK(z.gradient()(i) == 1.0 - expected[i]);
    }
}

template <class Op>
void check_extreme_errors(const std::string& name, Op op) {
    OpTape<float> t;
    check_nothing({{0, 3}, {3}}, of_pair(op, Constraint::to_output_scale), {0, 3});
    REQUIRE_THROWS_WITH(op(t.input({3, 4}), t.input({3, 2}), {}),
                        name + ": shapes [3,4] and [3,2] do not broadcast: 4 != 2");
}

template <class Op>
void check_extreme_propagates(Op op) {
    const auto f = [=](auto&, auto& v) { return op(v[0], v[1], {}); };
    check_propagate({{3, 4}, {3, 4}}, f);
    check_propagate({{2, 3, 4}, {4}}, f);
    CHECK(propagated_scales({{3, 4}, {3, 4}}, {0.5, 8.0}, f, 0.25) == std::vector{4.0, 0.125, 0.125});
    OpTape<double> t(Scaling::propagate);
    const auto x = scaled_input(t.tape, {3, 4}, 0x1p-60), zero = zeros_of_any_scale(t.tape, {3, 4});
    CHECK(op(zero, x, {}).scaled().scale() == 0x1p-61);
    CHECK_FALSE(op(zero, x, {}).scaled().any_scale());
    CHECK(op(zero, zero, {}).scaled().any_scale());
}

// `max` and `min`, called as op(x, options); see also reduction_checks.hpp.

/// The gradient of each row goes to the first of the elements that equal the row's value.
/// In the rows of `data` [2,3], these elements have the indices 1 and 0.
template <class Op>
void check_first_of_equals(Op op, const std::vector<double>& data, double first_row, double second_row) {
    OpTape<double> t(Scaling::none);
    const auto x = t.tape.input(Tensor<double>({2, 3}, data), true);
    const auto y = op(x, {.axes = {1}});
    CHECK(y.shape() == Shape{2});
    CHECK(y.value()(0) == first_row);
    CHECK(y.value()(1) == second_row);
    t.tape.backward(analysis::project(y, Tensor<double>({2}, {10.0, 20.0})));
    const double expected[] = {0, 10, 0, 20, 0, 0};
    for (std::size_t i = 0; i < 6; ++i) CHECK(x.gradient().data()[i] == expected[i]);
    CHECK(op(x, {}).shape() == Shape{1});
}

/// The value of the op for {1, NaN, 3}.
template <class Op>
[[nodiscard]] double extreme_beside_nan(Op op) {
    OpTape<double> t(Scaling::none);
    return op(t.tape.input(Tensor<double>({3}, {1.0, std::nan(""), 3.0})), {}).item();
}

/// The errors of all reductions, and the error where there is nothing to compare.
template <class Op>
void check_extreme_along_axes_errors(const std::string& name, Op op) {
    check_reduction_errors(name, op);
    OpTape<float> none(Scaling::none);
    REQUIRE_THROWS_WITH(op(none.input({0, 3}), {.axes = {0}}), name + ": x [0,3] has no elements along the axes");
    REQUIRE_THROWS_WITH(op(none.input({0}), {}), name + ": x [0] has no elements along the axes");
}

template <class Op>
void check_extreme_along_axes_propagates(Op op) {
    const auto f = [=](auto&, auto& v) { return op(v[0], {.axes = {1}}); };
    check_propagate({{3, 7}}, f);
    CHECK(propagated_scales({{3, 7}}, {8.0}, f, 0.25) == std::vector{8.0, 0.25});
    const auto stated = [=](auto&, auto& v) {
        return op(v[0], {.unit = ops::Factors<1>{.alpha = 0.5, .betas = {4.0}}});
    };
    check_propagate({{3, 7}}, stated);
    CHECK(propagated_scales({{3, 7}}, {8.0}, stated, 0.25) == std::vector{16.0, 0.0625});
}

// `argmax` and `argmin`, called as op(x, options).

using Places = std::vector<std::int32_t>;

[[nodiscard]] inline Places places(const Tensor<std::int32_t>& x) { return {x.span().begin(), x.span().end()}; }

/// `rows`, `columns`, `all`: the places in {1, 7, 7}, {-4, -5, -5} along axis 1, along axis 0, and over all elements.
/// `before(a, b)`: whether the op prefers a to b.
template <class Op, class Before>
void check_places(Op op, const Places& rows, const Places& columns, std::int32_t all, Before before) {
    OpTape<double> t(Scaling::none);
    const auto x = t.tape.input(Tensor<double>({2, 3}, {1, 7, 7, -4, -5, -5}), true);
    CHECK(places(op(x, {.axis = 1})) == rows);
    CHECK(places(op(x, {.axis = -2})) == columns);
    CHECK(op(x, {.axis = 1}).shape() == Shape{2});
    CHECK(op(x, {.axis = 1, .keep_axis = true}).shape() == Shape{2, 1});
    CHECK(places(op(x, {})) == Places{all});
    CHECK(op(x, {}).shape() == Shape{1});
    const auto y = t.input({2, 5, 3, 4}), z = t.input({70});
    const auto found = op(y, {.axis = 1});
    CHECK(found.shape() == Shape{2, 3, 4});
    for (std::size_t b = 0; b < 2; ++b)
        for (std::size_t i = 0; i < 12; ++i) {
            std::int32_t best = 0;
            const auto at = [&](std::int32_t k) {
                return y.value().data()[(b * 5 + static_cast<std::size_t>(k)) * 12 + i];
            };
            for (std::int32_t k = 1; k < 5; ++k) best = before(at(k), at(best)) ? k : best;
            CHECK(found.data()[b * 12 + i] == best);
        }
    CHECK(places(op(z, {.axis = 0})) == places(op(z, {})));
}

/// The place that the op finds in {1, NaN, number, NaN}. Checks that nothing is recorded.
template <class Op>
[[nodiscard]] Places place_beside_nan(Op op, float number) {
    OpTape<Half> t(Scaling::propagate);
    const Half nan(std::nanf(""));
    Tensor<Half> data({4}, {Half(1.0f), nan, Half(number), nan});
    data.set_scale(0x1p-30);
    const Places found = places(op(t.tape.input(data, true), {}));
    CHECK(t.state.wide_ops().empty());
    return found;
}

template <class Op>
void check_place_errors(const std::string& name, Op op) {
    OpTape<float> t;
    CHECK(op(t.input({0, 3}), {.axis = 1}).shape() == Shape{0});
    REQUIRE_THROWS_WITH(op(t.input({2, 3}), {.axis = 2}), name + ": axis 2 is outside x [2,3]");
    REQUIRE_THROWS_WITH(op(t.input({0, 3}), {.axis = 0}), name + ": x [0,3] has no elements along the axes");
    REQUIRE_THROWS_WITH(op(t.input({0}), {}), name + ": x [0] has no elements along the axes");
    REQUIRE_THROWS_WITH(op(Variable<float>(), {}),
                        name + ": an empty Variable; make one with Tape::input, Tape::parameter or an op");
}

}  // namespace unitscale::test
