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

/// A double in float, to odd: where it is not exact, the neighbour whose last bit is 1. Rounding that to a type of up to 22
/// significant bits gives what rounding the double itself gives, since a tie of the narrow type is never made or missed.
[[nodiscard]] inline float round_to_odd(double value) noexcept {
    const auto nearest = static_cast<float>(value);
    const auto back = static_cast<double>(nearest);
    const auto bits = std::bit_cast<std::uint32_t>(nearest);
    if (back == value || value != value || bits % 2 == 1) return nearest;
    const bool away = (back < 0.0 ? -back : back) > (value < 0.0 ? -value : value);
    return std::bit_cast<float>(away ? bits - 1 : bits + 1);
}

/// An integer in double, to odd: above 2^53, what is cut off leaves a mark in the last bit.
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

/// An integer type's value nearest to a number, whose fraction is cut off: clamped to the type's range, 0 for NaN.
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

/// The format whose codes a type's objects are.
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
concept CodedElement = requires {
    FormatOf<T>::format;
};
template <CodedElement T>
inline constexpr FloatFormat format_of = FormatOf<T>::format;

/// Those that Eigen converts from and to float in few instructions.
template <class T>
concept HalfElement = std::same_as<T, Half> || std::same_as<T, BFloat16>;

/// One element in another element type, rounded once, to nearest even. Out of range, double, float, Half and BFloat16 become
/// infinite; Minifloat saturates, and NaN to one without NaN is an Error. -0 stays -0 where there is one. To an integer: the
/// fraction is cut off, what is out of range is clamped, NaN is 0; to bool: whether it is not 0.
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

/// How casts round where nothing else is asked for.
template <class To>
inline constexpr QuantiseOptions cast_options{.overflow = HalfElement<To> ? Overflow::to_infinity : Overflow::saturate};

/// An element in double: exact, but for integers above 2^53, which are rounded to odd.
template <class T>
[[nodiscard]] constexpr double widest(T x) noexcept {
    if constexpr (std::integral<T>) return integer_to_odd(x);
    else if constexpr (CodedElement<T>) return static_cast<double>(static_cast<float>(x));
    else return static_cast<double>(x);
}

/// The codes of elements, where the formats' loops know their type.
template <class T>
concept PackedElement = CodedElement<std::remove_const_t<T>> && sizeof(T) <= 2;
template <PackedElement T>
[[nodiscard]] auto codes_of(std::span<T> elements) noexcept {
    using Word = std::conditional_t<sizeof(T) == 1, std::uint8_t, std::uint16_t>;
    using Code = std::conditional_t<std::is_const_v<T>, const Word, Word>;
    return std::span<Code>(reinterpret_cast<Code*>(elements.data()), elements.size());
}

/// Elements as floats, a block at a time: calls use(begin, floats) for the blocks in[begin], in[begin + 1], ... What float does
/// not hold is rounded to odd.
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

/// out[i] = in[i] rounded to the format whose codes `out` holds. Through float, by the formats' own loops, where that rounds
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
        check(format.has_nan() || !is_nan(x), "cast: ", name(format), " has no NaN: element ", i,
              " of the input is NaN");
        const std::uint32_t code = encode(format, x, options, i);
        using Word = std::conditional_t<sizeof(To) == 1, std::uint8_t,
                                        std::conditional_t<sizeof(To) == 2, std::uint16_t, std::uint32_t>>;
        out[i] = std::bit_cast<To>(static_cast<Word>(code));
    }
}

/// out[i] = in[i] in another element type: `element_cast` unless options are given, which are those of `quantise` and concern
/// results of type Half, BFloat16 and Minifloat. From and to Minifloat by the formats' own loops.
/// Errors: sizes differ; options that do not fit the format; NaN to a format without NaN (elements before it may be written).
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

/// A copy of the tensor in another element type, its scale kept: the data is rounded once, as `cast_elements` says. With
/// options, for instance stochastically: cast<BFloat16>(x, {.rounding = Rounding::stochastic, .key = key}).
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
