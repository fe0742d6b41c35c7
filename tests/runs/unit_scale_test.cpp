// SPDX-License-Identifier: MIT
// Unit scale at initialisation: every tensor of a deep decoder's first step, forward and backward.
#include <unitscale/analysis/scale_check.hpp>

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

/// Moments of every tensor of a step by name; `split.0` and `split.1` are outputs of one op.
class Recorder : public Observer<float> {
public:
    void observe(const TensorEvent<float>& event) override {
        std::string key = std::string(event.path) + (event.pass == Pass::value ? " value" : " gradient");
        if (event.index > 0) key += " " + std::to_string(event.index);
        seen[key] = {std::string(event.op), event.pass, analysis::moments(event.tensor)};
    }
    std::map<std::string, Seen> seen;
};

std::map<std::string, Seen> first_step(const char* recipe, const nn::DecoderConfig& config) {
    test::LanguageModel<float> model(find_recipe(recipe), config, 1, 2);
    Recorder recorder;
    model.tape.set_observer(&recorder);
    model.tape.begin_step();
    model.tape.backward(model.loss(test::random_batch(4, config.length, config.vocabulary)));
    model.tape.set_observer(nullptr);
    return recorder.seen;
}

bool ends(const std::string& text, std::string_view end) { return text.ends_with(end); }

/// Gradients of queries and keys: of the layers' outputs, and of their weights.
bool of_query_or_key(const std::string& key) {
    for (const char* end : {"/query/linear gradient", "/key/linear gradient", "/query/weight gradient", "/key/weight gradient"})
        if (ends(key, end)) return true;
    return false;
}

const nn::DecoderConfig deep{.vocabulary = 65, .width = 256, .depth = 8, .heads = 4, .length = 128};

}  // namespace

TEST_CASE("runs: at initialisation every activation, weight and gradient of a deep decoder has unit scale") {
    for (const char* recipe : {"unit-fp32", "unit-fp8"}) {
        std::size_t values = 0, gradients = 0;
        for (const auto& [key, seen] : first_step(recipe, deep)) {
            const double std = seen.moments.std;
            INFO(recipe << ", " << key << ": std " << std);
            if (seen.op == "softmax_cross_entropy") continue;  // one number
            if (seen.pass == Pass::gradient) {
                ++gradients;
                CHECK(std >= 0.25);
                CHECK(std <= 4.0);
            } else if (seen.op == "readout") {
                CHECK(std == Approx(1.0 / 16.0).epsilon(0.25));  // width^-1/2, on purpose
            } else {
                ++values;
                CHECK(std >= 0.5);
                CHECK(std <= (seen.op == "attention" ? 4.0 : 2.0));
            }
        }
        // 8 blocks of 2 x (split twice, norm, add), 6 linear layers, attention, gelu and 6 weights; embeddings, sum, last norm, 3 tables.
        CHECK(values == 8 * (2 * 4 + 6 + 2 + 6) + 4 + 3 - 1);
        CHECK(gradients == 8 * (2 * 4 + 6 + 2 + 6) + 4 + 3 + 1);
    }
}

TEST_CASE("runs: with logits over the head size the gradients of queries and keys are at 1 / sqrt(head size), the others at 1") {
    auto config = deep;
    config.attention_mult = 1.0;
    std::size_t found = 0;
    for (const auto& [key, seen] : first_step("unit-fp8", config)) {
        if (seen.pass != Pass::gradient || seen.op == "softmax_cross_entropy") continue;
        INFO(key << ": std " << seen.moments.std);
        if (of_query_or_key(key)) {
            ++found;
            CHECK(seen.moments.std == Approx(1.0 / 8.0).epsilon(0.25));
        } else {
            CHECK(seen.moments.std >= 0.25);
            CHECK(seen.moments.std <= 4.0);
        }
    }
    CHECK(found == 8 * 4);
}

TEST_CASE("runs: gains start at 1, biases at 0") {
    auto config = deep;
    config.depth = 1;
    config.norm = {.kind = nn::NormKind::layer, .gains = true};
    config.bias = true;
    std::size_t gains = 0, biases = 0;
    for (const auto& [key, seen] : first_step("unit-fp8", config)) {
        INFO(key << ": std " << seen.moments.std);
        if (ends(key, "/gain value")) CHECK((++gains, seen.moments.rms) == 1.0);
        if (ends(key, "/bias value") || ends(key, "/shift value")) CHECK((++biases, seen.moments.rms) == 0.0);
        if (ends(key, "/gain gradient") || ends(key, "/shift gradient") || ends(key, "up/bias gradient")) {
            CHECK(seen.moments.std >= 0.25);
            CHECK(seen.moments.std <= 4.0);
        }
    }
    CHECK(gains == 3);
    CHECK(biases == 3 + 6);
}
