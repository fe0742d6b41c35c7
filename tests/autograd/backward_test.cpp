// SPDX-License-Identifier: MIT
#include <unitscale/autograd/backward.hpp>

#include "support/catch.hpp"
#include "support/test_ops.hpp"

#include <array>
#include <functional>
#include <vector>

using namespace unitscale;
using namespace unitscale::test;

namespace {

using Back = std::function<void(BackwardContext<double>&)>;

/// Records an op with any backward function on one or two inputs; its value is the first input's.
Variable<double> probe(std::initializer_list<Variable<double>> inputs, std::initializer_list<double> betas, double alpha,
                       Back back) {
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

TEST_CASE_METHOD(Fixture,
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

TEST_CASE_METHOD(Fixture, "the betas and output weights that were recorded, and all of them alpha and 1 for true gradients") {
    for (const bool true_gradients : {false, true}) {
        tape.begin_step({.true_gradients = true_gradients});
        const auto x = vector_input<double>(tape, {2.0});
        std::array<double, 3> seen{};
        const auto y = tape.record_repeats<2>(
            {.name = "f", .site = tape.next_site("f"), .alpha = 0.5, .betas = {8.0}, .output_weights = {3.0, 4.0}}, {x},
            [&seen](BackwardContext<double>& g) {
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
    REQUIRE_THROWS_WITH(tape.backward(sum(z)), "backward: gradient of shape [3] for the output of square, which has shape [2]");
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
    REQUIRE(results[0].data()[5] == normal<float>(Shape{6}, {1, 2}).data()[5] + normal<float>(Shape{6}, {3, 4}).data()[5]);
}
