// SPDX-License-Identifier: MIT
#include <unitscale/kernels/block_strips.hpp>

#include "kernels/kernel_checks.hpp"
#include "support/matmul_paths.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

using namespace unitscale;
using namespace unitscale::kernels;
using unitscale::test::available_isas;

namespace {

constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

std::size_t count(std::ptrdiff_t n) { return static_cast<std::size_t>(n); }

/// A strip [rows,columns] quantised as lines of one block each, which are its columns.
std::vector<float> by_lines(const BlockFormat& format, const std::vector<float>& x, std::ptrdiff_t rows,
                            std::ptrdiff_t columns, const BlockOptions& options) {
    std::vector<float> lines(x.size()), y(x.size());
    for (std::ptrdiff_t i = 0; i < rows; ++i)
        for (std::ptrdiff_t j = 0; j < columns; ++j) lines[count(j * rows + i)] = x[count(i * columns + j)];
    const MatrixLines<float> matrix{lines.data(), count(columns), count(rows), count(rows)};
    quantise_blocks(format, matrix, matrix, options);
    for (std::ptrdiff_t i = 0; i < rows; ++i)
        for (std::ptrdiff_t j = 0; j < columns; ++j) y[count(i * columns + j)] = lines[count(j * rows + i)];
    return y;
}

bool same_word(float a, float b) { return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b); }

}  // namespace

TEST_CASE("strips are quantised to the numbers of quantise_blocks, by every instruction set", "[kernels]") {
    for (const BlockFormat& format : {mxfp8_e4m3, mxfp4, nvfp4, nvfp4_square, by_rule(BlockRule::torchao, nvfp4),
                                      fp8_tile, fp8_square, by_rule(BlockRule::deepseek, fp8_tile), float8_line})
        for (const std::ptrdiff_t columns : {1, 7, 16, 37, 200})
            for (const Rounding rounding : {Rounding::nearest_even, Rounding::nearest_away, Rounding::toward_zero}) {
                const std::ptrdiff_t along = format.along == whole_dimension ? 48 : format.along;
                const std::ptrdiff_t rows = columns == 37 ? (along + 1) / 2 : along;  // a short one, too
                auto x = normal_data<float>(count(rows * columns), 5);
                for (std::ptrdiff_t i = 0; i < rows; ++i) x[count(i * columns)] = 0.0f;  // a block of zeros, if narrow
                x.back() = 1e-5f;
                BlockOptions options;
                options.element.rounding = rounding;
                options.tensor_apart = true;
                const std::vector<float> want = by_lines(format, x, rows, columns, options);
                float amax = 0;
                for (const float v : x) amax = std::max(amax, std::abs(v));
                TensorNumbers tensor = tensor_numbers(format, amax);
                tensor.apart = true;
                for (const Isa isa : available_isas()) {
                    INFO(name(format) << ' ' << rows << 'x' << columns << ' ' << name(rounding) << ' ' << name(isa));
                    BlockStrips quantiser(isa, Execution{}, format, tensor, options.element, columns);
                    std::vector<float> have(x.size());
                    const BlockResult result =
                        quantiser.quantise(x.data(), columns, have.data(), columns, rows, columns);
                    const bool divides = format.rule == BlockRule::deepseek;
                    CHECK((result == BlockResult::refused) == divides);
                    if (divides) continue;
                    CHECK(std::equal(have.begin(), have.end(), want.begin()));
                    if (format.has_exponent_codes()) CHECK(result == BlockResult::exact_in_bf16);
                    if (result == BlockResult::exact_in_bf16)
                        CHECK(std::all_of(have.begin(), have.end(),
                                          [](float v) { return (std::bit_cast<std::uint32_t>(v) & 0xFFFFu) == 0; }));

                    // In place, as part of a wider matrix, to elements and scales.
                    const std::ptrdiff_t row = columns + 3;
                    std::vector<float> wide(count(rows * row), 7.0f), scales(count(2 * columns), -1.0f);
                    for (std::ptrdiff_t i = 0; i < rows; ++i)
                        std::copy_n(x.begin() + i * columns, columns, wide.begin() + i * row);
                    CHECK(quantiser.quantise(wide.data(), row, wide.data(), row, rows, columns, scales.data(), 2) ==
                          BlockResult::exact_in_bf16);
                    bool equal = true, kept = true;
                    for (std::ptrdiff_t i = 0; i < rows; ++i)
                        for (std::ptrdiff_t j = 0; j < row; ++j) {
                            const float v = wide[count(i * row + j)];
                            if (j >= columns) kept = kept && v == 7.0f;
                            else equal = equal && v * scales[count(2 * j)] == want[count(i * columns + j)];
                        }
                    CHECK(equal);
                    CHECK(kept);
                    for (std::ptrdiff_t j = 0; j < columns; ++j) CHECK(scales[count(2 * j + 1)] == -1.0f);
                }
            }
}

TEST_CASE("refused strips stay as they were", "[kernels]") {
    for (const BlockFormat& format : {mxfp4, nvfp4_square}) {
        auto x = normal_data<float>(16 * 20, 5);
        x[40] = not_a_number;
        std::vector<float> y(x.size(), 3.0f);
        BlockStrips quantiser(active_isa(), Execution{}, format, tensor_numbers(format, 4.0f), {}, 20);
        CHECK(quantiser.quantise(x.data(), 20, y.data(), 20, 16, 20) == BlockResult::refused);
        CHECK(std::all_of(y.begin(), y.end(), [](float v) { return same_word(v, 3.0f); }));
    }
}

TEST_CASE("strips of a tensor with one scale take its two factors", "[kernels]") {
    const auto x = normal_data<float>(3 * 21, 5);
    for (const Isa isa : available_isas()) {
        std::vector<float> y(x.size());
        BlockStrips quantiser(isa, Execution{}, float8_tensor, {}, {}, 21, WholeScale{8.0f, 0.3f});
        for (int again = 0; again < 2; ++again) {
            CHECK(quantiser.quantise(x.data(), 21, y.data(), 21, 3, 21) == BlockResult::quantised);
            for (std::size_t i = 0; i < x.size(); ++i) CHECK(y[i] == quantise(e4m3, 8.0f * x[i]) * 0.3f);
        }
    }
}
