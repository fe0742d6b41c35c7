// SPDX-License-Identifier: MIT
#include <unitscale/ops/pow.hpp>

#include "support/propagate_checks.hpp"

#include <cmath>
#include <limits>
#include <vector>

using namespace unitscale;

TEST_CASE("pow: gradient and value with stated factors; without any an error under scaling 'unit'") {
    test::check_stated_factors("pow",
                               [](auto x, const ops::UnruledOptions& options) { return ops::pow(x, 2.5, options); });
}

TEST_CASE("pow: values and the edges of its domain") {
    test::OpTape<float> t(Scaling::none);
    const float infinity = std::numeric_limits<float>::infinity();
    const auto x = t.tape.input(Tensor<float>({4}, {4.0f, 0.0f, -1.0f, infinity}), true);
    const auto y = ops::pow(x, 2.5);
    CHECK(y.value()(0) == Approx(32.0f));
    CHECK(y.value()(1) == 0.0f);
    CHECK(std::isnan(y.value()(2)));
    CHECK(y.value()(3) == infinity);
    t.tape.backward(analysis::project(y, full<float>({4}, 2.0f)));
    CHECK(x.gradient()(0) == Approx(40.0f));
    CHECK(x.gradient()(1) == 0.0f);
}

TEST_CASE("pow: whole exponents take negative numbers") {
    for (const double p : {2.0, 3.0, 1.0, -1.0}) {
        const auto f = [=](auto&, auto& v) {
            return ops::pow(v[0], p, {.unit = ops::Factors<1>{.alpha = 3.0, .betas = {0.5}}});
        };
        test::check_gradient_and_factors_at({Tensor<double>({3}, {-1.5, -0.5, 2.0})}, f, 3.0, {3.0});
    }
    test::OpTape<double> t(Scaling::none);
    CHECK(ops::pow(t.tape.input(Tensor<double>({1}, {-3.0})), 3.0).item() == Approx(-27.0));
    CHECK(ops::pow(t.tape.input(Tensor<double>({1}, {-3.0})), 2.0).item() == 9.0);
}

TEST_CASE("pow: unit scale of a square with the factors 2^-1/2 and 1/2") {
    const auto square = [](auto&, auto& v) {
        return ops::pow(
            v[0], 2.0,
            {.unit = ops::Factors<1>{.alpha = std::sqrt(0.5), .betas = {0.5}}, .constraint = Constraint::none});
    };
    test::check_unit_scale({{1000, 50}}, square, 1.0, {1.0});
}

TEST_CASE("pow: exponents that are an error") {
    test::OpTape<float> t(Scaling::none);
    REQUIRE_THROWS_WITH(ops::pow(t.input({2}), 0.0), "pow: exponent is 0; expected a finite number other than 0");
    REQUIRE_THROWS_WITH(ops::pow(t.input({2}), std::numeric_limits<double>::infinity()),
                        "pow: exponent is inf; expected a finite number other than 0");
}

TEST_CASE("pow: propagates scales through whole powers") {
    const auto power = [](double p) { return [p](auto&, auto& v) { return ops::pow(v[0], p); }; };
    for (const double p : {2.0, 3.0, -1.0, -2.0}) test::check_propagate({{3, 7}}, power(p), 1e-11);
    test::check_propagate_at(test::positive_inputs({{3, 7}}), power(2.5));
    CHECK(test::propagated_scales({{3, 7}}, {8.0}, power(2.0), 0.25) == std::vector{64.0, 2.0});
    CHECK(test::propagated_scales({{3, 7}}, {8.0}, power(-1.0), 0.25) == std::vector{0.125, 0x1p-8});
    CHECK(test::propagated_scales({{3, 7}}, {8.0}, power(2.5), 0.25) == std::vector{1.0, 0.25});
    CHECK(test::propagated_scales({{3, 7}}, {0x1p100}, power(2.0)) == std::vector{0x1p127, 0x1p100});
    CHECK(test::propagated_scales({{3, 7}}, {0x1p100}, power(20.0)) == std::vector{1.0, 1.0});  // 2^2000: plain numbers
    test::OpTape<float> t(Scaling::propagate);
    Tensor<float> x({2}, {0.0f, 0x1p-20f});
    x.set_scale(0x1p80);
    const auto y = ops::pow(t.tape.input(std::move(x)), 3.0);  // 2^240 is no scale: 2^127, with 2^113 in the data
    CHECK(y.scaled().scale() == 0x1p127);
    CHECK(y.scaled()(0) == 0.0f);
    CHECK(y.scaled()(1) == 0x1p53f);
}
