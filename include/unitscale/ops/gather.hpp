// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/gather.hpp>
#include <unitscale/record/arguments.hpp>
#include <unitscale/record/ids.hpp>
#include <unitscale/record/op.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

namespace unitscale::ops {

struct GatherOptions {
    std::ptrdiff_t axis = 0;                 ///< negative ones count from the end
    std::optional<Constraint> constraint{};  ///< joins {alpha, beta_x}; empty: the recipe's rule
};

/// The factor that keeps unit scale when `count` rows are added up into `extent` places: 1 unless there are more rows
/// than places. Then it is (extent / count)^1/2, since a place sums count / extent of them on average.
[[nodiscard]] inline double repeated_rows_factor(std::size_t extent, std::size_t count) noexcept {
    return count <= extent ? 1.0 : std::sqrt(static_cast<double>(extent) / static_cast<double>(count));
}

/// `shape` with `count` of its extents, from `axis` on, replaced by others.
[[nodiscard]] inline Shape with_extents(const Shape& shape, std::size_t axis, std::size_t count, const Shape& others) {
    Shape result(shape.size() - count + others.size());
    auto end = std::copy_n(shape.begin(), axis, result.begin());
    end = std::copy(others.begin(), others.end(), end);
    std::copy(shape.begin() + static_cast<std::ptrdiff_t>(axis + count), shape.end(), end);
    return result;
}

/// Product of the extents [begin, end) of a shape.
[[nodiscard]] inline std::ptrdiff_t extent_product(const Shape& shape, std::size_t begin, std::size_t end) noexcept {
    std::size_t product = 1;
    for (std::size_t i = begin; i < end; ++i) product *= shape[i];
    return static_cast<std::ptrdiff_t>(product);
}

/// Error unless every id is in [0, extent).
inline void check_ids(const char* op, const Tensor<std::int32_t>& ids, std::ptrdiff_t extent) {
    const auto n = static_cast<std::ptrdiff_t>(ids.size());
    const std::ptrdiff_t bad = kernels::first_outside(ids.data(), n, extent);
    check(bad == n, op, ": ids[", bad, "] is ", bad < n ? ids.data()[bad] : 0, "; expected a number in [0,", extent,
          ")");
}

/// Rows along an axis, picked by number: for ids [I] and axis 1
///   y[a,i,c] = alpha x[a,ids[i],c]    dx[a,v,c] = beta (sum over i with ids[i] = v of dy[a,i,c])
///   x [A,V,C]   y [A,I,C]
/// ids may have any shape, which replaces the axis in the shape of y, and are integers of any type.
/// Factors under `unit`: values are copied, so alpha = 1. Of N ids into V rows, N <= V, at most a few rows are picked
/// twice: beta = 1, as for a slice. If N > V rows are repeated, N/V times on average, and a row's gradient sums as
/// many: beta = (V/N)^1/2, as for `embedding`, joined with alpha by the constraint: 1 by the recipe's usual rule. N and
/// V count this call: for a table that is trained use `embedding`, which counts the lookups of the whole step.
/// Scale under `propagate`: s_x; gradients: dy's / beta, rounded.
/// Errors: an axis that x has not; an id outside [0, V). Test: tests/ops/gather_test.cpp
template <class T>
[[nodiscard]] Variable<T> gather(Variable<T> x, const Tensor<std::int32_t>& ids, const GatherOptions& options = {}) {
    auto op = begin_op("gather", x);
    const Tensor<T>& input = op.input(0);
    const std::size_t axis = front_axis("gather", "x", input.shape(), options.axis), extent = input.shape()[axis];
    check_ids("gather", ids, static_cast<std::ptrdiff_t>(extent));
    op.set_factors({.betas = {repeated_rows_factor(extent, ids.size())}}, options.constraint);
    const std::ptrdiff_t outer = extent_product(input.shape(), 0, axis),
                         inner = extent_product(input.shape(), axis + 1, input.rank());
    const auto rows = static_cast<std::ptrdiff_t>(extent), n = static_cast<std::ptrdiff_t>(ids.size());
    Tensor<T> output = op.make(with_extents(input.shape(), axis, 1, ids.shape()));
    kernels::gather_rows<T>(op.execution(), input.data(), ids.data(), output.data(), outer, rows, n, inner,
                            static_cast<Accum<T>>(op.factors().alpha));
    Tensor<std::int32_t> kept(ids.shape(), op.tape().pool());
    std::copy_n(ids.data(), ids.size(), kept.data());
    return op.record(std::move(output), input.scale(), {.reads = reads_nothing, .any_scale = input.any_scale()},
                     [=, kept = std::move(kept)](BackwardContext<T>& g) {
                         const Scaled dx_scaled = g.scaled_beta(0);
                         Tensor<T> dx = g.make(g.input_shape(0));
                         kernels::scatter_add_rows<T>(g.execution(), g.output_gradient().data(), kept.data(), dx.data(),
                                                      outer, rows, n, inner, static_cast<Accum<T>>(dx_scaled.factor));
                         g.add(0, std::move(dx), dx_scaled.scale);
                     });
}

template <class T, OtherId I>
[[nodiscard]] Variable<T> gather(Variable<T> x, const Tensor<I>& ids, const GatherOptions& options = {}) {
    const auto narrow = narrow_ids("gather", "ids", ids, x.tape("gather").pool());
    return gather(std::move(x), narrow, options);
}

}  // namespace unitscale::ops
