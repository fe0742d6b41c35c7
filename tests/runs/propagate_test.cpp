// SPDX-License-Identifier: MIT
// Scaling `propagate` computes the function of scaling `none`: equal losses, gradients, updates and samples.
#include <unitscale/analysis/grad_check.hpp>
#include <unitscale/nn/operators.hpp>
#include <unitscale/ops/exp.hpp>
#include <unitscale/ops/log.hpp>
#include <unitscale/ops/max.hpp>
#include <unitscale/ops/sum.hpp>
#include <unitscale/optim/adam.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/tensor/rescale.hpp>
#include <unitscale/train/evaluate.hpp>
#include <unitscale/train/generate.hpp>
#include <unitscale/train/step.hpp>

#include "support/catch.hpp"
#include "support/language_model.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

using namespace unitscale;

namespace {

Recipe propagating(ScaleRounding rounding = ScaleRounding::down) {
    Recipe recipe = find_recipe("fp32");
    recipe.scaling = Scaling::propagate;
    recipe.propagate = {.rounding = rounding, .exact_norms = true};
    return recipe;
}

/// Collects the tensors of a step without a power of two as scale.
/// It also collects the bounds of the data's root mean square over all tensors.
template <class T>
struct SeenScales : Observer<T> {
    void observe(const TensorEvent<T>& event) override {
        const double scale = event.tensor.scale();
        ++count;
        scaled += scale != 1.0 ? 1 : 0;
        if (pow2_down(scale) != scale) others += std::string(event.path) + " ";
        if (event.path.ends_with("key/bias")) return;  // its gradient is 0, apart from rounding
        double sum = 0.0;
        for (const T x : event.tensor.span()) sum += static_cast<double>(x) * static_cast<double>(x);
        const double rms = std::sqrt(sum / static_cast<double>(event.tensor.size()));
        if (rms == 0.0) return;
        least = std::min(least, rms);
        most = std::max(most, rms);
    }
    std::size_t count = 0, scaled = 0;
    double least = std::numeric_limits<double>::infinity(), most = 0.0;
    std::string others{};
};

constexpr std::size_t vocabulary = 11, length = 6;

/// Two models with equal parameters, one under `none` and one under `propagate`.
template <class T>
struct Pair {
    explicit Pair(const nn::DecoderConfig& config, const Recipe& recipe = propagating())
        : plain(find_recipe("fp32"), config), scaled(recipe, config) {
        test::randomise(plain.decoder.parameters(), 0.3);
        const auto from = plain.decoder.parameters(), to = scaled.decoder.parameters();
        for (std::size_t i = 0; i < from.size(); ++i) {
            const bool gains = to[i]->facts().role == ParameterRole::norm;
            to[i]->write() = set_scaling(from[i]->value(), gains ? 1.0 : 0.25);
        }
    }
    test::LanguageModel<T> plain, scaled;
};

/// Checks that losses and gradients of both models agree within the relative tolerance.
template <class T>
void check_agreement(Pair<T>& pair, double tolerance, std::size_t micro_batches = 1, Accum<T> seed = 1) {
    for (std::size_t part = 0; part < micro_batches; ++part) {
        const train::Batch batch = test::random_batch(3, length, vocabulary, part + 1);
        const auto run = [&](test::LanguageModel<T>& model) {
            model.tape.begin_step({.micro_batches = micro_batches, .micro_batch = part});
            const Variable<T> loss = model.loss(batch);
            model.tape.backward(loss, seed);
            return loss.item();
        };
        const double want = run(pair.plain);
        CHECK(run(pair.scaled) == Approx(want).epsilon(tolerance));
    }
    CHECK(pair.scaled.state.wide_ops().empty());
    const auto want = pair.plain.decoder.parameters(), got = pair.scaled.decoder.parameters();
    double largest = 0.0;  // errors of a gradient that is 0, apart from rounding, are relative to 1e-3 of this number
    for (const Parameter<T>* parameter : want)
        for (const T g : parameter->gradient().span()) largest = std::max(largest, std::abs(static_cast<double>(g)));
    for (std::size_t i = 0; i < want.size(); ++i) {
        INFO(want[i]->name());
        CHECK(analysis::relative_error(value(got[i]->gradient()), want[i]->gradient(), 1.0, 1e-3 * largest) <
              tolerance);
    }
}

nn::DecoderConfig small() { return {.vocabulary = vocabulary, .width = 16, .depth = 2, .heads = 2, .length = length}; }

std::vector<nn::DecoderConfig> decoders() {
    std::vector<nn::DecoderConfig> configs;
    configs.push_back(small());
    auto config = small();  // like recent published models
    config.groups = 1;
    config.feed_forward = nn::FeedForwardKind::gated_silu;
    config.norm.gains = true;
    config.positions = nn::Positions::rotary;
    config.attention_mult = 1.5;
    config.tied = true;
    configs.push_back(config);
    config = small();  // like GPT-2
    config.norm = {.kind = nn::NormKind::layer, .gains = true};
    config.dropout = 0.2;
    config.bias = true;
    config.tied = true;
    configs.push_back(config);
    config.feed_forward = nn::FeedForwardKind::gated_silu;
    config.norm.gains = false;
    config.placement = nn::NormPlacement::post;
    config.positions = nn::Positions::rotary;
    config.residual = ResidualRule{.scheme = ResidualScheme::depth};
    config.tied = false;
    config.recompute = true;
    configs.push_back(config);
    return configs;
}

}  // namespace

TEST_CASE("propagate: a decoder has the loss and the gradients of none, and every op has its own rule") {
    for (const nn::DecoderConfig& config : decoders()) {
        INFO("norm " << static_cast<int>(config.norm.kind) << ", positions " << static_cast<int>(config.positions)
                     << ", placement " << static_cast<int>(config.placement));
        Pair<double> pair(config);
        SeenScales<double> seen;
        pair.scaled.tape.set_observer(&seen);
        check_agreement(pair, 1e-9);
        CHECK(seen.others == "");
        CHECK(seen.scaled > seen.count / 2);
        CHECK(seen.least > 0.2);
        CHECK(seen.most < 20.0);
    }
}

TEST_CASE("propagate: micro-batches and the seed of the loss change nothing") {
    for (const nn::DecoderConfig& config : decoders()) {
        Pair<double> pair(config);
        check_agreement(pair, 1e-9, 2, 3e4);
    }
}

TEST_CASE("propagate: the rounding of scales changes nothing") {
    for (const ScaleRounding rounding :
         {ScaleRounding::none, ScaleRounding::up, ScaleRounding::nearest, ScaleRounding::stochastic}) {
        INFO(name(rounding));
        Pair<double> pair(decoders()[2], propagating(rounding));
        SeenScales<double> seen;
        pair.scaled.tape.set_observer(&seen);
        check_agreement(pair, 1e-9);
        CHECK((seen.others == "") == (rounding != ScaleRounding::none));
    }
}

TEST_CASE("propagate: in float the results differ by rounding alone") {
    for (const nn::DecoderConfig& config : decoders()) {
        Pair<float> pair(config);
        check_agreement(pair, 2e-5);
    }
}

TEST_CASE("propagate: if norms apply epsilon to data, the loss differs from the loss of none by epsilon's effect") {
    Recipe recipe = propagating();
    recipe.propagate.exact_norms = false;
    const auto distance = [&](double epsilon) {
        nn::DecoderConfig config = small();
        config.norm.epsilon = epsilon;
        Pair<double> pair(config, recipe);
        const train::Batch batch = test::random_batch(3, length, vocabulary);
        pair.plain.tape.begin_step();
        pair.scaled.tape.begin_step();
        return std::abs(pair.scaled.loss(batch).item() - pair.plain.loss(batch).item());
    };
    CHECK(distance(0.0) < 1e-12);
    CHECK(distance(1e-2) > 1e-6);
}

TEST_CASE("propagate: training, evaluation and sampling give the results of none, with and without rescaling") {
    const bool rescaled = GENERATE(false, true);
    Recipe recipe = propagating();
    if (rescaled) {
        recipe.propagate.rescale_gradients = recipe.propagate.rescale_activation_gradients = true;
        recipe.propagate.delayed_sizes = true;
        recipe.storage.rescale_every = 2;
    }
    Pair<double> pair(decoders()[1], recipe);
    constexpr double first_scale = 0x1p-4;  // data is far from unit size
    for (Parameter<double>* parameter : pair.scaled.decoder.parameters())
        parameter->write() = set_scaling(parameter->value(), first_scale);
    const std::vector<train::Batch> batches = {test::random_batch(3, length, vocabulary, 1),
                                               test::random_batch(3, length, vocabulary, 2)};
    const Tensor<std::int32_t> tokens = test::random_tokens({40}, vocabulary, 9);
    struct Result {
        double loss = 0.0, norm = 0.0, bits = 0.0;
        std::vector<std::int32_t> text{};
    };
    const auto train = [&](test::LanguageModel<double>& model) {
        optim::Adam<double> adam(model.decoder.parameters(), {.weight_decay = 0.1, .storage = model.recipe.storage});
        Result result;
        for (int step = 0; step < 5; ++step) {
            const train::StepResult done = train::train_step<double>(model.decoder, model.tape, adam, batches, 0.01);
            REQUIRE(done.updated);
            result.loss = done.loss;
            result.norm = done.gradient_norm;
        }
        result.bits = train::evaluate(model.decoder, model.tape, tokens.span(), length, 2);
        result.text =
            train::generate(model.decoder, model.tape, tokens.span().first(3), {.tokens = 20, .temperature = 1.0});
        return result;
    };
    const Result want = train(pair.plain), got = train(pair.scaled);
    CHECK(want.norm > 1.0);  // the norm is above the recipe's limit, so gradients have been clipped
    CHECK(got.loss == Approx(want.loss).epsilon(1e-9));
    CHECK(got.norm == Approx(want.norm).epsilon(1e-9));
    CHECK(got.bits == Approx(want.bits).epsilon(1e-9));
    CHECK(got.text == want.text);
    CHECK(pair.scaled.state.wide_ops().empty());
    const auto plain = pair.plain.decoder.parameters(), scaled = pair.scaled.decoder.parameters();
    std::size_t moved = 0;
    for (std::size_t i = 0; i < plain.size(); ++i) {
        INFO(plain[i]->name());
        if (scaled[i]->value().scale() != first_scale) ++moved;
        CHECK(analysis::relative_error(value(scaled[i]->value()), plain[i]->value()) < 1e-9);
    }
    CHECK(moved == (rescaled ? plain.size() : 0));
}

TEST_CASE(
    "propagate: FP8 products keep small gradients, which underflow without scales; packed weights give the same loss") {
    const train::Batch batch = test::random_batch(3, length, vocabulary);
    const float seed = 0x1p-16f;  // gradients as small as those from a mean over 65,536 times as many rows
    // The relative error of a gradient against the gradient of an equal model in float.
    const auto error = [&](Scaling scaling) {
        Recipe recipe = propagating();
        recipe.scaling = scaling;
        test::LanguageModel<float> exact(recipe, small());
        recipe.products = find_recipe("unit-fp8").products;
        test::LanguageModel<float> rounded(recipe, small());
        double loss = 0.0;
        for (auto* model : {&exact, &rounded}) {
            model->tape.begin_step();
            const auto y = model->loss(batch);
            loss = y.item();
            model->tape.backward(y, seed);
        }
        rounded.tape.begin_step({.training = false, .gradients = false});
        CHECK(rounded.loss(batch).item() == loss);
        const auto want = exact.decoder.parameters(), got = rounded.decoder.parameters();
        const auto at = std::find_if(want.begin(), want.end(),
                                     [](const auto* p) { return p->name().ends_with("block0/ffn/up/weight"); });
        REQUIRE(at != want.end());
        const auto place = static_cast<std::size_t>(at - want.begin());
        return analysis::relative_error(value(got[place]->gradient()), value(want[place]->gradient()));
    };
    CHECK(error(Scaling::propagate) < 0.2);
    CHECK(error(Scaling::none) > 0.5);
}

namespace {
/// ln sum_j exp(x_j) of every row, from its parts.
template <class T>
Variable<T> log_sum_exp(const Variable<T>& x) {
    const Variable<T> largest = ops::max(x, {.axes = {-1}, .keep_axes = true});
    return ops::log(ops::sum(ops::exp(x - largest), {.axes = {-1}, .keep_axes = true})) + largest;
}
}  // namespace

TEST_CASE("propagate: ln sum exp from its parts is right in 16 bits at very small and very large scales") {
    for (const double scale : {0x1p-40, 1.0, 0x1p40}) {
        INFO("scale " << scale);
        Tensor<Half> data = cast<Half>(normal<float>({20, 8}, {1, 2}));
        data.set_scale(scale);
        const Tensor<Half> dy = cast<Half>(normal<float>({20, 1}, {3, 4}));
        const Recipe half_recipe = recipe_in<Half>(analysis::plain_recipe(Scaling::propagate)),
                     wide_recipe = recipe_in<double>(analysis::plain_recipe(Scaling::none));
        ScalingState state(1), wide_state(1);
        Tape<Half> tape(half_recipe, state);
        Tape<double> wide(wide_recipe, wide_state);
        tape.begin_step({.retain = true});
        wide.begin_step({.retain = true});
        const auto x = tape.input(data, true);
        const auto x_wide = wide.input(value<double>(data), true);
        const auto y = log_sum_exp(x);
        const auto y_wide = log_sum_exp(x_wide);
        CHECK(analysis::relative_error(value<double>(y.scaled()), y_wide.value()) < 2e-3);
        tape.backward(analysis::project(y, dy));
        wide.backward(analysis::project(y_wide, cast<double>(dy)));
        CHECK(analysis::relative_error(value<double>(x.gradient()), x_wide.gradient()) < 5e-3);
    }
}
