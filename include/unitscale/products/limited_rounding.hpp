// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/base/multiply_add.hpp>
#include <unitscale/formats/accumulate.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

// The roundings of limited sums, in vectors. A lane holds one sum, and takes the steps of `Accumulate` in their order.
// Every step is exact, so all instruction sets give equal bits.
namespace unitscale::products {

/// Vectors of `bytes` bytes: floats, their words, and half as many doubles.
template <int bytes>
struct Lanes {
    typedef float Float __attribute__((vector_size(bytes)));
    typedef std::int32_t Word __attribute__((vector_size(bytes)));
    typedef std::uint32_t Unsigned __attribute__((vector_size(bytes)));
    typedef double Double __attribute__((vector_size(bytes)));
    typedef std::int64_t LongWord __attribute__((vector_size(bytes)));
    typedef std::uint64_t LongUnsigned __attribute__((vector_size(bytes)));
    typedef float HalfFloat __attribute__((vector_size(bytes / 2)));
    typedef std::int32_t HalfWord __attribute__((vector_size(bytes / 2)));
};

/// Constants of Q(format, x) for vectors. By word: the format has float's least exponent, so its numbers have zeros in
/// the low bits of a float's word. By exponent: let 2^E be the power of two of x, or of the least normal number if that
/// is larger. x + magic with magic = 1.5 2^(E + 23 - M) has the format's step as its last place.
struct SumRounding {
    enum class Kind { identity, by_word, by_exponent };
    Kind kind = Kind::identity;
    bool plain = false;  ///< nearest even, subnormals kept; overflow by carry (word) or to infinity (exponent)
    bool nearest = true;
    bool bounded = false;             ///< magnitudes from `threshold` to `highest` become `limit`
    bool flushes = false;             ///< magnitudes below `least` become 0, or `least` above `flush_above`
    std::uint32_t dropped = 0;        ///< by word: float's mantissa bits that the format lacks
    std::uint32_t odd = 0, half = 0;  ///< by word: added for a kept last bit of 1; always added
    std::uint32_t kept = ~0u;         ///< by word: mask of the kept bits
    std::int32_t lowest_field = 0;    ///< by exponent: exponent of the least normal number, in place in a float
    std::uint32_t to_magic = 0;       ///< by exponent: added to 2^E: magic
    std::uint32_t to_step = 0;        ///< by exponent: subtracted from 2^E: the step
    std::int32_t threshold = 0, highest = 0, limit = 0, least = 0, flush_above = 0;  ///< words of magnitudes
};

[[nodiscard]] constexpr SumRounding sum_rounding(const Accumulate& options, const FloatFormat& format,
                                                 Rounding rounding) noexcept {
    SumRounding c;
    const bool by_word = format.min_exponent() == -126, whole = by_word && format.max_exponent() == 127;
    const bool to_infinity = options.overflow == Overflow::to_infinity;
    c.nearest = rounding == Rounding::nearest_even;
    c.flushes = !options.subnormals;
    c.kind = by_word ? SumRounding::Kind::by_word : SumRounding::Kind::by_exponent;
    c.bounded = !whole || (c.nearest && !to_infinity);
    if (format.mantissa_bits == 23 && whole && !c.flushes) c.kind = SumRounding::Kind::identity;
    c.plain = c.nearest && !c.flushes && (by_word ? !c.bounded : to_infinity);
    const auto bits = static_cast<std::uint32_t>(format.mantissa_bits), dropped = 23 - bits;
    c.dropped = dropped;
    if (c.nearest && dropped > 0) {
        c.odd = 1;
        c.half = (1u << (dropped - 1)) - 1;
    }
    c.kept = ~0u << dropped;
    if (!by_word) {
        c.lowest_field = (format.min_exponent() + 127) << 23;
        c.to_magic = (dropped << 23) + (1u << 22);
        c.to_step = bits << 23;
    }
    const auto word = [](float x) { return std::bit_cast<std::int32_t>(x); };
    c.threshold = word(format.max()) + (c.nearest && dropped > 0 ? 1 << (dropped - 1) : 1);
    c.limit = c.nearest && to_infinity ? infinity_magnitude : word(format.max());
    c.highest = c.nearest && to_infinity ? infinity_magnitude : infinity_magnitude - 1;
    c.least = word(format.min_normal());
    c.flush_above = c.nearest ? word(compose<float>(false, 3, format.min_exponent() - 2)) : c.least;
    return c;
}

// Vectors are passed by reference: a vector wider than the build's cannot be passed by value.

template <class To, class From>
[[gnu::always_inline]] inline void copy_bits(To& to, const From& from) noexcept {
    static_assert(sizeof(To) == sizeof(From));
    std::memcpy(&to, &from, sizeof to);
}

/// Q of a vector, with every option. Magnitudes are compared as integers, by the sign of a difference: GCC 12 takes
/// lane by lane a comparison of 512 bits whose result is used as a word.
template <class L>
[[gnu::always_inline]] inline void round_vector(const SumRounding& c, typename L::Float& x) noexcept {
    using Float = typename L::Float;
    using Word = typename L::Word;
    using Unsigned = typename L::Unsigned;
    Unsigned word, rounded;
    copy_bits(word, x);
    const Unsigned magnitude = word & 0x7FFFFFFFu, sign = word ^ magnitude;
    if (c.kind != SumRounding::Kind::by_exponent) {
        rounded = (magnitude + ((magnitude >> (c.dropped - Unsigned{})) & c.odd) + c.half) & c.kept;
    } else {
        const Word field = reinterpret_cast<Word>(magnitude) & 0x7F800000, lowest = c.lowest_field - Word{};
        const Unsigned raised = reinterpret_cast<Unsigned>(field > lowest ? field : lowest);
        const Unsigned magic_word = raised + c.to_magic, step_word = raised - c.to_step;
        Float a, magic, step;
        copy_bits(a, magnitude);
        copy_bits(magic, magic_word);
        copy_bits(step, step_word);
        Float r = (a + magic) - magic;
        if (!c.nearest) r = r > a ? r - step : r;
        copy_bits(rounded, r);
    }
    if (c.flushes) {
        const auto small = reinterpret_cast<Unsigned>((reinterpret_cast<Word>(magnitude) - c.least) >> 31),
                   up = reinterpret_cast<Unsigned>((c.flush_above - reinterpret_cast<Word>(magnitude)) >> 31);
        rounded = (small & up & static_cast<std::uint32_t>(c.least)) | (~small & rounded);
    }
    if (c.bounded) {
        const Word below = reinterpret_cast<Word>(magnitude) - c.threshold,
                   above = c.highest - reinterpret_cast<Word>(magnitude);
        const auto kept = reinterpret_cast<Unsigned>((below | above) >> 31);
        rounded = (kept & rounded) | (~kept & static_cast<std::uint32_t>(c.limit));
    }
    rounded |= sign;
    copy_bits(x, rounded);
}

/// Q of N vectors. The frequent cases in the fewest instructions.
template <class L, std::size_t N>
[[gnu::always_inline]] inline void round_vectors(const SumRounding& c, typename L::Float (&x)[N]) noexcept {
    using Float = typename L::Float;
    using Word = typename L::Word;
    using Unsigned = typename L::Unsigned;
    if (c.kind == SumRounding::Kind::identity) return;
    if (c.plain && c.kind == SumRounding::Kind::by_word) {
#pragma GCC unroll 16
        for (std::size_t i = 0; i < N; ++i) {
            Unsigned word;
            copy_bits(word, x[i]);
            word = (word + ((word >> (c.dropped - Unsigned{})) & c.odd) + c.half) & c.kept;
            copy_bits(x[i], word);
        }
    } else if (c.plain) {
        const Word lowest = c.lowest_field - Word{};
        const Float threshold = std::bit_cast<float>(c.threshold) - Float{};
#pragma GCC unroll 16
        for (std::size_t i = 0; i < N; ++i) {
            Unsigned word;
            copy_bits(word, x[i]);
            const Word field = reinterpret_cast<Word>(word) & 0x7F800000;
            const Unsigned magic_word = reinterpret_cast<Unsigned>(field > lowest ? field : lowest) + c.to_magic,
                           magnitude = word & 0x7FFFFFFFu, infinity = (word ^ magnitude) | infinity_word;
            Float magic, a, limit;
            copy_bits(magic, magic_word);
            copy_bits(a, magnitude);
            copy_bits(limit, infinity);
            const Float r = (x[i] + magic) - magic;
            x[i] = a >= threshold ? limit : r;  // not for NaN
        }
    } else {
#pragma GCC unroll 16
        for (std::size_t i = 0; i < N; ++i) round_vector<L>(c, x[i]);
    }
}

/// sum = fl(a b + sum), rounded once on every instruction set. Without fused instructions: the product is exact in
/// double, and a sum in double rounded to odd gives the float of the exact sum. With them: one instruction, written in
/// assembly, because GCC 12 makes a loop over the lanes of an AVX2 vector four times as slow.
/// Reference: Boldo, Melquiond 2008, Emulation of FMA and correctly rounded sums: proved algorithms using rounding to
/// odd.
template <class L, bool fused>
[[gnu::always_inline]] inline void fuse(const typename L::Float& a, const typename L::Float& b,
                                        typename L::Float& sum) noexcept {
    if constexpr (fused) {
#if UNITSCALE_X86 && !defined(__clang__)  // Clang joins the loop's lanes, and refuses wide registers in a template
        asm("vfmadd231ps {%2, %1, %0|%0, %1, %2}" : "+v"(sum) : "v"(a), "v"(b));
#else
        multiply_add_lanes<float, true>(a, b, sum);
#endif
    } else {
        using Double = typename L::Double;
        using LongUnsigned = typename L::LongUnsigned;
        typename L::HalfFloat left[2], right[2], old[2];
        copy_bits(left, a);
        copy_bits(right, b);
        copy_bits(old, sum);
        for (int h = 0; h < 2; ++h) {
            const Double p = __builtin_convertvector(left[h], Double) * __builtin_convertvector(right[h], Double),
                         c = __builtin_convertvector(old[h], Double), s = p + c, other = s - p,
                         error = (p - (s - other)) + (c - other);
            const LongUnsigned inexact = reinterpret_cast<LongUnsigned>((error < 0) | (error > 0)) & 1u;
            LongUnsigned word, error_word;
            copy_bits(word, s);
            copy_bits(error_word, error);
            word -= ((word ^ error_word) >> 63) & inexact;  // toward zero
            word |= inexact;
            Double odd;
            copy_bits(odd, word);
            old[h] = __builtin_convertvector(odd, typename L::HalfFloat);
        }
        copy_bits(sum, old);
    }
}

}  // namespace unitscale::products
