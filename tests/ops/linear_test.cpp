// SPDX-License-Identifier: MIT
#include <unitscale/ops/linear.hpp>

#include "support/op_checks.hpp"

#include <unitscale/ops/mul.hpp>
#include <unitscale/ops/scale.hpp>
#include <unitscale/ops/sum.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

using namespace unitscale;

namespace {
const auto free_linear = [](auto&, auto& v) { return ops::linear(v[0], v[1], {.constraint = Constraint::none}); };
const auto with_bias = [](auto&, auto& v) { return ops::linear(v[0], v[1], v[2]); };

struct Outcome {
    std::vector<float> dx, dw;
    std::size_t codes = 0;  ///< elements of x that were kept as codes
    bool value = false;     ///< whether x itself was kept
};

/// The gradients of w1 x + w2 x. The tape may free x unless it is `held`.
Outcome run(const Recipe& recipe, bool held) {
    ScalingState state(1);
    Tape<float> tape(recipe, state);
    tape.begin_step();
    Parameter<float> first("first", {24, 40}, {}), second("second", {24, 40}, {});
    fill_normal(first.write(), {1, 1});
    fill_normal(second.write(), {2, 2});
    const auto source = tape.input(normal<float>({2, 9, 40}, {3, 3}), true);
    auto x = ops::scale_forward(source, 1.5);  // slot 1
    const auto a = ops::linear(x, tape.parameter(first)), b = ops::linear(x, tape.parameter(second));
    Variable<float> keep;
    if (held) keep = x;
    x = {};
    static_cast<void>(tape.make(Shape{1}));
    Outcome outcome{.dx = {}, .dw = {}, .codes = tape.slot(1).codes.size(), .value = tape.slot(1).value != nullptr};
    const auto one = [&](Variable<float> y, std::uint64_t stream) {
        return ops::sum(ops::mul(y, tape.input(normal<float>({2, 9, 24}, {4, stream}))));
    };
    tape.backward({one(a, 1), one(b, 2)}, {1.0f, 1.0f});
    const auto copy = [](const Tensor<float>& t) { return std::vector<float>(t.data(), t.data() + t.size()); };
    outcome.dx = copy(source.gradient());
    outcome.dw = copy(first.gradient());
    const auto more = copy(second.gradient());
    outcome.dw.insert(outcome.dw.end(), more.begin(), more.end());
    return outcome;
}

Recipe rounding(const Quantiser& activation) {
    Recipe recipe = analysis::plain_recipe(Scaling::unit);
    recipe.products.push_back(
        {.formats = {
             .activation = activation, .weight = Quantiser{.format = e4m3}, .gradient = Quantiser{.format = e5m2}}});
    return recipe;
}

}  // namespace

TEST_CASE("linear: gradient, factors and value") {
    test::check_gradient_and_factors({{2, 3, 5}, {4, 5}}, free_linear, std::sqrt(1.0 / 5),
                                     {std::sqrt(1.0 / 4), std::sqrt(1.0 / 6)});
    // The recipe's rule, to_output_scale, sets beta_x = alpha; the betas of weight and bias stay free.
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
    const Tensor<double>& y = ops::linear(x, w, b).value();
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
    // The op without formats, on operands rounded beforehand. The results differ in bits: products of 8-bit operands
    // may run on an instruction that adds in another order.
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

TEST_CASE("linear: where few rows carry a gradient, they alone count in the factors of weight and bias") {
    const auto sparse = [](auto&, auto& v) { return ops::linear(v[0], v[1], v[2], {.step_rows = 2}); };
    test::check_gradient_and_factors({{2, 3, 5}, {4, 5}, {4}}, sparse, std::sqrt(1.0 / 5),
                                     {std::sqrt(1.0 / 5), std::sqrt(1.0 / 2), std::sqrt(1.0 / 2)});
    // The number is of the whole step already. Uses multiply it.
    test::OpTape<double> t(Scaling::unit, {.micro_batches = 4, .micro_batch = 1});
    static_cast<void>(ops::linear(t.input({3, 5}), t.input({2, 5}, 2), {.uses = 3, .step_rows = 2}));
    CHECK(t.tape.node(0).betas[1] == Approx(std::sqrt(1.0 / 6)));
    // One row in eight has a gradient: the weight's has unit scale if it counts these rows.
    Tensor<double> dy = normal<double>({800, 60}, {2, 2});
    for (std::size_t i = 0; i < dy.size(); ++i)
        if (i / 60 % 8 != 0) dy.data()[i] = 0.0;
    for (const std::size_t rows : {std::size_t{100}, std::size_t{800}}) {
        const auto counted = [=](auto&, auto& v) { return ops::linear(v[0], v[1], v[2], {.step_rows = rows}); };
        const auto run =
            analysis::run_op<double>(analysis::plain_recipe(Scaling::unit),
                                     test::normal_inputs<double>({{800, 50}, {60, 50}, {60}}), counted, dy);
        const double size = rows == 100 ? 1.0 : std::sqrt(1.0 / 8);
        CHECK(analysis::moments(run.gradients[1]).std == Approx(size).epsilon(0.05));
        CHECK(analysis::moments(run.gradients[2]).std == Approx(size).epsilon(0.25));
    }
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

TEST_CASE("linear: an input kept as codes gives the bits of the input itself") {
    for (const FloatFormat& format : {e4m3, e5m2, e4m3fnuz, e3m2, e2m1, e4m3b11fnuz}) {
        INFO(name(format));
        const Recipe recipe = rounding({.format = format});
        const Outcome freed = run(recipe, false), kept = run(recipe, true);
        CHECK(freed.codes == 2 * 9 * 40);
        CHECK_FALSE(freed.value);
        CHECK(kept.codes == 0);
        CHECK(kept.value);
        CHECK(freed.dw == kept.dw);
        CHECK(freed.dx == kept.dx);
    }
}

TEST_CASE("linear: the input itself is kept where codes do not do, and nothing where nobody reads it") {
    CHECK(run(analysis::plain_recipe(Scaling::unit), false).value);  // not rounded
    CHECK(run(rounding({.format = fp16}), false).value);             // more than 8 bits
    CHECK(
        run(rounding({.format = e4m3, .rounding = Rounding::stochastic}), false).value);  // two products, two roundings
    ScalingState state;
    const Recipe recipe = analysis::plain_recipe(Scaling::none);
    Tape<float> tape(recipe, state);
    tape.begin_step();
    const auto source = tape.input(normal<float>({4, 8}, {1, 1}), true);
    const auto frozen = tape.input(normal<float>({3, 8}, {1, 1}), false);
    const auto y = ops::linear(ops::scale_forward(source, 2.0), frozen);
    static_cast<void>(tape.make(Shape{1}));
    CHECK(tape.slot(2).value == nullptr);
}
