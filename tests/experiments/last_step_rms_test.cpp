// SPDX-License-Identifier: MIT
#include "experiments/last_step_rms.hpp"

#include <unitscale/analysis/gradient_zeros.hpp>
#include <unitscale/nn/decoder.hpp>
#include <unitscale/nn/llama.hpp>
#include <unitscale/scaling/known_recipes.hpp>

#include "support/catch.hpp"
#include "support/language_model.hpp"

#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

using namespace unitscale;
using experiments::LastStepRms;
using experiments::LayerRms;

namespace {

template <class T>
double rms_of(const Tensor<T>& tensor) {
    double sum = 0.0;
    for (const T& x : tensor.span()) sum += static_cast<double>(x) * static_cast<double>(x);
    return tensor.scale() * std::sqrt(sum / static_cast<double>(tensor.size()));
}

/// A training step of `parts` micro-batches, without an update.
template <class T>
void take_step(test::LanguageModel<T>& model, const std::vector<train::Batch>& parts) {
    for (Parameter<T>* parameter : model.decoder.parameters()) parameter->clear_gradient();
    for (std::size_t i = 0; i < parts.size(); ++i) {
        model.tape.begin_step({.micro_batches = parts.size(), .micro_batch = i});
        model.tape.backward(model.loss(parts[i]));
    }
}

std::string names(const std::vector<LayerRms>& layers) {
    std::string text;
    for (const LayerRms& layer : layers) text += layer.layer + " ";
    return text;
}

}  // namespace

TEST_CASE("last step rms: every layer of both models, in order, in the last training step alone") {
    const std::string block = "query key value out up down ", gated = "query key value out up gate down ";
    const std::vector<train::Batch> batch = {test::random_batch(4, 6, 7)};
    for (const char* recipe : {"fp32", "umup-fp32", "umup-fp8"}) {
        CAPTURE(recipe);
        test::LanguageModel<float> gpt(find_recipe(recipe),
                                       {.vocabulary = 7, .width = 8, .depth = 2, .heads = 2, .length = 6});
        test::LanguageModel<float> llama(
            find_recipe(recipe),
            nn::llama_config({.vocabulary = 7, .width = 8, .depth = 2, .head_size = 4, .length = 6}));
        for (test::LanguageModel<float>* model : {&gpt, &llama}) {
            model->plan(batch[0]);
            LastStepRms<float> rms(2);
            model->tape.set_observer(&rms);
            take_step(*model, batch);
            CHECK(rms.layers().empty());
            take_step(*model, batch);
            model->tape.set_observer(nullptr);
            const std::vector<LayerRms> layers = rms.layers();
            CHECK(names(layers) == (model == &gpt ? "tokens positions " + block + block + "readout "
                                                  : "tokens " + gated + gated + "readout "));
            CHECK(std::isnan(layers.front().input));
            for (const LayerRms& layer : layers) {
                CAPTURE(layer.layer);
                const bool table = layer.layer == "tokens" || layer.layer == "positions";
                for (const experiments::LayerTensor& tensor : experiments::layer_tensors) {
                    CAPTURE(std::string(tensor.name));
                    if (!table || tensor.name != "input") CHECK(layer.*tensor.rms > 0.0);
                }
            }
            // The three layers behind the norm have one input. An evaluation changes nothing.
            const std::size_t first = model == &gpt ? 2 : 1;
            CHECK(layers[first].input == layers[first + 2].input);
            model->tape.set_observer(&rms);
            model->tape.begin_step({.training = false, .gradients = false});
            static_cast<void>(model->loss(batch[0]));
            CHECK(rms.layers().back().input == layers.back().input);
            model->tape.set_observer(nullptr);
        }
    }
}

TEST_CASE("last step rms: the numbers are of the tensors' values, with their scales, over all micro-batches") {
    for (const char* recipe : {"fp32", "scalify-fp16-1"}) {
        CAPTURE(recipe);
        using T = double;
        test::LanguageModel<T> model(find_recipe(recipe),
                                     {.vocabulary = 7, .width = 8, .depth = 1, .heads = 2, .length = 6});
        const std::vector<train::Batch> parts = {test::random_batch(2, 6, 7, 1), test::random_batch(2, 6, 7, 2)};
        LastStepRms<T> rms(1);
        model.tape.set_observer(&rms);
        take_step(model, parts);
        model.tape.set_observer(nullptr);
        const std::vector<LayerRms> layers = rms.layers();
        const std::vector<Parameter<T>*> parameters = model.decoder.parameters();
        REQUIRE(layers.size() == parameters.size());  // no gains, no biases
        for (std::size_t i = 0; i < layers.size(); ++i) {
            CAPTURE(parameters[i]->name());
            CHECK(parameters[i]->name().ends_with(layers[i].layer + "/weight"));
            CHECK(layers[i].weight == Approx(rms_of(parameters[i]->value())).epsilon(1e-12));
            CHECK(layers[i].weight_gradient == Approx(rms_of(parameters[i]->gradient())).epsilon(1e-12));
        }
        // The readout's input is the last norm's output: rms 1, but for the norm's epsilon beside a small stream.
        CHECK(layers.back().input == Approx(1.0).epsilon(0.02));
    }
}

TEST_CASE("last step rms: an observer behind it sees the same tensors and operands") {
    test::LanguageModel<float> model(find_recipe("unit-fp8"),
                                     {.vocabulary = 7, .width = 8, .depth = 1, .heads = 2, .length = 6});
    const std::vector<train::Batch> batch = {test::random_batch(4, 6, 7)};
    model.plan(batch[0]);
    analysis::GradientZeros<float> alone(1), behind(1);
    LastStepRms<float> rms(2, &behind);
    model.tape.set_observer(&alone);
    take_step(model, batch);
    model.tape.set_observer(&rms);
    take_step(model, batch);
    CHECK(behind.counted_step() == 2);
    CHECK(behind.counts() == alone.counts());
    CHECK_FALSE(rms.layers().empty());
}
