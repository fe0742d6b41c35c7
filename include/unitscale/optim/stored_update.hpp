// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/parameter.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/base/parallel.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/kernels/coding.hpp>
#include <unitscale/kernels/vector_math.hpp>
#include <unitscale/optim/stored_tensor.hpp>
#include <unitscale/tensor/half_lanes.hpp>

#include <algorithm>
#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace unitscale::optim {

/// The tensors of one parameter's update. A null pointer: the update has no such tensor.
template <class T>
struct StoredUpdate {
    T* weights = nullptr;
    const T* gradient = nullptr;
    const CodedTensor* coded_gradient = nullptr;  ///< in place of `gradient`
    std::size_t size = 0;
    StoredTensor<Accum<T>>* master = nullptr;
    StoredTensor<Accum<T>>* first = nullptr;
    StoredTensor<Accum<T>>* second = nullptr;
    RandomKey key{};  ///< of this update's stochastic rounding
};

/// Converts `count` elements to Accum<T>.
template <class T>
void load_elements(const T* x, std::ptrdiff_t count, Accum<T>* out) noexcept {
    std::ptrdiff_t i = 0;
    for (; i + kernels::block_size <= count; i += kernels::block_size)
        load_lanes<static_cast<std::size_t>(kernels::block_size)>(x + i, out + i);
    for (; i < count; ++i) out[i] = widen(x[i]);
}
/// Decodes `count` codes of a gradient from `start` on, without its scale.
template <std::floating_point A>
void load_codes(const CodedTensor& gradient, std::ptrdiff_t start, std::ptrdiff_t count, A* out) {
    kernels::decode<A>(Execution{}, gradient.codes.data() + start, out, count, gradient.format);
}
/// Rounds `count` numbers to T.
template <class T>
void store_elements(const Accum<T>* values, std::ptrdiff_t count, T* y) noexcept {
    std::ptrdiff_t i = 0;
    for (; i + kernels::block_size <= count; i += kernels::block_size)
        store_lanes<static_cast<std::size_t>(kernels::block_size)>(values + i, y + i);
    for (; i < count; ++i) y[i] = narrow<T>(values[i]);
}

/// A chunk of an update's tensors, converted to A. The array of a tensor that the update does not have is scratch.
template <class A>
struct UpdateChunk {
    using Values = typename StoredTensor<A>::Chunk;
    Values value{}, gradient{}, first{}, second{};

    /// Calls body(A* value, const A* gradient, A* first, A* second) for each block of the first `count` elements.
    /// A block has kernels::block_size elements. Lanes past the end hold numbers that are never read or stored.
    template <class Body>
    void for_blocks(std::ptrdiff_t count, const Body& body) {
        for (std::ptrdiff_t at = 0; at < count; at += kernels::block_size)
            body(value.data() + at, std::as_const(gradient).data() + at, first.data() + at, second.data() + at);
    }
};

/// The number of chunks that `for_update_chunks` cuts an update into.
template <class T>
[[nodiscard]] std::ptrdiff_t update_chunks(const StoredUpdate<T>& update) noexcept {
    constexpr std::ptrdiff_t chunk = StoredTensor<Accum<T>>::chunk;
    return (static_cast<std::ptrdiff_t>(update.size) + chunk - 1) / chunk;
}

/// out[0 .. count) = the weights from `start` on, as an update begins with them.
/// With a master copy these are the master's values; else they are the weights themselves.
/// A weight that differs from its rounded master was written from outside (initialisation, a file).
/// It then stands for the master's value. Both arrays hold numbers in every lane.
template <class T>
[[gnu::always_inline]] inline void load_exact_weights(const T* weights, const StoredTensor<Accum<T>>* master,
                                                      std::ptrdiff_t start, std::ptrdiff_t count,
                                                      typename StoredTensor<Accum<T>>::Chunk& out,
                                                      typename StoredTensor<Accum<T>>::Chunk& scratch) {
    using A = Accum<T>;
    load_elements<T>(weights + start, count, out.data());
    if (master == nullptr) return;
    master->load(start, count, scratch);
    kernels::for_lanes(count, [&](std::size_t l) {
        const A rounded = widen_code<T>(narrow_code<T>(scratch[l]));
        out[l] = rounded == out[l] ? scratch[l] : out[l];
    });
}

/// Decodes elements [start, start + count) of an update. `value`: as in `load_exact_weights`.
template <class T>
[[gnu::noinline]] void load_update_chunk(const StoredUpdate<T>& update, std::ptrdiff_t start, std::ptrdiff_t count,
                                         UpdateChunk<Accum<T>>& c) {
    load_exact_weights<T>(update.weights, update.master, start, count, c.value, c.gradient);
    if (update.coded_gradient == nullptr) load_elements<T>(update.gradient + start, count, c.gradient.data());
    else load_codes(*update.coded_gradient, start, count, c.gradient.data());
    if (update.first != nullptr) update.first->load(start, count, c.first);
    if (update.second != nullptr) update.second->load(start, count, c.second);
}

/// Calls use(index, start, count, UpdateChunk&) once for every chunk of an update, decoded, from several threads.
template <class T, class Use>
void for_update_chunks(const Execution& execution, const StoredUpdate<T>& update, const Use& use) {
    using A = Accum<T>;
    constexpr std::ptrdiff_t chunk = StoredTensor<A>::chunk;
    const auto n = static_cast<std::ptrdiff_t>(update.size);
    parallel_for(execution.threads, update_chunks(update), kernels::work_threshold / chunk,
                 [&](std::ptrdiff_t begin, std::ptrdiff_t end) {
                     UpdateChunk<A> c;
                     for (std::ptrdiff_t index = begin; index < end; ++index) {
                         const std::ptrdiff_t start = index * chunk, count = std::min(chunk, n - start);
                         load_update_chunk<T>(update, start, count, c);
                         use(index, start, count, c);
                     }
                 });
}

/// One update of a parameter with state or a gradient that is kept as codes. It decodes a chunk of every tensor, calls
///   body(A* value, const A* gradient, A* first, A* second)
/// for each block of kernels::block_size elements, and stores the tensors.
/// `body` changes value, first and second in place.
/// Where a tensor has one scale, the new values determine it.
/// They are then computed twice: once to find their largest magnitude, once to be stored.
/// With a master copy, the weights are rounded from the stored master.
/// The only allocation is scratch of the execution. Results are equal, to the bit, for any thread count.
/// Test: tests/optim/stored_update_test.cpp
template <class T, class Body>
void update_stored(const Execution& execution, const StoredUpdate<T>& update, const Body& body) {
    using A = Accum<T>;
    using State = StoredTensor<A>;
    const std::ptrdiff_t chunks = update_chunks(update);
    const std::array<State*, 3> states = {update.master, update.first, update.second};

    if (std::any_of(states.begin(), states.end(),
                    [](const State* s) { return s != nullptr && s->scaled_as_whole(); })) {
        Scratch<A> scratch(execution, states.size() * static_cast<std::size_t>(chunks));
        A* const largest = scratch.data();
        for_update_chunks(execution, update,
                          [&](std::ptrdiff_t index, std::ptrdiff_t, std::ptrdiff_t count, UpdateChunk<A>& c) {
                              c.for_blocks(count, body);
                              largest[index] = largest_of(c.value.data(), count);
                              largest[chunks + index] = largest_of(c.first.data(), count);
                              largest[2 * chunks + index] = largest_of(c.second.data(), count);
                          });
        for (std::size_t s = 0; s < states.size(); ++s)
            if (states[s] != nullptr && states[s]->scaled_as_whole())
                states[s]->expect(largest_of(largest + static_cast<std::ptrdiff_t>(s) * chunks, chunks));
    }
    for_update_chunks(execution, update,
                      [&](std::ptrdiff_t, std::ptrdiff_t start, std::ptrdiff_t count, UpdateChunk<A>& c) {
                          const auto key = [&](std::uint64_t part) {
                              return RandomKey{update.key.seed, mix(update.key.stream, part)};
                          };
                          c.for_blocks(count, body);
                          if (update.first != nullptr) update.first->store(start, count, c.first, key(1));
                          if (update.second != nullptr) update.second->store(start, count, c.second, key(2));
                          if (update.master != nullptr) {
                              update.master->store(start, count, c.value, key(0));
                              update.master->load_stored(start, count, c.value);
                          }
                          store_elements<T>(c.value.data(), count, update.weights + start);
                      });
    for (State* state : states)
        if (state != nullptr) state->finish();
}

}  // namespace unitscale::optim
