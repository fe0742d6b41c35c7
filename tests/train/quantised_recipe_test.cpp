// SPDX-License-Identifier: MIT
#include <unitscale/train/quantised_recipe.hpp>

#include <unitscale/io/json_recipe.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/train/code_weights.hpp>

#include "support/catch.hpp"
#include "support/language_model.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

using namespace unitscale;

namespace {

constexpr nn::DecoderConfig config{.vocabulary = 40, .width = 48, .depth = 2, .heads = 3, .length = 24, .bias = true};
const OperandRule by_token{Quantiser{.format = e4m3},
                           {.source = ScaleSource::amax, .granularity = ScaleGranularity::row}};
const OperandRule by_tensor{Quantiser{.format = e4m3}, {.source = ScaleSource::amax}};

Tensor<std::int32_t> sequences(std::size_t count, std::size_t length) {
    Tensor<std::int32_t> ids({count, length});
    for (std::size_t i = 0; i < ids.size(); ++i) ids.data()[i] = static_cast<std::int32_t>(i * i * 7 % 39);
    return ids;
}

std::vector<float> logits(test::LanguageModel<float>& model, const Tensor<std::int32_t>& ids) {
    model.tape.begin_step({.training = false, .gradients = false});
    const Variable<float> out = model.decoder(model.tape, ids);
    return {out.value().span().begin(), out.value().span().end()};
}

/// The recipe with these rules, after a run that shows the model's products.
Recipe ruled(const Recipe& recipe, ProductKind kind, const train::ForwardRules& rules,
             const nn::DecoderConfig& shape = config) {
    test::LanguageModel<float> model(recipe, shape);
    static_cast<void>(logits(model, sequences(1, 4)));
    return train::with_forward_rules(model.recipe, kind, rules, model.state);
}

}  // namespace

TEST_CASE("quantised recipe: forward operands of linear layers have the given rules, all others the recipe's") {
    const OperandRule codes = train::weight_code_rule("mxfp4");
    for (const char* name : {"fp32", "fp8-amax", "umup-fp8"}) {
        CAPTURE(name);
        const Recipe before = recipe_in<float>(find_recipe(name));
        const Recipe after = ruled(before, ProductKind::linear, {.activation = by_token, .weight = codes});
        for (const char* path : {"decoder/block0/ffn/up", "decoder/block1/attention/out", "elsewhere"}) {
            const ProductFormats was = before.formats(ProductKind::linear, path),
                                 is = after.formats(ProductKind::linear, path);
            CHECK(is.rule(OperandSlot::forward_x) == by_token);
            CHECK(is.rule(OperandSlot::forward_w) == codes);
            for (std::size_t slot = 2; slot < linear_slot_count; ++slot)
                CHECK(is.rule(static_cast<OperandSlot>(slot)) == was.rule(static_cast<OperandSlot>(slot)));
        }
        CHECK(after.formats(ProductKind::readout, "decoder") == before.formats(ProductKind::readout, "decoder"));
        CHECK(io::recipe_to_json(io::recipe_from_json(io::recipe_to_json(after))) == io::recipe_to_json(after));
        CHECK(io::recipe_to_json(ruled(before, ProductKind::linear, {})) == io::recipe_to_json(before));
    }
    const Recipe readouts = ruled(find_recipe("fp32"), ProductKind::readout, {.activation = by_token});
    CHECK(readouts.formats(ProductKind::readout, "decoder").rule(OperandSlot::forward_x) == by_token);
    CHECK_FALSE(readouts.formats(ProductKind::linear, "decoder/block0/ffn/up").any());
}

TEST_CASE("quantised recipe: with a scale for each token a sequence's logits do not depend on its batch") {
    const char* const format = GENERATE("e4m3", "mxfp4", "nvfp4", "fp8_tile");
    const std::size_t length = GENERATE(std::size_t{5}, std::size_t{24});
    CAPTURE(format, length);
    const auto depends = [&](const OperandRule& activation) {
        const OperandRule weight = train::weight_code_rule(format);
        Recipe recipe = ruled(find_recipe("fp32"), ProductKind::linear, {.activation = activation, .weight = weight});
        test::LanguageModel<float> model(recipe, config);
        train::code_weights(model.decoder.parameters(), {{.role = ParameterRole::weight, .rule = weight}});
        // Token 39 has a far larger number than others, and stands in one sequence.
        for (Parameter<float>* parameter : model.decoder.parameters())
            if (parameter->name() == "decoder/tokens/weight") parameter->write().data()[39 * config.width] = 50.0f;
        Tensor<std::int32_t> ids = sequences(6, length);
        ids.data()[3 * length + 2] = 39;
        const std::vector<float> together = logits(model, ids);
        bool differs = false;
        for (std::size_t row = 0; row < 6; ++row) {
            Tensor<std::int32_t> own({1, length});
            std::copy_n(ids.data() + row * length, length, own.data());
            const std::vector<float> alone = logits(model, own);
            differs = differs || std::memcmp(alone.data(), together.data() + row * alone.size(),
                                             alone.size() * sizeof(float)) != 0;
        }
        return differs;
    };
    CHECK_FALSE(depends(by_token));
    // A scale of the batch: in few binades it always shows.
    CHECK(depends({Quantiser{.format = e2m1}, by_tensor.scale}));
    CHECK_FALSE(depends({Quantiser{.format = e2m1}, by_token.scale}));
}

TEST_CASE("quantised recipe: a coded model has the logits of the recipe that rounds its weights") {
    const char* const format = GENERATE("e4m3", "e3m2", "mxfp8_e4m3", "mxfp4", "nvfp4");
    CAPTURE(format);
    OperandRule weight = train::weight_code_rule(format);
    if (weight.scale.has_measured_bias()) weight.scale.margin = 1;
    Recipe recipe = ruled(find_recipe("fp8-amax"), ProductKind::linear, {.activation = by_token, .weight = weight});
    recipe = ruled(recipe, ProductKind::readout, {.activation = by_token, .weight = weight});
    test::LanguageModel<float> coded(recipe, config, 3), rounded(recipe, config, 3);
    const std::vector<train::WeightCodeRule> rules{{.role = ParameterRole::weight, .rule = weight},
                                                   {.role = ParameterRole::readout, .rule = weight}};
    train::code_weights(coded.decoder.parameters(), rules);
    const Tensor<std::int32_t> ids = sequences(2, 24);
    CHECK(logits(coded, ids) == logits(rounded, ids));
}

TEST_CASE("quantised recipe: convolutions keep their rules; rotations and limited sums are errors") {
    nn::DecoderConfig convolution = config;
    convolution.context = {.kind = nn::ContextKind::convolution, .kernel = 3};
    const OperandRule weight = train::weight_code_rule("nvfp4");
    Recipe recipe =
        ruled(find_recipe("fp32"), ProductKind::linear, {.activation = by_token, .weight = weight}, convolution);
    test::LanguageModel<float> model(recipe, convolution);
    train::code_weights(model.decoder.parameters(), {{.role = ParameterRole::weight, .rule = weight}});
    CHECK(logits(model, sequences(2, 8)).size() == 2 * 8 * 40);
    std::size_t convolutions = 0, rounded = 0;
    for (const ScalingState::Product& product : model.state.products()) {
        const bool own = train::reads_coded_weight(model.state.op(product.site));
        convolutions += own ? 0U : 1U;
        rounded += product.kind == ProductKind::linear && product.formats.any() ? 1U : 0U;
        if (!own) CHECK_FALSE(product.formats.any());
    }
    CHECK(convolutions > 0);
    CHECK(rounded > 0);

    CHECK_THROWS_WITH(ruled(find_recipe("fp8-amax-fp16"), ProductKind::linear, {.weight = weight}),
                      Catch::Contains("limits its sums under fp8-amax-fp16; expected neither where weights are codes"));
    Recipe rotated = find_recipe("mxfp4");
    for (ProductRule& product : rotated.products)
        if (product.kind == ProductKind::linear) product.formats.rotations[0] = HadamardRotation{.size = 16};
    CHECK_THROWS_WITH(ruled(rotated, ProductKind::linear, {}),
                      Catch::Contains("rotates its operands under mxfp4; expected neither where weights are codes"));
}

TEST_CASE("quantised recipe: the module of a site is its path without the op") {
    CHECK(train::module_path("decoder/block0/ffn/up/linear") == "decoder/block0/ffn/up");
    CHECK(train::module_path("decoder/linear.1") == "decoder");
    CHECK(train::module_path("linear").empty());
}
