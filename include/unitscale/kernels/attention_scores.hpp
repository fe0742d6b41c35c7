// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/kernels/attention_mask.hpp>
#include <unitscale/kernels/attention_operand.hpp>
#include <unitscale/kernels/softmax.hpp>
#include <unitscale/products/blocked_product.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <optional>

// The probabilities of attention by products (attention_products.hpp), and the gradients of its logits.
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

/// A row of s, p, dp or ds: query i of head h in batch item b, its number among all rows, and the range of keys that it
/// sees without the mask's bias, [first, seen).
struct AttentionRow {
    std::ptrdiff_t b, h, i, number, first, seen;
};
/// Row r of an item, r < L.
template <class T>
[[nodiscard]] AttentionRow attention_row(const AttentionProductArguments<T>& args, std::ptrdiff_t item,
                                         std::ptrdiff_t r) noexcept {
    const std::ptrdiff_t queries = args.queries, heads = args.groups * args.heads,
                         number = item * args.heads * queries + r, i = number % queries, h = number / queries % heads,
                         b = number / queries / heads;
    const std::ptrdiff_t limit =
        args.causal ? std::clamp<std::ptrdiff_t>(i + args.keys - queries + 1, 0, args.keys) : args.keys;
    const std::ptrdiff_t seen = args.mask.seen(b, limit);
    return {b, h, i, number, std::min(args.mask.first(limit), seen), seen};
}
/// The end of the keys that a query of the rows [first, last) of an item sees, without the mask's bias.
template <class T>
[[nodiscard]] std::ptrdiff_t attention_keys_seen(const AttentionProductArguments<T>& args, std::ptrdiff_t item,
                                                 std::ptrdiff_t first, std::ptrdiff_t last) noexcept {
    const bool whole = first / args.queries != (last - 1) / args.queries;
    return attention_row(args, item, whole ? args.queries - 1 : last - 1).seen;
}

/// x [items,rows,depth] of an item as an operand of its products.
template <class T>
[[nodiscard]] AttentionOperandRows<T> attention_item_rows(const Execution& execution,
                                                          const AttentionProductArguments<T>& args,
                                                          const AttentionOperand& rule, const T* x, std::ptrdiff_t item,
                                                          std::ptrdiff_t rows, Contracted contracted) {
    return AttentionOperandRows<T>(execution, rule, x + item * rows * args.depth, item, rows, args.depth, contracted);
}

/// p and ds of an item's rows, from two products: k^T and v^T are packed once. Test:
/// tests/kernels/attention_scores_test.cpp
template <class T>
class AttentionScores {
    using P = Accum<T>;
    using Rows = AttentionOperandRows<T>;
    using Product = products::BlockedProduct<T>;

public:
    /// Packs k^T into `keys`, and v^T into `values` if there are gradients: Product::right_size(isa, depth, keys)
    /// elements each. `args` is kept by reference.
    AttentionScores(const Execution& execution, const AttentionProductArguments<T>& args, std::ptrdiff_t item, P* keys,
                    P* values)
        : args_(args),
          item_(item),
          q_(rows_of(execution, args.logits_q, args.q, args.heads * args.queries)),
          k_(rows_of(execution, args.logits_k, args.k, args.keys)),
          logits_(execution, isa_, products::active_pair_kernel(), q_.matrix(), k_.transposed(),
                  args.heads * args.queries, args.keys, args.depth, keys) {
        if (args.dout == nullptr) return;
        gradients_.emplace(*this, execution, values);
    }
    AttentionScores(const AttentionScores&) = delete;
    AttentionScores& operator=(const AttentionScores&) = delete;

    /// p of the rows [first, last), and ds if there are gradients. Both begin with row `first`.   p, ds [rows,keys]
    void compute(std::ptrdiff_t first, std::ptrdiff_t last, T* p, T* ds, P* scratch) const {
        const std::ptrdiff_t keys = args_.keys, d = args_.depth;
        const bool drops = args_.mask.dropout > 0.0;
        const auto kept = static_cast<P>(1.0 / (1.0 - args_.mask.dropout));
        const P slope = args_.dlogit_factor * args_.slope / args_.probability_factor;
        const typename Product::Part part{first, last - first, attention_keys_seen(args_, item_, first, last), 0, d};
        logits_.rows(part, {p, keys, 1}, args_.logit_factor, scratch);
        if (gradients_) gradients_->product.rows(part, {ds, keys, 1}, args_.dprobability_factor, scratch);
        for (std::ptrdiff_t r = first; r < last; ++r, p += keys) {
            const AttentionRow row = attention_row(args_, item_, r);
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
            if (gradients_) {
                std::fill(ds, ds + row.first, T(0));
                std::fill(ds + row.seen, ds + keys, T(0));
                if (drops) args_.mask.drop(isa_, ds, row.number, keys, row.seen, kept);
                softmax_gradient_row<T>(isa_, p, ds, ds, n, slope, args_.probability_factor);
                ds += keys;
            }
            if (drops) args_.mask.drop(isa_, p, row.number, keys, row.seen, kept);
        }
    }

private:
    /// The same as a left operand, or transposed.
    [[nodiscard]] Rows rows_of(const Execution& execution, const AttentionOperand& rule, const T* x,
                               std::ptrdiff_t rows) const {
        return attention_item_rows(execution, args_, rule, x, item_, rows, Contracted::columns);
    }
    /// dp.
    struct Gradients {
        Rows dy, v;
        Product product;
        Gradients(const AttentionScores& all, const Execution& execution, P* values)
            : dy(all.rows_of(execution, all.args_.probability_gradient_dy, all.args_.dout,
                             all.args_.heads * all.args_.queries)),
              v(all.rows_of(execution, all.args_.probability_gradient_v, all.args_.v, all.args_.keys)),
              product(execution, all.isa_, products::active_pair_kernel(), dy.matrix(), v.transposed(),
                      all.args_.heads * all.args_.queries, all.args_.keys, all.args_.depth, values) {}
    };

    const AttentionProductArguments<T>& args_;
    std::ptrdiff_t item_;
    Isa isa_ = active_isa();
    Rows q_, k_;
    Product logits_;
    std::optional<Gradients> gradients_{};
};

}  // namespace unitscale::kernels
