// SPDX-License-Identifier: MIT
// Bits of training runs: equal with one thread and two, equal from run to run, and different with another seed.
#include <unitscale/kernels/vector_math.hpp>
#include <unitscale/optim/adam.hpp>
#include <unitscale/products/product.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/train/step.hpp>

#include "support/catch.hpp"
#include "support/language_model.hpp"

using namespace unitscale;

namespace {

struct Run {
    std::vector<float> values;
    std::vector<double> losses;
    friend bool operator==(const Run&, const Run&) = default;
};

template <class T = float>
Run run(const char* recipe, nn::DecoderConfig config, std::size_t rows, std::uint64_t steps, std::uint64_t seed,
        int threads, std::size_t parts = 1) {
    test::LanguageModel<T> model(find_recipe(recipe), config, seed, threads);
    optim::Adam<T> optimiser(model.decoder.parameters(), {.storage = model.recipe.storage});
    Run result;
    for (std::uint64_t step = 1; step <= steps; ++step) {
        std::vector<train::Batch> batches;
        for (std::size_t i = 0; i < parts; ++i)
            batches.push_back(test::random_batch(rows / parts, config.length, config.vocabulary, parts * step + i));
        result.losses.push_back(
            train::train_step<T>(model.decoder, model.tape, optimiser, batches, model.recipe.learning_rate).loss);
    }
    for (const T value : test::all_values(model.decoder)) result.values.push_back(static_cast<float>(value));
    return result;
}

}  // namespace

TEST_CASE("runs: the same bits with 1 and 2 threads, where every kernel splits its work") {
    const nn::DecoderConfig config{.vocabulary = 40,
                                   .width = 128,
                                   .depth = 1,
                                   .heads = 2,
                                   .length = 64,
                                   .norm = {.kind = nn::NormKind::layer, .gains = true},
                                   .dropout = 0.1};
    constexpr std::size_t rows = 8;
    // Products of 512 x 128 x 128, element-wise loops and updates over 512 x 128 have work for two threads.
    REQUIRE(rows * config.length * config.width * config.width >=
            2 * static_cast<std::size_t>(products::matmul_work_threshold));
    REQUIRE(rows * config.length * config.width >= 2 * static_cast<std::size_t>(kernels::work_threshold));
    REQUIRE(4 * config.width * config.width >= 2 * static_cast<std::size_t>(kernels::work_threshold));
    for (const char* recipe : {"fp32", "unit-fp8"}) {
        INFO(recipe);
        const Run one = run(recipe, config, rows, 3, 1, 1), two = run(recipe, config, rows, 3, 1, 2);
        CHECK(one.losses == two.losses);
        CHECK(std::equal(one.values.begin(), one.values.end(), two.values.begin(), two.values.end()));
        CHECK(one.losses[0] != one.losses[2]);
    }
    const Run one = run<Half>("scalify-fp8-4", config, rows, 3, 1, 1),
              two = run<Half>("scalify-fp8-4", config, rows, 3, 1, 2);
    CHECK(one == two);
}

TEST_CASE("runs: the same seed gives the same bits, another seed others") {
    const nn::DecoderConfig config{.vocabulary = 11, .width = 16, .depth = 2, .heads = 2, .length = 12, .dropout = 0.2};
    const auto check_seeds = [&](auto run_with) {
        const Run first = run_with(1);
        CHECK(run_with(1) == first);
        const Run other = run_with(2);
        CHECK(other.losses != first.losses);
        CHECK(other.values != first.values);
        for (const double loss : first.losses) CHECK(std::isfinite(loss));
    };
    for (const char* recipe : {"fp32", "unit-fp8"})
        check_seeds([&](std::uint64_t seed) { return run(recipe, config, 4, 4, seed, 1); });
    check_seeds([&](std::uint64_t seed) { return run<Half>("unit-fp16", config, 4, 4, seed, 1); });
}
