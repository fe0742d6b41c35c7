// SPDX-License-Identifier: MIT
#include <unitscale/io/json_recipe.hpp>
#include <unitscale/scaling/known_recipes.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

#include <fstream>
#include <initializer_list>
#include <string>

using namespace unitscale;
using io::override_recipe;
using io::recipe_from_json;
using io::recipe_to_json;

namespace {
Recipe parsed(const std::string& text) { return recipe_from_json(nlohmann::ordered_json::parse(text)); }
}  // namespace

TEST_CASE("json recipe: every known recipe survives the way there and back") {
    for (const Recipe& recipe : known_recipes()) {
        INFO(recipe.name);
        const auto json = recipe_to_json(recipe);
        CHECK(recipe_to_json(recipe_from_json(json)) == json);
        CHECK(json["name"] == recipe.name);
    }
}

TEST_CASE("json recipe: fields that are not named are the base's") {
    const Recipe recipe = parsed(R"({"base": "unit-fp8", "name": "mine", "learning_rate": 0.5, "products": [
        {"gradient": "e5m2fnuz", "pattern": "*ffn*"},
        {"kind": "readout", "weight": {"format": "e4m3", "rounding": "stochastic", "bits": 8},
          "weight_scale": {"source": "amax"}},
        {"kind": "matmul", "activation": {"format": {"exponent_bits": 3, "mantissa_bits": 3, "bias": 5}}}]})");
    CHECK(recipe.name == "mine");
    CHECK(recipe.scaling == Scaling::unit);
    CHECK(recipe.learning_rate == 0.5);
    REQUIRE(recipe.products.size() == 3);
    CHECK(recipe.products[0].formats.gradient == Quantiser{.format = e5m2fnuz});
    CHECK_FALSE(recipe.products[0].formats.activation.has_value());
    CHECK(recipe.products[1].formats.weight == Quantiser{.format = e4m3, .rounding = Rounding::stochastic, .bits = 8});
    CHECK(recipe.products[1].formats.weight_scale.source == ScaleSource::amax);
    CHECK(recipe.products[2].formats.activation->format == FloatFormat{3, 3, 5});
    CHECK(recipe_to_json(recipe_from_json(recipe_to_json(recipe))) == recipe_to_json(recipe));
    CHECK(parsed("{}").name == "fp32");
}

TEST_CASE("json recipe: one field from a command line") {
    const Recipe fp8 = find_recipe("unit-fp8");
    CHECK(override_recipe(fp8, "matmul.gradient=e5m2fnuz").products[0].formats.gradient->format == e5m2fnuz);
    CHECK(override_recipe(fp8, "matmul.gradient.rounding=stochastic").products[0].formats.gradient ==
          Quantiser{.format = e5m2, .rounding = Rounding::stochastic});
    CHECK_FALSE(override_recipe(fp8, "matmul.weight=null").products[0].formats.weight.has_value());
    CHECK(override_recipe(fp8, "products.0.pattern=*up").products[0].pattern == "*up");
    CHECK(override_recipe(fp8, "learning_rate=0.25").learning_rate == 0.25);
    CHECK(override_recipe(fp8, "scaling=none").scaling == Scaling::none);
    CHECK(override_recipe(fp8, "residual.scheme=fixed").residual.scheme == ResidualScheme::fixed);
    CHECK(override_recipe(fp8, "loss_scaling.kind=automatic").loss_scaling.kind == LossScaleKind::automatic);
    const Recipe plain = override_recipe(find_recipe("fp32"), "matmul.activation=bf16");
    REQUIRE(plain.products.size() == 1);
    CHECK(plain.products[0].kind == ProductKind::linear);
    CHECK(plain.products[0].formats.activation->format == bf16);
    CHECK(override_recipe(find_recipe("fp8-cscale"), "matmul.weight_scale.bias=-4")
              .products[0]
              .formats.weight_scale.bias == -4);
}

TEST_CASE("json recipe: kinds of loss scaling need no number, and older kinds keep their text") {
    const auto json = recipe_to_json(find_recipe("fp16-auto-loss-scaled"))["loss_scaling"];
    CHECK(json.dump() == R"({"kind":"automatic","initial":65536.0,"growth":2.0,"backoff":0.5,"interval":2000})");
    CHECK(parsed(R"({"base": "fp16", "loss_scaling": {"kind": "histogram"}})").loss_scaling ==
          LossScaling{.kind = LossScaleKind::histogram});
    CHECK(parsed(R"({"base": "fp16", "loss_scaling": {"kind": "log_normal"}})").loss_scaling ==
          LossScaling{.kind = LossScaleKind::log_normal});
    Recipe recipe = find_recipe("fp16");
    recipe.loss_scaling = {.kind = LossScaleKind::log_normal,
                           .edge = 0.5,
                           .most = 1e-3,
                           .deviations = 2.0,
                           .mean_decay = 0.9,
                           .variance_decay = 0.95};
    CHECK(recipe_from_json(recipe_to_json(recipe)).loss_scaling == recipe.loss_scaling);
    CHECK(override_recipe(recipe, "loss_scaling.edge=0.25").loss_scaling.edge == 0.25);
    CHECK(override_recipe(find_recipe("fp16"), "loss_scaling.most=0.01").loss_scaling.most == 0.01);
    CHECK_THROWS_WITH(override_recipe(recipe, "loss_scaling.edge=2"), "loss_scaling: edge is 2; expected at most 1");
    CHECK_THROWS_WITH(override_recipe(recipe, "loss_scaling.share=2"),
                      "recipe: unknown key 'loss_scaling.share'; expected one of kind, initial, growth, backoff, "
                      "interval, edge, most, deviations, mean_decay, variance_decay");
    CHECK_THROWS_WITH(override_recipe(recipe, "loss_scaling.kind=logmax"),
                      "recipe: loss_scaling.kind is \"logmax\"; expected one of none, constant, automatic, histogram, "
                      "log_normal");
}

TEST_CASE("json recipe: storage, in full, in short and by single fields") {
    const Recipe recipe = parsed(R"({"base": "fp16", "storage": {"element": "bf16", "master": "fp16",
        "first_moment": {"format": "e4m3", "block": 128, "rounding": "stochastic"},
         "second_moment": {"format": "bf16", "scaled": false},
        "weight_gradient": "e5m2", "weight_gradient_scale": {"source": "amax", "margin": 1}}})");
    const Storage expected{.element = ElementType::bfloat16,
                           .master = StateFormat{.format = fp16},
                           .first_moment = {.format = e4m3, .block = 128, .rounding = Rounding::stochastic},
                           .second_moment = {.format = bf16, .scaled = false},
                           .weight_gradient = Quantiser{.format = e5m2},
                           .weight_gradient_scale = {.source = ScaleSource::amax, .margin = 1}};
    CHECK(recipe.storage == expected);
    CHECK(recipe_from_json(recipe_to_json(recipe)).storage == expected);
    CHECK(recipe_to_json(find_recipe("bf16"))["storage"]["master"]["format"] == "computed");

    const auto with = [](const char* base, const std::string& assignment) {
        return override_recipe(find_recipe(base), assignment).storage;
    };
    CHECK(with("fp32", "storage.element=fp16").element == ElementType::float16);
    CHECK(with("fp32", "storage.master.format=fp16").master == StateFormat{.format = fp16});
    CHECK(with("fp32", "storage.master=e5m2").master == StateFormat{.format = e5m2});
    CHECK(with("fp32", "storage.master=computed").master == StateFormat{});
    CHECK(with("fp32", "storage.master.scaled=false").master == StateFormat{.scaled = false});
    CHECK_FALSE(with("bf16", "storage.master=null").master.has_value());
    CHECK(with("scalify-fp8-4", "storage.first_moment.block=128").first_moment ==
          StateFormat{.format = fp16, .block = 128});
    CHECK(with("scalify-fp8-4", "storage.first_moment=computed").first_moment == StateFormat{});
    CHECK(with("scalify-fp8-4", "storage.second_moment.format=e4m3").second_moment == StateFormat{.format = e4m3});
    CHECK(with("fp32", "storage.weight_gradient=e5m2").weight_gradient == Quantiser{.format = e5m2});
    CHECK(with("scalify-fp16-1", "storage.rescale_every=20").rescale_every == 20);
    CHECK(with("scalify-fp8-4", "storage.first_moment.propagated=true").first_moment ==
          StateFormat{.format = fp16, .propagated = true});
    // Fields of later versions: recipes that leave them alone keep their text.
    CHECK_FALSE(recipe_to_json(find_recipe("fp32"))["storage"].contains("rescale_every"));
    CHECK_FALSE(recipe_to_json(find_recipe("fp32"))["storage"]["first_moment"].contains("propagated"));
    const Recipe delayed =
        override_recipe(override_recipe(find_recipe("scalify-fp16-1"), "propagate.rescale_activation_gradients=true"),
                        "propagate.delayed_sizes=true");
    CHECK(delayed.propagate.rescale_activation_gradients);
    CHECK(delayed.propagate.delayed_sizes);
    CHECK(recipe_from_json(recipe_to_json(delayed)).propagate == delayed.propagate);
    CHECK(
        override_recipe(find_recipe("scalify-fp16-1"), "propagate.rescale_gradients=true").propagate.rescale_gradients);

    CHECK_THROWS_WITH(
        with("fp32", "storage.elements=fp16"),
        "recipe: unknown key 'storage.elements'; expected one of element, master, first_moment, second_moment, "
        "weight_gradient, weight_gradient_scale, rescale_every");
    CHECK_THROWS_WITH(with("fp32", "storage.master.blocks=64"),
                      "recipe: unknown key 'storage.master.blocks'; expected one of format, scaled, propagated, block, "
                      "rounding");
    CHECK_THROWS_WITH(with("fp32", "storage.element=e4m3"),
                      "recipe: storage.element is \"e4m3\"; expected one of fp32, fp16, bf16");
    CHECK_THROWS_WITH(
        with("fp32", "storage.first_moment=tf32"),
        "storage.first_moment: tf32 has 19 bits; expected at most 16, or none for what is kept as computed");
    CHECK_THROWS_WITH(with("fp32", "storage.first_moment=e9"),
                      Catch::Contains("recipe: storage.first_moment.format: format: unknown name 'e9'"));
}

TEST_CASE("json recipe: an operand of one product has a rule of its own, by names or fields") {
    const Recipe recipe = parsed(R"({"base": "fp8-cscale", "products": [{"activation": "e4m3", "weight": "e4m3",
        "weight_scale": {"source": "amax", "blocks": "mxfp8_e4m3_rceil"},
        "forward": {"x": "mxfp4"},
        "weight_gradient": {"dy": "nvfp4", "x": "nvfp4", "rotation": {"size": 16, "signs": 5}},
        "input_gradient": {"dy": {"element": {"format": "e5m2", "rounding": "stochastic"}}}}]})");
    const ProductFormats& formats = recipe.products[0].formats;
    CHECK(formats.rule(OperandSlot::forward_x) == OperandRule::in_blocks(mxfp4));
    CHECK(formats.weight_scale.blocks == find_block_format("mxfp8_e4m3_rceil"));
    CHECK(formats.rule(OperandSlot::weight_gradient_dy) == OperandRule::in_blocks(nvfp4));
    CHECK(formats.rotation(OperandSlot::weight_gradient_x) == HadamardRotation{16, 5});
    CHECK_FALSE(formats.rotation(OperandSlot::forward_x).has_value());
    CHECK(formats.rule(OperandSlot::input_gradient_dy).element ==
          Quantiser{.format = e5m2, .rounding = Rounding::stochastic});
    CHECK(formats.rule(OperandSlot::input_gradient_w) == formats.rule(OperandSlot::forward_w));
    CHECK(recipe_to_json(recipe_from_json(recipe_to_json(recipe))) == recipe_to_json(recipe));
    const Recipe drawn = override_recipe(recipe, "products.0.weight_gradient.rotation.signs=drawn");
    CHECK(drawn.products[0].formats.rotation(OperandSlot::weight_gradient_x)->drawn);
    CHECK(recipe_to_json(recipe_from_json(recipe_to_json(drawn))) == recipe_to_json(drawn));
    CHECK_FALSE(override_recipe(drawn, "products.0.weight_gradient.rotation.signs=3735928559")
                    .products[0]
                    .formats.rotation(OperandSlot::weight_gradient_x)
                    ->drawn);
    CHECK_THROWS_WITH(override_recipe(recipe, "products.0.weight_gradient.rotation.signs=4294967296"),
                      "recipe: products.0.weight_gradient.rotation.signs is 4294967296; expected 'drawn' or a whole "
                      "number below 2^32");

    // Recipes without such operands are written as before, so that results files know them.
    CHECK_FALSE(recipe_to_json(find_recipe("fp8-amax"))["products"][0].contains("forward"));
    CHECK_FALSE(recipe_to_json(find_recipe("fp8-amax"))["products"][0]["weight_scale"].contains("blocks"));
}

TEST_CASE("json recipe: every part of nvfp4 is switched off by one or two assignments") {
    const Recipe nvfp4_recipe = find_recipe("nvfp4");
    const auto with_all = [&](std::initializer_list<const char*> assignments) {
        Recipe recipe = nvfp4_recipe;
        for (const char* assignment : assignments) recipe = override_recipe(recipe, assignment);
        return recipe.products[0].formats;
    };
    CHECK(nvfp4_recipe.products[0].formats.rotation(OperandSlot::weight_gradient_x) == transformer_engine_rotation);
    CHECK_FALSE(with_all({"matmul.weight_gradient.rotation=null"}).rotation(OperandSlot::weight_gradient_x));
    CHECK(nvfp4_recipe.products[0].formats.gradient->rounding == Rounding::stochastic);
    CHECK(with_all({"matmul.gradient.rounding=nearest_even"}).rule(OperandSlot::weight_gradient_dy) ==
          OperandRule::in_blocks(nvfp4));
    const ProductFormats flat = with_all({"matmul.forward.w=null", "matmul.input_gradient.w=null"});
    CHECK(flat.rule(OperandSlot::forward_w) == OperandRule::in_blocks(nvfp4));
    CHECK(flat.rule(OperandSlot::input_gradient_w) == OperandRule::in_blocks(nvfp4));
    // The last block is exempt; assignments leave it alone.
    CHECK(nvfp4_recipe.products[1].pattern == "*block-1/*");
    CHECK_FALSE(override_recipe(nvfp4_recipe, "matmul.gradient.rounding=nearest_even").products[1].formats.any());
    CHECK_FALSE(override_recipe(nvfp4_recipe, "products.1.pattern=none")
                    .formats(ProductKind::linear, "decoder/block0/up", "decoder/block-1/up") == ProductFormats{});
    // One field of an operand without a rule of its own: the other fields are its role's.
    const ProductFormats one = with_all({"matmul.forward.x.element.rounding=toward_zero"});
    CHECK(one.rule(OperandSlot::forward_x) == OperandRule::in_blocks(nvfp4, Rounding::toward_zero));
    CHECK(one.rule(OperandSlot::weight_gradient_x) == OperandRule::in_blocks(nvfp4));
}

TEST_CASE("json recipe: sums of a product have a name or fields") {
    const Recipe tiles = find_recipe("fp8-tiles"), hopper = find_recipe("fp8-tiles-hopper");
    CHECK(recipe_to_json(hopper)["products"][0]["forward"]["accumulate"] == "hopper_promoted");
    CHECK_FALSE(recipe_to_json(tiles)["products"][0]["forward"].contains("accumulate"));
    CHECK(override_recipe(tiles, "matmul.input_gradient.accumulate=blackwell").products[0].formats.accumulate[1] ==
          blackwell_sums);
    CHECK_FALSE(override_recipe(hopper, "matmul.forward.accumulate=null").products[0].formats.accumulate[0]);
    const Recipe own =
        override_recipe(tiles, R"(matmul.weight_gradient.accumulate={"sums": "bf16", "run_length": 64})");
    CHECK(own.products[0].formats.accumulate[2] == Accumulate{.sums = bf16, .run_length = 64});
    CHECK(recipe_to_json(recipe_from_json(recipe_to_json(own))) == recipe_to_json(own));
    CHECK(override_recipe(own, "matmul.weight_gradient.accumulate.run_length=32").products[0].formats.accumulate[2] ==
          Accumulate{.sums = bf16, .run_length = 32});
    CHECK_THROWS_WITH(override_recipe(tiles, "matmul.forward.accumulate=ampere"),
                      "recipe: products.0.forward.accumulate is \"ampere\"; expected one of hopper, hopper_promoted, "
                      "blackwell, or an object");
    CHECK_THROWS_WITH(override_recipe(tiles, R"(matmul.forward.accumulate={"sums": "e5m2"})"),
                      "recipe: products.0.forward: accumulate.sums (e5m2) cannot hold its products: e4m3 times e4m3 "
                      "reaches 200704; expected a largest number of at least that, Overflow::saturate or a measured "
                      "bias");
    CHECK_THROWS_WITH(override_recipe(tiles, R"(matmul.forward.accumulate={"run_length": -2})"),
                      "recipe: products.0.forward: accumulate.run_length (-2) must be a number of products, or 0 for "
                      "no promotion");
    CHECK_THROWS_WITH(
        parsed(R"({"base": "fp32", "products": [{"kind": "matmul", "forward": {"accumulate": "hopper"}}]})"),
        "recipe: products.0.forward.accumulate: is for linear layers and readouts");
}

TEST_CASE("json recipe: attention's operands, by role, by name and by fields, there and back") {
    const Recipe recipe = parsed(R"({"base": "unit-fp8", "products": [{"kind": "linear", "activation": "e4m3"},
        {"kind": "attention", "pattern": "*/block0/*", "activation": "e4m3", "gradient": "e5m2",
         "activation_scale": {"source": "amax"},
         "logits": {"q": "mxfp4"}, "query_gradient": {"ds": null, "k": "e2m3"}, "key_gradient": {"ds": "bf16"},
         "output": {"p": {"element": {"rounding": "stochastic"}}}, "probability_gradient": {"v": "e3m2"},
         "value_gradient": {"p": {"scale": {"margin": 2}}, "dy": "e4m3"}}]})");
    using enum OperandSlot;
    REQUIRE(recipe.products.size() == 2);
    CHECK(recipe.products[1].kind == ProductKind::attention);
    const ProductFormats& formats = recipe.products[1].formats;
    const ScaleRule amax{.source = ScaleSource::amax};
    CHECK(std::count_if(formats.slots.begin(), formats.slots.end(), [](const auto& own) { return own.has_value(); }) ==
          7);
    CHECK(formats.rule(logits_q) == OperandRule::in_blocks(mxfp4));
    CHECK(formats.rule(logits_k) == OperandRule{Quantiser{.format = e4m3}, amax});
    CHECK(formats.rule(query_gradient_ds) == OperandRule{Quantiser{.format = e5m2}});
    CHECK(formats.rule(query_gradient_k) == OperandRule{Quantiser{.format = e2m3}});
    CHECK(formats.rule(key_gradient_ds) == OperandRule{Quantiser{.format = bf16}});
    CHECK(formats.rule(output_p) == OperandRule{Quantiser{.format = e4m3, .rounding = Rounding::stochastic}, amax});
    CHECK(formats.rule(probability_gradient_v) == OperandRule{Quantiser{.format = e3m2}});
    CHECK(formats.rule(value_gradient_p) ==
          OperandRule{Quantiser{.format = e4m3}, {.source = ScaleSource::amax, .margin = 2}});
    CHECK(formats.rule(value_gradient_dy) == OperandRule{Quantiser{.format = e4m3}});
    const auto json = recipe_to_json(recipe);
    CHECK(recipe_to_json(recipe_from_json(json)) == json);
    CHECK(recipe_from_json(json).products[1].formats == formats);
    CHECK_FALSE(json["products"][1].contains("forward"));
    CHECK_FALSE(json["products"][0].contains("logits"));
    // Recipes without attention are written as before, so that results files know them.
    for (const Recipe& known : known_recipes()) {
        const bool rounds_attention = known.name == "us-fp8" || known.name == "aligned-fp8";
        CHECK((recipe_to_json(known).dump().find("attention\"") != std::string::npos) == rounds_attention);
    }
}

TEST_CASE("json recipe: Unit Scaling as published, and fields that older recipes' texts do not have") {
    const Recipe us = find_recipe("us-fp16");
    const auto json = recipe_to_json(us);
    CHECK(json["gelu_constants"] == "unit_scaling_paper");
    CHECK(json["bias_inside_alpha"] == false);
    CHECK(json["vector_learning_rate"] == true);
    CHECK(json["initial_distribution"] == "uniform");
    const Recipe back = recipe_from_json(json);
    CHECK(back.gelu_constants == us.gelu_constants);
    CHECK(back.bias_inside_alpha == us.bias_inside_alpha);
    CHECK(back.vector_learning_rate == us.vector_learning_rate);
    CHECK(back.initial_distribution == us.initial_distribution);
    CHECK(back.storage == us.storage);
    for (const char* field : {"gelu_constants", "bias_inside_alpha", "vector_learning_rate", "initial_distribution"})
        CHECK_FALSE(recipe_to_json(find_recipe("unit-fp32")).contains(field));
    CHECK_FALSE(json["residual"].contains("share"));

    CHECK(override_recipe(us, "gelu_constants=fitted").gelu_constants == GeluConstants::fitted);
    CHECK(override_recipe(us, "initial_distribution=normal").initial_distribution == InitialDistribution::normal);
    CHECK_FALSE(override_recipe(us, "vector_learning_rate=false").vector_learning_rate);
    CHECK(override_recipe(us, "bias_inside_alpha=true").bias_inside_alpha);
    Recipe fixed = override_recipe(us, "residual.scheme=fixed");
    fixed = override_recipe(fixed, "residual.share=0.2");
    CHECK(fixed.residual.share == 0.2);
    CHECK(recipe_to_json(recipe_from_json(recipe_to_json(fixed))) == recipe_to_json(fixed));
    CHECK_FALSE(override_recipe(fixed, "residual.share=null").residual.share);
    CHECK_THROWS_WITH(override_recipe(fixed, "residual.tau=0.25"),
                      "residual: tau is 0.25 and share is 0.2; expected one of the two");
    CHECK_THROWS_WITH(override_recipe(us, "residual.share=0.2"),
                      "residual: share is for the scheme fixed; the scheme is running_mean");
    CHECK_THROWS_WITH(override_recipe(us, "gelu_constants=own"),
                      "recipe: gelu_constants is \"own\"; expected one of fitted, unit_scaling_paper");
    CHECK_THROWS_WITH(override_recipe(find_recipe("fp32"), "gelu_constants=unit_scaling_paper"),
                      "recipe: gelu_constants and bias_inside_alpha are for the scaling unit; it is none");
}

TEST_CASE("json recipe: attention.X changes attention's rules, matmul.X all others") {
    Recipe recipe = override_recipe(find_recipe("unit-fp8"), "attention.activation=e4m3");
    recipe = override_recipe(recipe, "attention.output.p=e5m2");
    recipe = override_recipe(recipe, "attention.gradient.rounding=stochastic");
    recipe = override_recipe(recipe, "matmul.weight=e3m4");
    REQUIRE(recipe.products.size() == 2);
    CHECK(recipe.products[0].kind == ProductKind::linear);
    CHECK(recipe.products[0].formats.weight == Quantiser{.format = e3m4});
    CHECK(recipe.products[0].formats.gradient == Quantiser{.format = e5m2});
    CHECK(recipe.products[1].kind == ProductKind::attention);
    CHECK(recipe.products[1].pattern == "*");
    CHECK(recipe.products[1].formats.activation == Quantiser{.format = e4m3});
    CHECK(recipe.products[1].formats.gradient->rounding == Rounding::stochastic);
    CHECK(recipe.products[1].formats.rule(OperandSlot::output_p) == OperandRule{Quantiser{.format = e5m2}});
    CHECK_FALSE(override_recipe(recipe, "attention.output.p=null").products[1].formats.own(OperandSlot::output_p));
    const Recipe alone =
        override_recipe(override_recipe(find_recipe("fp32"), "attention.gradient=bf16"), "matmul.activation=bf16");
    REQUIRE(alone.products.size() == 2);
    CHECK(alone.products[1].kind == ProductKind::linear);

    CHECK_THROWS_WITH(override_recipe(recipe, "attention.weight=e4m3"),
                      "recipe: products.1.weight: attention has no weights; expected activation and gradient");
    CHECK_THROWS_WITH(override_recipe(recipe, "attention.logits.x=e4m3"),
                      "recipe: unknown key 'products.1.logits.x'; expected one of q, k");
    CHECK_THROWS_WITH(override_recipe(recipe, "attention.logits.rotation=16"),
                      "recipe: unknown key 'products.1.logits.rotation'; expected one of q, k");
    CHECK_THROWS_WITH(override_recipe(recipe, "attention.forward.x=e4m3"),
                      "recipe: unknown key 'products.1.forward'; expected one of kind, pattern, activation, weight, "
                      "gradient, result, activation_scale, weight_scale, gradient_scale, logits, query_gradient, "
                      "key_gradient, output, probability_gradient, value_gradient");
    CHECK_THROWS_WITH(override_recipe(recipe, "products.0.kind=softmax"),
                      "recipe: products.0.kind is \"softmax\"; expected one of linear, readout, matmul, attention");
}

TEST_CASE("json recipe: operands and blocks that do not fit are one line that names the field") {
    const auto product = [](const std::string& fields) {
        return [fields] { return parsed((R"({"base": "fp32", "products": [{)" + fields + "}]}").c_str()); };
    };
    CHECK_THROWS_WITH(product(R"("activation": "e5m2", "activation_scale": {"source": "amax", "blocks": "mxfp4"})")(),
                      "recipe: products.0.activation_scale: blocks of e2m1 hold an operand that is rounded to e5m2");
    CHECK_THROWS_WITH(product(R"("weight_scale": {"source": "constant", "blocks": "mxfp4"})")(),
                      "recipe: products.0.weight_scale: blocks need the source amax; it is constant");
    CHECK_THROWS_WITH(product(R"("forward": {"x": {"element": "e2m1", )"
                              R"("scale": {"source": "amax", "blocks": {"element": "e2m1", "along": -1}}}})")(),
                      "recipe: products.0.forward.x: blocks: along and across must be at least 1, or 0 for the whole "
                      "dimension");
    CHECK_THROWS_WITH(product(R"("kind": "matmul", "forward": {"x": "mxfp4"})")(),
                      "recipe: products.0.forward.x: blocks are for linear layers, readouts and attention");
    CHECK_THROWS_WITH(product(R"("forward": {"x": "mxfp4", "rotation": {"size": 16}})")(),
                      "recipe: products.0.forward.w: is rotated; expected blocks that share a scale");
    CHECK_THROWS_WITH(product(R"("forward": {"x": "mxfp4", "w": "mxfp4", "rotation": {"size": 8}})")(),
                      "recipe: products.0.forward.x: rotation of 8; expected 16 or 32");
    CHECK_THROWS_WITH(product(R"("forward": {"x": "mxfp5"})")(),
                      Catch::Contains("recipe: products.0.forward.x.element.format: format: unknown name 'mxfp5'"));
    CHECK_THROWS_WITH(product(R"("forward": {"y": "mxfp4"})")(),
                      "recipe: unknown key 'products.0.forward.y'; expected one of x, w, rotation, accumulate");
}

TEST_CASE("json recipe: bad input gives one line that names the key and the expected value") {
    CHECK_THROWS_WITH(
        parsed(R"({"colour": 1})"),
        "recipe: unknown key 'colour'; expected one of name, description, scaling, constraint, "
        "automatic_rule, propagate, "
        "products, storage, communication, loss_scaling, parametrisation, hyperparameters, readout_exponent, residual, "
        "gelu_constants, bias_inside_alpha, vector_learning_rate, embedding_rate, initial_distribution, "
        "learning_rate, clip_norm");
    CHECK_THROWS_WITH(
        parsed(R"({"products": [{"kind": "linear"}, {"gradient": {"form": "e4m3"}}]})"),
        "recipe: unknown key 'products.1.gradient.form'; expected one of format, rounding, overflow, bits");
    CHECK_THROWS_WITH(parsed(R"({"products": [{"gradien": "e5m2"}]})"),
                      "recipe: unknown key 'products.0.gradien'; expected one of kind, pattern, activation, weight, "
                      "gradient, result, "
                      "activation_scale, weight_scale, gradient_scale, forward, input_gradient, weight_gradient");
    CHECK_THROWS_WITH(parsed(R"({"scaling": "units"})"),
                      "recipe: scaling is \"units\"; expected one of none, unit, propagate");
    CHECK_THROWS_WITH(parsed(R"({"learning_rate": "fast"})"), "recipe: learning_rate is \"fast\"; expected a number");
    CHECK_THROWS_WITH(parsed(R"({"loss_scaling": {"interval": -3}})"),
                      "recipe: loss_scaling.interval is -3; expected a whole number, not negative");
    CHECK_THROWS_WITH(parsed(R"({"loss_scaling": {"backoff": 2}})"),
                      "loss_scaling: backoff is 2; expected less than 1");
    CHECK_THROWS_WITH(parsed(R"({"products": 3})"), "recipe: products is 3; expected a list");
    CHECK_THROWS_WITH(parsed(R"({"propagate": []})"), "recipe: propagate is []; expected an object");
    CHECK_THROWS_WITH(parsed("[]"), "recipe: the text is []; expected an object");
    CHECK_THROWS_WITH(parsed(R"({"base": "unit-fp9"})"),
                      Catch::Contains("recipe: unknown name 'unit-fp9'; expected one of fp32, "));
    CHECK_THROWS_WITH(parsed(R"({"products": [{"weight": "e9m9"}]})"),
                      Catch::Contains("recipe: products.0.weight.format: format: unknown name 'e9m9'"));
    CHECK_THROWS_WITH(parsed(R"({"products": [{"weight": {"format": {"exponent_bits": 9, "mantissa_bits": 1}}}]})"),
                      Catch::Contains("recipe: products.0.weight.format: exponent_bits must be 1 to 8"));
    CHECK_THROWS_WITH(parsed(R"({"products": [{"weight_scale": {"granularity": "row"}}]})"),
                      "recipe: products.0.weight_scale: scale by row needs the source amax; it is none");
    const Recipe fp8 = find_recipe("unit-fp8");
    CHECK_THROWS_WITH(override_recipe(fp8, "learning_rate"), "recipe: 'learning_rate'; expected key=value");
    CHECK_THROWS_WITH(override_recipe(fp8, "learning_rates=1"),
                      Catch::Contains("recipe: unknown key 'learning_rates'; expected one of"));
    CHECK_THROWS_WITH(override_recipe(fp8, "products.7.kind=linear"), "recipe: products.7.kind: no entry '7' among 1");
    CHECK_THROWS_WITH(override_recipe(fp8, "learning_rate.x=1"), "recipe: unknown key 'learning_rate.x'");
}

TEST_CASE("json recipe: by name or from a file") {
    CHECK(io::load_recipe("unit-fp16").name == "unit-fp16");
    CHECK_THROWS_WITH(io::load_recipe("unit"), Catch::Contains("recipe: unknown name 'unit'"));
    const test::TemporaryFolder folder;
    const std::string path = (folder.path() / "mine.json").string();
    CHECK_THROWS_WITH(io::load_recipe(path), "recipe: " + path + " cannot be read");
    std::ofstream(path) << R"({"base": "fp32", "name": "mine"})";
    CHECK(io::load_recipe(path).name == "mine");
    std::ofstream(path) << "{";
    CHECK_THROWS_WITH(io::load_recipe(path), "recipe: " + path + " is not JSON: error at byte 2, line 1");
    std::ofstream(path) << "{\n  \"base\": \"fp32\",\n  \"name\" \"mine\"\n}\n";
    CHECK_THROWS_WITH(io::load_recipe(path), "recipe: " + path + " is not JSON: error at byte 35, line 3");
    std::ofstream(path) << R"({"base": "fp32", "learning_rate": 1e999})";
    CHECK_THROWS_WITH(io::load_recipe(path), "recipe: " + path + " has a number that is too large");
    std::ofstream(path) << R"({"base": "fp7"})";
    CHECK_THROWS_WITH(io::load_recipe(path), Catch::StartsWith(path + ": recipe: "));
}

TEST_CASE("json recipe: fields set behind a name, after colons") {
    const std::string text = "nvfp4:matmul.gradient.rounding=nearest_even:matmul.weight_gradient.rotation=null";
    const Recipe changed = io::load_recipe(text);
    Recipe by_hand = override_recipe(find_recipe("nvfp4"), "matmul.gradient.rounding=nearest_even");
    by_hand = override_recipe(by_hand, "matmul.weight_gradient.rotation=null");
    CHECK(changed.name == text);
    by_hand.name = text;
    CHECK(io::recipe_to_json(changed) == io::recipe_to_json(by_hand));
    CHECK_FALSE(changed.products.back().formats.rotations.back().has_value());
    CHECK_THROWS_WITH(io::load_recipe("nvfp5:learning_rate=1"), Catch::Contains("recipe: unknown name 'nvfp5'"));
    CHECK_THROWS_WITH(io::load_recipe("nvfp4:learning_rate=1:"), "recipe: ''; expected key=value");
    CHECK_THROWS_WITH(io::load_recipe("nvfp4:rate=1"), Catch::Contains("recipe: unknown key 'rate'"));
    const test::TemporaryFolder folder;
    const std::string path = (folder.path() / "mine.json").string();
    std::ofstream(path) << R"({"base": "fp32", "name": "mine"})";
    CHECK(io::load_recipe(path + ":learning_rate=0.5").learning_rate == 0.5);
}

TEST_CASE("json recipe: how gradients travel, in full, in short and by single fields") {
    const Recipe fp32_recipe = find_recipe("fp32");
    CHECK_FALSE(io::recipe_to_json(fp32_recipe).contains("communication"));
    const Recipe in_short = override_recipe(fp32_recipe, "communication=e5m2");
    CHECK(in_short.communication == Communication{.element = {.format = e5m2}});
    Recipe changed = override_recipe(in_short, "communication.block=128");
    changed = override_recipe(changed, "communication.rounding=stochastic");
    changed = override_recipe(changed, "communication.margin=1");
    changed = override_recipe(changed, "communication.error_feedback=true");
    const Communication expected{.element = {.format = e5m2, .rounding = Rounding::stochastic},
                                 .block = 128,
                                 .margin = 1,
                                 .error_feedback = true};
    CHECK(changed.communication == expected);
    CHECK(recipe_from_json(io::recipe_to_json(changed)).communication == expected);
    CHECK_FALSE(override_recipe(changed, "communication=null").communication.has_value());
    CHECK(override_recipe(fp32_recipe, "communication.block=16").communication == Communication{.block = 16});
    CHECK_THROWS_WITH(override_recipe(fp32_recipe, "communication=e9m9"),
                      Catch::Contains("recipe: communication.format: format: unknown name 'e9m9'"));
    CHECK_THROWS_WITH(override_recipe(fp32_recipe, "communication=e8m0"),
                      "communication.format: e8m0 has no sign; expected a format with both");
    CHECK_THROWS_WITH(override_recipe(fp32_recipe, "communication.block=100"),
                      "communication.block: is 100; expected 0, or a power of two from 16 to 65536");
    CHECK_THROWS_WITH(override_recipe(fp32_recipe, "communication.blocks=16"),
                      Catch::Contains("recipe: unknown key 'communication.blocks'; expected one of format"));
}
