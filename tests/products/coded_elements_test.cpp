// SPDX-License-Identifier: MIT
#include <unitscale/products/coded_elements.hpp>

#include <unitscale/products/coded_panels.hpp>
#include <unitscale/tensor/fill.hpp>

#include "support/catch.hpp"

using namespace unitscale;
using namespace unitscale::products;

TEST_CASE("codes are decoded in registers where vectors can hold them", "[products]") {
    Tensor<float> values({20, 40});
    fill_normal(values, {.seed = 2, .stream = 1});
    BlockFormat odd = mxfp4;
    odd.along = 5;
    const auto in_blocks = [&](const BlockFormat& format) {
        BlockCodes codes;
        encode_blocks(format, {values.data(), 20, 40, 40}, codes);
        return CodedWeight(codes);
    };
    CHECK_FALSE(decodes_in_registers(Isa::baseline, coded_weight(values, e4m3)));
    if (!UNITSCALE_X86) return;
    for (const FloatFormat& format : {fp32, fp16, bf16, e4m3, e5m2, e2m1})
        CHECK(decodes_in_registers(Isa::avx512, coded_weight(values, format)));
    for (const Isa isa : {Isa::avx2, Isa::avx512}) {
        CHECK(decodes_in_registers(isa, in_blocks(nvfp4)));
        CHECK_FALSE(decodes_in_registers(isa, in_blocks(odd)));  // a pair would have two scales
    }
    for (const FloatFormat& format : {fp32, fp16, bf16, e4m3, e5m2, e2m1})
        CHECK(decodes_in_registers(Isa::avx2, coded_weight(values, format)));
    const FloatFormat without_sign = make_format({2, 2, 1, Specials::single_nan, 0});
    CHECK_FALSE(decodes_in_registers(Isa::avx2, coded_weight(values, e5m2fnuz)));
    CHECK_FALSE(decodes_in_registers(Isa::avx2, CodedWeight(16, 2, without_sign)));
}

TEST_CASE("elements and scales in registers equal the weight's numbers", "[products]") {
    if (active_isa() != Isa::avx512) return;
    Tensor<float> values({35, 70});
    fill_normal(values, {.seed = 2, .stream = 1});
    for (const BlockFormat& format : {mxfp8_e5m2, mxfp6_e3m2, mxfp4, mxint8, nvfp4, nvfp4_square, fp8_tile}) {
        CAPTURE(name(format));
        BlockCodes codes;
        encode_blocks(format, {values.data(), 35, 70, 70}, codes);
        const CodedWeight coded(codes);
        for (const bool apart : {false, true})
            for (const std::ptrdiff_t p : {0, 2, 34}) {
                std::vector<float> panel(static_cast<std::size_t>((70 - p) * 48));
                static_cast<void>(decode_right<float>(Isa::avx512, {&coded, p, 0, apart}, 70 - p, 35, panel.data()));
                for (std::ptrdiff_t row = p; row < 70; ++row)
                    for (std::ptrdiff_t j = 0; j < 32; ++j)
                        CHECK(panel[static_cast<std::size_t>((row - p) * 32 + j)] ==
                              coded.value(static_cast<std::size_t>(j), static_cast<std::size_t>(row), apart));
            }
    }
}
