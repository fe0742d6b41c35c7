// SPDX-License-Identifier: MIT
#include <unitscale/record/key_value_rows.hpp>
#include <unitscale/tensor/fill.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

using namespace unitscale;
using ops::CachedCall;
using ops::KeyValueRows;

namespace {

ops::AttentionSizes sizes_of(std::size_t batch, std::size_t tokens, std::size_t window = 0) {
    return {.batch = batch, .heads = 4, .groups = 2, .queries = tokens, .keys = tokens, .depth = 3, .window = window};
}

}  // namespace

TEST_CASE("key value rows: without spans every row continues its item by all tokens") {
    std::vector<float> keys(2 * 2 * 10 * 3), values(keys);
    const KeyValueRows<float> past{keys.data(), values.data(), 2, 10, 6, 4, {}};
    const CachedCall<float> call(past, sizes_of(2, 5));
    CHECK(call.spans() == std::vector<kernels::CachedSpan>{{0, 4, 5}, {1, 4, 5}});
    CHECK(call.longest() == 9);
    CHECK(call.part() == 5);
    CHECK(call.together());
    CHECK(call.pairs() == 2 * 4 * (5 + 6 + 7 + 8 + 9));
}

TEST_CASE("key value rows: a window's ring takes as many tokens at a time as leave each query its keys") {
    std::vector<float> keys(2 * 7 * 3), values(keys);
    const auto part = [&](std::size_t length, std::size_t tokens, std::size_t window) {
        const KeyValueRows<float> past{keys.data(), values.data(), 1, 7, 6, length, {}};
        const CachedCall<float> call(past, sizes_of(1, tokens, window));
        CHECK(call.together() == (call.part() == tokens));
        return call.part();
    };
    CHECK(part(0, 7, 4) == 7);  // no position is overwritten
    CHECK(part(0, 8, 4) == 4);  // 4 - 1 positions before the first query's, and 4 tokens
    CHECK(part(5, 3, 4) == 3);
    CHECK(part(5, 30, 7) == 1);
    const KeyValueRows<float> past{keys.data(), values.data(), 1, 7, 6, 5, {}};
    CHECK(CachedCall<float>(past, sizes_of(1, 3, 4)).pairs() == 4 * (4 + 4 + 4));
}

TEST_CASE("key value rows: writes the tokens that count, behind each item's positions") {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> keys(3 * 2 * 4 * 3, nan), values(keys);
    const KeyValueRows<float> past{keys.data(), values.data(), 3, 4, 6, 0, {{2, 1, 2}, {0, 0, 1}}};
    const CachedCall<float> call(past, sizes_of(2, 3));
    CHECK_FALSE(call.together());
    CHECK(call.longest() == 3);
    const Tensor<float> k = normal<float>({2, 3, 6}, {1, 1}), v = normal<float>({2, 3, 6}, {1, 2});
    call.write(k, v, 0, 1);
    call.write(k, v, 1, 3);
    const auto line = [](const std::vector<float>& of, std::size_t item, std::size_t group, std::size_t position) {
        const auto from = of.begin() + static_cast<std::ptrdiff_t>(((item * 2 + group) * 4 + position) * 3);
        return std::vector<float>(from, from + 3);
    };
    const auto head = [](const Tensor<float>& of, std::size_t b, std::size_t i, std::size_t group) {
        const float* const from = of.data() + (b * 3 + i) * 6 + group * 3;
        return std::vector<float>(from, from + 3);
    };
    for (std::size_t group = 0; group < 2; ++group) {
        CHECK(line(keys, 2, group, 1) == head(k, 0, 0, group));
        CHECK(line(keys, 2, group, 2) == head(k, 0, 1, group));
        CHECK(line(values, 2, group, 2) == head(v, 0, 1, group));
        CHECK(line(values, 0, group, 0) == head(v, 1, 0, group));
    }
    CHECK(std::count_if(keys.begin(), keys.end(), [](float x) { return x == x; }) == 3 * 6);
}

TEST_CASE("key value rows: errors name rows and buffers that do not fit") {
    std::vector<float> keys(2 * 2 * 8 * 3), values(keys);
    const auto call = [&](std::vector<kernels::CachedSpan> spans, std::size_t window = 0, std::size_t length = 0) {
        const KeyValueRows<float> past{keys.data(), values.data(), 2, 8, 6, length, std::move(spans)};
        return CachedCall<float>(past, sizes_of(2, 3, window)).part();
    };
    CHECK(call({}) == 3);
    CHECK_THROWS_WITH(call({{0, 0, 3}}), "cached_attention: buffers for 1 x 6 columns do not fit k [2,3,6]");
    CHECK_THROWS_WITH(call({{0, 0, 3}, {2, 0, 3}}),
                      "cached_attention: a row of 3 tokens for item 2; expected at most 3 for one of 2 items");
    CHECK_THROWS_WITH(call({{0, 0, 4}, {1, 0, 3}}),
                      "cached_attention: a row of 4 tokens for item 0; expected at most 3 for one of 2 items");
    CHECK_THROWS_WITH(call({{0, 0, 3}, {1, -1, 3}}),
                      "cached_attention: -1 positions and 3 more; the buffers end at 8");
    CHECK_THROWS_WITH(call({}, 0, 6), "cached_attention: 6 positions and 3 more; the buffers end at 8");
    CHECK_THROWS_WITH(call({}, 9, 6), "cached_attention: 6 positions and 3 more; the buffers end at 8");
    CHECK(call({}, 8, 6) == 1);
}
