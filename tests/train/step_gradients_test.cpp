// SPDX-License-Identifier: MIT
#include <unitscale/train/step_gradients.hpp>

#include "support/catch.hpp"
#include "support/thread_group.hpp"

#include <unitscale/autograd/parameter.hpp>
#include <unitscale/autograd/tape.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/tensor/fill.hpp>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

using namespace unitscale;

TEST_CASE("the scale of all gradients of a parameter follows the tree, and leaves out what is not there") {
    Recipe recipe = find_recipe("scalify-fp16-1");
    recipe.storage.element = ElementType::float32;
    ScalingState state(1);
    Tape<float> tape(recipe, state);
    Parameter<float> parameter("p", {2}, {});
    train::ProcessGroup group;
    train::StepGradients<float> step{.group = &group, .tape = &tape, .count = 3, .parameters = {&parameter}};
    const auto node = [](std::size_t i, double scale, bool present, bool any = false) {
        return train::ProcessNode{0, {i, i + 1}, {{scale, present, any}}};
    };
    CHECK(step.rounding() == recipe.propagate.rounding);
    step.nodes = {node(0, 4.0, true), node(1, 4.0, true), node(2, 4.0, true)};
    CHECK(step.scale_of_all(0).scale == 4.0);
    step.nodes = {node(0, 4.0, true), node(1, 1.0, true), node(2, 8.0, true)};
    const double pair = scale_of_sum({4.0, false}, {1.0, false}, step.rounding(), 0).scale;
    CHECK(step.scale_of_all(0).scale == scale_of_sum({pair, false}, {8.0, false}, step.rounding(), 0).scale);
    step.nodes = {node(0, 4.0, false), node(1, 2.0, true), node(2, 8.0, false)};
    CHECK(step.scale_of_all(0).scale == 2.0);
    step.nodes = {node(0, 4.0, true, true), node(1, 2.0, true), node(2, 8.0, true, true)};
    CHECK(step.scale_of_all(0).scale == 2.0);
    CHECK_FALSE(step.scale_of_all(0).any);
    step.nodes = {node(0, 4.0, false), node(1, 2.0, false), node(2, 8.0, false)};
    CHECK(step.scale_of_all(0).scale == 1.0);
    CHECK(step.scale_word(0, {0, 2}) == 0);
    recipe.propagate.rounding = ScaleRounding::stochastic;
    Tape<float> stochastic(recipe, state);
    step.tape = &stochastic;
    CHECK(step.scale_word(0, {0, 2}) != step.scale_word(0, {0, 3}));
}

TEST_CASE("bytes that stay in a process are not counted") {
    test::in_group(3, [](const std::shared_ptr<train::ProcessGroup>& group) {
        train::StepGradients<float> step{.group = group.get()};
        const std::vector<std::size_t> parts = {1, 20, 300};
        step.count_sent(parts, 4000);
        CHECK(step.sent_bytes == 321 - parts[group->rank()] + 8000);
    });
}
