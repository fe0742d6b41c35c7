// SPDX-License-Identifier: MIT
#include <unitscale/record/prepared_operand.hpp>

#include "support/op_checks.hpp"

#include <unitscale/ops/matmul.hpp>
#include <unitscale/ops/mul.hpp>
#include <unitscale/ops/scale.hpp>
#include <unitscale/ops/sum.hpp>

#include <vector>

using namespace unitscale;

namespace {

/// The gradients of both operands of a batched product, and whether the tape kept each operand's value.
struct Outcome {
    std::vector<float> gradients;
    std::vector<bool> values;
};
Outcome run(const Recipe& recipe, bool held) {
    ScalingState state(1);
    Tape<float> tape(recipe, state);
    tape.begin_step();
    const auto first = tape.input(normal<float>({3, 20, 33}, {1, 1}), true),
               second = tape.input(normal<float>({3, 33, 17}, {2, 2}), true);
    auto x = ops::scale_forward(first, 0.5), w = ops::scale_forward(second, 2.0);  // slots 2 and 3
    const auto y = ops::matmul(x, w);
    std::vector<Variable<float>> keep;
    if (held) keep = {x, w};
    x = w = {};
    static_cast<void>(tape.make(Shape{1}));
    Outcome outcome{.gradients = {}, .values = {tape.slot(2).value != nullptr, tape.slot(3).value != nullptr}};
    tape.backward(ops::sum(ops::mul(y, tape.input(normal<float>({3, 20, 17}, {3, 3})))));
    for (const auto& input : {first, second})
        outcome.gradients.insert(outcome.gradients.end(), input.gradient().data(),
                                 input.gradient().data() + input.gradient().size());
    return outcome;
}
Recipe rounding(const Quantiser& activation) {
    Recipe recipe = analysis::plain_recipe(Scaling::unit);
    recipe.products.push_back(
        {.kind = ProductKind::matmul, .formats = {.activation = activation, .gradient = Quantiser{.format = e5m2}}});
    return recipe;
}

}  // namespace

TEST_CASE("prepared_operand: both operands of a product kept as codes give the bits of the operands themselves") {
    const Quantiser stochastic{.format = e4m3,
                               .rounding = Rounding::stochastic};  // each operand has its own random stream
    for (const Quantiser& activation : {Quantiser{.format = e4m3}, Quantiser{.format = e5m2fnuz}, stochastic}) {
        INFO(name(activation.format));
        const Outcome freed = run(rounding(activation), false), kept = run(rounding(activation), true);
        CHECK(freed.values == std::vector<bool>{false, false});
        CHECK(kept.values == std::vector<bool>{true, true});
        CHECK(freed.gradients == kept.gradients);
    }
}

TEST_CASE("prepared_operand: operands of more than 8 bits are kept as they are") {
    CHECK(run(rounding({.format = bf16}), false).values == std::vector<bool>{true, true});
    CHECK(run(analysis::plain_recipe(Scaling::unit), false).values == std::vector<bool>{true, true});
}
