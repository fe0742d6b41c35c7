// SPDX-License-Identifier: MIT
#include <unitscale/nn/transformer_block.hpp>

#include "support/language_model.hpp"
#include "support/op_checks.hpp"
#include "support/test_ops.hpp"

using namespace unitscale;

namespace {

nn::TransformerBlockConfig config_of(nn::NormPlacement placement, std::optional<ResidualRule> residual) {
    return {.attention = {.width = 4, .heads = 2},
            .feed_forward = {.width = 4, .hidden = 6},
            .norm = {.gains = true},
            .placement = placement,
            .residual = residual,
            .index = 1,
            .count = 3};
}

/// The block written out: two residual layers around an attention and a feed-forward with equal parameter names.
template <class Layer, class Norm>
Variable<float> by_hand(Variable<float> x, nn::NormPlacement placement, std::optional<double> tau, Layer& layer,
                        Norm& norm) {
    auto [inner, stream] = ops::residual_split(x, tau);
    if (placement == nn::NormPlacement::pre) inner = norm(inner);
    const auto sum = ops::residual_add(layer(inner), stream, tau);
    return placement == nn::NormPlacement::post ? norm(sum) : sum;
}

}  // namespace

TEST_CASE("TransformerBlock: attention and feed-forward in two residual layers, wherever the norms are") {
    struct Case {
        nn::NormPlacement placement;
        std::optional<ResidualRule> residual;
        std::optional<double> tau[2];
    };
    // Residual layers 2 and 3 of 6: running mean 1/sqrt(3), 1/sqrt(4); depth 1/sqrt(3 + 2), 1/sqrt(3 + 3).
    const Case cases[] = {
        {nn::NormPlacement::pre, ResidualRule{.scheme = ResidualScheme::plain}, {{}, {}}},
        {nn::NormPlacement::post, ResidualRule{.scheme = ResidualScheme::fixed, .tau = 0.5}, {0.5, 0.5}},
        {nn::NormPlacement::none, ResidualRule{.scheme = ResidualScheme::running_mean}, {1.0 / std::sqrt(3.0), 0.5}},
        {nn::NormPlacement::pre,
         ResidualRule{.scheme = ResidualScheme::depth},
         {1.0 / std::sqrt(5.0), 1.0 / std::sqrt(6.0)}},
        {nn::NormPlacement::pre, {}, {{}, {}}},  // the recipe's rule: plain
    };
    for (const Case& c : cases) {
        nn::TransformerBlock<double> unused("block1", {});  // other element types compile
        nn::TransformerBlock<float> block("block1", config_of(c.placement, c.residual));
        nn::Attention<float> attention("block1/attention", {.width = 4, .heads = 2});
        nn::FeedForward<float> ffn("block1/ffn", {.width = 4, .hidden = 6});
        const bool gains = c.placement != nn::NormPlacement::none;
        nn::Norm<float> first("block1/attention_norm", {.width = 4, .gains = gains}),
            second("block1/ffn_norm", {.width = 4, .gains = gains});
        std::vector<Parameter<float>*> parameters, copies;
        block.collect(parameters);
        first.collect(copies);
        attention.collect(copies);
        second.collect(copies);
        ffn.collect(copies);
        REQUIRE(parameters.size() == copies.size());
        for (std::size_t i = 0; i < copies.size(); ++i) CHECK(parameters[i]->name() == copies[i]->name());
        test::randomise(parameters, 1.0);
        test::randomise(copies, 1.0);

        test::OpTape<float> run;
        const auto x = run.input({2, 3, 4});
        const auto y = block(x);
        const auto want =
            by_hand(by_hand(x, c.placement, c.tau[0], attention, first), c.placement, c.tau[1], ffn, second);
        CHECK(analysis::relative_error(y.value(), want.value()) < 1e-6);
    }
}

TEST_CASE("TransformerBlock: dropout is on each branch's output, the recipe's residual rule is the default") {
    auto config = config_of(nn::NormPlacement::pre, {});
    config.dropout = 0.25;
    nn::TransformerBlock<float> block("block1", config);
    std::vector<Parameter<float>*> parameters;
    block.collect(parameters);
    test::randomise(parameters, 1.0);
    Recipe recipe = analysis::plain_recipe(Scaling::unit);
    recipe.residual = {.scheme = ResidualScheme::fixed, .tau = 0.5};
    ScalingState state(1);
    Tape<float> tape(recipe, state);
    tape.begin_step({.retain = true});
    static_cast<void>(block(tape.input(normal<float>({2, 8, 4}, {1, 1}), true)));
    std::size_t dropouts = 0;
    for (std::size_t i = 0; i < tape.node_count(); ++i) {
        const Node<float>& node = tape.node(i);
        if (std::string_view(node.op) == "dropout") {
            ++dropouts;
            CHECK(node.alpha == Approx(std::sqrt(0.75)));
            const auto& value = *tape.slot(node.outputs[0]).value;
            const auto dropped = std::count(value.span().begin(), value.span().end(), 0.0f);
            CHECK(dropped > 4);
            CHECK(dropped < 32);
            CHECK(std::string_view(tape.node(i + 1).op) == "residual_add");
            CHECK(tape.node(i + 1).inputs[0] == node.outputs[0]);
        }
        if (std::string_view(node.op) == "residual_add")  // beta / alpha of the branch: d / tau, tau = 0.5
            CHECK(node.betas[0] == Approx(std::sqrt(1.25) / 0.5));
    }
    CHECK(dropouts == 2);
}

TEST_CASE("TransformerBlock: recompute changes no bit and keeps less") {
    for (const char* name : {"fp32", "unit-fp32", "unit-fp8"}) {
        INFO(name);
        std::vector<std::vector<float>> results;
        std::vector<std::size_t> kept;
        for (const bool recompute : {false, true}) {
            nn::TransformerBlockConfig config = config_of(nn::NormPlacement::pre, {});
            config.dropout = 0.25;
            config.recompute = recompute;
            nn::TransformerBlock<float> first("block0", config), second("block1", config);
            std::vector<Parameter<float>*> parameters;
            first.collect(parameters);
            second.collect(parameters);
            test::randomise(parameters, 1.0);
            const Recipe recipe = find_recipe(name);
            ScalingState state(1);
            Tape<float> tape(recipe, state);
            tape.begin_step();
            const auto x = tape.input(normal<float>({8, 32, 4}, {1, 1}), true);
            const auto loss = test::sum(second(first(x)));
            kept.push_back(tape.pool()->live_bytes());
            tape.backward(loss);
            std::vector<float> all(x.gradient().data(), x.gradient().data() + x.gradient().size());
            for (const Parameter<float>* parameter : parameters)
                all.insert(all.end(), parameter->gradient().data(),
                           parameter->gradient().data() + parameter->gradient().size());
            results.push_back(std::move(all));
        }
        CHECK(results[0] == results[1]);
        CHECK(kept[1] < kept[0] / 2);
    }
}
