// SPDX-License-Identifier: MIT
#include <unitscale/nn/recurrent.hpp>

#include "support/causal_layer.hpp"
#include "support/highway_sizes.hpp"
#include "support/language_model.hpp"
#include "support/op_checks.hpp"
#include "support/peer_case.hpp"
#include "support/step_sizes.hpp"
#include "support/test_ops.hpp"

#include <unitscale/nn/module.hpp>
#include <unitscale/scaling/known_recipes.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
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

namespace {

const std::map<std::string, std::string> joint_names = {
    {"net/gates/weight", "weight"}, {"net/gates/bias", "bias"}, {"net/first_state", "first_state"}};

}  // namespace

TEST_CASE("JointHighway: parameters and errors") {
    nn::JointHighway<float> layer("net", {.in = 6, .hidden = 4, .depth = 3});
    const auto parameters = nn::parameters_of<float>(layer);
    REQUIRE(parameters.size() == 3);
    CHECK(parameters[0]->name() == "net/gates/weight");
    CHECK(parameters[0]->shape() == Shape{8, 10});
    CHECK(parameters[0]->facts() ==
          ParameterFacts{.role = ParameterRole::weight, .fan_in = 10, .fan_out = 8, .depth = 3, .width = 6});
    CHECK(parameters[1]->shape() == Shape{8});
    CHECK(parameters[2]->name() == "net/first_state");
    CHECK(parameters[2]->shape() == Shape{4});
    CHECK(parameters[2]->facts() ==
          ParameterFacts{.role = ParameterRole::bias, .fan_in = 1, .fan_out = 4, .depth = 3, .width = 6});
    CHECK(layer.config().shift == 1.0);
    // A vector's learning rate, and zeros at first.
    const Recipe recipe = find_recipe("us-fp32");
    CHECK(parameter_scaling(recipe.parametrisation_rule(), parameters[2]->facts()).learning_rate_factor ==
          Approx(std::sqrt(1.0 / 6.0)));
    nn::initialise(parameters, recipe, 1);
    for (const float element : parameters[2]->value().span()) CHECK(element == 0.0f);

    test::OpTape<float> run;
    CHECK_THROWS_WITH(layer(run.input({2, 6})), "JointHighway: x [2,6]; expected [B,T,in] with T at least 1");
    CHECK_THROWS_WITH(layer(run.input({2, 3, 5})), Catch::StartsWith("linear: x [2,1,9] and weight [8,10]"));
}

TEST_CASE("JointHighway: values and gradients agree with another implementation, also under us-fp32") {
    for (const bool unit : {false, true}) {
        test::PeerCase peer("context_layers", unit ? "highway_unit" : "highway_standard",
                            unit ? recipe_in<double>(find_recipe("us-fp32")) : analysis::plain_recipe(Scaling::none));
        nn::JointHighway<double> layer("net", {.in = 8, .hidden = 10});
        peer.load(layer, joint_names);
        const auto x = peer.input("x");
        peer.check(layer(x), {{"dx", x}});
    }
}

TEST_CASE("JointHighway: the product's factors count all positions, the first state's the rows") {
    nn::JointHighway<float> layer("net", {.in = 6, .hidden = 4});
    const Recipe recipe = find_recipe("us-fp32");
    nn::initialise(nn::parameters_of<float>(layer), recipe, 1);
    for (const std::size_t rows : {std::size_t{1}, std::size_t{3}}) {
        ScalingState state(1);
        Tape<float> tape(recipe, state);
        tape.begin_step({.micro_batches = 2});
        const auto y = layer(tape.input(normal<float>({rows, 5, 6}, {1, 1}), true));
        std::size_t products = 0;
        for (std::size_t i = 0; i < tape.node_count(); ++i) {
            const Node<float>& node = tape.node(i);
            const std::string op = node.op;
            INFO(op << " " << i);
            if (op == "linear") {
                ++products;
                CHECK(node.alpha == Approx(std::pow(2.0 * (6 + 4) * 4, -0.25)).epsilon(1e-14));
                CHECK(node.betas[0] == node.alpha);
                CHECK(node.betas[1] == Approx(1.0 / std::sqrt(2.0 * static_cast<double>(rows) * 5.0)));
                CHECK(node.betas[2] / node.alpha == Approx(node.betas[1]).epsilon(1e-14));  // it stands beside alpha
            } else {
                CHECK(node.alpha == 1.0);
                CHECK(node.betas[0] == 1.0);
                if (op == "add") CHECK(node.betas[1] == Approx(1.0 / std::sqrt(2.0 * static_cast<double>(rows))));
            }
        }
        CHECK(products == 5);
        CHECK(y.shape() == Shape{rows, 5, 4});
        CHECK_FALSE(state.has_plan());
    }
}

TEST_CASE("JointHighway: finite differences, threads, propagate, half precision, causality") {
    test::check_causal_layer<nn::JointHighway>(nn::JointHighwayConfig{.in = 6, .hidden = 4}, 8.0);
}

TEST_CASE("JointHighway: the audit finds the factors valid under both rules") {
    test::check_audit<nn::JointHighway>(nn::JointHighwayConfig{.in = 4, .hidden = 4});
}

TEST_CASE("JointHighway: sizes of values and gradients at initialisation are those of a convex combination") {
    constexpr std::size_t rows = 128, steps = 32, width = 32;
    nn::JointHighway<float> layer("net", {.in = width, .hidden = width});
    const auto parameters = nn::parameters_of<float>(layer);
    const Recipe recipe = find_recipe("us-fp32");
    nn::initialise(parameters, recipe, 1);
    ScalingState state(1);
    Tape<float> tape(recipe, state);
    tape.begin_step({.retain = true});
    const auto x = tape.input(normal<float>({rows, steps, width}, {1, 1}), true), y = layer(x);
    tape.backward(analysis::project(y, normal<float>({rows, steps, width}, {1, 2})));
    const test::HighwaySizes expected = test::highway_sizes(layer.config().shift);
    const auto check_size = [](const std::string& what, const Tensor<float>& tensor, double size, double tolerance) {
        const double rms = root_mean_square(tensor);
        INFO(what << ": rms " << rms << ", expected " << size);
        CHECK(rms > size / tolerance);
        CHECK(rms < size * tolerance);
    };
    std::size_t products = 0, states = 0;
    for (std::size_t i = 0; i < tape.node_count(); ++i) {
        const std::string op = tape.node(i).op;
        const Slot<float>& slot = tape.slot(tape.node(i).outputs[0]);
        if (op == "linear") {
            check_size("input of the gates", *slot.value, std::sqrt((1.0 + expected.state * expected.state) / 2.0),
                       1.2);
            // No position follows the last ones, so that less gradient arrives there.
            check_size("its gradient", slot.gradient, expected.gates, ++products > steps - 6 ? 2.0 : 1.2);
        } else if (op == "lerp") {
            // Each position moves the first state, 0, towards its final size.
            check_size("state", *slot.value, expected.state, ++states > 5 ? 1.2 : 2.2);
        }
    }
    REQUIRE(products == steps);
    check_size("y", y.value(), expected.state, 1.1);
    check_size("gradient of x", x.gradient(), expected.gates, 1.1);
    check_size("gradient of the first state", parameters[2]->gradient(), expected.before, 1.3);
    const double weight = expected.gates * std::sqrt((1.0 + expected.state * expected.state) / 2.0);
    check_size("gradient of the weight", parameters[0]->gradient(), weight, 1.2);
    // Half of its 64 elements hold nearly all of it: a sample of 32 numbers.
    check_size("gradient of the bias", parameters[1]->gradient(), expected.bias, 1.5);
}
