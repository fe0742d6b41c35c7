// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/formats/code.hpp>
#include <unitscale/formats/format.hpp>
#include <unitscale/formats/rounding.hpp>

#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <ostream>
#include <type_traits>

namespace unitscale {

/// A number of format F stored as its code, in the smallest unsigned integer that holds it: Minifloat<e4m3> is one
/// byte.
/// From a float: explicit, rounded to nearest even, saturating. From a double or an integer: likewise, in one rounding.
/// To a float: implicit, because it is exact; arithmetic is therefore float arithmetic. Comparisons work on codes, so
/// fast-math does not change them: NaN is unordered, -0 equals +0.
/// Test: tests/formats/minifloat_test.cpp
template <FloatFormat F>
class Minifloat {
    static_assert(problem(F).empty(), "Minifloat: the format makes no sense; make_format(F) says why");

public:
    using Storage = std::conditional_t<F.code_bits() <= 8, std::uint8_t,
                                       std::conditional_t<F.code_bits() <= 16, std::uint16_t, std::uint32_t>>;
    static constexpr FloatFormat format = F;

    constexpr Minifloat() = default;
    template <class Number>
    requires std::is_arithmetic_v<Number>
    explicit constexpr Minifloat(Number x) : bits_(rounded_bits(x)) {}

    [[nodiscard]] static constexpr Minifloat from_bits(Storage bits) noexcept {
        Minifloat result;
        result.bits_ = bits;
        return result;
    }
    [[nodiscard]] constexpr Storage bits() const noexcept { return bits_; }

    constexpr operator float() const { return decode(F, bits_); }

    [[nodiscard]] constexpr bool is_nan() const noexcept {
        return F.has_nan() && (magnitude() > F.max_code() + (F.has_infinity() ? 1u : 0u) ||
                               (F.is_signed() && !F.has_negative_zero() && bits_ == F.sign_mask()));
    }
    /// -x. A number without a negative keeps its code (zero where there is no -0, NaN, unsigned formats).
    [[nodiscard]] constexpr Minifloat operator-() const noexcept {
        const bool fixed = !F.has_negative_zero() && magnitude() == 0;
        return from_bits(fixed ? bits_ : static_cast<Storage>(bits_ ^ F.sign_mask()));
    }

    friend constexpr bool operator==(Minifloat a, Minifloat b) noexcept { return (a <=> b) == 0; }
    friend constexpr std::partial_ordering operator<=>(Minifloat a, Minifloat b) noexcept {
        if (a.is_nan() || b.is_nan()) return std::partial_ordering::unordered;
        return a.rank() <=> b.rank();
    }

    /// An integer that orders the numbers, equal for both zeros.
    [[nodiscard]] constexpr std::int64_t rank() const noexcept {
        const std::int64_t rank = magnitude();
        return (bits_ & F.sign_mask()) != 0 ? -rank : rank;
    }

private:
    [[nodiscard]] constexpr std::uint32_t magnitude() const noexcept { return bits_ & F.top_code(); }

    template <class Number>
    static constexpr Storage rounded_bits(Number x) {
        if constexpr (std::is_same_v<Number, float>) return static_cast<Storage>(encode(F, x));
        else return static_cast<Storage>(encode(F, static_cast<double>(x)));
    }

    Storage bits_ = 0;
};

template <FloatFormat F>
std::ostream& operator<<(std::ostream& out, Minifloat<F> x) {
    return out << static_cast<float>(x);
}

}  // namespace unitscale

template <unitscale::FloatFormat F>
struct std::hash<unitscale::Minifloat<F>> {
    [[nodiscard]] std::size_t operator()(unitscale::Minifloat<F> x) const noexcept {
        return std::hash<std::int64_t>{}(x.rank());
    }
};

template <unitscale::FloatFormat F>
class std::numeric_limits<unitscale::Minifloat<F>> {
    using Number = unitscale::Minifloat<F>;
    using Storage = typename Number::Storage;

public:
    static constexpr bool is_specialized = true;
    static constexpr bool is_signed = F.is_signed();
    static constexpr bool is_integer = false;
    static constexpr bool is_exact = false;
    static constexpr bool is_bounded = true;
    static constexpr bool is_modulo = false;
    static constexpr bool is_iec559 = false;
    static constexpr bool has_infinity = F.has_infinity();
    static constexpr bool has_quiet_NaN = F.has_nan();
    static constexpr bool has_signaling_NaN = false;
    static constexpr std::float_denorm_style has_denorm = F.has_subnormals() ? std::denorm_present : std::denorm_absent;
    static constexpr bool has_denorm_loss = false;
    static constexpr std::float_round_style round_style = std::round_to_nearest;
    static constexpr bool traps = false;
    static constexpr bool tinyness_before = false;
    static constexpr int radix = 2;
    static constexpr int digits = F.precision();
    static constexpr int digits10 = F.mantissa_bits * 30103 / 100000;
    static constexpr int max_digits10 = F.precision() * 30103 / 100000 + 2;
    static constexpr int min_exponent = F.min_exponent() + 1;
    static constexpr int max_exponent = F.max_exponent() + 1;
    static constexpr int min_exponent10 = min_exponent > 0 ? 0 : min_exponent * 30103 / 100000;
    static constexpr int max_exponent10 = F.max_exponent() < 0 ? 0 : F.max_exponent() * 30103 / 100000;

    static constexpr Number min() noexcept { return Number::from_bits(smallest_normal); }
    static constexpr Number max() noexcept { return Number::from_bits(static_cast<Storage>(F.max_code())); }
    static constexpr Number lowest() noexcept { return is_signed ? -max() : Number::from_bits(0); }
    /// The smallest positive number: min() where there are no subnormals.
    static constexpr Number denorm_min() noexcept {
        return Number::from_bits(F.has_subnormals() ? 1 : smallest_normal);
    }
    /// The step above 1, rounded to the format where it is not one of the format's numbers.
    static constexpr Number epsilon() { return Number(F.epsilon()); }
    static constexpr Number round_error() { return Number(0.5f); }
    static constexpr Number infinity() noexcept {
        return Number::from_bits(has_infinity ? static_cast<Storage>(F.infinity_code()) : 0);
    }
    static constexpr Number quiet_NaN() noexcept {
        return Number::from_bits(has_quiet_NaN ? static_cast<Storage>(F.nan_code()) : 0);
    }
    static constexpr Number signaling_NaN() noexcept { return quiet_NaN(); }

private:
    static constexpr Storage smallest_normal = F.has_zero() ? static_cast<Storage>(1u << F.mantissa_bits) : 0;
};
