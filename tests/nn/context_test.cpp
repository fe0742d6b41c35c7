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

nn::ContextConfig config_of(nn::ContextKind kind) { return {.kind = kind, .kernel = 3, .convolution_groups = 2}; }

/// A layer with initial weights, on a tape in a step.
struct Setting {
    nn::Context<float> context;
    std::vector<Parameter<float>*> parameters{};
    ScalingState state{1};
    Tape<float> tape;

    explicit Setting(nn::ContextKind kind, const Recipe& recipe = find_recipe("fp32"))
        : context("block0", config_of(kind), attention), tape(recipe, state) {
        context.collect(parameters);
        nn::initialise(parameters, recipe, 1);
        tape.begin_step();
    }
    Variable<float> input() { return tape.input(normal<float>({2, 5, 8}, {1, 2})); }
};

}  // namespace

TEST_CASE("Context: the layer of each kind, its parameters and their facts") {
    for (const nn::ContextKind kind : kinds) {
        INFO(name(kind));
        Setting setting(kind);
        const std::string layer(nn::Context<float>::layer_name(kind));
        for (const Parameter<float>* parameter : setting.parameters) {
            CHECK(parameter->name().starts_with(concatenate("block0/", layer, '/')));
            CHECK(parameter->facts().depth == 3);
        }
        const Variable<float> y = setting.context(setting.input());
        CHECK(y.shape() == Shape{2, 5, 8});
        CHECK(setting.state.path(setting.tape.node(0).site).starts_with(layer));
    }
}

TEST_CASE("Context: only attention takes past keys and masks") {
    for (const nn::ContextKind kind : kinds) {
        Setting setting(kind);
        nn::Context<float>& context = setting.context;
        const Variable<float> x = setting.input();
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
        const bool has_logits = kind == nn::ContextKind::attention || kind == nn::ContextKind::relative_attention;
        if (has_logits) CHECK_NOTHROW(nn::Context<float>("block0", config_of(kind), with));
        else
            CHECK_THROWS_WITH(nn::Context<float>("block0", config_of(kind), with),
                              concatenate("Context block0: mult is 2; a layer of kind ", name(kind), " has no logits"));
        Setting setting(kind, recipe);
        const Variable<float> x = setting.input();
        if (has_logits) CHECK_NOTHROW(setting.context(x));
        else
            CHECK_THROWS_WITH(setting.context(x), concatenate("Context: the recipe's alpha_attn is 2; a layer of kind ",
                                                              name(kind), " has no logits, expected 1"));
    }
}
