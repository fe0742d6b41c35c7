// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/formats/format.hpp>
#include <unitscale/formats/quantise.hpp>
#include <unitscale/formats/rounding.hpp>

#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

// The options of limited sums: sums of products that are kept in fewer bits than float. products/limited_sums.hpp
// computes matrix products with them.
namespace unitscale {

/// The order and the arithmetic of a limited sum.
enum class Summation {
    sequential,  ///< one product after the other, each sum rounded
    aligned      ///< groups of products, aligned to their largest exponent and cut off, as in tensor cores
};

/// How the sums of a matrix product are formed. The sum of a[p] b[p], with p rising:
///   total = 0
///   for each run of `run_length` products (0: one run of all):
///       acc = 0; for each step of the run: acc = step(acc)
///       total = Q(totals, fl(total + acc))        nearest even; with run_length 0: total = acc
/// Q(format, x) rounds to a format, fl(x) to float, to nearest even. A step takes one product or one group:
///   sequential, fused   acc = Q(sums, fl(a b + acc))                            one rounding in fl
///   sequential          acc = Q(sums, fl(acc + Q(products, fl(a b))))
///   aligned             acc = Q(sums, sum of t(acc), t(a[p] b[p]), ...)         `group` exact products
/// In an aligned step, t(x) cuts x toward zero to a multiple of 2^(E - fraction_bits). E is the largest exponent of the
/// terms, and at least -126. The exponent of a product is the sum of its factors' exponents, so its significand lies in
/// [1, 4). A subnormal factor has the least exponent of its format. A last group that is too short gets zeros.
///
/// Q passes NaN and infinity, also with `saturate`. A finite number beyond the largest one becomes infinity, or the
/// largest number (`saturate`, `toward_zero`). Without `subnormals`, magnitudes below the least normal number become
/// this number if they exceed three quarters of it, else 0; under toward_zero they become 0. A zero result is +0, and a
/// NaN is the quiet one.
/// An aligned step with a NaN or an infinity gives the sum of the terms in IEEE arithmetic. Aligned sums beyond float's
/// range become infinite.
/// A structural type. References: MMA-Sim, arXiv:2511.10909 (aligned sums); mptorch's qgemm (sequential sums);
/// DeepSeek-V3, arXiv:2412.19437, section 3.3.2 (promotion).
/// Test: tests/formats/accumulate_test.cpp, tests/products/limited_sums_test.cpp
struct Accumulate {
    Summation summation = Summation::sequential;
    FloatFormat sums = fp32;                     ///< the accumulator
    bool fused = true;                           ///< sequential: products are not rounded before they are added
    FloatFormat products = fp32;                 ///< sequential, not fused
    Rounding rounding = Rounding::nearest_even;  ///< of sums and products: nearest_even or toward_zero
    Overflow overflow = Overflow::to_infinity;
    bool subnormals = true;
    int group = 32;          ///< aligned: products of a step
    int fraction_bits = 13;  ///< aligned: bits below the point at the largest exponent
    int run_length = 0;      ///< products between promotions; 0: no promotion
    FloatFormat totals = fp32;

    friend constexpr bool operator==(const Accumulate&, const Accumulate&) = default;
};

/// The reason why sums cannot be kept in a format; null if they can. The last reason is a limit of the kernels.
[[nodiscard]] constexpr const char* sum_format_problem(const FloatFormat& format) noexcept {
    const char* found = nullptr;
    inspect_format(format, [&found](const char* sentence) { found = sentence; });
    if (found != nullptr) return found;
    if (!format.is_signed() || format.specials != Specials::ieee)
        return "must be signed with ieee specials, because sums can be infinity or NaN";
    if (format.min_exponent() != -126 &&
        (format.mantissa_bits > 21 || format.quantum_exponent() < -100 || format.max_exponent() > 100))
        return "must have the least exponent -126, or at most 21 mantissa bits and exponents from -100 to 100";
    return nullptr;
}

/// Calls `report(field, sentence)` about the first fault of the options, if they have one.
template <class Report>
constexpr void inspect_accumulate(const Accumulate& options, Report&& report) {
    const bool aligned = options.summation == Summation::aligned;
    const FloatFormat &sums = options.sums, &products = options.products, &totals = options.totals;
    if (const char* const fault = sum_format_problem(sums)) return report("sums", fault);
    if (!aligned && !options.fused) {
        if (const char* const fault = sum_format_problem(products)) return report("products", fault);
        if (sums.max_exponent() < products.max_exponent())
            return report("sums", "cannot hold its products; expected a largest exponent of at least theirs");
    }
    if (options.rounding != Rounding::nearest_even && options.rounding != Rounding::toward_zero)
        return report("rounding", "of sums must be nearest_even or toward_zero");
    if (options.run_length < 0) return report("run_length", "must be a number of products, or 0 for no promotion");
    if (aligned) {
        if (sums.min_exponent() != -126 || sums.max_exponent() != 127)
            return report("sums", "of an aligned sum must have float's exponents: 8 exponent bits, bias 127");
        if (options.group < 1 || options.group > 64) return report("group", "must be 1 to 64 products");
        if (options.fraction_bits < 1 || options.fraction_bits > 28)
            return report("fraction_bits", "must be 1 to 28, so that cut terms are exact");
        if (options.run_length % options.group != 0) return report("run_length", "must be a multiple of group");
        if (options.rounding != Rounding::toward_zero)
            return report("rounding", "of an aligned sum must be toward_zero");
        if (options.overflow != Overflow::to_infinity)
            return report("overflow", "of an aligned sum must be to_infinity");
        if (!options.subnormals) return report("subnormals", "of an aligned sum must be kept");
    }
    if (options.run_length > 0) {
        if (const char* const fault = sum_format_problem(totals)) return report("totals", fault);
        if (totals.mantissa_bits < sums.mantissa_bits || totals.max_exponent() < sums.max_exponent() ||
            totals.min_exponent() > sums.min_exponent())
            return report("totals", "cannot hold every number of sums; expected a format at least as wide");
    }
}

/// The value of a field as a message shows it.
[[nodiscard, gnu::cold]] inline std::string field_text(const Accumulate& options, std::string_view field) {
    if (field == "sums") return name(options.sums);
    if (field == "products") return name(options.products);
    if (field == "totals") return name(options.totals);
    if (field == "rounding") return std::string(name(options.rounding));
    if (field == "overflow") return "saturate";
    if (field == "subnormals") return "false";
    return concatenate(field == "group"        ? options.group
                       : field == "run_length" ? options.run_length
                                               : options.fraction_bits);
}

/// Error unless the options make sense: `<operation>: accumulate.<field> (<value>) <sentence>`.
constexpr void check_accumulate(std::string_view operation, const Accumulate& options) {
    inspect_accumulate(options, [&](std::string_view field, std::string_view sentence) {
        fail(operation, ": accumulate.", field, " (", field_text(options, field), ") ", sentence);
    });
}

/// The options, checked, as by `make_format`.
[[nodiscard]] constexpr Accumulate make_accumulate(const Accumulate& options) {
    check_accumulate("make_accumulate", options);
    return options;
}

/// Error if a product of two numbers of these formats can overflow the sums. Options that saturate accept that. Recipes
/// do not ask where a bias is measured: its margin then decides what the operands reach.
[[gnu::cold]] inline void check_products(std::string_view operation, const Accumulate& options, const FloatFormat& a,
                                         const FloatFormat& b) {
    const double largest = static_cast<double>(a.max()) * static_cast<double>(b.max());
    check(options.overflow == Overflow::saturate || largest <= static_cast<double>(options.sums.max()), operation,
          ": accumulate.sums (", name(options.sums), ") cannot hold its products: ", name(a), " times ", name(b),
          " reaches ", largest, "; expected a largest number of at least that, Overflow::saturate or a measured bias");
}

inline constexpr FloatFormat e8m13 = make_format({8, 13, 127});

/// Sums of FP8 products in Hopper's tensor cores, in one run; and promoted to float every 128 products.
inline constexpr Accumulate hopper_sums = make_accumulate({.summation = Summation::aligned,
                                                           .sums = e8m13,
                                                           .rounding = Rounding::toward_zero,
                                                           .group = 32,
                                                           .fraction_bits = 13});
inline constexpr Accumulate hopper_sums_promoted = make_accumulate({.summation = Summation::aligned,
                                                                    .sums = e8m13,
                                                                    .rounding = Rounding::toward_zero,
                                                                    .group = 32,
                                                                    .fraction_bits = 13,
                                                                    .run_length = 128});
/// Sums of FP8 products in Blackwell's tensor cores.
inline constexpr Accumulate blackwell_sums = make_accumulate({.summation = Summation::aligned,
                                                              .sums = fp32,
                                                              .rounding = Rounding::toward_zero,
                                                              .group = 32,
                                                              .fraction_bits = 25});

/// Sums as mptorch's qgemm forms them: on CPUs in one run, in its CUDA code in runs of 8. The second form rounds
/// products first.
[[nodiscard]] constexpr Accumulate mptorch_sums(const FloatFormat& sums) { return make_accumulate({.sums = sums}); }
[[nodiscard]] constexpr Accumulate mptorch_sums(const FloatFormat& sums, const FloatFormat& products) {
    return make_accumulate({.sums = sums, .fused = false, .products = products});
}
[[nodiscard]] constexpr Accumulate mptorch_cuda_sums(const FloatFormat& sums) {
    return make_accumulate({.sums = sums, .run_length = 8, .totals = sums});
}
[[nodiscard]] constexpr Accumulate mptorch_cuda_sums(const FloatFormat& sums, const FloatFormat& products) {
    return make_accumulate({.sums = sums, .fused = false, .products = products, .run_length = 8, .totals = sums});
}

/// Limited sums with a name of their own.
struct NamedAccumulate {
    std::string_view name;
    Accumulate sums;
};
inline constexpr std::array<NamedAccumulate, 3> named_accumulate = {
    {{"hopper", hopper_sums}, {"hopper_promoted", hopper_sums_promoted}, {"blackwell", blackwell_sums}}};

/// Limited sums in a few words: their name, else the format of the sums and the length of a run.
[[nodiscard, gnu::cold]] inline std::string name(const Accumulate& options) {
    for (const NamedAccumulate& known : named_accumulate)
        if (known.sums == options) return std::string(known.name);
    std::string text = name(options.sums);
    if (options.summation == Summation::aligned) text += concatenate(", groups of ", options.group);
    return options.run_length == 0 ? text : concatenate(text, ", promoted every ", options.run_length);
}

/// Q(format, x) of `Accumulate`: the definition, for one number.
[[nodiscard]] constexpr float round_sum(const Accumulate& options, const FloatFormat& format, Rounding rounding,
                                        float x) {
    const std::uint32_t word = std::bit_cast<std::uint32_t>(x), sign = word & 0x80000000u, magnitude = word ^ sign;
    if (magnitude > 0x7F800000u) return std::numeric_limits<float>::quiet_NaN();
    if (magnitude == 0x7F800000u) return x;
    const float least = format.min_normal();
    if (!options.subnormals && magnitude < std::bit_cast<std::uint32_t>(least)) {
        const auto three_quarters = std::bit_cast<std::uint32_t>(compose<float>(false, 3, format.min_exponent() - 2));
        const bool up = rounding == Rounding::nearest_even && magnitude > three_quarters;
        return std::bit_cast<float>(sign | (up ? std::bit_cast<std::uint32_t>(least) : 0u));
    }
    return quantise(format, x, {.rounding = rounding, .overflow = options.overflow});
}

}  // namespace unitscale
