// SPDX-License-Identifier: MIT
#include <unitscale/nn/transformer_block.hpp>

#include "support/language_model.hpp"
#include "support/op_checks.hpp"
#include "support/step_sizes.hpp"
#include "support/test_ops.hpp"

#include <unitscale/analysis/audit.hpp>
#include <unitscale/analysis/scale_warnings.hpp>
#include <unitscale/nn/module.hpp>
#include <unitscale/scaling/known_recipes.hpp>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

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
    // Residual layers 2 and 3 of 6: running mean 1/sqrt(2), 1/sqrt(3); depth 1/sqrt(3 + 2), 1/sqrt(3 + 3).
    const Case cases[] = {
        {nn::NormPlacement::pre, ResidualRule{.scheme = ResidualScheme::plain}, {{}, {}}},
        {nn::NormPlacement::post, ResidualRule{.scheme = ResidualScheme::fixed, .tau = 0.5}, {0.5, 0.5}},
        {nn::NormPlacement::none,
         ResidualRule{.scheme = ResidualScheme::running_mean},
         {1.0 / std::sqrt(2.0), 1.0 / std::sqrt(3.0)}},
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

TEST_CASE("TransformerBlock: as an encoder's block, padded rows change nothing in the others") {
    auto config = config_of(nn::NormPlacement::post, {});
    config.attention.causal = false;
    config.attention.factor_length = 5;
    nn::TransformerBlock<float> block("encoder/block0", config);
    config.recompute = true;
    nn::TransformerBlock<float> again("encoder/block0", config);
    test::randomise(nn::parameters_of<float>(block), 1.0);
    test::randomise(nn::parameters_of<float>(again), 1.0);
    const auto run = [](auto& layer, std::size_t batch, std::size_t length, const ops::AttentionMask& mask) {
        test::OpTape<float> tape;
        Tensor<float> rows({batch, length, 4});
        for (std::size_t b = 0; b < batch; ++b) {
            const Tensor<float> row = normal<float>({length, 4}, {1, 5});
            std::copy_n(row.data(), row.size(), rows.data() + b * row.size());
        }
        const auto x = tape.tape.input(std::move(rows), true);
        const auto y = layer(x, mask);
        tape.tape.backward(analysis::project(y, full<float>(y.shape(), 1.0)));
        return std::pair(test::elements(y.value()), test::elements(x.gradient()));
    };
    const auto padded = run(block, 2, 6, {.lengths = {4, 6}});
    const auto alone = run(block, 1, 4, {});
    CHECK(std::equal(alone.first.begin(), alone.first.end(), padded.first.begin()));
    CHECK(run(again, 2, 6, {.lengths = {4, 6}}) == padded);
}

TEST_CASE("TransformerBlock: where few rows of its output carry a gradient, its weights' gradients count these rows") {
    constexpr std::size_t width = 64, batch = 16, length = 64;
    Tensor<float> dy = normal<float>({batch, length, width}, {1, 7});
    std::size_t counted = 0;
    for (std::size_t row = 0; row < batch * length; ++row)
        if (random_word({1, 2}, row) % 100 < 15) ++counted;
        else std::fill_n(dy.data() + row * width, width, 0.0f);
    const double share = static_cast<double>(counted) / (batch * length);
    for (const char* name : {"unit-fp32", "us-fp32"}) {
        std::vector<double> sizes[2];
        for (const bool counts : {true, false}) {
            nn::TransformerBlock<float> block("block1",
                                              {.attention = {.width = width, .heads = 4, .bias = true, .causal = false},
                                               .feed_forward = {.width = width, .hidden = 4 * width, .bias = true},
                                               .norm = {.kind = nn::NormKind::layer, .gains = true},
                                               .placement = nn::NormPlacement::post,
                                               .gradient_share = counts ? share : 1.0,
                                               .index = 1,
                                               .count = 2});
            const auto parameters = nn::parameters_of<float>(block);
            const Recipe recipe = find_recipe(name);
            nn::initialise(parameters, recipe, 1);
            ScalingState state(1);
            Tape<float> tape(recipe, state);
            const auto run = [&] {
                const auto x = tape.input(normal<float>({batch, length, width}, {1, 1}), true);
                return analysis::project(block(x), dy);
            };
            tape.plan(run);
            tape.begin_step();
            const auto loss = run();
            CHECK(analysis::audit(tape, loss).valid());
            tape.backward(loss);
            for (const Parameter<float>* parameter : parameters) {
                INFO(name << ", " << parameter->name() << ", counts " << counts);
                const double size = root_mean_square(parameter->gradient());
                sizes[counts].push_back(size);
                // No softmax sees the keys' bias. The values' bias sums attention's weights, which add up to 1 per
                // query, and not to a random number.
                if (!counts || parameter->name().ends_with("key/bias") || parameter->name().ends_with("value/bias"))
                    continue;
                CHECK(size > 0.5);
                CHECK(size < 2.0);
            }
        }
        for (std::size_t i = 0; i < sizes[0].size(); ++i)
            if (sizes[1][i] > 0.1) CHECK(sizes[0][i] == Approx(sizes[1][i] * std::sqrt(share)).epsilon(0.01));
    }
    CHECK_THROWS_WITH((nn::TransformerBlock<float>("b", {.gradient_share = 0.0})),
                      "TransformerBlock: gradient_share is 0; expected a number above 0, at most 1");
    CHECK_THROWS_WITH(
        (nn::TransformerBlock<float>("b", {.context = {.kind = nn::ContextKind::recurrence}, .gradient_share = 0.5})),
        "TransformerBlock: gradient_share is 0.5 with a context layer of kind recurrence; expected "
        "attention");

    // In front of attention, every row of the norm's output feeds keys and values.
    nn::TransformerBlockConfig pre{.gradient_share = 0.5};
    CHECK(pre.layer(0, 2).norm.gradient_share == 1.0);
    CHECK(pre.layer(1, 2).norm.gradient_share == 0.5);
    pre.placement = nn::NormPlacement::post;
    CHECK(pre.layer(0, 2).norm.gradient_share == 0.5);
}

TEST_CASE("EncoderDecoderBlock: self-attention, attention to the context and feed-forward, in three residual layers") {
    nn::EncoderDecoderBlockConfig config{
        .block = config_of(nn::NormPlacement::pre, ResidualRule{.scheme = ResidualScheme::running_mean}),
        .cross = {.width = 4, .context_width = 3, .heads = 2}};
    nn::EncoderDecoderBlock<float> block("decoder/block1", config);
    const auto parameters = nn::parameters_of<float>(block);
    nn::Attention<float> attention("decoder/block1/attention", {.width = 4, .heads = 2});
    nn::CrossAttention<float> cross("decoder/block1/cross", {.width = 4, .context_width = 3, .heads = 2});
    nn::FeedForward<float> ffn("decoder/block1/ffn", {.width = 4, .hidden = 6});
    nn::Norm<float> norms[3] = {{"decoder/block1/attention_norm", {.width = 4, .gains = true}},
                                {"decoder/block1/cross_norm", {.width = 4, .gains = true}},
                                {"decoder/block1/ffn_norm", {.width = 4, .gains = true}}};
    std::vector<Parameter<float>*> copies;
    norms[0].collect(copies);
    attention.collect(copies);
    norms[1].collect(copies);
    cross.collect(copies);
    norms[2].collect(copies);
    ffn.collect(copies);
    REQUIRE(parameters.size() == copies.size());
    for (std::size_t i = 0; i < copies.size(); ++i) CHECK(parameters[i]->name() == copies[i]->name());
    test::randomise(parameters, 1.0);
    test::randomise(copies, 1.0);
    test::OpTape<float> run;
    const auto x = run.input({2, 5, 4}), context = run.input({2, 7, 3});
    const ops::AttentionMask of_context{.lengths = {7, 2}}, of_self{.lengths = {3, 5}};
    const auto y = block(x, context, of_context, of_self);
    // Residual layers 3, 4 and 5 of 9, counted from 0.
    const double taus[3] = {1.0 / std::sqrt(3.0), 1.0 / std::sqrt(4.0), 1.0 / std::sqrt(5.0)};
    auto attend = [&](Variable<float> v) { return attention(v, of_self); };
    auto read = [&](Variable<float> v) { return cross(v, context, of_context); };
    auto want = by_hand(x, nn::NormPlacement::pre, taus[0], attend, norms[0]);
    want = by_hand(want, nn::NormPlacement::pre, taus[1], read, norms[1]);
    want = by_hand(want, nn::NormPlacement::pre, taus[2], ffn, norms[2]);
    CHECK(analysis::relative_error(y.value(), want.value()) < 1e-6);

    config.cross.width = 8;
    CHECK_THROWS_WITH((nn::EncoderDecoderBlock<float>("b", config)),
                      "EncoderDecoderBlock b: self-attention of width 4 and attention to the context of width 8; "
                      "expected equal widths");
    config.cross.width = 4;
    config.block.recompute = true;
    CHECK_THROWS_WITH((nn::EncoderDecoderBlock<float>("b", config)),
                      "EncoderDecoderBlock b: recompute keeps one input only, and the block has two; expected false");
}

TEST_CASE("encoder blocks and blocks that read them: all values and gradients have unit size at initialisation") {
    constexpr std::size_t width = 64;
    const nn::TransformerBlockConfig encoder{.attention = {.width = width, .heads = 4, .causal = false},
                                             .feed_forward = {.width = width, .hidden = 4 * width},
                                             .norm = {.gains = true},
                                             .count = 1};
    auto decoder = encoder;
    decoder.attention.causal = true;
    decoder.feed_forward.kind = nn::FeedForwardKind::relu;
    struct Model {
        nn::TransformerBlock<float> first;
        nn::EncoderDecoderBlock<float> second;
        void collect(std::vector<Parameter<float>*>& parameters) {
            first.collect(parameters);
            second.collect(parameters);
        }
    } model{{"model/encoder", encoder}, {"model/decoder", {.block = decoder, .cross = {.width = width, .heads = 4}}}};
    test::check_unit_sizes(model, [&](Tape<float>& tape) {
        const auto x = tape.input(normal<float>({8, 48, width}, {1, 1}), true),
                   z = tape.input(normal<float>({8, 32, width}, {1, 2}), true);
        const ops::AttentionMask mask{.lengths = {48, 40, 36, 48, 30, 44, 48, 20}};
        const auto y = model.second(z, model.first(x, mask), mask);
        return analysis::project(y, normal<float>(y.shape(), {1, 3}));
    });
}
