// SPDX-License-Identifier: MIT
#include <unitscale/ops/matmul.hpp>

#include "support/op_checks.hpp"

#include <cmath>

using namespace unitscale;

namespace {
const auto joined = [](auto&, auto& v) { return ops::matmul(v[0], v[1]); };
const auto free_matmul = [](auto&, auto& v) { return ops::matmul(v[0], v[1], {.constraint = Constraint::none}); };
}  // namespace

TEST_CASE("matmul: gradient, factors and value") {
    const double alpha = std::sqrt(1.0 / 5);
    test::check_gradient_and_factors({{3, 5}, {5, 4}}, joined, alpha, {alpha, alpha});
    test::check_gradient_and_factors({{3, 5}, {5, 4}}, free_matmul, alpha, {std::sqrt(1.0 / 4), std::sqrt(1.0 / 3)});
    // A w of each item's own sums m terms; a shared one all left rows.
    test::check_gradient_and_factors({{2, 3, 5}, {2, 5, 4}}, free_matmul, alpha, {std::sqrt(1.0 / 4), std::sqrt(1.0 / 3)});
    test::check_gradient_and_factors({{2, 3, 5}, {5, 4}}, free_matmul, alpha, {std::sqrt(1.0 / 4), std::sqrt(1.0 / 6)});
    test::check_gradient_and_factors({{1, 1}, {1, 1}}, joined, 1.0, {1.0, 1.0});
}

TEST_CASE("matmul: every constraint joins the factors as it says") {
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
    REQUIRE_THROWS_WITH(ops::matmul(t.input({3, 5}), t.input({5, 4}), {.constraint = Constraint::to_grad_input_scale}),
                        "matmul: constraint to_grad_input_scale needs an op with one constrained input, this one has 2");
}

TEST_CASE("matmul: unit scale") {
    test::check_unit_scale({{200, 300}, {300, 100}}, free_matmul, 1.0, {1.0, 1.0});
    test::check_unit_scale({{8, 40, 64}, {64, 100}}, free_matmul, 1.0, {1.0, 1.0});
}

TEST_CASE("matmul: no rows, columns, terms or batch give empty or zero tensors") {
    test::check_nothing({{0, 5}, {5, 4}}, joined, {0, 4});
    test::check_nothing({{3, 5}, {5, 0}}, joined, {3, 0});
    test::check_nothing({{3, 0}, {0, 4}}, free_matmul, {3, 4});
    test::check_nothing({{0, 3, 5}, {5, 4}}, joined, {0, 3, 4});
    test::check_nothing({{0, 3, 5}, {0, 5, 4}}, free_matmul, {0, 3, 4});
    test::check_nothing({{2, 0, 5}, {2, 5, 4}}, free_matmul, {2, 0, 4});
}

TEST_CASE("matmul: errors name the operands") {
    test::OpTape<float> t;
    REQUIRE_THROWS_WITH(ops::matmul(t.input({2, 3}), t.input({4, 5})), "matmul: x [2,3] and w [4,5] do not contract: 3 != 4");
    REQUIRE_THROWS_WITH(ops::matmul(t.input({3}), t.input({3, 5})),
                        "matmul: x [3] and w [3,5] need at least two dimensions each");
    REQUIRE_THROWS_WITH(
        ops::matmul(t.input({2, 3, 4}), t.input({3, 4, 5})),
        "matmul: x [2,3,4] and w [3,4,5] have different batches; expected the same leading extents, or a w of rank 2");
    REQUIRE_THROWS_WITH(
        ops::matmul(t.input({3, 4}), t.input({2, 4, 5})),
        "matmul: x [3,4] and w [2,4,5] have different batches; expected the same leading extents, or a w of rank 2");
}
