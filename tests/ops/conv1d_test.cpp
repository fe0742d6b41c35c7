// SPDX-License-Identifier: MIT
#include <unitscale/ops/conv1d.hpp>

#include "support/op_checks.hpp"

#include <cmath>

using namespace unitscale;

namespace {
auto with(ops::Conv1dOptions options) {
    return [=](auto&, auto& v) {
        return ops::conv1d(v[0], v[1], v.size() > 2 ? std::optional(v[2]) : std::nullopt, options);
    };
}
double root(double x) { return std::sqrt(x); }
}  // namespace

TEST_CASE("conv1d: gradient and factors of every option, alone and together") {
    const ops::Conv1dOptions base{.constraint = Constraint::none};
    // x [2,4,7], k = 3, 6 output channels. The number of positions is the batch times the output's length.
    test::check_gradient_and_factors({{2, 4, 7}, {6, 4, 3}}, with(base), root(1.0 / 12),
                                     {root(1.0 / 18), root(1.0 / 10)});
    for (const std::size_t stride : {std::size_t{1}, std::size_t{2}})
        for (const std::size_t dilation : {std::size_t{1}, std::size_t{2}})
            for (const std::size_t groups : {std::size_t{1}, std::size_t{2}})
                for (const int padding : {0, 1, 2}) {  // no padding, different sides, causal
                    INFO("stride " << stride << ", dilation " << dilation << ", groups " << groups << ", padding "
                                   << padding);
                    ops::Conv1dOptions options = base;
                    options.stride = stride;
                    options.dilation = dilation;
                    options.groups = groups;
                    options.causal = padding == 2;
                    if (padding == 1) options.padding_left = 1, options.padding_right = 3;
                    const std::size_t padded = 7 + (padding == 0 ? 0 : padding == 1 ? 4 : 2 * dilation);
                    const std::size_t length = (padded - 2 * dilation - 1) / stride + 1, in = 4 / groups;
                    const double beta_w = root(1.0 / static_cast<double>(2 * length));
                    test::check_gradient_and_factors(
                        {{2, 4, 7}, {6, in, 3}, {6}}, with(options), root(1.0 / static_cast<double>(3 * in)),
                        {root(static_cast<double>(stride * groups) / 18.0), beta_w, beta_w});
                }
    // Depthwise, under the recipe's rule: to_output_scale sets beta_x = alpha.
    test::check_gradient_and_factors({{1, 3, 5}, {3, 1, 2}}, with({.groups = 3}), root(0.5), {root(0.5), root(0.25)});
    test::check_gradient_and_factors({{2, 4, 7}, {6, 4, 3}}, with({.constraint = Constraint::gmean}),
                                     std::pow(12.0 * 18.0, -0.25), {std::pow(12.0 * 18.0, -0.25), root(1.0 / 10)});
    test::check_gradient_and_factors({{1, 1, 1}, {1, 1, 1}, {1}}, with({}), 1.0, {1.0, 1.0, 1.0});
}

TEST_CASE("conv1d: unit scale") {
    test::check_unit_scale({{20, 24, 64}, {48, 24, 3}}, with({.constraint = Constraint::none}), 1.0, {1.0, 1.0});
    test::check_unit_scale({{20, 24, 64}, {48, 6, 4}}, with({.stride = 2, .groups = 4, .constraint = Constraint::none}),
                           1.0, {1.0, 1.0});
}

TEST_CASE("conv1d: the value is the sum over taps, a causal one sees no later element") {
    test::OpTape<double> t(Scaling::none);
    const auto x = t.tape.input(Tensor<double>({1, 1, 4}, {1, 2, 3, 4}));
    const auto w = t.tape.input(Tensor<double>({1, 1, 2}, {10, 1}));
    const auto b = t.tape.input(Tensor<double>({1}, {100}));
    const auto values = [](Variable<double> y) {
        return std::vector<double>(y.value().span().begin(), y.value().span().end());
    };
    CHECK(values(ops::conv1d(x, w)) == std::vector<double>{12, 23, 34});
    CHECK(values(ops::conv1d(x, w, b)) == std::vector<double>{112, 123, 134});
    CHECK(values(ops::conv1d(x, w, {.padding_left = 1, .padding_right = 1})) == std::vector<double>{1, 12, 23, 34, 40});
    CHECK(values(ops::conv1d(x, w, {.dilation = 2, .causal = true})) == std::vector<double>{1, 2, 13, 24});
    CHECK(values(ops::conv1d(x, w, {.stride = 2})) == std::vector<double>{12, 34});
    CHECK(ops::conv1d(x, w, {.stride = 2}).shape() == Shape{1, 1, 2});
}

TEST_CASE("conv1d: the recipe's formats round the operands of all three products") {
    Recipe recipe = analysis::plain_recipe(Scaling::unit);
    const Quantiser activation{.format = e4m3}, weight{.format = e3m2}, gradient{.format = e5m2};
    recipe.products.push_back({.formats = {.activation = activation, .weight = weight, .gradient = gradient}});
    const std::vector<Tensor<float>> inputs = test::normal_inputs<float>({{2, 4, 9}, {6, 2, 3}, {6}});
    const auto f = with({.groups = 2, .causal = true});
    const Tensor<float> dy = normal<float>({2, 6, 9}, {3, 3});
    const auto rounded = [](const Tensor<float>& tensor, const Quantiser& quantiser) {
        Tensor<float> result(tensor.shape());
        quantise(quantiser.format, tensor.span(), result.span());
        return result;
    };
    const Recipe plain = analysis::plain_recipe(Scaling::unit);
    const auto run = analysis::run_op<float>(recipe, inputs, f, dy);
    const Tensor<float> x = rounded(inputs[0], activation), w = rounded(inputs[1], weight);
    const auto forward = analysis::run_op<float>(plain, {x, w, inputs[2]}, f, dy);
    const auto backward = analysis::run_op<float>(plain, {x, w, inputs[2]}, f, rounded(dy, gradient));
    CHECK(analysis::relative_error(run.value, forward.value) < 1e-6);
    CHECK(analysis::relative_error(run.gradients[0], backward.gradients[0]) < 1e-6);
    CHECK(analysis::relative_error(run.gradients[1], backward.gradients[1]) < 1e-6);
    CHECK(analysis::relative_error(run.gradients[2], forward.gradients[2]) ==
          0.0);  // the bias' gradient is not rounded
    const auto unrounded = analysis::run_op<float>(plain, inputs, f, dy);
    CHECK(analysis::relative_error(run.value, unrounded.value) > 1e-3);
    CHECK(analysis::relative_error(run.gradients[0], unrounded.gradients[0]) > 1e-3);
    CHECK(analysis::relative_error(run.gradients[1], unrounded.gradients[1]) > 1e-3);
}

TEST_CASE("conv1d: positions of the whole step enter the weight's factor") {
    test::OpTape<double> t(Scaling::unit, {.micro_batches = 4, .micro_batch = 1});
    static_cast<void>(ops::conv1d(t.input({2, 3, 5}), t.input({2, 3, 3}, 2)));
    CHECK(t.tape.node(0).betas[1] == Approx(std::sqrt(1.0 / 24)));
}

TEST_CASE("conv1d: no batch, channels or positions give empty or zero tensors") {
    test::check_nothing({{0, 3, 5}, {4, 3, 2}, {4}}, with({}), {0, 4, 4});
    test::check_nothing({{2, 3, 5}, {0, 3, 2}, {0}}, with({}), {2, 0, 4});
    test::check_nothing({{2, 0, 5}, {4, 0, 2}}, with({}), {2, 4, 4});
    test::check_nothing({{2, 3, 0}, {4, 3, 2}}, with({.padding_left = 2}), {2, 4, 1});
}

TEST_CASE("conv1d: errors name the operands") {
    test::OpTape<float> t;
    const auto x = t.input({2, 4, 3});
    REQUIRE_THROWS_WITH(ops::conv1d(t.input({4, 3}), t.input({4, 3, 1})), "conv1d: x [4,3] is not [B,C,L]");
    REQUIRE_THROWS_WITH(ops::conv1d(x, t.input({4, 3})), "conv1d: weight [4,3] is not [out,in/groups,k]");
    REQUIRE_THROWS_WITH(ops::conv1d(x, t.input({6, 4, 0})), "conv1d: weight [6,4,0] has no taps");
    REQUIRE_THROWS_WITH(ops::conv1d(x, t.input({6, 4, 1}), {.stride = 0}),
                        "conv1d: stride is 0 and dilation 1; expected at least 1");
    REQUIRE_THROWS_WITH(ops::conv1d(x, t.input({6, 2, 1}), {.groups = 3}),
                        "conv1d: groups is 3; expected a divisor of 4 input and 6 output channels");
    REQUIRE_THROWS_WITH(ops::conv1d(x, t.input({6, 3, 1}), {.groups = 2}),
                        "conv1d: x [2,4,3] and weight [6,3,1] do not fit in 2 groups: 2 != 3");
    REQUIRE_THROWS_WITH(ops::conv1d(x, t.input({6, 3, 1})),
                        "conv1d: x [2,4,3] and weight [6,3,1] do not fit in 1 group: 4 != 3");
    REQUIRE_THROWS_WITH(ops::conv1d(x, t.input({6, 4, 3}), {.dilation = 2, .padding_left = 1}),
                        "conv1d: x [2,4,3] with padding is 4 long; the kernel reaches over 5");
    REQUIRE_THROWS_WITH(ops::conv1d(t.input({2, 4, 0}), t.input({6, 4, 3}), {.causal = true}),
                        "conv1d: x [2,4,0] with padding is 2 long; the kernel reaches over 3");
    REQUIRE_THROWS_WITH(ops::conv1d(x, t.input({6, 4, 3}), {.padding_left = 2, .causal = true}),
                        "conv1d: causal with padding 2 and 0; expected none, causal pads by itself");
    REQUIRE_THROWS_WITH(ops::conv1d(x, t.input({6, 4, 1}), std::optional(t.input({3}))),
                        "conv1d: bias [3] does not fit weight [6,4,1]; expected [6]");
    REQUIRE_THROWS_WITH(ops::conv1d(x, t.input({6, 4, 1}), {.dilation = 0}),
                        "conv1d: stride is 1 and dilation 0; expected at least 1");
    REQUIRE_THROWS_WITH(ops::conv1d(x, t.input({6, 4, 1}), {.groups = 0}),
                        "conv1d: groups is 0; expected a divisor of 4 input and 6 output channels");
    REQUIRE_THROWS_WITH(
        ops::conv1d(x, t.input({6, 4, 1}), {.constraint = Constraint::to_left_grad_scale}),
        "conv1d: constraint to_left_grad_scale needs an op with two constrained inputs, this one has 1");
}

TEST_CASE("conv1d: propagates scales") {
    const auto with_bias = [](auto&, auto& v) { return ops::conv1d(v[0], v[1], v[2], {.padding_left = 1}); };
    const auto grouped = [](auto&, auto& v) {
        return ops::conv1d(v[0], v[1], {.stride = 2, .dilation = 2, .groups = 2, .causal = true});
    };
    test::check_propagate({{2, 3, 8}, {4, 3, 3}, {4}}, with_bias);
    test::check_propagate({{2, 4, 9}, {6, 2, 3}}, grouped);
}
