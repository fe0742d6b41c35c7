// SPDX-License-Identifier: MIT
#include <unitscale/ops/cached_attention.hpp>
#include <unitscale/ops/slice.hpp>

#include "support/op_checks.hpp"
#include "support/test_ops.hpp"

#include <unitscale/formats/quantise.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

using namespace unitscale;

namespace {

constexpr StepOptions inference{.training = false, .gradients = false};

template <class T>
struct Buffers {
    Tensor<T> keys, values;
    std::size_t length = 0;

    Buffers(std::size_t batch, std::size_t groups, std::size_t capacity, std::size_t depth)
        : keys(full<T>({batch, groups, capacity, depth}, std::numeric_limits<T>::quiet_NaN())), values(keys) {}
    [[nodiscard]] ops::KeyValueRows<T> rows() {
        return {keys.data(), values.data(), keys.dim(0), keys.dim(2), keys.dim(1) * keys.dim(3), length};
    }
};

}  // namespace

TEMPLATE_TEST_CASE("cached_attention: a sequence in parts of any sizes gives the rows of attention", "[ops]", float,
                   double) {
    using T = TestType;
    for (const Scaling scaling : {Scaling::none, Scaling::unit}) {
        test::OpTape<T> t(scaling, inference);
        const auto q = t.input({2, 9, 32}, 1), k = t.input({2, 9, 16}, 2), v = t.input({2, 9, 16}, 3);
        const ops::AttentionOptions options{.heads = 4, .groups = 2, .mult = 2.0, .factor_length = 9};
        const std::vector<T> whole = test::elements(ops::attention(q, k, v, options).value());
        for (const std::vector<std::size_t>& starts :
             {std::vector<std::size_t>{0, 9}, {0, 1, 2, 7, 9}, {0, 5, 6, 7, 8, 9}}) {
            Buffers<T> buffers(2, 2, 12, 8);
            for (std::size_t part = 0; part + 1 < starts.size(); ++part) {
                const std::size_t begin = starts[part], end = starts[part + 1];
                const auto rows = [&](const Variable<T>& x) {
                    return ops::slice(x, {0, begin, 0}, {2, end, x.shape()[2]});
                };
                const Variable<T> y = ops::cached_attention(rows(q), rows(k), rows(v), buffers.rows(), options);
                REQUIRE(y.shape() == Shape{2, end - begin, 32});
                for (std::size_t b = 0; b < 2; ++b)
                    CHECK(std::equal(y.value().data() + b * (end - begin) * 32,
                                     y.value().data() + (b + 1) * (end - begin) * 32,
                                     whole.data() + (b * 9 + begin) * 32));
                buffers.length = end;
            }
            for (std::size_t b = 0; b < 2; ++b)
                for (std::size_t group = 0; group < 2; ++group)
                    for (std::size_t i = 0; i < 12; ++i) {
                        const T kept = buffers.keys(b, group, i, 3), value = buffers.values(b, group, i, 7);
                        if (i < 9)
                            CHECK((kept == k.value()(b, i, group * 8 + 3) && value == v.value()(b, i, group * 8 + 7)));
                        else CHECK(std::isnan(static_cast<double>(kept)));  // nothing is written behind the 9 positions
                    }
        }
    }
}

TEST_CASE("cached_attention: runs at attention's site, with its factor") {
    const auto run = [](auto&& op) {
        test::OpTape<float> t(Scaling::unit, inference);
        const auto scope = t.tape.scope("block");
        const auto q = t.input({1, 1, 8}, 1), k = t.input({1, 1, 8}, 2), v = t.input({1, 1, 8}, 3);
        static_cast<void>(op(q, k, v));
        const auto& node = t.tape.node(t.tape.node_count() - 1);
        CHECK(node.alpha == ops::attention_unit_factor(1.0, 4, 64, true));
        return t.state.path(node.site);
    };
    const ops::AttentionOptions options{.heads = 2, .factor_length = 64};
    Buffers<float> buffers(1, 2, 3, 4);
    CHECK(run([&](auto q, auto k, auto v) { return ops::attention(q, k, v, options); }) == "block/attention");
    CHECK(run([&](auto q, auto k, auto v) { return ops::cached_attention(q, k, v, buffers.rows(), options); }) ==
          "block/attention");
}

TEST_CASE("cached_attention: errors name the shape or option that does not fit") {
    Buffers<float> buffers(2, 2, 5, 4);
    const auto message = [&](const Shape& q, const Shape& k, const Shape& v, const ops::AttentionOptions& options,
                             const StepOptions& step = inference, Scaling scaling = Scaling::none) {
        test::OpTape<float> t(scaling, step);
        try {
            static_cast<void>(
                ops::cached_attention(t.input(q, 1), t.input(k, 2), t.input(v, 3), buffers.rows(), options));
        } catch (const Error& error) {
            return std::string(error.what());
        }
        return std::string("none");
    };
    const Shape x{2, 3, 8};
    CHECK(message(x, x, x, {.heads = 2}) == "none");
    CHECK(message(x, x, x, {.heads = 2}, {}) ==
          "cached_attention: this step records gradients; begin it with gradients = false");
    CHECK(message(x, x, x, {.heads = 2, .causal = false}) ==
          "cached_attention: causal is false; tokens to come would change the outputs of those before");
    CHECK(message({3, 8}, x, x, {}) ==
          "cached_attention: q [3,8], k [2,3,8] and v [2,3,8]; expected [B,T,H d], [B,S,G d] and [B,S,G d]");
    CHECK(message(x, x, x, {.heads = 4, .groups = 3}) ==
          "cached_attention: 4 heads and 3 groups; expected groups to divide heads");
    CHECK(message(x, x, x, {.heads = 3}) == "cached_attention: q [2,3,8] is not divisible by 3 heads");
    CHECK(message(x, {2, 2, 8}, x, {.heads = 2}) ==
          "cached_attention: q [2,3,8], k [2,2,8] and v [2,3,8] do not fit; expected k and v [2,S,8]");
    CHECK(message(x, {2, 4, 8}, {2, 4, 8}, {.heads = 2}) ==
          "cached_attention: 3 queries and 4 keys; expected one key for each query");
    CHECK(message(x, x, x, {.mask = {.lengths = {3, 3}}}) == "cached_attention: has no masks; expected an empty mask");
    CHECK(message({1, 3, 8}, {1, 3, 8}, {1, 3, 8}, {}) ==
          "cached_attention: buffers for 2 x 8 columns do not fit k [1,3,8]");
    CHECK(message({2, 3, 4}, {2, 3, 4}, {2, 3, 4}, {}) ==
          "cached_attention: buffers for 2 x 8 columns do not fit k [2,3,4]");
    CHECK(message(x, x, x, {.mult = 0.0}) == "cached_attention: mult is 0; expected a positive number");
    CHECK(message(x, x, x, {}, inference, Scaling::unit) ==
          "cached_attention: no factor_length; under unit scaling the factor would change from token to token");
    buffers.length = 3;
    CHECK(message(x, x, x, {}) == "cached_attention: 3 positions and 3 more; the buffers end at 5");
}

TEST_CASE("cached_attention: propagates scales as attention does, to the bit") {
    test::OpTape<float> t(Scaling::propagate, inference);
    const auto at = [&](std::size_t width, std::uint64_t stream, double scale) {
        return t.tape.input(set_scaling(normal<float>({2, 9, width}, {1, stream}), scale));
    };
    const auto q = at(32, 1, 0x1p-4), k = at(16, 2, 8.0), v = at(16, 3, 0x1p-6);
    const ops::AttentionOptions options{.heads = 4, .groups = 2, .mult = 2.0, .factor_length = 9};
    const auto whole = ops::attention(q, k, v, options);
    Buffers<float> buffers(2, 2, 9, 8);
    const auto y = ops::cached_attention(q, k, v, buffers.rows(), options);
    CHECK(t.state.wide_ops().empty());
    CHECK(y.scaled().scale() == whole.scaled().scale());
    CHECK(y.scaled().scale() < 0x1p-6);
    CHECK(test::elements(y.scaled()) == test::elements(whole.scaled()));
    CHECK(buffers.keys(0, 0, 0, 3) == k.value()(0, 0, 3));  // plain numbers
}

namespace {

/// Buffers in a format, in any number of lines.
struct CodedBuffers {
    kernels::LineCoder<float> coder;
    std::size_t batch, groups, capacity, depth, length = 0;
    std::vector<std::byte> keys, values;
    std::vector<std::uint8_t> key_scales, value_scales;

    CodedBuffers(const std::optional<FloatFormat>& format, std::size_t items, std::size_t heads, std::size_t lines,
                 std::size_t size)
        : coder(format),
          batch(items),
          groups(heads),
          capacity(lines),
          depth(size),
          keys(items * heads * lines * size * coder.element_size(), std::byte{255}),  // NaN
          values(keys),
          key_scales(items * heads * lines, 255),
          value_scales(key_scales) {}
    [[nodiscard]] ops::KeyValueRows<float> rows(std::vector<kernels::CachedSpan> spans = {}) {
        const bool scaled = coder.scale_size() > 0;
        return {{keys.data(), scaled ? key_scales.data() : nullptr, coder},
                {values.data(), scaled ? value_scales.data() : nullptr, coder},
                batch,
                capacity,
                groups * depth,
                length,
                std::move(spans)};
    }
};

/// x [B,T,G d] with each head of each position rounded by the rule of codes, from its definition: the least power of
/// two s with amax / s at most the format's largest number, and x / s rounded to nearest even.
Tensor<float> rounded_heads(const FloatFormat& format, const Tensor<float>& x, std::size_t depth) {
    Tensor<float> result(x.shape());
    for (std::size_t at = 0; at < x.size(); at += depth) {
        float amax = 0.0f, s = 0x1p-60f;
        for (std::size_t l = 0; l < depth; ++l) amax = std::max(amax, std::abs(x.data()[at + l]));
        while (amax / s > format.max()) s *= 2.0f;
        for (std::size_t l = 0; l < depth; ++l) result.data()[at + l] = s * quantise(format, x.data()[at + l] / s);
    }
    return result;
}

}  // namespace

TEST_CASE("cached_attention: buffers of codes give the bits of attention over keys and values rounded by their rule") {
    for (const Scaling scaling : {Scaling::none, Scaling::unit})
        for (const FloatFormat& format : {e4m3, e5m2, e3m2}) {
            test::OpTape<float> t(scaling, inference);
            const auto q = t.input({2, 9, 32}, 1), k = t.input({2, 9, 16}, 2), v = t.input({2, 9, 16}, 3);
            const ops::AttentionOptions options{.heads = 4, .groups = 2, .mult = 2.0, .factor_length = 9};
            const auto rounded_k = t.tape.input(rounded_heads(format, k.value(), 8)),
                       rounded_v = t.tape.input(rounded_heads(format, v.value(), 8));
            const auto whole = test::elements(ops::attention(q, rounded_k, rounded_v, options).value());
            CHECK(whole != test::elements(ops::attention(q, k, v, options).value()));
            for (const std::vector<std::size_t>& starts :
                 {std::vector<std::size_t>{0, 9}, {0, 1, 2, 7, 9}, {0, 5, 6, 7, 8, 9}}) {
                CodedBuffers buffers(format, 2, 2, 12, 8);
                for (std::size_t part = 0; part + 1 < starts.size(); ++part) {
                    const std::size_t begin = starts[part], end = starts[part + 1];
                    const auto rows = [&](const Variable<float>& x) {
                        return ops::slice(x, {0, begin, 0}, {2, end, x.shape()[2]});
                    };
                    const auto y = ops::cached_attention(rows(q), rows(k), rows(v), buffers.rows(), options);
                    for (std::size_t b = 0; b < 2; ++b)
                        CHECK(std::equal(y.value().data() + b * (end - begin) * 32,
                                         y.value().data() + (b + 1) * (end - begin) * 32,
                                         whole.data() + (b * 9 + begin) * 32));
                    buffers.length = end;
                }
            }
        }
}

TEST_CASE("cached_attention: with a window, a ring of lines gives the rows of attention, in parts of any sizes") {
    for (const std::size_t window : {1u, 4u, 20u}) {
        test::OpTape<float> t(Scaling::unit, inference);
        const auto q = t.input({1, 40, 16}, 1), k = t.input({1, 40, 16}, 2), v = t.input({1, 40, 16}, 3);
        const ops::AttentionOptions options{.heads = 2, .factor_length = 40, .window = window};
        const auto whole = test::elements(ops::attention(q, k, v, options).value());
        for (const std::size_t lines : {window, window + 6})
            for (const std::vector<std::size_t>& starts : {std::vector<std::size_t>{0, 40}, {0, 3, 4, 25, 26, 40}}) {
                CodedBuffers buffers({}, 1, 2, lines, 8);
                for (std::size_t part = 0; part + 1 < starts.size(); ++part) {
                    const std::size_t begin = starts[part], end = starts[part + 1];
                    const auto rows = [&](const Variable<float>& x) {
                        return ops::slice(x, {0, begin, 0}, {1, end, 16});
                    };
                    const auto y = ops::cached_attention(rows(q), rows(k), rows(v), buffers.rows(), options);
                    CHECK(std::equal(y.value().data(), y.value().data() + y.value().size(), whole.data() + begin * 16));
                    buffers.length = end;
                }
            }
    }
}

TEST_CASE("cached_attention: rows of several lengths have the bits of the rows alone; padding is 0 and not written") {
    test::OpTape<float> t(Scaling::unit, inference);
    const auto q = t.input({2, 5, 16}, 1), k = t.input({2, 5, 16}, 2), v = t.input({2, 5, 16}, 3);
    const ops::AttentionOptions options{.heads = 2, .factor_length = 9};
    for (const std::optional<FloatFormat>& format : {std::optional<FloatFormat>{}, {e4m3}}) {
        CodedBuffers together(format, 3, 2, 8, 8);
        const auto y = ops::cached_attention(q, k, v, together.rows({{2, 0, 5}, {0, 0, 3}}), options);
        const auto more = ops::cached_attention(q, k, v, together.rows({{0, 3, 1}, {2, 5, 2}}), options);
        const auto alone = [&](std::size_t first, std::size_t first_count, std::size_t second,
                               std::size_t second_count) {
            CodedBuffers own(format, 1, 2, 8, 8);
            const auto part = [&](const Variable<float>& x, std::size_t row, std::size_t count) {
                return ops::slice(x, {row, 0, 0}, {row + 1, count, 16});
            };
            const auto run = [&](std::size_t row, std::size_t count) {
                const auto result = ops::cached_attention(part(q, row, count), part(k, row, count), part(v, row, count),
                                                          own.rows(), options);
                own.length += count;
                return test::elements(result.value());
            };
            const auto before = run(first, first_count);  // in this order
            return std::pair(before, run(second, second_count));
        };
        const auto starts_with = [&](const Variable<float>& result, std::size_t row, const std::vector<float>& own) {
            const float* const from = result.value().data() + row * 5 * 16;
            CHECK(std::equal(own.begin(), own.end(), from));
            CHECK(std::all_of(from + own.size(), from + 5 * 16, [](float x) { return x == 0.0f; }));
        };
        const auto [first, first_more] = alone(0, 5, 1, 2);
        const auto [second, second_more] = alone(1, 3, 0, 1);
        starts_with(y, 0, first);
        starts_with(y, 1, second);
        starts_with(more, 0, second_more);
        starts_with(more, 1, first_more);
    }
    CodedBuffers buffers({}, 3, 2, 8, 8);
    const auto message = [&](std::vector<kernels::CachedSpan> spans, std::size_t window = 0) {
        try {
            ops::AttentionOptions own = options;
            own.window = window;
            static_cast<void>(ops::cached_attention(q, k, v, buffers.rows(std::move(spans)), own));
        } catch (const Error& error) {
            return std::string(error.what());
        }
        return std::string("none");
    };
    CHECK(message({{0, 0, 5}}) == "cached_attention: buffers for 1 x 16 columns do not fit k [2,5,16]");
    CHECK(message({{0, 0, 5}, {3, 0, 5}}) ==
          "cached_attention: a row of 5 tokens for item 3; expected at most 5 for one of 3 items");
    CHECK(message({{0, 0, 6}, {1, 0, 5}}) ==
          "cached_attention: a row of 6 tokens for item 0; expected at most 5 for one of 3 items");
    CHECK(message({{0, 0, 5}, {1, 4, 5}}) == "cached_attention: 4 positions and 5 more; the buffers end at 8");
    CHECK(message({{0, 0, 5}, {1, 4, 5}}, 9) == "cached_attention: 4 positions and 5 more; the buffers end at 8");
    CHECK(message({{0, 0, 5}, {1, 4, 5}}, 8) == "none");
}
