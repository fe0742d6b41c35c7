// SPDX-License-Identifier: MIT
// Unit scale at initialisation, for every tensor of a deep decoder's first step, forward and backward.
#include <unitscale/analysis/scale_check.hpp>
#include <unitscale/scaling/known_recipes.hpp>

#include "support/catch.hpp"
#include "support/language_model.hpp"

#include <map>
#include <string>

using namespace unitscale;

namespace {

struct Seen {
    std::string op;
    Pass pass = Pass::value;
    analysis::Moments moments{};
};

/// Moments of every tensor of a step by its path, its pass and, from an op's second output on, the output's number.
class Recorder : public Observer<float> {
public:
    void observe(const TensorEvent<float>& event) override {
        std::string key = std::string(event.path) + (event.pass == Pass::value ? " value" : " gradient");
        if (event.index > 0) key += " " + std::to_string(event.index);
        seen[key] = {std::string(event.op), event.pass, analysis::moments(event.tensor)};
    }
    std::map<std::string, Seen> seen;
};

std::map<std::string, Seen> first_step(const Recipe& recipe, const nn::DecoderConfig& config) {
    test::LanguageModel<float> model(recipe, config, 1, 2);
    Recorder recorder;
    model.tape.set_observer(&recorder);
    model.tape.begin_step();
    model.tape.backward(model.loss(test::random_batch(4, config.length, config.vocabulary)));
    model.tape.set_observer(nullptr);
    return recorder.seen;
}

/// True if a key names a tensor of the layer `attention/<name>`: the value or gradient of its output or its weight.
bool of_layer(const std::string& key, std::string_view name) {
    return key.find(concatenate("/attention/", name, "/")) != std::string::npos;
}

const nn::DecoderConfig deep{.vocabulary = 65, .width = 256, .depth = 8, .heads = 4, .length = 128};

/// Checks the standard deviation of every tensor of a deep decoder's first step.
/// Activations and weights lie in [0.5, 2].
/// Attention's outputs (of the op and of the layer after it) lie in [0.5, 4], because the rows of a sequence become
/// alike with depth.
/// Then the differences between values shrink, and the gradients of queries and keys, which come from them, shrink too:
/// from m / sqrt(head size), which is 1 here, to a fifth of it.
/// Other gradients lie in [0.25, 4].
/// `largest_sum`: the limit for gradients of the weights before and after attention, which are sums over similar rows.
void check_deep(const Recipe& recipe, double largest_sum) {
    std::size_t values = 0, gradients = 0;
    for (const auto& [key, seen] : first_step(recipe, deep)) {
        const double std = seen.moments.std;
        INFO(recipe.name << ", " << key << ": std " << std);
        if (seen.op == "softmax_cross_entropy") continue;  // a single number has no standard deviation
        if (seen.op == "readout" && seen.pass == Pass::value) {
            CHECK(std == Approx(std::pow(256.0, 0.5 - recipe.readout_exponent)).epsilon(0.25));
        } else if (seen.pass == Pass::value) {
            ++values;
            const bool attention_output = seen.op == "attention" || (of_layer(key, "out") && seen.op == "linear");
            CHECK(std >= 0.5);
            CHECK(std <= (attention_output ? 4.0 : 2.0));
        } else {
            ++gradients;
            const bool query_or_key = of_layer(key, "query") || of_layer(key, "key");
            const bool sum = seen.op == "parameter" && (of_layer(key, "value") || of_layer(key, "out"));
            CHECK(std >= (query_or_key ? 0.18 : 0.25));
            CHECK(std <= (query_or_key ? 1.25 : sum ? largest_sum : 4.0));
        }
    }
    // Each of the 8 blocks has 2 residual layers, each with a split (2 outputs), a norm and a sum.
    // It also has 6 linear layers, their 6 weights, attention and gelu.
    // Around the blocks are 2 lookups, their 2 tables, a sum, a norm and the readout's weight.
    // The additional gradient is the gradient of the logits.
    CHECK(values == 8 * (2 * 4 + 6 + 6 + 2) + 2 + 2 + 1 + 1 + 1);
    CHECK(gradients == values + 1);
}

}  // namespace

TEST_CASE("runs: at initialisation every activation, weight and gradient of a deep decoder has unit scale") {
    Recipe recipe = find_recipe("unit-fp32");
    recipe.readout_exponent = 1.0;  // u-µP: logits are nearly flat, and gradients of different rows are independent
    check_deep(recipe, 4.0);
}

TEST_CASE("runs: unit scale in FP8 with logits of unit scale, where gradients have a part common to all rows") {
    const Recipe recipe = find_recipe("unit-fp8");
    CHECK(recipe.readout_exponent == 0.5);
    check_deep(recipe, 6.0);
}

TEST_CASE("runs: gradients of queries and keys are at m / sqrt(head size)") {
    auto config = deep;
    config.depth = 1;  // rows are independent in the first block
    config.attention_mult = 1.0;
    std::size_t found = 0;
    for (const auto& [key, seen] : first_step(find_recipe("unit-fp8"), config)) {
        if (seen.pass != Pass::gradient || seen.op == "softmax_cross_entropy") continue;
        INFO(key << ": std " << seen.moments.std);
        if (of_layer(key, "query") || of_layer(key, "key")) {
            ++found;
            CHECK(seen.moments.std == Approx(1.0 / 8.0).epsilon(0.25));
        } else {
            CHECK(seen.moments.std >= 0.25);
            CHECK(seen.moments.std <= 4.0);
        }
    }
    CHECK(found == 4);
}

TEST_CASE("runs: gains start at 1, biases at 0") {
    auto config = deep;
    config.depth = 1;
    config.norm = {.kind = nn::NormKind::layer, .gains = true};
    config.bias = true;
    Recipe recipe = find_recipe("unit-fp8");
    recipe.readout_exponent = 1.0;
    std::size_t gains = 0, biases = 0;
    for (const auto& [key, seen] : first_step(recipe, config)) {
        INFO(key << ": std " << seen.moments.std);
        if (key.ends_with("/gain value")) CHECK((++gains, seen.moments.rms) == 1.0);
        if (key.ends_with("/bias value") || key.ends_with("/shift value")) CHECK((++biases, seen.moments.rms) == 0.0);
        if (key.ends_with("/gain gradient") || key.ends_with("/shift gradient") || key.ends_with("up/bias gradient")) {
            CHECK(seen.moments.std >= 0.25);
            CHECK(seen.moments.std <= 4.0);
        }
    }
    CHECK(gains == 3);
    CHECK(biases == 3 + 6);
}
