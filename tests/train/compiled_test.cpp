// SPDX-License-Identifier: MIT
#include <unitscale/train/compiled.hpp>

#include "support/catch.hpp"

#include <unitscale/nn/feed_forward.hpp>
#include <unitscale/ops/softmax_cross_entropy.hpp>
#include <unitscale/optim/adam.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/tensor/fill.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

using namespace unitscale;

namespace {

/// Adam under another name: trainers of it are compiled in this source, trainers of Adam in unitscale::compiled.
template <class T>
class OwnAdam : public optim::Adam<T> {
public:
    using optim::Adam<T>::Adam;
};

template <class Optimiser>
std::vector<float> losses(const Recipe& recipe) {
    nn::FeedForward<float> model("network", {.width = 32, .hidden = 64});
    train::Trainer<float, Optimiser> trainer(model, recipe, {.schedule = {.peak = 0.01, .steps = 6}});
    const Tensor<std::int32_t> labels = full<std::int32_t>({16}, 7);
    std::vector<float> found;
    for (std::uint64_t step = 0; step < 6; ++step) {
        const auto loss_of = [&](Tape<float>& tape, std::size_t i) {
            const auto x = tape.input(normal<float>({16, 32}, {step, i}));
            return ops::softmax_cross_entropy(model(x), labels);
        };
        found.push_back(static_cast<float>(trainer.step(loss_of, 2).loss));
    }
    return found;
}

TEST_CASE("A trainer of the compiled library takes the steps of one that a source compiles") {
    for (const char* name : {"fp32", "unit-fp8", "fp8-delayed"}) {
        INFO(name);
        const auto compiled = losses<optim::Adam<float>>(find_recipe(name));
        CHECK(compiled.front() != compiled.back());
        CHECK(losses<OwnAdam<float>>(find_recipe(name)) == compiled);
    }
}

}  // namespace
