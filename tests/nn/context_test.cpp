// SPDX-License-Identifier: MIT
#include <unitscale/nn/context.hpp>

#include "support/catch.hpp"
#include "support/test_ops.hpp"

#include <unitscale/nn/initialise.hpp>
#include <unitscale/nn/module.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/scaling/recipe.hpp>

#include <string>
#include <vector>

using namespace unitscale;

namespace {

constexpr nn::ContextKind kinds[] = {nn::ContextKind::attention, nn::ContextKind::relative_attention,
                                     nn::ContextKind::convolution, nn::ContextKind::recurrence};
const nn::AttentionConfig attention{.width = 8, .heads = 2, .bias = true, .depth = 3};

}  // namespace

TEST_CASE("Context: the layer of each kind, its parameters and their facts") {
    for (const nn::ContextKind kind : kinds) {
        INFO(name(kind));
        nn::Context<float> context("block0", {.kind = kind, .kernel = 3, .convolution_groups = 2}, attention);
        std::vector<Parameter<float>*> parameters;
        context.collect(parameters);
        const std::string path = concatenate("block0/", nn::Context<float>::layer_name(kind), '/');
        for (const Parameter<float>* parameter : parameters) {
            CHECK(parameter->name().starts_with(path));
            CHECK(parameter->facts().depth == 3);
        }
        const Recipe recipe = find_recipe("fp32");
        nn::initialise(parameters, recipe, 1);
        ScalingState state(1);
        Tape<float> tape(recipe, state);
        tape.begin_step();
        const Variable<float> y = context(tape.input(normal<float>({2, 5, 8}, {1, 2})));
        CHECK(y.shape() == Shape{2, 5, 8});
        CHECK(state.path(tape.node(0).site).starts_with(std::string(nn::Context<float>::layer_name(kind))));
    }
}

TEST_CASE("Context: only attention takes past keys and masks") {
    const Recipe recipe = find_recipe("fp32");
    for (const nn::ContextKind kind : kinds) {
        nn::Context<float> context("block0", {.kind = kind, .kernel = 3, .convolution_groups = 2}, attention);
        std::vector<Parameter<float>*> parameters;
        context.collect(parameters);
        nn::initialise(parameters, recipe, 1);
        ScalingState state(1);
        Tape<float> tape(recipe, state);
        tape.begin_step();
        const Variable<float> x = tape.input(normal<float>({2, 5, 8}, {1, 2}));
        const ops::KeyValueRows<float> past{};
        const ops::AttentionMask mask{.lengths = {5, 3}};
        CHECK(context(x, ops::AttentionMask{}).shape() == Shape{2, 5, 8});
        if (kind == nn::ContextKind::attention) {
            CHECK(context(x, mask).shape() == Shape{2, 5, 8});
            continue;
        }
        CHECK_THROWS_WITH(context(x, &past), concatenate("Context: keys and values of past positions; a layer of kind ",
                                                         name(kind), " has none"));
        CHECK_THROWS_WITH(context(x, mask),
                          concatenate("Context: a mask; a layer of kind ", name(kind), " takes none"));
    }
}

TEST_CASE("Context: a multiplier of logits is an error for a layer without logits") {
    nn::AttentionConfig with = attention;
    with.mult = 2.0;
    Recipe recipe = find_recipe("umup-fp32");
    recipe.hyperparameters.alpha_attn = 2.0;
    for (const nn::ContextKind kind : kinds) {
        INFO(name(kind));
        const nn::ContextConfig config{.kind = kind, .kernel = 3, .convolution_groups = 2};
        const bool has_logits = kind == nn::ContextKind::attention || kind == nn::ContextKind::relative_attention;
        if (has_logits) CHECK_NOTHROW(nn::Context<float>("block0", config, with));
        else
            CHECK_THROWS_WITH(nn::Context<float>("block0", config, with),
                              concatenate("Context block0: mult is 2; a layer of kind ", name(kind), " has no logits"));
        nn::Context<float> context("block0", config, attention);
        std::vector<Parameter<float>*> parameters;
        context.collect(parameters);
        nn::initialise(parameters, recipe, 1);
        ScalingState state(1);
        Tape<float> tape(recipe, state);
        tape.begin_step();
        const Variable<float> x = tape.input(normal<float>({2, 5, 8}, {1, 2}));
        if (has_logits) CHECK_NOTHROW(context(x));
        else
            CHECK_THROWS_WITH(context(x), concatenate("Context: the recipe's alpha_attn is 2; a layer of kind ",
                                                      name(kind), " has no logits, expected 1"));
    }
}
