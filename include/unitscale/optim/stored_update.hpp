// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/memory.hpp>
#include <unitscale/base/parallel.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/kernels/vector_math.hpp>
#include <unitscale/optim/stored_tensor.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace unitscale::optim {

/// The tensors of one parameter's update. Null: there is none.
template <class T>
struct StoredUpdate {
    T* weights = nullptr;
    const T* gradient = nullptr;
    std::size_t size = 0;
    StoredTensor<Accum<T>>* master = nullptr;
    StoredTensor<Accum<T>>* first = nullptr;
    StoredTensor<Accum<T>>* second = nullptr;
    RandomKey key{};  ///< of this update, for what is rounded stochastically
};

/// Widens `count` elements.
template <class T>
void load_elements(const T* x, std::ptrdiff_t count, Accum<T>* out) noexcept {
    std::ptrdiff_t i = 0;
    for (; i + kernels::block_size <= count; i += kernels::block_size)
        kernels::load_lanes<static_cast<std::size_t>(kernels::block_size)>(x + i, out + i);
    for (; i < count; ++i) out[i] = kernels::widen(x[i]);
}
/// Rounds `count` numbers to T.
template <class T>
void store_elements(const Accum<T>* values, std::ptrdiff_t count, T* y) noexcept {
    std::ptrdiff_t i = 0;
    for (; i + kernels::block_size <= count; i += kernels::block_size)
        kernels::store_lanes<static_cast<std::size_t>(kernels::block_size)>(values + i, y + i);
    for (; i < count; ++i) y[i] = kernels::narrow<T>(values[i]);
}

/// One update of a parameter whose state is kept as codes: decodes a chunk of every tensor, calls
///   body(A* value, const A* gradient, A* first, A* second)
/// for each block of kernels::block_size elements, which changes value, first and second in place, and stores them. Where a tensor
/// has one scale, that is the scale of the new values: they are computed twice, once to find their largest magnitude, once to be
/// stored.
/// With a master copy, `value` is the master's and the weights are rounded from what is stored of it. A weight that is not what its
/// master rounds to was written by somebody else (initialisation, a file): it becomes the master's value first.
/// No allocation beyond scratch of the execution; the same bits for any thread count. Test: tests/optim/stored_update_test.cpp
template <class T, class Body>
void update_stored(const Execution& execution, const StoredUpdate<T>& update, const Body& body) {
    using A = Accum<T>;
    using State = StoredTensor<A>;
    using Chunk = typename State::Chunk;
    constexpr std::ptrdiff_t chunk = State::chunk, width = kernels::block_size;
    const auto n = static_cast<std::ptrdiff_t>(update.size);
    const std::ptrdiff_t chunks = (n + chunk - 1) / chunk;
    const std::array<State*, 3> states = {update.master, update.first, update.second};

    // Calls use(index, start, count, value, first, second) with the new values of every chunk.
    const auto for_chunks = [&](const auto& use) {
        parallel_for(execution.threads, chunks, kernels::work_threshold / chunk, [&](std::ptrdiff_t begin, std::ptrdiff_t end) {
            Chunk value{}, gradient{}, first{}, second{};  // lanes past the end hold some numbers, which nobody stores
            for (std::ptrdiff_t index = begin; index < end; ++index) {
                const std::ptrdiff_t start = index * chunk, count = std::min(chunk, n - start);
                load_elements<T>(update.weights + start, count, value.data());
                if (update.master != nullptr) {
                    Chunk& kept = gradient;
                    update.master->load(start, count, kept);
                    kernels::for_lanes(count, [&](std::size_t l) {
                        const A rounded = kernels::widen_code<T>(kernels::narrow_code<T>(kept[l]));
                        value[l] = rounded == value[l] ? kept[l] : value[l];
                    });
                }
                load_elements<T>(update.gradient + start, count, gradient.data());
                if (update.first != nullptr) update.first->load(start, count, first);
                if (update.second != nullptr) update.second->load(start, count, second);
                for (std::ptrdiff_t at = 0; at < count; at += width)
                    body(value.data() + at, gradient.data() + at, first.data() + at, second.data() + at);
                use(index, start, count, value, first, second);
            }
        });
    };

    if (std::any_of(states.begin(), states.end(), [](const State* s) { return s != nullptr && s->scaled_as_whole(); })) {
        Scratch<A> scratch(execution, states.size() * static_cast<std::size_t>(chunks));
        A* const largest = scratch.data();
        for_chunks([&](std::ptrdiff_t index, std::ptrdiff_t, std::ptrdiff_t count, const Chunk& value, const Chunk& first,
                       const Chunk& second) {
            largest[index] = largest_of(value.data(), count);
            largest[chunks + index] = largest_of(first.data(), count);
            largest[2 * chunks + index] = largest_of(second.data(), count);
        });
        for (std::size_t s = 0; s < states.size(); ++s)
            if (states[s] != nullptr && states[s]->scaled_as_whole())
                states[s]->expect(largest_of(largest + static_cast<std::ptrdiff_t>(s) * chunks, chunks));
    }
    for_chunks(
        [&](std::ptrdiff_t, std::ptrdiff_t start, std::ptrdiff_t count, Chunk& value, const Chunk& first, const Chunk& second) {
            const auto key = [&](std::uint64_t part) { return RandomKey{update.key.seed, mix(update.key.stream, part)}; };
            if (update.first != nullptr) update.first->store(start, count, first, key(1));
            if (update.second != nullptr) update.second->store(start, count, second, key(2));
            if (update.master != nullptr) {
                update.master->store(start, count, value, key(0));
                update.master->load_stored(start, count, value);
            }
            store_elements<T>(value.data(), count, update.weights + start);
        });
    for (State* state : states)
        if (state != nullptr) state->finish();
}

}  // namespace unitscale::optim
