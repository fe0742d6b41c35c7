// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/maximum.hpp>
#include <unitscale/record/reduced_axes.hpp>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>

namespace unitscale::ops {

struct ArgmaxOptions {
    std::optional<std::ptrdiff_t> axis{};  ///< negative ones count from the end; empty: all elements
    bool keep_axis = false;                ///< true: the axis stays, with extent 1
};

/// The common part of `argmax` and `argmin`.
template <class T>
[[nodiscard]] Tensor<std::int32_t> places_along_axis(const char* op, const Variable<T>& variable,
                                                     kernels::Extreme extreme, const ArgmaxOptions& options) {
    Tape<T>& tape = variable.tape(op);
    const Tensor<T>& x = variable.scaled();
    SmallVector<std::ptrdiff_t> compared{};
    if (options.axis) compared.push_back(*options.axis);
    const ReducedAxes axes = reduced_axes(op, x.shape(), compared, options.keep_axis);
    check_elements(op, x.shape(), axes);
    check(axes.count <= std::numeric_limits<std::int32_t>::max(), op, ": x ", shape_text(x.shape()), " has ",
          axes.count, " elements to compare; expected at most 2^31 - 1");
    Tensor<std::ptrdiff_t> offsets(axes.result, tape.pool());
    kernels::maximum_forward<T>(tape.execution(), x.data(), x.shape(), nullptr, offsets.data(), axes.kept, Accum<T>(1),
                                extreme);
    const std::size_t axis = options.axis ? front_axis(op, "x", x.shape(), *options.axis) : 0;
    const std::ptrdiff_t step = options.axis ? kernels::row_major_step(x.shape(), axis) : 1,
                         extent = static_cast<std::ptrdiff_t>(axes.count);
    Tensor<std::int32_t> places(axes.result, tape.pool());
    for (std::size_t i = 0; i < places.size(); ++i)
        places.data()[i] = static_cast<std::int32_t>(offsets.data()[i] / step % extent);
    return places;
}

/// The place of the largest element along an axis, the first of equal ones: token ids from logits, for example.
///   x [A,V,C] and axis 1: y [A,C], y[a,c] in [0,V)     without an axis: y [1], the place in row-major order
/// Integers have neither gradient nor scale. The result fits `gather`, `embedding` and labels.
/// Factors under `unit`: none. A positive scale does not change the order, so places do not depend on scaling.
/// A NaN counts as the largest.
/// Errors: an axis that x has not; nothing to compare; more than 2^31 - 1 elements to compare.
/// Test: tests/ops/argmax_test.cpp
template <class T>
[[nodiscard]] Tensor<std::int32_t> argmax(Variable<T> x, const ArgmaxOptions& options = {}) {
    return places_along_axis("argmax", x, kernels::Extreme::largest, options);
}

}  // namespace unitscale::ops
