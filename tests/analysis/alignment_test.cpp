// SPDX-License-Identifier: MIT
#include <unitscale/analysis/alignment.hpp>
#include <unitscale/ops/add.hpp>
#include <unitscale/ops/gelu.hpp>
#include <unitscale/ops/matmul.hpp>
#include <unitscale/ops/mean.hpp>
#include <unitscale/ops/residual.hpp>
#include <unitscale/ops/tanh.hpp>
#include <unitscale/ops/weighted_add.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/tensor/fill.hpp>

#include "support/catch.hpp"

#include <cmath>
#include <stdexcept>
#include <string>

using namespace unitscale;

namespace {

Recipe exact(bool measured) {
    Recipe recipe = find_recipe("aligned-fp32");
    recipe.propagate.measured = measured;
    return recipe_in<double>(recipe);
}

/// A weight that is used twice: y = mean of tanh(x w) + (x w) w, and the alignment of its step.
struct TwoUses {
    explicit TwoUses(const Recipe& recipe)
        : tape(recipe, state), weight("weight", Shape{64, 64}, {.fan_in = 64, .fan_out = 64}) {
        Tensor<double>& value = weight.write();
        fill_normal(value, {1, 1}, 1.0);
        value.set_scale(0.02);
    }
    Variable<double> loss() {
        const auto x = tape.input(normal<double>({256, 64}, {1, 2}));
        const auto w = tape.parameter(weight);
        const auto h = ops::matmul(x, w), bent = ops::tanh(h);
        return ops::mean(ops::add(bent, ops::matmul(h, w)));
    }
    analysis::Alignment run() {
        tape.plan([&] { return loss(); });
        tape.begin_step({.retain = true});
        tape.backward(loss());
        return analysis::alignment(tape);
    }
    ScalingState state{1};
    Tape<double> tape;
    Parameter<double> weight;
};

const analysis::AlignedOp& op_of(const analysis::Alignment& alignment, const std::string& path) {
    for (const auto& op : alignment.ops)
        if (op.path == path) return op;
    throw std::runtime_error("no op " + path);
}

}  // namespace

TEST_CASE("alignment: s1, s2 and shares of a step whose standard deviations are known") {
    for (const bool measured : {false, true}) {
        INFO("measured " << measured);
        TwoUses model(exact(measured));
        const analysis::Alignment alignment = model.run();
        const double h = 0.02 * 8.0, g = h * 0.02 * 8.0;  // x w, and (x w) w
        const double tolerance = measured ? 0.05 : 1e-12;
        const auto& tanh = op_of(alignment, "tanh");
        CHECK(tanh.inputs.at(0).from == "matmul");
        CHECK(tanh.inputs.at(0).sigma == Approx(h).epsilon(tolerance));
        CHECK_FALSE(tanh.inputs.at(0).share);
        // tanh is nearly the identity here; its rule gives scale 1, which says nothing of its value.
        CHECK(tanh.sigma == Approx(measured ? h : 1.0).epsilon(tolerance));
        const auto& add = op_of(alignment, "add");
        CHECK(add.inputs.at(1).from == "matmul.1");
        CHECK(add.inputs.at(1).sigma == Approx(g).epsilon(tolerance));
        const double first = add.inputs.at(0).sigma, second = add.inputs.at(1).sigma;
        CHECK(add.inputs.at(0).share.value() == Approx(first * first / (first * first + second * second)));
        CHECK(add.inputs.at(0).share.value() + add.inputs.at(1).share.value() == Approx(1.0));
        CHECK(add.sigma == Approx(std::hypot(first, second)).epsilon(tolerance));
    }
}

TEST_CASE("alignment: a weight of two uses adds its gradients with weights by their sigmas") {
    TwoUses model(exact(true));
    const analysis::Alignment alignment = model.run();
    REQUIRE(alignment.parameters.size() == 1);
    const analysis::AlignedParameter& weight = alignment.parameters.front();
    CHECK(weight.name == "weight");
    CHECK(weight.sigma == 0.02);
    CHECK(weight.gradient == model.weight.gradient().scale());
    REQUIRE(weight.uses.size() == 2);
    CHECK(weight.uses[0].op == "matmul");
    CHECK(weight.uses[1].op == "matmul.1");
    for (const auto& use : weight.uses)
        CHECK(use.weight == Approx(use.sigma / std::hypot(weight.uses[0].sigma, weight.uses[1].sigma)));
    // x^T dh, with x of size 1, beside h^T dy with h of size 0.16.
    CHECK(weight.uses[0].sigma / weight.uses[1].sigma == Approx(1.0 / 0.16).epsilon(0.1));
    CHECK(weight.gradient == Approx(std::hypot(weight.uses[0].sigma, weight.uses[1].sigma)));
    CHECK(root_mean_square(model.weight.gradient()) / weight.gradient == Approx(1.0).epsilon(0.1));
}

TEST_CASE("alignment: shares of residual and weighted sums count the weights") {
    ScalingState state(1);
    Tape<double> tape(exact(false), state);
    tape.begin_step({.retain = true});
    Tensor<double> large = normal<double>({8, 8}, {1, 1}), small = normal<double>({8, 8}, {1, 2});
    large.set_scale(4.0);
    small.set_scale(2.0);
    const auto x = tape.input(std::move(large), true), z = tape.input(std::move(small), true);
    const auto sum = ops::weighted_add({x, z}, {1.0, -3.0});
    tape.backward(ops::mean(ops::residual_add(sum, x, 2.0)));
    const analysis::Alignment alignment = analysis::alignment(tape);
    const auto& weighted = op_of(alignment, "weighted_add");
    CHECK(weighted.inputs.at(0).share.value() == Approx(16.0 / 52.0));
    CHECK(weighted.inputs.at(1).share.value() == Approx(36.0 / 52.0));
    const auto& residual = op_of(alignment, "residual_add");  // weights 2 and 1, over 5^1/2
    CHECK(residual.inputs.at(0).share.value() == Approx(4.0 * 52.0 / (4.0 * 52.0 + 16.0)));
    CHECK(residual.inputs.at(1).share.value() == Approx(16.0 / (4.0 * 52.0 + 16.0)));
    CHECK(residual.gradient.has_value());
}

TEST_CASE("alignment: the caller's own sigmas take the place of measured ones, and change no value") {
    TwoUses model(exact(true)), other(exact(true));
    static_cast<void>(model.run());
    other.state.set_plan({{"tanh", 0.25}, {"matmul.1|d1", 0.5}});
    const analysis::Alignment alignment = other.run();
    CHECK(op_of(alignment, "tanh").sigma == 0.25);
    CHECK(alignment.parameters.at(0).uses.at(0).sigma == 0.5);
    for (std::size_t i = 0; i < model.weight.size(); i += 97)
        CHECK(other.weight.gradient().data()[i] * other.weight.gradient().scale() ==
              Approx(model.weight.gradient().data()[i] * model.weight.gradient().scale()).epsilon(1e-9).margin(1e-12));
}

TEST_CASE("alignment: as text, and errors") {
    TwoUses model(exact(false));
    CHECK(to_text(model.run()) ==
          "op        sigma of inputs  shares       sigma     sigma of gradient\n"
          "matmul    1 0.02           -            0.16      6.181e-05\n"
          "tanh      0.16             -            1         6.104e-05\n"
          "matmul.1  0.16 0.02        -            0.0256    6.104e-05\n"
          "add       1 0.0256         0.999 0.001  1         6.104e-05\n"
          "mean      1                -            0.007815  1\n"
          "\n"
          "parameter  sigma  sigma of gradient  weights of gradients\n"
          "weight     0.02   0.001001           -\n");
    model.tape.begin_step({.retain = true});
    static_cast<void>(model.loss());
    CHECK_THROWS_WITH(analysis::alignment(model.tape),
                      "alignment: expected a step begun with {.retain = true}, and its backward pass");
    ScalingState state(1);
    Tape<double> plain(recipe_in<double>(find_recipe("fp32")), state);
    CHECK_THROWS_WITH(analysis::alignment(plain),
                      "alignment: the recipe 'fp32' has the scaling none; expected propagate");
}
