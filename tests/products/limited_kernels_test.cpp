// SPDX-License-Identifier: MIT
#include <unitscale/products/limited_kernels.hpp>

#include "support/catch.hpp"

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

using namespace unitscale;
using namespace unitscale::products;

namespace {

std::vector<Isa> instruction_sets() {
    std::vector<Isa> all;
    for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512})
        if (isa <= active_isa()) all.push_back(isa);
    return all;
}

}  // namespace

TEST_CASE("preparation makes NaN quiet, finds infinity, and gives the powers of exponents", "[kernels][matmul]") {
    for (const Isa isa : instruction_sets()) {
        std::vector<float> values(32), powers(32);
        values[0] = 3.0f, values[1] = -0.25f, values[2] = 0x1p-9f, values[3] = -0.0f;
        REQUIRE_FALSE(limited_kernels(isa).prepare(values.data(), powers.data(), 32, 0x1p-6f));
        REQUIRE(powers[0] == 2.0f);
        REQUIRE(powers[1] == 0.25f);
        REQUIRE(powers[2] == 0x1p-6f);
        REQUIRE(powers[3] == 0.0f);
        REQUIRE(values[1] == -0.25f);
        values[31] = -HUGE_VALF;
        REQUIRE(limited_kernels(isa).prepare(values.data(), powers.data(), 32, 0x1p-6f));
        values[31] = std::bit_cast<float>(0xFF812345u);
        REQUIRE(limited_kernels(isa).prepare(values.data(), nullptr, 32, 0x1p-6f));
        REQUIRE(std::bit_cast<std::uint32_t>(values[31]) == 0x7FC00000u);
    }
}

TEST_CASE("a tile holds four rows of two vectors, and promotes its runs", "[kernels][matmul]") {
    for (const Isa isa : instruction_sets()) {
        const auto width = static_cast<std::size_t>(limited_columns(isa));
        constexpr std::size_t k = 10;
        std::vector<float> left(k * limited_rows), right(k * width), result(limited_rows * width);
        for (std::size_t p = 0; p < k; ++p) {
            for (std::size_t i = 0; i < limited_rows; ++i) left[p * limited_rows + i] = static_cast<float>(i + 1);
            for (std::size_t j = 0; j < width; ++j) right[p * width + j] = static_cast<float>(j % 4);
        }
        const auto sums = [&](const Accumulate& options) {
            limited_kernels(isa).tile(limited_constants(options, fp32, fp32, k),
                                      {k, left.data(), right.data(), nullptr, nullptr, result.data()});
        };
        sums({});
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < limited_rows; ++i)
            for (std::size_t j = 0; j < width; ++j)
                wrong += result[i * width + j] != static_cast<float>(k * (i + 1) * (j % 4));
        REQUIRE(wrong == 0);
        // With three significant bits the sums of 3 are 3, 6, 8, 12, 16, 20, 24, 28, 32, 32. Promoted every two
        // products, five sums of 6 are 30.
        constexpr FloatFormat e8m2 = make_format({8, 2, 127});
        sums({.sums = e8m2});
        REQUIRE(result[3] == 32.0f);
        sums({.sums = e8m2, .run_length = 2});
        REQUIRE(result[3] == 30.0f);
    }
}
