// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <cstring>

// Compilers contract a * b + c into a fused multiply-add, depending on their options and their tuning for a processor.
// They also do so through variables, vector types and intrinsics. A kernel that promises bits therefore never adds to a
// product. It calls `multiply_add`, which leaves nothing to contract.
namespace unitscale {

/// Whether the build's instruction set has fused multiply-adds.
#if defined(__FMA__) || defined(__FMA4__) || defined(__ARM_FEATURE_FMA) || defined(__FP_FAST_FMAF)
inline constexpr bool has_multiply_add = true;
#else
inline constexpr bool has_multiply_add = false;
#endif

/// a b + c: either fused, with one rounding, or the product rounded and then the sum. The bits are equal under every
/// compiler option but fast-math.
/// a - b c is multiply_add(-b, c, a); a b + c d is multiply_add(a, b, c * d). A factor is never the constant 1: Clang
/// makes an addition of such a call, which it may contract with another product.
/// `fused`: the build's choice. A template shared by functions with target attributes takes it as a parameter. Such
/// functions pass true, because the build's choice does not hold for them.
/// Test: tests/base/multiply_add_test.cpp
template <bool fused = has_multiply_add>
[[nodiscard, gnu::always_inline]] inline float multiply_add(float a, float b, float c) noexcept {
    if constexpr (fused) return __builtin_fmaf(a, b, c);
    else return a * b + c;
}
template <bool fused = has_multiply_add>
[[nodiscard, gnu::always_inline]] inline double multiply_add(double a, double b, double c) noexcept {
    if constexpr (fused) return __builtin_fma(a, b, c);
    else return a * b + c;
}

/// c = a b + c, lane by lane, for a vector type with elements of type `Element`. Compilers make one instruction of the
/// loop. The arguments are references, because a vector wider than the build's cannot be passed by value.
template <class Element, bool fused = has_multiply_add, class Vector>
[[gnu::always_inline]] inline void multiply_add_lanes(const Vector& a, const Vector& b, Vector& c) noexcept {
    if constexpr (fused) {
        constexpr std::size_t lanes = sizeof(Vector) / sizeof(Element);
        Element left[lanes], right[lanes], sum[lanes];
        std::memcpy(left, &a, sizeof a);
        std::memcpy(right, &b, sizeof b);
        std::memcpy(sum, &c, sizeof c);
        for (std::size_t l = 0; l < lanes; ++l) sum[l] = multiply_add<fused>(left[l], right[l], sum[l]);
        std::memcpy(&c, sum, sizeof c);
    } else {
        c = a * b + c;
    }
}

}  // namespace unitscale
