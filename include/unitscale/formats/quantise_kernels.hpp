// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/formats/rounding.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>

#if defined(__GNUC__) || defined(__clang__)
#define UNITSCALE_INLINE [[gnu::always_inline]] inline
#else
#define UNITSCALE_INLINE inline
#endif

namespace unitscale {

// The span loops of quantise for float. They work on the bits of |x|, in which every step of a format is a power of
// two. At exponent field E the last kept bit of a float significand is bit k = 23 - M (normal) or 23 - M + (Emin - E)
// (subnormal). Rounding adds a number below 2^k and clears the bits under k. A carry into the exponent rounds up to the
// next binade, as it should. Below the smallest number of the format k would pass 23; there the result is 0 or the
// smallest number, and a threshold decides.
// 2^k is made by converting the float 2^k to an integer, which every instruction set can do in a vector. SSE2 has no
// shifts by a different amount per element. These conversions and the products by powers of two are exact, so neither
// fast-math, the rounding mode nor flushing of subnormals matters.

inline constexpr std::uint32_t sign_word = 0x80000000u;
inline constexpr std::uint32_t infinity_word = 0x7F800000u;
inline constexpr std::uint32_t quiet_nan_word = 0x7FC00000u;
inline constexpr auto infinity_magnitude = static_cast<std::int32_t>(infinity_word);

/// A word for positive x, and the bits to flip in it for negative x.
struct BySign {
    std::uint32_t positive = 0;
    std::uint32_t flip = 0;

    constexpr BySign() = default;
    constexpr BySign(std::uint32_t for_positive, std::uint32_t for_negative) noexcept
        : positive(for_positive), flip(for_positive ^ for_negative) {}
    /// `sign` is all ones for negative x, else 0.
    [[nodiscard]] UNITSCALE_INLINE constexpr std::uint32_t at(std::uint32_t sign) const noexcept {
        return positive ^ (flip & sign);
    }
};

/// The constants of one loop: a format and options, as float words. Magnitudes are compared as signed integers.
struct QuantiseConstants {
    std::int32_t lowest_field = 0;  ///< exponent field in position, where k is 23 (normal_field where k is constant)
    std::int32_t normal_field = 0;  ///< exponent field in position, from which k is 23 - M
    std::uint32_t power_base = 0;   ///< minus the clamped field: the float 2^k
    std::int32_t smallest = 0;      ///< smallest positive number
    std::int32_t largest = 0;       ///< largest finite number
    BySign threshold;               ///< magnitudes below it give 0
    std::uint32_t zero_sign = 0;    ///< mask of the bits of x's word kept when the result is 0
    std::uint32_t parity_or = 0;    ///< (|x| | parity_or) ^ parity_xor has the code's last bit at bit k
    std::uint32_t parity_xor = 0;
    std::uint32_t tie_even = 0;        ///< 1: ties look at that bit
    std::uint32_t tie_away = 0;        ///< 1: ties go away from zero
    std::uint32_t nearest = 0;         ///< all ones when rounding to nearest
    BySign directed;                   ///< all ones when every inexact x is rounded away from zero
    BySign overflow;                   ///< result of a finite overflow
    BySign infinite;                   ///< result of an infinite x
    std::uint32_t negative_clear = 0;  ///< a negative result is (r & ~negative_clear) | negative_set
    std::uint32_t negative_set = 0;
    std::uint32_t random_mask = 0;       ///< stochastic: the kept bits of a random word, its top ones
    std::int32_t random_limit = 0;       ///< magnitudes below it: one draw between 0 and `smallest`
    float random_scale = 0;              ///< 2^24 / smallest
    std::int32_t subnormal_limit = 0;    ///< magnitudes below it are on the grid of `smallest`; 0 in float's own range
    float subnormal_scale = 0;           ///< 2^16 / smallest
    std::uint32_t normal_shift = 0;      ///< from the top of a word to below bit 23 - M
    std::uint32_t no_negative_zero = 0;  ///< 1: the format has no -0
    std::uint32_t normal_mask = 0;       ///< 2^(23 - M) - 1
};

/// Whether the loops for general formats handle this one. They handle fp32's own exponent range, where subnormals are a
/// fixed grid, and ranges far from float's subnormals. E8M0 has loops of its own; others (k8p1ue) go element by
/// element.
[[nodiscard]] constexpr bool has_quantise_kernel(const FloatFormat& format) noexcept {
    const bool float_range = format.min_exponent() == -126 && format.mantissa_bits > 0;
    return format.has_zero() && (float_range || format.quantum_exponent() >= -90);
}

[[nodiscard]] constexpr QuantiseConstants quantise_constants(const FloatFormat& format,
                                                             const QuantiseOptions& options) noexcept {
    QuantiseConstants c;
    const bool float_range = format.min_exponent() == -126;
    const int normal = format.min_exponent() + 127;
    c.normal_field = normal << 23;
    c.lowest_field = float_range ? c.normal_field : (normal - format.mantissa_bits) << 23;
    c.power_base = static_cast<std::uint32_t>(23 - format.mantissa_bits + 127 + normal) << 23;
    c.smallest = std::bit_cast<std::int32_t>(format.min_subnormal());
    c.largest = std::bit_cast<std::int32_t>(format.max());
    c.zero_sign = format.has_negative_zero() ? sign_word : 0;
    c.no_negative_zero = format.has_negative_zero() ? 0 : 1;
    if (format.mantissa_bits > 0) c.parity_or = 1u << 23;
    else c.parity_xor = format.bias % 2 == 0 ? 1u << 23 : 0;  // bit 23 of |x| is the parity of exponent + 127

    const auto smallest = static_cast<std::uint32_t>(c.smallest);
    const auto half =
        static_cast<std::uint32_t>(float_range ? c.smallest / 2 : c.smallest - (1 << 23));  // half of smallest
    const auto largest = static_cast<std::uint32_t>(c.largest);
    const bool saturate = options.overflow == Overflow::saturate;
    const std::uint32_t unbounded = saturate ? largest : format.has_infinity() ? infinity_word : quiet_nan_word;
    c.negative_clear = format.is_signed() ? 0u : ~0u;
    c.negative_set = format.is_signed() ? sign_word : saturate ? 0u : quiet_nan_word;
    const BySign bounded(largest, format.is_signed() ? largest | sign_word : c.negative_set);
    const bool signed_result = format.is_signed() && unbounded != quiet_nan_word;
    c.infinite = BySign(unbounded, format.is_signed() ? unbounded | (signed_result ? sign_word : 0u) : c.negative_set);
    c.overflow = c.infinite;
    c.threshold = BySign(smallest, smallest);
    switch (options.rounding) {
        case Rounding::nearest_even:
            c.nearest = ~0u;
            c.tie_even = 1;
            c.threshold = BySign(half + 1, half + 1);
            break;
        case Rounding::nearest_away:
            c.nearest = ~0u;
            c.tie_away = 1;
            c.threshold = half > 0 ? BySign(half, half) : BySign(1, 1);
            break;
        case Rounding::toward_zero:
            c.overflow = bounded;
            break;
        case Rounding::up:
            c.directed = BySign(~0u, 0u);
            c.threshold = BySign(1, smallest);
            c.overflow = BySign(c.infinite.at(0u), bounded.at(~0u));
            break;
        case Rounding::down:
            c.directed = BySign(0u, ~0u);
            c.threshold = BySign(smallest, 1);
            c.overflow = BySign(bounded.at(0u), c.infinite.at(~0u));
            break;
        case Rounding::stochastic:
            c.random_mask = ((1u << options.bits) - 1u) << (32 - options.bits);
            c.normal_shift = static_cast<std::uint32_t>(9 + format.mantissa_bits);
            c.normal_mask = (1u << (23 - format.mantissa_bits)) - 1u;
            if (float_range || !has_quantise_kernel(format)) break;
            c.random_limit = c.smallest;
            c.random_scale = compose<float>(false, 1, 24 - format.quantum_exponent());
            c.subnormal_limit = c.normal_field;
            c.subnormal_scale = compose<float>(false, 1, 16 - format.quantum_exponent());
            break;
    }
    return c;
}

UNITSCALE_INLINE constexpr std::int32_t clamp_word(std::int32_t x, std::int32_t low, std::int32_t high) noexcept {
    x = x < low ? low : x;
    return x > high ? high : x;
}

/// All ones if a < b, else 0; and a choice by such a mask. Arithmetic, because branches would not vectorise.
UNITSCALE_INLINE constexpr std::uint32_t mask_less(std::int32_t a, std::int32_t b) noexcept {
    return 0u - static_cast<std::uint32_t>(a < b);
}
UNITSCALE_INLINE constexpr std::uint32_t select_word(std::uint32_t mask, std::uint32_t yes, std::uint32_t no) noexcept {
    return (yes & mask) | (no & ~mask);
}

/// 2^k as a float's word, for magnitude a; and 2^k - 1.
UNITSCALE_INLINE constexpr std::int32_t last_bit_power(const QuantiseConstants& c, std::int32_t a) noexcept {
    return static_cast<std::int32_t>(
        c.power_base - static_cast<std::uint32_t>(clamp_word(a & infinity_magnitude, c.lowest_field, c.normal_field)));
}
UNITSCALE_INLINE constexpr std::uint32_t power_to_mask(std::int32_t power) noexcept {
    return static_cast<std::uint32_t>(static_cast<std::int32_t>(std::bit_cast<float>(power))) - 1u;
}

/// The result from the rounded magnitude r: handles overflow and infinite input, sign, zero, NaN. `sign` and `zero` are
/// masks.
UNITSCALE_INLINE constexpr std::uint32_t finish_word(const QuantiseConstants& c, std::uint32_t word, std::int32_t a,
                                                     std::uint32_t sign, std::uint32_t r, std::uint32_t zero) noexcept {
    const std::uint32_t above = select_word(mask_less(a, infinity_magnitude), c.overflow.at(sign), c.infinite.at(sign));
    const std::uint32_t ordinary = (r & ~(sign & c.negative_clear)) | (sign & c.negative_set);
    std::uint32_t result = select_word(mask_less(c.largest, static_cast<std::int32_t>(r)), above, ordinary);
    result = select_word(zero, word & c.zero_sign, result);
    return select_word(mask_less(infinity_magnitude, a), quiet_nan_word, result);
}

// A kernel names its constants, the element types its loop reads and writes, and the pieces of the random stream it
// reads (NoPiece: none). It also says whether its loop is compiled for every instruction set or, because it is rare,
// for the build's flags only. `apply` takes an element's word, and its piece at the top of a word.

/// Piece type of kernels that read no random stream.
struct NoPiece {};

/// The properties of a kernel that its loop needs. `memory`: its elements are in memory, not only in the first-level
/// cache.
template <class KernelConstants, class From, class To, class RandomPiece = NoPiece, bool every_isa = true,
          bool memory = true>
struct LoopKernel {
    using Constants = KernelConstants;
    using In = From;
    using Out = To;
    using Piece = RandomPiece;
    static constexpr bool dispatched = every_isa;
    static constexpr bool reads_memory = memory;
};
/// A kernel of quantise: from float to float.
template <class RandomPiece, bool every_isa = true>
using QuantiseKernel = LoopKernel<QuantiseConstants, float, float, RandomPiece, every_isa>;

/// Nearest even, saturating, signed, with mantissa bits: the common case in the fewest instructions.
struct NearestSaturating : QuantiseKernel<NoPiece> {
    UNITSCALE_INLINE static constexpr std::uint32_t apply(const QuantiseConstants& c, std::uint32_t word,
                                                          std::uint32_t) noexcept {
        const auto a = static_cast<std::int32_t>(word & ~sign_word);
        const auto bits = static_cast<std::uint32_t>(a);
        const std::uint32_t mask = power_to_mask(last_bit_power(c, a));
        const std::uint32_t odd = ((bits | 0x800000u) & (mask + 1u)) != 0 ? 1u : 0u;
        auto r = static_cast<std::int32_t>((bits + ((mask + odd) >> 1)) & ~mask);
        r = clamp_word(r, c.smallest, c.largest);
        const auto signed_r = static_cast<std::uint32_t>(r) | (word & sign_word);
        const std::uint32_t result =
            a < static_cast<std::int32_t>(c.threshold.positive) ? word & c.zero_sign : signed_r;
        return a > infinity_magnitude ? quiet_nan_word : result;
    }
};

/// Every rounding but stochastic, every overflow, every format of the loops.
struct Deterministic : QuantiseKernel<NoPiece> {
    UNITSCALE_INLINE static constexpr std::uint32_t apply(const QuantiseConstants& c, std::uint32_t word,
                                                          std::uint32_t) noexcept {
        const auto a = static_cast<std::int32_t>(word & ~sign_word);
        const auto bits = static_cast<std::uint32_t>(a);
        const std::uint32_t sign = mask_less(static_cast<std::int32_t>(word), 0);
        const std::uint32_t mask = power_to_mask(last_bit_power(c, a));
        const std::uint32_t even =
            0u - static_cast<std::uint32_t>((((bits | c.parity_or) ^ c.parity_xor) & (mask + 1u)) == 0);
        const std::uint32_t tie = (c.tie_even & ~even) | c.tie_away;
        const std::uint32_t addend = (((mask + tie) >> 1) & c.nearest) | (mask & c.directed.at(sign));
        auto r = static_cast<std::int32_t>((bits + addend) & ~mask);
        r = r < c.smallest ? c.smallest : r;
        const std::uint32_t zero = mask_less(a, static_cast<std::int32_t>(c.threshold.at(sign)));
        return finish_word(c, word, a, sign, static_cast<std::uint32_t>(r), zero);
    }
};

/// Stochastic rounding, every overflow, every format of the loops. The top `bits` bits of a piece are added just below
/// the last kept bit.
struct Stochastic : QuantiseKernel<std::uint32_t> {
    UNITSCALE_INLINE static constexpr std::uint32_t apply(const QuantiseConstants& c, std::uint32_t word,
                                                          std::uint32_t random) noexcept {
        const auto a = static_cast<std::int32_t>(word & ~sign_word);
        const auto bits = static_cast<std::uint32_t>(a);
        const auto number = static_cast<std::int32_t>((random & c.random_mask) >> 8);
        const std::int32_t power = last_bit_power(c, a);
        const std::uint32_t mask = power_to_mask(power);
        // floor(number 2^(k - 24)): 2^k's word less 24 exponent steps; the product is exact, its conversion truncates
        const auto addend = static_cast<std::uint32_t>(
            static_cast<std::int32_t>(static_cast<float>(number) * std::bit_cast<float>(power - (24 << 23))));
        const std::uint32_t grid = (bits + addend) & ~mask;
        const std::uint32_t is_below = mask_less(a, c.random_limit);
        const auto fraction = static_cast<std::int32_t>(std::bit_cast<float>(bits & is_below) * c.random_scale);
        const std::uint32_t below = ~mask_less(fraction + number, 1 << 24) & static_cast<std::uint32_t>(c.smallest);
        const std::uint32_t r = select_word(is_below, below, grid);
        const std::uint32_t sign = mask_less(static_cast<std::int32_t>(word), 0);
        return finish_word(c, word, a, sign, r, 0u - static_cast<std::uint32_t>(r == 0));
    }
};

/// Stochastic rounding in the common case: saturating, signed, up to 16 random bits. Normal numbers share one k. A
/// smaller x is a fixed-point number of steps of `smallest` with 16 bits after the point; bits below these do not
/// matter. The random bits are added to it.
struct StochasticSaturating : QuantiseKernel<std::uint16_t> {
    static constexpr int max_mantissa_bits = 14;  ///< keeps the fixed-point number below 2^31
    UNITSCALE_INLINE static constexpr std::uint32_t apply(const QuantiseConstants& c, std::uint32_t word,
                                                          std::uint32_t random) noexcept {
        const auto a = static_cast<std::int32_t>(word & ~sign_word);
        const std::uint32_t number = random & c.random_mask;
        const auto bits = static_cast<std::uint32_t>(a);
        const std::uint32_t normal = (bits + (number >> c.normal_shift)) & ~c.normal_mask;
        const std::uint32_t is_small = mask_less(a, c.subnormal_limit);
        const auto small_value = std::bit_cast<float>(bits & is_small);
        const auto steps = static_cast<std::uint32_t>(static_cast<std::int32_t>(small_value * c.subnormal_scale));
        const auto whole_steps = static_cast<std::int32_t>((steps + (number >> 16)) >> 16);
        const auto small =
            std::bit_cast<std::uint32_t>(static_cast<float>(whole_steps) * std::bit_cast<float>(c.smallest));
        auto r = static_cast<std::int32_t>(small | (normal & ~is_small));  // small is 0 for normal numbers
        r = r > c.largest ? c.largest : r;
        // The top bit stays clear for a nonzero result or a format with -0: only there the sign is kept.
        const std::uint32_t without_sign = static_cast<std::uint32_t>(r) - c.no_negative_zero;
        const std::uint32_t result = static_cast<std::uint32_t>(r) | (word & ~without_sign & sign_word);
        return select_word(mask_less(infinity_magnitude, a), quiet_nan_word, result);
    }
};

/// E8M0, every rounding: powers of two from 2^-127, half of float's smallest normal number. One binade up there are no
/// subnormals: doubled, subnormal words are normal words, and other words have one exponent step more. Magnitudes below
/// 2^-127 become 2^-127. Negative numbers become NaN. Roundings other than stochastic take zeros as pieces.
struct PowersOfTwo : QuantiseKernel<std::uint32_t, false> {
    UNITSCALE_INLINE static constexpr std::uint32_t apply(const QuantiseConstants& c, std::uint32_t word,
                                                          std::uint32_t random) noexcept {
        constexpr std::int32_t step = 1 << 23;
        constexpr std::uint32_t mask = step - 1;
        const auto a = static_cast<std::int32_t>(word & ~sign_word);
        const auto bits = static_cast<std::uint32_t>(a);
        std::uint32_t doubled = select_word(mask_less(a, step), bits << 1, bits + step);
        doubled = select_word(mask_less(a, step / 2), step, doubled);
        const std::uint32_t odd = (~doubled >> 23) & 1u;  // the code is one less than the exponent field here
        const std::uint32_t nearest = (mask >> 1) + ((c.tie_even & odd) | c.tie_away);
        // Just below bit 23; 0 unless stochastic, when the other addends are 0.
        const std::uint32_t drawn = (random & c.random_mask) >> 9;
        const std::uint32_t addend = (nearest & c.nearest) | (mask & c.directed.positive) | drawn;
        const std::uint32_t r = (doubled + addend) & ~mask;
        const std::uint32_t value = select_word(0u - static_cast<std::uint32_t>(r == step), step / 2, r - step);
        const std::uint32_t above =
            select_word(mask_less(a, infinity_magnitude), c.overflow.positive, c.infinite.positive);
        const std::uint32_t result = select_word(mask_less(c.largest, static_cast<std::int32_t>(value)), above, value);
        const std::uint32_t negative = mask_less(static_cast<std::int32_t>(word), 0) & mask_less(0, a);
        return select_word(mask_less(infinity_magnitude, a) | negative, quiet_nan_word, result);
    }
};

}  // namespace unitscale
