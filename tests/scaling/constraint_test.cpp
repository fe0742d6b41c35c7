// SPDX-License-Identifier: MIT
#include <unitscale/scaling/constraint.hpp>

#include "support/catch.hpp"

#include <array>
#include <cmath>
#include <string>
#include <vector>

using namespace unitscale;

namespace {

struct Three {
    double alpha, left, right;
};
Three constrained(Constraint constraint) {
    Three f{.alpha = 0.5, .left = 4.0, .right = 32.0};
    std::array betas = {f.left, f.right};
    constrain("op", constraint, f.alpha, betas);
    return {.alpha = f.alpha, .left = betas[0], .right = betas[1]};
}
void require_all(const Three& f, double value) {
    REQUIRE(f.alpha == Approx(value).epsilon(1e-14));
    REQUIRE(f.left == f.alpha);
    REQUIRE(f.right == f.alpha);
}

}  // namespace

TEST_CASE("the constraint none leaves every factor as it is") {
    const Three f = constrained(Constraint::none);
    REQUIRE(f.alpha == 0.5);
    REQUIRE(f.left == 4.0);
    REQUIRE(f.right == 32.0);
}

TEST_CASE("the means of the factors 1/2, 4 and 32") {
    require_all(constrained(Constraint::gmean), 4.0);  // (64)^(1/3)
    require_all(constrained(Constraint::hmean), 3.0 / (2.0 + 0.25 + 0.03125));
    require_all(constrained(Constraint::amean), 36.5 / 3.0);
}

TEST_CASE("rules that choose one of the factors") {
    require_all(constrained(Constraint::to_output_scale), 0.5);
    require_all(constrained(Constraint::to_left_grad_scale), 4.0);
    require_all(constrained(Constraint::to_right_grad_scale), 32.0);
    double alpha = 2.0;
    std::array betas = {8.0};
    constrain("op", Constraint::to_grad_input_scale, alpha, betas);
    REQUIRE(alpha == 8.0);
    REQUIRE(betas[0] == 8.0);
}

TEST_CASE("with one input the geometric mean is of two factors and the output's scale stays exact") {
    double alpha = 2.0;
    std::array betas = {8.0};
    constrain("op", Constraint::gmean, alpha, betas);
    REQUIRE(alpha == Approx(4.0).epsilon(1e-14));
    alpha = 0.1, betas = {8.0};
    constrain("op", Constraint::to_output_scale, alpha, betas);
    REQUIRE(alpha == 0.1);
    REQUIRE(betas[0] == 0.1);
}

TEST_CASE("the constraint automatic leaves every factor to the plan") {
    const Three f = constrained(Constraint::automatic);
    REQUIRE(f.alpha == 0.5);
    REQUIRE(f.left == 4.0);
    REQUIRE(f.right == 32.0);
}

TEST_CASE("any number of factors becomes one by a rule that does not tell inputs apart") {
    const std::array<double, 4> factors = {0.5, 4.0, 32.0, 1.0};
    REQUIRE(joined_factor("op", Constraint::to_output_scale, factors) == 0.5);
    REQUIRE(joined_factor("op", Constraint::gmean, factors) == Approx(std::sqrt(8.0)).epsilon(1e-14));
    REQUIRE(joined_factor("op", Constraint::hmean, factors) == Approx(4.0 / 3.28125).epsilon(1e-14));
    REQUIRE(joined_factor("op", Constraint::amean, factors) == Approx(37.5 / 4.0).epsilon(1e-14));
    const std::array<double, 1> alone = {0.1};
    for (const Constraint rule : {Constraint::to_output_scale, Constraint::gmean, Constraint::hmean, Constraint::amean})
        REQUIRE(joined_factor("op", rule, alone) == 0.1);
    REQUIRE_THROWS_WITH(
        joined_factor("add", Constraint::to_left_grad_scale, factors),
        "add: constraint to_left_grad_scale does not join any number of factors; expected to_output_scale, gmean, "
        "hmean or amean");
}

TEST_CASE("a rule for another number of inputs is an error that names op and rule") {
    double alpha = 1.0;
    std::array one = {1.0};
    std::array two = {1.0, 1.0};
    std::vector<double> nine(9, 1.0);
    REQUIRE_THROWS_WITH(constrain("sum", Constraint::gmean, alpha, nine),
                        "sum: a constraint joins 9 inputs; expected at most 8");
    REQUIRE_THROWS_WITH(
        constrain("matmul", Constraint::to_grad_input_scale, alpha, two),
        "matmul: constraint to_grad_input_scale needs an op with one constrained input, this one has 2");
    REQUIRE_THROWS_WITH(constrain("gelu", Constraint::to_left_grad_scale, alpha, one),
                        "gelu: constraint to_left_grad_scale needs an op with two constrained inputs, this one has 1");
    REQUIRE_THROWS_WITH(constrain("gelu", Constraint::to_right_grad_scale, alpha, one),
                        "gelu: constraint to_right_grad_scale needs an op with two constrained inputs, this one has 1");
}

TEST_CASE("constraints are found by their names, an unknown name lists them") {
    for (const auto constraint : {Constraint::automatic, Constraint::none, Constraint::gmean, Constraint::hmean,
                                  Constraint::amean, Constraint::to_output_scale, Constraint::to_grad_input_scale,
                                  Constraint::to_left_grad_scale, Constraint::to_right_grad_scale})
        REQUIRE(parse_constraint(name(constraint)) == constraint);
    REQUIRE(name(Constraint::hmean) == "hmean");
    REQUIRE_THROWS_WITH(
        parse_constraint("mean"),
        "constraint: unknown rule 'mean'; expected one of automatic, none, gmean, hmean, amean, to_output_scale, "
        "to_grad_input_scale, to_left_grad_scale, to_right_grad_scale");
}
