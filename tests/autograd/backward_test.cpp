// SPDX-License-Identifier: MIT
#include <unitscale/autograd/backward.hpp>

#include "support/catch.hpp"
#include "support/test_ops.hpp"

#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

using namespace unitscale;
using namespace unitscale::test;

namespace {

using Back = std::function<void(BackwardContext<double>&)>;

/// Records an op with any backward function on one or two inputs; its value is the first input's value.
Variable<double> probe(std::initializer_list<Variable<double>> inputs, std::initializer_list<double> betas,
                       double alpha, Back back) {
    const Variable<double> x = *inputs.begin();
    Tape<double>& tape = x.tape("probe");
    Tensor<double> output = tape.make(x.shape());
    std::copy_n(x.value().data(), output.size(), output.data());
    return tape.record({"probe", tape.next_site("probe"), alpha, betas}, inputs, std::move(output), std::move(back));
}

struct Fixture {
    Recipe recipe{};
    ScalingState state{};
    Tape<double> tape{recipe, state, 2};
};

}  // namespace

TEST_CASE_METHOD(Fixture, "a backward function sees inputs, output, factors and which gradients are wanted") {
    tape.begin_step();
    const auto a = vector_input<double>(tape, {2.0}), b = vector_input<double>(tape, {5.0}, false);
    bool ran = false;
    const auto y = probe({a, b}, {0.25, 8.0}, 0.5, [&](BackwardContext<double>& g) {
        ran = true;
        REQUIRE(g.needs(0));
        REQUIRE_FALSE(g.needs(1));
        REQUIRE(g.input(0).data()[0] == 2.0);
        REQUIRE(g.input(1).data()[0] == 5.0);
        REQUIRE(g.output().data()[0] == 2.0);
        REQUIRE(g.alpha() == 0.5);
        REQUIRE(g.beta(0) == 0.25);
        REQUIRE(g.beta(1) == 8.0);
        REQUIRE(g.execution().threads == 2);
        REQUIRE(g.execution().pool == tape.pool().get());
        REQUIRE(g.output_gradient().data()[0] == 3.0);
        g.add(1, Tensor<double>(Shape{1}, {1.0}));  // not wanted: dropped
        g.add(0, Tensor<double>(Shape{1}, {7.0}));
        g.add(0, Tensor<double>(Shape{1}, {0.5}));
    });
    tape.backward(y, 3.0);
    REQUIRE(ran);
    REQUIRE(a.gradient().data()[0] == 7.5);
    REQUIRE_THROWS(b.gradient());
}

TEST_CASE_METHOD(
    Fixture,
    "the gradient of an output that nothing used is zeros, and an op none of whose outputs was used does not run") {
    tape.begin_step();
    const auto x = vector_input<double>(tape, {1.0, 2.0, 3.0, 4.0});
    const auto parts = halves(x);
    bool ran = false;
    const auto unused = probe({parts[1]}, {1.0}, 1.0, [&](BackwardContext<double>&) { ran = true; });
    static_cast<void>(unused);
    tape.backward(sum(square(parts[0])));
    REQUIRE(elements(x.gradient()) == std::vector<double>{2.0, 4.0, 0.0, 0.0});
    REQUIRE_FALSE(ran);
}

TEST_CASE_METHOD(Fixture, "take_output_gradient moves the gradient out, and copies it where the tape retains it") {
    for (const bool retain : {false, true}) {
        tape.begin_step({.retain = retain});
        const auto x = vector_input<double>(tape, {1.0});
        bool same = retain;
        const auto y = probe({x}, {1.0}, 1.0, [&](BackwardContext<double>& g) {
            const double* arrived = g.output_gradient().data();
            Tensor<double> taken = g.take_output_gradient();
            same = taken.data() == arrived;
            taken.data()[0] = -1.0;
            g.add(0, std::move(taken));
        });
        tape.backward(sum(y));
        REQUIRE(same == !retain);
        REQUIRE(x.gradient().data()[0] == -1.0);
        if (retain) REQUIRE(y.gradient().data()[0] == 1.0);
    }
}

TEST_CASE_METHOD(Fixture,
                 "the betas and output weights that were recorded, and all of them alpha and 1 for true gradients") {
    for (const bool true_gradients : {false, true}) {
        tape.begin_step({.true_gradients = true_gradients});
        const auto x = vector_input<double>(tape, {2.0});
        std::array<double, 3> seen{};
        const auto y = tape.record_repeats<2>(
            {.name = "f", .site = tape.next_site("f"), .alpha = 0.5, .betas = {8.0}, .output_weights = {3.0, 4.0}},
            {&x, 1}, [&seen](BackwardContext<double>& g) {
                seen = {g.beta(0), g.output_weight(0), g.output_weight(1)};
                g.add(0, g.take_output_gradient(0));
            });
        tape.backward(sum(y[0]));
        CHECK(seen == (true_gradients ? std::array{0.5, 1.0, 1.0} : std::array{8.0, 3.0, 4.0}));
    }
}

TEST_CASE_METHOD(Fixture, "an activation used twice keeps the betas of its consumers, as does an input of the tape") {
    tape.begin_step();
    const auto x = vector_input<double>(tape, {2.0});
    const auto one = vector_input<double>(tape, {1.0}, false);
    const auto a = mul(x, one, {.alpha = 1.0, .beta_a = 3.0}), b = mul(x, one, {.alpha = 1.0, .beta_a = 5.0});
    tape.backward({a, b}, {1.0, 1.0});
    REQUIRE(x.gradient().data()[0] == 8.0);
}

TEST_CASE_METHOD(Fixture, "a gradient of another shape than the value is an error that names the op it is for") {
    tape.begin_step();
    const auto x = vector_input<double>(tape, {1.0, 2.0});
    const auto y = square(x);
    const auto z = probe({y}, {1.0}, 1.0, [](BackwardContext<double>& g) { g.add(0, g.make(Shape{3})); });
    REQUIRE_THROWS_WITH(tape.backward(sum(z)),
                        "backward: gradient of shape [3] for the output of square, which has shape [2]");
}

TEST_CASE("adding gradients gives the same bits for any thread count") {
    std::vector<Tensor<float>> results;
    for (const int threads : {1, 2, 3}) {
        const Shape shape{3, 40001};
        Tensor<float> value(shape), first = normal<float>(shape, {1, 2}), second = normal<float>(shape, {3, 4});
        Slot<float> slot;
        slot.value = &value;
        slot.shape = shape;
        add_gradient<float>({threads, nullptr}, slot, std::move(first));
        add_gradient<float>({threads, nullptr}, slot, std::move(second));
        results.push_back(std::move(slot.gradient));
    }
    REQUIRE(elements(results[0]) == elements(results[1]));
    REQUIRE(elements(results[0]) == elements(results[2]));
    REQUIRE(results[0].data()[5] ==
            normal<float>(Shape{6}, {1, 2}).data()[5] + normal<float>(Shape{6}, {3, 4}).data()[5]);
}

TEMPLATE_TEST_CASE("sums of gradients of every length round once, element by element", "", float, double, Half,
                   BFloat16) {
    const auto number = [](std::size_t i, double step) {
        return static_cast<TestType>(static_cast<float>(step * static_cast<double>(i) - 20));
    };
    for (const std::size_t count : {1u, 63u, 64u, 65u, 200u}) {
        std::vector<TestType> sum(count + 1), more(count);
        for (std::size_t i = 0; i < count; ++i) sum[i] = number(i, 0.37), more[i] = number(i, 0.61);
        sum[count] = TestType(7.0f);
        const std::vector<TestType> before = sum;
        add_scaled_elements<TestType>({1, nullptr}, sum.data(), more.data(), count, 0.5, 0.25);
        for (std::size_t i = 0; i < count; ++i) {
            const auto old = static_cast<Accum<TestType>>(before[i]), part = static_cast<Accum<TestType>>(more[i]);
            REQUIRE(sum[i] ==
                    static_cast<TestType>(multiply_add(Accum<TestType>(0.5), old, Accum<TestType>(0.25) * part)));
        }
        REQUIRE(sum[count] == before[count]);
    }
}

namespace {

struct Propagating {
    Recipe recipe{.name = "test", .description = "", .scaling = Scaling::propagate};
    ScalingState state{};
    Tape<double> tape{recipe, state};
    [[nodiscard]] Variable<double> input(double data, double scale) {
        Tensor<double> tensor(Shape{1}, {data});
        tensor.set_scale(scale);
        return tape.input(std::move(tensor), true);
    }
    /// y = x, as data and scale or as plain numbers, with any backward function.
    [[nodiscard]] Variable<double> probe(Variable<double> x, double beta, bool propagates, Back back) {
        const Tensor<double>& from = propagates ? x.scaled() : x.value();
        Tensor<double> output = tape.make(x.shape());
        output.data()[0] = from.data()[0];
        output.set_scale(from.scale());
        return tape.record(
            {.name = "probe", .site = tape.next_site("probe"), .betas = {beta}, .propagates = propagates}, {x},
            std::move(output), std::move(back));
    }
    /// dx of data 5 and scale 4.
    [[nodiscard]] static Back five_times_four() {
        return [](BackwardContext<double>& g) { g.add(0, Tensor<double>(Shape{1}, {5.0}), 4.0); };
    }
};

Tensor<double> scaled(double data, double scale, bool any_scale = false) {
    Tensor<double> tensor(Shape{1}, {data});
    tensor.set_scale(scale);
    tensor.set_any_scale(any_scale);
    return tensor;
}

}  // namespace

TEST_CASE_METHOD(Propagating, "an op that propagates scales sees data and scales, another one plain numbers") {
    for (const bool propagates : {true, false}) {
        tape.begin_step();
        const auto x = input(3.0, 2.0);
        bool ran = false;
        const auto y = probe(x, 0.1, propagates, [&](BackwardContext<double>& g) {
            ran = true;
            CHECK(g.input(0).data()[0] == (propagates ? 3.0 : 6.0));
            CHECK(g.input_scale(0) == (propagates ? 2.0 : 1.0));
            CHECK(g.output().data()[0] == (propagates ? 3.0 : 6.0));
            CHECK(g.output_scale() == (propagates ? 2.0 : 1.0));
            CHECK(g.output_gradient().data()[0] == (propagates ? 5.0 : 20.0));
            CHECK(g.output_gradient().scale() == (propagates ? 4.0 : 1.0));
            // The ideal factor 0.1 gives 1 / 0.1, rounded down to 8, times the scales 4 and 2.
            const Scaled dx = g.scaled_beta(0, propagates ? 2.0 : 1.0);
            CHECK(dx.scale == (propagates ? 64.0 : 1.0));
            CHECK(dx.factor == (propagates ? 0.125 : 0.1));
            g.add(0, g.take_output_gradient());
        });
        tape.backward(probe(y, 1.0, true, five_times_four()));
        CHECK(ran);
        CHECK(x.gradient().data()[0] == (propagates ? 5.0 : 20.0));
        CHECK(x.gradient().scale() == (propagates ? 4.0 : 1.0));
    }
}

TEST_CASE_METHOD(Fixture, "without propagate every scale is 1 and a factor is the recorded beta") {
    tape.begin_step();
    const auto x = vector_input<double>(tape, {2.0});
    bool ran = false;
    const auto y = probe({x}, {0.25}, 1.0, [&](BackwardContext<double>& g) {
        ran = true;
        CHECK(g.input_scale(0) == 1.0);
        CHECK(g.output_scale() == 1.0);
        CHECK(g.scaled_beta(0).factor == 0.25);
        CHECK(g.scaled_beta(0).scale == 1.0);
        g.add(0, g.take_output_gradient());
    });
    tape.backward(y);
    CHECK(ran);
}

TEST_CASE_METHOD(Propagating, "gradients of one tensor add up as data and scale") {
    tape.begin_step();
    const auto x = input(3.0, 2.0);
    const auto a = probe(x, 1.0, true, five_times_four());
    const auto b =
        probe(x, 1.0, true, [](BackwardContext<double>& g) { g.add(0, Tensor<double>(Shape{1}, {1.0}), 32.0); });
    tape.backward({a, b}, {1.0, 1.0});
    CHECK(x.gradient().scale() == 32.0);
    CHECK(x.gradient().data()[0] == 52.0 / 32.0);
}

TEST_CASE_METHOD(Propagating, "gradients of a parameter add up as data and scale, over micro-batches too") {
    Parameter<double> weight("weight", Shape{1}, {});
    fill_zero(weight.write());
    for (std::size_t part = 0; part < 2; ++part) {
        tape.begin_step({.micro_batches = 2, .micro_batch = part});
        tape.backward(probe(tape.parameter(weight), 1.0, true, five_times_four()));
    }
    CHECK(weight.gradient().scale() == 4.0);
    CHECK(weight.gradient().data()[0] == 10.0);
}

TEST_CASE("a sum of tensors has the scale of sum_scale, or the other tensor's scale if one has any scale") {
    const auto sum = [](Tensor<double> to, const Tensor<double>& part) {
        add_scaled_tensor<double>({1, nullptr}, to, part, ScaleRounding::down);
        return to;
    };
    const auto one = sum(scaled(3.0, 8.0), scaled(5.0, 0.5));
    CHECK(one.scale() == 8.0);
    CHECK(one.data()[0] == 3.0 + 5.0 / 16.0);
    const auto same = sum(scaled(3.0, 8.0), scaled(5.0, 8.0));  // without a factor of 2^1/2
    CHECK(same.scale() == 8.0);
    CHECK(same.data()[0] == 8.0);
    CHECK(sum(scaled(0.0, 1.0, true), scaled(5.0, 0x1p-60)).scale() == 0x1p-60);
    CHECK(sum(scaled(5.0, 0x1p-60), scaled(0.0, 1.0, true)).scale() == 0x1p-60);
    CHECK_FALSE(sum(scaled(5.0, 0x1p-60), scaled(0.0, 1.0, true)).any_scale());
    CHECK(sum(scaled(0.0, 2.0, true), scaled(0.0, 1.0, true)).any_scale());
}

TEST_CASE("a sum of tensors of far scales makes no NaN of zeros and infinities") {
    const auto sum = [](float to, double to_scale, float part, double part_scale, bool any_scale) {
        Tensor<float> all(Shape{1}, {to}), more(Shape{1}, {part});
        all.set_scale(to_scale);
        all.set_any_scale(any_scale);
        more.set_scale(part_scale);
        add_scaled_tensor<float>({1, nullptr}, all, more, ScaleRounding::down);
        return all;
    };
    const float infinity = std::numeric_limits<float>::infinity();
    CHECK(sum(infinity, 0x1p-140, 1.0f, 0x1p120, false).data()[0] == infinity);
    CHECK(sum(1.0f, 0x1p120, -infinity, 0x1p-140, false).data()[0] == -infinity);
    CHECK(sum(0.0f, 1.0, 3.0f, 0x1p-140, true).data()[0] == 3.0f);
    CHECK(sum(0x1p127f, 0x1p-140, 1.0f, 0x1p-4, false).data()[0] == 1.0f + 0x1p-9f);
}

TEST_CASE_METHOD(Propagating, "zeros in place of a gradient that nobody sent go with any scale") {
    tape.begin_step();
    const auto x = input(3.0, 2.0);
    bool ran = false;
    const auto y =
        tape.record_repeats<2>({.name = "two", .site = tape.next_site("two"), .betas = {1.0}, .propagates = true},
                               {&x, 1}, [&](BackwardContext<double>& g) {
                                   ran = true;
                                   CHECK(g.output_gradient(1).any_scale());
                                   CHECK(g.output_scale(1) == 2.0);
                                   g.add(0, g.take_output_gradient(1));
                                   g.add(0, g.take_output_gradient(0));
                               });
    tape.backward(
        probe(y[0], 1.0, true, [](BackwardContext<double>& g) { g.add(0, Tensor<double>(Shape{1}, {5.0}), 0x1p-60); }));
    CHECK(ran);
    CHECK(x.gradient().scale() == 0x1p-60);
    CHECK(x.gradient().data()[0] == 5.0);
}

TEST_CASE_METHOD(Propagating, "the gradients of an op that zeros of any scale arrived at go with any scale too") {
    for (const bool any_scale : {true, false}) {
        tape.begin_step({.retain = true});
        const auto x = input(3.0, 2.0);
        const auto y = probe(x, 1.0, true, [](BackwardContext<double>& g) {
            g.add(0, Tensor<double>(Shape{1}, {2.0 * g.output_gradient().data()[0]}), g.scaled_beta(0).scale);
        });
        const auto z = probe(y, 1.0, true, [=](BackwardContext<double>& g) { g.add(0, scaled(0.0, 1.0, any_scale)); });
        const auto other = probe(x, 1.0, true, [](BackwardContext<double>& g) { g.add(0, scaled(5.0, 0x1p-60)); });
        tape.backward({z, other}, {1.0, 1.0});
        CHECK(y.gradient().any_scale() == any_scale);
        CHECK(x.gradient().scale() == (any_scale ? 0x1p-60 : 1.0));
    }
}

TEST_CASE("backward: the power of two of a loss' seed is a scale under propagate") {
    Tensor<float> gradient(Shape{1});
    for (const float seed : {1.0f, 0.75f, -3e5f, 0x1p-140f}) {
        set_seed(gradient, seed, true);
        CHECK(static_cast<double>(gradient.data()[0]) * gradient.scale() == static_cast<double>(seed));
        if (std::abs(seed) < 0x1p-126f) continue;  // smaller than every scale
        CHECK(std::abs(gradient.data()[0]) >= 1.0f);
        CHECK(std::abs(gradient.data()[0]) < 2.0f);
    }
    for (const auto& [seed, propagates] :
         {std::pair{-3e5f, false}, {0.0f, true}, {std::numeric_limits<float>::infinity(), true}}) {
        set_seed(gradient, seed, propagates);
        CHECK(gradient.data()[0] == seed);
        CHECK(gradient.scale() == 1.0);
    }
}

TEST_CASE("backward: a seed that the tape's type does not hold arrives exactly, whatever the scaling") {
    for (const Scaling scaling : {Scaling::none, Scaling::unit, Scaling::propagate})
        for (const bool propagates : {false, true})
            for (const float seed : {1.0f, 24.0f, 0.3f, -1000.3f, 0x1p17f, 0x1p126f, 1e-9f}) {
                Recipe recipe = recipe_in<Half>({});
                recipe.scaling = scaling;
                ScalingState state;
                Tape<Half> tape(recipe, state);
                tape.begin_step();
                const Variable<Half> x = tape.input(Tensor<Half>(Shape{1}, {Half(1.0f)}), true);
                double seen = 0.0, factor = 1.0;
                const auto site = tape.next_site("probe");
                const auto loss = tape.record({.name = "probe", .site = site, .betas = {1.0}, .propagates = propagates},
                                              {x}, Tensor<Half>(Shape{1}, {Half(1.0f)}), [&](BackwardContext<Half>& g) {
                                                  const Scaled scaled = g.scaled_beta(0);
                                                  seen = g.item_gradient();
                                                  factor = scaled.factor * scaled.scale;
                                                  g.add(0, Tensor<Half>(Shape{1}, {Half(1.0f)}), scaled.scale);
                                                  // Code that reads the gradient as a tensor gets it rounded to the
                                                  // type, and never as a scale that it does not expect.
                                                  if (scaling != Scaling::propagate || !propagates) {
                                                      CHECK(g.output_gradient().scale() == 1.0);
                                                      CHECK(g.output_gradient().data()[0] == Half(seed));
                                                  }
                                              });
                tape.backward(loss, seed);
                INFO(name(scaling) << ", seed " << seed);
                CHECK(seen * factor == static_cast<double>(seed));
            }
}
