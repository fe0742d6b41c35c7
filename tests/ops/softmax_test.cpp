// SPDX-License-Identifier: MIT
#include <unitscale/ops/softmax.hpp>

#include "support/op_checks.hpp"

#include <cmath>

using namespace unitscale;

namespace {
auto with(ops::SoftmaxOptions options) {
    return [=](auto&, auto& v) { return ops::softmax(v[0], options); };
}
}  // namespace

TEST_CASE("softmax: gradient, factors and value") {
    // m = 2: weight 1/2, so the geometric means of the limits 5, 5^1/2 and 5/2, (5/2)^1/2.
    test::check_gradient_and_factors({{2, 3, 5}}, with({.mult = 2.0, .constraint = Constraint::none}),
                                     std::pow(5.0, 0.75), {std::pow(2.5, 0.75)});
    // m = 1: weight 1/5. The recipe's rule sets beta = alpha.
    test::check_gradient_and_factors({{4, 5}}, with({}), std::pow(5.0, 0.9), {std::pow(5.0, 0.9)});
    test::check_gradient_and_factors({{4, 5}}, with({.constraint = Constraint::gmean}), std::pow(5.0, 0.9),
                                     {std::pow(5.0, 0.9)});
    test::check_gradient_and_factors(
        {{4, 5}}, with({.mult = 2.0, .rule = ops::SoftmaxRule::flat, .constraint = Constraint::none}), 5.0, {2.5});
    test::check_gradient_and_factors({{5}}, with({.factor_length = 16}), std::pow(16.0, 0.9), {std::pow(16.0, 0.9)});
}

TEST_CASE("softmax: stated factors stand in for the rule's, and a constraint joins them") {
    const ops::Factors<1> stated{.alpha = 3.0, .betas = {0.75}};
    test::check_gradient_and_factors(
        {{4, 5}}, with({.mult = 2.0, .factor_length = 16, .unit = stated, .constraint = Constraint::none}), 3.0,
        {0.75});
    test::check_gradient_and_factors({{4, 5}}, with({.unit = stated}), 3.0, {3.0});
    test::check_gradient_and_factors({{4, 5}}, with({.unit = stated, .constraint = Constraint::gmean}), 1.5, {1.5});
    test::check_propagate({{3, 7}}, with({.mult = 1.5, .unit = stated}));
    test::OpTape<float> t;
    REQUIRE_THROWS_WITH(ops::softmax(t.input({2, 3}), {.unit = ops::Factors<1>{.alpha = -1.0}}),
                        "softmax: alpha is -1; expected a positive number");
    // Under `propagate` alpha and beta are of data: m s_x p has the multiplier m s_x.
    test::OpTape<double> scaled(Scaling::propagate);
    const auto x = scaled.tape.input(set_scaling(normal<double>({4, 5}, {1, 1}), 0.25), true);
    const auto y = ops::softmax(x, {.unit = ops::Factors<1>{.alpha = 8.0, .betas = {2.0}}});
    CHECK(y.scaled().scale() == 0.125);
    scaled.tape.backward(analysis::project(y, normal<double>({4, 5}, {1, 2})));
    CHECK(x.gradient().scale() == 2.0);
}

TEST_CASE("softmax: the value is the softmax of m x along the last axis") {
    test::OpTape<double> t(Scaling::none);
    const auto x = t.tape.input(Tensor<double>({2, 2}, {0.0, 0.5 * std::log(3.0), 1e6, 1e6}));
    const Tensor<double>& y = ops::softmax(x, {.mult = 2.0}).value();
    CHECK(y(0, 0) == Approx(0.25));
    CHECK(y(0, 1) == Approx(0.75));
    CHECK(y(1, 0) == Approx(0.5));
    test::OpTape<double> unit;
    const auto flat = unit.tape.input(full<double>({1, 4}, 7.0));
    CHECK(ops::softmax(flat, {.rule = ops::SoftmaxRule::flat}).value()(0, 3) == Approx(1.0));
}

TEST_CASE("softmax: unit root mean square, as far as the fit goes") {
    const auto rms = [](double m, std::size_t s, ops::SoftmaxRule rule) {
        const auto report =
            analysis::scale_check<float>({{200, s}}, with({.mult = m, .rule = rule, .constraint = Constraint::none}));
        return std::pair(report.value.rms, report.gradients[0].rms);
    };
    for (const std::size_t s : {std::size_t{16}, std::size_t{128}, std::size_t{512}})
        for (const double m : {0.125, 0.25, 1.0, 4.0, 16.0}) {
            INFO("s = " << s << ", m = " << m);
            const auto [value, gradient] = rms(m, s, ops::SoftmaxRule::fitted);
            const double tolerance = m < 1.0 ? 0.05 : 0.3;  // between the limits the fit is rough: 0.7 to 1.15
            CHECK(value == Approx(1.0).epsilon(tolerance));
            CHECK(gradient == Approx(1.0).epsilon(tolerance));
        }
    const auto [value, gradient] = rms(1.0, 1000, ops::SoftmaxRule::flat);
    CHECK(value == Approx(std::exp(0.5)).epsilon(0.03));  // s p = exp(x - 1/2): mean square e
    CHECK(gradient == Approx(std::exp(0.5)).epsilon(0.03));
}

TEST_CASE("softmax: one element per row is the factor; no rows and no elements give empty tensors") {
    test::OpTape<float> t(Scaling::none);
    CHECK(ops::softmax(t.input({3, 1})).value()(2, 0) == 1.0F);
    for (const Shape& shape : {Shape{0, 5}, Shape{3, 0}, Shape{0}}) test::check_nothing({shape}, with({}), shape);
    CHECK(ops::softmax_unit_factors(1.0, 0, ops::SoftmaxRule::fitted).alpha == 1.0);
}

TEST_CASE("softmax: errors name the argument") {
    test::OpTape<float> t;
    REQUIRE_THROWS_WITH(ops::softmax(t.input({2, 3}), {.mult = 0.0}), "softmax: mult is 0; expected a positive number");
    REQUIRE_THROWS_WITH(ops::softmax(t.input({})), "softmax: x has rank 0; expected at least one dimension");
    REQUIRE_THROWS_WITH(
        ops::softmax(t.input({2, 3}), {.constraint = Constraint::to_left_grad_scale}),
        "softmax: constraint to_left_grad_scale needs an op with two constrained inputs, this one has 1");
}

TEST_CASE("softmax: propagates scales") {
    test::check_propagate({{3, 7}}, [](auto&, auto& v) { return ops::softmax(v[0], {.mult = 1.5}); });
    test::check_propagate({{2, 3, 5}},
                          [](auto&, auto& v) { return ops::softmax(v[0], {.rule = ops::SoftmaxRule::flat}); });
    test::OpTape<double> t(Scaling::propagate);
    const auto x = t.tape.input(set_scaling(normal<double>({50, 64}, {1, 1}, 0.001), 0x1p-10), true);
    const auto y = ops::softmax(x);
    CHECK(y.scaled().scale() == 1.0 / 64);  // flat probabilities: the factor is 64, and the data is about 1
    CHECK(y.scaled().data()[0] == Approx(1.0).epsilon(0.01));
    t.tape.backward(analysis::project(y, normal<double>({50, 64}, {1, 2})));
    CHECK(x.gradient().scale() == 1.0 / 64);
}
