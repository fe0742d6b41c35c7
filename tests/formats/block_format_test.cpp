// SPDX-License-Identifier: MIT
#include <unitscale/formats/block_format.hpp>

#include "formats/reference.hpp"
#include "support/catch.hpp"
#include "support/error_of.hpp"

#include <string>
#include <vector>

using namespace unitscale;
using unitscale::test::error_of;

// A user's format is one line, and a template argument.
constexpr BlockFormat mine =
    make_block_format({.element = e2m1, .along = 24, .scale = {5, 3, 15, Specials::single_nan, 0}});
template <BlockFormat F>
constexpr int along_of = F.along;
static_assert(along_of<mine> == 24 && along_of<float8_tensor> == whole_dimension);

// The facts of the named formats.
struct BlockFacts {
    BlockFormat format;
    FloatFormat element;
    int along, across;
    float max;
    int max_exponent;
    ScaleForm form;
};
constexpr BlockFacts block_facts[] = {
    {mxfp8_e4m3, e4m3, 32, 1, 448.0f, 8, ScaleForm::code},
    {mxfp8_e5m2, e5m2, 32, 1, 57344.0f, 15, ScaleForm::code},
    {mxfp6_e3m2, e3m2, 32, 1, 28.0f, 4, ScaleForm::code},
    {mxfp6_e2m3, e2m3, 32, 1, 7.5f, 2, ScaleForm::code},
    {mxfp4, e2m1, 32, 1, 6.0f, 2, ScaleForm::code},
    {mxint8, mxint8_element, 32, 1, 127.0f / 64, 0, ScaleForm::code},
    {nvfp4, e2m1, 16, 1, 6.0f, 2, ScaleForm::code},
    {nvfp4_square, e2m1, 16, 16, 6.0f, 2, ScaleForm::code},
    {fp8_tile, e4m3, 128, 1, 448.0f, 8, ScaleForm::power_of_two},
    {fp8_square, e4m3, 128, 128, 448.0f, 8, ScaleForm::power_of_two},
    {float8_tensor, e4m3, 0, 0, 448.0f, 8, ScaleForm::float32},
    {float8_line, e4m3, 0, 1, 448.0f, 8, ScaleForm::power_of_two},
};
constexpr bool block_facts_hold() {
    for (std::size_t i = 0; i < std::size(block_facts); ++i) {
        const BlockFacts& f = block_facts[i];
        if (named_block_formats[i].format != f.format || f.format.element != f.element) return false;
        if (f.format.along != f.along || f.format.across != f.across || f.format.form != f.form) return false;
        if (f.element.max() != f.max || f.element.max_exponent() != f.max_exponent) return false;
    }
    return true;
}
static_assert(std::size(block_facts) == named_block_formats.size() && block_facts_hold());
static_assert(mxfp4.scale == e8m0 && mxfp4.has_exponent_codes() && !mxfp4.tensor_scale);
static_assert(nvfp4.scale == e4m3 && nvfp4.has_mantissa_codes() && nvfp4.tensor_scale);
static_assert(nvfp4.tensor_max() == 2688.0f);

TEST_CASE("MXINT8's elements are the numbers k/64 from -127/64 to 127/64") {
    for (std::uint32_t code = 0; code < 256; ++code) {
        const int k = static_cast<int>(code & 127u);
        const float value = static_cast<float>(code < 128 ? k : -k) / 64;
        CHECK(mxint8_element.magnitude<float>(code & 127u, code >= 128) == value);
    }
    CHECK(mxint8_element.code_bits() == 8);
    CHECK(mxint8_element.max_code() == 127);
}

TEST_CASE("block formats and their variants are found by their names") {
    std::vector<std::string> names;
    each_named_block_format([&](std::string_view base, std::string_view suffix, const BlockFormat& format) {
        names.push_back(concatenate(base, suffix.empty() ? "" : "_", suffix));
        CHECK(name(format) == names.back());
        CHECK(find_block_format(names.back()) == format);
        CHECK(problem(format).empty());
    });
    // 6 of MX with 4 roundings, 2 of NVFP4 with 2 rules, 2 of FP8 with 5 rules, 2 of float8.
    CHECK(names.size() == 24 + 4 + 10 + 2);
    CHECK(find_block_format("mxfp4_even").exponent == ExponentRounding::even);
    CHECK(find_block_format("mxfp8_e4m3_rceil").exponent == ExponentRounding::rceil);
    CHECK(find_block_format("nvfp4_torchao").rule == BlockRule::torchao);
    CHECK(find_block_format("fp8_tile_deepseek").rule == BlockRule::deepseek);
    CHECK(name(mine) == "e2m1_24x1_ue5m3b15fnuz");
    BlockFormat lines{.element = mxint8_element, .along = whole_dimension};
    CHECK(name(lines) == "int8_wholex1_e8m0");
    lines.form = ScaleForm::float32;
    CHECK(name(lines) == "int8_wholex1_fp32");
    lines.form = ScaleForm::power_of_two;
    lines.across = 8;
    CHECK(name(lines) == "int8_wholex8_power_of_two");
}

TEST_CASE("a name is one of a block format by its beginning") {
    for (const char* text : {"mxfp4", "nvfp4_torchao", "mxint8", "mxfp4_unknown"}) CHECK(names_block_format(text));
    for (const char* text : {"", "e4m3", "mx", "bf16", "fp8"}) CHECK_FALSE(names_block_format(text));
}

TEST_CASE("an unknown name of a block format is an error that lists the known ones") {
    for (const char* text : {"", "mxfp4_", "mxfp4_floor", "mxfp4_torchao", "nvfp4_rceil", "nvfp4_deepseek", "MXFP4",
                             "mxfp4_evenn", "fp8_tile_torchao_", "float8_line_torchao"})
        CHECK(error_of([text] { static_cast<void>(find_block_format(text)); }) ==
              concatenate("block format: unknown name '", text,
                          "'; expected mxfp8_e4m3, mxfp8_e5m2, mxfp6_e3m2, mxfp6_e2m3, mxfp4, mxint8, nvfp4, "
                          "nvfp4_square, fp8_tile, fp8_square, float8_tensor, float8_line, an mx name with _ceil, "
                          "_rceil or _even, nvfp4 or nvfp4_square with _torchao, or fp8_tile or fp8_square with "
                          "_torchao, _deepgemm or _deepseek"));
}

TEST_CASE("a nonsensical block format is an error that names the fault") {
    const auto message = [](const BlockFormat& format) { return std::string(problem(format)); };
    constexpr FloatFormat ue5m3{5, 3, 15, Specials::single_nan, 0};
    CHECK(message(mine).empty());
    CHECK(message({}) == "exponent_bits must be 1 to 8, so that values are exact in float");
    CHECK(message({.element = fp16}) == "element codes must fit a byte");
    CHECK(message({.element = ue5m3}) == "the element format must have a sign and a zero");
    CHECK(message({.element = e8m0}) == "the element format must have a sign and a zero");
    CHECK(message({.element = e4m3, .along = -1}) ==
          "along and across must be at least 1, or 0 for the whole dimension");
    CHECK(message({.element = e4m3, .across = -1}) ==
          "along and across must be at least 1, or 0 for the whole dimension");
    CHECK(message({.element = e4m3, .scale = {4, 3, 150, Specials::top_nan}}) ==
          "the smallest number is below float's 2^-149: lower bias or mantissa_bits");
    CHECK(message({.element = e4m3, .scale = bf16}) == "scale codes must fit a byte");
    CHECK(message({.element = e4m3, .scale = e2m3}) == "the scale format needs a NaN, the mark of blocks with a NaN");
    for (const BlockRule rule : {BlockRule::deepgemm, BlockRule::deepseek, BlockRule::torchao_float8})
        CHECK(message({.element = e2m1, .scale = e4m3, .rule = rule}) ==
              "scale codes with a mantissa follow the rule transformer_engine or torchao");
    CHECK(message({.element = e2m1, .tensor_scale = true}) ==
          "a scale of the tensor needs scale codes with a mantissa");
    CHECK(message({.element = e2m1, .form = ScaleForm::float32, .tensor_scale = true}) ==
          "a scale of the tensor needs scale codes with a mantissa");
    CHECK(message({.element = e2m1, .scale = {7, 1, 1, Specials::top_nan, 0}, .tensor_scale = true}) ==
          "the largest element times the largest scale exceeds float's range");
    CHECK(message({.element = mxint8_element, .form = ScaleForm::float32}) ==
          "the largest element must be at least 2, so that the inverse of a scale in float is finite");
    for (const double floor : {-1.0, 1e39, std::bit_cast<double>(std::uint64_t{0x7FF8} << 48)})
        CHECK(message({.element = e4m3, .form = ScaleForm::float32, .amax_floor = floor}) ==
              "amax_floor must be 0 to 2^127");
    CHECK(message({.element = e4m3, .amax_floor = 1e-4}) == "amax_floor is for scales in float");
    CHECK(message({.element = e4m3, .non_finite = NonFiniteAmax::unit_scale}) == "unit_scale is for scales in float");
    CHECK(message({.element = e4m3, .form = ScaleForm::float32, .flush_subnormal_blocks = true}) ==
          "flush_subnormal_blocks is for scale codes of powers of two");
    CHECK(message({.element = e2m1, .scale = e4m3, .flush_subnormal_blocks = true}) ==
          "flush_subnormal_blocks is for scale codes of powers of two");

    BlockFormat choice = nvfp4;
    choice.four_over_six = FourOverSix::absolute_error;
    CHECK(message(choice).empty());
    choice.four_over_six_max = 300;
    CHECK(message(choice) == "four_over_six_max must be 256 or 448");
    choice.four_over_six_max = 448;
    choice.across = 16;
    CHECK(message(choice).empty());
    const std::string place =
        "four over six is for e2m1 under e4m3 with a scale of the tensor, in blocks 16x1 or 16x16, by the rule "
        "transformer_engine";
    for (const auto change :
         {+[](BlockFormat& f) { f.across = 8; }, +[](BlockFormat& f) { f.along = 32; },
          +[](BlockFormat& f) { f.element = e2m3; }, +[](BlockFormat& f) { f.scale = e5m2; },
          +[](BlockFormat& f) { f.tensor_scale = false; }, +[](BlockFormat& f) { f.rule = BlockRule::torchao; }}) {
        BlockFormat changed = choice;
        change(changed);
        CHECK(message(changed) == place);
    }
    CHECK(error_of([] { static_cast<void>(make_block_format({.element = fp16})); }) ==
          "block format: element codes must fit a byte");
}

TEST_CASE("a library's rule brings the library's defaults") {
    constexpr BlockFormat plain{.element = e4m3, .along = 128, .form = ScaleForm::float32};
    const BlockFormat engine = by_rule(BlockRule::transformer_engine, plain);
    CHECK(engine == fp8_tile);
    CHECK(engine.form == ScaleForm::power_of_two);
    CHECK(engine.amax_floor.number() == 0.0);
    CHECK(engine.non_finite == NonFiniteAmax::unit_scale);
    const BlockFormat torchao = by_rule(BlockRule::torchao, engine);
    CHECK(torchao.form == ScaleForm::float32);
    CHECK(torchao.amax_floor.number() == 1e-12);
    CHECK(torchao.non_finite == NonFiniteAmax::nan_block);
    for (const BlockRule rule : {BlockRule::deepgemm, BlockRule::deepseek}) {
        const BlockFormat deep = by_rule(rule, engine);
        CHECK(deep.rule == rule);
        CHECK(deep.form == ScaleForm::float32);
        CHECK(deep.amax_floor.number() == 1e-4);
        CHECK(deep.non_finite == NonFiniteAmax::nan_block);
    }
    CHECK(by_rule(BlockRule::torchao, mine).non_finite == NonFiniteAmax::saturate);
    CHECK(by_rule(BlockRule::transformer_engine, mine) == mine);
    CHECK(by_rule(BlockRule::torchao, nvfp4).non_finite == NonFiniteAmax::nan_block);
    CHECK(error_of([] { static_cast<void>(by_rule(BlockRule::deepgemm, nvfp4)); }) ==
          "block format: scale codes with a mantissa follow the rule transformer_engine or torchao");
}
