// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>

#include <array>
#include <bit>
#include <charconv>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>

namespace unitscale {

/// Codes of a format that are not ordinary numbers. "Top" is the largest magnitude code.
enum class Specials {
    ieee,        ///< top exponent: infinity (mantissa 0) and NaN; -0
    top_nan,     ///< top of both signs is NaN; -0; no infinity (OCP E4M3)
    none,        ///< every code is a finite number; -0 (OCP FP6, FP4)
    single_nan,  ///< one NaN: the code of -0, or the top when unsigned; no infinity, no -0 (fnuz, P3109 finite)
    single_nan_infinity,  ///< as single_nan, but the largest magnitude code left is infinity (P3109 extended)
    scale,                ///< top is NaN; every other code is a normal number: no zero, no subnormals (OCP E8M0)
};

/// `significand` 2^`exponent` as a Float, made by its bits: right in every floating-point mode. The value must be
/// representable.
template <class Float>
[[nodiscard]] constexpr Float compose(bool negative, std::uint32_t significand, int exponent) noexcept {
    using Bits = std::conditional_t<sizeof(Float) == 8, std::uint64_t, std::uint32_t>;
    constexpr int stored = std::numeric_limits<Float>::digits - 1;
    constexpr int lowest = std::numeric_limits<Float>::min_exponent - 1;
    Bits bits = 0;
    if (significand != 0) {
        const int top = static_cast<int>(std::bit_width(significand)) - 1;
        if (exponent + top < lowest) {  // subnormal
            const int shift = exponent - (lowest - stored);
            bits = shift >= 0 ? Bits{significand} << shift : Bits{significand} >> -shift;
        } else {
            const int shift = stored - top;
            const Bits aligned = shift >= 0 ? Bits{significand} << shift : Bits{significand} >> -shift;
            bits = (static_cast<Bits>(exponent + top - lowest + 1) << stored) + aligned - (Bits{1} << stored);
        }
    }
    return std::bit_cast<Float>(bits | (static_cast<Bits>(negative) << (8 * sizeof(Bits) - 1)));
}

/// A small floating-point format. With s sign bit, e exponent field, m mantissa field, M mantissa bits:
///   value = (-1)^s 2^(e - bias) (1 + m 2^-M)        e > 0
///   value = (-1)^s 2^(1 - bias) (m 2^-M)            e = 0: zero and the subnormals
/// except for the codes that `specials` names. Every value must be exact in float. A structural type: it serves both as
/// a template argument and as a run-time argument. A new format takes one line:
///   constexpr FloatFormat e3m3 = make_format({.exponent_bits = 3, .mantissa_bits = 3, .bias = 3});
/// Test: tests/formats/format_test.cpp
struct FloatFormat {
    int exponent_bits = 0;
    int mantissa_bits = 0;
    int bias = 0;
    Specials specials = Specials::ieee;
    int sign_bits = 1;

    friend constexpr bool operator==(const FloatFormat&, const FloatFormat&) = default;

    [[nodiscard]] constexpr bool is_signed() const noexcept { return sign_bits != 0; }
    [[nodiscard]] constexpr int magnitude_bits() const noexcept { return exponent_bits + mantissa_bits; }
    [[nodiscard]] constexpr int code_bits() const noexcept { return sign_bits + magnitude_bits(); }
    [[nodiscard]] constexpr std::uint64_t code_count() const noexcept { return std::uint64_t{1} << code_bits(); }
    /// Significant bits of a normal number, the leading one included.
    [[nodiscard]] constexpr int precision() const noexcept { return mantissa_bits + 1; }

    [[nodiscard]] constexpr bool has_zero() const noexcept { return specials != Specials::scale; }
    [[nodiscard]] constexpr bool has_subnormals() const noexcept { return has_zero() && mantissa_bits > 0; }
    [[nodiscard]] constexpr bool has_infinity() const noexcept {
        return specials == Specials::ieee || specials == Specials::single_nan_infinity;
    }
    [[nodiscard]] constexpr bool has_nan() const noexcept { return specials != Specials::none; }
    [[nodiscard]] constexpr bool has_negative_zero() const noexcept {
        return is_signed() &&
               (specials == Specials::ieee || specials == Specials::top_nan || specials == Specials::none);
    }

    /// The code bit of the sign; 0 when unsigned.
    [[nodiscard]] constexpr std::uint32_t sign_mask() const noexcept {
        return is_signed() ? std::uint32_t{1} << magnitude_bits() : 0;
    }
    /// The largest magnitude code, special or not.
    [[nodiscard]] constexpr std::uint32_t top_code() const noexcept {
        return static_cast<std::uint32_t>((std::uint64_t{1} << magnitude_bits()) - 1);
    }
    /// The code of the largest finite number.
    [[nodiscard]] constexpr std::uint32_t max_code() const noexcept {
        const auto unsigned_nan = static_cast<std::uint32_t>(!is_signed());
        switch (specials) {
            case Specials::ieee:
                return top_code() - (std::uint32_t{1} << mantissa_bits);
            case Specials::none:
                return top_code();
            case Specials::single_nan:
                return top_code() - unsigned_nan;
            case Specials::single_nan_infinity:
                return top_code() - unsigned_nan - 1;
            case Specials::top_nan:
            case Specials::scale:
                break;
        }
        return top_code() - 1;
    }
    /// The code of +infinity; only where `has_infinity()`.
    [[nodiscard]] constexpr std::uint32_t infinity_code() const noexcept { return max_code() + 1; }
    /// The code that NaN is written as (ieee: the positive quiet one); only where `has_nan()`.
    [[nodiscard]] constexpr std::uint32_t nan_code() const noexcept {
        if (specials == Specials::ieee) return infinity_code() + (std::uint32_t{1} << (mantissa_bits - 1));
        const bool at_negative_zero = specials == Specials::single_nan || specials == Specials::single_nan_infinity;
        return at_negative_zero && is_signed() ? sign_mask() : top_code();
    }

    /// Exponents (floor of log2) of the smallest normal number, the largest number, and the smallest positive number.
    [[nodiscard]] constexpr int min_exponent() const noexcept { return has_zero() ? 1 - bias : -bias; }
    [[nodiscard]] constexpr int max_exponent() const noexcept {
        return static_cast<int>(max_code() >> mantissa_bits) - bias;
    }
    [[nodiscard]] constexpr int quantum_exponent() const noexcept {
        return has_zero() ? min_exponent() - mantissa_bits : min_exponent();
    }

    /// The magnitude that a magnitude code stands for, in any format of this layout. The caller handles special codes.
    template <class Float>
    [[nodiscard]] constexpr Float magnitude(std::uint32_t code, bool negative = false) const noexcept {
        const std::uint32_t field = code >> mantissa_bits;
        const std::uint32_t mantissa = code - (field << mantissa_bits);
        const bool normal = field > 0 || !has_zero();
        const int exponent = (normal ? static_cast<int>(field) : 1) - bias - mantissa_bits;
        return compose<Float>(negative, mantissa + (normal ? std::uint32_t{1} << mantissa_bits : 0), exponent);
    }

    /// The largest finite number, the lowest one, the smallest positive normal and the smallest positive number.
    [[nodiscard]] constexpr float max() const noexcept { return magnitude<float>(max_code()); }
    [[nodiscard]] constexpr float lowest() const noexcept {
        return is_signed() ? magnitude<float>(max_code(), true) : magnitude<float>(0);
    }
    [[nodiscard]] constexpr float min_normal() const noexcept { return compose<float>(false, 1, min_exponent()); }
    [[nodiscard]] constexpr float min_subnormal() const noexcept {
        return compose<float>(false, 1, quantum_exponent());
    }
    /// The step from 1 to the next number.
    [[nodiscard]] constexpr float epsilon() const noexcept { return compose<float>(false, 1, -mantissa_bits); }
};

/// Calls `report` with a sentence about the first fault of a descriptor, if it has one. If this happens in a constant
/// expression, the compiler prints the call, and thus the sentence.
template <class Report>
constexpr void inspect_format(const FloatFormat& format, Report&& report) {
    const auto [exponent_bits, mantissa_bits, bias, specials, sign_bits] = format;
    if (sign_bits != 0 && sign_bits != 1) return report("sign_bits must be 0 or 1");
    if (exponent_bits < 1 || exponent_bits > 8)
        return report("exponent_bits must be 1 to 8, so that values are exact in float");
    if (mantissa_bits < 0 || mantissa_bits > 23)
        return report("mantissa_bits must be 0 to 23, so that values are exact in float");
    if (specials == Specials::ieee && mantissa_bits == 0)
        return report("ieee specials need a mantissa bit to tell NaN from infinity");
    if (specials == Specials::ieee && exponent_bits == 1)
        return report("ieee specials take the top exponent: with one exponent bit no normal number is left");
    if (specials == Specials::scale && sign_bits != 0) return report("a scale format is unsigned: set sign_bits to 0");
    if (specials == Specials::none && sign_bits == 0)
        return report("an unsigned format needs a NaN for negative input: use single_nan");
    if (exponent_bits + mantissa_bits < 2) return report("at least two magnitude bits are needed");
    if (bias > 300 || bias < -300) return report("bias is out of range: values must be exact in float");
    if (format.max_exponent() > 127) return report("the largest number exceeds float's: raise bias");
    if (format.quantum_exponent() < -149)
        return report("the smallest number is below float's 2^-149: lower bias or mantissa_bits");
}

/// The first fault of a descriptor, as a sentence; empty if there is none.
[[nodiscard]] constexpr std::string_view problem(const FloatFormat& format) noexcept {
    std::string_view found;
    inspect_format(format, [&found](const char* what) { found = what; });
    return found;
}

/// The descriptor, checked. In a constant expression a nonsensical descriptor does not compile, and the compiler's
/// message holds the reason. At run time it is an Error.
/// Test: tests/formats/format_test.cpp, tests/structure/nonsensical_format.cpp
[[nodiscard]] constexpr FloatFormat make_format(const FloatFormat& format) {
    inspect_format(format, [](const char* what) { fail("format: ", what); });
    return format;
}

inline constexpr FloatFormat fp32 = make_format({8, 23, 127});
inline constexpr FloatFormat tf32 = make_format({8, 10, 127});
inline constexpr FloatFormat bf16 = make_format({8, 7, 127});
inline constexpr FloatFormat fp16 = make_format({5, 10, 15});
inline constexpr FloatFormat e5m2 = make_format({5, 2, 15});
inline constexpr FloatFormat e4m3 = make_format({4, 3, 7, Specials::top_nan});
inline constexpr FloatFormat e5m2fnuz = make_format({5, 2, 16, Specials::single_nan});
inline constexpr FloatFormat e4m3fnuz = make_format({4, 3, 8, Specials::single_nan});
inline constexpr FloatFormat e4m3b11fnuz = make_format({4, 3, 11, Specials::single_nan});
inline constexpr FloatFormat e4m3_ieee = make_format({4, 3, 7});
inline constexpr FloatFormat e3m4 = make_format({3, 4, 3});
inline constexpr FloatFormat e3m2 = make_format({3, 2, 3, Specials::none});
inline constexpr FloatFormat e2m3 = make_format({2, 3, 1, Specials::none});
inline constexpr FloatFormat e2m1 = make_format({2, 1, 1, Specials::none});
inline constexpr FloatFormat e8m0 = make_format({8, 0, 127, Specials::scale, 0});

enum class Signedness { signed_format, unsigned_format };
enum class Domain { extended, finite };  ///< with infinities, or without

/// The format of IEEE P3109 (interim report) of `width` bits and `precision` significant bits: binary<K>p<P>{s,u}{e,f}.
/// Error: no exponent bit is left.
[[nodiscard]] constexpr FloatFormat p3109(int width, int precision, Signedness signedness, Domain domain) {
    const int sign_bits = signedness == Signedness::signed_format ? 1 : 0;
    const int exponent_bits = width - precision + 1 - sign_bits;
    if (width < 3 || width > 15 || precision < 1 || exponent_bits < 1)
        fail("p3109: width ", width, " and precision ", precision,
             " leave no exponent; expected width 3 to 15, precision 1 to ", width - sign_bits);
    return make_format({exponent_bits, precision - 1, 1 << (exponent_bits - 1),
                        domain == Domain::finite ? Specials::single_nan : Specials::single_nan_infinity, sign_bits});
}

struct NamedFormat {
    std::string_view name;
    FloatFormat format;
};

/// The formats that have a name of their own, by falling width.
inline constexpr std::array<NamedFormat, 15> named_formats{{{"fp32", fp32},
                                                            {"tf32", tf32},
                                                            {"bf16", bf16},
                                                            {"fp16", fp16},
                                                            {"e5m2", e5m2},
                                                            {"e4m3", e4m3},
                                                            {"e5m2fnuz", e5m2fnuz},
                                                            {"e4m3fnuz", e4m3fnuz},
                                                            {"e4m3b11fnuz", e4m3b11fnuz},
                                                            {"e4m3_ieee", e4m3_ieee},
                                                            {"e3m4", e3m4},
                                                            {"e3m2", e3m2},
                                                            {"e2m3", e2m3},
                                                            {"e2m1", e2m1},
                                                            {"e8m0", e8m0}}};

/// The format's name: its own, else p3109_k<width>p<precision><s|u><e|f> for a P3109 format, else its layout, such as
/// e3m3b4.
[[nodiscard, gnu::cold]] inline std::string name(const FloatFormat& format) {
    for (const auto& known : named_formats)
        if (known.format == format) return std::string(known.name);
    const bool finite = format.specials == Specials::single_nan;
    if ((finite || format.specials == Specials::single_nan_infinity) && format.bias == 1 << (format.exponent_bits - 1))
        return concatenate("p3109_k", format.code_bits(), 'p', format.precision(), format.is_signed() ? 's' : 'u',
                           finite ? 'f' : 'e');
    constexpr std::array<std::string_view, 6> suffix{"", "fn", "f", "fnuz", "nuz", "scale"};
    return concatenate(format.is_signed() ? "" : "u", 'e', format.exponent_bits, 'm', format.mantissa_bits, 'b',
                       format.bias, suffix[static_cast<std::size_t>(format.specials)]);
}

/// The format with the given name: one of `named_formats`, or a P3109 name. Error: an unknown name; the message lists
/// the known ones.
[[nodiscard]] inline FloatFormat find_format(std::string_view wanted) {
    for (const auto& known : named_formats)
        if (known.name == wanted) return known.format;
    if (constexpr std::string_view prefix = "p3109_k"; wanted.starts_with(prefix)) {
        int width = 0;
        int precision = 0;
        const char* end = wanted.data() + wanted.size();
        const auto first = std::from_chars(wanted.data() + prefix.size(), end, width);
        if (first.ec == std::errc{} && first.ptr != end && *first.ptr == 'p') {
            const auto second = std::from_chars(first.ptr + 1, end, precision);
            if (const std::string_view tail(second.ptr, static_cast<std::size_t>(end - second.ptr));
                second.ec == std::errc{} && (tail == "se" || tail == "sf" || tail == "ue" || tail == "uf"))
                return p3109(width, precision, tail[0] == 's' ? Signedness::signed_format : Signedness::unsigned_format,
                             tail[1] == 'e' ? Domain::extended : Domain::finite);
        }
    }
    std::string list;
    for (const auto& known : named_formats) list.append(known.name).append(", ");
    fail("format: unknown name '", wanted, "'; expected ", list, "or p3109_k<width>p<precision><s|u><e|f>");
}

}  // namespace unitscale
