// SPDX-License-Identifier: MIT
#include <unitscale/ops/dropout.hpp>

#include "support/propagate_checks.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

using namespace unitscale;

namespace {
const auto quarter = [](auto&, auto& v) { return ops::dropout(v[0], {.p = 0.25}); };
}

TEST_CASE("dropout: gradient, factors and value") {
    test::check_gradient_and_factors({{20, 7}}, quarter, std::sqrt(0.75), {std::sqrt(0.75)});
    test::check_gradient_and_factors({{4}}, [](auto&, auto& v) { return ops::dropout(v[0], {.p = 0.0}); }, 1.0, {1.0});
    test::check_gradient_and_factors({{1}}, [](auto&, auto& v) { return ops::dropout(v[0], {.p = 0.0}); }, 1.0, {1.0});
}

TEST_CASE("dropout: unit scale") { test::check_unit_scale({{300, 200}}, quarter, 1.0, {1.0}); }

TEST_CASE("dropout: a share p of the elements is 0, the others are divided by 1 - p, the gradient has the same mask") {
    test::OpTape<double> t(Scaling::none);
    const auto x = t.tape.input(full<double>({10000}, 1.0), true);
    const auto y = ops::dropout(x, {.p = 0.25});
    t.tape.backward(analysis::project(y, full<double>({10000}, 1.0)));
    const auto dropped = std::count(y.value().span().begin(), y.value().span().end(), 0.0);
    CHECK(static_cast<double>(dropped) == Approx(2500.0).margin(5 * std::sqrt(10000 * 0.25 * 0.75)));
    for (std::size_t i = 0; i < 10000; ++i) {
        CHECK((y.value()(i) == 0.0 || y.value()(i) == Approx(4.0 / 3)));
        CHECK(x.gradient()(i) == y.value()(i));
    }
}

TEST_CASE("dropout: evaluation keeps every value and the factor") {
    test::OpTape<double> t(Scaling::unit, {.training = false, .retain = true});
    const auto x = t.input({50});
    const Tensor<double>& y = ops::dropout(x, {.p = 0.25}).value();
    for (std::size_t i = 0; i < 50; ++i) CHECK(y(i) == Approx(std::sqrt(0.75) * x.value()(i)).epsilon(1e-14));
}

TEST_CASE("dropout: masks differ by site, step and micro-batch, and repeat with the seed") {
    const auto mask = [](std::size_t site, std::size_t steps, std::size_t micro_batch) {
        const Recipe recipe = analysis::plain_recipe(Scaling::none);
        ScalingState state(7);
        Tape<double> tape(recipe, state);
        for (std::size_t i = 0; i < steps; ++i) tape.begin_step({.micro_batches = 2, .micro_batch = 0});
        if (micro_batch > 0) tape.begin_step({.micro_batches = 2, .micro_batch = micro_batch});
        const auto x = tape.input(full<double>({64}, 1.0));
        Variable<double> y = ops::dropout(x, {.p = 0.5});
        if (site > 0) y = ops::dropout(x, {.p = 0.5});
        return std::vector<double>(y.value().span().begin(), y.value().span().end());
    };
    CHECK(mask(0, 1, 0) == mask(0, 1, 0));
    CHECK(mask(0, 1, 0) != mask(1, 1, 0));
    CHECK(mask(0, 1, 0) != mask(0, 2, 0));
    CHECK(mask(0, 1, 0) != mask(0, 1, 1));
}

TEST_CASE("dropout: p outside [0,1) is an error") {
    test::OpTape<float> t;
    REQUIRE_THROWS_WITH(ops::dropout(t.input({2}), {.p = 1.0}), "dropout: p is 1; expected a number in [0,1)");
    REQUIRE_THROWS_WITH(ops::dropout(t.input({2}), {.p = -0.5}), "dropout: p is -0.5; expected a number in [0,1)");
    REQUIRE_THROWS_WITH(ops::dropout(t.input({2}), {.p = std::nan("")}),
                        "dropout: p is nan; expected a number in [0,1)");
    test::check_nothing({{0, 3}}, quarter, {0, 3});
}

TEST_CASE("dropout: propagates scales") {
    const auto keeping = [](double p) { return [p](auto&, auto& v) { return ops::dropout(v[0], {.p = p}); }; };
    test::check_propagate({{30, 4}}, keeping(0.25));
    test::check_propagate({{30, 4}}, keeping(0.9));
    CHECK(test::propagated_scales({{30, 4}}, {8.0}, keeping(0.25), 0.25) == std::vector{8.0, 0.25});
    CHECK(test::propagated_scales({{30, 4}}, {8.0}, keeping(0.9), 0.25) ==
          std::vector{16.0, 0.5});  // 10^1/2, rounded down to 2
    test::OpTape<double> t(Scaling::propagate, {.training = false});
    const auto x = test::scaled_input(t.tape, {30}, 8.0), y = ops::dropout(x, {.p = 0.9});
    CHECK(y.value()(3) == x.value()(3));
}
