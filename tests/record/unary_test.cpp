// SPDX-License-Identifier: MIT
#include <unitscale/record/unary.hpp>

#include "support/propagate_checks.hpp"

#include <cmath>
#include <optional>
#include <string>
#include <vector>

using namespace unitscale;

namespace {
/// y = alpha (x^2 + 1): an op made of two kernels.
template <class T>
Variable<T> curve(Variable<T> x, const ops::Factors<1>& ideal = {}, std::optional<Constraint> constraint = {}) {
    auto op = ops::begin_op("curve", x);
    op.set_factors(ideal, constraint);
    return ops::record_unary<T>(
        op, ops::UnaryScale::plain,
        [](const Execution&, const T* from, T* y, std::ptrdiff_t n, Accum<T> alpha, Accum<T> s) {
            for (std::ptrdiff_t i = 0; i < n; ++i) y[i] = alpha * (s * from[i] * s * from[i] + T(1));
        },
        [](const Execution&, const T* from, const T* dy, T* dx, std::ptrdiff_t n, Accum<T> beta, Accum<T> s) {
            for (std::ptrdiff_t i = 0; i < n; ++i) dx[i] = beta * dy[i] * T(2) * s * from[i];
        });
}
const ops::Factors<1> rule{.alpha = 3.0, .betas = {0.5}};
}  // namespace

TEST_CASE("record_unary: kernels, factors and gradient of an op of one's own") {
    test::check_gradient_and_factors({{3, 7}}, [](auto&, auto& v) { return curve(v[0], rule, Constraint::none); }, 3.0,
                                     {0.5});
    test::check_gradient_and_factors({{2}}, [](auto&, auto& v) { return curve(v[0], rule); }, 3.0, {3.0});
    test::OpTape<double> t(Scaling::none);
    CHECK(curve(t.tape.input(Tensor<double>({1}, {3.0}))).item() == 10.0);
    CHECK(std::string(t.tape.node(0).op) == "curve");
}

TEST_CASE("record_pointwise: a function and its slope") {
    const auto f = [](auto&, auto& v) {
        auto op = ops::begin_op("square", v[0]);
        op.set_factors(rule, Constraint::none);
        return ops::record_pointwise(op, kernels::SquareFunction{});
    };
    test::check_gradient_and_factors({{4, 5}}, f, 3.0, {0.5});
    test::check_gradient_and_factors({{1}}, f, 3.0, {0.5});
    test::OpTape<float> t;
    test::check_nothing({{0, 2}}, f, {0, 2});
}

TEST_CASE("unary ops of one's own propagate scales") {
    const auto plain = [](auto&, auto& v) { return curve(v[0]); };
    const auto pointwise = [](auto&, auto& v) {
        auto op = ops::begin_op("square", v[0]);
        return ops::record_pointwise(op, kernels::SquareFunction{});
    };
    const auto apart = [](auto&, auto& v) {
        auto op = ops::begin_op("square", v[0]);
        const double s = op.input(0).scale();
        return ops::record_pointwise(op, ops::UnaryScales{.value = s * s, .slope = s}, kernels::SquareFunction{});
    };
    const auto root = [](auto&, auto& v) {
        auto op = ops::begin_op("sqrt", v[0]);
        return ops::record_pointwise(op, kernels::SqrtFunction{});
    };
    const auto activation = [](auto&, auto& v) {
        auto op = ops::begin_op("gate", v[0]);
        return ops::record_unary(
            op, ops::UnaryScale::activation,
            [](const Execution&, const double* x, double* y, std::ptrdiff_t n, double alpha, double s) {
                for (std::ptrdiff_t i = 0; i < n; ++i) y[i] = alpha * x[i] * std::exp(s * x[i]);
            },
            [](const Execution&, const double* x, const double* dy, double* dx, std::ptrdiff_t n, double beta,
               double s) {
                for (std::ptrdiff_t i = 0; i < n; ++i) dx[i] = beta * dy[i] * std::exp(s * x[i]) * (1.0 + s * x[i]);
            });
    };
    test::check_propagate({{3, 7}}, plain);
    test::check_propagate({{3, 7}}, pointwise);
    test::check_propagate({{3, 7}}, apart);
    test::check_propagate({{3, 7}}, activation);
    test::check_propagate_at(test::positive_inputs({{3, 7}}), root);
    CHECK(test::propagated_scales({{3, 7}}, {8.0}, plain, 0.25) == std::vector{1.0, 0.25});
    CHECK(test::propagated_scales({{3, 7}}, {8.0}, pointwise, 0.25) == std::vector{1.0, 0.25});
    CHECK(test::propagated_scales({{3, 7}}, {8.0}, apart, 0.25) == std::vector{64.0, 2.0});
    CHECK(test::propagated_scales({{3, 7}}, {8.0}, activation, 0.25) == std::vector{8.0, 0.25});
    CHECK(test::propagated_scales({{3, 7}}, {0x1p70}, apart, 0x1p100) == std::vector{0x1p127, 0x1p127});
}
