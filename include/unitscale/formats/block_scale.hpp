// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/formats/block_format.hpp>
#include <unitscale/formats/code.hpp>
#include <unitscale/formats/float_arithmetic.hpp>
#include <unitscale/formats/format.hpp>
#include <unitscale/formats/quantise_kernels.hpp>
#include <unitscale/formats/rounding.hpp>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <type_traits>

// The scale of one block, from the block's amax b and, with two levels, the tensor's amax A. Every operation is rounded
// once, to nearest even: fl(.). max is the largest element, P the largest element times the largest scale (2688 for
// nvfp4). Element v = fl(x q), or fl(x / f), is then rounded to the element format and saturated.
namespace unitscale {

inline constexpr float largest_float = std::numeric_limits<float>::max();

/// A float that elements are multiplied by, or divided by.
struct BlockFactor {
    float value = 1;
    bool divides = false;

    friend constexpr bool operator==(const BlockFactor&, const BlockFactor&) = default;
};

/// fl(x value) or fl(x / value), in every floating-point mode.
[[nodiscard]] constexpr float scaled_by(float x, const BlockFactor& factor) noexcept {
    return factor.divides ? rounded_quotient(x, factor.value) : rounded_product(x, factor.value);
}

/// Division by `value`. Powers of two with a representable inverse are multiplied by it: the quotient is equal.
[[nodiscard]] constexpr BlockFactor divided_by(float value) noexcept {
    const std::uint32_t word = magnitude_word(value);
    const bool power = (word & 0x7FFFFFu) == 0 && word >= 0x00800000u && word < 0x7F800000u;
    return power ? BlockFactor{rounded_quotient(1.0f, value), false} : BlockFactor{value, true};
}

/// The numbers of a format and a tensor from which all scales of the tensor are made. Two levels:
///   transformer_engine  G = min(fl(P / A), FLT_MAX), 1 for A zero or infinite; inverse = fl(1 / G); number = A
///   torchao             number = T = fl(A / P); inverse = fl(1 / T)
struct TensorNumbers {
    float number = 1;       ///< kept with the codes, for decoding
    float forward = 1;      ///< G
    float inverse = 1;      ///< fl(1 / G) or fl(1 / T)
    float max = 1;          ///< the largest element
    float inverse_max = 1;  ///< fl(1 / max)
    float by_max = 1;       ///< fl(G fl(1 / max))
    float inverse_p = 1;    ///< fl(1 / P)
    bool apart = false;     ///< decoded numbers are without `tensor_factor`
};

/// The tensor's numbers, from its amax A, which matters to two levels only.
/// Test: tests/formats/block_scale_test.cpp
[[nodiscard]] constexpr TensorNumbers tensor_numbers(const BlockFormat& format, float amax = 1) noexcept {
    TensorNumbers tensor;
    tensor.max = format.element.max();
    tensor.inverse_max = rounded_quotient(1.0f, tensor.max);
    if (!format.tensor_scale) return tensor;
    const float p = format.tensor_max();
    tensor.inverse_p = rounded_quotient(1.0f, p);
    if (format.rule == BlockRule::torchao) {
        tensor.number = rounded_quotient(amax, p);
        tensor.inverse = rounded_quotient(1.0f, tensor.number);
        return tensor;
    }
    tensor.number = amax;
    tensor.forward = rounded_quotient(p, amax);
    if (is_infinite(tensor.forward)) tensor.forward = largest_float;
    if (is_any_zero(tensor.forward) || is_any_zero(amax)) tensor.forward = 1;
    tensor.inverse = rounded_quotient(1.0f, tensor.forward);
    tensor.by_max = rounded_product(tensor.forward, tensor.inverse_max);
    return tensor;
}

/// The tensor's numbers as far as decoding needs them, from the number kept with the codes.
[[nodiscard]] constexpr TensorNumbers decode_numbers(const BlockFormat& format, float number) noexcept {
    TensorNumbers tensor;
    tensor.number = number;
    if (format.tensor_scale) tensor.inverse_p = rounded_quotient(1.0f, format.tensor_max());
    return tensor;
}

/// The factor of a tensor of two levels: what a product of decoded numbers may be multiplied by in place of each of
/// them. transformer_engine fl(A fl(1/P)), torchao T.
[[nodiscard]] constexpr float tensor_factor(const BlockFormat& format, const TensorNumbers& tensor) noexcept {
    return format.rule == BlockRule::torchao ? tensor.number : rounded_product(tensor.number, tensor.inverse_p);
}

/// The factor that decodes a block's elements, from the block's scale s and the tensor's number. NaN for a NaN block.
///   codes, one level; `apart`            value s
///   two levels: transformer_engine       value fl(fl(s A) fl(1/P)), see TensorOverflow
///               torchao                  value fl(T s)
///   float: torchao_float8                value / s
///          others                        value s
/// Test: tests/formats/block_scale_test.cpp
[[nodiscard]] constexpr BlockFactor decode_factor(const BlockFormat& format, float scale,
                                                  const TensorNumbers& tensor = {}) noexcept {
    if (format.form != ScaleForm::code && format.rule == BlockRule::torchao_float8 && !is_nan(scale))
        return divided_by(scale);
    if (!format.tensor_scale || tensor.apart) return {scale, false};
    const float product = rounded_product(scale, tensor.number);
    if (format.rule == BlockRule::torchao) return {product, false};
    const bool reorder =
        format.tensor_overflow == TensorOverflow::reordered && is_infinite(product) && !is_infinite(tensor.number);
    return {reorder ? rounded_product(scale, rounded_product(tensor.number, tensor.inverse_p))
                    : rounded_product(product, tensor.inverse_p),
            false};
}

/// The scale of one block.
struct BlockScale {
    std::uint32_t code = 0;  ///< form `code` only
    float value = 1;         ///< the scale kept with the elements; NaN marks a NaN block
    BlockFactor encode;      ///< x to v
    BlockFactor decode;      ///< element to result

    [[nodiscard]] constexpr bool nan() const noexcept { return is_nan(value); }
};

/// The exponent of a power-of-two scale, before the clamp, from a finite amax. Formulas: `ExponentRounding`.
[[nodiscard]] constexpr int scale_exponent(const BlockFormat& format, float amax, float inverse_max) noexcept {
    constexpr std::uint32_t mantissa = 0x7FFFFFu;
    const auto field = [](std::uint32_t word) { return static_cast<int>(word >> 23); };
    const std::uint32_t word = magnitude_word(amax);
    const int floor = field(word) - 127 - format.element.max_exponent();
    switch (format.exponent) {
        case ExponentRounding::ceil:
            return floor + ((word & mantissa) != 0 ? 1 : 0);
        case ExponentRounding::even: {
            const int shift = 22 - format.element.mantissa_bits;
            const std::uint32_t rounded = word + (std::uint32_t{1} << shift);
            const bool next = rounded < infinity_word || format.even_overflow == EvenOverflow::next;
            return next ? floor + field(rounded) - field(word) : floor;
        }
        case ExponentRounding::rceil: {
            const std::uint32_t d = magnitude_word(rounded_product(amax, inverse_max));
            const std::uint32_t exact = field(d) > 0 ? 0 : mantissa / 2 + 1;  // 2^-127 has the exponent field 0
            return field(d) - 127 + ((d & mantissa) > exact ? 1 : 0);
        }
        case ExponentRounding::floor:
            break;
    }
    return floor;
}

[[nodiscard]] constexpr BlockScale nan_block_scale(const BlockFormat& format) noexcept {
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    return {format.form == ScaleForm::code ? format.scale.nan_code() : 0, nan, {0, false}, {nan, false}};
}

/// A power of two as code: scale 2^E, q = 2^-E. E is clamped to the scale format and to at least -127. A zero block
/// gets the least scale.
[[nodiscard]] constexpr int clamped_exponent(const BlockFormat& format, int exponent) noexcept {
    const int low = format.scale.min_exponent() < -127 ? -127 : format.scale.min_exponent();
    const int high = format.scale.max_exponent();
    return exponent < low ? low : exponent > high ? high : exponent;
}
[[nodiscard]] constexpr BlockScale exponent_block_scale(const BlockFormat& format, float amax,
                                                        float inverse_max) noexcept {
    const std::uint32_t word = magnitude_word(amax);
    int exponent = 1023;  // the largest
    if (is_infinite(amax)) {
        if (format.non_finite == NonFiniteAmax::nan_block) return nan_block_scale(format);
    } else {
        const bool to_infinity = format.exponent == ExponentRounding::even &&
                                 word + (std::uint32_t{1} << (22 - format.element.mantissa_bits)) >= infinity_word;
        if (to_infinity && format.even_overflow == EvenOverflow::nan_block) return nan_block_scale(format);
        exponent = is_any_zero(amax) ? -1023 : scale_exponent(format, amax, inverse_max);
    }
    exponent = clamped_exponent(format, exponent);
    const bool flushed = format.flush_subnormal_blocks && word < 0x00800000u;
    const auto code = static_cast<std::uint32_t>(exponent + format.scale.bias);
    const float value = compose<float>(false, 1, exponent);
    return {code, value, {flushed ? 0.0f : compose<float>(false, 1, -exponent), false}, {value, false}};
}

/// The number that a scale with a mantissa is rounded from: see `mantissa_block_scale`.
[[nodiscard]] constexpr float wanted_scale(const BlockFormat& format, float amax, const TensorNumbers& tensor,
                                           bool to_four = false) noexcept {
    const bool torchao = format.rule == BlockRule::torchao;
    const bool product = format.tensor_scale && !torchao && format.four_over_six == FourOverSix::off;
    float wanted = product ? rounded_product(amax, tensor.by_max) : rounded_quotient(amax, tensor.max);
    if (torchao) {
        if (format.tensor_scale && !is_any_zero(wanted)) wanted = rounded_quotient(wanted, tensor.number);
        if (magnitude_word(wanted) < magnitude_word(format.scale.min_normal())) wanted = format.scale.min_normal();
    } else if (format.tensor_scale && format.four_over_six != FourOverSix::off) {
        wanted = rounded_product(wanted, tensor.forward);
        if (to_four) wanted = rounded_product(1.5f, wanted);
    }
    return wanted;
}

/// The scale of a code with a mantissa: see `mantissa_block_scale`.
[[nodiscard]] constexpr BlockScale scale_of_code(const BlockFormat& format, std::uint64_t code,
                                                 const TensorNumbers& tensor, bool zero_block) noexcept {
    const bool torchao = format.rule == BlockRule::torchao;
    const float value = format.scale.magnitude<float>(static_cast<std::uint32_t>(code));
    float q = 1;
    if (!torchao || !format.tensor_scale) {
        const float divisor = format.tensor_scale ? rounded_product(value, tensor.inverse) : value;
        q = smaller_of(rounded_quotient(1.0f, divisor), largest_float);
    } else if (!is_any_zero(tensor.number) || !zero_block) {
        q = rounded_quotient(tensor.inverse, value);
    }
    return {static_cast<std::uint32_t>(code), value, {q, false}, decode_factor(format, value, tensor)};
}

/// A scale with a mantissa as code. s is RNE into the scale format, saturated, of
///   one level    fl(b / max); then q = min(fl(1 / s), FLT_MAX)
///   two levels   transformer_engine: fl(b fl(G fl(1/max))); q = min(fl(1 / fl(s / G)), FLT_MAX), with fl(s fl(1/G))
///                torchao: fl(fl(b / max) / T); q = fl(fl(1 / T) / s)
/// torchao keeps s at or above the scale's least normal number, in either. Its formulas make NaN of 0/0 where T is 0,
/// as in a zero tensor. Here s is then the least, and the tensor decodes to zeros.
/// Four Over Six: s is of base = fl(fl(b / 6) G), or of fl(1.5 base) with `to_four`, which maps b to 4.
[[nodiscard]] constexpr BlockScale mantissa_block_scale(const BlockFormat& format, float amax,
                                                        const TensorNumbers& tensor, bool to_four) noexcept {
    if (!format.tensor_scale && is_infinite(amax) && format.non_finite == NonFiniteAmax::nan_block)
        return nan_block_scale(format);
    const float wanted = wanted_scale(format, amax, tensor, to_four);
    if (is_nan(wanted) || is_nan(tensor.number)) return nan_block_scale(format);
    const Rounded s = round_to(format.scale, wanted, Rounding::nearest_even, Overflow::saturate, 0, 0);
    return scale_of_code(format, s.code, tensor, is_any_zero(amax));
}

/// A scale in float.
///   transformer_engine   S = fl(max / amax), FLT_MAX where infinite; v = fl(x S); scale fl(1 / S)
///   torchao              as transformer_engine
///   torchao_float8       as transformer_engine, but scale S, by which elements are divided
///   deepgemm             f = fl(amax / max); v = fl(x fl(1 / f)); scale f
///   deepseek             as deepgemm, but v = fl(x / f)
/// amax is at least `amax_floor`; amax = 0 gives scale 1. Powers of two: S is rounded down; f is rounded up, with an
/// exponent field from 1 to 254. f = 0 by underflow gives q = FLT_MAX, and the block decodes to zeros.
[[nodiscard]] constexpr BlockScale float_block_scale(const BlockFormat& format, float amax) noexcept {
    const bool powers = format.form == ScaleForm::power_of_two;
    const bool inverted = format.rule == BlockRule::deepgemm || format.rule == BlockRule::deepseek;
    const bool torchao = format.rule == BlockRule::torchao || format.rule == BlockRule::torchao_float8;
    const float max = format.element.max();
    const double floor = format.amax_floor.number();
    bool unit = false;
    if (is_nan(amax) || is_infinite(amax)) {
        unit = format.non_finite == NonFiniteAmax::unit_scale;
        if (!unit && (is_nan(amax) || format.non_finite == NonFiniteAmax::nan_block)) return nan_block_scale(format);
        amax = largest_float;
    }
    const bool below = std::bit_cast<std::uint64_t>(widened(amax)) < format.amax_floor.word;
    if (below && !torchao) amax = narrowed(floor);  // a float in those libraries, a double in torchao
    unit = unit || (is_any_zero(amax) && !below);

    if (inverted) {
        float f = unit ? 1.0f : rounded_quotient(amax, max);
        if (powers && !unit) f = magnitude_word(f) < 0x00800000u ? 0x1p-126f : power_of_two_above(f);
        const bool divides = format.rule == BlockRule::deepseek && !is_any_zero(f);
        const float q = smaller_of(rounded_quotient(1.0f, f), largest_float);
        return {0, f, divides ? divided_by(f) : BlockFactor{q, false}, decode_factor(format, f)};
    }
    float s = unit ? 1.0f : below && torchao ? narrowed(widened(max) / floor) : rounded_quotient(max, amax);
    s = smaller_of(s, largest_float);
    if (powers) s = power_of_two_below(s);
    const float kept = format.rule == BlockRule::torchao_float8 ? s : rounded_quotient(1.0f, s);
    return {0, kept, {s, false}, decode_factor(format, kept)};
}

/// The scale of a block, from its amax (NaN if an element is NaN) and `tensor_numbers(format, ...)`. The format must be
/// a valid one. `to_four`: Four Over Six's second choice.
/// Test: tests/formats/block_scale_test.cpp
[[nodiscard]] constexpr BlockScale block_scale(const BlockFormat& format, float amax, const TensorNumbers& tensor,
                                               bool to_four = false) noexcept {
    if (format.form != ScaleForm::code) return float_block_scale(format, amax);
    if (is_nan(amax)) return nan_block_scale(format);
    return format.has_exponent_codes() ? exponent_block_scale(format, amax, tensor.inverse_max)
                                       : mantissa_block_scale(format, amax, tensor, to_four);
}

/// Products and quotients of spans, with one float for all elements. A plain loop is right where neither operands nor
/// results that matter are subnormal; elsewhere elements are computed by integers.
class BlockScaler {
public:
    /// v from x. Subnormal x and v are negligible when they lie 2^-25 of a step below the smallest element.
    static void encode(const FloatFormat& element, const BlockFactor& factor, const float* x, float* v,
                       std::size_t count) noexcept {
        run(factor, encodes_plainly(element, factor), x, v, count);
    }
    /// The result from an element's value: no operand is subnormal, and no result.
    static void decode(const FloatFormat& element, const BlockFactor& factor, const float* value, float* result,
                       std::size_t count) noexcept {
        run(factor, decodes_plainly(element, factor), value, result, count);
    }
    /// Whether the processor's product or quotient is right, in every floating-point mode.
    [[nodiscard]] static bool encodes_plainly(const FloatFormat& element, const BlockFactor& factor) noexcept {
        const int field = exponent_field(factor);
        const int high = factor.divides ? 127 - field : field - 126;
        return field > 0 && field < 255 && element.quantum_exponent() >= -90 &&
               high - 126 <= element.quantum_exponent() - 26;
    }
    [[nodiscard]] static bool decodes_plainly(const FloatFormat& element, const BlockFactor& factor) noexcept {
        const int field = exponent_field(factor);
        const int low = factor.divides ? 126 - field : field - 127;
        return field > 0 && field < 255 && element.quantum_exponent() >= -126 &&
               low + element.quantum_exponent() >= -126;
    }

private:
    [[nodiscard]] static int exponent_field(const BlockFactor& factor) noexcept {
        return static_cast<int>(magnitude_word(factor.value) >> 23);
    }
    static constexpr std::size_t lanes = 16;  // a fixed count, so that loops are vectorised
    /// out = in factor, for equal or separate ranges.
    template <std::size_t count, class Factor>
    UNITSCALE_INLINE static void multiply(const float* in, float* out, Factor factor) noexcept {
#if defined(__clang__)
#pragma clang loop vectorize(assume_safety)
#elif defined(__GNUC__)
#pragma GCC ivdep
#endif
        for (std::size_t l = 0; l < count; ++l) out[l] = static_cast<float>(static_cast<Factor>(in[l]) * factor);
    }
    /// A quotient is a product with the inverse in double: see `rounded_quotient`. It is used where 1/value is normal.
    static void run(const BlockFactor& factor, bool plain, const float* in, float* out, std::size_t count) noexcept {
        const float f = factor.value;
        const double inverse = factor.divides ? 1.0 / widened(f) : 0;
        const std::size_t even = plain ? count - count % lanes : 0;
        for (std::size_t i = 0; i < even; i += lanes)
            if (factor.divides) multiply<lanes>(in + i, out + i, inverse);
            else multiply<lanes>(in + i, out + i, f);
        for (std::size_t i = even; i < count; ++i)
            if (!plain) out[i] = scaled_by(in[i], factor);
            else if (factor.divides) multiply<1>(in + i, out + i, inverse);
            else multiply<1>(in + i, out + i, f);
    }
};

/// A row-major matrix of `lines` lines (rows) with `length` elements, `stride` elements from one line to the next.
template <class T>
struct MatrixLines {
    T* data = nullptr;
    std::size_t lines = 0, length = 0, stride = 0;

    operator MatrixLines<const T>() const noexcept requires(!std::is_const_v<T>) {
        return {data, lines, length, stride};
    }
};

/// Error: lines overlap.
template <class T>
void check_lines(std::string_view operation, std::string_view argument, const MatrixLines<T>& x) {
    check(x.stride >= x.length || x.lines < 2, operation, ": ", argument, " [", x.lines, ',', x.length, "] has stride ",
          x.stride, "; expected at least ", x.length);
}

}  // namespace unitscale
