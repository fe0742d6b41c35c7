// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/base/multiply_add.hpp>

#include <cstddef>

#if UNITSCALE_X86
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

// Vectors of each instruction set, under one name for float and double. Their addresses need no alignment. `fused_*`
// and `multiply_add_128` compute a b + c in every lane: the former in one instruction, the latter as `multiply_add`.
// Test: tests/base/vectors_test.cpp
namespace unitscale {

/// Asks for a cache line that will be written. On x86, GCC's __builtin_prefetch gives prefetchw only with -mprfchw, and
/// else an instruction that fetches to read: products of 256 x 256 x 256 took 5 % longer with it on a Zen 3.
[[gnu::always_inline]] inline void prefetch_to_write(const void* line) noexcept {
#if UNITSCALE_X86
    asm volatile("prefetchw (%0)" : : "r"(line));
#else
    __builtin_prefetch(line, 1);
#endif
}

/// 128 bits of T, a vector that every processor of a build has.
template <class T>
struct Vector128 {
    typedef T type __attribute__((vector_size(16)));
    typedef T unaligned __attribute__((vector_size(16), aligned(alignof(T)), may_alias));
};

template <class T>
[[gnu::always_inline]] inline typename Vector128<T>::type load_128(const T* p) noexcept {
    return *reinterpret_cast<const typename Vector128<T>::unaligned*>(p);
}
template <class T>
[[gnu::always_inline]] inline void store_128(T* p, typename Vector128<T>::type x) noexcept {
    *reinterpret_cast<typename Vector128<T>::unaligned*>(p) = x;
}

/// a b + c for vectors of 128 bits: `multiply_add` of each lane. Compilers would contract a product and a sum of
/// vectors, too.
template <class T>
[[gnu::always_inline]] inline typename Vector128<T>::type multiply_add_128(typename Vector128<T>::type a,
                                                                           typename Vector128<T>::type b,
                                                                           typename Vector128<T>::type c) noexcept {
    if constexpr (!has_multiply_add) return a * b + c;
#if UNITSCALE_X86 && defined(__FMA__)
    else if constexpr (sizeof(T) == 4) return _mm_fmadd_ps(a, b, c);
    else return _mm_fmadd_pd(a, b, c);
#elif defined(__aarch64__)
    else if constexpr (sizeof(T) == 4) return vfmaq_f32(c, a, b);
    else return vfmaq_f64(c, a, b);
#else
    else {
        typename Vector128<T>::type sum{};
        for (std::size_t i = 0; i < 16 / sizeof(T); ++i) sum[i] = unitscale::multiply_add(a[i], b[i], c[i]);
        return sum;
    }
#endif
}
template <class T>
[[gnu::always_inline]] inline typename Vector128<T>::type multiply_add_128(T a, typename Vector128<T>::type b,
                                                                           typename Vector128<T>::type c) noexcept {
    return multiply_add_128<T>(a - typename Vector128<T>::type{}, b,
                               c);  // not a + 0, which would be an addition: -0 + 0 is 0
}

#if UNITSCALE_X86

[[gnu::always_inline]] UNITSCALE_TARGET_AVX2 inline __m256 load_avx2(const float* p) { return _mm256_loadu_ps(p); }
[[gnu::always_inline]] UNITSCALE_TARGET_AVX2 inline __m256d load_avx2(const double* p) { return _mm256_loadu_pd(p); }
/// A vector that is loaded once, for several instructions. For some processors, such as -mtune=znver3, GCC repeats the
/// load in each of them instead. Tiles of float then read memory 16 instead of 7 times for 12 multiply-adds: they ran
/// at 0.7 of their speed on a Zen 3.
[[gnu::always_inline]] UNITSCALE_TARGET_AVX2 inline auto load_once_avx2(const auto* p) {
    auto x = load_avx2(p);
    asm("" : "+x"(x));
    return x;
}
[[gnu::always_inline]] UNITSCALE_TARGET_AVX2 inline void store_avx2(float* p, __m256 x) { _mm256_storeu_ps(p, x); }
[[gnu::always_inline]] UNITSCALE_TARGET_AVX2 inline void store_avx2(double* p, __m256d x) { _mm256_storeu_pd(p, x); }
[[gnu::always_inline]] UNITSCALE_TARGET_AVX2 inline __m256 broadcast_avx2(float x) { return _mm256_set1_ps(x); }
[[gnu::always_inline]] UNITSCALE_TARGET_AVX2 inline __m256d broadcast_avx2(double x) { return _mm256_set1_pd(x); }
[[gnu::always_inline]] UNITSCALE_TARGET_AVX2 inline __m256 fused_avx2(__m256 a, __m256 b, __m256 c) {
    return _mm256_fmadd_ps(a, b, c);
}
[[gnu::always_inline]] UNITSCALE_TARGET_AVX2 inline __m256d fused_avx2(__m256d a, __m256d b, __m256d c) {
    return _mm256_fmadd_pd(a, b, c);
}

[[gnu::always_inline]] UNITSCALE_TARGET_AVX512 inline __m512 load_avx512(const float* p) { return _mm512_loadu_ps(p); }
[[gnu::always_inline]] UNITSCALE_TARGET_AVX512 inline __m512d load_avx512(const double* p) {
    return _mm512_loadu_pd(p);
}
/// `load_once_avx2` for AVX-512.
[[gnu::always_inline]] UNITSCALE_TARGET_AVX512 inline auto load_once_avx512(const auto* p) {
    auto x = load_avx512(p);
    asm("" : "+v"(x));
    return x;
}
[[gnu::always_inline]] UNITSCALE_TARGET_AVX512 inline void store_avx512(float* p, __m512 x) { _mm512_storeu_ps(p, x); }
[[gnu::always_inline]] UNITSCALE_TARGET_AVX512 inline void store_avx512(double* p, __m512d x) {
    _mm512_storeu_pd(p, x);
}
[[gnu::always_inline]] UNITSCALE_TARGET_AVX512 inline __m512 broadcast_avx512(float x) { return _mm512_set1_ps(x); }
[[gnu::always_inline]] UNITSCALE_TARGET_AVX512 inline __m512d broadcast_avx512(double x) { return _mm512_set1_pd(x); }
[[gnu::always_inline]] UNITSCALE_TARGET_AVX512 inline __m512 fused_avx512(__m512 a, __m512 b, __m512 c) {
    return _mm512_fmadd_ps(a, b, c);
}
[[gnu::always_inline]] UNITSCALE_TARGET_AVX512 inline __m512d fused_avx512(__m512d a, __m512d b, __m512d c) {
    return _mm512_fmadd_pd(a, b, c);
}

// Masked forms: only the lanes in `mask` are read or written. The other loaded lanes are 0.
[[gnu::always_inline]] UNITSCALE_TARGET_AVX512 inline __m512 load_avx512(unsigned mask, const float* p) {
    return _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), p);
}
[[gnu::always_inline]] UNITSCALE_TARGET_AVX512 inline __m512d load_avx512(unsigned mask, const double* p) {
    return _mm512_maskz_loadu_pd(static_cast<__mmask8>(mask), p);
}
[[gnu::always_inline]] UNITSCALE_TARGET_AVX512 inline void store_avx512(unsigned mask, float* p, __m512 x) {
    _mm512_mask_storeu_ps(p, static_cast<__mmask16>(mask), x);
}
[[gnu::always_inline]] UNITSCALE_TARGET_AVX512 inline void store_avx512(unsigned mask, double* p, __m512d x) {
    _mm512_mask_storeu_pd(p, static_cast<__mmask8>(mask), x);
}

#endif

}  // namespace unitscale
