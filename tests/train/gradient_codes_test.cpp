// SPDX-License-Identifier: MIT
#include <unitscale/train/gradient_codes.hpp>

#include "support/catch.hpp"

#include <unitscale/base/random.hpp>
#include <unitscale/formats/quantise.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

using namespace unitscale;

namespace {

constexpr RandomKey key{3, 4};

/// n numbers of falling size.
std::vector<float> numbers(std::size_t n) {
    std::vector<float> x(n);
    for (std::size_t i = 0; i < n; ++i)
        x[i] = static_cast<float>(std::ldexp(random_normal({1, 2}, i), -static_cast<int>(i * 24 / n)));
    return x;
}

std::vector<float> largest_of(const Communication& rule, const std::vector<float>& x) {
    std::vector<float> largest(train::block_count(rule, x.size()), 0.0f);
    train::measure_blocks(rule, x.data(), 0, x.size(), largest.data());
    return largest;
}

/// The numbers after a journey in `parts` parts.
std::vector<float> sent(const Communication& rule, const std::vector<float>& x, std::size_t parts,
                        const std::vector<float>& largest) {
    std::vector<float> got(x.size());
    for (std::size_t r = 0; r < parts; ++r) {
        const std::size_t begin = train::part_begin(rule, x.size(), r, parts),
                          end = train::part_begin(rule, x.size(), r + 1, parts);
        std::vector<std::byte> codes((end - begin) * train::code_bytes(rule));
        train::encode_blocks(Execution{}, rule, x.data() + begin, begin, end, largest.data(), key, codes.data());
        train::decode_blocks(Execution{}, rule, codes.data(), begin, end, largest.data(), got.data() + begin);
    }
    return got;
}

}  // namespace

TEST_CASE("gradients travel rounded to the format of their block, whatever the parts") {
    const std::vector<float> x = numbers(10'000);
    for (const FloatFormat& format : {fp32, tf32, bf16, fp16, e5m2, e4m3, e2m1})
        for (const std::size_t block : {0u, 16u, 128u, 8192u})
            for (const Rounding rounding : {Rounding::nearest_even, Rounding::stochastic}) {
                const Communication rule{.element = {.format = format, .rounding = rounding}, .block = block};
                INFO(name(format) << " by " << block << ", rounding " << static_cast<int>(rounding));
                const std::vector<float> largest = largest_of(rule, x);
                std::vector<float> expected(x.size());
                for (std::size_t i = 0; i < x.size(); ++i) {
                    const std::size_t b = block == 0 ? 0 : i / block;
                    QuantiseOptions options = rule.element.options(key);
                    expected[i] = quantise(train::block_format(rule, largest[b]), x[i], options, i);
                }
                for (const std::size_t parts : {1u, 2u, 3u}) CHECK(sent(rule, x, parts, largest) == expected);
            }
    CHECK(train::code_bytes({.element = {.format = e2m1}}) == 1);
    CHECK(train::code_bytes({.element = {.format = bf16}}) == 2);
    CHECK(train::code_bytes({.element = {.format = fp32}}) == 4);
}

TEST_CASE("the largest magnitude of a block fits its format, with the margin") {
    for (const int margin : {0, 2})
        for (const float largest : {1e-20f, 0.75f, 3e8f}) {
            const FloatFormat format = train::block_format({.margin = margin}, largest);
            CHECK(format.max() >= largest * std::ldexp(1.0f, margin));
            CHECK(format.max() < 2.0f * largest * std::ldexp(1.0f, margin));
        }
    CHECK(train::block_format({.element = {.format = bf16}}, 1e-20f) == bf16);
    CHECK(train::block_format({}, 0.0f) == e4m3);
}

TEST_CASE("blocks of a gradient, and the parts of processes") {
    const Communication whole{}, by_128{.block = 128};
    CHECK(train::block_count(whole, 1000) == 1);
    CHECK(train::block_count(by_128, 1000) == 8);
    CHECK(train::part_begin(whole, 1000, 1, 3) == 333);
    CHECK(train::part_begin(by_128, 1000, 1, 3) == 256);
    CHECK(train::part_begin(by_128, 1000, 3, 3) == 1000);
    CHECK(train::part_begin(by_128, 100, 1, 3) == 0);  // the one block is the last process's
}

TEST_CASE("a block that is not finite arrives as NaN, and its neighbours as they are") {
    const Communication rule{.block = 16};
    for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
        std::vector<float> x(48, 1.0f);
        x[20] = bad;
        const std::vector<float> largest = largest_of(rule, x);
        CHECK(largest == std::vector<float>{1.0f, std::numeric_limits<float>::infinity(), 1.0f});
        const std::vector<float> got = sent(rule, x, 2, largest);
        for (std::size_t i = 0; i < x.size(); ++i) {
            if (i / 16 == 1) CHECK(std::isnan(got[i]));
            else CHECK(got[i] == 1.0f);
        }
    }
}
