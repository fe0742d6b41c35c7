// SPDX-License-Identifier: MIT
#include <unitscale/base/cpu.hpp>
#include <unitscale/formats/block_codes.hpp>
#include <unitscale/formats/format.hpp>
#include <unitscale/products/half_codes.hpp>
#include <unitscale/scaling/tensor_scale.hpp>
#include <unitscale/tensor/code_table.hpp>

#include "support/catch.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

using namespace unitscale;
using namespace unitscale::products;

namespace {

FloatFormat with_bias(FloatFormat format, int bias) {
    format.bias = bias;
    return make_format(format);
}

}  // namespace

TEST_CASE("formats whose codes are bits of FP16", "[products]") {
    for (const FloatFormat& format : {e4m3, e5m2, e4m3fnuz, e4m3b11fnuz, e4m3_ieee, e3m4, e3m2, e2m3, e2m1,
                                      mxint8.element, with_bias(e4m3, 118), with_bias(e4m3, -112)})
        CHECK(has_half_words(format));
    // An exponent that FP16 has for infinity and NaN; subnormal floats; a factor above 2^127; no zero.
    for (const FloatFormat& format : {e5m2fnuz, with_bias(e4m3, 125), with_bias(e3m2, -120), e8m0, bf16,
                                      make_format({.exponent_bits = 6, .mantissa_bits = 1, .bias = 31})})
        CHECK_FALSE(has_half_words(format));
}

TEST_CASE("codes with spare bits in their byte are not widened by way of FP16", "[products]") {
    CHECK(widens_by_halves(e4m3));
    CHECK(widens_by_halves(e5m2));
    CHECK_FALSE(widens_by_halves(e3m2));
    CHECK_FALSE(widens_by_halves(e5m2fnuz));
}

#if UNITSCALE_X86
TEST_CASE("AVX2 widens every byte to the bits of its number, in rows of any length", "[products]") {
    if (active_isa() < Isa::avx2) return;
    for (const FloatFormat& format :
         {e5m2, e4m3, e4m3fnuz, e4m3b11fnuz, e4m3_ieee, e3m4, mxint8.element, make_format({4, 3, 7, Specials::none}),
          p3109(8, 4, Signedness::signed_format, Domain::extended), shifted(e4m3, 100), shifted(e5m2, -90)}) {
        REQUIRE(widens_by_halves(format));
        const CodeTable<float> table(format);
        std::vector<std::uint8_t>
            codes;  // every byte, then bytes in an order in which most rows have finite codes only
        for (std::size_t i = 0; i < 256; ++i) codes.push_back(static_cast<std::uint8_t>(i));
        for (std::size_t i = 0; i < 600; ++i) codes.push_back(static_cast<std::uint8_t>(37 * i % 120 + i % 2 * 129));
        for (const std::ptrdiff_t cols : {1, 7, 8, 15, 16, 17, 24, 31, 40, 256}) {
            const std::ptrdiff_t rows = 3, row = 300, out_row = cols + 2;
            std::vector<float> out(static_cast<std::size_t>(rows * out_row), 77.0f), expected = out;
            for (std::ptrdiff_t start = 0; start < 256; start += 5) {
                const std::ptrdiff_t step = start + 2 * row + cols <= 856 ? row : 0;
                for (std::ptrdiff_t i = 0; i < rows; ++i)
                    for (std::ptrdiff_t j = 0; j < cols; ++j)
                        expected[static_cast<std::size_t>(i * out_row + j)] =
                            decode(format, codes[static_cast<std::size_t>(start + i * step + j)]);
                widen_codes_avx2(codes.data() + start, step, rows, cols, format, table.values.data(), out.data(),
                                 out_row);
                std::size_t wrong = 0;
                for (std::size_t i = 0; i < out.size(); ++i)
                    wrong += std::bit_cast<std::uint32_t>(out[i]) != std::bit_cast<std::uint32_t>(expected[i]);
                CAPTURE(name(format), cols, start);
                REQUIRE(wrong == 0);
            }
        }
    }
}
#endif
