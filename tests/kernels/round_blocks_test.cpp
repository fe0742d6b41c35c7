// SPDX-License-Identifier: MIT
#include <unitscale/kernels/round_blocks.hpp>

#include "kernels/kernel_checks.hpp"
#include "support/error_of.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

using namespace unitscale;
using namespace unitscale::kernels;
using unitscale::test::error_of;

namespace {

const std::optional<HadamardRotation> none;

template <class P>
std::vector<P> transposed(const std::vector<P>& x, std::ptrdiff_t rows, std::ptrdiff_t columns) {
    std::vector<P> y(x.size());
    for (std::ptrdiff_t i = 0; i < rows; ++i)
        for (std::ptrdiff_t j = 0; j < columns; ++j)
            y[static_cast<std::size_t>(j * rows + i)] = x[static_cast<std::size_t>(i * columns + j)];
    return y;
}

/// x [rows,columns] with its lines along the contracted dimension, rotated and quantised line by line.
template <class T>
std::vector<float> expected(const BlockFormat& format, const std::vector<T>& x, std::size_t rows, std::size_t columns,
                            Contracted contracted, const std::optional<HadamardRotation>& rotation,
                            const BlockOptions& options) {
    const bool turned = contracted == Contracted::rows;
    const std::size_t lines = turned ? columns : rows, length = turned ? rows : columns;
    std::vector<float> y(x.size());
    for (std::size_t i = 0; i < rows; ++i)
        for (std::size_t j = 0; j < columns; ++j)
            y[turned ? j * rows + i : i * columns + j] = static_cast<float>(widen(x[i * columns + j]));
    if (rotation)
        rotate<float>(Execution{}, *rotation, y.data(), static_cast<std::ptrdiff_t>(lines),
                      static_cast<std::ptrdiff_t>(length), static_cast<std::ptrdiff_t>(length), 1);
    const MatrixLines<float> matrix{y.data(), lines, length, length};
    quantise_blocks(format, matrix, matrix, options);
    return y;
}

template <class T>
std::vector<Accum<T>> rounded(const BlockFormat& format, const std::vector<T>& x, std::ptrdiff_t rows,
                              std::ptrdiff_t columns, Contracted contracted,
                              const std::optional<HadamardRotation>& rotation = none, const BlockOptions& options = {},
                              int threads = 1) {
    std::vector<Accum<T>> y(x.size());
    const RoundedBlocks facts = round_blocks<T>(Execution{.threads = threads}, format, options, rotation, x.data(),
                                                y.data(), rows, columns, contracted);
    return contracted == Contracted::rows && !facts.transposed ? transposed(y, rows, columns) : y;
}

template <class T>
void check_all(std::ptrdiff_t rows, std::ptrdiff_t columns) {
    const auto x = normal_data<T>(static_cast<std::size_t>(rows * columns), 7);
    BlockOptions stochastic, apart;
    stochastic.element = {.rounding = Rounding::stochastic, .bits = 16, .key = {3, 4}, .first_index = 0};
    apart.tensor_apart = true;
    for (const BlockFormat& format :
         {mxfp8_e4m3, mxfp4, nvfp4, nvfp4_square, by_rule(BlockRule::torchao, nvfp4), fp8_tile, fp8_square,
          by_rule(BlockRule::deepseek, fp8_tile), float8_line, float8_tensor})
        for (const Contracted contracted : {Contracted::columns, Contracted::rows})
            for (const auto& rotation : {none, std::optional(transformer_engine_rotation)})
                for (const BlockOptions& options : {BlockOptions{}, stochastic, apart}) {
                    if (options.tensor_apart && !format.tensor_scale) continue;
                    INFO(name(format) << ' ' << rows << 'x' << columns << (contracted == Contracted::rows));
                    const std::vector<float> want =
                        expected(format, x, static_cast<std::size_t>(rows), static_cast<std::size_t>(columns),
                                 contracted, rotation, options);
                    for (const int threads : {1, 2, 3}) {
                        const auto have = rounded<T>(format, x, rows, columns, contracted, rotation, options, threads);
                        CHECK(std::equal(have.begin(), have.end(), want.begin(), want.end()));
                    }
                }
}

}  // namespace

TEST_CASE("blocks run along the contracted dimension, for every element type and number of threads", "[kernels]") {
    check_all<float>(48, 80);
    check_all<float>(300, 130);  // several parts, short last blocks
    check_all<double>(33, 20);
    check_all<Half>(20, 33);
}

TEST_CASE("a block's scale comes from its own neighbours", "[kernels]") {
    std::vector<float> x(64 * 2, 1.0f);
    x[0] = 448.0f;  // row 0: one large element in the first block of columns
    const auto by_columns = rounded<float>(mxfp4, x, 2, 64, Contracted::columns);
    CHECK(by_columns[1] == 0.0f);  // 1 is far below the step of its block
    CHECK(by_columns[40] == 1.0f);
    CHECK(by_columns[64] == 1.0f);
    const auto by_rows = rounded<float>(mxfp4, x, 2, 64, Contracted::rows);  // [64,2]: blocks of two elements
    CHECK(by_rows[1] == 0.0f);
    CHECK(by_rows[2] == 1.0f);
}

TEST_CASE("results are exact in bf16 where scales are powers of two, or short", "[kernels]") {
    const auto x = normal_data<float>(64 * 64, 1);
    std::vector<float> y(x.size());
    BlockOptions apart;
    apart.tensor_apart = true;
    const auto exact = [&](const BlockFormat& format, const std::vector<float>& in) {
        const RoundedBlocks facts =
            round_blocks<float>(Execution{}, format, apart, none, in.data(), y.data(), 64, 64, Contracted::columns);
        if (facts.exact_in_bf16) CHECK(are_exact_in_bf16(y.data(), 64 * 64));
        return facts.exact_in_bf16;
    };
    CHECK(exact(mxfp8_e4m3, x));
    CHECK(exact(mxfp4, x));
    BlockFormat one_level = nvfp4;
    one_level.tensor_scale = false;
    CHECK(exact(one_level, x));
    CHECK(exact(nvfp4, x));
    CHECK(exact(float8_tensor, x));
    CHECK_FALSE(exact(by_rule(BlockRule::torchao, fp8_tile), x));  // scales of 24 bits
    std::vector<float> small = x;
    for (float& v : small) v *= 0x1p-126f;
    CHECK_FALSE(exact(mxfp8_e4m3, small));  // bf16 instructions take subnormal numbers as 0
    CHECK(
        round_blocks<float>(Execution{}, mxfp4, {}, none, nullptr, nullptr, 0, 64, Contracted::columns).exact_in_bf16);
    CHECK(are_exact_in_bf16(std::vector<float>{0.0f, -0.0f, 0x1p-126f, std::numeric_limits<float>::infinity()}.data(),
                            4));
    CHECK_FALSE(are_exact_in_bf16(std::vector<float>{1.00390625f}.data(), 1));
    CHECK_FALSE(are_exact_in_bf16(std::vector<float>{0x1p-127f}.data(), 1));
}

TEST_CASE("numbers times the tensor's factor are the decoded ones", "[kernels]") {
    const auto x = normal_data<float>(48 * 80, 9, 0.01);
    std::vector<float> y(x.size());
    BlockOptions apart;
    apart.tensor_apart = true;
    for (const BlockFormat& format : {nvfp4, nvfp4_square, by_rule(BlockRule::torchao, nvfp4), float8_tensor,
                                      by_rule(BlockRule::torchao, float8_tensor)}) {
        INFO(name(format));
        std::vector<float> decoded = x;
        const MatrixLines<float> matrix{decoded.data(), 48, 80, 80};
        quantise_blocks(format, matrix, matrix);
        const float factor =
            round_blocks<float>(Execution{}, format, apart, none, x.data(), y.data(), 48, 80, Contracted::columns)
                .factor;
        CHECK(factor != 1.0f);
        for (std::size_t i = 0; i < x.size(); ++i) {
            const double have = static_cast<double>(y[i]) * static_cast<double>(factor);
            CHECK(std::abs(have - static_cast<double>(decoded[i])) <= 0x1p-22 * std::abs(have));
        }
    }
    // Extreme factors are in the numbers.
    const std::pair<BlockFormat, double> extremes[] = {{nvfp4, 1e-25}, {nvfp4, 1e25}, {float8_tensor, 1e25}};
    for (const auto& [format, size] : extremes) {
        const auto extreme = normal_data<float>(64, 9, size);
        std::vector<float> decoded = extreme;
        const MatrixLines<float> matrix{decoded.data(), 4, 16, 16};
        quantise_blocks(format, matrix, matrix);
        INFO(name(format) << ' ' << size);
        CHECK(
            round_blocks<float>(Execution{}, format, apart, none, extreme.data(), y.data(), 4, 16, Contracted::columns)
                .factor == 1.0f);
        CHECK(std::equal(decoded.begin(), decoded.end(), y.begin()));
    }
}

TEST_CASE("elements times the scales of their blocks are the decoded numbers", "[kernels]") {
    const std::ptrdiff_t rows = 40, columns = 150;
    const auto x = normal_data<float>(static_cast<std::size_t>(rows * columns), 9);
    for (const BlockFormat& format : {mxfp8_e4m3, nvfp4, fp8_tile, fp8_square, by_rule(BlockRule::deepseek, fp8_tile),
                                      by_rule(BlockRule::torchao_float8, fp8_square)})
        for (const Contracted contracted : {Contracted::columns, Contracted::rows}) {
            INFO(name(format));
            const std::vector<float> want = expected(format, x, static_cast<std::size_t>(rows),
                                                     static_cast<std::size_t>(columns), contracted, none, {});
            const std::ptrdiff_t length = contracted == Contracted::rows ? rows : columns,
                                 lines = rows * columns / length, blocks = (length + format.along - 1) / format.along;
            std::vector<float> y(x.size()), scales(static_cast<std::size_t>(lines * blocks));
            const RoundedBlocks facts = round_blocks<float>(Execution{.threads = 2}, format, {}, none, x.data(),
                                                            y.data(), rows, columns, contracted, scales.data());
            if (contracted == Contracted::rows && !facts.transposed) y = transposed(y, rows, columns);
            CHECK(facts.exact_in_bf16);
            double error = 0;
            for (std::ptrdiff_t l = 0; l < lines; ++l)
                for (std::ptrdiff_t p = 0; p < length; ++p) {
                    const auto at = static_cast<std::size_t>(l * length + p);
                    CHECK(y[at] == quantise(format.element, y[at]));
                    const float scale = scales[static_cast<std::size_t>(l * blocks + p / format.along)];
                    const auto wanted = static_cast<double>(want[at]);
                    error = std::max(error,
                                     std::abs(static_cast<double>(y[at] * scale) - wanted) / (1e-6 + std::abs(wanted)));
                }
            CHECK(error < 2e-7);  // 0 but where numbers are divided
        }
}

TEST_CASE("blocks that make no sense are an error before anything is written", "[kernels]") {
    float x = 1.0f, y = 7.0f;
    BlockFormat bad = mxfp8_e4m3;
    bad.along = -1;
    CHECK(error_of([&] { round_blocks<float>(Execution{}, bad, {}, none, &x, &y, 1, 1, Contracted::columns); }) ==
          "quantise_blocks: block format: along and across must be at least 1, or 0 for the whole dimension");
    CHECK(error_of([&] {
              round_blocks<float>(Execution{}, mxfp4, {}, HadamardRotation{.size = 8}, &x, &y, 1, 1,
                                  Contracted::columns);
          }) == "round_blocks: rotation of 8; expected 16 or 32");
    CHECK(y == 7.0f);
}
