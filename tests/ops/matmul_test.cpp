// SPDX-License-Identifier: MIT
#include <unitscale/ops/add.hpp>
#include <unitscale/ops/matmul.hpp>

#include "support/op_checks.hpp"

#include <array>
#include <cmath>
#include <optional>
#include <vector>

using namespace unitscale;

namespace {
const auto joined_op = [](auto&, auto& v) { return ops::matmul(v[0], v[1]); };
const auto free_matmul = [](auto&, auto& v) { return ops::matmul(v[0], v[1], {.constraint = Constraint::none}); };
}  // namespace

TEST_CASE("matmul: gradient, factors and value") {
    const double alpha = std::sqrt(1.0 / 5);
    test::check_gradient_and_factors({{3, 5}, {5, 4}}, joined_op, alpha, {alpha, alpha});
    test::check_gradient_and_factors({{3, 5}, {5, 4}}, free_matmul, alpha, {std::sqrt(1.0 / 4), std::sqrt(1.0 / 3)});
    // If every batch item has a w of its own, its gradient sums m terms. The gradient of a shared w sums all left rows.
    test::check_gradient_and_factors({{2, 3, 5}, {2, 5, 4}}, free_matmul, alpha,
                                     {std::sqrt(1.0 / 4), std::sqrt(1.0 / 3)});
    test::check_gradient_and_factors({{2, 3, 5}, {5, 4}}, free_matmul, alpha, {std::sqrt(1.0 / 4), std::sqrt(1.0 / 6)});
    test::check_gradient_and_factors({{1, 1}, {1, 1}}, joined_op, 1.0, {1.0, 1.0});
}

TEST_CASE("matmul: every constraint joins the factors by its rule") {
    const auto with = [](Constraint constraint) {
        return [constraint](auto&, auto& v) { return ops::matmul(v[0], v[1], {.constraint = constraint}); };
    };
    const double a = std::sqrt(1.0 / 5), b = std::sqrt(1.0 / 4), c = std::sqrt(1.0 / 3);
    const std::vector<Shape> shapes = {{3, 5}, {5, 4}};
    const double gmean = std::cbrt(a * b * c), hmean = 3.0 / (1 / a + 1 / b + 1 / c), amean = (a + b + c) / 3.0;
    test::check_gradient_and_factors(shapes, with(Constraint::gmean), gmean, {gmean, gmean});
    test::check_gradient_and_factors(shapes, with(Constraint::hmean), hmean, {hmean, hmean});
    test::check_gradient_and_factors(shapes, with(Constraint::amean), amean, {amean, amean});
    test::check_gradient_and_factors(shapes, with(Constraint::to_left_grad_scale), b, {b, b});
    test::check_gradient_and_factors(shapes, with(Constraint::to_right_grad_scale), c, {c, c});
    test::OpTape<double> t;
    REQUIRE_THROWS_WITH(
        ops::matmul(t.input({3, 5}), t.input({5, 4}), {.constraint = Constraint::to_grad_input_scale}),
        "matmul: constraint to_grad_input_scale needs an op with one constrained input, this one has 2");
}

TEST_CASE("matmul: stated factors stand in for the rule's, and a constraint joins them") {
    const auto with = [](const std::optional<Constraint>& constraint) {
        return [=](auto&, auto& v) {
            return ops::matmul(v[0], v[1],
                               {.unit = ops::Factors<2>{.alpha = 0.5, .betas = {4.0, 2.0}}, .constraint = constraint});
        };
    };
    const std::vector<Shape> shapes = {{3, 5}, {5, 4}};
    test::check_gradient_and_factors(shapes, with(Constraint::none), 0.5, {4.0, 2.0});
    test::check_gradient_and_factors(shapes, with({}), 0.5, {0.5, 0.5});
    const double gmean = std::cbrt(4.0);
    test::check_gradient_and_factors(shapes, with(Constraint::gmean), gmean, {gmean, gmean});
    test::check_propagate(shapes, with({}));
    test::OpTape<float> t;
    REQUIRE_THROWS_WITH(ops::matmul(t.input({3, 5}), t.input({5, 4}), {.unit = ops::Factors<2>{.betas = {1.0, 0.0}}}),
                        "matmul: beta is 0; expected a positive number");
}

TEST_CASE("matmul: unit scale") {
    test::check_unit_scale({{200, 300}, {300, 100}}, free_matmul, 1.0, {1.0, 1.0});
    test::check_unit_scale({{8, 40, 64}, {64, 100}}, free_matmul, 1.0, {1.0, 1.0});
}

TEST_CASE("matmul: no rows, columns, terms or batch give empty or zero tensors") {
    test::check_nothing({{0, 5}, {5, 4}}, joined_op, {0, 4});
    test::check_nothing({{3, 5}, {5, 0}}, joined_op, {3, 0});
    test::check_nothing({{3, 0}, {0, 4}}, free_matmul, {3, 4});
    test::check_nothing({{0, 3, 5}, {5, 4}}, joined_op, {0, 3, 4});
    test::check_nothing({{0, 3, 5}, {0, 5, 4}}, free_matmul, {0, 3, 4});
    test::check_nothing({{2, 0, 5}, {2, 5, 4}}, free_matmul, {2, 0, 4});
}

TEST_CASE("matmul: errors name the operands") {
    test::OpTape<float> t;
    REQUIRE_THROWS_WITH(ops::matmul(t.input({2, 3}), t.input({4, 5})),
                        "matmul: x [2,3] and w [4,5] do not contract: 3 != 4");
    REQUIRE_THROWS_WITH(ops::matmul(t.input({3}), t.input({3, 5})),
                        "matmul: x [3] and w [3,5] need at least two dimensions each");
    REQUIRE_THROWS_WITH(
        ops::matmul(t.input({2, 3, 4}), t.input({3, 4, 5})),
        "matmul: x [2,3,4] and w [3,4,5] have different batches; expected equal leading extents, or a w of rank 2");
    REQUIRE_THROWS_WITH(
        ops::matmul(t.input({3, 4}), t.input({2, 4, 5})),
        "matmul: x [3,4] and w [2,4,5] have different batches; expected equal leading extents, or a w of rank 2");
}

TEST_CASE("matmul: propagates scales") {
    test::check_propagate({{3, 5}, {5, 4}}, joined_op);
    test::check_propagate({{2, 3, 5}, {2, 5, 4}}, joined_op);
    test::check_propagate({{2, 3, 5}, {5, 4}}, free_matmul);
    test::check_propagate({{0, 3, 5}, {0, 5, 4}}, joined_op);
}

TEST_CASE("matmul: scales of the value and the gradients, by every rounding") {
    // k = 5, n = 7, 6 left rows. Both inputs and the output's gradient have scale 1.
    const auto scales = [](ScaleRounding rounding) {
        Recipe recipe = analysis::plain_recipe(Scaling::propagate);
        recipe.propagate.rounding = rounding;
        ScalingState state(1);
        Tape<double> tape(recipe, state);
        tape.begin_step({.retain = true});
        const auto x = tape.input(normal<double>({2, 3, 5}, {1, 1}), true),
                   w = tape.input(normal<double>({5, 7}, {1, 2}), true);
        const auto y = ops::matmul(x, w);
        tape.backward(analysis::project(y, normal<double>(y.shape(), {1, 3})));
        return std::array{y.scaled().scale(), x.gradient().scale(), w.gradient().scale()};
    };
    CHECK(scales(ScaleRounding::down) == std::array{2.0, 2.0, 2.0});
    CHECK(scales(ScaleRounding::up) == std::array{4.0, 4.0, 4.0});
    CHECK(scales(ScaleRounding::nearest) == std::array{2.0, 2.0, 2.0});
    const auto exact = scales(ScaleRounding::none);
    CHECK(exact[0] == Approx(std::sqrt(5.0)));
    CHECK(exact[1] == Approx(std::sqrt(7.0)));
    CHECK(exact[2] == Approx(std::sqrt(6.0)));
    for (const double scale : scales(ScaleRounding::stochastic)) CHECK((scale == 2.0 || scale == 4.0));
}

TEST_CASE("matmul: operands are rounded as data, kept codes too") {
    // With 64 terms and scales of powers of two, the data equals the numbers that the op rounds without scaling. So the
    // results agree exactly.
    const Quantiser eight{.format = e4m3};
    for (const bool retain : {true, false}) {
        const auto run = [&](Scaling scaling) {
            Recipe recipe = analysis::plain_recipe(scaling);
            recipe.products.push_back(
                {.kind = ProductKind::matmul, .formats = {.activation = eight, .gradient = eight}});
            ScalingState state(1);
            Tape<float> tape(recipe, state);
            tape.begin_step({.retain = retain});
            Parameter<float> px("x", {6, 64}, {}), pw("w", {64, 16}, {});
            fill_normal(px.write(), {1, 1});
            fill_normal(pw.write(), {1, 2});
            const auto x = tape.parameter(px), w = tape.parameter(pw);
            // Copies that only the product reads: without `retain` they are kept as codes.
            const Tensor<float> direction = normal<float>({6, 16}, {1, 3});
            const auto loss = analysis::project(ops::matmul(ops::add(x, x), ops::add(w, w)), direction);
            tape.backward(loss);
            return std::vector{value(px.gradient()), value(pw.gradient())};
        };
        const auto plain = run(Scaling::none), propagated = run(Scaling::propagate);
        for (const std::size_t i : {std::size_t{0}, std::size_t{1}})
            CHECK(analysis::relative_error(propagated[i], plain[i]) == 0.0);
    }
}
