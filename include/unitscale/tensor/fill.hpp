// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/base/multiply_add.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/tensor/cast.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace unitscale {

/// Sets every element to zero. The tensor then holds zeros by construction and has any scale (`Tensor::any_scale`).
template <class T>
void fill_zero(Tensor<T>& tensor) {
    std::fill_n(tensor.data(), tensor.size(), T(0));
    tensor.set_scale(1.0);
    tensor.set_any_scale(true);
}

/// Sets every element to `value`. If it is 0, infinite or NaN, the tensor has any scale (`Tensor::any_scale`).
template <class T>
void fill_constant(Tensor<T>& tensor, T value) {
    std::fill_n(tensor.data(), tensor.size(), value);
    tensor.set_scale(1.0);
    tensor.set_any_scale(is_scale_free(value));
}

/// Independent normal elements of mean 0 and the given standard deviation: element i is stddev * random_normal(key, i),
/// rounded once to T. A key therefore gives equal values in every element type, up to this rounding.
/// Test: tests/tensor/fill_test.cpp
template <class T>
void fill_normal(Tensor<T>& tensor, RandomKey key, double stddev = 1.0) {
    for (std::size_t i = 0; i < tensor.size(); i += 2) {
        const NormalPair pair(key, i / 2);
        tensor.data()[i] = element_cast<T>(stddev * pair.even());
        if (i + 1 < tensor.size()) tensor.data()[i + 1] = element_cast<T>(stddev * pair.odd());
    }
    tensor.set_scale(1.0);
    tensor.set_any_scale(false);
}

/// Truncated normal elements: as `fill_normal`, but each element is drawn again until it lies within `bound` standard
/// deviations. The standard deviation of the result is lower: 0.88 stddev for bound 2. Elements that `fill_normal` puts
/// within the bound are equal in both. Error: bound below 0.1.
template <class T>
void fill_truncated_normal(Tensor<T>& tensor, RandomKey key, double stddev = 1.0, double bound = 2.0) {
    check(bound >= 0.1, "truncated_normal: bound is ", bound, "; expected at least 0.1 standard deviations");
    for (std::size_t i = 0; i < tensor.size(); ++i) {
        double z = random_normal(key, i);
        for (RandomKey next = key; std::abs(z) > bound; z = random_normal(next, i)) next.stream = mix(next.stream, 1);
        tensor.data()[i] = element_cast<T>(stddev * z);
    }
    tensor.set_scale(1.0);
    tensor.set_any_scale(false);
}

/// Independent elements, uniform in [low, high).
template <class T>
void fill_uniform(Tensor<T>& tensor, RandomKey key, double low = 0.0, double high = 1.0) {
    for (std::size_t i = 0; i < tensor.size(); ++i)
        tensor.data()[i] =
            element_cast<T>(multiply_add(high - low, static_cast<double>(uniform(random_word(key, i))), low));
    tensor.set_scale(1.0);
    tensor.set_any_scale(false);
}

/// A uniform number in [0, count), from word `index` of the stream. Of the 2^32 words, 2^32 mod count would favour some
/// numbers. While the word is one of these, word `index` of a further stream replaces it.   count: 1 to 2^32
[[nodiscard]] inline std::uint64_t random_below(RandomKey key, std::uint64_t index, std::uint64_t count) noexcept {
    const std::uint64_t surplus = (std::uint64_t{1} << 32) % count;
    std::uint64_t product = random_word(key, index) * count;
    while ((product & 0xFFFFFFFFu) < surplus) {
        key.stream = mix(key.stream, 1);
        product = random_word(key, index) * count;
    }
    return product >> 32;
}

/// Independent integers, uniform in [low, high). Errors: low not below high; more than 2^32 numbers.
/// Reference: Lemire, Fast random integer generation in an interval, 2019, arXiv:1805.10941.
template <std::integral T>
void fill_integers(Tensor<T>& tensor, RandomKey key, T low, T high) {
    const std::uint64_t count = low < high ? static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low) : 0;
    check(count > 0 && count <= std::uint64_t{1} << 32, "integers: from ", +low, " to ", +high,
          "; expected low below high, at most 2^32 apart");
    for (std::size_t i = 0; i < tensor.size(); ++i)
        tensor.data()[i] = static_cast<T>(static_cast<std::uint64_t>(low) + random_below(key, i, count));
    tensor.set_scale(1.0);
    tensor.set_any_scale(false);
}

/// New tensors, filled.
template <class T>
[[nodiscard]] Tensor<T> zeros(const Shape& shape) {
    Tensor<T> tensor(shape);
    fill_zero(tensor);
    return tensor;
}
template <class T>
[[nodiscard]] Tensor<T> full(const Shape& shape, T value) {
    Tensor<T> tensor(shape);
    fill_constant(tensor, value);
    return tensor;
}
template <class T>
[[nodiscard]] Tensor<T> normal(const Shape& shape, RandomKey key, double stddev = 1.0) {
    Tensor<T> tensor(shape);
    fill_normal(tensor, key, stddev);
    return tensor;
}
template <class T>
[[nodiscard]] Tensor<T> truncated_normal(const Shape& shape, RandomKey key, double stddev = 1.0, double bound = 2.0) {
    Tensor<T> tensor(shape);
    fill_truncated_normal(tensor, key, stddev, bound);
    return tensor;
}
template <class T>
[[nodiscard]] Tensor<T> uniform(const Shape& shape, RandomKey key, double low = 0.0, double high = 1.0) {
    Tensor<T> tensor(shape);
    fill_uniform(tensor, key, low, high);
    return tensor;
}
template <std::integral T>
[[nodiscard]] Tensor<T> integers(const Shape& shape, RandomKey key, T low, T high) {
    Tensor<T> tensor(shape);
    fill_integers(tensor, key, low, high);
    return tensor;
}

/// [count]: start, start + step, start + 2 step, ..., formed in double and rounded once.
template <class T>
[[nodiscard]] Tensor<T> arange(std::size_t count, double start = 0.0, double step = 1.0) {
    Tensor<T> tensor(Shape{count});
    for (std::size_t i = 0; i < count; ++i)
        tensor.data()[i] = element_cast<T>(multiply_add(step, static_cast<double>(i), start));
    return tensor;
}

/// [count]: the numbers 0 .. count - 1 in random order, all orders equally likely (Fisher, Yates). Error: more than
/// 2^32 numbers, or more numbers than T can represent.
template <std::integral T>
[[nodiscard]] Tensor<T> permutation(std::size_t count, RandomKey key) {
    check(count <= std::uint64_t{1} << 32 && (count == 0 || std::in_range<T>(count - 1)), "permutation: ", count,
          " numbers are more than the type counts");
    Tensor<T> tensor = arange<T>(count);
    for (std::size_t i = count; i > 1; --i) std::swap(tensor.data()[i - 1], tensor.data()[random_below(key, i, i)]);
    return tensor;
}

/// A copy of a vector's, array's or span's elements: [size], or the given shape. Error: their number is not the
/// shape's.
template <class Values>
    requires requires(const Values& values) { std::span(values); }
[[nodiscard]] auto from(const Values& values, const Shape& shape) {
    using T = typename decltype(std::span(values))::value_type;
    return Tensor<T>(shape, std::span<const T>(values));
}
template <class Values>
    requires requires(const Values& values) { std::span(values); }
[[nodiscard]] auto from(const Values& values) {
    return from(values, Shape{std::span(values).size()});
}

}  // namespace unitscale
