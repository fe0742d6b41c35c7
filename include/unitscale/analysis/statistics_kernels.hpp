// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/base/multiply_add.hpp>
#include <unitscale/formats/quantise_kernels.hpp>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if UNITSCALE_X86
#include <immintrin.h>
#endif

namespace unitscale::analysis {

// The loops of `tensor_statistics` and `largest_magnitude` over one block of floats. The block stays in the first-level
// cache between the loops. A float's exponent field is one byte. Each exponent of the block is counted by a compare and
// a subtraction per vector of bytes. A block holds few exponents, so this takes a third of the time of a table of
// counters.

/// Floats per block. Their exponent fields fill 32 vectors of 64 bytes, so that counters of one byte do not overflow.
inline constexpr std::size_t statistics_block = 2048;

/// The result of one pass over a block. Magnitudes are the floats' bits as words: words are ordered as floats are, with
/// NaN above infinity.
struct BlockScan {
    static constexpr std::uint32_t none = 0x80000000u;

    double sum = 0.0;
    double squares = 0.0;
    std::uint32_t smallest = none;  ///< smallest magnitude other than zero; `none` if all elements are zero
    std::uint32_t largest = 0;      ///< largest magnitude
    bool has_zero = false;
};

/// Vectors of `Bytes` bytes. HalfFloats are floats to widen to Doubles; FewFields are Words narrowed to bytes.
template <int Bytes>
struct BlockVectors {
    typedef float Floats __attribute__((vector_size(Bytes)));
    typedef float HalfFloats __attribute__((vector_size(Bytes / 2)));
    typedef double Doubles __attribute__((vector_size(Bytes)));
    typedef std::int32_t Words __attribute__((vector_size(Bytes)));
    typedef std::uint32_t UnsignedWords __attribute__((vector_size(Bytes)));
    typedef std::int8_t Fields __attribute__((vector_size(Bytes)));
    typedef std::int8_t FewFields __attribute__((vector_size(Bytes / 4)));
};

/// Loads a vector from any address. The result is a reference argument: a function cannot return a vector that is wider
/// than the vectors of the build.
template <class Vector>
UNITSCALE_INLINE void load_vector(const void* from, Vector& vector) noexcept {
    std::memcpy(&vector, from, sizeof vector);
}

/// sum += x x, fused where the instruction set of the vectors has fused multiply-adds. Vectors of 128 bits use the
/// build's instruction set.
UNITSCALE_INLINE void add_square(const BlockVectors<16>::Floats& x, BlockVectors<16>::Floats& sum) noexcept {
    multiply_add_lanes<float>(x, x, sum);
}
UNITSCALE_INLINE void add_square(const BlockVectors<16>::Doubles& x, BlockVectors<16>::Doubles& sum) noexcept {
    multiply_add_lanes<double>(x, x, sum);
}
#if UNITSCALE_X86
// Not always_inline: the calling loops are inlined first, into functions of these instruction sets.
UNITSCALE_TARGET_AVX2 inline void add_square(const BlockVectors<32>::Floats& x,
                                             BlockVectors<32>::Floats& sum) noexcept {
    sum = _mm256_fmadd_ps(x, x, sum);
}
UNITSCALE_TARGET_AVX2 inline void add_square(const BlockVectors<32>::Doubles& x,
                                             BlockVectors<32>::Doubles& sum) noexcept {
    sum = _mm256_fmadd_pd(x, x, sum);
}
UNITSCALE_TARGET_AVX512 inline void add_square(const BlockVectors<64>::Floats& x,
                                               BlockVectors<64>::Floats& sum) noexcept {
    sum = _mm512_fmadd_ps(x, x, sum);
}
UNITSCALE_TARGET_AVX512 inline void add_square(const BlockVectors<64>::Doubles& x,
                                               BlockVectors<64>::Doubles& sum) noexcept {
    sum = _mm512_fmadd_pd(x, x, sum);
}
#endif

/// Prefetches the memory 2 KiB ahead, because the processor's own prefetching stops at each page. An address past the
/// end is harmless.
UNITSCALE_INLINE void prefetch_ahead(const float* in) noexcept {
#if defined(__GNUC__) || defined(__clang__)
    __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(in) + 2048));
#else
    static_cast<void>(in);
#endif
}

/// Extremes of magnitudes, lane by lane: `smallest` ignores zeros (by a word that wraps around), `least` does not.
/// The vectors are separate reference arguments, because GCC would keep members of a class in memory.
template <class UnsignedWords, class Words>
UNITSCALE_INLINE void add_extremes(const Words& magnitude, Words& smallest, Words& least, Words& largest) noexcept {
    const Words nonzero = reinterpret_cast<Words>(reinterpret_cast<UnsignedWords>(magnitude) +
                                                  0x7FFFFFFFu);  // ordered as the magnitudes, zero above all others
    smallest = nonzero < smallest ? nonzero : smallest;
    least = magnitude < least ? magnitude : least;
    largest = magnitude > largest ? magnitude : largest;
}
template <class Words>
UNITSCALE_INLINE void write_extremes(const Words& smallest, const Words& least, const Words& largest,
                                     BlockScan& scan) noexcept {
    std::int32_t low = 0x7FFFFFFF, high = 0;
    for (std::size_t lane = 0; lane < sizeof(Words) / sizeof(std::int32_t); ++lane) {
        low = smallest[lane] < low ? smallest[lane] : low;
        high = largest[lane] > high ? largest[lane] : high;
        scan.has_zero = scan.has_zero || least[lane] == 0;
    }
    scan.smallest = static_cast<std::uint32_t>(low) - 0x7FFFFFFFu;
    if (scan.smallest == 0) scan.smallest = BlockScan::none;
    scan.largest = static_cast<std::uint32_t>(high);
}

/// sum += all lanes of both vectors, in order.
template <class Doubles>
UNITSCALE_INLINE void add_lanes(const Doubles (&vectors)[2], double& sum) noexcept {
    for (const Doubles& vector : vectors)
        for (std::size_t lane = 0; lane < sizeof(Doubles) / sizeof(double); ++lane) sum += vector[lane];
}

/// The block's sums, in double, and its extremes. The exponent fields are written to `fields`.
template <int Bytes>
UNITSCALE_INLINE void scan_loop(const float* in, std::uint8_t* fields, BlockScan& scan) noexcept {
    using V = BlockVectors<Bytes>;
    using HalfFloats = typename V::HalfFloats;
    using Doubles = typename V::Doubles;
    using Words = typename V::Words;
    using FewFields = typename V::FewFields;
    constexpr std::size_t lanes = Bytes / sizeof(float);
    constexpr bool narrow_in_place =
        Bytes == 64;  // one instruction at 64 bytes; narrower vectors: the loop compiles better
    Doubles sums[2] = {}, squares[2] = {};
    Words smallest = Words{} + 0x7FFFFFFF, least = smallest, largest = Words{};
    for (std::size_t i = 0; i < statistics_block; i += lanes) {
        prefetch_ahead(in + i);
        for (std::size_t half = 0; half < 2; ++half) {
            HalfFloats floats;
            load_vector(in + i + half * lanes / 2, floats);
            const Doubles x = __builtin_convertvector(floats, Doubles);
            sums[half] += x;
            add_square(x, squares[half]);
        }
        Words magnitude;
        load_vector(in + i, magnitude);
        magnitude &= 0x7FFFFFFF;
        add_extremes<typename V::UnsignedWords>(magnitude, smallest, least, largest);
        if constexpr (narrow_in_place) {
            const FewFields narrow = __builtin_convertvector(magnitude >> 23, FewFields);
            std::memcpy(fields + i, &narrow, sizeof narrow);
        }
    }
    if constexpr (!narrow_in_place)
        for (std::size_t i = 0; i < statistics_block; ++i)
            fields[i] = static_cast<std::uint8_t>(std::bit_cast<std::uint32_t>(in[i]) >> 23);
    write_extremes(smallest, least, largest, scan);
    add_lanes(sums, scan.sum);
    add_lanes(squares, scan.squares);
}

/// Like `scan` in half the time, without exponent fields: groups of eight elements are summed in float. Squares of
/// magnitudes far from 1 leave float's range: the result is then false, and the sums are meaningless.
template <int Bytes>
UNITSCALE_INLINE bool quick_scan_loop(const float* in, BlockScan& scan) noexcept {
    using V = BlockVectors<Bytes>;
    using Floats = typename V::Floats;
    using HalfFloats = typename V::HalfFloats;
    using Doubles = typename V::Doubles;
    using Words = typename V::Words;
    constexpr std::size_t lanes = Bytes / sizeof(float);
    Doubles sums[2] = {}, squares[2] = {};
    Words smallest = Words{} + 0x7FFFFFFF, least = smallest, largest = Words{};
    for (std::size_t i = 0; i < statistics_block; i += 8 * lanes) {
        Floats few = {}, few_squares = {};
        for (std::size_t j = i; j < i + 8 * lanes; j += lanes) {
            prefetch_ahead(in + j);
            Floats x;
            load_vector(in + j, x);
            few += x;
            add_square(x, few_squares);
            Words magnitude;
            load_vector(in + j, magnitude);
            magnitude &= 0x7FFFFFFF;
            add_extremes<typename V::UnsignedWords>(magnitude, smallest, least, largest);
        }
        HalfFloats halves[2];
        static_assert(sizeof halves == sizeof few);
        std::memcpy(halves, &few, sizeof few);
        for (std::size_t half = 0; half < 2; ++half) sums[half] += __builtin_convertvector(halves[half], Doubles);
        std::memcpy(halves, &few_squares, sizeof few);
        for (std::size_t half = 0; half < 2; ++half) squares[half] += __builtin_convertvector(halves[half], Doubles);
    }
    write_extremes(smallest, least, largest, scan);
    add_lanes(sums, scan.sum);
    add_lanes(squares, scan.squares);
    constexpr std::uint32_t low = (127u - 40u) << 23, high = (127u + 60u)
                                                             << 23;  // 2^-40: the lost part is below 2^-46 of the sum
    return scan.largest == 0 || (scan.largest >= low && scan.largest <= high);
}

/// counts[f] += the number of the block's fields that equal f, for f from `low` to `high`.
template <int Bytes>
UNITSCALE_INLINE void count_loop(const std::uint8_t* fields, std::size_t low, std::size_t high,
                                 std::uint64_t* counts) noexcept {
    using V = BlockVectors<Bytes>;
    using Fields = typename V::Fields;
    for (std::size_t field = low; field <= high; ++field) {
        const Fields wanted = Fields{} + static_cast<std::int8_t>(field);
        Fields found[2] = {};
        for (std::size_t i = 0; i < statistics_block; i += 2 * Bytes)
            for (std::size_t part = 0; part < 2; ++part) {
                Fields some;
                load_vector(fields + i + part * Bytes, some);
                found[part] -= static_cast<Fields>(some == wanted);  // -1 where equal
            }
        std::uint64_t count = 0;
        for (std::size_t part = 0; part < 2; ++part)
            for (const std::uint8_t lane : std::bit_cast<std::array<std::uint8_t, sizeof(Fields)>>(found[part]))
                count += lane;
        counts[field] += count;
    }
}

/// The largest magnitude, as a word.
template <int Bytes>
UNITSCALE_INLINE std::uint32_t largest_loop(const float* in) noexcept {
    using Words = typename BlockVectors<Bytes>::Words;
    constexpr std::size_t lanes = Bytes / sizeof(float);
    Words largest[2] = {};
    for (std::size_t i = 0; i < statistics_block; i += 2 * lanes)
        for (std::size_t part = 0; part < 2; ++part) {
            Words magnitude;
            load_vector(in + i + part * lanes, magnitude);
            magnitude &= 0x7FFFFFFF;
            largest[part] = magnitude > largest[part] ? magnitude : largest[part];
        }
    std::int32_t high = 0;
    for (std::size_t part = 0; part < 2; ++part)
        for (std::size_t lane = 0; lane < lanes; ++lane) high = largest[part][lane] > high ? largest[part][lane] : high;
    return static_cast<std::uint32_t>(high);
}

/// The number of magnitudes in [low, high], as words. It uses one comparison, because GCC splits a conjunction of two.
template <int Bytes>
UNITSCALE_INLINE std::uint64_t between_loop(const float* in, std::uint32_t low, std::uint32_t high) noexcept {
    using Words = typename BlockVectors<Bytes>::Words;
    using UnsignedWords = typename BlockVectors<Bytes>::UnsignedWords;
    constexpr std::size_t lanes = Bytes / sizeof(float);
    const auto limit = static_cast<std::int32_t>((high - low) ^ 0x80000000u);
    Words counts = {};
    for (std::size_t i = 0; i < statistics_block; i += lanes) {
        UnsignedWords magnitude;
        load_vector(in + i, magnitude);
        magnitude &= 0x7FFFFFFFu;
        const Words above_low =
            reinterpret_cast<Words>((magnitude - low) ^ 0x80000000u);  // ordered as the unsigned difference
        counts -= above_low <= limit;                                  // -1 where true
    }
    std::uint64_t count = 0;
    for (std::size_t lane = 0; lane < lanes; ++lane) count += static_cast<std::uint64_t>(counts[lane]);
    return count;
}

/// sum (a[i] - b[i])^2.
template <int Bytes>
UNITSCALE_INLINE double distance_loop(const float* a, const float* b) noexcept {
    using V = BlockVectors<Bytes>;
    using HalfFloats = typename V::HalfFloats;
    using Doubles = typename V::Doubles;
    constexpr std::size_t lanes = Bytes / sizeof(double);
    Doubles sums = {};
    for (std::size_t i = 0; i < statistics_block; i += lanes) {
        HalfFloats left, right;
        load_vector(a + i, left);
        load_vector(b + i, right);
        const Doubles difference = __builtin_convertvector(left, Doubles) - __builtin_convertvector(right, Doubles);
        add_square(difference, sums);
    }
    double sum = 0.0;
    for (std::size_t lane = 0; lane < lanes; ++lane) sum += sums[lane];
    return sum;
}

// One set of functions per instruction set.
template <Isa isa>
struct BlockKernels {
    static void scan(const float* in, std::uint8_t* fields, BlockScan& result) noexcept {
        scan_loop<16>(in, fields, result);
    }
    static bool quick_scan(const float* in, BlockScan& result) noexcept { return quick_scan_loop<16>(in, result); }
    static void count(const std::uint8_t* fields, std::size_t low, std::size_t high, std::uint64_t* counts) noexcept {
        count_loop<16>(fields, low, high, counts);
    }
    static std::uint64_t between(const float* in, std::uint32_t low, std::uint32_t high) noexcept {
        return between_loop<16>(in, low, high);
    }
    static double distance(const float* a, const float* b) noexcept { return distance_loop<16>(a, b); }
    static std::uint32_t largest(const float* in) noexcept { return largest_loop<16>(in); }
};

#if UNITSCALE_X86
template <>
struct BlockKernels<Isa::avx2> {
    UNITSCALE_TARGET_AVX2 static void scan(const float* in, std::uint8_t* fields, BlockScan& result) noexcept {
        scan_loop<32>(in, fields, result);
    }
    UNITSCALE_TARGET_AVX2 static bool quick_scan(const float* in, BlockScan& result) noexcept {
        return quick_scan_loop<32>(in, result);
    }
    UNITSCALE_TARGET_AVX2 static void count(const std::uint8_t* fields, std::size_t low, std::size_t high,
                                            std::uint64_t* counts) noexcept {
        count_loop<32>(fields, low, high, counts);
    }
    UNITSCALE_TARGET_AVX2 static std::uint64_t between(const float* in, std::uint32_t low,
                                                       std::uint32_t high) noexcept {
        return between_loop<32>(in, low, high);
    }
    UNITSCALE_TARGET_AVX2 static double distance(const float* a, const float* b) noexcept {
        return distance_loop<32>(a, b);
    }
    UNITSCALE_TARGET_AVX2 static std::uint32_t largest(const float* in) noexcept { return largest_loop<32>(in); }
};

template <>
struct BlockKernels<Isa::avx512> {
    UNITSCALE_TARGET_AVX512 static void scan(const float* in, std::uint8_t* fields, BlockScan& result) noexcept {
        scan_loop<64>(in, fields, result);
    }
    UNITSCALE_TARGET_AVX512 static bool quick_scan(const float* in, BlockScan& result) noexcept {
        return quick_scan_loop<64>(in, result);
    }
    UNITSCALE_TARGET_AVX512 static void count(const std::uint8_t* fields, std::size_t low, std::size_t high,
                                              std::uint64_t* counts) noexcept {
        count_loop<64>(fields, low, high, counts);
    }
    UNITSCALE_TARGET_AVX512 static std::uint64_t between(const float* in, std::uint32_t low,
                                                         std::uint32_t high) noexcept {
        return between_loop<64>(in, low, high);
    }
    UNITSCALE_TARGET_AVX512 static double distance(const float* a, const float* b) noexcept {
        return distance_loop<64>(a, b);
    }
    UNITSCALE_TARGET_AVX512 static std::uint32_t largest(const float* in) noexcept { return largest_loop<64>(in); }
};
#endif

/// The largest magnitude of a block, as a word. The processor must have the instruction set.
[[nodiscard]] inline std::uint32_t block_largest(Isa isa, const float* in) noexcept {
#if UNITSCALE_X86
    if (isa == Isa::avx512) return BlockKernels<Isa::avx512>::largest(in);
    if (isa == Isa::avx2) return BlockKernels<Isa::avx2>::largest(in);
#endif
    static_cast<void>(isa);
    return BlockKernels<Isa::baseline>::largest(in);
}

}  // namespace unitscale::analysis
