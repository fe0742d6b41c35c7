// SPDX-License-Identifier: MIT
#include <unitscale/analysis/gradient_zeros.hpp>

#include <unitscale/autograd/tape.hpp>
#include <unitscale/ops/attention.hpp>
#include <unitscale/ops/linear.hpp>
#include <unitscale/ops/mul.hpp>
#include <unitscale/ops/sum.hpp>

#include "support/catch.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

using namespace unitscale;
using analysis::GradientZeros;
using analysis::ZeroCount;

namespace {

/// A linear layer y = x w, then sum(y c): the gradient of y is c. x and w are 1 x 1, c has a row for each of its
/// elements.
template <class T>
struct Model {
    Recipe recipe{};
    ScalingState state{};
    Tape<T> tape{recipe, state};
    Parameter<T> w{"w", Shape{1, 1}, {}};
    std::vector<double> c{};

    void step(std::size_t micro_batch = 0, std::size_t micro_batches = 1) {
        w.write().data()[0] = T(1);
        tape.begin_step({.micro_batches = micro_batches, .micro_batch = micro_batch});
        Tensor<T> x(Shape{c.size(), 1}), factors(Shape{c.size(), 1});
        for (std::size_t i = 0; i < c.size(); ++i) {
            x.data()[i] = T(1);
            factors.data()[i] = static_cast<T>(static_cast<float>(c[i]));
        }
        const Variable<T> y = ops::linear(tape.input(std::move(x), true), tape.parameter(w));
        tape.backward(ops::sum(ops::mul(y, tape.input(std::move(factors)))));
    }
};

ProductFormats e5m2_gradients(const ScaleRule& rule) {
    return {.gradient = Quantiser{.format = e5m2}, .gradient_scale = rule};
}

/// The zeros of the linear layer's output gradient c under a scale rule, in the first step.
ZeroCount counted(const ScaleRule& rule, std::vector<double> c) {
    Model<float> model{.recipe = {.products = {{.formats = e5m2_gradients(rule)}}}};
    model.c = std::move(c);
    GradientZeros<float> zeros(1);
    model.tape.set_observer(&zeros);
    model.step();
    return zeros.counts().at("linear");
}

}  // namespace

TEST_CASE("gradient zeros: zeros as stored, and elements that a product rounds to zero with its bias") {
    // e5m2: the smallest number is 2^-16; half of it and less round to zero.
    const std::vector<double> c = {0.0, 0x1p-17, 0x1.8p-17, 0x1p-20, 1.0};
    CHECK(counted({}, c) == ZeroCount{5, 1, 3});
    CHECK(counted({.source = ScaleSource::constant, .bias = 4}, c) == ZeroCount{5, 1, 1});
    CHECK(counted({.source = ScaleSource::constant, .bias = 3}, c) == ZeroCount{5, 1, 2});
    CHECK(counted({.source = ScaleSource::constant, .bias = -1}, c) == ZeroCount{5, 1, 4});
    CHECK(counted({.source = ScaleSource::amax}, c) == ZeroCount{5, 1, 1});  // 1 becomes 2^15: 2^-20 is 2^-5 then
    CHECK(counted({.source = ScaleSource::amax, .margin = 12}, c) == ZeroCount{5, 1, 2});
    CHECK(counted({.source = ScaleSource::delayed, .margin = 12}, c) == ZeroCount{5, 1, 2});
    CHECK(counted({.source = ScaleSource::amax, .granularity = ScaleGranularity::row}, c) == ZeroCount{5, 1, 1});
    // The gradient is [5,1]. A block of one element loses nothing. In one block for all, 1 gives the scale 2^-15, and
    // the smallest number is 2^-16 2^-15.
    ScaleRule blocks{.source = ScaleSource::amax, .blocks = mxfp8_e5m2};
    const std::vector<double> small = {0.0, 0x1p-31, 0x1p-32, 0x1.8p-32, 1.0};
    CHECK(counted(blocks, small) == ZeroCount{5, 1, 1});
    blocks.blocks->across = 5;
    CHECK(counted(blocks, small) == ZeroCount{5, 1, 2});
    // The product's own rounding counts: toward zero, 1.5 2^-17 is lost too.
    const ProductFormats toward_zero{.gradient = Quantiser{.format = e5m2, .rounding = Rounding::toward_zero}};
    Model<float> model{.recipe = {.products = {{.formats = toward_zero}}}};
    model.c = c;
    GradientZeros<float> zeros(1);
    model.tape.set_observer(&zeros);
    model.step();
    CHECK(zeros.counts().at("linear") == ZeroCount{5, 1, 4});
    CHECK(ZeroCount{5, 1, 2}.share(2) == 0.4);
    CHECK(ZeroCount{}.share(0) == 0.0);
}

TEST_CASE("gradient zeros: under `delayed` the bias comes from past steps, and counting does not change them") {
    const ScaleRule rule{.source = ScaleSource::delayed, .margin = 12};
    const Recipe recipe{.products = {{.formats = e5m2_gradients(rule)}}};
    Model<float> model{.recipe = recipe}, uncounted{.recipe = recipe};
    GradientZeros<float> zeros(1);
    model.tape.set_observer(&zeros);
    for (Model<float>* each : {&model, &uncounted}) {
        each->c = {1.0, 0x1p-20};
        each->step();
        each->c = {0x1p-10, 0x1p-20};
        each->step();
    }
    CHECK(zeros.counts().at("linear") == ZeroCount{2, 0, 1});  // scaled by its own magnitude, 2^-20 would stay
    const Site site = model.state.products().front().site;
    CHECK(model.state.last_bias(site, OperandRole::gradient) == 3);
    CHECK(uncounted.state.last_bias(site, OperandRole::gradient) == 3);
}

TEST_CASE("gradient zeros: attention's output gradient, by the rule of dy in dp") {
    const auto counted_in = [](const ScaleRule& rule, bool own) {
        Recipe recipe;
        ProductFormats formats;
        if (own) formats.set(OperandSlot::probability_gradient_dy, {Quantiser{.format = e5m2}, rule});
        else formats = e5m2_gradients(rule);
        recipe.products = {{.kind = ProductKind::attention, .formats = formats}};
        ScalingState state;
        Tape<float> tape(recipe, state);
        GradientZeros<float> zeros(1);
        tape.set_observer(&zeros);
        tape.begin_step();
        const auto x = tape.input(Tensor<float>(Shape{1, 2, 2}, {1.0f, 2.0f, 3.0f, 4.0f}), true);
        const auto factors = tape.input(Tensor<float>(Shape{1, 2, 2}, {0.0f, 0x1p-17f, 0x1.8p-17f, 1.0f}));
        tape.backward(ops::sum(ops::mul(ops::attention(x, x, x, {}), factors)));
        return zeros.counts().at("attention");
    };
    for (const bool own : {true, false}) {
        CHECK(counted_in({}, own) == ZeroCount{4, 1, 2});
        CHECK(counted_in({.source = ScaleSource::constant, .bias = -1}, own) == ZeroCount{4, 1, 3});
        CHECK(counted_in({.source = ScaleSource::amax}, own) == ZeroCount{4, 1, 1});
        CHECK(counted_in({.source = ScaleSource::delayed}, own) == ZeroCount{4, 1, 1});
    }
}

TEST_CASE("gradient zeros: storage in FP16 loses elements below 2^-25") {
    Model<Half> model{.recipe = recipe_in<Half>({})};
    model.c = {0x1p-25, 0x1p-24, 0x1p-26, 1.0};
    GradientZeros<Half> zeros(1);
    model.tape.set_observer(&zeros);
    model.step();
    CHECK(zeros.counts().at("linear") == ZeroCount{4, 2, 2});  // 2^-25 is a tie and goes to zero, which is even
    CHECK_FALSE(zeros.counts().contains("sum"));               // one element
    CHECK_FALSE(zeros.counts().contains("parameter"));
}

TEST_CASE(
    "gradient zeros: counted in the first, every so many and the last step; of parameters the sum of micro-batches") {
    Model<float> model;
    model.c = {1.0, 0.0};
    GradientZeros<float> zeros(3, 5);
    model.tape.set_observer(&zeros);
    CHECK(zeros.counted_step() == 0);
    std::vector<std::uint64_t> seen;
    for (int step = 1; step <= 5; ++step) {
        model.step();
        seen.push_back(zeros.counted_step());
    }
    CHECK(seen == std::vector<std::uint64_t>{1, 1, 1, 4, 5});
    REQUIRE_THROWS_WITH(GradientZeros<float>(0), "gradient zeros: every is 0; expected at least 1");

    GradientZeros<float> each(1);
    model.tape.set_observer(&each);
    model.step(0, 2);
    CHECK(each.counts().at("linear") == ZeroCount{2, 1, 1});
    model.c = {1.0, 2.0, 3.0};
    model.step(1, 2);
    CHECK(each.counts().at("linear") == ZeroCount{2, 1, 1});  // the second micro-batch is ignored
}
