// SPDX-License-Identifier: MIT
// The size in bytes of weights and optimiser state, as counted by the allocator.
#include <unitscale/autograd/tape.hpp>
#include <unitscale/nn/decoder.hpp>
#include <unitscale/nn/initialise.hpp>
#include <unitscale/ops/softmax_cross_entropy.hpp>
#include <unitscale/optim/adam.hpp>
#include <unitscale/optim/quantise_gradients.hpp>
#include <unitscale/scaling/known_recipes.hpp>

#include "support/any_state.hpp"
#include "support/catch.hpp"
#include "support/language_model.hpp"

#include <cstddef>
#include <cstdio>
#include <memory>

using namespace unitscale;

namespace {

/// The bytes of a decoder's weights, master copy and moments under a recipe. All are allocated from one pool.
template <class T>
std::size_t bytes_of(const Recipe& recipe) {
    nn::Decoder<T> decoder({.vocabulary = 200,
                            .width = 128,
                            .depth = 4,
                            .heads = 2,
                            .length = 128,
                            .norm = {.gains = true},
                            .bias = true});
    const auto pool = std::make_shared<MemoryPool>();
    for (Parameter<T>* parameter : decoder.parameters()) parameter->write() = Tensor<T>(parameter->shape(), pool);
    optim::Adam<T> adam(decoder.parameters(), {.storage = recipe.storage, .pool = pool});
    adam.visit_state(test::AnyState{});  // makes the state
    return pool->live_bytes();
}

}  // namespace

TEST_CASE("runs: FP16 weights and state take half the bytes of FP32, FP8 moments fewer") {
    const std::size_t wide = bytes_of<float>(find_recipe("fp32"));
    const auto share = [&](std::size_t bytes) { return static_cast<double>(bytes) / static_cast<double>(wide); };
    Recipe bytes = find_recipe("scalify-fp8-4");
    bytes.storage.first_moment = bytes.storage.second_moment = {.format = e4m3, .block = 128};
    const double master = share(bytes_of<Half>(find_recipe("fp16"))),
                 first = share(bytes_of<Half>(find_recipe("scalify-fp16-2"))),
                 fourth = share(bytes_of<Half>(find_recipe("scalify-fp8-4"))), eight = share(bytes_of<Half>(bytes));
    std::printf(
        "bytes of weights and optimiser state: fp32 %zu; of that fp16 %.4f, scalify-fp16-2 %.4f, scalify-fp8-4 %.4f, "
        "with "
        "moments in E4M3 by blocks %.4f\n",
        wide, master, first, fourth, eight);
    CHECK(wide > 12 * 4 * 12 * 128 * 128);  // 12 bytes per weight, 4 blocks of 12 width^2 weights
    CHECK(master == Approx(14.0 / 12.0).epsilon(0.02));
    CHECK(first == Approx(10.0 / 12.0).epsilon(0.02));
    CHECK(fourth <= 0.51);
    CHECK(fourth > 0.45);
    CHECK(eight == Approx(4.0 / 12.0).epsilon(0.05));
}

namespace {

/// The bytes of a decoder's weights, state and gradients between a training step's backward pass and its update, and
/// the most bytes that the backward pass held. The gradients of linear layers' weights are counted as they are kept.
struct StepBytes {
    std::size_t kept = 0, peak = 0;
};
template <class T>
StepBytes bytes_of_step(const Recipe& recipe) {
    nn::Decoder<T> decoder({.vocabulary = 100, .width = 128, .depth = 4, .heads = 2, .length = 16});
    nn::initialise(decoder.parameters(), recipe, 1);
    const auto pool = std::make_shared<MemoryPool>();
    for (Parameter<T>* parameter : decoder.parameters())
        parameter->write() = copy_into(parameter->value(), Tensor<T>(parameter->shape(), pool));
    optim::Adam<T> adam(decoder.parameters(), {.storage = recipe.storage, .pool = pool});
    adam.visit_state(test::AnyState{});  // makes the state
    ScalingState state(1);
    Tape<T> tape(recipe, state);
    const train::Batch batch = test::random_batch(2, 16, 100);
    tape.begin_step();
    tape.backward(ops::softmax_cross_entropy(decoder(tape, batch.ids), batch.labels), 1, [&](Parameter<T>& parameter) {
        optim::quantise_weight_gradient(tape.execution(), parameter, recipe.storage, {}, tape.pool());
    });
    const std::size_t peak = tape.pool()->peak_bytes();
    tape.begin_step();  // frees values
    return {pool->live_bytes() + tape.pool()->live_bytes(), pool->live_bytes() + peak};
}

}  // namespace

TEST_CASE("runs: weights, state and gradients of the last Scalify recipe take at most 0.45 of FP32's bytes") {
    const StepBytes wide = bytes_of_step<float>(find_recipe("fp32")),
                    narrow = bytes_of_step<Half>(find_recipe("scalify-fp8-4"));
    const auto share = [](std::size_t part, std::size_t whole) {
        return static_cast<double>(part) / static_cast<double>(whole);
    };
    std::printf("bytes of weights, state and gradients: fp32 %zu, scalify-fp8-4 %.4f of it; at the peak %.4f\n",
                wide.kept, share(narrow.kept, wide.kept), share(narrow.peak, wide.peak));
    CHECK(wide.kept > 16 * 4 * 12 * 128 * 128);  // 16 bytes per weight, 4 blocks of 12 width^2 weights
    CHECK(share(narrow.kept, wide.kept) <= 0.45);
    CHECK(share(narrow.kept, wide.kept) > 0.43);
    CHECK(share(narrow.peak, wide.peak) < 0.5);
}
