// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/memory.hpp>
#include <unitscale/base/parallel.hpp>
#include <unitscale/base/vectors.hpp>
#include <unitscale/kernels/attention_arguments.hpp>
#include <unitscale/kernels/attention_rows.hpp>
#include <unitscale/products/block.hpp>
#include <unitscale/products/block_sizes.hpp>
#include <unitscale/products/few_rows.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <type_traits>

namespace unitscale::kernels {

/// Hands out pieces of the scratch of one thread. A first run over a null base measures the required size.
template <class P>
struct ScratchPieces {
    P* base = nullptr;
    std::ptrdiff_t used = 0;

    P* take(std::ptrdiff_t count) noexcept {
        P* const piece = base != nullptr ? base + used : nullptr;
        used += products::round_up(count, 64 / static_cast<std::ptrdiff_t>(sizeof(P)));
        return piece;
    }
};

/// Scratch of one thread: packed keys and values of a group, and the scores of a query block.
template <class T>
struct AttentionScratch {
    using P = Accum<T>;
    std::ptrdiff_t scores_row;
    P *keys_transposed, *values, *scores, *blocks;  // forward; `values` are transposed in the backward pass
    P *keys = nullptr, *gradients = nullptr, *q = nullptr, *dout = nullptr, *dk = nullptr, *dv = nullptr;  // backward
    P* out = nullptr;  // forward, if T is not P

    AttentionScratch(Isa isa, const AttentionArguments<T>& args, bool backward, ScratchPieces<P>& pieces)
        : scores_row(products::round_up(args.keys, score_lanes)) {
        if (scores_row / score_lanes % 2 == 0) scores_row += score_lanes;  // columns then spread over level 1
        const std::ptrdiff_t block = backward ? args.backward_block() : args.forward_block(isa),
                             head = args.keys * args.depth;
        keys_transposed = pieces.take(products::packed_right_size<P>(isa, args.depth, args.keys));
        values = pieces.take(std::max(products::packed_right_size<P>(isa, args.keys, args.depth),
                                      products::packed_right_size<P>(isa, args.depth, args.keys)));
        scores = pieces.take(block * scores_row);
        if (backward) {
            keys = pieces.take(products::packed_right_size<P>(isa, args.keys, args.depth));
            gradients = pieces.take(block * scores_row);
            q = pieces.take(products::packed_right_size<P>(isa, block, args.depth));
            dout = pieces.take(products::packed_right_size<P>(isa, block, args.depth));
            dk = pieces.take(head);
            dv = pieces.take(head);
        } else {
            if (!std::is_same_v<T, P>) out = pieces.take(block * args.depth);
        }
        const std::ptrdiff_t rows = std::max(block, backward ? args.keys : block);
        blocks = pieces.take(std::max({products::block_scratch_size<P>(isa, block, args.keys, args.depth),
                                       products::block_scratch_size<T>(isa, block, args.depth, args.keys),
                                       products::block_scratch_size<P>(isa, block, args.depth, args.keys),
                                       products::block_scratch_size<P>(isa, rows, args.depth, block)}));
    }
};

/// Whether the forward pass reads keys and values in place. For few queries, as for the tokens of generation, this is
/// faster than packing. The bits do not change.
template <class T>
[[nodiscard]] bool attention_in_place(Isa isa, const AttentionArguments<T>& args) noexcept {
    return std::is_same_v<T, Accum<T>> && products::has_few_rows_kernel<T>(isa) &&
           args.queries <= products::column_major_rows && args.depth <= products::block_depth &&
           args.depth % products::tile_shape(isa).template lanes<T>() == 0;
}

/// scores = logit_scale q k^T for the queries [i0, i1) and the keys that the last of them sees. The rest of each row,
/// up to a multiple of score_lanes, becomes -infinity. Null keys_transposed: the keys are read in place.
template <class T>
void attention_scores(Isa isa, const AttentionArguments<T>& args, std::ptrdiff_t b, std::ptrdiff_t h, std::ptrdiff_t i0,
                      std::ptrdiff_t i1, const products::RightPanels<Accum<T>>* keys_transposed,
                      const AttentionScratch<T>& scratch) {
    using P = Accum<T>;
    if (keys_transposed != nullptr) {
        products::BlockProduct<P> product;
        product.m = i1 - i0;
        product.a = args.q.rows(b, i0, h);
        product.b = keys_transposed->first_columns(args.visible(b, i1 - 1));
        product.c = {scratch.scores, scratch.scores_row, 1};
        product.alpha = args.logit_scale;
        products::multiply_block(isa, product, scratch.blocks);
    } else if constexpr (std::is_same_v<T, P>) {
        const std::ptrdiff_t group = h / (args.heads / args.groups);
        products::FewRowsProduct<P> product{i1 - i0, args.visible(b, i1 - 1), args.depth};
        product.a = args.q.row(b, i0, h);
        product.a_row = args.q.time_stride;
        product.b = args.k.row(b, 0, group);
        product.b_col = args.k.time_stride;
        product.c = scratch.scores;
        product.c_row = scratch.scores_row;
        product.alpha = args.logit_scale;
        products::multiply_few_rows(product);
    }
    const std::ptrdiff_t end = products::round_up(args.visible(b, i1 - 1), score_lanes);
    for (std::ptrdiff_t i = i0; i < i1; ++i) {
        P* const row = scratch.scores + (i - i0) * scratch.scores_row;
        args.mask.add_bias(row, b, h, i, args.visible(b, i), P(1));
        std::fill(row, row + std::min(args.first(i), args.visible(b, i)), -std::numeric_limits<P>::infinity());
        std::fill(row + args.visible(b, i), row + end, -std::numeric_limits<P>::infinity());
    }
}

/// out[l] = factor row[l], rounded once. `row` may be `out`, and is scratch else.   row, out [n]
template <class T>
void store_scaled_row(Isa isa, Accum<T>* row, std::ptrdiff_t n, Accum<T> factor, T* out) noexcept {
    if constexpr (std::is_same_v<T, Accum<T>>) {
        for (std::ptrdiff_t l = 0; l < n; ++l) out[l] = factor * row[l];
    } else {
        for (std::ptrdiff_t l = 0; l < n; ++l) row[l] *= factor;
        products::narrow_line(isa, row, n, out);
    }
}

/// Threads for the work of attention: `products` products of queries x keys x depth for each head.
template <class T>
[[nodiscard]] std::ptrdiff_t attention_parts(const Execution& execution, const AttentionArguments<T>& args,
                                             int products, std::ptrdiff_t jobs) {
    constexpr double work_per_thread = 1 << 19;
    if (in_parallel_region()) return 1;
    const double work = static_cast<double>(args.batch * args.heads * args.queries) *
                        static_cast<double>(args.keys * args.depth) * products;
    return std::clamp<std::ptrdiff_t>(
        static_cast<std::ptrdiff_t>(std::min<double>(execution.threads, work / work_per_thread)), 1,
        std::max<std::ptrdiff_t>(jobs, 1));
}

/// Runs body(next, scratch) in `parts` threads, each with scratch of its own. next() is the body's next job.
template <class T, class Body>
void attention_loop(const Execution& execution, Isa isa, const AttentionArguments<T>& args, bool backward,
                    std::ptrdiff_t parts, std::ptrdiff_t jobs, Body&& body) {
    using P = Accum<T>;
    ScratchPieces<P> measure;
    (void)AttentionScratch<T>(isa, args, backward, measure);
    Scratch<P> memory(execution, static_cast<std::size_t>(parts * measure.used));
    parallel_jobs(parts, jobs, [&](std::ptrdiff_t worker, auto next) {
        ScratchPieces<P> pieces{memory.data() + worker * measure.used};
        body(next, AttentionScratch<T>(isa, args, backward, pieces));
    });
}

/// The forward pass with the kernels of one instruction set. A job is a block of queries of one head. Of the queries x
/// keys matrix, only the scores of such a block are ever stored.
template <class T>
void attention_forward_with(Isa isa, const Execution& execution, const AttentionArguments<T>& args) {
    using P = Accum<T>;
    const std::ptrdiff_t block = args.forward_block(isa), blocks = (args.queries + block - 1) / block;
    const std::ptrdiff_t jobs = args.batch * args.heads * blocks;
    if (jobs == 0) return;
    const bool drops = args.mask.dropout > 0.0;
    const P out_scale = drops ? static_cast<P>(args.out_scale / (1.0 - args.mask.dropout)) : args.out_scale;
    attention_loop(
        execution, isa, args, false, attention_parts(execution, args, 2, jobs), jobs,
        [&](auto& next_job, const AttentionScratch<T>& scratch) {
            const bool in_place = attention_in_place(isa, args);
            products::RightPanels<P> keys, values;
            std::ptrdiff_t packed = -1;
            while (const std::optional<std::ptrdiff_t> job = next_job()) {
                const std::ptrdiff_t i0 = *job % blocks * block, i1 = std::min(args.queries, i0 + block);
                const std::ptrdiff_t h = *job / blocks % args.heads, b = *job / blocks / args.heads,
                                     group = h / (args.heads / args.groups);
                if constexpr (std::is_same_v<T, P>)
                    if (in_place)
                        values = products::right_in_place(isa, args.v.rows(b, 0, group), args.keys, args.depth);
                if (!in_place && packed != b * args.groups + group) {
                    keys = products::pack_right(isa, args.k.rows(b, 0, group).transposed(), args.depth, args.keys,
                                                nullptr, scratch.keys_transposed);
                    values = products::pack_right(isa, args.v.rows(b, 0, group), args.keys, args.depth, nullptr,
                                                  scratch.values);
                    packed = b * args.groups + group;
                }
                attention_scores(isa, args, b, h, i0, i1, in_place ? nullptr : &keys, scratch);
                std::array<P, 64> sums;
                const NextHead<T> next(args, b, h);
                for (std::ptrdiff_t i = i0; i < i1; ++i) {
                    next.ask(i);
                    P* const row = scratch.scores + (i - i0) * scratch.scores_row;
                    const std::ptrdiff_t visible = args.visible(b, i), seen_from = std::min(args.first(i), visible),
                                         start = seen_from / score_lanes * score_lanes,
                                         count = products::round_up(visible, score_lanes) - start,
                                         number = (b * args.heads + h) * args.queries + i;
                    const P maximum = row_maximum(isa, row + start, count);
                    const bool sees = !args.mask.hides_all(b, h, i, seen_from, visible);
                    P sum = std::numeric_limits<P>::infinity();  // of a query that sees nothing
                    if (sees) {
                        args.mask.replace_hidden(row, b, h, i, visible, maximum - hidden_score);
                        fill_around(row, seen_from, visible, maximum - hidden_score);
                        sum = row_exponential(isa, row + start, count, maximum);
                    }
                    args.mask.replace_hidden(row, b, h, i, visible, P(0));
                    std::fill(row, row + seen_from, P(0));
                    std::fill(row + visible, row + products::round_up(args.visible(b, i1 - 1), score_lanes), P(0));
                    if (drops) args.mask.drop(isa, row, number, args.keys, visible, P(1));
                    sums[static_cast<std::size_t>(i - i0)] = sum;
                    args.log_sum[number] = sees ? maximum + std::log(sum) : sum;
                }
                products::BlockProduct<P> product;
                product.m = i1 - i0;
                product.a = products::MatrixView<const P>{scratch.scores, scratch.scores_row, 1};
                product.b = values.first_rows(args.visible(b, i1 - 1));
                if constexpr (std::is_same_v<T, P>) product.c = args.out.rows(b, i0, h);
                else product.c = {scratch.out, args.depth, 1};
                products::multiply_block(isa, product, scratch.blocks);
                for (std::ptrdiff_t i = i0; i < i1; ++i)
                    store_scaled_row(isa, product.c.at(i - i0, 0), args.depth,
                                     out_scale / sums[static_cast<std::size_t>(i - i0)], args.out.row(b, i, h));
            }
        });
}

/// The backward pass with the kernels of one instruction set. A job is a group of one batch item. So each element of dk
/// and dv is summed over heads and queries in one thread, in one order. Probabilities are computed again from log_sum.
template <class T>
void attention_backward_with(Isa isa, const Execution& execution, const AttentionGradients<T>& gradients) {
    using P = Accum<T>;
    const AttentionArguments<T>& args = gradients.forward;
    const std::ptrdiff_t block = args.backward_block(), jobs = args.batch * args.groups,
                         heads_per_group = args.heads / args.groups;
    if (jobs == 0 || args.depth == 0) return;
    const bool drops = args.mask.dropout > 0.0;
    const P kept = static_cast<P>(1.0 / (1.0 - args.mask.dropout));
    attention_loop(
        execution, isa, args, true, attention_parts(execution, args, 5, jobs), jobs,
        [&](auto& next_job, const AttentionScratch<T>& scratch) {
            while (const std::optional<std::ptrdiff_t> job = next_job()) {
                const std::ptrdiff_t b = *job / args.groups, group = *job % args.groups, head = args.keys * args.depth;
                const auto k = args.k.rows(b, 0, group), v = args.v.rows(b, 0, group);
                const auto keys_transposed =
                    products::pack_right(isa, k.transposed(), args.depth, args.keys, nullptr, scratch.keys_transposed);
                const auto values_transposed =
                    products::pack_right(isa, v.transposed(), args.depth, args.keys, nullptr, scratch.values);
                const auto keys = products::pack_right(isa, k, args.keys, args.depth, nullptr, scratch.keys);
                std::fill_n(scratch.dk, head, P(0));
                std::fill_n(scratch.dv, head, P(0));
                const auto ask_for_key = [&](const AttentionView<T>& view,
                                             std::ptrdiff_t j) {  // to write it at the end
                    constexpr std::ptrdiff_t line = 64 / static_cast<std::ptrdiff_t>(sizeof(T));
                    T* const row = j < args.keys ? view.row(b, j, group) : nullptr;
                    for (std::ptrdiff_t l = 0; row != nullptr && l < args.depth; l += line) prefetch_to_write(row + l);
                };
                for (std::ptrdiff_t h = group * heads_per_group; h < (group + 1) * heads_per_group; ++h) {
                    const NextHead<T> next(args, b, h, gradients.dout);
                    for (std::ptrdiff_t i0 = 0; i0 < args.queries; i0 += block) {
                        const std::ptrdiff_t i1 = std::min(args.queries, i0 + block), seen = args.visible(b, i1 - 1);
                        attention_scores(isa, args, b, h, i0, i1, &keys_transposed, scratch);
                        products::BlockProduct<P> dprobabilities;
                        dprobabilities.m = i1 - i0;
                        dprobabilities.a = gradients.dout.rows(b, i0, h);
                        dprobabilities.b = values_transposed.first_columns(seen);
                        dprobabilities.c = {scratch.gradients, scratch.scores_row, 1};
                        products::multiply_block(isa, dprobabilities, scratch.blocks);
                        for (std::ptrdiff_t i = i0; i < i1; ++i) {
                            next.ask(i);
                            ask_for_key(gradients.dk, i);
                            ask_for_key(gradients.dv, i);
                            P* const p = scratch.scores + (i - i0) * scratch.scores_row;
                            P* const d = scratch.gradients + (i - i0) * scratch.scores_row;
                            const std::ptrdiff_t limit = args.visible(b, i),
                                                 end = products::round_up(limit, score_lanes),
                                                 number = (b * args.heads + h) * args.queries + i;
                            const std::ptrdiff_t seen_from = std::min(args.first(i), limit),
                                                 start = seen_from / score_lanes * score_lanes;
                            const P log_sum = args.log_sum[number];
                            if (log_sum < std::numeric_limits<P>::infinity()) {
                                args.mask.replace_hidden(p, b, h, i, limit, log_sum - hidden_score);
                                fill_around(p, seen_from, limit, log_sum - hidden_score);
                                row_exponential(isa, p + start, end - start, log_sum);
                                args.mask.replace_hidden(p, b, h, i, limit, P(0));
                            } else {  // a query that sees nothing, or NaN among its logits
                                std::fill(p, p + end, std::isnan(log_sum) ? log_sum : P(0));
                            }
                            std::fill(p, p + seen_from, P(0));
                            std::fill(d, d + seen_from, P(0));
                            std::fill(d + limit, d + products::round_up(seen, score_lanes), P(0));
                            std::fill(p + limit, p + products::round_up(seen, score_lanes), P(0));
                            if (drops) args.mask.drop(isa, d, number, args.keys, limit, kept);
                            row_softmax_gradient(isa, p, d, end);
                            if (drops) args.mask.drop(isa, p, number, args.keys, limit, kept);
                        }
                        products::BlockProduct<T> dq;
                        dq.m = i1 - i0;
                        dq.a = products::MatrixView<const P>{scratch.gradients, scratch.scores_row, 1};
                        dq.b = keys.first_rows(seen);
                        dq.c = gradients.dq.rows(b, i0, h);
                        dq.alpha = args.logit_scale * gradients.dq_scale;
                        products::multiply_block(isa, dq, scratch.blocks);
                        products::BlockProduct<P> sum;  // dv += P^T dout, then dk += dS^T q
                        sum.m = seen;
                        sum.gamma = 1;
                        sum.a = products::MatrixView<const P>{scratch.scores, 1, scratch.scores_row};
                        sum.b = products::pack_right(isa, gradients.dout.rows(b, i0, h), i1 - i0, args.depth, nullptr,
                                                     scratch.dout);
                        sum.c = {scratch.dv, args.depth, 1};
                        products::multiply_block(isa, sum, scratch.blocks);
                        sum.a = products::MatrixView<const P>{scratch.gradients, 1, scratch.scores_row};
                        sum.b =
                            products::pack_right(isa, args.q.rows(b, i0, h), i1 - i0, args.depth, nullptr, scratch.q);
                        sum.c = {scratch.dk, args.depth, 1};
                        products::multiply_block(isa, sum, scratch.blocks);
                    }
                }
                for (std::ptrdiff_t j = 0; j < args.keys; ++j) {
                    store_scaled_row(isa, scratch.dk + j * args.depth, args.depth,
                                     args.logit_scale * gradients.dk_scale, gradients.dk.row(b, j, group));
                    store_scaled_row(isa, scratch.dv + j * args.depth, args.depth, gradients.dv_scale,
                                     gradients.dv.row(b, j, group));
                }
            }
        });
}

/// Bits do not depend on the number of threads. All memory beside the operands is scratch. NaN and infinity propagate.
/// Test: tests/kernels/attention_test.cpp
template <class T>
void attention_forward(const Execution& execution, const AttentionArguments<T>& args) {
    attention_forward_with(active_isa(), execution, args);
}
template <class T>
void attention_backward(const Execution& execution, const AttentionGradients<T>& gradients) {
    attention_backward_with(active_isa(), execution, gradients);
}

}  // namespace unitscale::kernels
