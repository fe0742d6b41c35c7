// SPDX-License-Identifier: MIT
#include <unitscale/base/random.hpp>
#include <unitscale/kernels/cached_attention.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

using namespace unitscale;
using namespace unitscale::kernels;

namespace {

struct Sizes {
    std::ptrdiff_t heads, groups, depth, positions, window, capacity;
};

/// One sequence: its queries, keys and values, and a cache that holds the last `capacity` positions in a format.
template <class T>
struct Sequence {
    Sizes s;
    std::vector<T> q, k, v;

    explicit Sequence(const Sizes& sizes, std::uint64_t seed) : s(sizes) {
        const auto fill = [&](std::vector<T>& data, std::ptrdiff_t columns, std::uint64_t stream) {
            data.resize(static_cast<std::size_t>(s.positions * columns));
            for (std::size_t i = 0; i < data.size(); ++i) data[i] = element_cast<T>(random_normal({seed, stream}, i));
        };
        fill(q, s.heads * s.depth, 1);
        fill(k, s.groups * s.depth, 2);
        fill(v, s.groups * s.depth, 3);
    }

    /// The numbers of keys or values after a round trip through the coder.
    [[nodiscard]] std::vector<T> rounded(const LineCoder<T>& coder, const std::vector<T>& x) const {
        std::vector<T> result(x.size());
        std::vector<std::byte> bytes(static_cast<std::size_t>(s.depth) * coder.element_size());
        std::vector<Accum<T>> line(static_cast<std::size_t>(s.depth));
        for (std::size_t at = 0; at < x.size(); at += line.size()) {
            std::uint8_t scale = 0;
            coder.store(x.data() + at, line.size(), bytes.data(), &scale);
            coder.load(active_isa(), bytes.data(), &scale, 1, s.depth, line.data());
            for (std::size_t l = 0; l < line.size(); ++l) result[at + l] = element_cast<T>(line[l]);
        }
        return result;
    }

    /// attention_forward over all positions, with rounded keys and values.
    [[nodiscard]] std::vector<T> whole(const LineCoder<T>& coder, Isa isa) const {
        const std::vector<T> keys = rounded(coder, k), values = rounded(coder, v);
        std::vector<T> out(q.size());
        std::vector<Accum<T>> log_sum(static_cast<std::size_t>(s.heads * s.positions));
        const std::ptrdiff_t wide = s.heads * s.depth, narrow = s.groups * s.depth;
        AttentionArguments<T> args{.heads = s.heads,
                                   .groups = s.groups,
                                   .queries = s.positions,
                                   .keys = s.positions,
                                   .depth = s.depth,
                                   .q = {q.data(), 0, wide, s.depth},
                                   .k = {keys.data(), 0, narrow, s.depth},
                                   .v = {values.data(), 0, narrow, s.depth},
                                   .out = {out.data(), 0, wide, s.depth},
                                   .log_sum = log_sum.data(),
                                   .logit_scale = Accum<T>(0.3),
                                   .out_scale = Accum<T>(1.5),
                                   .causal = true};
        args.mask.window = s.window;
        attention_forward_with(isa, {}, args);
        return out;
    }
};

/// Runs sequences as items of one cache, the rows of a call ending at the positions of `ends`, and compares.
template <class T>
void check_batch(const Sizes& sizes, const std::optional<FloatFormat>& format,
                 const std::vector<std::vector<std::ptrdiff_t>>& ends, Isa isa, int threads = 1) {
    const LineCoder<T> coder(format);
    const auto items = static_cast<std::ptrdiff_t>(ends.size());
    std::vector<Sequence<T>> sequences;
    for (std::ptrdiff_t b = 0; b < items; ++b) sequences.emplace_back(sizes, static_cast<std::uint64_t>(b + 1));
    const std::ptrdiff_t lines = items * sizes.groups * sizes.capacity, wide = sizes.heads * sizes.depth,
                         narrow = sizes.groups * sizes.depth;
    // Bytes of all ones are NaN in every format: nothing that is not written may be read.
    std::vector<std::byte> keys(static_cast<std::size_t>(lines * sizes.depth) * coder.element_size(), std::byte{255}),
        values(keys);
    std::vector<std::uint8_t> key_scales(static_cast<std::size_t>(lines), 255), value_scales(key_scales);
    const bool scaled = coder.scale_size() > 0;
    const CachedLines<T> cached_keys(keys.data(), scaled ? key_scales.data() : nullptr, coder),
        cached_values(values.data(), scaled ? value_scales.data() : nullptr, coder);
    for (std::size_t call = 0; call < ends[0].size(); ++call) {
        std::vector<CachedSpan> spans;
        std::ptrdiff_t queries = 0;
        for (std::ptrdiff_t b = items; b-- > 0;) {  // rows in another order than the items
            const auto& own = ends[static_cast<std::size_t>(b)];
            const std::ptrdiff_t past = call == 0 ? 0 : own[call - 1];
            spans.push_back({b, past, own[call] - past});
            queries = std::max(queries, own[call] - past);
        }
        std::vector<T> q(static_cast<std::size_t>(items * queries * wide)), out(q.size(), T(-7));
        for (std::size_t r = 0; r < spans.size(); ++r) {
            const Sequence<T>& own = sequences[static_cast<std::size_t>(spans[r].item)];
            std::copy_n(own.q.begin() + spans[r].past * wide, spans[r].count * wide,
                        q.begin() + static_cast<std::ptrdiff_t>(r) * queries * wide);
            for (std::ptrdiff_t g = 0; g < sizes.groups; ++g)
                for (std::ptrdiff_t i = 0; i < spans[r].count; ++i) {
                    const std::ptrdiff_t p = spans[r].past + i, head = spans[r].item * sizes.groups + g;
                    HeadLines<T>(cached_keys, head, sizes.capacity, sizes.depth)
                        .store(p, own.k.data() + p * narrow + g * sizes.depth);
                    HeadLines<T>(cached_values, head, sizes.capacity, sizes.depth)
                        .store(p, own.v.data() + p * narrow + g * sizes.depth);
                }
        }
        cached_attention_forward_with<T>(isa, {.threads = threads},
                                         {.heads = sizes.heads,
                                          .groups = sizes.groups,
                                          .depth = sizes.depth,
                                          .capacity = sizes.capacity,
                                          .window = sizes.window,
                                          .last_query = queries,
                                          .spans = spans,
                                          .q = {q.data(), queries * wide, wide, sizes.depth},
                                          .out = {out.data(), queries * wide, wide, sizes.depth},
                                          .keys = cached_keys,
                                          .values = cached_values,
                                          .logit_scale = Accum<T>(0.3),
                                          .out_scale = Accum<T>(1.5)});
        for (std::size_t r = 0; r < spans.size(); ++r) {
            const std::vector<T> whole = sequences[static_cast<std::size_t>(spans[r].item)].whole(coder, isa);
            const auto row = out.begin() + static_cast<std::ptrdiff_t>(r) * queries * wide;
            CHECK(std::equal(row, row + spans[r].count * wide, whole.begin() + spans[r].past * wide));
            CHECK(std::all_of(row + spans[r].count * wide, row + queries * wide, [](T x) { return x == T(-7); }));
        }
    }
}

}  // namespace

TEMPLATE_TEST_CASE("cached attention has the bits of attention over rounded keys and values, for rows of any lengths",
                   "[kernels][attention]", float, double) {
    using T = TestType;
    for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512}) {
        if (isa > active_isa()) continue;
        for (const std::optional<FloatFormat>& format :
             {std::optional<FloatFormat>{}, {e4m3}, {e5m2}, {fp16}, {bf16}, {fp32}, {e2m1}}) {
            check_batch<T>({4, 2, 32, 70, 0, 70}, format, {{1, 2, 40, 70}, {33, 37, 37, 70}, {0, 1, 69, 70}}, isa);
            check_batch<T>({3, 1, 20, 40, 0, 45}, format, {{37, 38, 40}, {1, 20, 40}}, isa);
            check_batch<T>({4, 2, 16, 600, 0, 600}, format, {{500, 520, 600}, {597, 598, 600}}, isa, 3);
        }
    }
}

TEST_CASE("cached attention with a window reads the last positions of a ring", "[kernels][attention]") {
    for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512}) {
        if (isa > active_isa()) continue;
        for (const std::optional<FloatFormat>& format : {std::optional<FloatFormat>{}, {e4m3}, {bf16}}) {
            check_batch<float>({4, 2, 32, 90, 20, 29}, format,
                               {{10, 20, 21, 30, 40, 41, 51, 61, 62}, {1, 2, 12, 22, 32, 42, 52, 53, 54}}, isa);
            check_batch<float>({2, 2, 16, 700, 600, 640}, format, {{600, 641, 660, 700}, {1, 2, 3, 4}}, isa);
            check_batch<float>({2, 1, 16, 60, 1, 60}, format, {{1, 5, 60}}, isa);
        }
    }
}

TEST_CASE("cached attention in half precision has the bits of attention", "[kernels][attention]") {
    check_batch<Half>({4, 2, 16, 70, 0, 70}, {}, {{1, 2, 40, 70}, {33, 37, 37, 70}}, active_isa());
    check_batch<BFloat16>({4, 2, 16, 70, 9, 20}, {}, {{1, 2, 13, 14}, {11, 12, 20, 30}}, active_isa());
}
