// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/ops/cached_attention.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <cstddef>
#include <vector>

namespace unitscale::nn {

struct KeyValueCacheConfig {
    std::size_t layers = 1;
    std::size_t batch = 1;
    std::size_t capacity = 128;  ///< positions
    std::size_t columns = 1;     ///< columns of a layer's keys, and of its values: groups times head size
};

/// The keys and values of the positions that a decoder has seen, layer by layer.
/// With it a decoder runs the following tokens alone: see `Decoder::operator()(tape, ids, cache)`.
/// The constructor allocates all memory: 2 layers [batch, columns, capacity] elements.
/// A cache belongs to the weights that filled it: clear it when the weights change.
/// Errors: sizes of 0; more positions than the cache has. Test: tests/nn/key_value_cache_test.cpp
template <class T>
class KeyValueCache {
public:
    explicit KeyValueCache(const KeyValueCacheConfig& config) : config_(config) {
        check(config.layers >= 1 && config.batch >= 1 && config.capacity >= 1 && config.columns >= 1,
              "KeyValueCache: layers ", config.layers, ", batch ", config.batch, ", capacity ", config.capacity,
              ", columns ", config.columns, "; expected at least 1 of each");
        for (std::size_t i = 0; i < 2 * config.layers; ++i)
            buffers_.emplace_back(Shape{config.batch, config.columns, config.capacity});
    }

    [[nodiscard]] const KeyValueCacheConfig& config() const noexcept { return config_; }
    [[nodiscard]] std::size_t capacity() const noexcept { return config_.capacity; }

    /// The number of positions seen so far, which is the position of the next token.
    [[nodiscard]] std::size_t length() const noexcept { return length_; }
    void clear() noexcept { length_ = 0; }
    /// Forgets all but the first n positions. Error: the cache holds fewer.
    void truncate(std::size_t n) {
        check(n <= length_, "KeyValueCache: truncate to ", n, " positions; there are ", length_);
        length_ = n;
    }
    /// Counts n more positions, after every layer has written them. Error: more than the cache has room for.
    void advance(std::size_t n) {
        check(n <= config_.capacity - length_, "KeyValueCache: ", length_, " positions and ", n,
              " more; the capacity is ", config_.capacity);
        length_ += n;
    }

    /// The rows that layer i's attention reads, and behind which it writes new ones.
    [[nodiscard]] ops::KeyValueRows<T> layer(std::size_t i) {
        check(i < config_.layers, "KeyValueCache: layer ", i, " of ", config_.layers);
        return {buffers_[2 * i].data(), buffers_[2 * i + 1].data(),
                config_.batch,          config_.capacity,
                config_.columns,        length_};
    }

private:
    KeyValueCacheConfig config_;
    std::vector<Tensor<T>> buffers_{};  ///< keys and values of layer 0, then of layer 1, ...
    std::size_t length_ = 0;
};

}  // namespace unitscale::nn
