// SPDX-License-Identifier: MIT
#include <unitscale/products/pack_source.hpp>

#include "support/catch.hpp"

#include <unitscale/base/random.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

using namespace unitscale;
using namespace unitscale::products;

namespace {

template <class T>
std::vector<T> numbers(std::ptrdiff_t count) {
    std::vector<T> values(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = element_cast<T>(random_normal({9, 1}, i));
    return values;
}

// Packs the part of a batch item from (2, 1) on, through a source and through the view itself. The panels must be
// equal.
template <class P, class T>
void check_packs_as_its_view(const MatrixView<const T>& view, const Quantiser* round) {
    constexpr std::ptrdiff_t rows = 9, cols = 35;
    const PackSource<P> source = view;
    const PackSource<P> part = source.item(1).block(2, 1);
    const auto direct = view.item(1).block(2, 1);
    REQUIRE(part.template view<T>().data == direct.data);
    for (const Isa isa : {Isa::baseline, active_isa()}) {
        std::vector<P> ours(2000, P{-7}), expected = ours;
        const auto left = part.functions->left(isa, part, rows, cols, round, ours.data());
        const auto direct_left = pack_left(isa, direct, rows, cols, round, expected.data());
        REQUIRE(ours == expected);
        REQUIRE((left.row == direct_left.row && left.step == direct_left.step));
        const auto right = part.functions->right(isa, part, rows, cols, round, ours.data());
        const auto direct_right = pack_right(isa, direct, rows, cols, round, expected.data());
        REQUIRE(ours == expected);
        REQUIRE((right.k == direct_right.k && right.n == direct_right.n && right.width == direct_right.width));
    }
    if constexpr (std::is_same_v<P, float>) {
#if UNITSCALE_X86
        if (active_isa() != Isa::avx512 || (round == nullptr && !std::is_same_v<T, Coded<P>>)) return;
        std::vector<float> buffer(static_cast<std::size_t>(pair_buffer));
        std::vector<Pair> ours(4000, 77u), expected = ours;
        part.functions->left_pairs(part, rows, cols, round, 12, ours.data(), buffer.data());
        pack_left_pairs(direct, rows, cols, round, 12, expected.data(), buffer.data());
        REQUIRE(ours == expected);
        static_cast<void>(part.functions->right_pairs(part, rows, cols, round, ours.data(), buffer.data()));
        static_cast<void>(pack_right_pairs(direct, rows, cols, round, expected.data(), buffer.data()));
        REQUIRE(ours == expected);
#endif
    } else {
        REQUIRE(part.functions->left_pairs == nullptr);
        REQUIRE(part.functions->right_pairs == nullptr);
    }
}

#if UNITSCALE_X86
// Tiles of four rows that are packed together are equal to the tiles that are packed one after the other.
template <class T>
void check_packs_columns(const MatrixView<const T>& view, const Quantiser* round) {
    const PackSource<float> source = view;
    REQUIRE(source.functions->left_columns != nullptr);
    for (const std::ptrdiff_t rows : {3, 4, 8, 13, 20}) {
        constexpr std::ptrdiff_t k = 37, panel = 4 * k + 16;
        std::vector<float> together(static_cast<std::size_t>((rows + 3) / 4 * panel), -7.0f), one_by_one = together;
        source.functions->left_columns(source, rows, k, register_quantiser(round), panel, together.data());
        for (std::ptrdiff_t i = 0, q = 0; i < rows; i += 4, ++q)
            static_cast<void>(pack_left(Isa::avx2, view.block(i, 0), std::min<std::ptrdiff_t>(4, rows - i), k, round,
                                        one_by_one.data() + q * panel));
        REQUIRE(together == one_by_one);
    }
}
#endif

constexpr std::ptrdiff_t height = 20, width = 40;
const Quantiser e4{.format = e4m3};

}  // namespace

TEMPLATE_TEST_CASE("a source packs panels equal to the panels of its view", "[kernels][matmul]", float, double, Half,
                   BFloat16) {
    using P = Accum<TestType>;
    const auto values = numbers<TestType>(2 * height * width);
    for (const Quantiser* round : {static_cast<const Quantiser*>(nullptr), &e4}) {
        check_packs_as_its_view<P>(MatrixView<const TestType>{values.data(), width, 1, height * width}, round);
        check_packs_as_its_view<P>(MatrixView<const TestType>{values.data(), 1, height, height * width}, round);
    }
}

#if UNITSCALE_X86
TEMPLATE_TEST_CASE("a source packs the columns of a transposed operand for all tiles together", "[kernels][matmul]",
                   float, Half, BFloat16) {
    if (active_isa() == Isa::baseline) return;
    const auto values = numbers<TestType>(height * width);
    for (const Quantiser* round : {static_cast<const Quantiser*>(nullptr), &e4})
        check_packs_columns(MatrixView<const TestType>{values.data(), 1, height, 0}, round);
}
#endif

TEMPLATE_TEST_CASE("a source of codes packs the numbers that they stand for", "[kernels][matmul]", float, double) {
    std::vector<std::uint8_t> codes(static_cast<std::size_t>(2 * height * width));
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(random_word({9, 2}, i) & 0x77u);
    const CodeTable<TestType> table(e4m3);
    const CodedView<TestType> view({codes.data(), width, 1, height * width}, &table);
    check_packs_as_its_view<TestType>(view, nullptr);
    const PackSource<TestType> source = view;
    std::vector<TestType> row(static_cast<std::size_t>(4 * width));
    static_cast<void>(source.functions->left(Isa::baseline, source, 1, width, nullptr, row.data()));
    for (std::size_t j = 0; j < static_cast<std::size_t>(width); ++j)
        REQUIRE(row[j] == static_cast<TestType>(decode(e4m3, codes[j])));
}

TEST_CASE("only elements of the sums' own type are read where they are", "[kernels][matmul]") {
    const auto floats = numbers<float>(4);
    const auto halves = numbers<Half>(4);
    const auto doubles = numbers<double>(4);
    REQUIRE(PackSource<float>(MatrixView<const float>{floats.data(), 2, 1}).widened());
    REQUIRE(PackSource<double>(MatrixView<const double>{doubles.data(), 2, 1}).widened());
    REQUIRE(!PackSource<float>(MatrixView<const Half>{halves.data(), 2, 1}).widened());
}
