// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/ops/gather.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

namespace unitscale::ops {

struct ScatterAddOptions {
    std::ptrdiff_t axis = 0;                  ///< the first axis of x that ids number; negative ones count from the end
    std::optional<std::size_t> factor_ids{};  ///< N in the factor; empty: the number of ids
    std::optional<Constraint> constraint{};   ///< joins {alpha, beta_x}; empty: the recipe's rule
};

/// Rows added up by number into `extent` places, the transpose of `gather`: for ids [I] and axis 1
///   y[a,v,c] = alpha (sum over i with ids[i] = v of x[a,i,c])    dx[a,i,c] = beta dy[a,ids[i],c]
///   x [A,I,C]   y [A,extent,C]
/// Places that no id names are 0. ids may have any shape: x has its extents from `axis` on. To add to a tensor: `add`.
/// Factors under `unit`: of N ids into V = extent places, N <= V, most sums have one term at most: alpha = 1. If N > V
/// a place sums N/V rows on average: alpha = (V/N)^1/2. A gradient is one of y's, so beta = 1, joined with alpha by the
/// constraint. `factor_ids` fixes N if it differs between training and use.
/// Scale under `propagate`: s / alpha, rounded; gradients keep dy's.
/// Ids are integers of any type.
/// Errors: an axis that x has not; x without the extents of ids there; an id outside [0, extent).
/// Test: tests/ops/scatter_add_test.cpp
template <class T>
[[nodiscard]] Variable<T> scatter_add(Variable<T> x, const Tensor<std::int32_t>& ids, std::size_t extent,
                                      const ScatterAddOptions& options = {}) {
    auto op = begin_op("scatter_add", x);
    const Tensor<T>& input = op.input(0);
    const Shape& shape = input.shape();
    const std::size_t axis = front_axis("scatter_add", "x", shape, options.axis), end = axis + ids.rank();
    check(end <= input.rank() &&
              std::equal(ids.shape().begin(), ids.shape().end(), shape.begin() + static_cast<std::ptrdiff_t>(axis)),
          "scatter_add: ids ", shape_text(ids.shape()), " do not fit x ", shape_text(shape), " from axis ", axis,
          " on");
    check_ids("scatter_add", ids, static_cast<std::ptrdiff_t>(extent));
    op.set_factors({.alpha = repeated_rows_factor(extent, options.factor_ids.value_or(ids.size()))},
                   options.constraint);
    const std::ptrdiff_t outer = extent_product(shape, 0, axis), inner = extent_product(shape, end, input.rank());
    const auto rows = static_cast<std::ptrdiff_t>(extent), n = static_cast<std::ptrdiff_t>(ids.size());
    const Scaled scaled = op.scaled_alpha(input.scale());
    Tensor<T> output = op.make(with_extents(shape, axis, ids.rank(), Shape{extent}));
    kernels::scatter_add_rows<T>(op.execution(), input.data(), ids.data(), output.data(), outer, rows, n, inner,
                                 static_cast<Accum<T>>(scaled.factor));
    Tensor<std::int32_t> kept(ids.shape(), op.tape().pool());
    std::copy_n(ids.data(), ids.size(), kept.data());
    return op.record(std::move(output), scaled.scale, {.reads = reads_nothing, .any_scale = input.any_scale()},
                     [=, kept = std::move(kept)](BackwardContext<T>& g) {
                         const Scaled dx_scaled = g.scaled_beta(0);
                         Tensor<T> dx = g.make(g.input_shape(0));
                         kernels::gather_rows<T>(g.execution(), g.output_gradient().data(), kept.data(), dx.data(),
                                                 outer, rows, n, inner, static_cast<Accum<T>>(dx_scaled.factor));
                         g.add(0, std::move(dx), dx_scaled.scale);
                     });
}

template <class T, OtherId I>
[[nodiscard]] Variable<T> scatter_add(Variable<T> x, const Tensor<I>& ids, std::size_t extent,
                                      const ScatterAddOptions& options = {}) {
    const auto narrow = narrow_ids("scatter_add", "ids", ids, x.tape("scatter_add").pool());
    return scatter_add(std::move(x), narrow, extent, options);
}

}  // namespace unitscale::ops
