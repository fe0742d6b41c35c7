// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/parallel.hpp>
#include <unitscale/kernels/attention.hpp>
#include <unitscale/kernels/cached_lines.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>
#include <span>

namespace unitscale::kernels {

/// A row of a batch that continues an item of a cache. Its query i, for i < count, is position past + i of the item.
struct CachedSpan {
    std::ptrdiff_t item = 0, past = 0, count = 0;

    friend bool operator==(const CachedSpan&, const CachedSpan&) = default;
};

/// Attention of rows to the lines of a cache that hold the positions up to each query's own:
///   out = out_scale softmax(logit_scale q k^T) v       q, out [spans,queries,heads,depth]
///   k, v: the numbers of the lines, decoded, of the last `window` positions (0: all)
/// Only the queries [first_query, last_query) are computed, and of a row only those below its count.
template <class T>
struct CachedAttentionArguments {
    std::ptrdiff_t heads = 1, groups = 1, depth = 0, capacity = 0, window = 0, first_query = 0, last_query = 0;
    std::span<const CachedSpan> spans{};
    AttentionView<const T> q{};
    AttentionView<T> out{};
    CachedLines<T> keys{}, values{};
    Accum<T> logit_scale = 1, out_scale = 1;

    /// The first position that a query at `position` sees.
    [[nodiscard]] std::ptrdiff_t first(std::ptrdiff_t position) const noexcept {
        return AttentionMask{.window = window}.first(position + 1);
    }
    /// A bound of the positions that a row holds.
    [[nodiscard]] std::ptrdiff_t positions() const noexcept {
        std::ptrdiff_t most = 0;
        for (const CachedSpan& span : spans) most = std::max(most, span.past + std::min(span.count, last_query));
        return most;
    }
};

/// Scratch of one thread: the numbers of some lines, the same packed, and the scores of a query block of some heads.
template <class P>
struct CachedAttentionScratch {
    /// Queries that are processed together: each block decodes its lines again.
    static constexpr std::ptrdiff_t query_block = 64;
    /// Lines that are decoded together. Products over values keep their sums in memory after as many positions.
    static constexpr std::ptrdiff_t line_block = products::block_depth;
    /// Keys that are decoded together for few queries: they stay in the level 1 cache.
    static constexpr std::ptrdiff_t key_block = 64;

    std::ptrdiff_t scores_row;
    P *lines, *packed, *scores, *out, *sums, *blocks;

    template <class T>
    CachedAttentionScratch(Isa isa, const CachedAttentionArguments<T>& args, ScratchPieces<P>& pieces) {
        const std::ptrdiff_t few = products::column_major_rows, depth = args.depth, positions = args.positions(),
                             rows = std::max(query_block, few * (args.heads / args.groups));
        scores_row = products::round_up(
            args.window > 0 ? std::min(positions, args.window + query_block + score_lanes) : positions, score_lanes);
        lines = pieces.take(line_block * depth);
        packed = pieces.take(std::max(products::packed_right_size<P>(isa, depth, line_block),
                                      products::packed_right_size<P>(isa, line_block, depth)));
        scores = pieces.take(rows * scores_row);
        out = pieces.take(rows * depth);
        sums = pieces.take(rows);
        blocks = pieces.take(std::max(products::block_scratch_size<P>(isa, query_block, line_block, depth),
                                      products::block_scratch_size<P>(isa, query_block, depth, line_block)));
    }
};

/// The kernel of one instruction set. A job is a block of queries of the heads of one group of one row. Lines are
/// decoded for a job, some hundred at a time, so that no decoded copy of the cache exists.
template <class T>
void cached_attention_forward_with(Isa isa, const Execution& execution, const CachedAttentionArguments<T>& args) {
    using P = Accum<T>;
    using Pieces = CachedAttentionScratch<P>;
    const std::ptrdiff_t block = Pieces::query_block, heads_of_group = args.heads / args.groups, depth = args.depth,
                         blocks = (args.last_query - args.first_query + block - 1) / block,
                         jobs = std::ssize(args.spans) * args.groups * blocks;
    if (jobs == 0 || depth == 0) return;
    AttentionArguments<T> work;
    work.batch = std::ssize(args.spans);
    work.heads = args.heads;
    work.queries = args.last_query - args.first_query;
    work.keys = args.positions();
    work.depth = depth;
    const std::ptrdiff_t parts = attention_parts(execution, work, 2, jobs);
    ScratchPieces<P> measure;
    (void)Pieces(isa, args, measure);
    Scratch<P> memory(execution, static_cast<std::size_t>(parts * measure.used));

    const auto run = [&](std::ptrdiff_t job, const Pieces& scratch) {
        const std::ptrdiff_t i0 = args.first_query + job % blocks * block, group = job / blocks % args.groups,
                             r = job / blocks / args.groups;
        const CachedSpan& span = args.spans[static_cast<std::size_t>(r)];
        const std::ptrdiff_t i1 = std::min({i0 + block, args.last_query, span.count}), m = i1 - i0;
        if (m <= 0) return;
        const std::ptrdiff_t begin = args.first(span.past + i0), end = span.past + i1,
                             base = begin / score_lanes * score_lanes, head = span.item * args.groups + group;
        const HeadLines<T> keys(args.keys, head, args.capacity, depth), values(args.values, head, args.capacity, depth);
        const bool few = std::is_same_v<T, P> && products::has_few_rows_kernel<P>(isa) &&
                         m <= products::column_major_rows && depth <= products::block_depth &&
                         depth % products::tile_shape(isa).template lanes<P>() == 0;
        const std::ptrdiff_t step = few ? heads_of_group : 1;
        // body(the numbers of lines, their first position, their end), for parts that end at multiples of `length`.
        // Products over values keep their sums there.
        const auto each_part = [&](const HeadLines<T>& lines, std::ptrdiff_t length, auto&& body) {
            for (std::ptrdiff_t j0 = begin, j1 = 0; j0 < end; j0 = j1) {
                j1 = std::min(end, (j0 / length + 1) * length);
                const P* numbers = lines.in_place(j0, j1);
                if (numbers == nullptr) {
                    lines.load(isa, j0, j1, scratch.lines);
                    numbers = scratch.lines;
                }
                body(products::MatrixView<const P>{numbers, depth, 1}, j0, j1);
            }
        };
        for (std::ptrdiff_t h0 = group * heads_of_group; h0 < (group + 1) * heads_of_group; h0 += step) {
            const auto scores_of = [&](std::ptrdiff_t h) { return scratch.scores + (h - h0) * m * scratch.scores_row; };
            each_part(keys, few ? Pieces::key_block : Pieces::line_block,
                      [&](const products::MatrixView<const P>& k, std::ptrdiff_t j0, std::ptrdiff_t j1) {
                          products::RightPanels<P> panels;
                          if (!few)
                              panels =
                                  products::pack_right(isa, k.transposed(), depth, j1 - j0, nullptr, scratch.packed);
                          for (std::ptrdiff_t h = h0; h < h0 + step; ++h) {
                              P* const scores = scores_of(h) + (j0 - base);
                              if (!few) {
                                  products::BlockProduct<P> product;
                                  product.m = m;
                                  product.a = args.q.rows(r, i0, h);
                                  product.b = panels;
                                  product.c = {scores, scratch.scores_row, 1};
                                  product.alpha = args.logit_scale;
                                  products::multiply_block(isa, product, scratch.blocks);
                              } else if constexpr (std::is_same_v<T, P>) {
                                  products::FewRowsProduct<P> product{m, j1 - j0, depth};
                                  product.a = args.q.row(r, i0, h);
                                  product.a_row = args.q.time_stride;
                                  product.b = k.data;
                                  product.b_col = depth;
                                  product.c = scores;
                                  product.c_row = scratch.scores_row;
                                  product.alpha = args.logit_scale;
                                  products::multiply_few_rows(product);
                              }
                          }
                      });
            for (std::ptrdiff_t row = 0; row < step * m; ++row) {
                P* const scores = scratch.scores + row * scratch.scores_row;
                const std::ptrdiff_t position = span.past + i0 + row % m, first = args.first(position) - base,
                                     last = position + 1 - base, start = first / score_lanes * score_lanes,
                                     count = products::round_up(last, score_lanes) - start;
                fill_around(scores, first, last, -std::numeric_limits<P>::infinity());
                const P maximum = row_maximum(isa, scores + start, count);
                fill_around(scores, first, last, maximum - hidden_score);
                scratch.sums[row] = row_exponential(isa, scores + start, count, maximum);
                std::fill(scores, scores + first, P(0));
                std::fill(scores + last, scores + products::round_up(end - base, score_lanes), P(0));
            }
            each_part(
                values, Pieces::line_block,
                [&](const products::MatrixView<const P>& v, std::ptrdiff_t j0, std::ptrdiff_t j1) {
                    products::BlockProduct<P> product;
                    product.m = m;
                    product.b = few ? products::right_in_place(isa, v, j1 - j0, depth)
                                    : products::pack_right(isa, v, j1 - j0, depth, nullptr, scratch.packed);
                    product.gamma = j0 == begin ? P(0) : P(1);
                    for (std::ptrdiff_t h = h0; h < h0 + step; ++h) {
                        product.a = products::MatrixView<const P>{scores_of(h) + (j0 - base), scratch.scores_row, 1};
                        product.c = {scratch.out + (h - h0) * m * depth, depth, 1};
                        products::multiply_block(isa, product, scratch.blocks);
                    }
                });
            for (std::ptrdiff_t row = 0; row < step * m; ++row) {
                P* const out = scratch.out + row * depth;
                const P scale = args.out_scale / scratch.sums[row];
                for (std::ptrdiff_t l = 0; l < depth; ++l) out[l] *= scale;
                products::narrow_line(isa, out, depth, args.out.row(r, i0 + row % m, h0 + row / m));
            }
        }
    };
    parallel_jobs(parts, jobs, [&](std::ptrdiff_t worker, auto next) {
        ScratchPieces<P> pieces{memory.data() + worker * measure.used};
        const Pieces scratch(isa, args, pieces);
        while (const std::optional<std::ptrdiff_t> job = next()) run(*job, scratch);
    });
}

/// A row's bits equal the bits of `attention_forward` over the same numbers: they depend on no other row, on no
/// division into calls, and on no number of threads. Test: tests/kernels/cached_attention_test.cpp
template <class T>
void cached_attention_forward(const Execution& execution, const CachedAttentionArguments<T>& args) {
    cached_attention_forward_with(active_isa(), execution, args);
}

}  // namespace unitscale::kernels
