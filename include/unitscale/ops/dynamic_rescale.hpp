// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/kernels/rescale.hpp>
#include <unitscale/ops/rescale.hpp>
#include <unitscale/record/op.hpp>
#include <unitscale/scaling/power_of_two.hpp>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

// Scales found by measuring, under scaling `propagate`: the data of a value, or of a gradient, is brought to unit size
// by a power of two. Under any other scaling each of these ops returns x itself.
namespace unitscale::ops {

/// The power of two that divides a tensor's data: f = rescaling(norm(data)), norm in double. f = 1 for a tensor without
/// elements. f is always rounded down, whatever the recipe's rounding.
template <class T>
[[nodiscard]] double rescale_factor(const Execution& execution, kernels::DataNorm norm, const Tensor<T>& x) {
    return rescaling(kernels::data_norm(execution, norm, x.data(), static_cast<std::ptrdiff_t>(x.size())));
}

/// y = x under the scale s_x f.
template <class T>
[[nodiscard]] Variable<T> record_dynamic_rescale(const char* name, Variable<T> x, kernels::DataNorm norm) {
    const Tape<T>& tape = x.tape(name);
    if (!tape.propagates()) return x;
    const double scale = x.scaled().scale();
    return record_rescale(name, x, scale, scale * rescale_factor(tape.execution(), norm, x.scaled()));
}

/// y = x, dx = dy under the scale s_dy f.
template <class T>
[[nodiscard]] Variable<T> record_gradient_rescale(const char* name, Variable<T> x, kernels::DataNorm norm) {
    if (!x.tape(name).propagates()) return x;
    auto op = begin_op(name, x);
    return op.template record_repeats<1>({.reads = reads_nothing}, [norm](BackwardContext<T>& g) {
        Tensor<T> dx = g.take_output_gradient();
        const double from = dx.scale(), f = g.data_size(rescale_factor(g.execution(), norm, dx), from);
        const double to = f == 1.0 ? from : with_scale(from, from * f).scale;
        if (to != from)
            kernels::rescale<T>(g.execution(), dx.data(), dx.data(), static_cast<std::ptrdiff_t>(dx.size()), from, to);
        g.add(0, std::move(dx), to);
    })[0];
}

/// Brings the largest magnitude of the data to [1, 2), if it was 2^-14 or more; the value stays.
///   y = x, data: x's data over f, f = pow2_down(max(norm(data), 2^-14)), norm the largest magnitude
///   dx = dy    x, y [any shape]
/// Factors under `unit`: none; it returns x, as under `none`.
/// Scale under `propagate`: s_x f, kept within [2^-126, 2^127]; dx: dy's. f = 1 if the norm is 0, infinite or NaN. The
/// value is unchanged bit for bit, unless data leaves the normal range of T.
/// Cost: a pass over the data for the norm, and where f is not 1 another to rescale it.
/// Reference: Balanca et al. 2024 (Scalify, WANT@ICML). Test: tests/ops/dynamic_rescale_test.cpp
template <class T>
[[nodiscard]] Variable<T> dynamic_rescale_max(Variable<T> x) {
    return record_dynamic_rescale("dynamic_rescale_max", x, kernels::DataNorm::max);
}

/// As `dynamic_rescale_max`, with the mean magnitude (L1) as norm.
///   y = x, data: x's data over f    dx = dy    x, y [any shape]
/// Factors under `unit`: none; it returns x, as under `none`.
template <class T>
[[nodiscard]] Variable<T> dynamic_rescale_l1(Variable<T> x) {
    return record_dynamic_rescale("dynamic_rescale_l1", x, kernels::DataNorm::l1);
}

/// As `dynamic_rescale_max`, with the root mean square (L2) as norm.
///   y = x, data: x's data over f    dx = dy    x, y [any shape]
/// Factors under `unit`: none; it returns x, as under `none`.
template <class T>
[[nodiscard]] Variable<T> dynamic_rescale_l2(Variable<T> x) {
    return record_dynamic_rescale("dynamic_rescale_l2", x, kernels::DataNorm::l2);
}

/// Passes the value through and rescales the gradient as `dynamic_rescale_max` rescales the value.
///   y = x    dx = dy, data: dy's data over f    x, y [any shape]
/// Factors under `unit`: none; it returns x, as under `none`.
template <class T>
[[nodiscard]] Variable<T> dynamic_rescale_max_gradient(Variable<T> x) {
    return record_gradient_rescale("dynamic_rescale_max_gradient", x, kernels::DataNorm::max);
}

/// As `dynamic_rescale_max_gradient`, with the mean magnitude (L1) as norm.
///   y = x    dx = dy, data: dy's data over f    x, y [any shape]
/// Factors under `unit`: none; it returns x, as under `none`.
template <class T>
[[nodiscard]] Variable<T> dynamic_rescale_l1_gradient(Variable<T> x) {
    return record_gradient_rescale("dynamic_rescale_l1_gradient", x, kernels::DataNorm::l1);
}

/// As `dynamic_rescale_max_gradient`, with the root mean square (L2) as norm.
///   y = x    dx = dy, data: dy's data over f    x, y [any shape]
/// Factors under `unit`: none; it returns x, as under `none`.
template <class T>
[[nodiscard]] Variable<T> dynamic_rescale_l2_gradient(Variable<T> x) {
    return record_gradient_rescale("dynamic_rescale_l2_gradient", x, kernels::DataNorm::l2);
}

/// The power of two next below the rms of x's data if the recipe measures sizes (`PropagateRule::rescale_gradients`),
/// else 1. `which`: 0 to 2, of the tensors that the op at `site` measures.
template <class T>
[[nodiscard]] double measured_size(Tape<T>& tape, Site site, std::size_t which, const Tensor<T>& x) {
    const bool measures = tape.propagates() && tape.recipe().propagate.rescale_gradients;
    if (!measures) return 1.0;
    const double now = rescale_factor(tape.execution(), kernels::DataNorm::l2, x);
    return tape.carried_scales().data_size(site, which, now, x.scale());
}

/// An input of an op that sends back gradients of a size that no scale rule knows: norms divide by the size of their
/// input's data, and the queries and keys of attention grow far beyond their first size. If the recipe says so
/// (`PropagateRule::rescale_gradients`), the gradient is brought to unit data before the next product multiplies it.
template <class T>
[[nodiscard]] Variable<T> record_rescaled_gradient(Variable<T> x, const Tape<T>& tape) {
    return tape.recipe().propagate.rescale_gradients ? dynamic_rescale_l2_gradient(x) : x;
}
/// The input of a feed-forward non-linearity. The gradients of both linear layers around it grow with their weights and
/// add up. If the recipe says so (`PropagateRule::rescale_activation_gradients`), they are brought to unit data between
/// the layers.
template <class T>
[[nodiscard]] Variable<T> record_rescaled_activation(const char* name, Variable<T> x) {
    return x.tape(name).recipe().propagate.rescale_activation_gradients ? dynamic_rescale_l2_gradient(x) : x;
}

}  // namespace unitscale::ops
