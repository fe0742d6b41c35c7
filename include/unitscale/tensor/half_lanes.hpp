// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/select.hpp>
#include <unitscale/tensor/backend.hpp>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__F16C__)
#include <immintrin.h>
#endif

// Half and BFloat16 as float and back, a constant number of elements at a time, in loops that compilers vectorise.
// Test: tests/tensor/half_lanes_test.cpp
namespace unitscale {

/// Conversions of 16-bit codes in integer arithmetic, so that loops over them are vectorised on every instruction set.
/// Rounding is to nearest even; out of range becomes infinity; NaN stays NaN. The values equal Eigen's own conversions.
[[nodiscard]] inline float widen_bfloat16(std::uint16_t code) noexcept {
    return std::bit_cast<float>(std::uint32_t{code} << 16);
}
[[nodiscard]] inline float widen_half(std::uint16_t code) noexcept {
    const std::uint32_t magnitude = code & 0x7FFFu;
    const std::uint32_t normal = (magnitude << 13) + (112u << 23);                 // exponent bias 127 instead of 15
    const float subnormal = std::bit_cast<float>(0x3F000000u + magnitude) - 0.5f;  // the last bit of 0.5 is 2^-24
    std::uint32_t result = select(magnitude >= 0x7C00u, normal + (112u << 23), normal);
    result = select(magnitude < 0x0400u, std::bit_cast<std::uint32_t>(subnormal), result);
    return std::bit_cast<float>(result | ((code & 0x8000u) << 16));
}
[[nodiscard]] inline std::uint16_t narrow_bfloat16(float x) noexcept {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t rounded = (bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16;
    return static_cast<std::uint16_t>(select((bits & 0x7FFFFFFFu) > 0x7F800000u, (bits >> 16) | 0x40u, rounded));
}
[[nodiscard]] inline std::uint16_t narrow_half(float x) noexcept {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
    const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
    const std::uint32_t normal = (magnitude + 0x0FFFu + ((magnitude >> 13) & 1u) - (112u << 23)) >> 13;
    const std::uint32_t subnormal = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3F000000u;
    std::uint32_t result = select(normal > 0x7C00u, 0x7C00u, normal);
    result = select(magnitude < 0x38800000u, subnormal, result);
    result = select(magnitude > 0x7F800000u, 0x7E00u, result);
    return static_cast<std::uint16_t>(result | ((bits >> 16) & 0x8000u));
}

/// The form in which a kernel's loops read an element. `Code` is the element itself, or its 16 bits.
template <class T>
using Code = std::conditional_t<HalfElement<T>, std::uint16_t, T>;
template <class T>
[[nodiscard]] Accum<T> widen_code(Code<T> code) noexcept {
    if constexpr (std::is_same_v<T, Half>) return widen_half(code);
    else if constexpr (std::is_same_v<T, BFloat16>) return widen_bfloat16(code);
    else return static_cast<Accum<T>>(code);
}
template <class T>
[[nodiscard]] Code<T> narrow_code(Accum<T> x) noexcept {
    if constexpr (std::is_same_v<T, Half>) return narrow_half(x);
    else if constexpr (std::is_same_v<T, BFloat16>) return narrow_bfloat16(x);
    else return static_cast<T>(x);
}
template <class T>
[[nodiscard]] Accum<T> widen(T x) noexcept {
    return widen_code<T>(std::bit_cast<Code<T>>(x));
}
template <class T>
[[nodiscard]] T narrow(Accum<T> x) noexcept {
    return std::bit_cast<T>(narrow_code<T>(x));
}

/// Whether a block of T is converted by the processor's own instructions for halves, where the build has them. Only
/// which bits of a NaN are kept depends on this.
#if defined(__F16C__)
template <class T>
inline constexpr bool converts_by_instruction = std::is_same_v<T, Half>;
[[gnu::always_inline]] inline void widen_eight(const Half* x, float* out) noexcept {
    _mm256_storeu_ps(out, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x))));
}
[[gnu::always_inline]] inline void narrow_eight(const float* x, Half* out) noexcept {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm256_cvtps_ph(_mm256_loadu_ps(x), _MM_FROUND_TO_NEAREST_INT));
}
#else
template <class T>
inline constexpr bool converts_by_instruction = false;
template <class T>
void widen_eight(const T*, float*) noexcept;
template <class T>
void narrow_eight(const float*, T*) noexcept;
#endif

/// Widens, or rounds, `lanes` elements: a whole block or a group of it.
template <std::size_t lanes, class T>
[[gnu::always_inline]] inline void load_lanes(const T* x, Accum<T>* out) noexcept {
    if constexpr (converts_by_instruction<T>) {
        for (std::size_t l = 0; l < lanes; l += 8) widen_eight(x + l, out + l);
        return;
    }
    std::array<Code<T>, lanes> codes;
    std::memcpy(codes.data(), x, sizeof(codes));
    for (std::size_t l = 0; l < lanes; ++l) out[l] = widen_code<T>(codes[l]);
}
template <std::size_t lanes, class T>
[[gnu::always_inline]] inline void store_lanes(const Accum<T>* values, T* y) noexcept {
    if constexpr (converts_by_instruction<T>) {
        for (std::size_t l = 0; l < lanes; l += 8) narrow_eight(values + l, y + l);
        return;
    }
    std::array<Code<T>, lanes> codes;
    for (std::size_t l = 0; l < lanes; ++l) codes[l] = narrow_code<T>(values[l]);
    std::memcpy(static_cast<void*>(y), codes.data(), sizeof(codes));
}

}  // namespace unitscale
