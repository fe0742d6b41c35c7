// SPDX-License-Identifier: MIT
#include <unitscale/products/coded_panels.hpp>

#include <unitscale/tensor/fill.hpp>

#include "support/catch.hpp"
#include "support/matmul_paths.hpp"

#include <bit>

using namespace unitscale;
using namespace unitscale::products;

TEST_CASE("panels of a coded weight hold its numbers, and zeros beside them", "[products]") {
    const Isa isa = GENERATE(from_range(test::available_isas()));
    CAPTURE(static_cast<int>(isa));
    Tensor<float> values({70, 45});
    fill_normal(values, {.seed = 2, .stream = 1});
    const CodedWeight coded = coded_weight(values, e4m3);
    const auto check_type = [&]<class P>(P) {
        std::vector<P> memory(static_cast<std::size_t>(packed_right_size<P>(isa, 45, 70)), P(7));
        const RightPanels<P> panels = decode_right<P>(isa, {&coded, 0, 0, false}, 45, 70, memory.data());
        for (std::ptrdiff_t q = 0; q < panels.count(); ++q)
            for (std::ptrdiff_t p = 0; p < 45; ++p)
                for (std::ptrdiff_t j = 0; j < panels.padded_columns(q); ++j) {
                    const std::ptrdiff_t column = q * panels.width + j;
                    const P expected = column < 70 ? static_cast<P>(coded.value(static_cast<std::size_t>(column),
                                                                                static_cast<std::size_t>(p)))
                                                   : P{0};
                    CHECK(panels.panel(q)[p * panels.row_step(q) + j] == expected);
                }
    };
    check_type(float{});
    check_type(double{});
}

#if UNITSCALE_X86
TEST_CASE("panels of pairs hold the upper halves of a coded weight's numbers", "[products]") {
    if (active_isa() != Isa::avx512) return;
    Tensor<float> values({40, 37});
    fill_normal(values, {.seed = 2, .stream = 1});
    BlockFormat odd = mxfp4;
    odd.along = 5;
    for (const BlockFormat& format : {mxfp8_e4m3, nvfp4, odd}) {
        CAPTURE(name(format));
        BlockCodes codes;
        encode_blocks(format, {values.data(), 40, 37, 37}, codes);
        const CodedWeight coded(codes);
        std::vector<Pair> memory(static_cast<std::size_t>(packed_right_pairs_size(37, 40)), 7);
        const RightPairs panels = decode_right_pairs({&coded, 0, 0, true}, 37, 40, memory.data());
        const auto half = [&](std::ptrdiff_t p, std::ptrdiff_t j) {
            if (p >= 37 || j >= 40) return 0u;
            const float value = coded.value(static_cast<std::size_t>(j), static_cast<std::size_t>(p), true);
            return std::bit_cast<std::uint32_t>(value) >> 16;
        };
        for (std::ptrdiff_t q = 0; q < panels.count(); ++q)
            for (std::ptrdiff_t p = 0; p < pairs_of(37); ++p)
                for (std::ptrdiff_t j = 0; j < panels.padded_columns(q); ++j) {
                    const std::ptrdiff_t column = q * panels.width + j;
                    CHECK(panels.panel(q)[p * panels.padded_columns(q) + j] ==
                          (half(2 * p, column) | half(2 * p + 1, column) << 16));
                }
    }
}
#endif
