// SPDX-License-Identifier: MIT
// Transfer of the best learning rate over widths: u-µP's Llama at widths 32 and 128, beside the standard model.
#include <unitscale/nn/llama.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/train/evaluate.hpp>
#include <unitscale/train/trainer.hpp>

#include "support/catch.hpp"
#include "support/language_model.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

using namespace unitscale;

namespace {

constexpr std::size_t vocabulary = 64, rows = 8, length = 64, steps = 60;
/// Factors on a recipe's own rate, lowest first.
constexpr std::array<double, 5> factors = {0.0625, 0.25, 1.0, 4.0, 16.0};

/// Texts without end in which the next token is one of four, by the two tokens before it: probabilities 1/2, 1/4, 1/8,
/// 1/8, so 1.75 bits are the least loss.
train::Batch text(std::uint64_t seed, std::uint64_t step) {
    train::Batch batch = train::make_batch(rows, length);
    for (std::size_t row = 0; row < rows; ++row) {
        std::uint64_t before = 0, last = 0;
        for (std::size_t i = 0; i <= length; ++i) {
            const std::uint32_t word = random_word({seed, mix(step, row)}, i);
            const std::uint64_t choice = word < 0x80000000u ? 0 : word < 0xC0000000u ? 1 : word < 0xE0000000u ? 2 : 3;
            const std::uint64_t next = random_word({99, mix(before % 8, last)}, choice) % vocabulary;
            if (i > 0) batch.labels.data()[row * length + i - 1] = static_cast<std::int32_t>(next);
            if (i < length) batch.ids.data()[row * length + i] = static_cast<std::int32_t>(next);
            before = last;
            last = next;
        }
    }
    return batch;
}

/// The mean loss of the last ten steps, over two seeds, in bits.
double loss_at(const Recipe& recipe, std::size_t width, double factor) {
    double sum = 0.0;
    for (const std::uint64_t seed : {1u, 2u}) {
        nn::Decoder<float> model(nn::llama_config(
            {.vocabulary = vocabulary, .width = width, .depth = 2, .head_size = 16, .length = length}));
        train::Trainer<float> trainer(model, recipe,
                                      {.seed = seed,
                                       .schedule = {.kind = optim::ScheduleKind::cosine,
                                                    .peak = factor * recipe.learning_rate,
                                                    .steps = steps,
                                                    .warmup = steps / 10}},
                                      {.beta2 = 0.95});
        for (std::size_t step = 1; step <= steps; ++step) {
            const train::Batch batch = text(seed, step);
            const train::StepResult done = trainer.step([&](Tape<float>& tape, std::size_t) {
                return ops::softmax_cross_entropy(model(tape, batch.ids), batch.labels);
            });
            if (step > steps - 10) sum += done.loss * train::bits_per_nat / 20.0;
        }
    }
    return sum;
}

struct Curve {
    std::array<double, factors.size()> losses{};
    [[nodiscard]] std::size_t best() const {
        return static_cast<std::size_t>(std::min_element(losses.begin(), losses.end()) - losses.begin());
    }
    /// The vertex of the parabola through the best point and its neighbours, in octaves; at an edge, the best point.
    [[nodiscard]] double optimum() const {
        const std::size_t i = best();
        const double at = std::log2(factors[i]);
        if (i == 0 || i + 1 == losses.size()) return at;
        const double below = losses[i - 1] - losses[i], above = losses[i + 1] - losses[i];
        return at + (below - above) / (below + above);
    }
};

Curve curve(const std::string& recipe, std::size_t width) {
    Curve found;
    std::string line = recipe + ", width " + std::to_string(width) + ":";
    for (std::size_t i = 0; i < factors.size(); ++i) {
        found.losses[i] = loss_at(find_recipe(recipe), width, factors[i]);
        line += ' ' + std::to_string(found.losses[i]);
    }
    std::printf("%s; optimum %.2f octaves\n", line.c_str(), found.optimum());
    return found;
}

}  // namespace

TEST_CASE("runs: u-µP's best learning rate at width 32 is the best one at width 128; the standard model's is not") {
    const Curve narrow = curve("umup-fp32", 32), wide = curve("umup-fp32", 128);
    CHECK(std::abs(wide.optimum() - narrow.optimum()) < 1.0);
    CHECK(wide.losses[narrow.best()] - wide.losses[wide.best()] < 0.05);
    CHECK(wide.losses[wide.best()] < narrow.losses[narrow.best()]);
    const Curve standard = curve("fp32", 32), wide_standard = curve("fp32", 128);
    CHECK(standard.optimum() - wide_standard.optimum() > 1.0);
    CHECK(wide_standard.losses[standard.best()] - wide_standard.losses[wide_standard.best()] > 0.1);
}
