// SPDX-License-Identifier: MIT
// The recipes `aligned-*`: the standard model's function, in which every tensor is unit data times a constant.
#include <unitscale/analysis/alignment.hpp>
#include <unitscale/analysis/grad_check.hpp>
#include <unitscale/nn/bert.hpp>
#include <unitscale/nn/unit_scaling_model.hpp>
#include <unitscale/optim/adam.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/tensor/rescale.hpp>
#include <unitscale/train/step.hpp>

#include "support/catch.hpp"
#include "support/language_model.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

using namespace unitscale;

namespace {

constexpr std::size_t vocabulary = 11, length = 12;

/// Root mean squares of the data and scales of a step's tensors, by path, output and pass.
template <class T>
struct Sizes : Observer<T> {
    void observe(const TensorEvent<T>& event) override {
        const std::string key = std::string(event.path) + "/" + std::to_string(event.index) +
                                (event.pass == Pass::value ? "" : "/gradient");
        const double size = root_mean_square(event.tensor) / event.tensor.scale();
        scales[key] = event.tensor.scale();
        // Neither numbers, nor zeros, nor masked logits have a size.
        if (event.tensor.size() > 1 && size > 0.0 && std::isfinite(size)) sizes[key] = size;
    }
    std::map<std::string, double> sizes{}, scales{};
};

/// A model of one of the paper's families, with the standard model's residual sums.
nn::DecoderConfig family(nn::ContextKind context, nn::NormPlacement placement, ResidualScheme scheme) {
    nn::DecoderConfig config = nn::unit_scaling_config({.vocabulary = vocabulary,
                                                        .width = 32,
                                                        .depth = 2,
                                                        .head_size = 16,
                                                        .length = length,
                                                        .context = context,
                                                        .placement = placement});
    config.residual = ResidualRule{.scheme = scheme};
    return config;
}

std::vector<nn::DecoderConfig> decoders() {
    using enum nn::ContextKind;
    using enum nn::NormPlacement;
    const nn::DecoderConfig small{.vocabulary = vocabulary, .width = 32, .depth = 2, .heads = 2, .length = length};
    std::vector<nn::DecoderConfig> configs{small, small, small};
    configs[1].groups = 1;  // like recent published models
    configs[1].feed_forward = nn::FeedForwardKind::gated_silu;
    configs[1].norm.gains = true;
    configs[1].positions = nn::Positions::rotary;
    configs[1].recompute = true;
    configs[2].norm = {.kind = nn::NormKind::layer, .gains = true};  // like GPT-2
    configs[2].bias = true;
    configs[2].tied = true;
    configs.push_back(family(relative_attention, pre, ResidualScheme::plain));
    configs.push_back(family(convolution, post, ResidualScheme::plain));
    configs.push_back(family(recurrence, none, ResidualScheme::running_mean));
    return configs;
}

/// Loss and gradients of the standard model, and of the aligned one with the same weights.
template <class T>
struct Pair {
    explicit Pair(const nn::DecoderConfig& config, const char* recipe = "aligned-fp32")
        : plain(find_recipe("fp32"), config), aligned(find_recipe(recipe), config) {}

    /// A step of both, and the audit of the aligned one.
    analysis::Audit step(const train::Batch& batch) {
        aligned.tape.plan([&] { return aligned.loss(batch); });
        plain.tape.begin_step();
        const auto wanted = plain.loss(batch);
        plain.tape.backward(wanted);
        aligned.tape.begin_step({.retain = true});
        const auto got = aligned.loss(batch);
        aligned.tape.backward(got);
        CHECK(got.item() == Approx(wanted.item()).epsilon(1e-9));
        return analysis::audit(aligned.tape, got);
    }
    test::LanguageModel<T> plain, aligned;
};

}  // namespace

TEST_CASE("alignment: logits are the standard model's, and gradients are a constant times its") {
    for (const nn::DecoderConfig& config : decoders()) {
        INFO("context " << static_cast<int>(config.context.kind) << ", norm " << static_cast<int>(config.norm.kind));
        Pair<double> pair(config);
        const train::Batch batch = test::random_batch(8, length, vocabulary);
        const analysis::Audit audit = pair.step(batch);
        CHECK(audit.valid());
        const auto wanted = pair.plain.decoder.parameters(), got = pair.aligned.decoder.parameters();
        for (std::size_t i = 0; i < wanted.size(); ++i) {
            INFO(wanted[i]->name());
            const auto leaf = std::find_if(audit.leaves.begin(), audit.leaves.end(),
                                           [&](const auto& known) { return known.name == wanted[i]->name(); });
            REQUIRE(leaf != audit.leaves.end());
            Tensor<double> data = got[i]->gradient();  // of which the audit's constant makes the true gradient
            data.set_scale(1.0);
            CHECK(analysis::relative_error(data, wanted[i]->gradient(), leaf->s, 1e-3) < 1e-9);
        }
        pair.plain.tape.begin_step({.gradients = false});
        pair.aligned.tape.begin_step({.gradients = false});
        const Tensor<double> logits = pair.plain.decoder(pair.plain.tape, batch.ids).value(),
                             same = pair.aligned.decoder(pair.aligned.tape, batch.ids).value();
        CHECK(analysis::relative_error(same, logits, 1.0, 1e-3) < 1e-9);
    }
}

TEST_CASE("alignment: BERT's losses and gradients are the standard model's, its tied word table's included") {
    const nn::BertConfig config{
        .vocabulary = vocabulary, .width = 32, .depth = 2, .heads = 2, .hidden = 64, .length = length};
    struct Model {
        Model(const char* name, const nn::BertConfig& config)
            : recipe(recipe_in<double>(find_recipe(name))), bert(config), tape(recipe, state) {
            nn::initialise(bert.parameters(), recipe, 1);
        }
        Variable<double> loss() {
            const nn::BertInput input{.ids = test::random_tokens({8, length}, vocabulary), .lengths = lengths};
            const auto hidden = bert(tape, input);
            return nn::bert_loss(bert.masked_logits(hidden, rows), labels, bert.next_sentence(bert.pooled(hidden)),
                                 test::random_tokens({8}, 2));
        }
        double step() {
            tape.plan([&] { return loss(); });
            tape.begin_step({.retain = true});
            const auto result = loss();
            tape.backward(result);
            return result.item();
        }
        std::vector<std::size_t> lengths{12, 10, 8, 12, 9, 12, 7, 11};
        Tensor<std::int32_t> rows = from(std::vector<std::int32_t>{1, 4, 14, 27, 40, 51, 63, 75, 90});
        Tensor<std::int32_t> labels = test::random_tokens({9}, vocabulary, 3);
        Recipe recipe;
        nn::Bert<double> bert;
        ScalingState state{1};
        Tape<double> tape;
    } plain("fp32", config), aligned("aligned-fp32", config);
    CHECK(aligned.step() == Approx(plain.step()).epsilon(1e-9));
    const auto wanted = plain.bert.parameters(), got = aligned.bert.parameters();
    for (std::size_t i = 0; i < wanted.size(); ++i) {
        INFO(wanted[i]->name());
        if (wanted[i]->name().ends_with("key/bias")) continue;  // 0, apart from rounding
        CHECK(analysis::relative_error(value(got[i]->gradient()), wanted[i]->gradient(), 1.0, 1e-6) < 1e-9);
        const double size = root_mean_square(got[i]->gradient()) / got[i]->gradient().scale();
        CHECK(size > 0.5);
        CHECK(size < 2.0);
    }
    const analysis::Alignment alignment = analysis::alignment(aligned.tape);
    const auto words = std::find_if(alignment.parameters.begin(), alignment.parameters.end(),
                                    [](const auto& parameter) { return parameter.name == "bert/tokens/weight"; });
    REQUIRE(words != alignment.parameters.end());
    CHECK(words->uses.size() == 2);  // embedding and readout
}

TEST_CASE("alignment: at initialisation all values and gradients have unit size, and scales never change") {
    for (const nn::DecoderConfig& config : decoders()) {
        INFO("context " << static_cast<int>(config.context.kind) << ", norm " << static_cast<int>(config.norm.kind));
        test::LanguageModel<double> model(find_recipe("aligned-fp32"), config);
        Sizes<double> first, last;
        model.tape.set_observer(&first);
        optim::Adam<double> adam(model.decoder.parameters(), {});
        for (std::size_t step = 0; step < 20; ++step) {
            if (step > 0) model.tape.set_observer(step == 19 ? &last : nullptr);
            static_cast<void>(train::take_step(
                model.tape, adam, 1, [&](std::size_t) { return model.loss(test::random_batch(8, length, vocabulary)); },
                1e-2));
        }
        for (const auto& [path, size] : first.sizes) {
            INFO(path);
            if (path.ends_with("key/bias/0/gradient")) continue;  // 0, apart from rounding
            // Over the steps of the recurrence, the gradients of a bias are correlated: their sum is larger than the
            // sum of independent ones. The stream of the last model is small beside the norm's epsilon.
            const bool sum = path.ends_with("gates/bias/0/gradient"), small = path == "decoder/norm/layer_norm/0";
            CHECK(size > (small ? 0.3 : 0.5));
            CHECK(size < (sum ? 3.0 : 2.0));
        }
        for (const auto& [path, scale] : first.scales) {
            INFO(path);
            CHECK(last.scales.at(path) == scale);
        }
    }
}

TEST_CASE("alignment: 300 steps of Adam are the standard model's, in FP16 within 0.5 %") {
    const nn::DecoderConfig config = decoders()[2];
    const auto curve = [&]<class T>(std::type_identity<T>, const char* recipe) {
        test::LanguageModel<T> model(find_recipe(recipe), config);
        const Recipe& how = model.recipe;
        optim::Adam<T> adam(model.decoder.parameters(), {.storage = how.storage});
        std::vector<double> losses;
        for (std::size_t step = 0; step < 300; ++step) {
            train::Batch batch = test::random_batch(8, length, vocabulary, step % 7 + 1);
            for (std::size_t i = 0; i < batch.labels.size(); ++i) batch.labels.data()[i] = batch.ids.data()[i] / 2;
            losses.push_back(train::take_step(
                                 model.tape, adam, 1, [&](std::size_t) { return model.loss(batch); }, 3e-3)
                                 .loss);
        }
        return losses;
    };
    const auto wanted = curve(std::type_identity<double>{}, "fp32"),
               got = curve(std::type_identity<double>{}, "aligned-fp32"),
               half = curve(std::type_identity<Half>{}, "aligned-fp16");
    CHECK(wanted.back() < 0.5 * wanted.front());
    for (std::size_t i = 0; i < wanted.size(); ++i) {
        INFO("step " << i);
        CHECK(got[i] == Approx(wanted[i]).epsilon(1e-6));
        CHECK(half[i] == Approx(wanted[i]).epsilon(5e-3).margin(1e-3));
    }
}
