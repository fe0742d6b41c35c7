// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/kernels/attention_mask.hpp>
#include <unitscale/products/micro_kernel.hpp>
#include <unitscale/products/pack.hpp>
#include <unitscale/tensor/backend.hpp>

#include <algorithm>
#include <array>
#include <cstddef>

// What attention computes, from which memory. Test: tests/kernels/attention_arguments_test.cpp
namespace unitscale::kernels {

/// A tensor [batch, time, head, depth] with depth contiguous. Row (b, t, h) is at data + b batch_stride + t time_stride
/// + h head_stride.
template <class T>
struct AttentionView {
    T* data = nullptr;
    std::ptrdiff_t batch_stride = 0, time_stride = 0, head_stride = 0;

    [[nodiscard]] T* row(std::ptrdiff_t b, std::ptrdiff_t t, std::ptrdiff_t h) const noexcept {
        if (data == nullptr) return nullptr;  // an empty tensor: null takes no offset
        return data + b * batch_stride + t * time_stride + h * head_stride;
    }
    /// The rows of one head from time t on, as a matrix [time, depth].
    [[nodiscard]] products::MatrixView<T> rows(std::ptrdiff_t b, std::ptrdiff_t t, std::ptrdiff_t h) const noexcept {
        return {row(b, t, h), time_stride, 1};
    }
    operator AttentionView<const T>() const noexcept { return {data, batch_stride, time_stride, head_stride}; }
};

/// How many queries under a causal mask are computed together. Few leave out more of the keys that the mask hides, but
/// tiles must be filled. With tiles of four rows, 16 queries at a time take 0.97 of the time of 32.
[[nodiscard]] constexpr std::ptrdiff_t causal_rows(Isa isa) noexcept {
    return products::tile_shape(isa).rows == 4 ? 16 : 32;
}

/// Attention of one layer, for each batch item and head. Head h uses the keys and values of group h / (heads / groups):
///   out = out_scale softmax(logit_scale q k^T + bias) v
///   q, out [batch, queries, heads, depth]   k, v [batch, keys, groups, depth]
/// `causal`: query i sees the keys j <= i + keys - queries, so that the last query sees every key. `mask` may hide more
/// keys, among them all before a window, and drop weights. A query that sees no key has out = 0, and no gradient
/// passes.
/// `log_sum` [batch, heads, queries]: log sum_j exp(logit_scale q_i k_j + bias) over the keys seen; infinity if there
/// are none. The forward pass writes it, and the backward pass reads it.
template <class T>
struct AttentionArguments {
    std::ptrdiff_t batch = 1, heads = 1, groups = 1, queries = 0, keys = 0, depth = 0;
    AttentionView<const T> q{}, k{}, v{};
    AttentionView<T> out{};
    Accum<T>* log_sum = nullptr;
    Accum<T> logit_scale = 1, out_scale = 1;
    bool causal = false;
    AttentionMask mask{};

    /// The end of the keys that query i of item b sees, without the mask's bias.
    [[nodiscard]] std::ptrdiff_t visible(std::ptrdiff_t b, std::ptrdiff_t i) const noexcept {
        return mask.seen(b, limit(i));
    }
    /// The first of these keys, 0 without a window.
    [[nodiscard]] std::ptrdiff_t first(std::ptrdiff_t i) const noexcept { return mask.first(limit(i)); }
    [[nodiscard]] std::ptrdiff_t limit(std::ptrdiff_t i) const noexcept {
        return causal ? std::clamp<std::ptrdiff_t>(i + keys - queries + 1, 0, keys) : keys;
    }
    /// Queries that are processed together in the forward pass.
    [[nodiscard]] std::ptrdiff_t forward_block(Isa isa) const noexcept { return causal ? causal_rows(isa) : 64; }
    /// The same in the backward pass. It sets the order of the sums in dk and dv. So it depends neither on the
    /// instruction set, nor on the number of keys, which padding changes.
    [[nodiscard]] std::ptrdiff_t backward_block() const noexcept { return causal ? 32 : 64; }
};

/// The gradients for f = softmax(logit_scale q k^T) v (without out_scale), given dout, the gradient of f:
///   P = softmax(logit_scale q k^T)   dP = dout v^T   dS = P (dP - rowsum(P dP))
///   dq = dq_scale logit_scale dS k   dk = dk_scale logit_scale dS^T q   dv = dv_scale P^T dout
/// dk and dv sum over the heads of the group. Results overwrite. `out` and `out_scale` of `forward` are not used.
template <class T>
struct AttentionGradients {
    AttentionArguments<T> forward{};
    AttentionView<const T> dout{};
    AttentionView<T> dq{}, dk{}, dv{};
    Accum<T> dq_scale = 1, dk_scale = 1, dv_scale = 1;
};

/// Where the rows of the head after (b, h) are. The caches are asked for them while head (b, h) is computed: the
/// processor does not foresee short rows that are far apart. With operands from memory the forward pass takes 0.89 of
/// its time on a Xeon.
template <class T>
class NextHead {
public:
    /// `dout`: a view without data in the forward pass.
    NextHead(const AttentionArguments<T>& args, std::ptrdiff_t b, std::ptrdiff_t h,
             const AttentionView<const T>& dout = {}) noexcept {
        const std::ptrdiff_t next = b * args.heads + h + 1, heads_per_group = args.heads / args.groups;
        if (next == args.batch * args.heads) return;
        const std::ptrdiff_t item = next / args.heads, head = next % args.heads, group = head / heads_per_group;
        const bool new_group = head % heads_per_group == 0;
        depth_ = args.depth;
        keys_ = args.keys;
        views_ = {{{args.q.row(item, 0, head), args.q.time_stride},
                   {dout.row(item, 0, head), dout.time_stride},
                   {new_group ? args.k.row(item, 0, group) : nullptr, args.k.time_stride},
                   {new_group ? args.v.row(item, 0, group) : nullptr, args.v.time_stride}}};
    }
    /// Asks the caches for row i of q and `dout`. If the next head belongs to another group, also for row i of k and v.
    /// Inlined by force: to GCC a function that only prefetches has no effect, so GCC leaves calls of it out.
    [[gnu::always_inline]] void ask(std::ptrdiff_t i) const noexcept {
        constexpr std::ptrdiff_t line = 64 / static_cast<std::ptrdiff_t>(sizeof(T));
        for (std::size_t v = 0; v < views_.size(); ++v) {
            if (views_[v].rows == nullptr || (v > 1 && i >= keys_)) continue;
            const T* const row = views_[v].rows + i * views_[v].stride;
            for (std::ptrdiff_t l = 0; l < depth_; l += line) __builtin_prefetch(row + l);
        }
    }

    /// How many tensors have a row to ask for.
    [[nodiscard]] std::ptrdiff_t rows() const noexcept {
        return std::count_if(views_.begin(), views_.end(), [](const View& view) { return view.rows != nullptr; });
    }

private:
    struct View {
        const T* rows = nullptr;
        std::ptrdiff_t stride = 0;
    };
    std::ptrdiff_t depth_ = 0, keys_ = 0;
    std::array<View, 4> views_{};
};

}  // namespace unitscale::kernels
