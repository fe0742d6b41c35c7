// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/formats/float_arithmetic.hpp>
#include <unitscale/formats/format.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace unitscale {

/// The number that blocks of elements are multiplied by: any float, a power of two as a float, or a code of
/// `BlockFormat::scale`.
enum class ScaleForm { float32, power_of_two, code };

/// The exponent of a scale whose codes are powers of two, from the block's amax b. With 2^u <= b < 2^(u+1), emax the
/// exponent of the largest element and M its mantissa bits:
///   floor  u - emax                           OCP MX, microxcaling, torchao
///   ceil   floor's, plus 1 unless b = 2^u     torchao
///   even   floor's, plus 1 if b / 2^u >= 2 - 2^-(M+1): if b's significand, rounded to M bits, reaches 2     torchao
///   rceil  the least E with 2^E >= fl(b fl(1/max))     TransformerEngine, torchao
/// Zero and subnormal b count as u = -127. The exponent is clamped to the scale format's, and to at least -127.
enum class ExponentRounding { floor, ceil, rceil, even };

/// The library whose arithmetic is followed where libraries differ. Formulas: `formats/block_scale.hpp`.
/// `torchao_float8` is torchao's `float8`, for whole tensors and lines. `torchao` is the rest of torchao.
enum class BlockRule { transformer_engine, torchao, torchao_float8, deepgemm, deepseek };

/// The treatment of an infinite amax. A NaN amax gives a NaN block, but 1 under `unit_scale`.
enum class NonFiniteAmax {
    nan_block,   ///< the block decodes to NaN (OCP, torchao)
    saturate,    ///< the largest scale: the format's, or the scale of the largest float (TransformerEngine's codes)
    unit_scale,  ///< scale 1; elements saturate or are NaN; scales in float only (TransformerEngine's kernels)
};

/// `ExponentRounding::even`, where b rounds to 2^128.
enum class EvenOverflow {
    nan_block,  ///< the block decodes to NaN (torchao)
    next,       ///< the exponent of 2^128; elements next to the largest float decode to infinity (torchao 0.18)
    clamp,      ///< the exponent of b: the block decodes to finite numbers
};

/// TransformerEngine's decode factor fl(fl(s A) fl(1/2688)) of two levels, where fl(s A) is infinite for finite A: kept
/// infinite as in TransformerEngine, or computed as fl(s fl(A fl(1/2688))).
enum class TensorOverflow { infinite, reordered };

/// Four Over Six: a block's amax is mapped to 6 or to 4, whichever decodes with the smaller sum of errors.
/// Source: arXiv:2512.02010; an option of TransformerEngine.
enum class FourOverSix { off, absolute_error, squared_error };

/// A number of at least 0 as an integer, because Clang 16 takes no floating-point member in a template argument.
struct AmaxFloor {
    std::uint64_t word = 0;

    constexpr AmaxFloor() = default;
    constexpr AmaxFloor(double number) noexcept : word(std::bit_cast<std::uint64_t>(number)) {}
    [[nodiscard]] constexpr double number() const noexcept { return std::bit_cast<double>(word); }
    friend constexpr bool operator==(const AmaxFloor&, const AmaxFloor&) = default;
};

/// `BlockFormat::along` or `across`: the whole dimension, however long.
inline constexpr int whole_dimension = 0;

/// Elements in blocks that share a scale: value = element times scale, or times scale and a number of the tensor.
/// A block takes `along` neighbours along the contracted dimension in each of `across` lines. Blocks at the end of a
/// dimension may be short. A structural type, as `FloatFormat` is. A new format takes one line:
///   constexpr BlockFormat mine = make_block_format({.element = e2m1, .along = 24, .scale = {5, 3, 15,
///                                                   Specials::single_nan, 0}});
/// A scale format with a mantissa, without a scale of the tensor: s = RNE of fl(b / max), where b is the block's amax
/// and max the largest element. Subnormal s are kept, s is saturated, and s = 0 decodes to zeros.
/// Two levels (`tensor_scale`): s is b in units of the tensor's amax A. A maps to the largest element times the largest
/// scale.
/// Test: tests/formats/block_format_test.cpp
struct BlockFormat {
    FloatFormat element{};
    int along = 32;
    int across = 1;
    ScaleForm form = ScaleForm::code;
    FloatFormat scale = e8m0;                             ///< of form `code` only
    ExponentRounding exponent = ExponentRounding::floor;  ///< of scale formats without mantissa only
    bool tensor_scale = false;                            ///< two levels; of scale formats with a mantissa only
    BlockRule rule = BlockRule::transformer_engine;       ///< no effect on scale formats without mantissa
    AmaxFloor amax_floor{};                               ///< a smaller amax counts as it; of scales in float only
    NonFiniteAmax non_finite = NonFiniteAmax::nan_block;  ///< two levels: no effect, the formulas decide
    EvenOverflow even_overflow = EvenOverflow::nan_block;
    TensorOverflow tensor_overflow = TensorOverflow::infinite;
    FourOverSix four_over_six = FourOverSix::off;
    int four_over_six_max = 256;          ///< A maps to 6 times this number: 256 or 448
    bool flush_subnormal_blocks = false;  ///< a subnormal amax gives zeros (microxcaling's option); powers of two only

    friend constexpr bool operator==(const BlockFormat&, const BlockFormat&) = default;

    /// Whether scales are codes of powers of two, and whether they are codes with a mantissa.
    [[nodiscard]] constexpr bool has_exponent_codes() const noexcept {
        return form == ScaleForm::code && scale.mantissa_bits == 0;
    }
    [[nodiscard]] constexpr bool has_mantissa_codes() const noexcept {
        return form == ScaleForm::code && scale.mantissa_bits > 0;
    }
    /// The largest element times the largest scale: the number that the tensor's amax maps to (two levels).
    [[nodiscard]] constexpr float tensor_max() const noexcept {
        const float largest = four_over_six == FourOverSix::off ? scale.max() : static_cast<float>(four_over_six_max);
        return rounded_product(element.max(), largest);
    }
};

/// Calls `report` with a sentence about the first fault of a block format, if it has one, as `inspect_format` does.
template <class Report>
constexpr void inspect_block_format(const BlockFormat& format, Report&& report) {
    const FloatFormat& element = format.element;
    const FloatFormat& scale = format.scale;
    if (const auto fault = problem(element); !fault.empty()) return inspect_format(element, report);
    if (element.code_bits() > 8) return report("element codes must fit a byte");
    if (!element.is_signed() || !element.has_zero()) return report("the element format must have a sign and a zero");
    if (format.along < 0 || format.across < 0)
        return report("along and across must be at least 1, or 0 for the whole dimension");
    if (format.form == ScaleForm::code) {
        if (const auto fault = problem(scale); !fault.empty()) return inspect_format(scale, report);
        if (scale.code_bits() > 8) return report("scale codes must fit a byte");
        if (!scale.has_nan()) return report("the scale format needs a NaN, the mark of blocks with a NaN");
    }
    if (format.has_mantissa_codes() && format.rule != BlockRule::transformer_engine &&
        format.rule != BlockRule::torchao)
        return report("scale codes with a mantissa follow the rule transformer_engine or torchao");
    if (format.tensor_scale && !format.has_mantissa_codes())
        return report("a scale of the tensor needs scale codes with a mantissa");
    if (format.tensor_scale && is_infinite(format.tensor_max()))
        return report("the largest element times the largest scale exceeds float's range");
    if (format.form != ScaleForm::code && element.max() < 2)
        return report("the largest element must be at least 2, so that the inverse of a scale in float is finite");
    if (format.amax_floor.word > std::bit_cast<std::uint64_t>(0x1p127)) return report("amax_floor must be 0 to 2^127");
    if (format.amax_floor.word != 0 && format.form == ScaleForm::code)
        return report("amax_floor is for scales in float");
    if (format.non_finite == NonFiniteAmax::unit_scale && format.form == ScaleForm::code)
        return report("unit_scale is for scales in float");
    if (format.flush_subnormal_blocks && !format.has_exponent_codes())
        return report("flush_subnormal_blocks is for scale codes of powers of two");
    if (format.four_over_six == FourOverSix::off) return;
    if (element != e2m1 || scale != e4m3 || !format.tensor_scale || format.along != 16 ||
        (format.across != 1 && format.across != 16) || format.rule != BlockRule::transformer_engine)
        return report(
            "four over six is for e2m1 under e4m3 with a scale of the tensor, in blocks 16x1 or 16x16, by "
            "the rule transformer_engine");
    if (format.four_over_six_max != 256 && format.four_over_six_max != 448)
        return report("four_over_six_max must be 256 or 448");
}

/// The first fault of a block format, as a sentence; empty if there is none.
[[nodiscard]] constexpr std::string_view problem(const BlockFormat& format) noexcept {
    std::string_view found;
    inspect_block_format(format, [&found](const char* what) { found = what; });
    return found;
}

/// The block format, checked. In a constant expression a nonsensical one does not compile, and the compiler's message
/// holds the reason. At run time it is an Error.
/// Test: tests/formats/block_format_test.cpp, tests/structure/nonsensical_format.cpp
[[nodiscard]] constexpr BlockFormat make_block_format(const BlockFormat& format) {
    inspect_block_format(format, [](const char* what) { fail("block format: ", what); });
    return format;
}

/// `format` with the arithmetic of a library. For scales in float this includes the form, the least amax and the
/// treatment of infinity that are the library's defaults.
///   transformer_engine  powers of two; scale 1 for an infinite amax       torchao  float; amax at least 1e-12
///   deepgemm, deepseek  float; amax at least 1e-4; powers of two: set `form`
/// Codes with a mantissa, one level: torchao maps an infinite amax to the largest scale.
[[nodiscard]] constexpr BlockFormat by_rule(BlockRule rule, BlockFormat format) {
    format.rule = rule;
    const bool engine = rule == BlockRule::transformer_engine;
    if (format.has_mantissa_codes() && !format.tensor_scale)
        format.non_finite = engine ? NonFiniteAmax::nan_block : NonFiniteAmax::saturate;
    if (format.form != ScaleForm::code) {
        const bool deep = rule == BlockRule::deepgemm || rule == BlockRule::deepseek;
        format.form = engine ? ScaleForm::power_of_two : ScaleForm::float32;
        format.amax_floor = engine ? 0.0 : deep ? 1e-4 : 1e-12;
        format.non_finite = engine ? NonFiniteAmax::unit_scale : NonFiniteAmax::nan_block;
    }
    return make_block_format(format);
}

/// The numbers k/64 for k from -127 to 127, the elements of MXINT8. One exponent bit gives equal steps, as in
/// `int8_grid`.
inline constexpr FloatFormat mxint8_element =
    make_format({.exponent_bits = 1, .mantissa_bits = 6, .bias = 1, .specials = Specials::none});

inline constexpr BlockFormat mxfp8_e4m3 = make_block_format({.element = e4m3});
inline constexpr BlockFormat mxfp8_e5m2 = make_block_format({.element = e5m2});
inline constexpr BlockFormat mxfp6_e3m2 = make_block_format({.element = e3m2});
inline constexpr BlockFormat mxfp6_e2m3 = make_block_format({.element = e2m3});
inline constexpr BlockFormat mxfp4 = make_block_format({.element = e2m1});
inline constexpr BlockFormat mxint8 = make_block_format({.element = mxint8_element});
inline constexpr BlockFormat nvfp4 =
    make_block_format({.element = e2m1, .along = 16, .scale = e4m3, .tensor_scale = true});
inline constexpr BlockFormat nvfp4_square =
    make_block_format({.element = e2m1, .along = 16, .across = 16, .scale = e4m3, .tensor_scale = true});
inline constexpr BlockFormat fp8_tile =
    by_rule(BlockRule::transformer_engine, {.element = e4m3, .along = 128, .form = ScaleForm::float32});
inline constexpr BlockFormat fp8_square =
    by_rule(BlockRule::transformer_engine, {.element = e4m3, .along = 128, .across = 128, .form = ScaleForm::float32});
/// torchao's `float8`: one scale for the tensor, or a power of two for each line.
inline constexpr BlockFormat float8_tensor =
    by_rule(BlockRule::torchao_float8,
            {.element = e4m3, .along = whole_dimension, .across = whole_dimension, .form = ScaleForm::float32});
inline constexpr BlockFormat float8_line = [] {
    BlockFormat format = float8_tensor;
    format.across = 1;
    format.form = ScaleForm::power_of_two;
    return make_block_format(format);
}();

struct NamedBlockFormat {
    std::string_view name;
    BlockFormat format;
};

inline constexpr std::array<NamedBlockFormat, 12> named_block_formats{{{"mxfp8_e4m3", mxfp8_e4m3},
                                                                       {"mxfp8_e5m2", mxfp8_e5m2},
                                                                       {"mxfp6_e3m2", mxfp6_e3m2},
                                                                       {"mxfp6_e2m3", mxfp6_e2m3},
                                                                       {"mxfp4", mxfp4},
                                                                       {"mxint8", mxint8},
                                                                       {"nvfp4", nvfp4},
                                                                       {"nvfp4_square", nvfp4_square},
                                                                       {"fp8_tile", fp8_tile},
                                                                       {"fp8_square", fp8_square},
                                                                       {"float8_tensor", float8_tensor},
                                                                       {"float8_line", float8_line}}};

inline constexpr std::array<std::string_view, 4> exponent_rounding_names{"floor", "ceil", "rceil", "even"};
inline constexpr std::array<std::string_view, 5> block_rule_names{"transformer_engine", "torchao", "torchao_float8",
                                                                  "deepgemm", "deepseek"};

/// Calls `use(name, suffix, format)` for every format that has a name: the named ones, and their variants. Powers of
/// two are named by exponent rounding, as mxfp4_rceil; other formats by rule, as nvfp4_torchao or fp8_tile_deepgemm.
template <class Use>
constexpr void each_named_block_format(Use&& use) {
    for (const auto& known : named_block_formats) {
        use(known.name, std::string_view{}, known.format);
        const bool exponents = known.format.has_exponent_codes();
        for (std::size_t i = 0; i < (exponents ? exponent_rounding_names.size() : block_rule_names.size()); ++i) {
            BlockFormat format = known.format;
            if (exponents) format.exponent = static_cast<ExponentRounding>(i);
            else format.rule = static_cast<BlockRule>(i);
            const bool whole_lines = format.along == whole_dimension;
            if (format == known.format || whole_lines || !problem(format).empty()) continue;
            if (!exponents) format = by_rule(format.rule, format);
            use(known.name, exponents ? exponent_rounding_names[i] : block_rule_names[i], format);
        }
    }
}

/// The format's name: its own, else its elements, block and scale, such as e2m1_24x1_ue5m3b15fnuz.
[[nodiscard, gnu::cold]] inline std::string name(const BlockFormat& format) {
    std::string found;
    each_named_block_format([&](std::string_view base, std::string_view suffix, const BlockFormat& known) {
        if (found.empty() && known == format) found = concatenate(base, suffix.empty() ? "" : "_", suffix);
    });
    if (!found.empty()) return found;
    const auto size = [](int length) { return length == whole_dimension ? std::string("whole") : concatenate(length); };
    const std::string scale = format.form == ScaleForm::float32        ? "fp32"
                              : format.form == ScaleForm::power_of_two ? "power_of_two"
                                                                       : name(format.scale);
    const std::string element = format.element == mxint8_element ? "int8" : name(format.element);
    return concatenate(element, '_', size(format.along), 'x', size(format.across), '_', scale);
}

/// Whether a name begins as the name of a block format does, so that `find_block_format` is the function to ask.
[[nodiscard]] inline bool names_block_format(std::string_view wanted) noexcept {
    return std::any_of(named_block_formats.begin(), named_block_formats.end(),
                       [&](const auto& known) { return wanted.starts_with(known.name); });
}

/// The format with the given name: one of `named_block_formats`, or a variant such as mxfp8_e4m3_rceil, nvfp4_torchao
/// or fp8_tile_deepgemm. Error: an unknown name; the message lists the known ones.
[[nodiscard]] inline BlockFormat find_block_format(std::string_view wanted) {
    BlockFormat found;
    bool known = false;
    each_named_block_format([&](std::string_view base, std::string_view suffix, const BlockFormat& format) {
        const bool same = suffix.empty()
                              ? wanted == base
                              : wanted.size() == base.size() + 1 + suffix.size() && wanted.starts_with(base) &&
                                    wanted[base.size()] == '_' && wanted.ends_with(suffix);
        if (known || !same) return;
        found = format;
        known = true;
    });
    if (known) return found;
    std::string list;
    for (const auto& format : named_block_formats) list.append(format.name).append(", ");
    fail("block format: unknown name '", wanted, "'; expected ", list,
         "an mx name with _ceil, _rceil or _even, nvfp4 or nvfp4_square with _torchao, or fp8_tile or fp8_square with "
         "_torchao, _deepgemm or _deepseek");
}

}  // namespace unitscale
