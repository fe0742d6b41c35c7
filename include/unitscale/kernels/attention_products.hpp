// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/memory.hpp>
#include <unitscale/base/parallel.hpp>
#include <unitscale/kernels/amax.hpp>
#include <unitscale/kernels/attention_mask.hpp>
#include <unitscale/kernels/attention_operand.hpp>
#include <unitscale/kernels/softmax.hpp>
#include <unitscale/products/blocked_product.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

// Attention as six matrix products of rounded operands. The fused kernels (attention.hpp) keep scores in registers and
// caches. Here logits and probabilities of a head are stored in T, as separate ops store them. So the results have the
// bits of `products::matmul` and `softmax_forward`, called one after the other.
namespace unitscale::kernels {

/// An item is a head of keys and values of one batch item, with the `heads` query heads that use it. Its query rows
/// stand one head after the other. With L = queries heads:
///   q, dout [items,L,depth]   k, v [items,keys,depth]
///   s = logit_factor q k^T + bias / mult    P = softmax(mult s)    p = probability_factor keep P
///   dp = keep dprobability_factor dout v^T   ds = dlogit_factor slope P (dp - rowsum(P dp))
/// `causal` and `mask`: as AttentionArguments. P and ds are 0 for keys that are not seen. keep: 0 for dropped weights,
/// else 1 / (1 - dropout). s, P, p, dp and ds [items,L,keys] are rounded to T.
template <class T>
struct AttentionProductArguments {
    std::ptrdiff_t items = 1, heads = 1, queries = 0, keys = 0, depth = 0;
    std::ptrdiff_t groups = 1;  ///< items of a batch item
    bool causal = false;
    AttentionMask mask{};
    const T *q = nullptr, *k = nullptr, *v = nullptr, *dout = nullptr;  ///< without dout there are no gradients
    AttentionOperand logits_q{}, logits_k{}, probability_gradient_dy{}, probability_gradient_v{};
    Accum<T> logit_factor = 1, mult = 1, probability_factor = 1;
    Accum<T> dprobability_factor = 1, slope = 1, dlogit_factor = 1;
};

/// The gradients dq = dq_factor ds k, dk = dk_factor ds^T q and dv = dv_factor p^T dout.
template <class T>
struct AttentionProductGradients {
    AttentionOperand query_gradient_ds{}, query_gradient_k{}, key_gradient_ds{}, key_gradient_q{}, value_gradient_p{},
        value_gradient_dy{};
    Accum<T> dq_factor = 1, dk_factor = 1, dv_factor = 1;
    T *dq = nullptr, *dk = nullptr, *dv = nullptr;  ///< [items,L,depth], [items,keys,depth] twice
};

/// The value of attention and its gradients. Memory: p and ds of one item for each thread; after `largest` p and ds of
/// all items, if they fit. Otherwise p and ds are computed a second time. Rows are computed in blocks, which leave out
/// the keys that no query of the block sees. So a number that is not finite reaches only the queries that see it.
/// Bits do not depend on the number of threads. Test: tests/kernels/attention_products_test.cpp
template <class T>
class AttentionProducts {
    using P = Accum<T>;

public:
    /// Elements of p that `largest` keeps.
    static constexpr std::ptrdiff_t stored_elements = std::ptrdiff_t{1} << 20;

    AttentionProducts(const Execution& execution, const AttentionProductArguments<T>& args)
        : execution_(execution),
          args_(args),
          isa_(active_isa()),
          pairs_(products::active_pair_kernel()),
          rows_(args.heads * args.queries),
          size_(rows_ * args.keys),
          block_(products::round_up(args.causal ? 32 : 128, products::pair_tile_rows(pairs_))),
          ordered_(Rows::has_own_pass(args.logits_q) || Rows::has_own_pass(args.logits_k) ||
                   (args.dout != nullptr && (Rows::has_own_pass(args.probability_gradient_dy) ||
                                             Rows::has_own_pass(args.probability_gradient_v)))) {}

    /// The largest magnitudes of all p, and of all ds if there are gradients.
    struct Largest {
        float p = 0, ds = 0;
    };
    [[nodiscard]] const Largest& largest() {
        if (largest_) return *largest_;
        largest_.emplace();
        const bool fits = args_.items * size_ <= stored_elements;
        std::vector<Largest> found(static_cast<std::size_t>(std::max<std::ptrdiff_t>(args_.items, 0)));
        if (fits) kept_.emplace(execution_, static_cast<std::size_t>(args_.items * size_ * matrices()));
        each_item(ordered_, [&](std::ptrdiff_t item, const Memory& memory) {
            compute(item, memory, [](auto&&...) {});
            const Execution one{1, execution_.pool};
            found[static_cast<std::size_t>(item)].p = amax(one, memory.p, size_);
            if (args_.dout != nullptr) found[static_cast<std::size_t>(item)].ds = amax(one, memory.ds, size_);
        });
        for (const Largest& item : found) {
            include(largest_->p, item.p);
            include(largest_->ds, item.ds);
        }
        computed_ = fits;
        return *largest_;
    }

    /// out = factor p v   [items,L,depth]
    void forward(const AttentionOperand& p_rule, const AttentionOperand& v_rule, P factor, T* out) {
        each_item(ordered_ || Rows::has_own_pass(p_rule) || Rows::has_own_pass(v_rule),
                  [&](std::ptrdiff_t item, const Memory& memory) {
                      const auto v = key_rows(v_rule, args_.v, item, Contracted::rows);
                      T* const to = out + item * rows_ * args_.depth;
                      with_rows(item, memory, p_rule, memory.p, v, factor, to);
                  });
    }

    void backward(const AttentionProductGradients<T>& gradients) {
        bool ordered = ordered_;
        for (const AttentionOperand* const rule :
             {&gradients.query_gradient_ds, &gradients.query_gradient_k, &gradients.key_gradient_ds,
              &gradients.key_gradient_q, &gradients.value_gradient_p, &gradients.value_gradient_dy})
            ordered = ordered || Rows::has_own_pass(*rule);
        each_item(ordered, [&](std::ptrdiff_t item, const Memory& memory) {
            const std::ptrdiff_t wide = item * rows_ * args_.depth, narrow = item * args_.keys * args_.depth;
            {
                const auto k = key_rows(gradients.query_gradient_k, args_.k, item, Contracted::rows);
                with_rows(item, memory, gradients.query_gradient_ds, memory.ds, k, gradients.dq_factor,
                          gradients.dq + wide);
            }
            {
                const auto ds = score_rows(gradients.key_gradient_ds, memory.ds, item, Contracted::rows),
                           q = query_rows(gradients.key_gradient_q, args_.q, item, Contracted::rows);
                sum_rows(memory, ds, q, gradients.dk_factor, gradients.dk + narrow);
            }
            const auto p = score_rows(gradients.value_gradient_p, memory.p, item, Contracted::rows),
                       dy = query_rows(gradients.value_gradient_dy, args_.dout, item, Contracted::rows);
            sum_rows(memory, p, dy, gradients.dv_factor, gradients.dv + narrow);
        });
    }

private:
    using Rows = AttentionOperandRows<T>;
    using Product = products::BlockedProduct<T>;

    /// Memory of one item: p and ds [L,keys]; k^T, v^T and another right operand, packed; scratch of each thread that
    /// works on the item.
    struct Memory {
        T *p = nullptr, *ds = nullptr;
        P *keys = nullptr, *values = nullptr, *right = nullptr, *scratch = nullptr;
        int threads = 1;
    };
    /// Elements of packed k^T or v^T, of any right operand, and of the scratch of a thread.
    [[nodiscard]] std::ptrdiff_t keys_size() const noexcept {
        return Product::right_size(isa_, args_.depth, args_.keys);
    }
    [[nodiscard]] std::ptrdiff_t right_size() const noexcept {
        return Product::right_size(isa_, std::max(args_.keys, rows_), args_.depth);
    }
    [[nodiscard]] std::ptrdiff_t scratch_size() const noexcept {
        return std::max(Product::scratch_size(isa_, block_, args_.depth, args_.keys),
                        Product::scratch_size(isa_, block_, std::max(args_.keys, rows_), args_.depth));
    }

    [[nodiscard]] std::ptrdiff_t matrices() const noexcept { return args_.dout != nullptr ? 2 : 1; }
    [[nodiscard]] Rows query_rows(const AttentionOperand& rule, const T* x, std::ptrdiff_t item,
                                  Contracted contracted) const {
        return Rows(execution_, rule, x + item * rows_ * args_.depth, item, rows_, args_.depth, contracted);
    }
    [[nodiscard]] Rows key_rows(const AttentionOperand& rule, const T* x, std::ptrdiff_t item,
                                Contracted contracted) const {
        return Rows(execution_, rule, x + item * args_.keys * args_.depth, item, args_.keys, args_.depth, contracted);
    }
    /// p or ds.
    [[nodiscard]] Rows score_rows(const AttentionOperand& rule, const T* x, std::ptrdiff_t item,
                                  Contracted contracted) const {
        return Rows(execution_, rule, x, item, rows_, args_.keys, contracted);
    }

    /// Runs body(item, memory) for all items. Threads share the items if there are enough and their order is free;
    /// otherwise they share the blocks of an item.
    template <class Body>
    void each_item(bool ordered, Body&& body) {
        if (args_.items <= 0 || args_.depth <= 0) return;
        constexpr double work_per_thread = 1 << 19;
        const double work = static_cast<double>(size_) * static_cast<double>(args_.items * args_.depth) *
                            (args_.dout != nullptr ? 5 : 2);
        const auto threads = static_cast<std::ptrdiff_t>(
            in_parallel_region() ? 1.0
                                 : std::clamp(work / work_per_thread, 1.0, std::max(execution_.threads, 1) * 1.0));
        const std::ptrdiff_t parts = ordered || args_.items < threads ? 1 : threads;
        const auto inner = static_cast<int>(parts > 1 ? 1 : threads);
        const std::ptrdiff_t part = 2 * keys_size() + right_size() + inner * scratch_size();
        Scratch<P> memory(execution_, static_cast<std::size_t>(parts * part));
        std::optional<Scratch<T>> scores;
        const bool keeps = kept_.has_value();
        if (!keeps) scores.emplace(execution_, static_cast<std::size_t>(parts * size_ * matrices()));
        parallel_jobs(parts, args_.items, [&](std::ptrdiff_t index, auto next) {
            Memory own;
            own.keys = memory.data() + index * part;
            own.values = own.keys + keys_size();
            own.right = own.values + keys_size();
            own.scratch = own.right + right_size();
            own.threads = inner;
            while (const std::optional<std::ptrdiff_t> item = next()) {
                own.p =
                    keeps ? kept_->data() + *item * size_ * matrices() : scores->data() + index * size_ * matrices();
                own.ds = args_.dout != nullptr ? own.p + size_ : nullptr;
                body(*item, static_cast<const Memory&>(own));
            }
        });
    }

    /// Runs body(first, last, scratch) for blocks of `rows` rows in the threads of an item.
    template <class Body>
    void each_block(const Memory& memory, std::ptrdiff_t rows, const Body& body) const {
        const std::ptrdiff_t blocks = (rows + block_ - 1) / block_;
        parallel_jobs(memory.threads, blocks, [&](std::ptrdiff_t worker, auto next) {
            while (const std::optional<std::ptrdiff_t> b = next())
                body(*b * block_, std::min(rows, (*b + 1) * block_), memory.scratch + worker * scratch_size());
        });
    }

    /// The end of the keys that a query of the rows [first, last) of an item sees, without the mask's bias.
    [[nodiscard]] std::ptrdiff_t seen_of(std::ptrdiff_t item, std::ptrdiff_t first,
                                         std::ptrdiff_t last) const noexcept {
        const bool whole = first / args_.queries != (last - 1) / args_.queries;
        return row_of(item, whole ? args_.queries - 1 : last - 1).seen;
    }

    /// c [L,depth] = factor p right, where `scores` is p or ds, once it is computed.   right [keys,depth]
    void with_rows(std::ptrdiff_t item, const Memory& memory, const AttentionOperand& rule, const T* scores,
                   const Rows& right, P factor, T* c) {
        const std::ptrdiff_t d = args_.depth, keys = args_.keys;
        const auto multiply = [&](const Product& product, std::ptrdiff_t first, std::ptrdiff_t last, P* scratch) {
            product.rows({first, last - first, d, 0, seen_of(item, first, last)}, {c + first * d, d, 1}, factor,
                         scratch);
        };
        if (!computed_ && !Rows::has_own_pass(rule)) {  // rows of p are multiplied while they are in the cache
            const Rows rows = score_rows(rule, scores, item, Contracted::columns);
            const Product product(execution_, isa_, pairs_, rows.matrix(), right.matrix(), rows_, d, keys,
                                  memory.right);
            return compute(item, memory, [&](std::ptrdiff_t first, std::ptrdiff_t last, P* scratch) {
                multiply(product, first, last, scratch);
            });
        }
        if (!computed_) compute(item, memory, [](auto&&...) {});
        const Rows rows = score_rows(rule, scores, item, Contracted::columns);
        const Product product(execution_, isa_, pairs_, rows.matrix(), right.matrix(), rows_, d, keys, memory.right);
        each_block(memory, rows_, [&](std::ptrdiff_t first, std::ptrdiff_t last, P* scratch) {
            multiply(product, first, last, scratch);
        });
    }

    /// c [keys,depth] = factor scores^T right, where `scores` is p or ds.   right [L,depth]
    void sum_rows(const Memory& memory, const Rows& scores, const Rows& right, P factor, T* c) const {
        const std::ptrdiff_t d = args_.depth;
        const products::Operand<T> transposed = scores.transposed();
        const Product product(execution_, isa_, pairs_, transposed, right.matrix(), args_.keys, d, rows_, memory.right);
        each_block(memory, args_.keys, [&](std::ptrdiff_t first, std::ptrdiff_t last, P* scratch) {
            // Queries before the first that sees a key of the block have p = 0. Heads stand one below the other.
            const std::ptrdiff_t unseen = args_.causal && args_.heads == 1
                                              ? std::max<std::ptrdiff_t>(first - (args_.keys - args_.queries), 0)
                                              : 0;
            product.rows({first, last - first, d, unseen / 32 * 32, rows_}, {c + first * d, d, 1}, factor, scratch);
        });
    }

    /// p of an item, and ds if there are gradients. finish(first, last, scratch) follows each block of rows.
    template <class Finish>
    void compute(std::ptrdiff_t item, const Memory& memory, const Finish& finish) const {
        const std::ptrdiff_t keys = args_.keys, d = args_.depth;
        const Rows q = query_rows(args_.logits_q, args_.q, item, Contracted::columns),
                   k = key_rows(args_.logits_k, args_.k, item, Contracted::columns);
        const Product logits(execution_, isa_, pairs_, q.matrix(), k.transposed(), rows_, keys, d, memory.keys);
        std::optional<Rows> dy, v;
        std::optional<Product> gradients;
        if (args_.dout != nullptr) {
            dy.emplace(execution_, args_.probability_gradient_dy, args_.dout + item * rows_ * d, item, rows_, d,
                       Contracted::columns);
            v.emplace(execution_, args_.probability_gradient_v, args_.v + item * keys * d, item, keys, d,
                      Contracted::columns);
            gradients.emplace(execution_, isa_, pairs_, dy->matrix(), v->transposed(), rows_, keys, d, memory.values);
        }
        const bool drops = args_.mask.dropout > 0.0;
        const auto kept = static_cast<P>(1.0 / (1.0 - args_.mask.dropout));
        const P slope = args_.dlogit_factor * args_.slope / args_.probability_factor;
        each_block(memory, rows_, [&](std::ptrdiff_t first, std::ptrdiff_t last, P* scratch) {
            const std::ptrdiff_t seen = seen_of(item, first, last);
            logits.rows({first, last - first, seen, 0, d}, {memory.p + first * keys, keys, 1}, args_.logit_factor,
                        scratch);
            if (gradients)
                gradients->rows({first, last - first, seen, 0, d}, {memory.ds + first * keys, keys, 1},
                                args_.dprobability_factor, scratch);
            for (std::ptrdiff_t r = first; r < last; ++r) {
                const Row row = row_of(item, r);
                T* const p = memory.p + r * keys;
                // Whole blocks of lanes: sums over them have the bits of sums over all keys.
                const std::ptrdiff_t n = std::min(keys, products::round_up(row.seen, block_size));
                args_.mask.add_bias(p, row.b, row.h, row.i, row.seen, P(1) / args_.mult);
                const T hidden = narrow<T>(-std::numeric_limits<P>::infinity());
                std::fill(p, p + row.first, hidden);
                std::fill(p + row.seen, p + n, hidden);
                if (row.seen == 0 || args_.mask.hides_all(row.b, row.h, row.i, row.first, row.seen))
                    std::fill(p, p + n, T(0));
                else softmax_row<T>(isa_, p, p, n, args_.mult, args_.probability_factor);
                std::fill(p + n, p + keys, T(0));
                if (gradients) {
                    T* const ds = memory.ds + r * keys;
                    std::fill(ds, ds + row.first, T(0));
                    std::fill(ds + row.seen, ds + keys, T(0));
                    if (drops) args_.mask.drop(isa_, ds, row.number, keys, row.seen, kept);
                    softmax_gradient_row<T>(isa_, p, ds, ds, n, slope, args_.probability_factor);
                }
                if (drops) args_.mask.drop(isa_, p, row.number, keys, row.seen, kept);
            }
            finish(first, last, scratch);
        });
    }

    /// A row of s, p, dp or ds: query i of head h in batch item b, its number among all rows, and the range of keys
    /// that it sees without the mask's bias, [first, seen).
    struct Row {
        std::ptrdiff_t b, h, i, number, first, seen;
    };
    [[nodiscard]] Row row_of(std::ptrdiff_t item, std::ptrdiff_t r) const noexcept {
        const std::ptrdiff_t queries = args_.queries, heads = args_.groups * args_.heads, number = item * rows_ + r,
                             i = number % queries, h = number / queries % heads, b = number / queries / heads;
        const std::ptrdiff_t limit =
            args_.causal ? std::clamp<std::ptrdiff_t>(i + args_.keys - queries + 1, 0, args_.keys) : args_.keys;
        const std::ptrdiff_t seen = args_.mask.seen(b, limit);
        return {b, h, i, number, std::min(args_.mask.first(limit), seen), seen};
    }

    /// NaN counts as the largest: it has the largest word.
    static void include(float& most, float more) noexcept {
        most = std::bit_cast<float>(std::max(std::bit_cast<std::uint32_t>(most), std::bit_cast<std::uint32_t>(more)));
    }

    Execution execution_;
    AttentionProductArguments<T> args_;
    Isa isa_;
    products::PairKernel pairs_;
    std::ptrdiff_t rows_, size_, block_;
    bool ordered_;                      ///< operands of p and ds need passes of their own
    std::optional<Scratch<T>> kept_{};  ///< p and ds of all items
    bool computed_ = false;             ///< `kept_` holds them
    std::optional<Largest> largest_{};
};

}  // namespace unitscale::kernels
