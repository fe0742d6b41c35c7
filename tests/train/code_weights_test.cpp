// SPDX-License-Identifier: MIT
#include <unitscale/train/code_weights.hpp>

#include <unitscale/nn/decoder.hpp>
#include <unitscale/nn/initialise.hpp>
#include <unitscale/ops/softmax_cross_entropy.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/scaling/state.hpp>

#include "support/catch.hpp"

#include <cstring>
#include <map>
#include <string>
#include <vector>

using namespace unitscale;

namespace {

constexpr nn::DecoderConfig config{.vocabulary = 40, .width = 48, .depth = 2, .heads = 3, .length = 24, .bias = true};

/// The logits of 3 texts of 7 tokens, and of the eighth tokens alone with a cache. `plan`: of the forward factors, as a
/// file keeps it.
template <class T>
std::vector<T> logits(nn::Decoder<T>& model, const Recipe& recipe, int threads = 1,
                      const std::map<std::string, double>& plan = {}) {
    ScalingState state;
    state.set_plan(plan);
    Tape<T> tape(recipe, state, threads);
    Tensor<std::int32_t> ids({3, 7}), last({3, 1});
    for (std::size_t i = 0; i < ids.size(); ++i) ids.data()[i] = static_cast<std::int32_t>(i * 7 % 40);
    for (std::size_t i = 0; i < 3; ++i) last.data()[i] = static_cast<std::int32_t>(i + 1);
    auto cache = model.make_cache(3);
    std::vector<T> values;
    tape.begin_step({.training = false, .gradients = false});
    const Variable<T> whole = model(tape, ids);
    values.assign(whole.value().span().begin(), whole.value().span().end());
    tape.begin_step({.training = false, .gradients = false});
    static_cast<void>(model(tape, ids, cache));
    tape.begin_step({.training = false, .gradients = false});
    const Variable<T> next = model(tape, last, cache);
    values.insert(values.end(), next.value().span().begin(), next.value().span().end());
    return values;
}

/// The plan of the forward factors, where the recipe needs one; else it is empty.
template <class T>
std::map<std::string, double> plan_of(nn::Decoder<T>& model, const Recipe& recipe) {
    ScalingState state;
    Tape<T> tape(recipe, state);
    const Tensor<std::int32_t> ids({1, 4}, {3, 1, 4, 1}), labels({1, 4}, {1, 4, 1, 5});
    tape.plan([&] { return ops::softmax_cross_entropy(model(tape, ids), labels); });
    return state.plan();
}

template <class T>
bool equal_bits(const std::vector<T>& a, const std::vector<T>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

template <class T>
void round_in_place(nn::Decoder<T>& model, const std::vector<train::WeightCodeRule>& rules) {
    nn::Decoder<T> coded(config);
    const auto from = model.parameters(), to = coded.parameters();
    for (std::size_t i = 0; i < from.size(); ++i) to[i]->write() = from[i]->value();
    train::code_weights(to, rules);
    for (std::size_t i = 0; i < from.size(); ++i)
        if (const CodedWeight* const codes = to[i]->coded_value()) from[i]->write() = decoded<T>(*codes);
}

}  // namespace

TEMPLATE_TEST_CASE("logits of a coded model equal those of the rounded weights", "[train]", float, Half, double) {
    const char* const format =
        GENERATE("fp32", "fp16", "bf16", "e4m3", "e5m2", "e3m2", "e2m1", "mxfp8_e4m3", "mxfp4", "fp8_tile", "mxint8");
    CAPTURE(format);
    const Recipe recipe = recipe_in<TestType>(find_recipe("fp32"));
    nn::Decoder<TestType> model(config), rounded(config);
    nn::initialise(model.parameters(), recipe, 3);
    nn::initialise(rounded.parameters(), recipe, 3);
    const std::vector<train::WeightCodeRule> rules{{.rule = train::weight_code_rule(format)}};
    round_in_place(rounded, rules);
    CHECK(train::code_weights(model.parameters(), rules) > 0);
    const auto own = logits(model, recipe);
    CHECK(equal_bits(own, logits(rounded, recipe)));
    CHECK(equal_bits(own, logits(model, recipe, 2)));
}

TEST_CASE("logits of a coded model equal those of the simulated recipe", "[train]") {
    const char* const name =
        GENERATE("fp8-amax", "fp8-cscale", "mxfp8", "mxfp6", "mxfp4", "nvfp4", "fp8-tiles", "unit-fp8", "unit-mxfp4");
    CAPTURE(name);
    const Recipe recipe = recipe_in<float>(find_recipe(name));
    nn::Decoder<float> model(config), simulated(config);
    nn::initialise(model.parameters(), recipe, 5);
    nn::initialise(simulated.parameters(), recipe, 5);
    const auto rules = train::recipe_code_rules(recipe, model.parameters());
    CHECK(rules.size() >= 6);
    train::code_weights(model.parameters(), rules);
    CHECK(equal_bits(logits(model, recipe), logits(simulated, recipe)));
}

TEMPLATE_TEST_CASE("codes by equal rules change no bit under any recipe", "[train]", float, Half) {
    for (const Recipe& known : known_recipes()) {
        CAPTURE(known.name);
        const Recipe recipe = recipe_in<TestType>(known);
        nn::DecoderConfig tied = config;
        tied.tied = true;
        for (const nn::DecoderConfig& sizes : {config, tied}) {
            nn::Decoder<TestType> model(sizes), simulated(sizes);
            nn::initialise(model.parameters(), recipe, 5);
            nn::initialise(simulated.parameters(), recipe, 5);
            const auto plan = plan_of(simulated, recipe);
            const std::size_t bytes =
                train::code_weights(model.parameters(), train::equal_code_rules(recipe, model.parameters()));
            CHECK((bytes > 0) == (recipe.scaling != Scaling::propagate));
            CHECK(equal_bits(logits(model, recipe, 1, plan), logits(simulated, recipe, 1, plan)));
        }
    }
}

TEST_CASE("codes by another rule than the recipe's are an error", "[train]") {
    const Recipe recipe = recipe_in<float>(find_recipe("mxfp4"));
    nn::Decoder<float> model(config);
    nn::initialise(model.parameters(), recipe, 5);
    train::code_weights(model.parameters(),
                        {{.pattern = "*block1/ffn/up/*", .rule = train::weight_code_rule("mxfp8_e4m3")}});
    CHECK_THROWS_WITH(logits(model, recipe),
                      Catch::Contains("the weight is kept as codes of e4m3 in blocks; the recipe "
                                      "rounds it to e2m1 in blocks by a rule of its own"));
    ScalingState state;
    Tape<float> tape(recipe, state);
    tape.begin_step();
    CHECK_THROWS_WITH(model(tape, Tensor<std::int32_t>({1, 2}, {0, 1})),
                      Catch::Contains("its value is kept as codes; expected a step with gradients = false"));
}

TEST_CASE("codes stay under rules of their form and of more bits", "[train]") {
    const Recipe recipe = find_recipe("fp32");
    nn::Decoder<float> model(config);
    nn::initialise(model.parameters(), recipe, 5);
    const auto code = [&](const char* format) {
        return train::code_weights(model.parameters(),
                                   {{.role = ParameterRole::weight, .rule = train::weight_code_rule(format)}});
    };
    const std::size_t bytes = code("mxfp4");
    CHECK(code("mxfp4") == bytes);
    CHECK(code("fp32") == bytes);
    std::size_t coded = 0;
    for (const Parameter<float>* parameter : model.parameters())
        if (parameter->coded_value() != nullptr) ++coded;
    CHECK(coded == 12);
    CHECK_THROWS_WITH(code("nvfp4"), Catch::Contains("is kept as codes of another form; expected elements"));
}

TEST_CASE("rules that fit no weight are errors", "[train]") {
    const Recipe recipe = find_recipe("fp32");
    nn::Decoder<float> model(config);
    nn::initialise(model.parameters(), recipe, 5);
    CHECK_THROWS_WITH(
        train::code_weights(model.parameters(), {{.pattern = "no*", .rule = train::weight_code_rule("e4m3")}}),
        Catch::Contains("code_weights: pattern 'no*' matches no matrix of the"));
    CHECK_THROWS_WITH(train::weight_code_rule("e9m9"), Catch::Contains("unknown name 'e9m9'"));
    OperandRule by_rows = train::weight_code_rule("e4m3");
    by_rows.scale.granularity = ScaleGranularity::row;
    CHECK_THROWS_WITH(train::code_weights(model.parameters(), {{.rule = by_rows}}),
                      Catch::Contains("code_weights: parameter decoder/tokens/weight: encode_weight: the scale is"));
}
