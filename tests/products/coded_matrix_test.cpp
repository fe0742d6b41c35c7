// SPDX-License-Identifier: MIT
#include <unitscale/base/random.hpp>
#include <unitscale/products/coded_matrix.hpp>

#include "support/catch.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

using namespace unitscale;
using namespace unitscale::products;

namespace {

constexpr FloatFormat p3109_unsigned = p3109(8, 4, Signedness::unsigned_format, Domain::extended);
constexpr FloatFormat p3109_odd = p3109(7, 3, Signedness::signed_format, Domain::finite);
constexpr FloatFormat below_normal = make_format({4, 3, 140});  // the upper half of a float does not hold its numbers

std::vector<std::uint8_t> random_bytes(std::ptrdiff_t count) {
    std::vector<std::uint8_t> bytes(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(random_word({5, 1}, i));
    return bytes;
}

float number_of(const FloatFormat& format, std::uint8_t code) {
    return decode(format, code & static_cast<std::uint32_t>(format.code_count() - 1));
}

template <class P>
bool same_bits(const std::vector<P>& a, const std::vector<P>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(P)) == 0;
}

/// The strides of [rows,cols] in three orientations.
std::vector<MatrixView<const std::uint8_t>> layouts(const std::uint8_t* codes, std::ptrdiff_t rows,
                                                    std::ptrdiff_t cols) {
    return {{codes, cols + 2, 1}, {codes, 1, rows + 3}, {codes, 2 * cols, 2}};
}

}  // namespace

TEST_CASE("a table holds the number of every byte, in words where they suffice", "[kernels][matmul]") {
    for (const FloatFormat& format :
         {e4m3, e5m2, e4m3fnuz, e4m3_ieee, e3m2, e2m1, e8m0, p3109_unsigned, p3109_odd, below_normal}) {
        const CodeTable<float> table(format);
        const CodeTable<double> doubles(format);
        std::size_t wrong = 0;
        for (std::size_t code = 0; code < 256; ++code) {
            const float number = number_of(format, static_cast<std::uint8_t>(code));
            wrong += std::bit_cast<std::uint32_t>(table.values[code]) != std::bit_cast<std::uint32_t>(number);
            wrong += std::bit_cast<std::uint64_t>(doubles.values[code]) != std::bit_cast<std::uint64_t>(double{number});
        }
        CAPTURE(name(format));
        REQUIRE(wrong == 0);
        REQUIRE(table.has_words == !(format == e8m0 || format == p3109_unsigned || format == below_normal));
    }
}

TEMPLATE_TEST_CASE("codes are widened to their numbers' bits", "[kernels][matmul]", float, double) {
    for (const FloatFormat& format : {e4m3, e5m2, e5m2fnuz, e4m3_ieee, e2m3, e8m0, p3109_odd, below_normal}) {
        const CodeTable<TestType> table(format);
        for (const auto& [rows, cols] :
             {std::pair<std::ptrdiff_t, std::ptrdiff_t>{1, 256}, {70, 33}, {16, 16}, {5, 49}, {3, 1}}) {
            const auto codes = random_bytes(2 * (rows + 3) * (cols + 3));
            for (const auto& view : layouts(codes.data(), rows, cols))
                for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512}) {
                    if (isa > active_isa()) continue;
                    const std::ptrdiff_t padded = cols + 3, row = cols + 5;
                    std::vector<TestType> out(static_cast<std::size_t>(rows * row), TestType(77)), expected = out;
                    for (std::ptrdiff_t i = 0; i < rows; ++i)
                        for (std::ptrdiff_t j = 0; j < padded; ++j)
                            expected[static_cast<std::size_t>(i * row + j)] =
                                j < cols ? static_cast<TestType>(number_of(format, *view.at(i, j))) : TestType(0);
                    widen_block(isa, CodedView<TestType>(view, &table), rows, cols, padded, out.data(), row);
                    CAPTURE(name(format), rows, cols, view.row_stride, view.col_stride, int(isa));
                    REQUIRE(same_bits(out, expected));

                    std::vector<TestType> right(static_cast<std::size_t>(packed_right_size<TestType>(isa, rows, cols)));
                    const auto panels =
                        pack_right(isa, CodedView<TestType>(view, &table), rows, cols, nullptr, right.data());
                    std::vector<TestType> left(static_cast<std::size_t>(round_up(rows, 4) * cols), TestType(77));
                    const auto panel =
                        pack_left(isa, CodedView<TestType>(view, &table), rows, cols, nullptr, left.data());
                    std::size_t wrong = 0;
                    for (std::ptrdiff_t i = 0; i < round_up(rows, 4); ++i)
                        for (std::ptrdiff_t j = 0; j < cols; ++j) {
                            const TestType number =
                                i < rows ? expected[static_cast<std::size_t>(i * row + j)] : TestType(0);
                            const TestType *const a = panel.data + i * panel.row + j * panel.step,
                                                  *b = panels.panel(j / panels.width);
                            b += i * panels.row_step(j / panels.width) + j % panels.width;
                            wrong += std::memcmp(a, &number, sizeof number) != 0;
                            wrong += i < rows && std::memcmp(b, &number, sizeof number) != 0;
                        }
                    REQUIRE(wrong == 0);
                }
        }
    }
}

#if UNITSCALE_X86
TEST_CASE("codes become the pairs of their numbers", "[kernels][matmul]") {
    if (active_isa() != Isa::avx512) return;
    std::vector<float> buffer(static_cast<std::size_t>(pair_buffer));
    for (const FloatFormat& format : {e4m3, e5m2, e5m2fnuz, e4m3_ieee, e2m1, p3109_odd, p3109_unsigned}) {
        const CodeTable<float> table(format);
        for (const std::ptrdiff_t size : {1, 12, 16, 17, 45, 100})
            for (const std::ptrdiff_t k : {1, 31, 32, 33, 300}) {
                const auto codes = random_bytes(2 * (size + 3) * (k + 3));
                std::vector<float> numbers(codes.size());
                for (std::size_t i = 0; i < codes.size(); ++i) numbers[i] = number_of(format, codes[i]);
                const auto numbers_of = [&](const MatrixView<const std::uint8_t>& view) {
                    return MatrixView<const float>{numbers.data(), view.row_stride, view.col_stride};
                };
                CAPTURE(name(format), size, k);
                for (const auto& view : layouts(codes.data(), k, size)) {  // B [k,size]
                    std::vector<Pair> out(static_cast<std::size_t>(packed_right_pairs_size(k, size)) + 1, 77u),
                        expected = out;
                    static_cast<void>(
                        pack_right_pairs(CodedView<float>(view, &table), k, size, nullptr, out.data(), buffer.data()));
                    static_cast<void>(
                        pack_right_pairs(numbers_of(view), k, size, nullptr, expected.data(), buffer.data()));
                    REQUIRE(same_bits(out, expected));
                }
                for (const std::ptrdiff_t group : {12, 16})
                    for (const auto& view : layouts(codes.data(), size, k)) {  // A [size,k]
                        std::vector<Pair> out(static_cast<std::size_t>(round_up(size, group) * pairs_of(k)) + 1, 77u);
                        std::vector<Pair> expected = out;
                        pack_left_pairs(CodedView<float>(view, &table), size, k, nullptr, group, out.data(),
                                        buffer.data());
                        pack_left_pairs(numbers_of(view), size, k, nullptr, group, expected.data(), buffer.data());
                        REQUIRE(same_bits(out, expected));
                    }
            }
    }
}
#endif
