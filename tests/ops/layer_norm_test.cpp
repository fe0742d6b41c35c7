// SPDX-License-Identifier: MIT
#include <unitscale/ops/layer_norm.hpp>

#include "support/op_checks.hpp"

#include <cmath>

using namespace unitscale;

namespace {
const auto plain = [](auto&, auto& v) { return ops::layer_norm(v[0]); };
const auto full_norm = [](auto&, auto& v) { return ops::layer_norm(v[0], v[1], v[2]); };
const auto shift_only = [](auto&, auto& v) { return ops::layer_norm(v[0], {}, v[1]); };

/// Gains near 1 and shifts near 0, as trained ones are at first.
template <class T>
std::vector<Tensor<T>> inputs(std::size_t rows, std::size_t columns) {
    return {normal<T>({rows, columns}, {1, 1}), full<T>({columns}, T(1)), full<T>({columns}, T(0))};
}
}  // namespace

TEST_CASE("layer_norm: gradient, factors and value") {
    const double beta = std::sqrt(1.0 / 6);
    test::check_gradient_and_factors({{2, 3, 7}}, plain, 1.0, {1.0});
    test::check_gradient_and_factors({{2, 3, 7}, {7}, {7}}, full_norm, 1.0, {1.0, beta, beta});
    test::check_gradient_and_factors({{6, 7}, {7}}, shift_only, 1.0, {1.0, beta});
}

TEST_CASE("layer_norm: where few rows carry a gradient, they alone count in the factors of the vectors") {
    const double root = std::sqrt(0.5);
    const auto sparse = [](auto&, auto& v) { return ops::layer_norm(v[0], v[1], v[2], {.step_rows = 2}); };
    test::check_gradient_and_factors({{2, 3, 7}, {7}, {7}}, sparse, 1.0, {1.0, root, root});
}

TEST_CASE("layer_norm: unit scale") {
    const auto check_run = [](const auto& run) {
        CHECK(analysis::moments(run.value).std == Approx(1.0).epsilon(0.01));
        CHECK(analysis::moments(run.gradients[0]).std == Approx(1.0).epsilon(0.02));
        CHECK(analysis::moments(run.gradients[1]).std == Approx(1.0).epsilon(0.12));
        CHECK(analysis::moments(run.gradients[2]).std == Approx(1.0).epsilon(0.12));
    };
    const Recipe recipe = analysis::plain_recipe(Scaling::unit);
    check_run(analysis::run_op<double>(recipe, inputs<double>(300, 200), full_norm));
    check_run(analysis::run_op<float>(recipe, inputs<float>(300, 200), full_norm));
}

TEST_CASE("layer_norm: rows have mean 0 and variance 1, epsilon inside the root") {
    test::OpTape<double> t(Scaling::none);
    const auto x = t.tape.input(Tensor<double>({1, 2}, {1.0, 3.0}));
    CHECK(ops::layer_norm(x, {}, {}, {.epsilon = 0.0}).value()(0, 0) == Approx(-1.0));
    CHECK(ops::layer_norm(x, {}, {}, {.epsilon = 3.0}).value()(0, 1) == Approx(0.5));
}

TEST_CASE("layer_norm: no rows, and errors") {
    test::OpTape<float> t;
    test::check_nothing({{0, 3}, {3}, {3}}, full_norm, {0, 3});
    test::check_nothing({{2, 0, 3}}, plain, {2, 0, 3});
    CHECK(ops::layer_norm(t.input({2, 1})).value()(1, 0) == 0.0F);  // a row of one element is its own mean
    REQUIRE_THROWS_WITH(ops::layer_norm(t.input({})), "layer_norm: x has rank 0; expected at least one dimension");
    REQUIRE_THROWS_WITH(ops::layer_norm(t.input({2, 3}), {}, {}, {.epsilon = -1.0}),
                        "layer_norm: epsilon is -1; expected a finite number of at least 0");
    REQUIRE_THROWS_WITH(ops::layer_norm(t.input({2, 3}), std::optional(t.input({2}))),
                        "layer_norm: gain [2] does not fit x [2,3]; expected [3]");
    REQUIRE_THROWS_WITH(ops::layer_norm(t.input({2, 3}), {}, std::optional(t.input({3, 1}))),
                        "layer_norm: shift [3,1] does not fit x [2,3]; expected [3]");
    REQUIRE_THROWS_WITH(ops::layer_norm(t.input({2, 0})), "layer_norm: x [2,0] has no columns");
}

TEST_CASE("layer_norm: propagates scales") {
    test::check_propagate({{4, 6}}, [](auto&, auto& v) { return ops::layer_norm(v[0]); });
    test::check_propagate({{2, 4, 6}, {6}}, [](auto&, auto& v) { return ops::layer_norm(v[0], v[1]); });
    test::check_propagate({{4, 6}, {6}}, [](auto& tape, auto& v) {
        static_cast<void>(tape);
        return ops::layer_norm(v[0], {}, v[1]);
    });
    test::check_propagate({{4, 6}, {6}, {6}}, [](auto&, auto& v) { return ops::layer_norm(v[0], v[1], v[2]); });
}

TEST_CASE("layer_norm: its epsilon acts on data, or on values if the recipe says so") {
    const Tensor<double> x = normal<double>({3, 6}, {1, 1});
    const auto normed = [&](double scale, bool exact, double epsilon) {
        Recipe recipe = analysis::plain_recipe(Scaling::propagate);
        recipe.propagate.exact_norms = exact;
        ScalingState state(1);
        Tape<double> tape(recipe, state);
        tape.begin_step();
        Tensor<double> data = x;
        data.set_scale(scale);
        return Tensor<double>(ops::layer_norm(tape.input(std::move(data)), {}, {}, {.epsilon = epsilon}).value());
    };
    const Tensor<double> on_data = normed(1.0, false, 0.25);
    CHECK(analysis::relative_error(normed(0x1p-4, false, 0.25), on_data) == 0.0);
    CHECK(analysis::relative_error(normed(0x1p-4, true, 0.25 * 0x1p-8), on_data) == 0.0);
    CHECK(analysis::relative_error(normed(0x1p-4, true, 0.25), on_data) > 0.5);
}
