// SPDX-License-Identifier: MIT
#include <unitscale/base/random.hpp>
#include <unitscale/products/quantise_lines.hpp>
#include <unitscale/tensor/cast.hpp>

#include "support/catch.hpp"
#include "support/matmul_paths.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

using namespace unitscale;
using namespace unitscale::products;

#if UNITSCALE_X86

namespace {

/// The instruction sets beyond the baseline that this processor can run.
std::vector<Isa> vector_isas() {
    std::vector<Isa> all = test::available_isas();
    all.erase(all.begin());
    return all;
}

const Quantiser e4{.format = e4m3}, b7{.format = bf16};

}  // namespace

TEMPLATE_TEST_CASE("lines are widened, rounded, copied and transposed, with zeros beside them and nothing else touched",
                   "[kernels][matmul]", float, Half, BFloat16) {
    constexpr float untouched = -77;
    for (const Isa isa : vector_isas())
        for (const std::ptrdiff_t lines : {1, 2, 3, 5, 8, 16, 21, 33})
            for (const std::ptrdiff_t length : {1, 4, 5, 8, 12, 13, 16, 24, 40})
                for (const std::ptrdiff_t beside : {0, 3})
                    for (const Quantiser* quantiser : {static_cast<const Quantiser*>(nullptr), &e4, &b7}) {
                        const RegisterQuantiser round = register_quantiser(quantiser);
                        const std::ptrdiff_t row = length + 1;
                        // The source ends with its last element, so that a sanitizer sees any read past it.
                        const auto in = test::numbers<TestType>((lines - 1) * row + length);
                        const auto value = [&](std::ptrdiff_t i, std::ptrdiff_t j) {
                            const auto x = element_cast<float>(in[static_cast<std::size_t>(i * row + j)]);
                            return quantiser == nullptr ? x : quantise(quantiser->format, x);
                        };
                        std::size_t wrong = 0;
                        for (const std::ptrdiff_t gap : {0, 2})
                            for (const bool transposed : {false, true}) {
                                const std::ptrdiff_t out_lines = transposed ? length : lines,
                                                     cols = transposed ? lines : length, padded = cols + beside,
                                                     out_row = padded + gap;
                                std::vector<float> out(static_cast<std::size_t>(out_lines * out_row), untouched);
                                const LineBlock<TestType> block{in.data(), row,        lines,  length,
                                                                padded,    out.data(), out_row};
                                if (transposed) transpose_lines<TestType>(isa, block, round);
                                else copy_lines<TestType>(isa, block, round);
                                for (std::ptrdiff_t i = 0; i < out_lines; ++i)
                                    for (std::ptrdiff_t j = 0; j < out_row; ++j) {
                                        const float expected = j >= padded ? untouched
                                                               : j >= cols ? 0.0f
                                                                           : (transposed ? value(j, i) : value(i, j));
                                        wrong += out[static_cast<std::size_t>(i * out_row + j)] != expected;
                                    }
                            }
                        CAPTURE(name(isa), lines, length, beside, int(round.kind));
                        REQUIRE(wrong == 0);
                    }
}

namespace {

/// Cuts lines into pieces of Width and compares every float of every panel. Returns the number of wrong ones.
template <std::ptrdiff_t Width, class T>
std::size_t wrong_pieces(std::ptrdiff_t lines, std::ptrdiff_t length, std::ptrdiff_t padded,
                         const Quantiser* quantiser) {
    constexpr float untouched = -77;
    const std::ptrdiff_t row = length + 3, panels = (padded + Width - 1) / Width, panel = lines * Width + 5;
    const auto in = test::numbers<T>((lines - 1) * row + length);  // ends with its last element
    std::vector<float> out(static_cast<std::size_t>(panels * panel), untouched), expected = out;
    split_lines_avx2<Width>(LineBlock<T>{in.data(), row, lines, length, padded, out.data(), panel},
                            register_quantiser(quantiser));
    for (std::ptrdiff_t p = 0; p < lines; ++p)
        for (std::ptrdiff_t j = 0; j < padded; ++j) {
            const std::ptrdiff_t q = j / Width, width = std::min(Width, padded - q * Width);
            float x = 0;
            if (j < length) x = element_cast<float>(in[static_cast<std::size_t>(p * row + j)]);
            expected[static_cast<std::size_t>(q * panel + p * width + j % Width)] =
                quantiser == nullptr ? x : quantise(quantiser->format, x);
        }
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < out.size(); ++i) wrong += out[i] != expected[i];
    return wrong;
}

}  // namespace

TEMPLATE_TEST_CASE("lines are cut into panels, with a narrower last panel and nothing else touched",
                   "[kernels][matmul]", float, Half, BFloat16) {
    if (active_isa() == Isa::baseline) return;
    for (const std::ptrdiff_t lines : {1, 3, 4, 7, 8, 21})
        for (const std::ptrdiff_t length : {1, 4, 5, 8, 11, 12, 23, 24, 25, 41, 48, 53, 72, 75})
            for (const Quantiser* quantiser : {static_cast<const Quantiser*>(nullptr), &e4, &b7}) {
                CAPTURE(lines, length, quantiser != nullptr);
                REQUIRE(wrong_pieces<4, TestType>(lines, length, (length + 3) / 4 * 4, quantiser) == 0);
                REQUIRE(wrong_pieces<24, TestType>(lines, length, (length + 7) / 8 * 8, quantiser) == 0);
            }
}

TEST_CASE("a line is rounded in place", "[kernels][matmul]") {
    for (const Isa isa : vector_isas())
        for (const std::ptrdiff_t count : {1, 7, 12, 16, 100}) {
            const auto before = test::numbers<float>(count);
            auto values = before;
            copy_lines<float>(isa, {values.data(), count, 1, count, count, values.data(), count},
                              register_quantiser(&e4));
            for (std::size_t i = 0; i < values.size(); ++i) REQUIRE(values[i] == quantise(e4m3, before[i]));
        }
}

#endif
