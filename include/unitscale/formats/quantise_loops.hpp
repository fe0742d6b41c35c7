// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/formats/quantise_kernels.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#if UNITSCALE_X86
#include <immintrin.h>
#endif

namespace unitscale {

// Loops of kernels over memory, one for each instruction set that a kernel is compiled for. Loops run whole blocks; one
// function for all of them (`run_loop`) sends the rest through a buffer.

/// Elements per iteration of a loop: a fixed count lets -O2 vectorise it.
inline constexpr std::size_t quantise_block = 64;

/// Prefetches the block 4 KiB ahead. The processor's own prefetching stops at each page, and generating random words
/// leaves memory idle. An address past the end is harmless.
UNITSCALE_INLINE void prefetch_block(const float* block) noexcept {
#if defined(__GNUC__) || defined(__clang__)
    const auto ahead = reinterpret_cast<std::uintptr_t>(block) + 4096;
    for (std::uintptr_t line = 0; line < quantise_block * sizeof(float); line += 64)
        __builtin_prefetch(reinterpret_cast<const void*>(ahead + line));
#else
    static_cast<void>(block);
#endif
}

/// An element's word as kernels take it, and a kernel's result as a loop stores it: the bits of a float, or a code.
template <class In>
UNITSCALE_INLINE constexpr std::uint32_t loaded_word(In element) noexcept {
    if constexpr (std::is_same_v<In, float>) return std::bit_cast<std::uint32_t>(element);
    else return element;
}
template <class Out>
UNITSCALE_INLINE constexpr Out stored_result(std::uint32_t word) noexcept {
    if constexpr (std::is_same_v<Out, float>) return std::bit_cast<float>(word);
    else return static_cast<Out>(word);
}

/// Writes a block of floats past the caches, if the instruction set can; `to` is aligned to 64 bytes. `stream_fence`
/// ends a run of calls.
using StreamBlock = void(const float* from, float* to) noexcept;
#if UNITSCALE_X86
UNITSCALE_TARGET_AVX512 inline void stream_block_avx512(const float* from, float* to) noexcept {
    for (std::size_t i = 0; i < quantise_block; i += 16) _mm512_stream_ps(to + i, _mm512_loadu_ps(from + i));
}
UNITSCALE_TARGET_AVX2 inline void stream_block_avx2(const float* from, float* to) noexcept {
    for (std::size_t i = 0; i < quantise_block; i += 8) _mm256_stream_ps(to + i, _mm256_loadu_ps(from + i));
}
UNITSCALE_TARGET_AVX2 inline void stream_fence() noexcept { _mm_sfence(); }
#else
inline void stream_fence() noexcept {}
#endif
inline void stream_block_baseline(const float* from, float* to) noexcept { std::copy_n(from, quantise_block, to); }

/// Arguments of a loop besides elements.
struct LoopExtras {
    const void* pieces = nullptr;  ///< elements of the kernel's Piece type
    std::size_t piece_size = 0;    ///< bytes
    bool streamed = false;         ///< write past the caches
};

/// written = f(elements), `count` of them in whole blocks. The two ranges are equal or do not overlap. Reads and
/// streamed writes alternate by blocks, which memory serves faster than long runs of each.
template <class Kernel, StreamBlock stream_block>
UNITSCALE_INLINE void block_loop(const void* constants, const void* elements, void* written, std::size_t count,
                                 const LoopExtras& extras) noexcept {
    using Piece = typename Kernel::Piece;
    using In = typename Kernel::In;
    using Out = typename Kernel::Out;
    const auto c = *static_cast<const typename Kernel::Constants*>(constants);
    const In* in = static_cast<const In*>(elements);
    Out* out = static_cast<Out*>(written);
    const Piece* pieces = static_cast<const Piece*>(extras.pieces);
    const bool streamed = Kernel::reads_memory && std::is_same_v<Out, float> && extras.streamed;
    alignas(64) Out results[quantise_block];
    for (std::size_t begin = 0; begin < count; begin += quantise_block) {
        const In* from = in + begin;
        Out* to = streamed ? results : out + begin;
        if constexpr (Kernel::reads_memory) prefetch_block(from);
#if defined(__clang__)
#pragma clang loop vectorize(assume_safety)
#elif defined(__GNUC__)
#pragma GCC ivdep
#endif
        for (std::size_t i = 0; i < quantise_block; ++i) {
            std::uint32_t random = 0;
            if constexpr (!std::is_same_v<Piece, NoPiece>)
                random = std::uint32_t{pieces[begin + i]} << (32 - 8 * sizeof(Piece));
            to[i] = stored_result<Out>(Kernel::apply(c, loaded_word(from[i]), random));
        }
        if constexpr (std::is_same_v<Out, float>)
            if (streamed) stream_block(results, out + begin);
    }
}

/// Loops behind one type: pointers to the constants, to the input and to the output.
using LoopFunction = void(const void* constants, const void* in, void* out, std::size_t count,
                          const LoopExtras& extras) noexcept;

#if UNITSCALE_X86
template <class Kernel>
UNITSCALE_TARGET_AVX512 void block_loop_avx512(const void* constants, const void* in, void* out, std::size_t count,
                                               const LoopExtras& extras) noexcept {
    block_loop<Kernel, stream_block_avx512>(constants, in, out, count, extras);
}
template <class Kernel>
UNITSCALE_TARGET_AVX2 void block_loop_avx2(const void* constants, const void* in, void* out, std::size_t count,
                                           const LoopExtras& extras) noexcept {
    block_loop<Kernel, stream_block_avx2>(constants, in, out, count, extras);
}
#endif
template <class Kernel>
void block_loop_baseline(const void* constants, const void* in, void* out, std::size_t count,
                         const LoopExtras& extras) noexcept {
    block_loop<Kernel, stream_block_baseline>(constants, in, out, count, extras);
}

/// A loop and the bytes of the elements that it reads and writes.
struct BlockLoop {
    LoopFunction* run = nullptr;
    std::size_t in_size = 0;
    std::size_t out_size = 0;
};

/// The loop of a kernel for an instruction set that the processor has.
template <class Kernel>
[[nodiscard]] BlockLoop loop_of(Isa isa) noexcept {
    LoopFunction* run = block_loop_baseline<Kernel>;
#if UNITSCALE_X86
    if constexpr (Kernel::dispatched) {
        if (isa == Isa::avx512) run = block_loop_avx512<Kernel>;
        if (isa == Isa::avx2) run = block_loop_avx2<Kernel>;
    }
#endif
    static_cast<void>(isa);
    return {run, sizeof(typename Kernel::In), sizeof(typename Kernel::Out)};
}

/// A loop on any number of elements: whole blocks directly, the rest by way of buffers.
[[gnu::noinline]] inline void run_loop(const BlockLoop& loop, const void* constants, const void* in, void* out,
                                       std::size_t count, const LoopExtras& extras) noexcept {
    const std::size_t left = count % quantise_block, whole = count - left;
    if (whole > 0) loop.run(constants, in, out, whole, extras);
    if (left == 0) return;
    constexpr std::size_t largest = quantise_block * sizeof(std::uint32_t);
    alignas(64) std::byte elements[largest] = {}, results[largest], pieces[largest];
    const auto* const rest = static_cast<const std::byte*>(in) + whole * loop.in_size;
    std::memcpy(elements, rest, left * loop.in_size);
    if (extras.pieces != nullptr)
        std::memcpy(pieces, static_cast<const std::byte*>(extras.pieces) + whole * extras.piece_size,
                    left * extras.piece_size);
    loop.run(constants, elements, results, quantise_block, {.pieces = pieces});
    std::memcpy(static_cast<std::byte*>(out) + whole * loop.out_size, results, left * loop.out_size);
}

/// A kernel on any number of elements, with an instruction set that the processor has.
template <class Kernel>
void run_kernel(Isa isa, const typename Kernel::Constants& constants, const typename Kernel::In* in,
                typename Kernel::Out* out, std::size_t count, const LoopExtras& extras = {}) noexcept {
    run_loop(loop_of<Kernel>(isa), &constants, in, out, count, extras);
}

/// Whether any of `count` floats is a NaN: infinity - |x|, computed on words, is then negative.
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

}  // namespace unitscale
