// SPDX-License-Identifier: MIT
#include <unitscale/record/bias.hpp>

#include <unitscale/analysis/audit.hpp>
#include <unitscale/ops/conv1d.hpp>
#include <unitscale/ops/linear.hpp>
#include <unitscale/ops/readout.hpp>

#include "support/op_checks.hpp"
#include "support/test_ops.hpp"

#include <cmath>
#include <string>

using namespace unitscale;

namespace {

const auto linear = [](auto&, auto& v) { return ops::linear(v[0], v[1], v[2]); };
const auto readout = [](auto&, auto& v) { return ops::readout(v[0], v[1], v[2]); };
const auto conv1d = [](auto&, auto& v) { return ops::conv1d(v[0], v[1], v[2]); };

Recipe beside(Constraint constraint = Constraint::automatic) {
    Recipe recipe = analysis::plain_recipe(Scaling::unit);
    recipe.constraint = constraint;
    recipe.bias_inside_alpha = false;
    return recipe;
}

}  // namespace

TEST_CASE("bias: beside alpha, values and gradients are the scaled product's plus the bias itself") {
    const auto check_op = [](auto&& op, const std::vector<Shape>& shapes) {
        const auto inputs = test::normal_inputs<double>(shapes);
        auto bare = inputs;
        for (double& b : bare[2].span()) b = 0.0;
        for (const Constraint constraint : {Constraint::automatic, Constraint::none, Constraint::gmean}) {
            const auto with = analysis::run_op<double>(beside(constraint), inputs, op);
            const auto without = analysis::run_op<double>(beside(constraint), bare, op);
            Recipe usual = beside(constraint);
            usual.bias_inside_alpha = true;
            const auto inside = analysis::run_op<double>(usual, bare, op);
            CHECK(analysis::relative_error(without.value, inside.value) < 1e-14);  // alpha is as it was
            CHECK(analysis::relative_error(with.gradients[0], inside.gradients[0]) < 1e-14);
            CHECK(analysis::relative_error(with.gradients[1], inside.gradients[1]) < 1e-14);
            const std::size_t outs = shapes[2][0], lines = shapes[0].size() == 2 ? 1 : with.value.size() / outs / 2;
            for (std::size_t i = 0; i < with.value.size(); ++i) {
                const std::size_t out = i / lines % outs;
                CHECK(with.value.data()[i] - without.value.data()[i] ==
                      Approx(inputs[2].data()[out]).epsilon(1e-12).margin(1e-13));
            }
            // dbias = N^-1/2 times the sum of dy, whatever alpha the rule gives.
            CHECK(analysis::relative_error(with.gradients[2], inside.gradients[2]) < 1e-14);
        }
    };
    check_op(linear, {{6, 5}, {3, 5}, {3}});
    check_op(readout, {{6, 5}, {3, 5}, {3}});
    check_op(conv1d, {{2, 4, 7}, {3, 4, 2}, {3}});
}

TEST_CASE("bias: beside alpha, gradients are the audit's constants times the true ones") {
    for (const Constraint constraint : {Constraint::automatic, Constraint::none, Constraint::gmean}) {
        const Recipe recipe = beside(constraint);
        std::vector<Tensor<double>> gradients[2];
        double s = 0.0;
        for (const bool true_gradients : {false, true}) {
            ScalingState state;
            Tape<double> tape(recipe, state);
            tape.begin_step({.true_gradients = true_gradients});
            const auto inputs = test::normal_inputs<double>({{6, 5}, {3, 5}, {3}});
            std::vector<Variable<double>> v;
            for (const auto& input : inputs) v.push_back(tape.input(input, true));
            const auto loss = analysis::project(linear(tape, v), normal<double>({6, 3}, {3, 3}));
            if (!true_gradients) {
                const analysis::Audit audit = analysis::audit(tape, loss);
                CHECK(audit.valid());
                s = audit.leaves[2].s;
            }
            tape.backward(loss);
            for (const auto& one : v) gradients[true_gradients].push_back(Tensor<double>(one.gradient()));
        }
        CHECK(analysis::relative_error(gradients[0][2], gradients[1][2], s) < 1e-12);
    }
}

TEST_CASE("bias: no bias stays none") {
    const auto alone = [](auto&, auto& v) { return ops::linear(v[0], v[1]); };
    const auto two = test::normal_inputs<float>({{6, 5}, {3, 5}});
    CHECK(test::elements(analysis::run_op<float>(beside(), two, alone).value) ==
          test::elements(analysis::run_op<float>(analysis::plain_recipe(Scaling::unit), two, alone).value));
}
