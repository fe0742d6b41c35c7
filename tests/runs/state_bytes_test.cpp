// SPDX-License-Identifier: MIT
// The size in bytes of weights and optimiser state, as counted by the allocator.
#include <unitscale/nn/decoder.hpp>
#include <unitscale/optim/adam.hpp>

#include "support/catch.hpp"

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
    const optim::Adam<T> adam(decoder.parameters(), {.storage = recipe.storage, .pool = pool});
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
