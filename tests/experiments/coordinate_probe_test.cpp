// SPDX-License-Identifier: MIT

#include <unitscale/optim/adam.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/train/step.hpp>

#include "experiments/coordinate_probe.hpp"
#include "support/catch.hpp"
#include "support/language_model.hpp"

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

using namespace unitscale;

namespace {

nn::DecoderConfig small() { return {.vocabulary = 7, .width = 8, .depth = 2, .heads = 2, .length = 6}; }

/// Logits of a pass, through the tape.
template <class T>
std::vector<double> logits_of(test::LanguageModel<T>& model, const Tensor<std::int32_t>& ids) {
    model.tape.begin_step({.training = false, .gradients = false});
    const Variable<T> logits = model.decoder(model.tape, ids);
    std::vector<double> values;
    for (const T& x : logits.value().span()) values.push_back(static_cast<double>(x));
    return values;
}

double rms(const std::vector<double>& x, const std::vector<double>& minus = {}) {
    double sum = 0.0;
    for (std::size_t i = 0; i < x.size(); ++i) {
        const double value = x[i] - (minus.empty() ? 0.0 : minus[i]);
        sum += value * value;
    }
    return std::sqrt(sum / static_cast<double>(x.size()));
}

std::vector<std::string> names(const std::vector<experiments::LayerCoordinate>& layers) {
    std::vector<std::string> result;
    for (const auto& layer : layers) result.push_back(layer.layer);
    return result;
}

}  // namespace

TEST_CASE("coordinate probe: every layer in order, no change before training, the change of the tape's values after") {
    for (const char* recipe : {"fp32", "unit-fp32", "mup-fp32", "umup-fp32"}) {
        INFO(recipe);
        test::LanguageModel<double> model(find_recipe(recipe), small());
        const train::Batch batch = test::random_batch(4, 6, 7), seen = test::random_batch(2, 6, 7, 9);
        train::plan_factors(model.decoder, model.tape, batch);
        experiments::CoordinateProbe<double> probe(model.decoder, model.tape, seen.ids);
        const auto first = probe.measure();
        CHECK(names(first) == std::vector<std::string>{"embedding", "block0/attention", "block0/ffn", "block0",
                                                       "block1/attention", "block1/ffn", "block1", "norm", "logits"});
        for (const auto& layer : first) {
            INFO(layer.layer);
            CHECK(layer.change == 0.0);
            CHECK(layer.output > 0.0);
        }
        for (const auto& layer : probe.measure()) CHECK(layer.change == 0.0);  // measuring changes nothing
        const std::vector<double> before = logits_of(model, seen.ids);
        CHECK(first.back().output == Approx(rms(before)).epsilon(1e-12));

        optim::Adam<double> optimiser(model.decoder.parameters(),
                                      {.parametrisation = model.recipe.parametrisation_rule()});
        REQUIRE(train::train_step<double>(model.decoder, model.tape, optimiser, {&batch, 1}, 0.01).updated);
        const auto last = probe.measure();
        for (const auto& layer : last) {
            INFO(layer.layer);
            CHECK(layer.change > 0.0);
            CHECK(std::isfinite(layer.change));
        }
        const std::vector<double> after = logits_of(model, seen.ids);
        CHECK(last.back().output == Approx(rms(after)).epsilon(1e-12));
        CHECK(last.back().change == Approx(rms(after, before)).epsilon(1e-12));
    }
}

TEST_CASE("coordinate probe: the inputs and outputs of a block obey the block's sum") {
    // With one token and one position attention's weights do not matter, and every layer can be computed by hand.
    nn::DecoderConfig config = small();
    config.depth = 1;
    config.length = 1;
    config.positions = nn::Positions::rotary;
    test::LanguageModel<double> model(find_recipe("fp32"), config);
    test::randomise(model.decoder.parameters(), 0.5);
    Tensor<std::int32_t> ids({1, 1});
    ids.data()[0] = 3;
    experiments::CoordinateProbe<double> probe(model.decoder, model.tape, ids);
    const auto layers = probe.measure();
    REQUIRE(layers.size() == 6);

    const auto parameters = model.decoder.parameters();
    const auto weight = [&](const std::string& name) -> const Tensor<double>& {
        for (const Parameter<double>* parameter : parameters)
            if (parameter->name() == "decoder/" + name + "/weight") return parameter->value();
        FAIL("no parameter " << name);
        return parameters.front()->value();
    };
    const auto product = [&](const std::string& name, const std::vector<double>& x) {
        const Tensor<double>& w = weight(name);
        std::vector<double> y(w.dim(0), 0.0);
        for (std::size_t i = 0; i < y.size(); ++i)
            for (std::size_t j = 0; j < x.size(); ++j) y[i] += w.data()[i * x.size() + j] * x[j];
        return y;
    };
    const auto normed = [](std::vector<double> x) {
        const double size = std::sqrt(rms(x) * rms(x) + 1e-5);
        for (double& value : x) value /= size;
        return x;
    };
    const auto sum = [](std::vector<double> x, const std::vector<double>& y) {
        for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
        return x;
    };
    const double* row = weight("tokens").data() + 3 * 8;
    const std::vector<double> embedding(row, row + 8);
    const auto attention = product("block0/attention/out", product("block0/attention/value", normed(embedding)));
    const auto middle = sum(embedding, attention);
    auto hidden = product("block0/ffn/up", normed(middle));
    for (double& x : hidden) x *= 0.5 * std::erfc(-x / std::sqrt(2.0));
    const auto ffn = product("block0/ffn/down", hidden);
    const auto block = sum(middle, ffn);
    const std::vector<std::vector<double>> expected = {embedding, attention,     ffn,
                                                       block,     normed(block), product("readout", normed(block))};
    for (std::size_t i = 0; i < layers.size(); ++i) {
        INFO(layers[i].layer);
        CHECK(layers[i].output == Approx(rms(expected[i])).epsilon(1e-9));
    }
}

TEST_CASE("coordinate probe: measuring does not change the training") {
    const auto trained = [](bool measures) {
        test::LanguageModel<float> model(find_recipe("unit-fp8"), small());
        optim::Adam<float> optimiser(model.decoder.parameters(), {});
        const train::Batch batch = test::random_batch(4, 6, 7);
        train::plan_factors(model.decoder, model.tape, batch);
        experiments::CoordinateProbe<float> probe(model.decoder, model.tape, batch.ids);
        for (int step = 0; step < 3; ++step) {
            if (measures) static_cast<void>(probe.measure());
            REQUIRE(train::train_step<float>(model.decoder, model.tape, optimiser, {&batch, 1}, 0.01).updated);
        }
        CHECK(model.state.step() == 3);
        return test::all_values(model.decoder);
    };
    CHECK(trained(true) == trained(false));
}

TEST_CASE("coordinate probe: under propagate it measures values, data times scale") {
    test::LanguageModel<float> carried(find_recipe("scalify-fp16-1"), small()), plain(find_recipe("fp32"), small());
    const train::Batch batch = test::random_batch(2, 6, 7);
    experiments::CoordinateProbe<float> one(carried.decoder, carried.tape, batch.ids),
        other(plain.decoder, plain.tape, batch.ids);
    const auto a = one.measure(), b = other.measure();
    REQUIRE(a.size() == b.size());
    bool scaled = false;
    for (std::size_t i = 0; i < a.size(); ++i) {
        INFO(a[i].layer);
        CHECK(a[i].output == Approx(b[i].output).epsilon(5e-2));  // norms' epsilon acts on data
        scaled = scaled || a[i].output < 0.1;
    }
    CHECK(scaled);  // embeddings of 0.02: the value, not the data
}
