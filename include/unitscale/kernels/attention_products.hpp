// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/memory.hpp>
#include <unitscale/base/parallel.hpp>
#include <unitscale/kernels/amax.hpp>
#include <unitscale/kernels/attention_mask.hpp>
#include <unitscale/kernels/round_blocks.hpp>
#include <unitscale/kernels/softmax.hpp>
#include <unitscale/products/product.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>

// Attention as six matrix products of rounded operands. The fused kernels (attention.hpp) keep scores in registers and
// caches. Here logits and probabilities are stored in T, for some heads at a time, as separate ops store them. So the
// results have the bits of `products::matmul` and `softmax_forward`, called one after the other.
namespace unitscale::kernels {

/// How an operand of attention's products is rounded.
struct AttentionOperand {
    std::optional<Quantiser> quantiser{};  ///< with the bias of the whole tensor; empty: not rounded
    std::optional<BlockFormat> blocks{};   ///< scales of blocks along the contracted dimension, in place of a bias
    std::optional<float> amax{};           ///< of the whole tensor, for blocks under a scale of the tensor
    RandomKey key{};                       ///< element i of the tensor, by items, takes piece i
};

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
    bool by_item = false;  ///< items are computed one at a time: required if any operand is in blocks
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

/// Matrices [rows,columns] of some items, from number `first` on, as an operand of their products. Rounding to nearest
/// is left to the product. Stochastic rounding and blocks need their numbers in memory.
template <class T>
class AttentionOperandRows {
    using P = Accum<T>;

public:
    AttentionOperandRows(const Execution& execution, const AttentionOperand& rule, const T* x, std::ptrdiff_t first,
                         std::ptrdiff_t items, std::ptrdiff_t rows, std::ptrdiff_t columns, Contracted contracted)
        : operand_{{x, columns, 1, rows * columns}, rule.quantiser, rule.key} {
        if (!rule.quantiser || (!rule.blocks && rule.quantiser->rounding != Rounding::stochastic)) return;
        const std::ptrdiff_t size = items * rows * columns;
        P* const numbers = numbers_.emplace(execution, static_cast<std::size_t>(size)).data();
        QuantiseOptions options = rule.quantiser->options(rule.key);
        options.first_index = static_cast<std::uint64_t>(first * rows * columns);
        const FloatFormat& format = rule.quantiser->format;
        if (!rule.blocks) {
            products::check_quantiser<T>("attention", operand_.view, rows, columns, items, *rule.quantiser);
            const Isa isa = active_isa();
            parallel_for(execution.threads, size, work_threshold, [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
                const std::span<P> part(numbers + begin, static_cast<std::size_t>(end - begin));
                products::widen_line(isa, x + begin, end - begin, part.data());
                QuantiseOptions own = options;
                own.first_index += static_cast<std::uint64_t>(begin);
                quantise(format, std::span<const P>(part), part, own);
            });
            operand_.numbers =
                products::QuantisedNumbers<P>{{numbers, columns, 1, rows * columns}, products::exact_in_bf16(format)};
            return;
        }
        const BlockOptions how{.element = options,
                               .transformer_engine_bits = format == e2m1 &&
                                                          rule.blocks->rule == BlockRule::transformer_engine &&
                                                          options.rounding == Rounding::stochastic && options.bits == 8,
                               .tensor_amax = rule.amax};
        const RoundedBlocks facts =
            round_blocks<T>(execution, *rule.blocks, how, std::nullopt, x, numbers, rows, columns, contracted);
        operand_.numbers = products::QuantisedNumbers<P>{{numbers, columns, 1}, facts.exact_in_bf16};
        if (facts.transposed) operand_.numbers->view = {numbers, 1, rows};
    }

    [[nodiscard]] const products::Operand<T>& matrix() const noexcept { return operand_; }
    [[nodiscard]] products::Operand<T> transposed() const {
        products::Operand<T> result = operand_;
        result.view = result.view.transposed();
        if (result.numbers) result.numbers->view = result.numbers->view.transposed();
        return result;
    }

private:
    products::Operand<T> operand_;
    std::optional<Scratch<P>> numbers_{};
};

/// The value of attention and its gradients, some items at a time. Memory: p and ds of these items. If all items fit,
/// the products use the p and ds that `largest` has computed. Otherwise p and ds are computed a second time.
/// Bits do not depend on the number of threads. Test: tests/kernels/attention_products_test.cpp
template <class T>
class AttentionProducts {
    using P = Accum<T>;

public:
    /// Elements of p that are stored at a time; more if a single item has more.
    static constexpr std::ptrdiff_t stored_elements = std::ptrdiff_t{1} << 20;

    AttentionProducts(const Execution& execution, const AttentionProductArguments<T>& args)
        : execution_(execution),
          args_(args),
          rows_(args.heads * args.queries),
          size_(rows_ * args.keys),
          stride_(args.by_item ? 1
                               : std::clamp<std::ptrdiff_t>(stored_elements / std::max<std::ptrdiff_t>(size_, 1), 1,
                                                            std::max<std::ptrdiff_t>(args.items, 1))),
          p_(execution, static_cast<std::size_t>(stride_ * size_)),
          ds_(execution, static_cast<std::size_t>(args.dout != nullptr ? stride_ * size_ : 0)) {}

    /// The largest magnitudes of all p, and of all ds if there are gradients.
    struct Largest {
        float p = 0, ds = 0;
    };
    [[nodiscard]] const Largest& largest() {
        if (largest_) return *largest_;
        largest_.emplace();
        each_part([this](std::ptrdiff_t, std::ptrdiff_t items) {
            include(largest_->p, p_, items);
            if (args_.dout != nullptr) include(largest_->ds, ds_, items);
        });
        return *largest_;
    }

    /// out = factor p v   [items,L,depth]
    void forward(const AttentionOperand& p_rule, const AttentionOperand& v_rule, P factor, T* out) {
        each_part([&](std::ptrdiff_t first, std::ptrdiff_t items) {
            const auto p = probabilities(p_rule, first, items, Contracted::columns),
                       v = key_rows(v_rule, args_.v, first, items, Contracted::rows);
            multiply(items, p.matrix(), v.matrix(), out + first * rows_ * args_.depth, rows_, args_.depth, args_.keys,
                     factor);
        });
    }

    void backward(const AttentionProductGradients<T>& gradients) {
        each_part([&](std::ptrdiff_t first, std::ptrdiff_t items) {
            const std::ptrdiff_t d = args_.depth;
            {
                const auto ds = dlogits(gradients.query_gradient_ds, first, items, Contracted::columns),
                           k = key_rows(gradients.query_gradient_k, args_.k, first, items, Contracted::rows);
                multiply(items, ds.matrix(), k.matrix(), gradients.dq + first * rows_ * d, rows_, d, args_.keys,
                         gradients.dq_factor);
            }
            {
                const auto ds = dlogits(gradients.key_gradient_ds, first, items, Contracted::rows),
                           q = query_rows(gradients.key_gradient_q, args_.q, first, items, Contracted::rows);
                multiply(items, ds.transposed(), q.matrix(), gradients.dk + first * args_.keys * d, args_.keys, d,
                         rows_, gradients.dk_factor);
            }
            const auto p = probabilities(gradients.value_gradient_p, first, items, Contracted::rows),
                       dy = query_rows(gradients.value_gradient_dy, args_.dout, first, items, Contracted::rows);
            multiply(items, p.transposed(), dy.matrix(), gradients.dv + first * args_.keys * d, args_.keys, d, rows_,
                     gradients.dv_factor);
        });
    }

private:
    using Rows = AttentionOperandRows<T>;

    [[nodiscard]] Rows query_rows(const AttentionOperand& rule, const T* x, std::ptrdiff_t first, std::ptrdiff_t items,
                                  Contracted contracted) const {
        return Rows(execution_, rule, x + first * rows_ * args_.depth, first, items, rows_, args_.depth, contracted);
    }
    [[nodiscard]] Rows key_rows(const AttentionOperand& rule, const T* x, std::ptrdiff_t first, std::ptrdiff_t items,
                                Contracted contracted) const {
        return Rows(execution_, rule, x + first * args_.keys * args_.depth, first, items, args_.keys, args_.depth,
                    contracted);
    }
    [[nodiscard]] Rows probabilities(const AttentionOperand& rule, std::ptrdiff_t first, std::ptrdiff_t items,
                                     Contracted contracted) {
        return Rows(execution_, rule, p_.data(), first, items, rows_, args_.keys, contracted);
    }
    [[nodiscard]] Rows dlogits(const AttentionOperand& rule, std::ptrdiff_t first, std::ptrdiff_t items,
                               Contracted contracted) {
        return Rows(execution_, rule, ds_.data(), first, items, rows_, args_.keys, contracted);
    }

    /// c [m,n] = factor a [m,k] b [k,n], for each item.
    void multiply(std::ptrdiff_t items, const products::Operand<T>& a, const products::Operand<T>& b, T* c,
                  std::ptrdiff_t m, std::ptrdiff_t n, std::ptrdiff_t k, P factor) const {
        products::matmul<T>(
            execution_,
            {.m = m, .n = n, .k = k, .batch = items, .a = a, .b = b, .c = {c, n, 1, m * n}, .alpha = factor});
    }

    /// Runs body(first, items) for parts of the items, with their p and ds in memory.
    template <class Body>
    void each_part(Body&& body) {
        for (std::ptrdiff_t first = 0; first < args_.items && args_.depth > 0; first += stride_) {
            const std::ptrdiff_t items = std::min(stride_, args_.items - first);
            if (first_held_ != first) compute(first, items);
            first_held_ = first;
            body(first, items);
        }
    }

    void compute(std::ptrdiff_t first, std::ptrdiff_t items) {
        const std::ptrdiff_t rows = items * rows_;
        {
            const auto q = query_rows(args_.logits_q, args_.q, first, items, Contracted::columns),
                       k = key_rows(args_.logits_k, args_.k, first, items, Contracted::columns);
            multiply(items, q.matrix(), k.transposed(), p_.data(), rows_, args_.keys, args_.depth, args_.logit_factor);
        }
        if (args_.causal || args_.mask.hides())
            each_row(first, rows, [&args = args_](const Row& row, T* p) {
                args.mask.add_bias(p, row.b, row.h, row.i, row.seen, P(1) / args.mult);
                std::fill(p, p + row.first, narrow<T>(-std::numeric_limits<P>::infinity()));
                std::fill(p + row.seen, p + args.keys, narrow<T>(-std::numeric_limits<P>::infinity()));
            });
        softmax_forward<T>(execution_, p_.data(), p_.data(), rows, args_.keys, args_.mult, args_.probability_factor);
        if (args_.mask.hides())
            each_row(first, rows, [&args = args_](const Row& row, T* p) {
                if (args.mask.hides_all(row.b, row.h, row.i, row.first, row.seen)) std::fill(p, p + args.keys, T(0));
            });
        const bool drops = args_.mask.dropout > 0.0;
        const auto drop = [&, kept = static_cast<P>(1.0 / (1.0 - args_.mask.dropout))](const Row& row, T* x) {
            args_.mask.drop(active_isa(), x, row.number, args_.keys, row.seen, kept);
        };
        if (args_.dout != nullptr) {
            {
                const auto dy =
                               query_rows(args_.probability_gradient_dy, args_.dout, first, items, Contracted::columns),
                           v = key_rows(args_.probability_gradient_v, args_.v, first, items, Contracted::columns);
                multiply(items, dy.matrix(), v.transposed(), ds_.data(), rows_, args_.keys, args_.depth,
                         args_.dprobability_factor);
            }
            if (drops) each_row(first, rows, drop, ds_.data());
            softmax_backward<T>(execution_, p_.data(), ds_.data(), ds_.data(), rows, args_.keys, args_.slope,
                                args_.probability_factor, args_.dlogit_factor);
            const auto hide = [&args = args_](const Row& row, T* ds) {
                std::fill(ds, ds + row.first, T(0));
                std::fill(ds + row.seen, ds + args.keys, T(0));
            };
            if (args_.causal || args_.mask.hides()) each_row(first, rows, hide, ds_.data());
        }
        if (drops) each_row(first, rows, drop);
    }

    /// A row of s, p, dp or ds: query i of head h in batch item b, its number among all rows, and the range of keys
    /// that it sees without the mask's bias, [first, seen).
    struct Row {
        std::ptrdiff_t b, h, i, number, first, seen;
    };
    /// Runs body(row, elements) for rows of x, or of p, which begin with item `first`.
    template <class Body>
    void each_row(std::ptrdiff_t first, std::ptrdiff_t rows, const Body& body, T* x = nullptr) {
        if (x == nullptr) x = p_.data();
        const std::ptrdiff_t keys = args_.keys, queries = args_.queries, heads = args_.groups * args_.heads;
        parallel_for(execution_.threads, rows, row_grain(keys), [&](std::ptrdiff_t begin, std::ptrdiff_t end) {
            for (std::ptrdiff_t r = begin; r < end; ++r) {
                const std::ptrdiff_t number = first * rows_ + r, i = number % queries, h = number / queries % heads,
                                     b = number / queries / heads;
                const std::ptrdiff_t limit =
                    args_.causal ? std::clamp<std::ptrdiff_t>(i + keys - queries + 1, 0, keys) : keys;
                const std::ptrdiff_t seen = args_.mask.seen(b, limit);
                body(Row{b, h, i, number, std::min(args_.mask.first(limit), seen), seen}, x + r * keys);
            }
        });
    }

    /// NaN counts as the largest: it has the largest word.
    void include(float& most, Scratch<T>& x, std::ptrdiff_t items) const {
        const float more = amax(execution_, x.data(), items * size_);
        most = std::bit_cast<float>(std::max(std::bit_cast<std::uint32_t>(most), std::bit_cast<std::uint32_t>(more)));
    }

    Execution execution_;
    AttentionProductArguments<T> args_;
    std::ptrdiff_t rows_, size_, stride_;
    Scratch<T> p_, ds_;
    std::ptrdiff_t first_held_ = -1;  ///< the first item with p and ds in memory
    std::optional<Largest> largest_{};
};

}  // namespace unitscale::kernels
