// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/tensor/tensor.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace unitscale {

/// A double in float, to odd: where it is not exact, the neighbour whose last bit is 1. Rounding that to a type of up to 22
/// significant bits gives what rounding the double itself gives, since a tie of the narrow type is never made or missed.
[[nodiscard]] inline float round_to_odd(double value) noexcept {
    const auto nearest = static_cast<float>(value);
    const auto back = static_cast<double>(nearest);
    const auto bits = std::bit_cast<std::uint32_t>(nearest);
    if (back == value || value != value || bits % 2 == 1) return nearest;
    const bool away = (back < 0.0 ? -back : back) > (value < 0.0 ? -value : value);
    return std::bit_cast<float>(away ? bits - 1 : bits + 1);
}

/// One element in another element type, rounded to nearest even, once. A storage cast: out of range becomes infinity where the
/// type has it. Types without arithmetic of their own (Half, BFloat16, Minifloat) convert through float.
template <class To, class From>
[[nodiscard]] To element_cast(From value) {
    if constexpr (std::is_arithmetic_v<From> && std::is_arithmetic_v<To>) return static_cast<To>(value);
    else if constexpr (std::is_same_v<From, To>) return value;
    else if constexpr (std::is_same_v<From, double>) return static_cast<To>(round_to_odd(value));
    else return static_cast<To>(static_cast<float>(value));
}

/// A copy of the tensor in another element type, its scale kept. Test: tests/tensor/cast_test.cpp
template <class To, class From>
[[nodiscard]] Tensor<To> cast(const Tensor<From>& tensor, const std::shared_ptr<MemoryPool>& pool = nullptr) {
    Tensor<To> result(tensor.shape(), pool);
    for (std::size_t i = 0; i < tensor.size(); ++i) result.data()[i] = element_cast<To>(tensor.data()[i]);
    result.set_scale(tensor.scale());
    result.set_any_scale(tensor.any_scale());
    return result;
}

}  // namespace unitscale
