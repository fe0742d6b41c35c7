// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/formats/code.hpp>
#include <unitscale/formats/minifloat.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <type_traits>
#include <utility>

namespace unitscale {

/// A double rounded to float, to odd: if the double is not exact in float, the neighbour with last bit 1. Rounding the
/// result to a type of up to 22 significant bits equals rounding the double itself. A tie of the narrow type is never
/// made or missed.
[[nodiscard]] inline float round_to_odd(double value) noexcept {
    const auto nearest = static_cast<float>(value);
    const auto back = static_cast<double>(nearest);
    const auto bits = std::bit_cast<std::uint32_t>(nearest);
    if (back == value || value != value || bits % 2 == 1) return nearest;
    const bool away = (back < 0.0 ? -back : back) > (value < 0.0 ? -value : value);
    return std::bit_cast<float>(away ? bits - 1 : bits + 1);
}

/// An integer rounded to double, to odd: above 2^53, nonzero bits that are cut off set the last bit.
template <std::integral Integer>
[[nodiscard]] constexpr double integer_to_odd(Integer value) noexcept {
    if constexpr (std::numeric_limits<Integer>::digits > 53) {
        const bool negative = value < 0;
        auto magnitude = static_cast<std::uint64_t>(value);
        if (negative) magnitude = 0 - magnitude;
        if (magnitude >> 53 != 0)
            magnitude = ((magnitude >> 11) | static_cast<std::uint64_t>((magnitude & 0x7FF) != 0)) << 11;
        return negative ? -static_cast<double>(magnitude) : static_cast<double>(magnitude);
    } else {
        return static_cast<double>(value);
    }
}

/// A number as an integer type: the fraction is cut off, the rest is clamped to the type's range, NaN is 0.
template <std::integral To, class From>
[[nodiscard]] constexpr To clamped_cast(From value) noexcept {
    using Limits = std::numeric_limits<To>;
    if constexpr (std::integral<From>) {
        if (std::cmp_less(value, Limits::min())) return Limits::min();
        return std::cmp_greater(value, Limits::max()) ? Limits::max() : static_cast<To>(value);
    } else {
        constexpr From end = static_cast<From>(std::uint64_t{1} << (Limits::digits - 1)) * 2;  // above max(): exact
        if (value >= end) return Limits::max();
        if (!(value > static_cast<From>(Limits::min()) - 1)) return value != value ? To{0} : Limits::min();
        return static_cast<To>(value);
    }
}

/// The format that T stores: an object of T is one of its codes.
template <class T>
struct FormatOf {};
template <>
struct FormatOf<Half> {
    static constexpr FloatFormat format = fp16;
};
template <>
struct FormatOf<BFloat16> {
    static constexpr FloatFormat format = bf16;
};
template <FloatFormat F>
struct FormatOf<Minifloat<F>> {
    static constexpr FloatFormat format = F;
};

/// Element types without arithmetic of their own: Half, BFloat16 and Minifloat.
template <class T>
concept CodedElement = requires { FormatOf<T>::format; };
template <CodedElement T>
inline constexpr FloatFormat format_of = FormatOf<T>::format;

/// One element in another element type, rounded once, to nearest even. Out of range, double, float, Half and BFloat16
/// become infinite, and Minifloat saturates. -0 stays -0 where there is one. To an integer: the fraction is cut off,
/// numbers out of range are clamped, NaN is 0. To bool: whether the element is not 0.
/// Error: NaN to a Minifloat without NaN.
template <class To, class From>
[[nodiscard]] constexpr To element_cast(From value) {
    if constexpr (std::is_same_v<From, To>) return value;
    else if constexpr (std::is_same_v<From, bool>) return static_cast<To>(value ? 1.0f : 0.0f);
    else if constexpr (CodedElement<From>) return element_cast<To>(static_cast<float>(value));
    else if constexpr (std::is_same_v<To, bool>) return value != From{0};
    else if constexpr (std::integral<To>) return clamped_cast<To>(value);
    else if constexpr (std::is_arithmetic_v<To>) return static_cast<To>(value);
    else if constexpr (std::integral<From>) return element_cast<To>(integer_to_odd(value));
    else if constexpr (std::is_same_v<From, double> && HalfElement<To>) return static_cast<To>(round_to_odd(value));
    else return static_cast<To>(value);
}

/// Rounding options of casts by default.
template <class To>
inline constexpr QuantiseOptions cast_options{.overflow = HalfElement<To> ? Overflow::to_infinity : Overflow::saturate};

/// An element in double: exact, except that integers above 2^53 are rounded to odd.
template <class T>
[[nodiscard]] constexpr double widest(T x) noexcept {
    if constexpr (std::integral<T>) return integer_to_odd(x);
    else if constexpr (CodedElement<T>) return static_cast<double>(static_cast<float>(x));
    else return static_cast<double>(x);
}

/// Whether a number is 0, infinite or NaN, and keeps its value under every positive scale (`Tensor::any_scale`). Only
/// bits are compared, so that -ffast-math changes nothing.
template <class T>
[[nodiscard]] constexpr bool is_scale_free(T x) noexcept {
    const auto magnitude = std::bit_cast<std::uint64_t>(widest(x)) << 1 >> 1;
    return magnitude == 0 || magnitude >= std::bit_cast<std::uint64_t>(std::numeric_limits<double>::infinity());
}

/// The codes of elements, for element types that the formats' loops know.
template <class T>
concept PackedElement = CodedElement<std::remove_const_t<T>> && sizeof(T) <= 2;
template <PackedElement T>
[[nodiscard]] auto codes_of(std::span<T> elements) noexcept {
    using Word = std::conditional_t<sizeof(T) == 1, std::uint8_t, std::uint16_t>;
    using Code = std::conditional_t<std::is_const_v<T>, const Word, Word>;
    return std::span<Code>(reinterpret_cast<Code*>(elements.data()), elements.size());
}

/// Elements as floats, a block at a time: calls use(begin, floats) for the blocks in[begin], in[begin + 1], ...
/// Elements that are not exact in float are rounded to odd.
template <class From, class Use>
void for_float_blocks(std::span<const From> in, Use use) {
    if constexpr (std::is_same_v<From, float>) {
        use(std::size_t{0}, in);
    } else {
        std::array<float, 1024> values;
        for (std::size_t begin = 0; begin < in.size(); begin += values.size()) {
            const auto part = in.subspan(begin, std::min(values.size(), in.size() - begin));
            const auto floats = std::span(values).first(part.size());
            if constexpr (PackedElement<From> && !HalfElement<From>) {
                decode(format_of<From>, codes_of(part), floats);
            } else {
                for (std::size_t i = 0; i < part.size(); ++i) {
                    if constexpr (CodedElement<From>) floats[i] = static_cast<float>(part[i]);
                    else floats[i] = round_to_odd(widest(part[i]));
                }
            }
            use(begin, std::span<const float>(floats));
        }
    }
}

/// out[i] = in[i] rounded to the format of `out`'s codes. The formats' own loops on floats are used where this rounds
/// once.
template <CodedElement To, class From>
void cast_to_format(std::span<const From> in, std::span<To> out, const QuantiseOptions& options) {
    constexpr FloatFormat format = format_of<To>;
    check_options("cast", format, options);
    if constexpr (PackedElement<To>) {
        constexpr bool fits_float = CodedElement<From> || std::numeric_limits<From>::digits <= 24;
        if (fits_float || (format.quantum_exponent() >= -147 && options.rounding != Rounding::stochastic)) {
            for_float_blocks(in, [=](std::size_t begin, std::span<const float> values) {
                check_no_nan("cast", format, values, begin);
                QuantiseOptions block_options = options;
                block_options.first_index += begin;
                encode(format, values, codes_of(out.subspan(begin, values.size())), block_options);
            });
            return;
        }
    }
    for (std::size_t i = 0; i < in.size(); ++i) {
        const double x = widest(in[i]);
        if (!format.has_nan() && is_nan(x))
            fail("cast: ", name(format), " has no NaN: element ", i, " of the input is NaN");
        const std::uint32_t code = encode(format, x, options, i);
        using Word = std::conditional_t<sizeof(To) == 1, std::uint8_t,
                                        std::conditional_t<sizeof(To) == 2, std::uint16_t, std::uint32_t>>;
        out[i] = std::bit_cast<To>(static_cast<Word>(code));
    }
}

/// out[i] = in[i] in another element type, by `element_cast` unless options are given. The options are the options of
/// `quantise`; they concern results of type Half, BFloat16 and Minifloat. Casts from and to Minifloat use the formats'
/// own loops.
/// Errors: sizes differ; options that do not fit the format; NaN to a format without NaN (elements before it may be
/// written).
template <class To, class From>
void cast_elements(std::span<const From> in, std::span<To> out, const QuantiseOptions& options = cast_options<To>) {
    check_spans("cast", in, out.size());
    const auto from_float = [=](std::size_t begin, std::span<const float> values) {
        for (std::size_t i = 0; i < values.size(); ++i) out[begin + i] = element_cast<To>(values[i]);
    };
    if constexpr (std::is_same_v<To, From>) {
        std::copy(in.begin(), in.end(), out.begin());
    } else if constexpr (CodedElement<To>) {
        const bool common = options.rounding == Rounding::nearest_even && options.overflow == Overflow::to_infinity;
        if (HalfElement<To> && common) for_float_blocks(in, from_float);
        else cast_to_format(in, out, options);
    } else if constexpr (PackedElement<From> && !HalfElement<From>) {
        if constexpr (std::is_same_v<To, float>) decode(format_of<From>, codes_of(in), out);
        else for_float_blocks(in, from_float);
    } else {
        for (std::size_t i = 0; i < in.size(); ++i) out[i] = element_cast<To>(in[i]);
    }
}

/// A copy of the tensor in another element type. The scale is kept and the data is rounded once, as by `cast_elements`.
/// With options, for instance stochastically: cast<BFloat16>(x, {.rounding = Rounding::stochastic, .key = key}).
/// Test: tests/tensor/cast_test.cpp
template <class To, class From>
[[nodiscard]] Tensor<To> cast(const Tensor<From>& tensor, const QuantiseOptions& options,
                              const std::shared_ptr<MemoryPool>& pool = nullptr) {
    Tensor<To> result(tensor.shape(), pool);
    cast_elements(tensor.span(), result.span(), options);
    result.set_scale(tensor.scale());
    result.set_any_scale(tensor.any_scale());
    return result;
}
template <class To, class From>
[[nodiscard]] Tensor<To> cast(const Tensor<From>& tensor, const std::shared_ptr<MemoryPool>& pool = nullptr) {
    return cast<To>(tensor, cast_options<To>, pool);
}

}  // namespace unitscale
