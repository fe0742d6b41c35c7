// SPDX-License-Identifier: MIT
#include <unitscale/record/attention_sizes.hpp>

#include "support/catch.hpp"

#include <unitscale/tensor/fill.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

using namespace unitscale;
using ops::attention_bias;
using ops::AttentionMask;
using ops::mean_keys;
using ops::seen_pairs;
using ops::view_mask;

namespace {

constexpr float hidden = kernels::AttentionMask::hidden;
/// B = 2, H = 3, T = 4, S = 5.
ops::AttentionSizes sizes_of(const AttentionMask& mask, bool causal = false, std::size_t keys = 5) {
    return {.batch = 2, .heads = 3, .queries = 4, .keys = keys, .causal = causal, .mask = mask};
}

AttentionMask with_bias(const Shape& shape) { return {.bias = attention_bias(full<float>(shape, 1.0))}; }

}  // namespace

TEST_CASE("attention mask: a bias of numbers, or of what is seen, broadcasts to [B,H,T,S]") {
    const auto seen = attention_bias(Tensor<std::int32_t>({1, 4}, {1, 0, 7, 0}));
    CHECK(seen->numbers(0, 0) == 0.0f);
    CHECK(seen->numbers(0, 1) == hidden);
    CHECK(seen->numbers(0, 2) == 0.0f);
    CHECK(seen->seen == 0.5);
    CHECK(attention_bias(Tensor<float>({1, 2}, {-3.0f, hidden}))->seen == 0.5);
    CHECK_THROWS_WITH(attention_bias(Tensor<float>({1, 1}, {std::numeric_limits<float>::infinity()})),
                      "attention_bias: holds inf; expected finite numbers or -infinity");
    CHECK_THROWS_WITH(attention_bias(Tensor<float>({1, 1}, {std::numeric_limits<float>::quiet_NaN()})),
                      "attention_bias: holds nan; expected finite numbers or -infinity");

    struct Case {
        Shape shape;
        std::ptrdiff_t batch, head, query;
    };
    const std::vector<Case> cases = {{{4, 5}, 0, 0, 5},       {{1, 5}, 0, 0, 0},        {{2, 4, 5}, 20, 0, 5},
                                     {{2, 1, 5}, 5, 0, 0},    {{1, 4, 5}, 0, 0, 5},     {{2, 3, 4, 5}, 60, 20, 5},
                                     {{2, 1, 1, 5}, 5, 0, 0}, {{1, 3, 4, 5}, 0, 20, 5}, {{1, 3, 1, 5}, 0, 5, 0}};
    for (const Case& c : cases) {
        INFO(to_string(c.shape));
        const AttentionMask mask = with_bias(c.shape);
        CHECK_NOTHROW(check_mask("attention", sizes_of(mask)));
        const ops::AttentionSizes sizes = sizes_of(mask);
        const kernels::AttentionMask view = view_mask(sizes);
        CHECK(view.bias == mask.bias->numbers.data());
        CHECK(view.batch_stride == c.batch);
        CHECK(view.head_stride == c.head);
        CHECK(view.query_stride == c.query);
    }
}

TEST_CASE("attention mask: errors name what does not fit") {
    const auto message = [](const AttentionMask& mask, bool causal = false) {
        check_mask("attention", sizes_of(mask, causal));
    };
    CHECK_THROWS_WITH(message({.lengths = {3}}), "attention: 1 lengths; expected one for each of 2 batch items");
    CHECK_THROWS_WITH(message({.lengths = {3, 6}}), "attention: length 6; expected at most 5 keys");
    CHECK_THROWS_WITH(message({.lengths = {3, 5}}, true),
                      "attention: 4 queries and 5 keys; causal attention with lengths needs as many keys as queries");
    for (const Shape& shape : {Shape{5}, Shape{4, 1}, Shape{3, 5}, Shape{3, 4, 5}, Shape{2, 2, 4, 5}})
        CHECK_THROWS_WITH(message(with_bias(shape)),
                          "attention: bias " + to_string(shape) +
                              "; expected [T,S], [B,T,S] or [B,H,T,S] of [2,3,4,5], where all extents but S may be 1");
}

TEST_CASE("attention mask: the mean number of keys, and the pairs that products count") {
    CHECK(mean_keys(sizes_of({})) == 5.0);
    CHECK(mean_keys(sizes_of({.lengths = {5, 2}})) == 3.5);
    const auto half = attention_bias(Tensor<std::int32_t>({2, 5}, {1, 1, 1, 1, 1, 0, 0, 0, 0, 0}));
    CHECK(mean_keys(sizes_of({.bias = half})) == 2.5);
    CHECK(mean_keys(sizes_of({.lengths = {4, 2}, .bias = half})) == 1.5);
    CHECK(seen_pairs(sizes_of({})) == 2 * 3 * 4 * 5);
    CHECK(seen_pairs(sizes_of({.lengths = {5, 2}})) == 3 * (4 * 5 + 4 * 2));
    CHECK(seen_pairs(sizes_of({}, true, 4)) == 2 * 3 * 10);
    CHECK(seen_pairs(sizes_of({.lengths = {2, 4}}, true, 4)) == 3 * (1 + 2 + 2 + 2 + 10));
    CHECK(seen_pairs({.queries = 2, .keys = 5}) == 4 + 5);
    CHECK(seen_pairs({.queries = 2, .keys = 5, .window = 3}) == 3 + 3);
    CHECK(seen_pairs({.queries = 4, .keys = 4, .window = 2}) == 1 + 2 + 2 + 2);
    CHECK(seen_pairs({.batch = 1, .queries = 4, .keys = 4, .window = 2, .mask = {.lengths = {2}}}) == 1 + 2 + 1 + 0);
}

TEST_CASE("attention sizes: from shapes and options") {
    const ops::AttentionSizes sizes =
        ops::attention_sizes("attention", {2, 3, 8}, {2, 5, 4}, {2, 5, 4},
                             {.heads = 4, .groups = 2, .mult = 3.0, .causal = false, .mask = {.lengths = {5, 5}}});
    CHECK(sizes.batch == 2);
    CHECK(sizes.heads == 4);
    CHECK(sizes.groups == 2);
    CHECK(sizes.queries == 3);
    CHECK(sizes.keys == 5);
    CHECK(sizes.depth == 2);
    CHECK(sizes.mult == 3.0);
    CHECK(sizes.factor_length == 5.0);
    CHECK(sizes.query_rows() == Shape{2, 4, 3, 2});
    CHECK(sizes.key_rows() == Shape{2, 2, 5, 2});
    CHECK(ops::attention_sizes("attention", {1, 1, 1}, {1, 3, 1}, {1, 3, 1}, {.factor_length = 9}).factor_length ==
          9.0);
    CHECK(ops::attention_sizes("attention", {1, 1, 1}, {1, 3, 1}, {1, 3, 1}, {.window = 2}).window == 2);
    CHECK_THROWS_WITH(ops::attention_sizes("mine", {1, 3, 1}, {1, 3, 1}, {1, 3, 1}, {.causal = false, .window = 2}),
                      "mine: a window of 2 keys without causality; expected 0");
    CHECK_THROWS_WITH(ops::attention_sizes("mine", {1, 2, 3}, {1, 2, 3}, {1, 2, 3}, {.heads = 2}),
                      "mine: q [1,2,3] is not divisible by 2 heads");
}
