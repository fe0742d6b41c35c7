// SPDX-License-Identifier: MIT
#include <unitscale/train/step.hpp>

#include <unitscale/analysis/grad_check.hpp>
#include <unitscale/optim/adam.hpp>
#include <unitscale/optim/sgd.hpp>
#include <unitscale/scaling/known_recipes.hpp>

#include "support/catch.hpp"
#include "support/language_model.hpp"
#include "support/test_ops.hpp"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>
#include <vector>

using namespace unitscale;

namespace {

nn::DecoderConfig small() {
    return {.vocabulary = 7,
            .width = 8,
            .depth = 2,
            .heads = 2,
            .length = 6,
            .norm = {.kind = nn::NormKind::layer, .gains = true}};
}

/// The rows of a batch, divided into `parts` batches.
std::vector<train::Batch> cut(const train::Batch& whole, std::size_t parts) {
    const std::size_t rows = whole.ids.dim(0) / parts, length = whole.ids.dim(1);
    std::vector<train::Batch> batches;
    for (std::size_t i = 0; i < parts; ++i) {
        batches.push_back(train::make_batch(rows, length));
        std::copy_n(whole.ids.data() + i * rows * length, rows * length, batches.back().ids.data());
        std::copy_n(whole.labels.data() + i * rows * length, rows * length, batches.back().labels.data());
    }
    return batches;
}

struct Trained {
    std::vector<double> values;
    std::vector<double> losses;
    std::vector<double> norms;
};

template <class MakeOptimiser>
Trained train_parts(const Recipe& recipe, std::size_t parts, double rate, MakeOptimiser&& make) {
    test::LanguageModel<double> model(recipe, small());
    auto optimiser = make(model.decoder.parameters());
    Trained result;
    for (std::uint64_t step = 1; step <= 3; ++step) {
        const auto batches = cut(test::random_batch(8, 6, 7, step), parts);
        const train::StepResult done = train::train_step<double>(model.decoder, model.tape, optimiser, batches, rate);
        REQUIRE(done.updated);
        result.losses.push_back(done.loss);
        result.norms.push_back(done.gradient_norm);
    }
    result.values = test::all_values(model.decoder);
    return result;
}

double largest_distance(const std::vector<double>& a, const std::vector<double>& b) {
    REQUIRE(a.size() == b.size());
    double distance = 0.0;
    for (std::size_t i = 0; i < a.size(); ++i) distance = std::max(distance, std::abs(a[i] - b[i]));
    return distance;
}

}  // namespace

TEST_CASE("train_step: one and four micro-batches make the same update") {
    for (const char* name : {"fp32", "unit-fp32"}) {
        const Recipe recipe = find_recipe(name);
        const double rate = recipe.learning_rate;
        const auto adam = [](auto parameters) {
            return optim::Adam<double>(parameters, {.beta1 = 0.9, .beta2 = 0.95});
        };
        const auto sgd = [](auto parameters) { return optim::Sgd<double>(parameters, {.momentum = 0.9}); };
        test::LanguageModel<double> start(recipe, small());
        const std::vector<double> initial = test::all_values(start.decoder);
        const auto compare = [&](const Trained& one, const Trained& four) {
            INFO(name);
            CHECK(largest_distance(one.values, initial) > 1e-3);
            CHECK(largest_distance(one.values, four.values) < 1e-12);
            CHECK(largest_distance(one.losses, four.losses) < 1e-12);
            CHECK(largest_distance(one.norms, four.norms) < 1e-12);
        };
        compare(train_parts(recipe, 1, rate, adam), train_parts(recipe, 4, rate, adam));
        compare(train_parts(recipe, 1, 0.1, sgd), train_parts(recipe, 4, 0.1, sgd));
    }
}

TEST_CASE(
    "train_step: the loss is the mean over the step's tokens, the update the optimiser's, the norm clipped by the "
    "recipe") {
    for (const double clip : {0.0, 1e-3}) {
        Recipe recipe = analysis::plain_recipe(Scaling::none);
        recipe.clip_norm = clip;
        test::LanguageModel<double> model(recipe, small());
        const auto batches = cut(test::random_batch(4, 6, 7), 1);
        model.tape.begin_step();
        const auto loss = model.loss(batches[0]);
        const double want = loss.item();
        model.tape.backward(loss);
        double squares = 0.0;
        std::vector<double> expected;
        const auto parameters = model.decoder.parameters();
        for (const Parameter<double>* parameter : parameters)
            for (const double g : parameter->gradient().span()) squares += g * g;
        const double norm = std::sqrt(squares);
        REQUIRE(norm > 1e-3);
        for (const Parameter<double>* parameter : parameters)
            for (std::size_t i = 0; i < parameter->size(); ++i)
                expected.push_back(parameter->value().data()[i] -
                                   0.5 * parameter->gradient().data()[i] * (clip > 0.0 ? clip / norm : 1.0));

        optim::Sgd<double> optimiser(parameters);
        const auto result = train::train_step<double>(model.decoder, model.tape, optimiser, batches,
                                                      0.5);  // old gradients do not count
        CHECK(result.updated);
        CHECK(result.loss == Approx(want).epsilon(1e-12));
        CHECK(result.gradient_norm == Approx(clip > 0.0 ? norm : 0.0).epsilon(1e-9));
        CHECK(largest_distance(test::all_values(model.decoder), expected) < 1e-8);
    }
}

TEST_CASE("train_step: a loss that is not finite updates nothing") {
    for (const double clip : {0.0, 1.0}) {
        Recipe recipe = analysis::plain_recipe(Scaling::none);
        recipe.clip_norm = clip;
        test::LanguageModel<float> model(recipe, small());
        model.decoder.parameters()[0]->write().data()[0] = std::numeric_limits<float>::quiet_NaN();
        optim::Sgd<float> optimiser(model.decoder.parameters());
        const std::vector<float> before = test::all_values(model.decoder);
        train::Batch batch = train::make_batch(1, 6);
        fill_constant(batch.ids, 0);
        fill_constant(batch.labels, 1);
        const auto result = train::train_step<float>(model.decoder, model.tape, optimiser, std::span(&batch, 1), 0.5);
        CHECK(!result.updated);
        CHECK(std::isnan(result.loss));
        const std::vector<float> after = test::all_values(model.decoder);
        CHECK(std::equal(before.begin() + 1, before.end(), after.begin() + 1));
    }
}

TEST_CASE("train_step: no batches are an error") {
    test::LanguageModel<float> model(find_recipe("fp32"), small());
    optim::Sgd<float> optimiser(model.decoder.parameters());
    REQUIRE_THROWS_WITH(train::train_step<float>(model.decoder, model.tape, optimiser, {}, 0.5),
                        "train_step: no batches");
}

TEST_CASE("train_step: a loss scale changes nothing in exact arithmetic, and a step that overflows is skipped") {
    const auto run = [](optim::LossScaler* scaler) {
        test::LanguageModel<double> model(find_recipe("fp32"), small());
        optim::Adam<double> optimiser(model.decoder.parameters());
        std::vector<double> seen;
        for (std::uint64_t step = 1; step <= 3; ++step) {
            const auto batches = cut(test::random_batch(8, 6, 7, step), 2);
            const auto result = train::train_step<double>(model.decoder, model.tape, optimiser, batches, 1e-2, scaler);
            CHECK(result.updated);
            seen.push_back(result.loss);
            seen.push_back(result.gradient_norm);
        }
        for (const Parameter<double>* parameter : model.decoder.parameters())
            seen.insert(seen.end(), parameter->value().data(), parameter->value().data() + parameter->size());
        return seen;
    };
    optim::LossScaler scaler({.kind = LossScaleKind::constant, .initial = 1024.0});
    CHECK(run(&scaler) == run(nullptr));  // exact, because the scale is a power of two

    test::LanguageModel<float> model(find_recipe("fp32"), small());
    optim::Adam<float> optimiser(model.decoder.parameters());
    optim::LossScaler large({.kind = LossScaleKind::automatic, .initial = 0x1p127, .backoff = 0x1p-20});
    const std::vector<train::Batch> batches = {test::random_batch(8, 6, 7, 1)};
    const std::vector<float> before(model.decoder.parameters()[0]->value().data(),
                                    model.decoder.parameters()[0]->value().data() + 7);
    // With such weights the embedding's gradient, 2^127 (softmax - onehot) w, overflows.
    for (Parameter<float>* parameter : model.decoder.parameters())
        for (float& value : parameter->write().span()) value *= 100.0f;
    const auto first = train::train_step<float>(model.decoder, model.tape, optimiser, batches, 1e-2, &large);
    CHECK(first.skipped);
    CHECK_FALSE(first.updated);
    CHECK(model.decoder.parameters()[0]->value().data()[0] == before[0] * 100.0f);
    CHECK(large.scale() == 0x1p107);
    const auto second = train::train_step<float>(model.decoder, model.tape, optimiser, batches, 1e-2, &large);
    CHECK_FALSE(second.skipped);
    CHECK(second.updated);
}

TEST_CASE("train_step: a loss scale that follows the gradients' sizes leaves a value far too large") {
    for (const char* name : {"fp16-histogram-loss-scaled", "fp16-log-normal-loss-scaled"})
        for (const bool codes : {false, true}) {
            INFO(name << ", weight gradients as codes: " << codes);
            Recipe recipe = find_recipe(name);
            recipe.loss_scaling.initial = 0x1p40;
            if (codes) recipe.storage.weight_gradient = Quantiser{.format = e5m2};
            test::LanguageModel<Half> model(recipe, small());
            optim::Adam<Half> adam(model.decoder.parameters(), recipe);
            optim::LossScaler scaler(recipe.loss_scaling);
            double largest = 0.0, scale = 0.0;  // of the last step
            for (std::uint64_t step = 1; step <= 60; ++step) {
                const auto batches = cut(test::random_batch(8, 6, 7, step), 2);
                scale = scaler.scale();
                const auto done = train::train_step<Half>(model.decoder, model.tape, adam, batches, 1e-3, &scaler);
                CHECK(done.updated != done.skipped);
                if (step <= 15) CHECK(done.skipped);  // from 2^40 to 2^25
                if (step > 40) CHECK(done.updated);
            }
            for (const Parameter<Half>* parameter : adam.parameters()) {
                CHECK((parameter->coded_gradient() != nullptr) ==
                      (codes && parameter->facts().role == ParameterRole::weight));
                for (const Half x : parameter->gradient().span())
                    largest = std::max(
                        largest, std::abs(static_cast<double>(static_cast<float>(x))) * parameter->gradient_scale());
            }
            // Neither at the end of FP16's range nor far from it.
            CHECK(largest * scale <= 65504.0);
            CHECK(largest * scale >= 256.0);
        }
}

TEST_CASE("train_step: of a 16-bit tape the loss is not rounded, and the loss scale may be beyond 65504") {
    const auto batches = cut(test::random_batch(8, 6, 7), 1);
    test::LanguageModel<Half> model(find_recipe("fp16"), small());
    model.tape.begin_step();
    const auto logits = model.decoder(model.tape, batches[0].ids);
    double want = 0.0;
    for (std::size_t row = 0; row < 48; ++row) {
        const Half* x = logits.value().data() + 7 * row;
        double total = 0.0;
        for (std::size_t v = 0; v < 7; ++v) total += std::exp(static_cast<double>(static_cast<float>(x[v])));
        want += std::log(total) - static_cast<double>(static_cast<float>(x[batches[0].labels.data()[row]]));
    }
    const auto gradients = [&](double scale) {
        optim::LossScaler scaler({.kind = LossScaleKind::constant, .initial = scale});
        optim::Sgd<Half> optimiser(model.decoder.parameters(), model.recipe);
        const auto result = train::train_step<Half>(model.decoder, model.tape, optimiser, batches, 0.0, &scaler);
        CHECK(result.updated);
        CHECK(result.loss == Approx(want / 48.0).epsilon(1e-6));
        return result.gradient_norm;
    };
    // Scales that Half represents, that exceed its largest number, and that it would round: to 1000.5.
    const double norm = gradients(1024.0);
    CHECK(norm > 0.0);
    CHECK(gradients(0x1p17) == Approx(norm).epsilon(1e-3));
    CHECK(gradients(1000.3) == Approx(norm).epsilon(1e-3));
}

TEST_CASE(
    "train_step: a run has failed after a step that was not taken, more than 50 skipped in a row, or all skipped") {
    optim::LossScaler scaler({.kind = LossScaleKind::automatic});
    const train::StepResult taken{.updated = true}, broken{}, skipped{.skipped = true};
    CHECK_FALSE(train::has_failed(taken, scaler, 100));
    CHECK(train::has_failed(broken, scaler, 100));
    for (int step = 1; step <= 51; ++step) {
        static_cast<void>(scaler.update(false));
        CHECK(train::has_failed(skipped, scaler, 100) == (step > 50));
        CHECK(train::has_failed(skipped, scaler, 10) == (step >= 10));
        CHECK_FALSE(train::has_failed(taken, scaler, 10));
    }
}

TEST_CASE("train_step: weight gradients become codes during the backward pass, with the bits of a loop of one's own") {
    Recipe recipe = find_recipe("scalify-fp8-3");
    recipe.storage.weight_gradient->rounding = Rounding::stochastic;
    const auto run = [&](bool own, std::size_t parts) {
        test::LanguageModel<Half> model(recipe, small());
        optim::Adam<Half> adam(model.decoder.parameters(), recipe);
        for (std::uint64_t step = 1; step <= 3; ++step) {
            const auto batches = cut(test::random_batch(8, 6, 7, step), parts);
            if (!own) {
                const auto done = train::train_step<Half>(model.decoder, model.tape, adam, batches, 0.01);
                REQUIRE(done.updated);
            } else {
                adam.clear_gradients();
                for (std::size_t i = 0; i < parts; ++i) {
                    model.tape.begin_step({.micro_batches = parts, .micro_batch = i});
                    model.tape.backward(model.loss(batches[i]));
                }
                optim::quantise_weight_gradients<Half>(model.tape.execution(), adam.parameters(), recipe.storage,
                                                       {model.state.seed(), model.state.step()});
                optim::clip_gradients<Half>(model.tape.execution(), adam.parameters(), recipe.clip_norm);
                adam.step(model.tape.execution(), 0.01);
            }
            for (const Parameter<Half>* parameter : adam.parameters())
                REQUIRE((parameter->coded_gradient() != nullptr) == (parameter->facts().role == ParameterRole::weight));
        }
        return test::all_values(model.decoder);
    };
    for (const std::size_t parts : {1u, 4u}) CHECK(run(false, parts) == run(true, parts));
}

TEST_CASE("take_step: a reducer gets every gradient and loss of its share, and gives the step's") {
    /// Computes micro-batches 2 and 3 of 4, and doubles their gradients.
    class SecondHalf final : public train::StepReducer<double> {
    public:
        Share begin(Tape<double>&, std::span<Parameter<double>* const> parameters, std::size_t count,
                    double seed) override {
            CHECK(count == 4);
            CHECK(seed == 1.0);
            all.assign(parameters.begin(), parameters.end());
            sums.assign(all.size(), Tensor<double>());
            return {2, 4};
        }
        void add_gradient(std::size_t i, Parameter<double>& parameter) override {
            calls.push_back(i);
            auto& sum = sums[static_cast<std::size_t>(std::find(all.begin(), all.end(), &parameter) - all.begin())];
            if (i == 2) sum = std::move(parameter.gradient());
            else
                for (std::size_t e = 0; e < sum.size(); ++e) sum.data()[e] += parameter.gradient().data()[e];
            parameter.clear_gradient();
        }
        void add_loss(std::size_t i, double loss) override {
            CHECK(calls.back() == i);  // after the gradients
            losses.push_back(loss);
        }
        double finish() override {
            for (std::size_t p = 0; p < all.size(); ++p) {
                for (double& element : sums[p].span()) element *= 2.0;
                all[p]->add_gradient(std::move(sums[p]));
            }
            return 2.0 * (losses[0] + losses[1]);
        }
        [[nodiscard]] bool writes_files() const noexcept override { return false; }

        std::vector<Parameter<double>*> all{};
        std::vector<Tensor<double>> sums{};
        std::vector<std::size_t> calls{};
        std::vector<double> losses{};
    };
    const Recipe recipe = find_recipe("fp32");
    const auto parts = cut(test::random_batch(8, 6, 7, 1), 4);
    const std::vector<train::Batch> twice = {parts[2], parts[3], parts[2], parts[3]};
    SecondHalf reducer;
    const auto trained = [&](const std::vector<train::Batch>& batches, train::StepReducer<double>* with) {
        test::LanguageModel<double> model(recipe, small());
        optim::Sgd<double> optimiser(model.decoder.parameters(), {});
        const train::StepResult done = train::take_step<double>(
            model.tape, optimiser, batches.size(),
            [&](std::size_t i) {
                return ops::softmax_cross_entropy(model.decoder(model.tape, batches[i].ids), batches[i].labels);
            },
            0.1, nullptr, with);
        CHECK(done.updated);
        CHECK(model.state.step() == 1);
        auto values = test::all_values(model.decoder);
        values.push_back(done.loss);
        return values;
    };
    CHECK(largest_distance(trained(parts, &reducer), trained(twice, nullptr)) < 1e-12);
    CHECK(reducer.losses.size() == 2);
}
