// SPDX-License-Identifier: MIT
#include <unitscale/ops/readout.hpp>

#include "support/op_checks.hpp"

#include <cmath>

using namespace unitscale;

namespace {
const auto plain = [](auto&, auto& v) { return ops::readout(v[0], v[1]); };
const auto flat = [](auto&, auto& v) { return ops::readout(v[0], v[1], {.exponent = 0.5}); };
const auto tied = [](auto&, auto& v) { return ops::readout(v[0], v[1], {.constraint = Constraint::to_output_scale}); };
}  // namespace

TEST_CASE("readout: gradient, factors and value") {
    test::check_gradient_and_factors({{2, 3, 5}, {4, 5}}, plain, 1.0 / 5, {std::sqrt(1.0 / 4), std::sqrt(1.0 / 6)});
    test::check_gradient_and_factors({{6, 5}, {4, 5}}, flat, std::sqrt(1.0 / 5),
                                     {std::sqrt(1.0 / 4), std::sqrt(1.0 / 6)});
    test::check_gradient_and_factors({{6, 5}, {4, 5}}, tied, 1.0 / 5, {1.0 / 5, std::sqrt(1.0 / 6)});
}

TEST_CASE("readout: logits start at width^-1/2 by design under u-µP and at 1 under Unit Scaling, gradients at 1") {
    test::check_unit_scale({{400, 100}, {200, 100}}, plain, 0.1, {1.0, 1.0});
    test::check_unit_scale({{400, 100}, {200, 100}}, flat, 1.0, {1.0, 1.0});
}

TEST_CASE("readout: its products are of their own kind") {
    Recipe recipe = analysis::plain_recipe(Scaling::unit);
    recipe.products.push_back({.kind = ProductKind::linear, .formats = {.activation = Quantiser{.format = e2m1}}});
    const auto inputs = test::normal_inputs<float>({{3, 8}, {4, 8}});
    const auto untouched = analysis::run_op<float>(analysis::plain_recipe(Scaling::unit), inputs, plain);
    CHECK(analysis::relative_error(analysis::run_op<float>(recipe, inputs, plain).value, untouched.value) == 0.0);
    recipe.products.push_back({.kind = ProductKind::readout, .formats = {.activation = Quantiser{.format = e2m1}}});
    CHECK(analysis::relative_error(analysis::run_op<float>(recipe, inputs, plain).value, untouched.value) > 0.01);
}

TEST_CASE("readout: a bias stands inside alpha, with the gradient of a linear layer's") {
    const auto biased = [](auto&, auto& v) { return ops::readout(v[0], v[1], v[2], {.exponent = 1.0}); };
    test::check_gradient_and_factors({{3, 8}, {4, 8}, {4}}, biased, 1.0 / 8.0,
                                     {0.5, std::sqrt(1.0 / 3), std::sqrt(1.0 / 3)});
    test::check_propagate({{6, 5}, {4, 5}, {4}}, [](auto&, auto& v) { return ops::readout(v[0], v[1], v[2]); });
    test::OpTape<float> t;
    REQUIRE_THROWS_WITH(ops::readout(t.input({2, 3}), t.input({4, 3}), t.input({3})),
                        "readout: bias [3] does not fit weight [4,3]; expected [4]");
}

TEST_CASE("readout: one element; no rows, inputs or outputs give empty or zero tensors") {
    test::check_gradient_and_factors({{1, 1}, {1, 1}}, plain, 1.0, {1.0, 1.0});
    test::check_nothing({{0, 5}, {4, 5}}, plain, {0, 4});
    test::check_nothing({{3, 0}, {4, 0}}, plain, {3, 4});
    test::check_nothing({{3, 5}, {0, 5}}, flat, {3, 0});
}

TEST_CASE("readout: errors name the op") {
    test::OpTape<float> t;
    REQUIRE_THROWS_WITH(ops::readout(t.input({2, 3}), t.input({4, 3}), {.exponent = std::nan("")}),
                        "readout: exponent is nan; expected a finite number");
    REQUIRE_THROWS_WITH(
        ops::readout(t.input({2, 3}), t.input({4, 3}), {.constraint = Constraint::to_left_grad_scale}),
        "readout: constraint to_left_grad_scale needs an op with two constrained inputs, this one has 1");
    REQUIRE_THROWS_WITH(ops::readout(t.input({2, 3}), t.input({4, 5})),
                        "readout: x [2,3] and weight [4,5] do not contract: 3 != 5");
}

TEST_CASE("readout: a number of rows with a gradient sets the factor of the weight") {
    const auto sparse = [](auto&, auto& v) { return ops::readout(v[0], v[1], {.exponent = 0.5, .step_rows = 2}); };
    test::check_gradient_and_factors({{6, 5}, {4, 5}}, sparse, std::sqrt(1.0 / 5),
                                     {std::sqrt(1.0 / 4), std::sqrt(1.0 / 2)});
}

TEST_CASE("readout: propagates scales, of the textbook product whatever the exponent") {
    test::check_propagate({{2, 3, 5}, {4, 5}}, plain);
    test::check_propagate({{6, 5}, {4, 5}}, flat);
    test::OpTape<double> t(Scaling::propagate);
    const auto y = ops::readout(t.input({3, 64}), t.input({4, 64}, 2), {.exponent = 1.0});
    CHECK(y.scaled().scale() == 8.0);
}
