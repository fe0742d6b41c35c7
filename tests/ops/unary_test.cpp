// SPDX-License-Identifier: MIT
#include <unitscale/ops/unary.hpp>

#include "support/op_checks.hpp"

#include <limits>
#include <string>
#include <vector>

using namespace unitscale;

namespace {
/// y = alpha (x^2 + 1): an op made of two kernels.
template <class T>
Variable<T> curve(Variable<T> x, const ops::UnitRule& factors) {
    return ops::record_unary<T>(
        "curve", x, factors,
        [](const Execution&, const T* from, T* y, std::ptrdiff_t n, Accum<T> alpha) {
            for (std::ptrdiff_t i = 0; i < n; ++i) y[i] = alpha * (from[i] * from[i] + T(1));
        },
        [](const Execution&, const T* from, const T* dy, T* dx, std::ptrdiff_t n, Accum<T> beta) {
            for (std::ptrdiff_t i = 0; i < n; ++i) dx[i] = beta * dy[i] * T(2) * from[i];
        });
}
const ops::UnitRule rule{.alpha = 3.0, .beta_x = 0.5};
}  // namespace

TEST_CASE("record_unary: kernels, factors and gradient of an op of one's own") {
    test::check_gradient_and_factors(
        {{3, 7}}, [](auto& tape, auto& v) { return curve(v[0], ops::effective_factors("curve", tape, rule, Constraint::none)); },
        3.0, {0.5});
    test::check_gradient_and_factors(
        {{2}}, [](auto& tape, auto& v) { return curve(v[0], ops::effective_factors("curve", tape, rule, {})); }, 3.0, {3.0});
    test::OpTape<double> t(Scaling::none);
    CHECK(curve(t.tape.input(Tensor<double>({1}, {3.0})), {}).item() == 10.0);
    CHECK(std::string(t.tape.node(0).op) == "curve");
}

TEST_CASE("record_pointwise: a function and its slope") {
    const auto f = [](auto& tape, auto& v) {
        return ops::record_pointwise("square", v[0],
                                     ops::stated_factors("square", tape, {.unit = rule, .constraint = Constraint::none}),
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
    REQUIRE_THROWS_WITH(ops::stated_factors("f", unit.tape, {}),
                        "f: no rule for scaling 'unit'; state its factors with {.unit = UnitRule{.alpha = a, .beta_x = b}}");
    REQUIRE_THROWS_WITH(ops::effective_factors("f", unit.tape, {.alpha = 1.0, .beta_x = -2.0}, {}),
                        "f: unit rule {1, -2}; expected positive factors");
    REQUIRE_THROWS_WITH(ops::effective_factors("f", unit.tape, {.alpha = std::numeric_limits<double>::infinity()}, {}),
                        "f: unit rule {inf, 1}; expected positive factors");
}
