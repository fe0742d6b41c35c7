// SPDX-License-Identifier: MIT
// After three steps that warm up, a training step asks the system for no memory.
#include <unitscale/optim/adam.hpp>
#include <unitscale/optim/sgd.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/train/step.hpp>

#include "support/allocation_count.hpp"
#include "support/catch.hpp"
#include "support/language_model.hpp"

using namespace unitscale;

namespace {

/// The number of allocations in the fourth step. Three steps before it warm up.
template <class T, class Optimiser>
std::size_t allocations(const char* recipe, const nn::DecoderConfig& config, int threads, std::size_t parts) {
    test::LanguageModel<T> model(find_recipe(recipe), config, 1, threads);
    Optimiser optimiser(model.decoder.parameters(), {.storage = model.recipe.storage});
    std::vector<train::Batch> batches;
    for (std::size_t i = 0; i < parts; ++i)
        batches.push_back(test::random_batch(8 / parts, config.length, config.vocabulary, 1 + i));
    for (int step = 0; step < 3; ++step)
        static_cast<void>(train::train_step<T>(model.decoder, model.tape, optimiser, batches, 0.01));
    test::AllocationCount count;
    const auto result = train::train_step<T>(model.decoder, model.tape, optimiser, batches, 0.01);
    const std::size_t found = count.stop();
    CHECK(result.updated);
    return found;
}

}  // namespace

TEST_CASE("runs: a training step after the first allocates nothing") {
    if (!test::can_count_allocations()) return;
    const nn::DecoderConfig plain{.vocabulary = 20, .width = 64, .depth = 1, .heads = 2, .length = 32};
    nn::DecoderConfig full = plain;
    full.groups = 1;
    full.feed_forward = nn::FeedForwardKind::gated_silu;
    full.norm = {.kind = nn::NormKind::layer, .gains = true};
    full.positions = nn::Positions::rotary;
    full.dropout = 0.1;
    full.bias = true;
    full.tied = true;
    nn::DecoderConfig post = plain;
    post.placement = nn::NormPlacement::post;
    post.norm.gains = true;
    post.dropout = 0.2;
    nn::DecoderConfig again = full;
    again.recompute = true;
#if defined(__clang__) && defined(_OPENMP)
    constexpr int most_threads = 1;  // Clang's OpenMP library itself allocates at every parallel region
#else
    constexpr int most_threads = 2;
#endif
    for (const char* recipe : {"fp32", "unit-fp8"})
        for (int threads = 1; threads <= most_threads; ++threads) {
            INFO(recipe << ", threads " << threads);
            CHECK(allocations<float, optim::Adam<float>>(recipe, plain, threads, 1) == 0);
            CHECK(allocations<float, optim::Adam<float>>(recipe, full, threads, 1) == 0);
            CHECK(allocations<float, optim::Adam<float>>(recipe, again, threads, 1) == 0);
            CHECK(allocations<float, optim::Sgd<float>>(recipe, post, threads, 4) == 0);
        }
    CHECK(allocations<Half, optim::Adam<Half>>("unit-fp16", full, most_threads, 2) == 0);
    CHECK(allocations<Half, optim::Adam<Half>>("scalify-fp8-4", full, most_threads, 2) == 0);
}

TEST_CASE("runs: allocations are counted where there are some") {
    if (!test::can_count_allocations()) return;
    test::AllocationCount count;
    const test::LanguageModel<float> model(find_recipe("fp32"), {.vocabulary = 5, .width = 4, .depth = 1, .heads = 1});
    CHECK(count.stop() > 10);
}
