// SPDX-License-Identifier: MIT
#include <unitscale/base/random.hpp>
#include <unitscale/products/pack.hpp>

#include "support/catch.hpp"
#include "support/matmul_paths.hpp"

#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

using namespace unitscale;
using namespace unitscale::products;

namespace {

/// Row-major, column-major, and neither.
template <class T>
std::vector<MatrixView<const T>> layouts(const std::vector<T>& data, std::ptrdiff_t rows, std::ptrdiff_t cols) {
    return {{data.data(), cols + 2, 1}, {data.data(), 1, rows + 3}, {data.data(), 2 * cols, 2}};
}

}  // namespace

TEMPLATE_TEST_CASE("packed operands hold every element, rounded once, and zeros beside them", "[kernels][matmul]",
                   float, double, Half, BFloat16) {
    using P = Accum<TestType>;
    const Quantiser e4{.format = e4m3};
    for (const Isa isa : test::available_isas())
        for (const std::ptrdiff_t size : {1, 4, 7, 16, 33, 70})
            for (const std::ptrdiff_t k : {1, 5, 64, 131})
                for (const Quantiser* round : {static_cast<const Quantiser*>(nullptr), &e4}) {
                    const auto data = test::numbers<TestType>(2 * (size + 4) * (k + 4));
                    const auto value = [&](const MatrixView<const TestType>& view, std::ptrdiff_t i, std::ptrdiff_t j) {
                        const P x = element_cast<P>(*view.at(i, j));
                        return round == nullptr ? x : quantise(e4m3, x);
                    };
                    std::size_t wrong = 0;
                    for (const auto& view : layouts(data, k, size)) {  // B [k,size]
                        const std::ptrdiff_t total = packed_right_size<P>(isa, k, size);
                        std::vector<P> out(static_cast<std::size_t>(total + 1), P(-77));
                        const auto panels = pack_right(isa, view, k, size, round, out.data());
                        REQUIRE(out.back() == P(-77));
                        for (std::ptrdiff_t q = 0; q < panels.count(); ++q)
                            for (std::ptrdiff_t p = 0; p < k; ++p)
                                for (std::ptrdiff_t j = 0; j < panels.padded_columns(q); ++j) {
                                    const P expected =
                                        j < panels.columns(q) ? value(view, p, q * panels.width + j) : P(0);
                                    wrong += panels.panel(q)[p * panels.padded_columns(q) + j] != expected;
                                }
                    }
                    if (size > max_tile_rows) continue;
                    for (const auto& view : layouts(data, size, k)) {  // A [size,k]
                        const std::ptrdiff_t rows = round_up(size, 4);
                        std::vector<P> out(static_cast<std::size_t>(rows * k + 1), P(-77));
                        const auto panel = pack_left(isa, view, size, k, round, out.data());
                        REQUIRE(out.back() == P(-77));
                        for (std::ptrdiff_t i = 0; i < rows; ++i)
                            for (std::ptrdiff_t p = 0; p < k; ++p)
                                wrong +=
                                    panel.data[i * panel.row + p * panel.step] != (i < size ? value(view, i, p) : P(0));
                    }
                    REQUIRE(wrong == 0);
                }
}

TEMPLATE_TEST_CASE("16-bit elements widen exactly and narrow to nearest even on every instruction set",
                   "[kernels][matmul]", Half, BFloat16) {
    std::vector<TestType> codes(65536), back(65536);
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = std::bit_cast<TestType>(static_cast<std::uint16_t>(i));
    std::vector<float> wide(codes.size());
    for (const Isa isa : test::available_isas()) {
        std::size_t wrong = 0;
        widen_line(isa, codes.data(), std::ptrdiff_t(codes.size()), wide.data());
        for (std::size_t i = 0; i < codes.size(); ++i) {
            const float expected = static_cast<float>(codes[i]);
            wrong += std::isnan(expected) ? !std::isnan(wide[i]) : wide[i] != expected;
        }
        // Halves of steps between neighbours, and values that overflow.
        for (std::size_t i = 0; i < codes.size(); ++i) wide[i] *= 1.0f + 0x1p-9f * static_cast<float>(i % 5);
        narrow_line(isa, wide.data(), std::ptrdiff_t(wide.size()), back.data());
        for (std::size_t i = 0; i < codes.size(); ++i) {
            const TestType expected = element_cast<TestType>(wide[i]);
            wrong += std::isnan(wide[i])
                         ? !std::isnan(static_cast<float>(back[i]))
                         : std::bit_cast<std::uint16_t>(back[i]) != std::bit_cast<std::uint16_t>(expected);
        }
        REQUIRE(wrong == 0);
    }
}

TEST_CASE("packed panels begin with the rows and columns of the matrix, and B can be read in place",
          "[kernels][matmul]") {
    const std::ptrdiff_t k = 9, n = 150;
    const auto b = test::numbers<float>(k * (n + 5));
    const MatrixView<const float> view{b.data(), n + 5, 1};
    for (const Isa isa : test::available_isas()) {
        std::vector<float> out(static_cast<std::size_t>(packed_right_size<float>(isa, k, n)));
        const auto whole = pack_right(isa, view, k, n, nullptr, out.data());
        const auto rows = whole.first_rows(4), cols = whole.first_columns(50);
        REQUIRE(rows.k == 4);
        REQUIRE(cols.n >= 50);
        REQUIRE(cols.n < 50 + cols.width);
        REQUIRE(whole.first_columns(n).n == n);
        for (const auto& part : {rows, cols, right_in_place(isa, view, k, 96)})
            for (std::ptrdiff_t j = 0; j < part.n; ++j)
                for (std::ptrdiff_t p = 0; p < part.k; ++p) {
                    const std::ptrdiff_t q = j / part.width;
                    REQUIRE(part.panel(q)[p * part.row_step(q) + j % part.width] == *view.at(p, j));
                }
    }
}
