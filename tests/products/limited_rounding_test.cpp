// SPDX-License-Identifier: MIT
#include <unitscale/base/random.hpp>
#include <unitscale/products/limited_kernels.hpp>
#include <unitscale/products/limited_rounding.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <limits>
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

bool same(float a, float b) { return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b); }

/// Numbers at and beside every boundary of the format, and many others.
std::vector<float> inputs_for(const FloatFormat& format) {
    std::vector<float> inputs{0.0f, -0.0f, 1.0f, FLT_MAX, -FLT_MAX, FLT_MIN, 0x1p-149f, HUGE_VALF, -HUGE_VALF};
    for (const float base : {format.min_normal(), format.min_subnormal(), format.max(), 1.0f})
        for (const float scale : {0.25f, 0.5f, 0.75f, 1.0f, 1.5f, 2.0f, 3.0f})
            for (const float sign : {1.0f, -1.0f}) {
                const float x = sign * scale * base;
                inputs.insert(inputs.end(), {x, std::nextafter(x, 0.0f), std::nextafter(x, HUGE_VALF)});
            }
    const auto half = std::bit_cast<float>(std::bit_cast<std::uint32_t>(format.max()) +
                                           (format.mantissa_bits < 23 ? 1u << (22 - format.mantissa_bits) : 0u));
    inputs.insert(inputs.end(), {half, std::nextafter(half, 0.0f), std::nextafter(-half, -HUGE_VALF)});
    for (std::uint64_t i = 0; i < 3000; ++i) inputs.push_back(std::bit_cast<float>(random_word({3, 1}, i)));
    for (std::uint64_t i = 0; i < 3000; ++i) {  // ties and their neighbours
        const std::uint32_t word = random_word({3, 2}, i),
                            dropped = 23 - static_cast<std::uint32_t>(format.mantissa_bits);
        const std::uint32_t tie = dropped == 0 ? word : ((word >> dropped) << dropped) | (1u << (dropped - 1));
        const float x = std::bit_cast<float>((tie & 0x8FFFFFFFu) | 0x38000000u);
        inputs.push_back(i % 2 == 0 ? x : x * format.min_normal());
    }
    return inputs;
}

/// One column of products a[p] b[p], in every column of the tile's first row.
float first_of_tile(Isa isa, const LimitedConstants& constants, const std::vector<float>& a,
                    const std::vector<float>& b) {
    const auto width = static_cast<std::size_t>(limited_columns(isa));
    std::vector<float> left(a.size() * limited_rows), right(b.size() * width), result(limited_rows * width);
    for (std::size_t p = 0; p < a.size(); ++p) {
        left[p * limited_rows] = a[p];
        std::fill_n(right.begin() + static_cast<std::ptrdiff_t>(p * width), width, b[p]);
    }
    limited_kernels(isa).tile(
        constants, {static_cast<std::ptrdiff_t>(a.size()), left.data(), right.data(), nullptr, nullptr, result.data()});
    for (std::size_t j = 1; j < width; ++j)
        if (!same(result[j], result[0])) return std::numeric_limits<float>::signaling_NaN();
    return result[0];
}

}  // namespace

TEST_CASE("vectors round as round_sum does, with every format, option and instruction set", "[kernels][matmul]") {
    for (const FloatFormat& format : {e8m13, fp32, bf16, tf32, fp16, e5m2, e4m3_ieee, e3m4, make_format({5, 21, 15}),
                                      make_format({7, 9, 63}), make_format({6, 5, 127}), make_format({8, 1, 127})}) {
        const std::vector<float> inputs = inputs_for(format);
        for (const Rounding rounding : {Rounding::nearest_even, Rounding::toward_zero})
            for (const Overflow overflow : {Overflow::to_infinity, Overflow::saturate})
                for (const bool subnormals : {true, false}) {
                    const Accumulate options{
                        .sums = format, .rounding = rounding, .overflow = overflow, .subnormals = subnormals};
                    const LimitedConstants constants = limited_constants(options, fp32, fp32, 1);
                    for (const Isa isa : instruction_sets()) {
                        const auto width = static_cast<std::size_t>(limited_columns(isa));
                        const float left[limited_rows] = {1.0f, -1.0f, 1.0f, 1.0f};
                        std::size_t wrong = 0;
                        for (std::size_t begin = 0; begin < inputs.size(); begin += width) {
                            std::vector<float> right(width), result(limited_rows * width);
                            const std::size_t count = std::min(width, inputs.size() - begin);
                            std::copy_n(inputs.begin() + static_cast<std::ptrdiff_t>(begin), count, right.begin());
                            limited_kernels(isa).prepare(right.data(), nullptr, static_cast<std::ptrdiff_t>(width), 1);
                            limited_kernels(isa).tile(constants,
                                                      {1, left, right.data(), nullptr, nullptr, result.data()});
                            for (std::size_t j = 0; j < count; ++j) {
                                const float x = inputs[begin + j];
                                const float positive = round_sum(options, format, rounding, x) + 0.0f,
                                            negative = is_nan(x) ? x : round_sum(options, format, rounding, -x) + 0.0f;
                                wrong += is_nan(x) ? std::bit_cast<std::uint32_t>(result[j]) != 0x7FC00000u
                                                   : !same(result[j], positive);
                                wrong += is_nan(x) ? std::bit_cast<std::uint32_t>(result[width + j]) != 0x7FC00000u
                                                   : !same(result[width + j], negative);
                            }
                        }
                        CAPTURE(name(format), name(rounding), int(overflow), subnormals, name(isa));
                        REQUIRE(wrong == 0);
                    }
                }
    }
}

TEST_CASE("a fused step rounds once, with and without fused instructions", "[kernels][matmul]") {
    using L = Lanes<16>;
    std::size_t wrong = 0;
    const auto check_one = [&](float a, float b, float c) {
        L::Float left = a - L::Float{}, right = b - L::Float{}, sum = c - L::Float{};
        fuse<L, false>(left, right, sum);
        const float expected = std::fma(a, b, c);
        for (std::size_t l = 0; l < 4; ++l) wrong += is_nan(expected) ? !is_nan(sum[l]) : !same(sum[l], expected);
    };
    for (std::uint64_t i = 0; i < 200000; i += 3) {
        const auto word = [&](std::uint64_t j) { return random_word({4, 1}, i + j); };
        check_one(std::bit_cast<float>(word(0)), std::bit_cast<float>(word(1)), std::bit_cast<float>(word(2)));
        const auto near = [&](std::uint64_t j) {  // exponents close to each other
            return std::bit_cast<float>((word(j) & 0x83FFFFFFu) | 0x3C000000u);
        };
        check_one(near(0), near(1), near(2));
        check_one(near(0), near(1), -near(0) * near(1));                         // the rounding error of the product
        check_one(near(0) * 0x1p-70f, near(1) * 0x1p-70f, near(2) * 0x1p-140f);  // subnormal results
        check_one(near(0) * 0x1p60f, near(1) * 0x1p67f, near(2) * 0x1p104f);     // near overflow
        check_one(1.0f, near(0), near(1) * 0x1p-24f);                            // near ties
    }
    for (const float a : {0.0f, 1.0f, HUGE_VALF, -HUGE_VALF, std::nanf(""), FLT_MAX})
        for (const float b : {0.0f, -1.0f, HUGE_VALF, FLT_MAX, 0x1p-149f})
            for (const float c : {0.0f, -0.0f, 1.0f, HUGE_VALF, -HUGE_VALF, FLT_MAX, 0x1p-149f}) check_one(a, b, c);
    // Sums that double rounds to a tie of float: 8384513 8392705 = 2^46 + 1, (1 + 2^-23) (1 - 2^-23) = 1 - 2^-46.
    for (const float sign : {1.0f, -1.0f}) {
        check_one(8384513.0f, sign * 8392705.0f * 0x1p-70f, sign);
        check_one(8384513.0f, -sign * 8392705.0f * 0x1p-70f, sign * 0x1.000002p0f);
        check_one(0x1.000002p-24f, sign * 0x1.fffffcp-1f, sign * 0x1.000002p0f);
    }
    REQUIRE(wrong == 0);

    // The rounding of fl comes first: 1 + 2^-11 + 2^-35 is a tie for fp16 once float has rounded it.
    const std::vector<float> a{1.0f, 0x1p-11f}, b{1.0f, 1.0f + 0x1p-23f};
    for (const Isa isa : instruction_sets())
        REQUIRE(first_of_tile(isa, limited_constants(mptorch_sums(fp16), fp32, fp32, 2), a, b) == 1.0f);
}
