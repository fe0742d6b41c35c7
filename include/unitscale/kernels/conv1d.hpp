// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/reduce.hpp>
#include <unitscale/products/product.hpp>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <span>
#include <type_traits>

// Convolution along one axis, in groups, as products on unfolded input. The patches of each group become the columns of
// a matrix, one batch item beside the other. Sums and intermediate values are in Accum<T>; results are rounded to T
// once.
namespace unitscale::kernels {

/// Sizes of a convolution.
///   x [batch, in_channels, length]   weight [out_channels, in_channels / groups, taps]
///   y [batch, out_channels, out_length]
///   y[b, o, l] = sum over c in o's group, t of weight[o, c, t] x[b, c, l stride + t dilation - left], 0 outside x
struct Conv1dShape {
    std::ptrdiff_t batch = 0, in_channels = 0, length = 0, out_channels = 0, out_length = 0, taps = 1;
    std::ptrdiff_t stride = 1, dilation = 1, left = 0, groups = 1;

    [[nodiscard]] std::ptrdiff_t group_in() const noexcept { return in_channels / groups; }
    [[nodiscard]] std::ptrdiff_t group_out() const noexcept { return out_channels / groups; }
    [[nodiscard]] std::ptrdiff_t depth() const noexcept { return group_in() * taps; }  ///< rows of an unfolded matrix
    [[nodiscard]] std::ptrdiff_t x_size() const noexcept { return batch * in_channels * length; }
    [[nodiscard]] std::ptrdiff_t y_size() const noexcept { return batch * out_channels * out_length; }
    [[nodiscard]] std::ptrdiff_t weight_size() const noexcept { return out_channels * depth(); }
    /// Whether x equals its unfolded matrix.
    [[nodiscard]] bool pointwise() const noexcept {
        return taps == 1 && stride == 1 && left == 0 && out_length == length;
    }
};

/// An operand as the products read it, in Accum<T>. With stochastic rounding it is quantised here, by piece i of `key`
/// for element i. So an element that stands in several patches has one value in all three products.
template <class T>
class WideOperand {
public:
    using P = Accum<T>;
    /// Error, in the name of `name`: NaN for a format without NaN.
    WideOperand(const Execution& execution, const char* name, const products::Operand<T>& operand, std::ptrdiff_t n)
        : quantiser_(operand.quantiser) {
        const T* const in = operand.view.data;
        products::check_operand(name, operand, 1, n, 1);
        const bool pass = operand.is_stochastic();
        if constexpr (std::is_same_v<T, P>) data_ = in;
        if (std::is_same_v<T, P> && !pass) return;
        copy_.emplace(execution, static_cast<std::size_t>(n));
        data_ = copy_->data();
        if (pass) quantiser_.reset();
        parallel_for(execution.threads, n, work_threshold,
                     [=, to = copy_->data(), &operand](std::ptrdiff_t begin, std::ptrdiff_t end) {
                         for (std::ptrdiff_t i = begin; i < end; ++i) to[i] = element_cast<P>(in[i]);
                         if (!pass) return;
                         QuantiseOptions options = operand.quantiser->options(operand.key);
                         options.first_index = static_cast<std::uint64_t>(begin);
                         const std::span<P> part(to + begin, static_cast<std::size_t>(end - begin));
                         quantise(operand.quantiser->format, std::span<const P>(part), part, options);
                     });
    }
    [[nodiscard]] const P* data() const noexcept { return data_; }
    /// The quantiser that the product still applies.
    [[nodiscard]] const std::optional<Quantiser>& quantiser() const noexcept { return quantiser_; }

private:
    std::optional<Quantiser> quantiser_;
    std::optional<Scratch<P>> copy_{};
    const P* data_ = nullptr;
};

/// Memory in which a result is computed in Accum<T>: the result itself, or scratch that `finish` rounds.
template <class T>
class WideResult {
public:
    using P = Accum<T>;
    WideResult(const Execution& execution, T* out, std::ptrdiff_t n) : execution_(execution), out_(out), n_(n) {
        if constexpr (!std::is_same_v<T, P>) copy_.emplace(execution, static_cast<std::size_t>(n));
    }
    [[nodiscard]] P* data() noexcept {
        if constexpr (std::is_same_v<T, P>) return out_;
        else return copy_->data();
    }
    void finish() {
        if constexpr (!std::is_same_v<T, P>)
            map_elements(
                execution_, n_, out_, [](P v) { return v; }, copy_->data());
    }

private:
    Execution execution_;
    T* out_;
    std::ptrdiff_t n_;
    std::optional<Scratch<P>> copy_{};
};

/// The places l in [0, out_length) at which the input l stride + shift lies inside x: [first, last).
struct InsideRange {
    std::ptrdiff_t first, last;
};
[[nodiscard]] inline InsideRange inside_range(const Conv1dShape& s, std::ptrdiff_t shift) noexcept {
    const std::ptrdiff_t first = shift >= 0 ? 0 : (-shift + s.stride - 1) / s.stride;
    const std::ptrdiff_t last = shift >= s.length ? 0 : (s.length - shift + s.stride - 1) / s.stride;
    return {std::min(first, s.out_length), std::clamp(last, std::min(first, s.out_length), s.out_length)};
}

/// columns[b, c taps + t, l] = x[b, first channel + c, l stride + t dilation - left] for one group.
///   columns [batch, depth, out_length], written whole
template <class P>
void unfold_group(const Execution& execution, const Conv1dShape& s, std::ptrdiff_t group, const P* x, P* columns) {
    parallel_for(execution.threads, s.batch * s.depth(), row_grain(s.out_length),
                 [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
                     for (std::ptrdiff_t row = begin; row < end; ++row) {
                         const std::ptrdiff_t b = row / s.depth(), c = row % s.depth() / s.taps, t = row % s.taps;
                         const std::ptrdiff_t shift = t * s.dilation - s.left;
                         const P* const in = x + (b * s.in_channels + group * s.group_in() + c) * s.length;
                         P* const out = columns + row * s.out_length;
                         const auto [first, last] = inside_range(s, shift);
                         std::fill(out, out + first, P(0));
                         // An empty x has no data, and null takes no offset.
                         if (s.stride == 1 && first < last) std::copy_n(in + first + shift, last - first, out + first);
                         else
                             for (std::ptrdiff_t l = first; l < last; ++l) out[l] = in[l * s.stride + shift];
                         std::fill(out + last, out + s.out_length, P(0));
                     }
                 });
}

/// The transpose of `unfold_group`. Each element of the group's channels of x becomes the sum of its places in the
/// unfolded matrix, by taps in order.
template <class P>
void fold_group(const Execution& execution, const Conv1dShape& s, std::ptrdiff_t group, const P* columns, P* x) {
    parallel_for(execution.threads, s.batch * s.group_in(), row_grain(s.length + s.taps * s.out_length),
                 [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
                     for (std::ptrdiff_t row = begin; row < end; ++row) {
                         const std::ptrdiff_t b = row / s.group_in(), c = row % s.group_in();
                         P* const out = x + (b * s.in_channels + group * s.group_in() + c) * s.length;
                         std::fill_n(out, s.length, P(0));
                         for (std::ptrdiff_t t = 0; t < s.taps; ++t) {
                             const std::ptrdiff_t shift = t * s.dilation - s.left;
                             const P* const in = columns + (row * s.taps + t) * s.out_length;
                             const auto [first, last] = inside_range(s, shift);
                             for (std::ptrdiff_t l = first; l < last; ++l) out[l * s.stride + shift] += in[l];
                         }
                     }
                 });
}

/// The matrices [depth, out_length] of a group, as a batch: unfolded into `scratch`, or x in place.
template <class P>
[[nodiscard]] products::MatrixView<const P> group_columns(const Execution& execution, const Conv1dShape& s,
                                                          std::ptrdiff_t group, const P* x, P* scratch) {
    if (s.pointwise()) return {x + group * s.group_in() * s.length, s.length, 1, s.in_channels * s.length};
    unfold_group(execution, s, group, x, scratch);
    return {scratch, s.out_length, 1, s.depth() * s.out_length};
}

/// Batch items that are unfolded at a time: some for every thread, as many as stay in the level 2 caches.
[[nodiscard]] inline std::ptrdiff_t items_at_once(const Execution& execution, const Conv1dShape& s) noexcept {
    const std::ptrdiff_t item = std::max<std::ptrdiff_t>(s.depth() * s.out_length, 1);
    const std::ptrdiff_t items = execution.threads * std::max<std::ptrdiff_t>(products::block_sizes().right / item, 1);
    return s.pointwise() ? s.batch : std::min(items, s.batch);
}
[[nodiscard]] inline std::size_t columns_size(const Execution& execution, const Conv1dShape& s) noexcept {
    return s.pointwise() ? 0 : static_cast<std::size_t>(items_at_once(execution, s) * s.depth() * s.out_length);
}

/// Calls body(part, first, group) for each group and each part of the batch. `part` is the shape with the items of the
/// part; `first` is the first of these items.
template <class Body>
void for_parts(const Execution& execution, const Conv1dShape& s, Body&& body) {
    const std::ptrdiff_t items = items_at_once(execution, s);
    for (std::ptrdiff_t group = 0; group < s.groups; ++group)
        for (std::ptrdiff_t first = 0; first < s.batch; first += items) {
            Conv1dShape part = s;
            part.batch = std::min(items, s.batch - first);
            body(part, first, group);
        }
}

/// y = alpha (convolution of x with weight + bias).   bias [out_channels] or null
/// Errors: `conv1d: x: ...` for NaN rounded to a format without NaN. Test: tests/kernels/conv1d_test.cpp
template <class T>
void conv1d_forward(const Execution& execution, const Conv1dShape& s, const products::Operand<T>& x,
                    const products::Operand<T>& weight, const T* bias, T* y, Accum<T> alpha) {
    using P = Accum<T>;
    const WideOperand<T> input(execution, "conv1d: x", x, s.x_size()),
        w(execution, "conv1d: weight", weight, s.weight_size());
    WideResult<T> output(execution, y, s.y_size());
    Scratch<P> columns(execution, columns_size(execution, s));
    P* const out = output.data();
    if (bias != nullptr)  // the products add to it
        parallel_for(execution.threads, s.batch * s.out_channels, row_grain(s.out_length),
                     [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
                         for (std::ptrdiff_t row = begin; row < end; ++row)
                             std::fill_n(out + row * s.out_length, s.out_length,
                                         alpha * element_cast<P>(bias[row % s.out_channels]));
                     });
    for_parts(execution, s, [&](const Conv1dShape& part, std::ptrdiff_t first, std::ptrdiff_t group) {
        const P* const from = input.data() + first * s.in_channels * s.length;
        P* const to = out + (first * s.out_channels + group * s.group_out()) * s.out_length;
        products::matmul<P>(execution,
                            {.m = s.group_out(),
                             .n = s.out_length,
                             .k = s.depth(),
                             .batch = part.batch,
                             .a = {{w.data() + group * s.group_out() * s.depth(), s.depth(), 1}, w.quantiser()},
                             .b = {group_columns(execution, part, group, from, columns.data()), input.quantiser()},
                             .c = {to, s.out_length, 1, s.out_channels * s.out_length},
                             .alpha = alpha,
                             .gamma = bias != nullptr ? P(1) : P(0)});
    });
    output.finish();
}

/// dx = beta times the gradient for x, of the quantised operands.
///   dy [batch, out_channels, out_length]   dx as x, overwritten
template <class T>
void conv1d_backward_x(const Execution& execution, const Conv1dShape& s, const products::Operand<T>& dy,
                       const products::Operand<T>& weight, T* dx, Accum<T> beta) {
    using P = Accum<T>;
    const WideOperand<T> gradient(execution, "conv1d: dy", dy, s.y_size()),
        w(execution, "conv1d: weight", weight, s.weight_size());
    WideResult<T> result(execution, dx, s.x_size());
    Scratch<P> columns(execution, columns_size(execution, s));
    for_parts(execution, s, [&](const Conv1dShape& part, std::ptrdiff_t first, std::ptrdiff_t group) {
        const P* const from = gradient.data() + (first * s.out_channels + group * s.group_out()) * s.out_length;
        P* const to = result.data() + first * s.in_channels * s.length;
        products::matmul<P>(
            execution,
            {.m = s.depth(),
             .n = s.out_length,
             .k = s.group_out(),
             .batch = part.batch,
             .a = {{w.data() + group * s.group_out() * s.depth(), 1, s.depth()}, w.quantiser()},
             .b = {{from, s.out_length, 1, s.out_channels * s.out_length}, gradient.quantiser()},
             .c = s.pointwise() ? products::MatrixView<P>{to + group * s.group_in() * s.length, s.length, 1,
                                                          s.in_channels * s.length}
                                : products::MatrixView<P>{columns.data(), s.out_length, 1, s.depth() * s.out_length},
             .alpha = beta});
        if (!s.pointwise()) fold_group(execution, part, group, columns.data(), to);
    });
    result.finish();
}

/// dweight = beta times the gradient for the weight, of the quantised operands, summed over the batch in order.
template <class T>
void conv1d_backward_weight(const Execution& execution, const Conv1dShape& s, const products::Operand<T>& dy,
                            const products::Operand<T>& x, T* dweight, Accum<T> beta) {
    using P = Accum<T>;
    const WideOperand<T> gradient(execution, "conv1d: dy", dy, s.y_size()),
        input(execution, "conv1d: x", x, s.x_size());
    WideResult<T> result(execution, dweight, s.weight_size());
    Scratch<P> columns(execution, columns_size(execution, s));
    if (s.batch == 0) std::fill_n(result.data(), s.weight_size(), P(0));
    for_parts(execution, s, [&](const Conv1dShape& part, std::ptrdiff_t first, std::ptrdiff_t group) {
        const P* const from = input.data() + first * s.in_channels * s.length;
        const products::MatrixView<const P> patches = group_columns(execution, part, group, from, columns.data());
        for (std::ptrdiff_t b = 0; b < part.batch; ++b) {
            const P* const dy_item =
                gradient.data() + ((first + b) * s.out_channels + group * s.group_out()) * s.out_length;
            products::matmul<P>(execution, {.m = s.group_out(),
                                            .n = s.depth(),
                                            .k = s.out_length,
                                            .a = {{dy_item, s.out_length, 1}, gradient.quantiser()},
                                            .b = {patches.item(b).transposed(), input.quantiser()},
                                            .c = {result.data() + group * s.group_out() * s.depth(), s.depth(), 1},
                                            .alpha = beta,
                                            .gamma = first + b == 0 ? P(0) : P(1)});
        }
    });
    result.finish();
}

/// dbias[o] = beta sum over b and l of dy[b, o, l].
template <class T>
void conv1d_backward_bias(const Execution& execution, const Conv1dShape& s, const T* dy, T* dbias, Accum<T> beta) {
    using P = Accum<T>;
    parallel_for(execution.threads, s.out_channels, row_grain(s.batch * s.out_length),
                 [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
                     for (std::ptrdiff_t o = begin; o < end; ++o) {
                         P sum = 0;
                         for (std::ptrdiff_t b = 0; b < s.batch; ++b)
                             sum += sum_range<P>(
                                 s.out_length, [](P v) { return v; }, dy + (b * s.out_channels + o) * s.out_length);
                         dbias[o] = element_cast<T>(beta * sum);
                     }
                 });
}

}  // namespace unitscale::kernels
