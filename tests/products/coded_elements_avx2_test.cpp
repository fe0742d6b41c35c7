// SPDX-License-Identifier: MIT
#include <unitscale/products/coded_elements_avx2.hpp>

#include <unitscale/formats/block_codes.hpp>
#include <unitscale/formats/format.hpp>
#include <unitscale/products/coded_panels.hpp>
#include <unitscale/scaling/tensor_scale.hpp>
#include <unitscale/tensor/fill.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

using namespace unitscale;
using namespace unitscale::products;

namespace {

/// Whether the panels that AVX2 decodes from row p on have the bits of the weight's numbers, and zeros beside them.
[[maybe_unused]] bool equals_numbers(const CodedWeight& coded, std::ptrdiff_t p, bool apart) {
    const auto in = static_cast<std::ptrdiff_t>(coded.in()), out = static_cast<std::ptrdiff_t>(coded.out());
    std::vector<float> memory(static_cast<std::size_t>(packed_right_size<float>(Isa::avx2, in, out)), 7.0f);
    const auto panels = decode_right<float>(Isa::avx2, {&coded, p, 0, apart}, in - p, out, memory.data());
    bool equal = true;
    for (std::ptrdiff_t q = 0; q < panels.count(); ++q)
        for (std::ptrdiff_t row = 0; row < in - p; ++row)
            for (std::ptrdiff_t j = 0; j < panels.padded_columns(q); ++j) {
                const auto i = static_cast<std::size_t>(q * panels.width + j);
                const float own = panels.panel(q)[row * panels.row_step(q) + j];
                const float expected =
                    i < coded.out() ? coded.value(i, static_cast<std::size_t>(p + row), apart) : 0.0f;
                equal = equal && std::bit_cast<std::uint32_t>(own) == std::bit_cast<std::uint32_t>(expected);
            }
    return equal;
}

}  // namespace

#if UNITSCALE_X86
TEST_CASE("AVX2 decodes every code to the bits of its number", "[products]") {
    if (active_isa() < Isa::avx2) return;
    const FloatFormat three = make_format({1, 1, 0, Specials::none});
    const FloatFormat five = make_format({2, 2, 1});
    const FloatFormat seven = make_format({5, 1, 15});
    for (const FloatFormat& format :
         {e5m2, e4m3, e4m3fnuz, e4m3b11fnuz, e4m3_ieee, e3m4, e3m2, e2m3, e2m1, mxint8.element, three, five, seven,
          p3109(8, 4, Signedness::signed_format, Domain::extended), shifted(e4m3, 100), shifted(e5m2, -90),
          shifted(e2m1, 60), e5m2fnuz}) {
        CAPTURE(name(format));
        const std::size_t count = std::size_t{1} << format.code_bits();
        CodedWeight coded(40, 14, format);
        std::size_t code = 0;
        for (std::size_t i = 0; i < 40; ++i)
            for (std::size_t p = 0; p < 14; ++p, ++code) {
                const auto number = coded.number(static_cast<std::uint32_t>(code % count));
                if (magnitude_word(number) < 0x7F800000u)
                    coded.set_code(i, p, static_cast<std::uint32_t>(code % count));
            }
        coded.finish();
        CHECK(decodes_in_registers(Isa::avx2, coded) == !(format == e5m2fnuz));
        CHECK(equals_numbers(coded, 0, false));
        CHECK(equals_numbers(coded, 6, false));
    }
}

TEST_CASE("AVX2 applies the scales of blocks as the weight does", "[products]") {
    if (active_isa() < Isa::avx2) return;
    Tensor<float> values({75, 70});
    fill_normal(values, {.seed = 2, .stream = 1});
    for (std::size_t p = 0; p < 70; ++p) values.data()[p] *= 0x1p-125f;  // the smallest scales of e8m0
    BlockFormat looked_up = mxfp8_e4m3;                                  // scales without a sign
    looked_up.scale = make_format({.exponent_bits = 5, .mantissa_bits = 3, .bias = 15, .sign_bits = 0});
    BlockFormat whole = mxfp4;
    whole.along = whole_dimension;
    BlockFormat odd = mxfp4;
    odd.along = 5;
    for (const BlockFormat& format : {mxfp8_e5m2, mxfp8_e4m3, mxfp6_e3m2, mxfp4, mxint8, nvfp4, nvfp4_square, fp8_tile,
                                      fp8_square, looked_up, whole, odd}) {
        CAPTURE(name(format));
        BlockCodes codes;
        encode_blocks(format, {values.data(), 75, 70, 70}, codes);
        const CodedWeight coded(codes);
        CHECK(decodes_in_registers(Isa::avx2, coded) == !(format == odd));
        for (const bool apart : {false, true})
            for (const std::ptrdiff_t p : {0, 2, 34}) CHECK(equals_numbers(coded, p, apart));
    }
}
#endif
