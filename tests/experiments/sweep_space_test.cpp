// SPDX-License-Identifier: MIT
#include <unitscale/optim/schedule.hpp>
#include <unitscale/scaling/known_recipes.hpp>

#include "experiments/sweep_space.hpp"
#include "support/catch.hpp"
#include "support/error_of.hpp"

#include <string>
#include <vector>

using namespace unitscale;
using namespace unitscale::experiments;
using unitscale::test::error_of;

namespace {

std::string axis_error(const std::string& text) {
    return error_of([&] { static_cast<void>(parse_axis(text)); });
}
SweepSpace space_of(const std::vector<std::string>& axes) {
    SweepSpace space;
    space.run.recipe = "unit-fp8";
    for (const std::string& axis : axes) space.axes.push_back(parse_axis(axis));
    return space;
}

}  // namespace

TEST_CASE("sweep space: numbers become short texts that are read as equal numbers") {
    CHECK(number_text(0.25) == "0.25");
    CHECK(number_text(32.0) == "32");
    CHECK(number_text(1e-5) == "1e-05");
    CHECK(number_text(0.1) == "0.1");
    CHECK(number_text(0x1p-20) == "9.5367431640625e-07");
    CHECK(std::stod(number_text(0.1 + 0.2)) == 0.1 + 0.2);
    CHECK(sweep_number("lr", "2^-2") == 0.25);
    CHECK(sweep_number("lr", "1e-3") == 1e-3);
}

TEST_CASE("sweep space: an axis is a list, a geometric list, or an interval") {
    CHECK(parse_axis("lr=0.5,1,2^2").values == std::vector<std::string>{"0.5", "1", "4"});
    CHECK(parse_axis("lr=0.25:4:x2").values == std::vector<std::string>{"0.25", "0.5", "1", "2", "4"});
    CHECK(parse_axis("lr=2^-2:2^1:x2").values == std::vector<std::string>{"0.25", "0.5", "1", "2"});
    CHECK(parse_axis("lr=0.1:0.9:x3").values == std::vector<std::string>{"0.1", "0.3", "0.9"});  // ends included
    CHECK(parse_axis("lr=0.1:0.8:x3").values == std::vector<std::string>{"0.1", "0.3"});
    CHECK(parse_axis("width=32:512:x2").values == std::vector<std::string>{"32", "64", "128", "256", "512"});
    CHECK(parse_axis("recipe=fp32,a/b:c.json").values == std::vector<std::string>{"fp32", "a/b:c.json"});
    CHECK(parse_axis("masked=0,32").values == std::vector<std::string>{"0", "32"});
    CHECK(parse_axis("placement=pre,none").values == std::vector<std::string>{"pre", "none"});
    const SweepAxis interval = parse_axis("alpha_attn=2^-1:8");
    CHECK(interval.is_interval());
    CHECK(interval.low == 0.5);
    CHECK(interval.high == 8.0);
    CHECK_FALSE(parse_axis("lr=1").is_interval());
}

TEST_CASE("sweep space: exponents are whole numbers of any sign, and ranges of them") {
    CHECK(parse_axis("constant_bias=-4,-2,0,2").values == std::vector<std::string>{"-4", "-2", "0", "2"});
    CHECK(parse_axis("constant_bias=-2..1").values == std::vector<std::string>{"-2", "-1", "0", "1"});
    CHECK(parse_axis("constant_bias=-8..-7,0,3..4").values == std::vector<std::string>{"-8", "-7", "0", "3", "4"});
    CHECK(parse_axis("constant_bias=-0").values == std::vector<std::string>{"0"});
    for (const char* text : {"0.5", "2^1", "-4:4", "-4:4:x2", "65", "-65", "x", "", " 1", "+1"}) {
        CAPTURE(text);
        CHECK(axis_error("constant_bias=1," + std::string(text)) ==
              "--axis constant_bias: is '" + std::string(text) +
                  "'; expected a whole number from -64 to 64, or a range, such as -8..8");
    }
    CHECK(axis_error("constant_bias=4..1") ==
          "--axis constant_bias: is '4..1'; expected LOWEST..HIGHEST within -64..64, such as -8..8");
    CHECK(axis_error("constant_bias=") == "--axis constant_bias: has no points");
    CHECK(axis_error("constant_bias=1,0..2") == "--axis constant_bias: 1 is given twice");
    CHECK(error_of([] { static_cast<void>(make_axis("constant_bias", {"0..1"})); }) ==
          "--axis constant_bias: is 0..1; expected a whole number");
}

TEST_CASE("sweep space: a place on an axis is in octaves") {
    CHECK(parse_axis("lr=1").parameter.octaves("0.25") == -2.0);
    CHECK(parse_axis("width=1").parameter.octaves("64") == 6.0);
    CHECK(parse_axis("constant_bias=1").parameter.octaves("-3") == -3.0);
    CHECK(parse_axis("constant_bias=1").parameter.octaves("0") == 0.0);
}

TEST_CASE("sweep space: a constant bias is of every operand, and needs a recipe with constant scales") {
    SweepSpace space = space_of({"constant_bias=-3..3"});
    space.run.recipe = "fp8-cscale";
    const SweepParameter& parameter = space.axes[0].parameter;
    CHECK(SweepSpace::default_value(parameter, space.run) == "0");
    space.run.set = {"matmul.weight_scale.bias=2"};
    CHECK(error_of([&] { static_cast<void>(SweepSpace::default_value(parameter, space.run)); }) ==
          "--axis constant_bias: the constant scales of the recipe fp8-cscale have the biases 0,2; expected one bias "
          "for all");
    for (const char* value : {"-3", "0"}) {
        const Recipe at = recipe_of(space.options_at({value}));
        for (const OperandRole role : {OperandRole::activation, OperandRole::weight, OperandRole::gradient})
            CHECK(at.products.back().formats.scale(role).bias == std::stoi(value));
    }
    space.run.set.clear();
    space.run.recipe =
        "fp8-cscale:matmul.activation_scale.bias=2:matmul.weight_scale.bias=2:"
        "matmul.gradient_scale.bias=2";
    CHECK(SweepSpace::default_value(parameter, space.run) == "2");
    for (const char* recipe : {"fp32", "fp8-amax", "unit-fp8"}) {
        space.run.recipe = recipe;
        CHECK(error_of([&] { static_cast<void>(SweepSpace::default_value(parameter, space.run)); }) ==
              concatenate("--axis constant_bias: no operand of the recipe ", recipe,
                          " has a constant scale; expected one, as fp8-cscale has"));
    }
}

TEST_CASE("sweep space: an invalid axis is an error of one line") {
    CHECK(axis_error("lr") == "--axis: is 'lr'; expected NAME=VALUES, such as lr=0.25:4:x2");
    CHECK(
        axis_error("beta=1") ==
        "--axis: unknown hyperparameter 'beta'; expected one of lr, lr_factor, alpha_attn, alpha_ffn_act, alpha_res, "
        "alpha_res_attn_ratio, alpha_loss_softmax, init_sigma, alpha_emb, alpha_out, embedding_rate, rate:PATTERN, "
        "loss_scale, constant_bias, weight_decay, beta1, beta2, epsilon, momentum, dropout, final_share, width, depth, "
        "heads, batch, steps, seq, "
        "half_life, masked, model, "
        "placement, context, positions, feed_forward, norm, residual, initial, optimiser, schedule, final_norm, "
        "readout_bias, embedding_norm, bias, gains, recipe");
    CHECK(axis_error("rate:=1") ==
          "--axis rate:: has no pattern of parameters' names; expected one, such as rate:*query*=0.25:4:x2");
    CHECK(axis_error("rate:*=0") == "--axis rate:*: is '0'; expected a positive number, such as 0.25 or 2^-2");
    CHECK(axis_error("bias=on,yes") == "--axis bias: is yes; expected on or off");
    CHECK(axis_error("lr=") == "--axis lr: has no points");
    CHECK(axis_error("lr=4:0.25:x2") == "--axis lr: 4:0.25:x2 has no points");
    CHECK(axis_error("lr=4:0.25") == "--axis lr: 4:0.25 has no points");
    for (const char* text : {"lr=0.5x", "lr=1,0.5x", "lr=0.5x:1:x2", "lr=1:0.5x:x2", "lr=1:2:x0.5x"}) {
        CAPTURE(text);
        CHECK(axis_error(text) == "--axis lr: is '0.5x'; expected a positive number, such as 0.25 or 2^-2");
    }
    for (const char* text : {"0", "-1", "nan", "inf", "2^", "2^9999", " 1", ""}) {
        CAPTURE(text);
        CHECK(axis_error("lr=1," + std::string(text)) ==
              "--axis lr: is '" + std::string(text) + "'; expected a positive number, such as 0.25 or 2^-2");
    }
    CHECK(axis_error("lr=1:2:2") == "--axis lr: is '1:2:2'; expected FROM:TO:xFACTOR, such as 0.25:4:x2");
    CHECK(axis_error("lr=1:2:x1") == "--axis lr: is '1:2:x1'; expected a factor above 1");
    CHECK(axis_error("lr=1:2:x1.0001") == "--axis lr: 1:2:x1.0001 has more than 1000 points");
    CHECK(axis_error("lr=1,2,1.0") == "--axis lr: 1 is given twice");
    CHECK(axis_error("placement=") == "--axis placement: has no points");
    CHECK(axis_error("placement=pre,pre") == "--axis placement: pre is given twice");
    CHECK(axis_error("width=3.5") == "--axis width: is 3.5; expected a whole number");
    CHECK(axis_error("width=32:64") == "--axis width: is the interval 32:64; a size takes values, such as 32:512:x2");
}

TEST_CASE("sweep space: axes that cannot be together are one line") {
    CHECK(error_of([] { space_of({}).validate(); }) == "--axis: none given; without one a sweep has no points");
    CHECK(error_of([] { space_of({"lr=1", "lr=2"}).validate(); }) == "--axis lr: is given twice");
    CHECK(error_of([] { space_of({"lr=1", "lr_factor=2"}).validate(); }) == "--axis lr_factor: excludes --axis lr");
    CHECK(error_of([] { space_of({"rate:*a=1", "rate:*b=1"}).validate(); }) == "");
    CHECK(error_of([] { space_of({"rate:*a=1", "rate:*a=2"}).validate(); }) == "--axis rate:*a: is given twice");
    SweepSpace of_tokens = space_of({"steps=1,2"});
    of_tokens.tokens = 4096;
    CHECK(error_of([&] { of_tokens.validate(); }) == "--axis steps: --tokens sets the steps");
    SweepSpace space = space_of({"heads=1,2"});
    CHECK(error_of([&] { space.validate(); }) == "");
    space.run.head_size = 16;
    CHECK(error_of([&] { space.validate(); }) == "--axis heads: --head-size sets the heads");
}

TEST_CASE("sweep space: a point's run") {
    const SweepSpace space = space_of({"recipe=unit-fp8,fp32", "width=32,64", "alpha_res=0.5,2", "lr_factor=1,4"});
    LanguageRunOptions options = space.options_at({"fp32", "64", "0.5", "4"});
    CHECK(options.recipe == "fp32");
    CHECK(options.width == 64);
    CHECK(options.set == std::vector<std::string>{"residual.multiplier=0.5"});
    CHECK(options.lr == 4.0 * find_recipe("fp32").learning_rate);
    CHECK(recipe_of(options).residual.multiplier == 0.5);
    CHECK_FALSE(space.options_at({"fp32", "64", "0.5", "1"}).lr.has_value());
    CHECK(space_of({"lr=0.5"}).options_at({"0.5"}).lr == 0.5);
    SweepSpace given = space_of({"lr_factor=4"});
    given.run.lr = 0.25;
    CHECK(given.options_at({"4"}).lr == 1.0);
}

TEST_CASE("sweep space: an axis of rates has a pattern, and adds its factor behind the options' own") {
    SweepSpace space = space_of({"rate:*query*=0.5,1", "rate:*readout*=2^-1:2:x2"});
    space.run.rates = {"*=2"};
    CHECK(space.axes[0].name() == "rate:*query*");
    CHECK(space.axes[1].values == std::vector<std::string>{"0.5", "1", "2"});
    CHECK(space.find("rate:*readout*") == 1u);
    CHECK(space.places(false) == std::vector<std::size_t>{0, 1});
    CHECK(space.options_at({"0.5", "2"}).rates == std::vector<std::string>{"*=2", "*query*=0.5", "*readout*=2"});
    CHECK(space.text({"0.5", "2"}) == "rate:*query* 0.5, rate:*readout* 2");
    CHECK(space_of({"rate:*query*=1:4"}).axes[0].is_interval());
}

TEST_CASE("sweep space: runs of different lengths share the warm-up of the shortest") {
    const auto warmup = [](const SweepSpace& space, const SweepPoint& point) {
        return space.options_at(point).learning_rates(1.0).warmup;
    };
    SweepSpace space = space_of({"steps=400,200", "lr=1"});
    CHECK(warmup(space, {"200", "1"}) == 20);
    CHECK(warmup(space, {"400", "1"}) == 20);
    space.run.warmup = 5;
    CHECK(warmup(space, {"400", "1"}) == 5);
    CHECK_FALSE(space.shared_warmup().has_value());
    // One number of steps, or another axis: a tenth of each run, as without a sweep.
    CHECK(warmup(space_of({"steps=400"}), {"400"}) == 40);
    CHECK_FALSE(space_of({"steps=400"}).shared_warmup().has_value());
    // Sizes that are varied alone have runs of the run's own length, too.
    SweepSpace alone = space_of({"steps=400", "lr=1"});
    alone.run.steps = 100;
    alone.sizes_alone = true;
    CHECK(warmup(alone, {"400", "1"}) == 10);
    CHECK(warmup(space_of({"lr=1,2"}), {"1"}) == space.run.steps / 10);
    // A constant rate has no warm-up.
    SweepSpace constant = space_of({"steps=400,200"});
    constant.run.schedule = "constant";
    CHECK_FALSE(constant.shared_warmup().has_value());
    CHECK(warmup(constant, {"400"}) == 0);
    const SweepSpace both = space_of({"steps=400,200", "schedule=constant,cosine"});
    CHECK(warmup(both, {"400", "constant"}) == 0);
    CHECK(warmup(both, {"400", "cosine"}) == 20);
}

TEST_CASE("sweep space: runs of equal tokens take as many steps as their batches allow") {
    SweepSpace space = space_of({"batch=4,16", "seq=8,32"});
    space.tokens = 1000;
    CHECK(space.options_at({"4", "8"}).steps == 31);
    CHECK(space.options_at({"16", "32"}).steps == 1);
    CHECK(space.options_at({"4", "8"}).learning_rates(1.0).warmup == 3);  // a tenth of each run
    space.tokens = 511;
    CHECK(error_of([&] {
              static_cast<void>(space.options_at({"16", "32"}));
          }) == "--tokens: is 511; expected one batch of 16 x 32 characters at least, and 1000000000 at most");
    space.tokens = 0;
    CHECK(error_of([&] { static_cast<void>(space.options_at({"4", "8"})); }).starts_with("--tokens: is 0; expected "));
    CHECK(space.options_at({"0", "8"}).batch == 0);  // an error of the options
}

TEST_CASE("sweep space: a loss scale is constant, whatever the recipe's kind") {
    SweepSpace space = space_of({"loss_scale=2^0:2^4:x4"});
    CHECK(space.axes[0].values == std::vector<std::string>{"1", "4", "16"});
    const std::vector<std::pair<std::string, std::string>> defaults = {{"fp32", "1"},
                                                                       {"fp16", "1"},
                                                                       {"fp16-loss-scaled", "4096"},
                                                                       {"fp16-auto-loss-scaled", "65536"},
                                                                       {"fp16-histogram-loss-scaled", "65536"}};
    for (const auto& [recipe, by_default] : defaults) {
        CAPTURE(recipe);
        space.run.recipe = recipe;
        CHECK(SweepSpace::default_value(space.axes[0].parameter, space.run) == by_default);
        const Recipe at = recipe_of(space.options_at({"16"}));
        CHECK(at.loss_scaling.kind == LossScaleKind::constant);
        CHECK(at.loss_scaling.initial == 16.0);
    }
    space.run.set = {"loss_scaling.kind=automatic"};
    CHECK(recipe_of(space.options_at({"16"})).loss_scaling.kind == LossScaleKind::constant);
}

TEST_CASE("sweep space: every parameter changes the option that it names") {
    const LanguageRunOptions usual = space_of({}).run;
    for (const SweepParameter& parameter : sweep_parameters) {
        CAPTURE(std::string(parameter.name));
        const std::string value = parameter.part != nullptr ? "on" : "3";
        SweepSpace space = space_of({concatenate(parameter.name, '=', value)});
        if (parameter.name == "embedding_rate") space.run.recipe = "mup-fp32";  // other recipes refuse it
        if (parameter.is_exponent()) space.run.recipe = "fp8-cscale";
        LanguageRunOptions before = usual;
        before.recipe = space.run.recipe;
        const LanguageRunOptions after = space.options_at({value});
        if (parameter.part != nullptr) {
            CHECK_FALSE(before.*parameter.part);
            CHECK(after.*parameter.part);
            continue;
        }
        if (parameter.text != nullptr) {
            CHECK(before.*parameter.text != "3");
            CHECK(after.*parameter.text == "3");
        } else if (parameter.size != nullptr) {
            CHECK(before.*parameter.size != 3);
            CHECK(after.*parameter.size == 3);
        } else if (parameter.number != nullptr) {
            CHECK(before.*parameter.number < 1.0);
            CHECK(after.*parameter.number == 3.0);
            CHECK(SweepSpace::default_value(parameter, before) == number_text(before.*parameter.number));
            CHECK(SweepSpace::default_value(parameter, after) == "3");
        } else if (parameter.is_exponent()) {
            CHECK(after.*parameter.exponent == 3);
            CHECK(SweepSpace::default_value(parameter, before) == "0");
            CHECK(SweepSpace::default_value(parameter, after) == "3");
        } else if (parameter.has_pattern()) {
            CHECK(after.rates == std::vector<std::string>{"PATTERN=3"});
            CHECK(SweepSpace::default_value(parameter, after) == "1");
        } else if (parameter.is_rate()) {
            CHECK(after.lr.has_value());
        } else if (parameter.name == "epsilon") {
            CHECK(after.epsilon == 3.0);
            CHECK(SweepSpace::default_value(parameter, before) == "1e-08");
            CHECK(SweepSpace::default_value(parameter, after) == "3");
        } else {
            CHECK(SweepSpace::default_value(parameter, before) == "1");
            CHECK(SweepSpace::default_value(parameter, after) == "3");
        }
    }
    CHECK(SweepSpace::default_value(sweep_parameters[0], usual) == number_text(find_recipe("unit-fp8").learning_rate));
    CHECK(SweepSpace::default_value(sweep_parameters[1], usual) == "1");
}

TEST_CASE("sweep space: a point as text") {
    const SweepSpace space = space_of({"recipe=unit-fp8,fp32", "width=32,64", "lr=0.5,1"});
    const SweepPoint point = {"fp32", "64", "0.5"};
    CHECK(space.text(point) == "fp32, width 64, lr 0.5");
    const std::vector<std::size_t> conditions = space.places(true);
    CHECK(conditions == std::vector<std::size_t>{0, 1});
    CHECK(space.text(point, &conditions) == "fp32, width 64");
    CHECK(space.places(false) == std::vector<std::size_t>{2});
    CHECK(space.rate() == 2u);
    CHECK_FALSE(space.find("depth").has_value());
    CHECK(space_of({"model=gpt,llama", "placement=pre,post"}).text({"llama", "post"}) == "model llama, placement post");
}

TEST_CASE("sweep space: an axis of given values is checked as a parsed one is") {
    CHECK(make_axis("recipe", {"a,b.json", "fp32"}).values == std::vector<std::string>{"a,b.json", "fp32"});
    CHECK(error_of([] { static_cast<void>(make_axis("recipe", {})); }) == "--axis recipe: has no points");
    CHECK(error_of([] { static_cast<void>(make_axis("width", {"3.5"})); }) ==
          "--axis width: is 3.5; expected a whole number");
    CHECK(error_of([] {
              static_cast<void>(make_axis("recipe", {"fp32", "fp32"}));
          }) == "--axis recipe: fp32 is given twice");
}
