// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/caches.hpp>
#include <unitscale/base/cpu.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/base/parallel.hpp>
#include <unitscale/kernels/amax.hpp>
#include <unitscale/kernels/attention_arguments.hpp>
#include <unitscale/kernels/attention_operand.hpp>
#include <unitscale/kernels/attention_scores.hpp>
#include <unitscale/products/blocked_product.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

// Attention as six matrix products of rounded operands. The fused kernels (attention.hpp) keep scores in registers and
// caches. Here logits and probabilities of a head are stored in T, as separate ops store them. So the results have the
// bits of `products::matmul` and `softmax_forward`, called one after the other.
namespace unitscale::kernels {

/// The gradients dq = dq_factor ds k, dk = dk_factor ds^T q and dv = dv_factor p^T dout.
template <class T>
struct AttentionProductGradients {
    AttentionOperand query_gradient_ds{}, query_gradient_k{}, key_gradient_ds{}, key_gradient_q{}, value_gradient_p{},
        value_gradient_dy{};
    Accum<T> dq_factor = 1, dk_factor = 1, dv_factor = 1;
    T *dq = nullptr, *dk = nullptr, *dv = nullptr;  ///< [items,L,depth], [items,keys,depth] twice
};

/// The value of attention and its gradients. Rows are computed in blocks, which leave out the keys that no query of the
/// block sees. So a number that is not finite reaches only the queries that see it. Bits do not depend on the number of
/// threads.
/// Memory: each thread has p and ds of as many query rows as a quarter of level 2 holds, and dk and dv as sums over the
/// rows before. It has p and ds of a whole item if they are rounded in memory, and for gradients without bf16
/// instructions. After `largest` p and ds of all items are kept, if they fit. Otherwise they are computed again.
/// Test: tests/kernels/attention_products_test.cpp
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
          block_(products::round_up(rows_at_once(), products::pair_tile_rows(pairs_))),
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
        each_item(ordered_, fits ? rows_ : rows_together(), [&](std::ptrdiff_t item, const Memory& memory) {
            const Scores scores(execution_, args_, item, memory.keys, memory.values);
            const Execution one{1, execution_.pool};
            Largest& most = found[static_cast<std::size_t>(item)];
            for (std::ptrdiff_t begin = 0; begin < rows_; begin += memory.rows) {
                const std::ptrdiff_t end = std::min(rows_, begin + memory.rows), size = (end - begin) * args_.keys;
                compute(scores, memory, begin, end);
                include(most.p, amax(one, memory.p, size));
                if (args_.dout != nullptr) include(most.ds, amax(one, memory.ds, size));
            }
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
        const bool whole = Rows::has_own_pass(p_rule);
        each_item(ordered_ || whole || Rows::has_own_pass(v_rule), whole ? rows_ : rows_together(),
                  [&](std::ptrdiff_t item, const Memory& memory) {
                      const Rows v = right_rows(v_rule, args_.v, item, args_.keys);
                      with_rows(item, memory, p_rule, memory.p, v, factor, out + item * rows_ * args_.depth,
                                [](auto&&...) {});
                  });
    }

    void backward(const AttentionProductGradients<T>& gradients) {
        bool ordered = ordered_;
        for (const AttentionOperand* const rule :
             {&gradients.query_gradient_ds, &gradients.query_gradient_k, &gradients.key_gradient_ds,
              &gradients.key_gradient_q, &gradients.value_gradient_p, &gradients.value_gradient_dy})
            ordered = ordered || Rows::has_own_pass(*rule);
        const bool carries = can_carry(gradients.key_gradient_ds, gradients.key_gradient_q) &&
                             can_carry(gradients.value_gradient_p, gradients.value_gradient_dy) &&
                             !Rows::has_own_pass(gradients.query_gradient_ds);
        each_item(ordered, carries ? rows_together() : rows_, [&](std::ptrdiff_t item, const Memory& memory) {
            const std::ptrdiff_t wide = item * rows_ * args_.depth, narrow = item * args_.keys * args_.depth;
            const Rows k = right_rows(gradients.query_gradient_k, args_.k, item, args_.keys),
                       q = right_rows(gradients.key_gradient_q, args_.q, item, rows_),
                       dy = right_rows(gradients.value_gradient_dy, args_.dout, item, rows_);
            with_rows(item, memory, gradients.query_gradient_ds, memory.ds, k, gradients.dq_factor, gradients.dq + wide,
                      [&](std::ptrdiff_t first, std::ptrdiff_t last) {
                          sum_rows(item, memory, first, last, gradients.key_gradient_ds, memory.ds, q, memory.dk,
                                   gradients.dk_factor, gradients.dk + narrow);
                          sum_rows(item, memory, first, last, gradients.value_gradient_p, memory.p, dy, memory.dv,
                                   gradients.dv_factor, gradients.dv + narrow);
                      });
        });
    }

private:
    using Rows = AttentionOperandRows<T>;
    using Scores = AttentionScores<T>;
    using Product = products::BlockedProduct<T>;

    /// Memory of one item, for `rows` query rows at a time.
    struct Memory {
        std::ptrdiff_t rows = 0;
        T *p = nullptr, *ds = nullptr;                 ///< [rows,keys]
        P *keys = nullptr, *values = nullptr;          ///< k^T and v^T, packed
        P *right = nullptr, *right_of_rows = nullptr;  ///< right operands [keys,depth] and [rows,depth], packed
        P *dk = nullptr, *dv = nullptr;                ///< sums over the rows before, if `rows` are not all
        P* scratch = nullptr;                          ///< of each thread that works on the item
        int threads = 1;
    };
    /// Elements of packed k^T or v^T, of the scratch of a thread, and of the sums of dk or dv.
    [[nodiscard]] std::ptrdiff_t keys_size() const noexcept {
        return Product::right_size(isa_, args_.depth, args_.keys);
    }
    [[nodiscard]] std::ptrdiff_t scratch_size(std::ptrdiff_t rows) const noexcept {
        return std::max(Product::scratch_size(isa_, block_, args_.depth, args_.keys),
                        Product::scratch_size(isa_, block_, std::max(args_.keys, rows), args_.depth));
    }
    [[nodiscard]] std::ptrdiff_t sums_size(std::ptrdiff_t rows) const noexcept {
        return rows < rows_ ? Product::sums_size(pairs_, args_.keys, args_.depth) : 0;
    }

    [[nodiscard]] std::ptrdiff_t matrices() const noexcept { return args_.dout != nullptr ? 2 : 1; }
    /// x [items,rows,depth] of an item as the right operand of a product.
    [[nodiscard]] Rows right_rows(const AttentionOperand& rule, const T* x, std::ptrdiff_t item,
                                  std::ptrdiff_t rows) const {
        return attention_item_rows(execution_, args_, rule, x, item, rows, Contracted::rows);
    }
    /// p or ds of `rows` query rows.
    [[nodiscard]] Rows score_rows(const AttentionOperand& rule, const T* x, std::ptrdiff_t item, std::ptrdiff_t rows,
                                  Contracted contracted) const {
        return Rows(execution_, rule, x, item, rows, args_.keys, contracted);
    }

    /// Query rows that a thread computes at once, in whole tiles or more. For 1000 keys, 64 rows instead of 128 took
    /// 0.94 of the time forward, and 1.03 backward.
    [[nodiscard]] std::ptrdiff_t rows_at_once() const noexcept {
        if (args_.causal) return causal_rows(isa_);
        return args_.dout != nullptr ? 128 : 64;
    }
    /// How many query rows have p and ds in memory at a time. p fills a quarter of a core's share of level 2, and ds
    /// another.
    [[nodiscard]] std::ptrdiff_t rows_together() const noexcept {
        const auto level2 = static_cast<std::ptrdiff_t>(active_caches().level(2).share()),
                   row = args_.keys * static_cast<std::ptrdiff_t>(sizeof(T));
        const std::ptrdiff_t rows = level2 / 4 / std::max<std::ptrdiff_t>(row, 1) / products::pair_depth;
        return std::min(rows_, std::max<std::ptrdiff_t>(rows, 1) * products::pair_depth);
    }
    /// Whether sums over queries can be carried from rows to rows, in the product scores^T right.
    [[nodiscard]] bool can_carry(const AttentionOperand& scores, const AttentionOperand& right) const {
        return !Rows::has_own_pass(scores) &&
               Product::can_carry(pairs_, {{}, scores.quantiser}, {{}, right.quantiser}, rows_);
    }

    /// Runs body(item, memory) for all items, with memory for p and ds of `rows` query rows for each thread of an item.
    /// Threads share the items if there are enough and their order is free; otherwise they share the blocks of an item.
    template <class Body>
    void each_item(bool ordered, std::ptrdiff_t rows, Body&& body) {
        if (args_.items <= 0 || args_.depth <= 0) return;
        constexpr double work_per_thread = 1 << 19;
        const double work = static_cast<double>(size_) * static_cast<double>(args_.items * args_.depth) *
                            (args_.dout != nullptr ? 5 : 2);
        const auto threads = static_cast<std::ptrdiff_t>(
            in_parallel_region() ? 1.0
                                 : std::clamp(work / work_per_thread, 1.0, std::max(execution_.threads, 1) * 1.0));
        const std::ptrdiff_t parts = ordered || args_.items < threads ? 1 : threads;
        const auto inner = static_cast<int>(parts > 1 ? 1 : threads);
        rows = kept_ ? rows_ : std::min(rows_, rows * inner);
        const std::ptrdiff_t sums = sums_size(rows), of_keys = Product::right_size(isa_, args_.keys, args_.depth),
                             of_rows = args_.dout != nullptr ? Product::right_size(isa_, rows, args_.depth) : 0,
                             part = 2 * keys_size() + of_keys + of_rows + 2 * sums + inner * scratch_size(rows);
        Scratch<P> memory(execution_, static_cast<std::size_t>(parts * part));
        std::optional<Scratch<T>> scores;
        const std::ptrdiff_t size = rows * args_.keys;
        if (!kept_) scores.emplace(execution_, static_cast<std::size_t>(parts * size * matrices()));
        parallel_jobs(parts, args_.items, [&](std::ptrdiff_t index, auto next) {
            Memory own;
            own.rows = rows;
            own.keys = memory.data() + index * part;
            own.values = own.keys + keys_size();
            own.right = own.values + keys_size();
            own.right_of_rows = own.right + of_keys;
            own.scratch = own.right_of_rows + of_rows;
            if (rows < rows_) {
                own.dk = own.scratch + inner * scratch_size(rows);
                own.dv = own.dk + sums;
            }
            own.threads = inner;
            while (const std::optional<std::ptrdiff_t> item = next()) {
                own.p = kept_ ? kept_->data() + *item * size * matrices() : scores->data() + index * size * matrices();
                own.ds = args_.dout != nullptr ? own.p + size : nullptr;
                body(*item, static_cast<const Memory&>(own));
            }
        });
    }

    /// Runs body(first, last, scratch) for blocks of the rows [begin, end) in the threads of an item.
    template <class Body>
    void each_block(const Memory& memory, std::ptrdiff_t begin, std::ptrdiff_t end, const Body& body) const {
        const std::ptrdiff_t blocks = (end - begin + block_ - 1) / block_;
        parallel_jobs(memory.threads, blocks, [&](std::ptrdiff_t worker, auto next) {
            while (const std::optional<std::ptrdiff_t> b = next())
                body(begin + *b * block_, std::min(end, begin + (*b + 1) * block_),
                     memory.scratch + worker * scratch_size(memory.rows));
        });
    }

    /// p of the query rows [first, last), and ds if there are gradients, in memory that begins with row `begin`.
    void compute(const Scores& scores, const Memory& memory, std::ptrdiff_t first, std::ptrdiff_t last,
                 std::ptrdiff_t begin, P* scratch) const {
        const std::ptrdiff_t at = (first - begin) * args_.keys;
        scores.compute(first, last, memory.p + at, memory.ds != nullptr ? memory.ds + at : nullptr, scratch);
    }
    /// All rows that memory has, [begin, end).
    void compute(const Scores& scores, const Memory& memory, std::ptrdiff_t begin, std::ptrdiff_t end) const {
        each_block(memory, begin, end, [&](std::ptrdiff_t first, std::ptrdiff_t last, P* scratch) {
            compute(scores, memory, first, last, begin, scratch);
        });
    }

    /// c [L,depth] = factor p right, where `scores` is p or ds. Computes them, as many rows at a time as memory has.
    /// after(first, last) follows when p, ds and c of the rows [first, last) are there.   right [keys,depth]
    template <class After>
    void with_rows(std::ptrdiff_t item, const Memory& memory, const AttentionOperand& rule, const T* scores,
                   const Rows& right, P factor, T* c, const After& after) {
        const std::ptrdiff_t d = args_.depth, keys = args_.keys;
        std::optional<Scores> source;
        if (!computed_) source.emplace(execution_, args_, item, memory.keys, memory.values);
        if (source && Rows::has_own_pass(rule)) {  // p is rounded in memory, so all of it is computed before
            compute(*source, memory, 0, rows_);
            source.reset();
        }
        const Rows rows = score_rows(rule, scores, item, memory.rows, Contracted::columns);
        const Product product(execution_, isa_, pairs_, rows.matrix(), right.matrix(), memory.rows, d, keys,
                              memory.right);
        std::ptrdiff_t begin = 0;
        do {  // runs once for no rows too
            const std::ptrdiff_t end = std::min(rows_, begin + memory.rows);
            each_block(memory, begin, end, [&](std::ptrdiff_t first, std::ptrdiff_t last, P* scratch) {
                // Rows of p are multiplied while they are in the cache.
                if (source) compute(*source, memory, first, last, begin, scratch);
                product.rows({first - begin, last - first, d, 0, attention_keys_seen(args_, item, first, last)},
                             {c + first * d, d, 1}, factor, scratch);
            });
            after(begin, end);
            begin = end;
        } while (begin < rows_);
    }

    /// Adds the query rows [begin, end) to c [keys,depth] = factor scores^T right. `scores` is p or ds of these rows,
    /// `sums` the sums so far.   right [L,depth]
    void sum_rows(std::ptrdiff_t item, const Memory& memory, std::ptrdiff_t begin, std::ptrdiff_t end,
                  const AttentionOperand& rule, const T* scores, const Rows& right, P* sums, P factor, T* c) const {
        const std::ptrdiff_t d = args_.depth, count = end - begin;
        const Rows rows = score_rows(rule, scores, item, count, Contracted::rows);
        const products::Operand<T> transposed = rows.transposed();
        const Product product(execution_, isa_, pairs_, transposed, right.from_row(begin), args_.keys, d, count,
                              memory.right_of_rows);
        each_block(memory, 0, args_.keys, [&](std::ptrdiff_t first, std::ptrdiff_t last, P* scratch) {
            // Queries before the first that sees a key of the block have p = 0. Heads stand one below the other.
            const std::ptrdiff_t unseen = args_.causal && args_.heads == 1
                                              ? std::max<std::ptrdiff_t>(first - (args_.keys - args_.queries), 0)
                                              : 0,
                                 start = unseen / products::pair_depth * products::pair_depth;
            if (start >= end && start > 0) return;
            product.rows({first, last - first, d, start, count, {sums, begin, end == rows_}}, {c + first * d, d, 1},
                         factor, scratch);
        });
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
