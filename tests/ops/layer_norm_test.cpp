// SPDX-License-Identifier: MIT
#include <unitscale/ops/layer_norm.hpp>

#include "support/op_checks.hpp"

#include <cmath>

using namespace unitscale;

namespace {
const auto plain = [](auto&, auto& v) { return ops::layer_norm(v[0]); };
const auto full_norm = [](auto&, auto& v) { return ops::layer_norm(v[0], std::optional(v[1]), std::optional(v[2])); };
const auto shift_only = [](auto&, auto& v) { return ops::layer_norm(v[0], {}, std::optional(v[1])); };

/// Gains near 1 and shifts near 0, as trained ones are at first.
std::vector<Tensor<double>> inputs(std::size_t rows, std::size_t columns) {
    return {normal<double>({rows, columns}, {1, 1}), full<double>({columns}, 1.0), full<double>({columns}, 0.0)};
}
}  // namespace

TEST_CASE("layer_norm: gradient, factors and value") {
    const double beta = std::sqrt(1.0 / 6);
    test::check_gradient_and_factors({{2, 3, 7}}, plain, 1.0, {1.0});
    test::check_gradient_and_factors({{2, 3, 7}, {7}, {7}}, full_norm, 1.0, {1.0, beta, beta});
    test::check_gradient_and_factors({{6, 7}, {7}}, shift_only, 1.0, {1.0, beta});
}

TEST_CASE("layer_norm: unit scale") {
    const auto run = analysis::run_op<double>(analysis::plain_recipe(Scaling::unit), inputs(300, 200), full_norm);
    CHECK(analysis::moments(run.value).std == Approx(1.0).epsilon(0.01));
    CHECK(analysis::moments(run.gradients[0]).std == Approx(1.0).epsilon(0.02));
    CHECK(analysis::moments(run.gradients[1]).std == Approx(1.0).epsilon(0.12));
    CHECK(analysis::moments(run.gradients[2]).std == Approx(1.0).epsilon(0.12));
}

TEST_CASE("layer_norm: rows have mean 0 and variance 1, epsilon inside the root") {
    test::OpTape<double> t(Scaling::none);
    const auto x = t.tape.input(Tensor<double>({1, 2}, {1.0, 3.0}));
    CHECK(ops::layer_norm(x, {}, {}, {.epsilon = 0.0}).value()(0, 0) == Approx(-1.0));
    CHECK(ops::layer_norm(x, {}, {}, {.epsilon = 3.0}).value()(0, 1) == Approx(0.5));
}

TEST_CASE("layer_norm: no rows, and errors") {
    test::OpTape<float> t;
    CHECK(ops::layer_norm(t.input({0, 3})).value().shape() == Shape{0, 3});
    REQUIRE_THROWS_WITH(ops::layer_norm(t.input({2, 3}), std::optional(t.input({2}))),
                        "layer_norm: gain [2] does not fit x [2,3]; expected [3]");
    REQUIRE_THROWS_WITH(ops::layer_norm(t.input({2, 3}), {}, std::optional(t.input({3, 1}))),
                        "layer_norm: shift [3,1] does not fit x [2,3]; expected [3]");
    REQUIRE_THROWS_WITH(ops::layer_norm(t.input({2, 0})), "layer_norm: x [2,0] has no columns");
}
