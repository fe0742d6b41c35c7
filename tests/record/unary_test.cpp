// SPDX-License-Identifier: MIT
#include <unitscale/record/unary.hpp>

#include "support/propagate_checks.hpp"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

using namespace unitscale;

namespace {
/// y = alpha (x^2 + 1): an op made of two kernels.
template <class T>
Variable<T> curve(Variable<T> x, const ops::UnitRule& factors) {
    return ops::record_unary<T>(
        "curve", x, factors, ops::UnaryScale::wide,
        [](const Execution&, const T* from, T* y, std::ptrdiff_t n, Accum<T> alpha, Accum<T> s) {
            for (std::ptrdiff_t i = 0; i < n; ++i) y[i] = alpha * (s * from[i] * s * from[i] + T(1));
        },
        [](const Execution&, const T* from, const T* dy, T* dx, std::ptrdiff_t n, Accum<T> beta, Accum<T> s) {
            for (std::ptrdiff_t i = 0; i < n; ++i) dx[i] = beta * dy[i] * T(2) * s * from[i];
        });
}
const ops::UnitRule rule{.alpha = 3.0, .beta_x = 0.5};
}  // namespace

TEST_CASE("record_unary: kernels, factors and gradient of an op of one's own") {
    test::check_gradient_and_factors(
        {{3, 7}},
        [](auto& tape, auto& v) { return curve(v[0], ops::effective_factors("curve", tape, rule, Constraint::none)); },
        3.0, {0.5});
    test::check_gradient_and_factors(
        {{2}}, [](auto& tape, auto& v) { return curve(v[0], ops::effective_factors("curve", tape, rule, {})); }, 3.0,
        {3.0});
    test::OpTape<double> t(Scaling::none);
    CHECK(curve(t.tape.input(Tensor<double>({1}, {3.0})), {}).item() == 10.0);
    CHECK(std::string(t.tape.node(0).op) == "curve");
}

TEST_CASE("record_pointwise: a function and its slope") {
    const auto f = [](auto& tape, auto& v) {
        return ops::record_pointwise(
            "square", v[0], ops::stated_factors("square", tape, {.unit = rule, .constraint = Constraint::none}),
            kernels::SquareFunction{});
    };
    test::check_gradient_and_factors({{4, 5}}, f, 3.0, {0.5});
    test::check_gradient_and_factors({{1}}, f, 3.0, {0.5});
    test::OpTape<float> t;
    test::check_nothing({{0, 2}}, f, {0, 2});
}

TEST_CASE("factors of unary ops: 1 under none, joined under unit, an error where there is no rule") {
    test::OpTape<double> none(Scaling::none), unit;
    CHECK(ops::effective_factors("f", none.tape, rule, {}).alpha == 1.0);
    CHECK(ops::effective_factors("f", unit.tape, rule, Constraint::amean).beta_x == 1.75);
    CHECK(ops::stated_factors("f", none.tape, {}).beta_x == 1.0);
    CHECK(ops::stated_factors("f", unit.tape, {.unit = rule}).beta_x == 3.0);
    REQUIRE_THROWS_WITH(
        ops::stated_factors("f", unit.tape, {}),
        "f: no rule for scaling 'unit'; state its factors with {.unit = UnitRule{.alpha = a, .beta_x = b}}");
    REQUIRE_THROWS_WITH(ops::effective_factors("f", unit.tape, ops::UnitRule{.alpha = 1.0, .beta_x = -2.0}, {}),
                        "f: unit rule {1, -2}; expected positive factors");
    REQUIRE_THROWS_WITH(
        ops::effective_factors("f", unit.tape, ops::UnitRule{.alpha = std::numeric_limits<double>::infinity()}, {}),
        "f: unit rule {inf, 1}; expected positive factors");
}

TEST_CASE("unary ops of one's own propagate scales") {
    const auto wide = [](auto&, auto& v) { return curve(v[0], {}); };
    const auto pointwise = [](auto&, auto& v) {
        return ops::record_pointwise("square", v[0], {}, kernels::SquareFunction{});
    };
    const auto apart = [](auto&, auto& v) {
        const double s = v[0].scaled().scale();
        return ops::record_pointwise("square", v[0], {}, {.value = s * s, .slope = s}, kernels::SquareFunction{});
    };
    const auto root = [](auto&, auto& v) { return ops::record_pointwise("sqrt", v[0], {}, kernels::SqrtFunction{}); };
    const auto activation = [](auto&, auto& v) {
        return ops::record_unary(
            "gate", v[0], ops::UnitRule{}, ops::UnaryScale::activation,
            [](const Execution&, const double* x, double* y, std::ptrdiff_t n, double alpha, double s) {
                for (std::ptrdiff_t i = 0; i < n; ++i) y[i] = alpha * x[i] * std::exp(s * x[i]);
            },
            [](const Execution&, const double* x, const double* dy, double* dx, std::ptrdiff_t n, double beta,
               double s) {
                for (std::ptrdiff_t i = 0; i < n; ++i) dx[i] = beta * dy[i] * std::exp(s * x[i]) * (1.0 + s * x[i]);
            });
    };
    test::check_propagate({{3, 7}}, wide);
    test::check_propagate({{3, 7}}, pointwise);
    test::check_propagate({{3, 7}}, apart);
    test::check_propagate({{3, 7}}, activation);
    test::check_propagate_at(test::positive_inputs({{3, 7}}), root);
    CHECK(test::propagated_scales({{3, 7}}, {8.0}, wide, 0.25) == std::vector{1.0, 0.25});
    CHECK(test::propagated_scales({{3, 7}}, {8.0}, pointwise, 0.25) == std::vector{1.0, 0.25});
    CHECK(test::propagated_scales({{3, 7}}, {8.0}, apart, 0.25) == std::vector{64.0, 2.0});
    CHECK(test::propagated_scales({{3, 7}}, {8.0}, activation, 0.25) == std::vector{8.0, 0.25});
    CHECK(test::propagated_scales({{3, 7}}, {0x1p70}, apart, 0x1p100) == std::vector{0x1p127, 0x1p127});
}
