// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/base/machine_memory.hpp>
#include <unitscale/ops/cached_attention.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace unitscale::nn {

struct KeyValueCacheConfig {
    std::size_t layers = 1;
    std::size_t batch = 1;       ///< items: texts
    std::size_t capacity = 128;  ///< positions
    std::size_t columns = 1;     ///< columns of a layer's keys, and of its values: groups times head size
    std::size_t groups = 1;      ///< heads of keys and of values
    /// How keys and values are stored: fp32, fp16, bf16, or codes of at most 8 bits with a scale for each head and
    /// position (kernels::LineElement). Empty: elements of T.
    std::optional<FloatFormat> format{};
    /// The attention's window: the cache keeps as many positions and some for the step, at most `capacity`. 0: all.
    std::size_t window = 0;

    /// Tokens of one call that a cache with a window writes at a time. More take several turns in each layer.
    static constexpr std::size_t step_positions = 64;
    /// Positions that memory is held for.
    [[nodiscard]] std::size_t held() const noexcept {
        return window == 0 ? capacity : std::min(capacity, window - 1 + step_positions);
    }
};

/// The keys and values of the positions that a decoder has seen, layer by layer, for `batch` texts of any lengths.
/// With it a decoder runs the following tokens alone: see `Decoder::operator()(tape, ids, cache)`.
/// The constructor allocates all memory, `bytes()`: 2 layers batch held() (columns element + groups scale) bytes.
///   element: sizeof(T) without a format, else 4 (fp32), 2 (fp16, bf16) or 1       scale: 1 with codes, else 0
/// A cache belongs to the weights that filled it: clear it when the weights change.
/// Errors: sizes of 0; groups that do not divide the columns; a format that lines cannot have; more positions than the
/// cache has. Test: tests/nn/key_value_cache_test.cpp
template <class T>
class KeyValueCache {
public:
    explicit KeyValueCache(const KeyValueCacheConfig& config)
        : config_(config), coder_(std::make_shared<const kernels::LineCoder<T>>(config.format)), items_(config.batch) {
        check(config.layers >= 1 && config.batch >= 1 && config.capacity >= 1 && config.columns >= 1,
              "KeyValueCache: layers ", config.layers, ", batch ", config.batch, ", capacity ", config.capacity,
              ", columns ", config.columns, "; expected at least 1 of each");
        check(config.groups >= 1 && config.columns % config.groups == 0, "KeyValueCache: columns ", config.columns,
              " in ", config.groups, " groups; expected groups to divide columns");
        const std::size_t positions = config.batch * config.held();
        check_memory("KeyValueCache: capacity ", std::to_string(config.capacity),
                     2.0 * static_cast<double>(config.layers) * static_cast<double>(positions) *
                         static_cast<double>(config.columns * coder_->element_size()));
        for (std::size_t i = 0; i < 2 * config.layers; ++i) {
            lines_.emplace_back(Shape{positions * config.columns * coder_->element_size()});
            scales_.emplace_back(Shape{positions * config.groups * coder_->scale_size()});
        }
    }

    [[nodiscard]] const KeyValueCacheConfig& config() const noexcept { return config_; }
    [[nodiscard]] std::size_t capacity() const noexcept { return config_.capacity; }
    /// The bytes of keys, values and scales.
    [[nodiscard]] std::size_t bytes() const noexcept {
        std::size_t sum = 0;
        for (const auto* tensors : {&lines_, &scales_})
            for (const Tensor<std::uint8_t>& tensor : *tensors) sum += tensor.size();
        return sum;
    }

    /// The number of positions that an item has seen so far, which is the position of its next token.
    [[nodiscard]] std::size_t length(std::size_t item = 0) const { return items_.at(item).length; }
    /// Forgets all positions, of all items or of one.
    void clear() noexcept { std::fill(items_.begin(), items_.end(), Item{}); }
    void clear(std::size_t item) { items_.at(item) = {}; }
    /// Forgets all but the first n positions of every item. Errors: an item has fewer, or the positions in the window
    /// of the next token are overwritten.
    void truncate(std::size_t n) {
        for (const Item& item : items_) {
            check(n <= item.length, "KeyValueCache: truncate to ", n, " positions; there are ", item.length);
            const std::size_t oldest = item.written - std::min(item.written, config_.held());
            check(oldest == 0 || n + 1 >= oldest + config_.window, "KeyValueCache: truncate to ", n,
                  " positions; with a window of ", config_.window, " the cache holds those from ", oldest, " on");
        }
        for (Item& item : items_) item.length = n;
    }
    /// Counts n more positions of every item, or of one, after every layer has written them. Error: more than the cache
    /// has room for.
    void advance(std::size_t n) {
        for (std::size_t item = 0; item < items_.size(); ++item) check_room(item, n);
        for (std::size_t item = 0; item < items_.size(); ++item) advance(item, n);
    }
    void advance(std::size_t item, std::size_t n) {
        check_room(item, n);
        items_[item].length += n;
        items_[item].written = std::max(items_[item].written, items_[item].length);
    }

    /// The lines that layer i's attention reads, and behind which it writes new ones.
    [[nodiscard]] ops::KeyValueRows<T> layer(std::size_t i) {
        check(i < config_.layers, "KeyValueCache: layer ", i, " of ", config_.layers);
        return {lines(2 * i), lines(2 * i + 1), config_.batch, config_.held(), config_.columns, length(), {}};
    }

private:
    struct Item {
        std::size_t length = 0;
        std::size_t written = 0;  ///< the end of the positions that lines were written for
    };

    void check_room(std::size_t item, std::size_t n) const {
        check(n <= config_.capacity - length(item), "KeyValueCache: ", length(item), " positions and ", n,
              " more; the capacity is ", config_.capacity);
    }
    [[nodiscard]] kernels::CachedLines<T> lines(std::size_t tensor) {
        std::uint8_t* const scales = coder_->scale_size() > 0 ? scales_[tensor].data() : nullptr;
        return {reinterpret_cast<std::byte*>(lines_[tensor].data()), scales, *coder_};
    }

    KeyValueCacheConfig config_;
    std::shared_ptr<const kernels::LineCoder<T>> coder_;    ///< shared by copies, whose lines refer to it
    std::vector<Tensor<std::uint8_t>> lines_{}, scales_{};  ///< keys and values of layer 0, then of layer 1, ...
    std::vector<Item> items_;
};

}  // namespace unitscale::nn
