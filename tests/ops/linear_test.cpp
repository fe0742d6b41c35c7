// SPDX-License-Identifier: MIT
#include <unitscale/ops/linear.hpp>

#include "support/op_checks.hpp"

#include <cmath>

using namespace unitscale;

namespace {
const auto free_linear = [](auto&, auto& v) { return ops::linear(v[0], v[1], {.constraint = Constraint::none}); };
const auto with_bias = [](auto&, auto& v) { return ops::linear(v[0], v[1], std::optional(v[2])); };
}  // namespace

TEST_CASE("linear: gradient, factors and value") {
    test::check_gradient_and_factors({{2, 3, 5}, {4, 5}}, free_linear, std::sqrt(1.0 / 5),
                                     {std::sqrt(1.0 / 4), std::sqrt(1.0 / 6)});
    // The recipe's rule, to_output_scale: beta_x becomes alpha; weight and bias stay free.
    test::check_gradient_and_factors({{2, 3, 5}, {4, 5}, {4}}, with_bias, std::sqrt(1.0 / 5),
                                     {std::sqrt(1.0 / 5), std::sqrt(1.0 / 6), std::sqrt(1.0 / 6)});
    test::check_gradient_and_factors({{1, 1}, {1, 1}, {1}}, with_bias, 1.0, {1.0, 1.0, 1.0});
    const auto mean = [](auto&, auto& v) { return ops::linear(v[0], v[1], {.constraint = Constraint::gmean}); };
    test::check_gradient_and_factors({{6, 5}, {4, 5}}, mean, std::pow(20.0, -0.25),
                                     {std::pow(20.0, -0.25), std::sqrt(1.0 / 6)});
}

TEST_CASE("linear: unit scale") { test::check_unit_scale({{400, 128}, {200, 128}}, free_linear, 1.0, {1.0, 1.0}); }

TEST_CASE("linear: the value is x weight^T + bias") {
    test::OpTape<double> t(Scaling::none);
    const auto x = t.tape.input(Tensor<double>({1, 2}, {1, 2}));
    const auto w = t.tape.input(Tensor<double>({3, 2}, {1, 0, 0, 1, 3, 4}));
    const auto b = t.tape.input(Tensor<double>({3}, {10, 20, 30}));
    const Tensor<double>& y = ops::linear(x, w, std::optional(b)).value();
    CHECK(y.shape() == Shape{1, 3});
    CHECK(y(0, 0) == 11.0);
    CHECK(y(0, 1) == 22.0);
    CHECK(y(0, 2) == 41.0);
}

TEST_CASE("linear: the recipe's formats round the operands of all three products") {
    Recipe recipe = analysis::plain_recipe(Scaling::unit);
    const Quantiser activation{.format = e4m3}, weight{.format = e3m2}, gradient{.format = e5m2};
    recipe.products.push_back({.formats = {.activation = activation, .weight = weight, .gradient = gradient}});
    const std::vector<Tensor<float>> inputs = test::normal_inputs<float>({{6, 8}, {4, 8}, {4}});
    const Tensor<float> dy = normal<float>({6, 4}, {3, 3});
    const auto rounded = [](const Tensor<float>& tensor, const Quantiser& quantiser) {
        Tensor<float> result(tensor.shape());
        quantise(quantiser.format, tensor.span(), result.span());
        return result;
    };
    // The op without formats on operands rounded beforehand. Not to the bit: products of 8-bit operands may run on an
    // instruction that adds in another order.
    const Recipe plain = analysis::plain_recipe(Scaling::unit);
    const auto run = analysis::run_op<float>(recipe, inputs, with_bias, dy);
    const Tensor<float> x = rounded(inputs[0], activation), w = rounded(inputs[1], weight), g = rounded(dy, gradient);
    const auto forward = analysis::run_op<float>(plain, {x, w, inputs[2]}, with_bias, dy);
    const auto backward = analysis::run_op<float>(plain, {x, w, inputs[2]}, with_bias, g);
    CHECK(analysis::relative_error(run.value, forward.value) < 1e-6);
    CHECK(analysis::relative_error(run.gradients[0], backward.gradients[0]) < 1e-6);
    CHECK(analysis::relative_error(run.gradients[1], backward.gradients[1]) < 1e-6);
    CHECK(analysis::relative_error(run.gradients[2], forward.gradients[2]) ==
          0.0);  // the bias' gradient is not rounded
    const auto unrounded = analysis::run_op<float>(plain, inputs, with_bias, dy);
    CHECK(analysis::relative_error(run.value, unrounded.value) > 1e-3);
    CHECK(analysis::relative_error(run.gradients[0], unrounded.gradients[0]) > 1e-3);
    CHECK(analysis::relative_error(run.gradients[1], unrounded.gradients[1]) > 1e-3);
}

TEST_CASE("linear: rows of the whole step enter the weight's factor") {
    test::OpTape<double> t(Scaling::unit, {.micro_batches = 4, .micro_batch = 1});
    static_cast<void>(ops::linear(t.input({3, 5}), t.input({2, 5}, 2)));
    CHECK(t.tape.node(0).betas[1] == Approx(std::sqrt(1.0 / 12)));
}

TEST_CASE("linear: no rows, inputs or outputs give empty or zero tensors") {
    test::check_nothing({{0, 5}, {4, 5}, {4}}, with_bias, {0, 4});
    test::check_nothing({{2, 0, 5}, {4, 5}}, free_linear, {2, 0, 4});
    test::check_nothing({{3, 0}, {4, 0}}, free_linear, {3, 4});
    test::check_nothing({{3, 5}, {0, 5}, {0}}, with_bias, {3, 0});
}

TEST_CASE("linear: errors name the operands") {
    test::OpTape<float> t;
    REQUIRE_THROWS_WITH(ops::linear(t.input({2, 3}), t.input({4, 5})),
                        "linear: x [2,3] and weight [4,5] do not contract: 3 != 5");
    REQUIRE_THROWS_WITH(ops::linear(t.input({}), t.input({4, 3})),
                        "linear: x has rank 0; expected at least one dimension");
    REQUIRE_THROWS_WITH(ops::linear(t.input({2, 3}), t.input({3})), "linear: weight [3] is not a matrix [out,in]");
    REQUIRE_THROWS_WITH(ops::linear(t.input({2, 3}), t.input({4, 3}), std::optional(t.input({3}))),
                        "linear: bias [3] does not fit weight [4,3]; expected [4]");
    REQUIRE_THROWS_WITH(
        ops::linear(t.input({2, 3}), t.input({4, 3}), {.constraint = Constraint::to_left_grad_scale}),
        "linear: constraint to_left_grad_scale needs an op with two constrained inputs, this one has 1");
}

TEST_CASE("linear: propagates scales") {
    test::check_propagate({{2, 3, 5}, {4, 5}, {4}}, with_bias);
    test::check_propagate({{6, 5}, {4, 5}}, free_linear);
}
