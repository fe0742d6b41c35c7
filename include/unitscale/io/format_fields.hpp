// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/formats/accumulate.hpp>
#include <unitscale/formats/block_format.hpp>

#include <array>
#include <optional>
#include <string_view>

// The fields of block formats and of limited sums, and the words of their choices, listed once for reading and writing
// (io/json_fields.hpp).   Test: tests/io/format_fields_test.cpp
namespace unitscale::io {

inline constexpr std::array<std::string_view, 6> rounding_json_names = {"nearest_even", "toward_zero",  "up",
                                                                        "down",         "nearest_away", "stochastic"};
inline constexpr std::array<std::string_view, 2> overflow_json_names = {"saturate", "to_infinity"};
inline constexpr std::array<std::string_view, 3> scale_form_names = {"float32", "power_of_two", "code"};
inline constexpr std::array<std::string_view, 3> non_finite_amax_names = {"nan_block", "saturate", "unit_scale"};
inline constexpr std::array<std::string_view, 3> even_overflow_names = {"nan_block", "next", "clamp"};
inline constexpr std::array<std::string_view, 2> tensor_overflow_names = {"infinite", "reordered"};
inline constexpr std::array<std::string_view, 3> four_over_six_names = {"off", "absolute_error", "squared_error"};

/// The block format of that name, or nothing.
[[nodiscard]] inline std::optional<BlockFormat> known_block_format(std::string_view wanted) {
    std::optional<BlockFormat> found;
    each_named_block_format([&](std::string_view base, std::string_view suffix, const BlockFormat& format) {
        if (!found && concatenate(base, suffix.empty() ? "" : "_", suffix) == wanted) found = format;
    });
    return found;
}

/// The fields of a block format.
template <class Visitor>
void describe_blocks(Visitor& visitor, BlockFormat& format) {
    visitor.format("element", format.element);
    visitor.field("along", format.along);
    visitor.field("across", format.across);
    visitor.choice("form", format.form, scale_form_names);
    visitor.format("scale", format.scale);
    visitor.choice("exponent", format.exponent, exponent_rounding_names);
    visitor.field("tensor_scale", format.tensor_scale);
    visitor.choice("rule", format.rule, block_rule_names);
    double floor = format.amax_floor.number();
    visitor.field("amax_floor", floor);
    format.amax_floor = floor;
    visitor.choice("non_finite", format.non_finite, non_finite_amax_names);
    visitor.choice("even_overflow", format.even_overflow, even_overflow_names);
    visitor.choice("tensor_overflow", format.tensor_overflow, tensor_overflow_names);
    visitor.choice("four_over_six", format.four_over_six, four_over_six_names);
    visitor.field("four_over_six_max", format.four_over_six_max);
    visitor.field("flush_subnormal_blocks", format.flush_subnormal_blocks);
}

inline constexpr std::array<std::string_view, 2> summation_json_names = {"sequential", "aligned"};

/// The fields of limited sums.
template <class Visitor>
void describe_accumulate(Visitor& visitor, Accumulate& sums) {
    visitor.choice("summation", sums.summation, summation_json_names);
    visitor.format("sums", sums.sums);
    visitor.field("fused", sums.fused);
    visitor.format("products", sums.products);
    visitor.choice("rounding", sums.rounding, rounding_json_names);
    visitor.choice("overflow", sums.overflow, overflow_json_names);
    visitor.field("subnormals", sums.subnormals);
    visitor.field("group", sums.group);
    visitor.field("fraction_bits", sums.fraction_bits);
    visitor.field("run_length", sums.run_length);
    visitor.format("totals", sums.totals);
}

}  // namespace unitscale::io
