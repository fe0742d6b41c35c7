// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/random.hpp>
#include <unitscale/tensor/cast.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <algorithm>

namespace unitscale {

/// Sets every element to zero. The tensor then holds zeros by construction, so any scale fits it.
template <class T>
void fill_zero(Tensor<T>& tensor) {
    std::fill_n(tensor.data(), tensor.size(), T(0));
    tensor.set_scale(1.0);
    tensor.set_any_scale(true);
}

/// Sets every element to `value`.
template <class T>
void fill_constant(Tensor<T>& tensor, T value) {
    std::fill_n(tensor.data(), tensor.size(), value);
    tensor.set_scale(1.0);
    tensor.set_any_scale(false);
}

/// Independent normal elements of mean 0 and the given standard deviation: element i is stddev * random_normal(key, i),
/// rounded once to T, so the same key gives the same values in every element type, up to that rounding.
/// Test: tests/tensor/fill_test.cpp
template <class T>
void fill_normal(Tensor<T>& tensor, RandomKey key, double stddev = 1.0) {
    for (std::size_t i = 0; i < tensor.size(); ++i) tensor.data()[i] = element_cast<T>(stddev * random_normal(key, i));
    tensor.set_scale(1.0);
    tensor.set_any_scale(false);
}

/// Independent elements, uniform in [low, high).
template <class T>
void fill_uniform(Tensor<T>& tensor, RandomKey key, double low = 0.0, double high = 1.0) {
    for (std::size_t i = 0; i < tensor.size(); ++i)
        tensor.data()[i] = element_cast<T>(low + (high - low) * static_cast<double>(uniform(random_word(key, i))));
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

}  // namespace unitscale
