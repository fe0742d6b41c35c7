// SPDX-License-Identifier: MIT
#include <unitscale/record/operand_rounding.hpp>

#include "support/op_checks.hpp"

#include <unitscale/ops/conv1d.hpp>
#include <unitscale/ops/linear.hpp>
#include <unitscale/ops/matmul.hpp>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

using namespace unitscale;

namespace {

const Quantiser e4{.format = e4m3}, e5{.format = e5m2};

ProductFormats formats(const ScaleRule& rule, const ScaleRule& gradient_rule) {
    return {.activation = e4,
            .weight = e4,
            .gradient = e5,
            .activation_scale = rule,
            .weight_scale = rule,
            .gradient_scale = gradient_rule};
}
Recipe recipe_of(const ProductFormats& formats) {
    Recipe recipe = analysis::plain_recipe(Scaling::none);
    recipe.products.push_back({.formats = formats});
    return recipe;
}

/// x, rounded by hand. Each part (all of x, a row or a column) is multiplied by 2^bias of its largest magnitude,
/// rounded, and divided again.
Tensor<double> by_hand(const Tensor<double>& x, const Quantiser& quantiser, const ScaleRule& rule) {
    const std::size_t rows = x.dim(0), columns = x.dim(1);
    Tensor<double> result(x.shape());
    for (std::size_t i = 0; i < rows; ++i)
        for (std::size_t j = 0; j < columns; ++j) {
            double amax = 0.0;
            for (std::size_t r = 0; r < rows; ++r)
                for (std::size_t c = 0; c < columns; ++c)
                    if (rule.granularity == ScaleGranularity::tensor ||
                        (rule.granularity == ScaleGranularity::row ? r == i : c == j))
                        amax = std::max(amax, std::abs(x(r, c)));
            const double ratio = static_cast<double>(quantiser.format.max()) / amax;
            const int bias = rule.source == ScaleSource::constant
                                 ? rule.bias
                                 : static_cast<int>(std::floor(std::log2(ratio))) - rule.margin;
            result(i, j) = std::ldexp(quantise(quantiser.format, std::ldexp(x(i, j), bias), {}), -bias);
        }
    return result;
}

const auto product = [](auto&, auto& v) { return ops::linear(v[0], v[1]); };

}  // namespace

TEST_CASE("operand_rounding: constant and largest-magnitude biases, by tensor, row and column, in all three products") {
    const std::vector<Tensor<double>> inputs = {set_scaling(normal<double>({9, 20}, {1, 1}), 1.0),
                                                normal<double>({7, 20}, {2, 2})};
    std::vector<Tensor<double>> spread = inputs;  // rows and columns of different magnitudes
    for (std::size_t i = 0; i < 9; ++i)
        for (std::size_t j = 0; j < 20; ++j)
            spread[0](i, j) = std::ldexp(inputs[0](i, j), static_cast<int>(i) - static_cast<int>(j));
    const Tensor<double> dy = normal<double>({9, 7}, {3, 3});
    Tensor<double> small(dy.shape());
    for (std::size_t i = 0; i < dy.size(); ++i) small.data()[i] = std::ldexp(dy.data()[i], -30);
    for (const ScaleRule& rule :
         {ScaleRule{.source = ScaleSource::constant, .bias = 2}, ScaleRule{.source = ScaleSource::amax},
          ScaleRule{.source = ScaleSource::amax, .margin = 3},
          ScaleRule{.source = ScaleSource::amax, .granularity = ScaleGranularity::row},
          ScaleRule{.source = ScaleSource::amax, .granularity = ScaleGranularity::column}}) {
        INFO(name(rule.source) << " by " << name(rule.granularity) << ", margin " << rule.margin);
        ScaleRule gradient_rule = rule;
        if (rule.source == ScaleSource::constant) gradient_rule.bias = 25;
        const auto run = analysis::run_op<double>(recipe_of(formats(rule, gradient_rule)), spread, product, small);
        const Recipe plain = analysis::plain_recipe(Scaling::none);
        const Tensor<double> x = by_hand(spread[0], e4, rule), w = by_hand(spread[1], e4, rule),
                             g = by_hand(small, e5, gradient_rule);
        const auto want = analysis::run_op<double>(plain, {x, w}, product, g);
        CHECK(analysis::relative_error(run.value, want.value) < 1e-14);
        CHECK(analysis::relative_error(run.gradients[0], want.gradients[0]) < 1e-14);
        CHECK(analysis::relative_error(run.gradients[1], want.gradients[1]) < 1e-14);
    }
}

TEST_CASE("operand_rounding: delayed takes the largest magnitude of the step before") {
    const ScaleRule rule{.source = ScaleSource::delayed, .history = 1};
    const Recipe recipe = recipe_of(formats(rule, rule));
    ScalingState state(1);
    Tape<float> tape(recipe, state);
    std::vector<int> biases;
    for (const float size : {1.0f, 16.0f, 4.0f, 4.0f}) {
        tape.begin_step();
        const auto x = tape.input(full<float>({3, 4}, size), true);
        const auto y = ops::linear(x, tape.input(full<float>({2, 4}, 1.0f), true));
        tape.backward(analysis::project(y, full<float>({3, 2}, size)));
        const Site site = tape.node(0).site;
        biases.push_back(state.last_bias(site, OperandRole::activation));
        CHECK(state.last_bias(site, OperandRole::gradient) - biases.back() == 15 - 8);
        CHECK(state.last_bias(site, OperandRole::weight) == 8);
    }
    CHECK(biases == std::vector<int>{8, 8, 4, 6});
}

TEST_CASE("operand_rounding: a bias keeps gradients that the format alone would lose") {
    const std::vector<Tensor<float>> inputs = test::normal_inputs<float>({{64, 32}, {16, 32}});
    Tensor<float> dy = normal<float>({64, 16}, {3, 3});
    for (float& d : dy.span()) d *= 1e-7f;
    const auto error = [&](const ScaleRule& gradient_rule) {
        const auto run = analysis::run_op<float>(recipe_of(formats({}, gradient_rule)), inputs, product, dy);
        const auto want = analysis::run_op<float>(analysis::plain_recipe(Scaling::none), inputs, product, dy);
        return analysis::relative_error(run.gradients[1], want.gradients[1]);
    };
    CHECK(error({}) == 1.0);  // every element underflows
    CHECK(error({.source = ScaleSource::amax}) < 0.2);
    CHECK(error({.source = ScaleSource::constant, .bias = 24}) < 0.2);
}

TEST_CASE("operand_rounding: results are rounded where the recipe says so") {
    ProductFormats rule{};
    rule.result = Quantiser{.format = fp16, .overflow = Overflow::to_infinity};
    const std::vector<Tensor<float>> inputs = test::normal_inputs<float>({{6, 8}, {4, 8}});
    const auto run = analysis::run_op<float>(recipe_of(rule), inputs, product);
    const auto want = analysis::run_op<float>(analysis::plain_recipe(Scaling::none), inputs, product);
    const auto rounded = [](Tensor<float> t) {
        quantise(fp16, t.span(), t.span());
        return t;
    };
    CHECK(analysis::relative_error(run.value, rounded(want.value)) == 0.0);
    CHECK(analysis::relative_error(run.gradients[0], rounded(want.gradients[0])) == 0.0);
    CHECK(analysis::relative_error(run.gradients[1], rounded(want.gradients[1])) == 0.0);
}

TEST_CASE("operand_rounding: products of two activations and convolutions take biases by tensor") {
    const ScaleRule amax{.source = ScaleSource::amax, .margin = 1};
    const std::vector<Tensor<double>> inputs = {normal<double>({6, 8}, {1, 1}), normal<double>({8, 5}, {2, 2})};
    const auto f = [](auto&, auto& v) { return ops::matmul(v[0], v[1]); };
    Recipe recipe = analysis::plain_recipe(Scaling::none);
    recipe.products.push_back({.kind = ProductKind::matmul, .formats = formats(amax, amax)});
    const Tensor<double> dy = normal<double>({6, 5}, {3, 3});
    const auto run = analysis::run_op<double>(recipe, inputs, f, dy);
    const auto want = analysis::run_op<double>(analysis::plain_recipe(Scaling::none),
                                               {by_hand(inputs[0], e4, amax), by_hand(inputs[1], e4, amax)}, f,
                                               by_hand(dy, e5, amax));
    CHECK(analysis::relative_error(run.value, want.value) < 1e-14);
    CHECK(analysis::relative_error(run.gradients[0], want.gradients[0]) < 1e-14);
    CHECK(analysis::relative_error(run.gradients[1], want.gradients[1]) < 1e-14);

    // A kernel of length 1 is a linear layer over channels: [1,C,L] as [L,C].
    const std::vector<Tensor<double>> wide = {normal<double>({1, 6, 7}, {1, 1}), normal<double>({4, 6, 1}, {2, 2})};
    const auto convolve = [](auto&, auto& v) { return ops::conv1d(v[0], v[1]); };
    const auto coarse = analysis::run_op<double>(recipe_of(formats(amax, amax)), wide, convolve);
    const auto rounded = [&](const Tensor<double>& t) {
        Tensor<double> flat = t;
        flat.reshape({t.size(), 1});
        flat = by_hand(flat, e4, amax);
        flat.reshape(t.shape());
        return flat;
    };
    const auto plain =
        analysis::run_op<double>(analysis::plain_recipe(Scaling::none), {rounded(wide[0]), rounded(wide[1])}, convolve);
    CHECK(analysis::relative_error(coarse.value, plain.value) < 1e-14);

    recipe.products.back().formats.weight_scale.granularity = ScaleGranularity::row;
    CHECK_THROWS_WITH(analysis::run_op<double>(recipe, inputs, f),
                      "matmul: scale of the weight by row; rows, columns and blocks are those of linear layers");
}

namespace {

/// Notes each operand: slot, format, bias, tensor's size.
class Operands : public Observer<double> {
public:
    void observe(const TensorEvent<double>&) override {}
    void observe_operand(const OperandEvent<double>& event) override {
        lines.push_back(
            concatenate(event.path, ' ', event.op, ' ', name(event.slot), ' ', name(event.rule.element->format), ' ',
                        event.quantiser ? event.quantiser->format.bias - event.rule.element->format.bias : 99, ' ',
                        event.tensor == nullptr ? 0 : event.tensor->size(), ' ', event.columns,
                        event.contracts_rows ? " rows" : ""));
    }
    std::vector<std::string> lines{};
};

}  // namespace

TEST_CASE("operand_rounding: an observer sees the operands that are rounded, once, and no others") {
    ProductFormats formats{.activation = Quantiser{.format = e4m3},
                           .gradient = Quantiser{.format = e5m2},
                           .activation_scale = {.source = ScaleSource::constant, .bias = 2},
                           .gradient_scale = {.source = ScaleSource::amax}};
    Recipe recipe = analysis::plain_recipe(Scaling::none);
    recipe.products = {{.kind = ProductKind::linear, .formats = formats},
                       {.kind = ProductKind::matmul, .formats = formats}};
    recipe.products[0].formats.set(OperandSlot::input_gradient_w, OperandRule::in_blocks(mxfp4));
    ScalingState state(1);
    Tape<double> tape(recipe, state);
    Operands seen;
    const auto run = [&](auto&& op) {
        tape.begin_step();
        const auto y = op();
        tape.backward(analysis::project(y, full<double>(y.shape(), 1.0)));
        return std::exchange(seen.lines, {});
    };
    const auto linear = [&] {
        return ops::linear(tape.input(full<double>({3, 4}, 1.0), true), tape.input(full<double>({2, 4}, 1.0), true));
    };
    CHECK(run(linear).empty());  // nobody watches
    tape.set_observer(&seen);
    // 57344 / 1 is 2^15.8: bias 15. A value that is not rounded by one bias shows 99.
    CHECK(run(linear) == std::vector<std::string>{"linear linear forward.x e4m3 2 12 4",
                                                  "linear linear input_gradient.dy e5m2 15 6 2",
                                                  "linear linear input_gradient.w e2m1 99 8 4 rows",
                                                  "linear linear weight_gradient.dy e5m2 15 6 2 rows",
                                                  "linear linear weight_gradient.x e4m3 2 12 4 rows"});
    CHECK(run([&] {
              return ops::matmul(tape.input(full<double>({3, 4}, 1.0), true),
                                 tape.input(full<double>({4, 2}, 1.0), true));
          }) == std::vector<std::string>{"matmul matmul forward.x e4m3 2 12 4", "matmul matmul forward.w e4m3 2 8 2",
                                         "matmul matmul input_gradient.dy e5m2 15 6 2",
                                         "matmul matmul input_gradient.w e4m3 2 8 2 rows",
                                         "matmul matmul weight_gradient.dy e5m2 15 6 2 rows",
                                         "matmul matmul weight_gradient.x e4m3 2 12 4 rows"});
    recipe.products[0].formats = formats;
    ScalingState other(1);
    Tape<double> again(recipe, other);
    again.set_observer(&seen);
    again.begin_step();
    const auto y =
        ops::conv1d(again.input(full<double>({1, 2, 5}, 1.0), true), again.input(full<double>({3, 2, 2}, 1.0), true));
    again.backward(analysis::project(y, full<double>(y.shape(), 1.0)));
    CHECK(seen.lines == std::vector<std::string>{"conv1d conv1d forward.x e4m3 2 10 5",
                                                 "conv1d conv1d input_gradient.dy e5m2 15 12 4",
                                                 "conv1d conv1d weight_gradient.dy e5m2 15 12 4",
                                                 "conv1d conv1d weight_gradient.x e4m3 2 10 5"});
    seen.lines.clear();
    again.set_observer(nullptr);
    again.begin_step();
    static_cast<void>(
        ops::conv1d(again.input(full<double>({1, 2, 5}, 1.0)), again.input(full<double>({3, 2, 2}, 1.0))));
    CHECK(seen.lines.empty());
}
