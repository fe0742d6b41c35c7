// SPDX-License-Identifier: MIT
#include <unitscale/nn/operators.hpp>

#include "support/propagate_checks.hpp"

#include <numbers>
#include <string>
#include <vector>

using namespace unitscale;

namespace {
template <class T>
std::vector<T> data(const Variable<T>& x) {
    return {x.value().span().begin(), x.value().span().end()};
}
}  // namespace

TEST_CASE("operators: of two variables, a variable and a tensor, a variable and a number") {
    test::OpTape<float> t(Scaling::none);
    const auto x = t.tape.input(Tensor<float>({2}, {1.0f, 2.0f}), true),
               z = t.tape.input(Tensor<float>({2}, {3.0f, 5.0f}), true);
    const Tensor<float> c({2}, {10.0f, 20.0f});
    using Values = std::vector<float>;
    CHECK(data(x + z) == Values{4.0f, 7.0f});
    CHECK(data(x - z) == Values{-2.0f, -3.0f});
    CHECK(data(x * z) == Values{3.0f, 10.0f});
    CHECK(data(x + c) == Values{11.0f, 22.0f});
    CHECK(data(c + x) == Values{11.0f, 22.0f});
    CHECK(data(x - c) == Values{-9.0f, -18.0f});
    CHECK(data(c - x) == Values{9.0f, 18.0f});
    CHECK(data(x * c) == Values{10.0f, 40.0f});
    CHECK(data(c * x) == Values{10.0f, 40.0f});
    CHECK(data(x + 1) == Values{2.0f, 3.0f});
    CHECK(data(1.5 - x) == Values{0.5f, -0.5f});
    CHECK(data(x - 0.5f) == Values{0.5f, 1.5f});
    CHECK(data(2 * x) == Values{2.0f, 4.0f});
    CHECK(data(-x) == Values{-1.0f, -2.0f});
    CHECK(data(z / x) == Values{3.0f, 2.5f});
    CHECK(data(x / c) == Values{0.1f, 0.1f});
    CHECK(data(c / x) == Values{10.0f, 10.0f});
    CHECK(data(z / 3) == Values{1.0f, 5.0f / 3.0f});
    CHECK(data(1.0 / x) == Values{1.0f, 0.5f});
    CHECK_FALSE((2.0 * t.tape.input(Tensor<float>({1}, {1.0f}))).requires_gradient());
    CHECK_THROWS_WITH(x + t.input({3}), Catch::StartsWith("add: "));
    CHECK_THROWS_WITH(Variable<float>() * 2.0, Catch::StartsWith("mul: an empty Variable"));
}

TEST_CASE("operators: gradients, and the factors of their ops") {
    const double half = 1.0 / std::numbers::sqrt2;
    test::check_gradient_and_factors({{3, 4}, {3, 4}}, [](auto&, auto& v) { return v[0] + v[1]; }, half, {half, half});
    test::check_gradient_and_factors({{3, 4}, {3, 4}}, [](auto&, auto& v) { return v[0] - v[1]; }, half, {half, half});
    test::check_gradient_and_factors({{3, 4}, {3, 4}}, [](auto&, auto& v) { return v[0] * v[1]; }, 1.0, {1.0, 1.0});
    test::check_gradient_and_factors({{3, 4}}, [](auto&, auto& v) { return 2.0 - v[0]; }, 1.0, {1.0});
    test::check_gradient_and_factors({{3, 4}}, [](auto&, auto& v) { return -v[0]; }, 1.0, {1.0});
    test::check_propagate({{3, 4}, {3, 4}}, [](auto&, auto& v) { return 0.3 * v[0] - v[1] * 3.0; });
    test::check_gradient_and_factors({{3, 4}}, [](auto&, auto& v) { return v[0] / 3.0; }, 1.0, {1.0});
    test::check_propagate({{3, 4}}, [](auto&, auto& v) { return 0.3 / (v[0] / 1e-9 + 1.0); });
}

TEST_CASE("operators: under unit a quotient has a rule for a number below the line only") {
    test::OpTape<float> t;
    const auto x = t.input({3}), z = t.input({3}, 2);
    CHECK((x / 2.0).value()(1) == x.value()(1) / 2.0f);
    const std::string error =
        "div: no rule for scaling 'unit'; state its factors with {.unit = Factors<2>{.alpha = a, .betas = {b, ...}}}";
    CHECK_THROWS_WITH(x / z, error);
    CHECK_THROWS_WITH(1.0 / z, error);
    CHECK_THROWS_WITH(x / full<float>({3}, 2.0f), error);
}

TEST_CASE("operators: a number beside a small scale keeps the data in 16 bits") {
    test::OpTape<Half> t(Scaling::propagate);
    const auto x = test::scaled_input(t.tape, {3, 4}, 0x1p-40);
    CHECK((x + 0.0).scaled().scale() == 0x1p-40);
    const auto y = x * 1e-9;  // which is 0 in fp16
    CHECK(static_cast<double>(y.scaled()(0, 0)) * y.scaled().scale() ==
          Approx(static_cast<double>(x.scaled()(0, 0)) * 0x1p-40 * 1e-9).epsilon(0x1p-9));
}
