// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/formats/quantise_kernels.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#if UNITSCALE_X86
#include <immintrin.h>
#endif

namespace unitscale {

// The kernels of quantise_kernels.hpp over memory, compiled once for each instruction set.

/// What a kernel reads of the random stream per element.
template <int bits>
using RandomPiece = std::conditional_t<bits == 16, std::uint16_t, std::uint32_t>;

/// Elements per turn of a loop: a fixed count is what lets -O2 vectorise it.
inline constexpr std::size_t quantise_block = 64;

/// Asks for the block 4 KiB ahead: the processor's own prefetching stops at each page, and while random words are made nothing
/// else is asked for. An address past the end is harmless.
UNITSCALE_INLINE void prefetch_block(const float* block) noexcept {
#if defined(__GNUC__) || defined(__clang__)
    const auto ahead = reinterpret_cast<std::uintptr_t>(block) + 4096;
    for (std::uintptr_t line = 0; line < quantise_block * sizeof(float); line += 64)
        __builtin_prefetch(reinterpret_cast<const void*>(ahead + line));
#else
    static_cast<void>(block);
#endif
}

/// A kernel's result as a loop stores it: the float of a word, or a code.
template <class Out>
UNITSCALE_INLINE constexpr Out stored_result(std::uint32_t word) noexcept {
    if constexpr (std::is_same_v<Out, float>) return std::bit_cast<float>(word);
    else return static_cast<Out>(word);
}

/// out = f(in) on `count` floats; in and out are the same or do not overlap. The tail goes through a buffer. Out: float, or an
/// unsigned integer for kernels that give codes. Constants: whatever the kernel takes.
template <class Kernel, class Constants, class Out>
UNITSCALE_INLINE void quantise_loop(const Constants& constants, const float* in, Out* out, std::size_t count,
                                    const RandomPiece<Kernel::random_bits>* pieces) noexcept {
    constexpr bool has_random = Kernel::random_bits > 0;
    const Constants c = constants;
    float tail[quantise_block] = {};
    Out tail_results[quantise_block] = {};
    RandomPiece<Kernel::random_bits> tail_pieces[quantise_block] = {};
    for (std::size_t begin = 0; begin < count; begin += quantise_block) {
        const std::size_t left = count - begin;
        const bool whole = left >= quantise_block;
        if (!whole)
            for (std::size_t i = 0; i < left; ++i) {
                tail[i] = in[begin + i];
                if constexpr (has_random) tail_pieces[i] = pieces[begin + i];
            }
        const float* from = whole ? in + begin : tail;
        const RandomPiece<Kernel::random_bits>* random = has_random && whole ? pieces + begin : tail_pieces;
        Out* to = whole ? out + begin : tail_results;
        prefetch_block(in + begin);
#if defined(__clang__)
#pragma clang loop vectorize(assume_safety)
#elif defined(__GNUC__)
#pragma GCC ivdep
#endif
        for (std::size_t i = 0; i < quantise_block; ++i) {
            std::uint32_t bits = 0;
            if constexpr (has_random) bits = std::uint32_t{random[i]} << (32 - Kernel::random_bits);
            to[i] = stored_result<Out>(Kernel::apply(c, std::bit_cast<std::uint32_t>(from[i]), bits));
        }
        if (!whole)
            for (std::size_t i = 0; i < left; ++i) out[begin + i] = tail_results[i];
    }
}

template <class Kernel, class Constants, class Out>
UNITSCALE_TARGET_AVX512 void quantise_avx512(const Constants& constants, const float* in, Out* out, std::size_t count,
                                             const RandomPiece<Kernel::random_bits>* pieces) noexcept {
    quantise_loop<Kernel>(constants, in, out, count, pieces);
}

template <class Kernel, class Constants, class Out>
UNITSCALE_TARGET_AVX2 void quantise_avx2(const Constants& constants, const float* in, Out* out, std::size_t count,
                                         const RandomPiece<Kernel::random_bits>* pieces) noexcept {
    quantise_loop<Kernel>(constants, in, out, count, pieces);
}

template <class Kernel, class Constants, class Out>
void quantise_baseline(const Constants& constants, const float* in, Out* out, std::size_t count,
                       const RandomPiece<Kernel::random_bits>* pieces) noexcept {
    quantise_loop<Kernel>(constants, in, out, count, pieces);
}

#if UNITSCALE_X86
/// The same past the caches: out is aligned to 64 bytes, count a multiple of the block. Reads and writes take turns by blocks,
/// which memory likes better than long runs of each. `stream_fence` ends a run of calls.
template <class Kernel>
UNITSCALE_TARGET_AVX512 void quantise_streamed_avx512(const QuantiseConstants& constants, const float* in, float* out,
                                                      std::size_t count,
                                                      const RandomPiece<Kernel::random_bits>* pieces) noexcept {
    alignas(64) float results[quantise_block];
    for (std::size_t begin = 0; begin < count; begin += quantise_block) {
        quantise_loop<Kernel>(constants, in + begin, results, quantise_block, pieces + (Kernel::random_bits > 0 ? begin : 0));
        for (std::size_t i = 0; i < quantise_block; i += 16) _mm512_stream_ps(out + begin + i, _mm512_load_ps(results + i));
    }
}

template <class Kernel>
UNITSCALE_TARGET_AVX2 void quantise_streamed_avx2(const QuantiseConstants& constants, const float* in, float* out,
                                                  std::size_t count, const RandomPiece<Kernel::random_bits>* pieces) noexcept {
    alignas(64) float results[quantise_block];
    for (std::size_t begin = 0; begin < count; begin += quantise_block) {
        quantise_loop<Kernel>(constants, in + begin, results, quantise_block, pieces + (Kernel::random_bits > 0 ? begin : 0));
        for (std::size_t i = 0; i < quantise_block; i += 8) _mm256_stream_ps(out + begin + i, _mm256_load_ps(results + i));
    }
}

UNITSCALE_TARGET_AVX2 inline void stream_fence() noexcept { _mm_sfence(); }
#endif

/// Whether any of `count` floats is a NaN: where infinity - |x|, of words, is negative.
UNITSCALE_INLINE bool contains_nan_loop(const float* values, std::size_t count) noexcept {
    std::uint32_t signs = 0;
    std::size_t begin = 0;
    for (; begin + quantise_block <= count; begin += quantise_block)
        for (std::size_t i = 0; i < quantise_block; ++i)
            signs |= infinity_word - (std::bit_cast<std::uint32_t>(values[begin + i]) & ~sign_word);
    for (; begin < count; ++begin) signs |= infinity_word - (std::bit_cast<std::uint32_t>(values[begin]) & ~sign_word);
    return (signs & sign_word) != 0;
}
UNITSCALE_TARGET_AVX512 inline bool contains_nan_avx512(const float* values, std::size_t count) noexcept {
    return contains_nan_loop(values, count);
}
UNITSCALE_TARGET_AVX2 inline bool contains_nan_avx2(const float* values, std::size_t count) noexcept {
    return contains_nan_loop(values, count);
}
[[nodiscard]] inline bool contains_nan(Isa isa, const float* values, std::size_t count) noexcept {
    if (isa == Isa::avx512) return contains_nan_avx512(values, count);
    return isa == Isa::avx2 ? contains_nan_avx2(values, count) : contains_nan_loop(values, count);
}

/// The loop of that kernel for an instruction set that the processor has.
template <class Kernel, class Constants, class Out>
void quantise_dispatched(Isa isa, const Constants& constants, const float* in, Out* out, std::size_t count,
                         const RandomPiece<Kernel::random_bits>* pieces = nullptr) noexcept {
    switch (isa) {
        case Isa::avx512:
            return quantise_avx512<Kernel>(constants, in, out, count, pieces);
        case Isa::avx2:
            return quantise_avx2<Kernel>(constants, in, out, count, pieces);
        case Isa::baseline:
            break;
    }
    quantise_baseline<Kernel>(constants, in, out, count, pieces);
}

}  // namespace unitscale
