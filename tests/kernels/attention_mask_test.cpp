// SPDX-License-Identifier: MIT
#include <unitscale/kernels/attention_mask.hpp>

#include "support/catch.hpp"

#include <unitscale/formats/float_arithmetic.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

using namespace unitscale;
using kernels::AttentionMask;

namespace {
constexpr float hidden = AttentionMask::hidden;
}

TEST_CASE("attention mask: lengths end the keys of each item") {
    const std::array<std::size_t, 2> lengths = {5, 0};
    const AttentionMask mask{.lengths = lengths.data()};
    CHECK(mask.hides());
    CHECK(mask.seen(0, 9) == 5);
    CHECK(mask.seen(0, 3) == 3);
    CHECK(mask.seen(1, 9) == 0);
    CHECK(AttentionMask{}.seen(1, 9) == 9);
    CHECK_FALSE(AttentionMask{}.hides());
    CHECK(mask.hides_all(1, 0, 0, 0, 0));
    CHECK_FALSE(mask.hides_all(0, 0, 0, 0, 5));
}

TEST_CASE("attention mask: a window begins its size before the end by causality") {
    const AttentionMask mask{.window = 3};
    CHECK(mask.first(2) == 0);
    CHECK(mask.first(3) == 0);
    CHECK(mask.first(4) == 1);
    CHECK(mask.first(9) == 6);
    CHECK(AttentionMask{}.first(9) == 0);
    CHECK(mask.hides_all(0, 0, 0, 6, 6));
    CHECK(mask.hides_all(0, 0, 0, 6, 5));  // a window behind the end of a padded row
    CHECK_FALSE(mask.hides_all(0, 0, 0, 6, 7));
}

TEST_CASE(
    "attention mask: the bias is added to logits, hides keys whatever they hold, and repeats where strides are 0") {
    // [B = 2, 1, T = 2, S = 3]
    const std::array<float, 12> numbers = {0.0f,   1.0f, hidden, -1.0f,  2.0f,   0.5f,
                                           hidden, 0.0f, 0.0f,   hidden, hidden, hidden};
    const AttentionMask mask{.bias = numbers.data(), .batch_stride = 6, .query_stride = 3};
    const float nan = std::numeric_limits<float>::quiet_NaN();
    for (const std::ptrdiff_t head : {0, 7}) {
        std::vector<float> row = {1.0f, 2.0f, nan};
        mask.add_bias(row.data(), 0, head, 0, 3, 4.0f);
        CHECK(row == std::vector<float>{1.0f, 6.0f, hidden});
        mask.replace_hidden(row.data(), 0, head, 0, 3, -7.0f);
        CHECK(row == std::vector<float>{1.0f, 6.0f, -7.0f});
    }
    std::vector<double> second = {1.0, 2.0, 3.0};
    mask.add_bias(second.data(), 0, 0, 1, 2, 1.0);
    CHECK(second == std::vector<double>{0.0, 4.0, 3.0});
    CHECK(mask.hides_all(1, 0, 1, 0, 3));
    CHECK(mask.hides_all(1, 0, 0, 0, 1));
    CHECK_FALSE(mask.hides_all(1, 0, 0, 0, 2));
    CHECK(mask.hides_all(0, 0, 0, 2, 3));
    std::vector<float> untouched = {1.0f};
    AttentionMask{}.add_bias(untouched.data(), 0, 0, 0, 1, 1.0f);
    AttentionMask{}.replace_hidden(untouched.data(), 0, 0, 0, 1, 9.0f);
    CHECK(untouched[0] == 1.0f);
}

TEST_CASE("attention mask: dropout keeps a share of a row's weights, by its number alone") {
    const AttentionMask mask{.dropout = 0.25, .key = {3, 4}};
    constexpr std::ptrdiff_t keys = 1001, rows = 20;
    std::size_t dropped = 0;
    std::vector<float> before;
    for (std::ptrdiff_t r = 0; r < rows; ++r) {
        std::vector<float> row(keys, 2.0f), again(keys, 2.0f);
        for (const Isa isa : {active_isa(), Isa::baseline}) {
            row.assign(keys, 2.0f);
            mask.drop(isa, row.data(), r, keys, keys, 1.5f);
            mask.drop(isa, again.data(), r, keys, 300, 1.5f);
            CHECK(std::equal(again.begin(), again.begin() + 300, row.begin()));
            CHECK(std::all_of(again.begin() + 300, again.end(), [](float x) { return x == 2.0f; }));
            std::fill(again.begin(), again.end(), 2.0f);
        }
        CHECK(std::all_of(row.begin(), row.end(), [](float x) { return x == 0.0f || x == 3.0f; }));
        dropped += static_cast<std::size_t>(std::count(row.begin(), row.end(), 0.0f));
        CHECK(row != before);
        before = row;
    }
    const double count = static_cast<double>(rows * keys);
    CHECK(static_cast<double>(dropped) == Approx(0.25 * count).margin(5.0 * std::sqrt(count * 0.25 * 0.75)));
}
