// SPDX-License-Identifier: MIT
#include <unitscale/nn/recurrent.hpp>

#include "support/language_model.hpp"
#include "support/op_checks.hpp"
#include "support/step_sizes.hpp"
#include "support/test_ops.hpp"

#include <unitscale/nn/module.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

using namespace unitscale;

namespace {

constexpr std::size_t batch = 2, length = 3, in = 4, hidden = 5;
double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

/// A layer's parameters and input, and the sums of its gates by hand.
template <class Layer>
struct ByHand {
    ByHand(Layer& layer, std::size_t gates) : gates_(gates), parameters(nn::parameters_of<double>(layer)) {
        test::randomise(parameters, 0.5);
    }
    [[nodiscard]] const Tensor<double>* parameter(const std::string& name) const {
        for (const Parameter<double>* p : parameters)
            if (p->name() == name) return &p->value();
        return nullptr;
    }
    /// Row r of `path`'s weight times v, plus bias.
    [[nodiscard]] double product(const std::string& path, std::size_t r, const std::vector<double>& v) const {
        const Tensor<double>*weight = parameter(path + "/weight"), *bias = parameter(path + "/bias");
        double sum = bias != nullptr ? (*bias)(r) : 0.0;
        for (std::size_t i = 0; i < v.size(); ++i) sum += (*weight)(r, i) * v[i];
        return sum;
    }
    [[nodiscard]] double a(std::size_t gate, std::size_t j, const std::vector<double>& x) const {
        return product("net/input", gate * hidden + j, x);
    }
    [[nodiscard]] double b(std::size_t gate, std::size_t j, const std::vector<double>& h) const {
        return product("net/state", gate * hidden + j, h);
    }

    std::size_t gates_;
    std::vector<Parameter<double>*> parameters;
};

/// Checks y [batch,length,hidden] against `step(x_t, h)`, which returns the next h.
template <class Step>
void check_steps(const Tensor<double>& x, const Tensor<double>& y, const Tensor<double>* h0, Step step) {
    REQUIRE(y.shape() == Shape{batch, length, hidden});
    for (std::size_t i = 0; i < batch; ++i) {
        std::vector<double> h(hidden, 0.0), memory(hidden, 0.0);
        if (h0 != nullptr)
            for (std::size_t j = 0; j < hidden; ++j) h[j] = (*h0)(i, j);
        for (std::size_t t = 0; t < length; ++t) {
            std::vector<double> x_t(in);
            for (std::size_t k = 0; k < in; ++k) x_t[k] = x(i, t, k);
            h = step(x_t, h, memory);
            for (std::size_t j = 0; j < hidden; ++j) CHECK(y(i, t, j) == Approx(h[j]).epsilon(1e-12));
        }
    }
}
using Row = std::vector<double>;

}  // namespace

TEST_CASE("Gru: each step is the textbook's") {
    nn::Gru<double> gru("net", {.in = in, .hidden = hidden});
    ByHand hand(gru, 3);
    REQUIRE(hand.parameters.size() == 4);
    test::OpTape<double> run(Scaling::none);
    const auto x = run.input({batch, length, in}), h0 = run.input({batch, hidden}, 9);
    const auto step = [&](const Row& x_t, const Row& h, Row&) {
        Row next(hidden);
        for (std::size_t j = 0; j < hidden; ++j) {
            const double r = sigmoid(hand.a(0, j, x_t) + hand.b(0, j, h)),
                         z = sigmoid(hand.a(1, j, x_t) + hand.b(1, j, h)),
                         n = std::tanh(hand.a(2, j, x_t) + r * hand.b(2, j, h));
            next[j] = (1.0 - z) * n + z * h[j];
        }
        return next;
    };
    check_steps(x.value(), gru(x).value(), nullptr, step);
    check_steps(x.value(), gru(x, h0).value(), &h0.value(), step);
    CHECK(run.state.path(run.tape.node(0).site) == "net/input/linear");
    CHECK_THROWS_WITH(gru(run.input({batch, in})), "Gru: x [2,4]; expected [B,T,in] with T at least 1");
    CHECK_THROWS_WITH(gru(x, run.input({batch, in})), "Gru: first state [2,4]; expected [2,5]");
}

TEST_CASE("Lstm: each step is the textbook's") {
    nn::Lstm<double> lstm("net", {.in = in, .hidden = hidden});
    ByHand hand(lstm, 4);
    test::OpTape<double> run(Scaling::none);
    const auto x = run.input({batch, length, in});
    check_steps(x.value(), lstm(x).value(), nullptr, [&](const Row& x_t, const Row& h, Row& memory) {
        Row next(hidden);
        for (std::size_t j = 0; j < hidden; ++j) {
            const auto sum = [&](std::size_t gate) { return hand.a(gate, j, x_t) + hand.b(gate, j, h); };
            memory[j] = sigmoid(sum(1)) * memory[j] + sigmoid(sum(0)) * std::tanh(sum(2));
            next[j] = sigmoid(sum(3)) * std::tanh(memory[j]);
        }
        return next;
    });
    CHECK_THROWS_WITH(lstm(x, {}, run.input({hidden})), "Lstm: first state [5]; expected [2,5]");
}

TEST_CASE("Highway: each step is the textbook's, with one bias") {
    nn::Highway<double> highway("net", {.in = in, .hidden = hidden}, 1.0);
    ByHand hand(highway, 2);
    REQUIRE(hand.parameters.size() == 3);
    test::OpTape<double> run(Scaling::none);
    const auto x = run.input({batch, length, in});
    check_steps(x.value(), highway(x).value(), nullptr, [&](const Row& x_t, const Row& h, Row&) {
        Row next(hidden);
        for (std::size_t j = 0; j < hidden; ++j) {
            const double u = sigmoid(hand.a(1, j, x_t) + hand.b(1, j, h) - 1.0);
            next[j] = (1.0 - u) * h[j] + u * std::tanh(hand.a(0, j, x_t) + hand.b(0, j, h));
        }
        return next;
    });
}

TEMPLATE_TEST_CASE("recurrent layers: gradients of all parameters agree with finite differences", "", nn::Gru<double>,
                   nn::Lstm<double>, nn::Highway<double>) {
    TestType layer("net", {.in = 3, .hidden = 4});
    const auto parameters = nn::parameters_of<double>(layer);
    test::randomise(parameters, 0.5);
    const Recipe recipe = analysis::plain_recipe(Scaling::none);
    const Tensor<double> x = normal<double>({2, 4, 3}, {1, 1}), direction = normal<double>({2, 4, 4}, {1, 2});
    ScalingState state(1);
    Tape<double> tape(recipe, state);
    const auto loss = [&] {
        tape.begin_step();
        return analysis::project(layer(tape.input(x)), direction);
    };
    tape.backward(loss());
    for (Parameter<double>* parameter : parameters) {
        const Tensor<double> gradient = parameter->gradient();
        for (std::size_t i = 0; i < parameter->size(); i += 3) {
            INFO(parameter->name() << " " << i);
            const double before = parameter->value().data()[i], step = 1e-5;
            parameter->write().data()[i] = before + step;
            const double above = loss().item();
            parameter->write().data()[i] = before - step;
            const double below = loss().item();
            parameter->write().data()[i] = before;
            CHECK(gradient.data()[i] == Approx((above - below) / (2.0 * step)).epsilon(1e-6).margin(1e-7));
        }
    }
}

TEMPLATE_TEST_CASE("recurrent layers: over 32 steps all values and gradients have unit size at initialisation", "",
                   nn::Gru<float>, nn::Lstm<float>, nn::Highway<float>) {
    constexpr std::size_t rows = 256, steps = 32, width = 32;
    TestType layer("net", {.in = width, .hidden = width});
    const auto run = [&](Tape<float>& tape) {
        const auto input = [&](const Shape& shape, std::uint64_t stream) {
            return tape.input(normal<float>(shape, {1, stream}), true);
        };
        const auto x = input({rows, steps, width}, 1), h0 = input({rows, width}, 3);
        Variable<float> y;
        if constexpr (std::is_same_v<TestType, nn::Lstm<float>>) y = layer(x, h0, input({rows, width}, 4));
        else y = layer(x, h0);
        return analysis::project(y, normal<float>({rows, steps, width}, {1, 2}));
    };
    // A gate's input has the least gradient: the state's times the derivative of the choice (0.30, see `ops::lerp`),
    // and times the sum's 2^-1/2. The state's first gradients are the smallest.
    test::check_unit_sizes(layer, run, {.least_gradient = 0.06});
}
