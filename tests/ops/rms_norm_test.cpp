// SPDX-License-Identifier: MIT
#include <unitscale/ops/rms_norm.hpp>

#include "support/op_checks.hpp"

#include <cmath>

using namespace unitscale;

namespace {
const auto plain = [](auto&, auto& v) { return ops::rms_norm(v[0]); };
const auto with_gain = [](auto&, auto& v) { return ops::rms_norm(v[0], std::optional(v[1])); };
}  // namespace

TEST_CASE("rms_norm: gradient, factors and value") {
    test::check_gradient_and_factors({{2, 3, 7}}, plain, 1.0, {1.0});
    test::check_gradient_and_factors({{2, 3, 7}, {7}}, with_gain, 1.0, {1.0, std::sqrt(1.0 / 6)});
}

TEST_CASE("rms_norm: unit scale") {
    test::check_unit_scale({{300, 200}}, plain, 1.0, {1.0}, 0.02);
    const std::vector<Tensor<double>> inputs = {normal<double>({300, 200}, {1, 1}), full<double>({200}, 1.0)};
    const auto run = analysis::run_op<double>(analysis::plain_recipe(Scaling::unit), inputs, with_gain);
    CHECK(analysis::moments(run.gradients[1]).std == Approx(1.0).epsilon(0.12));
}

TEST_CASE("rms_norm: rows have a root mean square of 1, epsilon inside the root") {
    test::OpTape<double> t(Scaling::none);
    const auto x = t.tape.input(Tensor<double>({1, 2}, {3.0, 4.0}));
    CHECK(ops::rms_norm(x, {}, {.epsilon = 0.0}).value()(0, 0) == Approx(3.0 / std::sqrt(12.5)));
    CHECK(ops::rms_norm(x, {}, {.epsilon = 12.5}).value()(0, 1) == Approx(0.8));
}

TEST_CASE("rms_norm: no rows, and errors") {
    test::OpTape<float> t;
    CHECK(ops::rms_norm(t.input({0, 3})).value().shape() == Shape{0, 3});
    REQUIRE_THROWS_WITH(ops::rms_norm(t.input({2, 3}), std::optional(t.input({2}))),
                        "rms_norm: gain [2] does not fit x [2,3]; expected [3]");
}
