// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/kernels/broadcast.hpp>
#include <unitscale/record/op.hpp>
#include <unitscale/scaling/factors.hpp>

#include <array>
#include <cstddef>
#include <utility>

namespace unitscale::ops {

/// How often broadcasting to `shape` repeats an element of `input` in the whole step; 1 for an input of that shape. If
/// an input is repeated along the first axis, the batch, every micro-batch repeats it as well.
template <class T>
[[nodiscard]] std::size_t broadcast_copies(const Tape<T>& tape, const Tensor<T>& input, const Shape& shape) noexcept {
    if (input.empty() || shape.size() == 0) return 1;
    const std::size_t copies = element_count(shape) / input.size();
    // Micro-batches of one row each repeat a vector, too: once for each of them.
    const bool repeated_by_rows = input.rank() < shape.size() || input.shape()[0] != shape[0];
    return repeated_by_rows ? tape.step_rows(copies) : copies;
}

/// The betas of both inputs of an op under `unit`, if only broadcasting changes the size of the gradients. The gradient
/// of an input that is repeated r times is a sum of r terms, hence r^-1/2.
template <class T>
[[nodiscard]] std::array<double, 2> broadcast_betas(const Op<T, 2>& op, const Shape& shape) noexcept {
    return {rsqrt_count(broadcast_copies(op.tape(), op.input(0), shape)),
            rsqrt_count(broadcast_copies(op.tape(), op.input(1), shape))};
}

/// Scales of a product, a quotient or a similar op under `propagate`, for x = s a and z = t b.
///   f(x, z) = value f(a, b)     f_x(x, z) = slope_x f_x(a, b)     f_z(x, z) = slope_z f_z(a, b)
struct BinaryScales {
    double value = 1.0, slope_x = 1.0, slope_z = 1.0;
    bool product = false;      ///< 0 or infinity in either input gives 0, infinity or NaN: see Tensor::any_scale
    bool one_of_both = false;  ///< f gives one of its arguments
};

/// Records an element-wise op of two inputs with broadcasting: a product of powers of both inputs.
///   y = alpha f(x, z)     dx = beta_x sum over copies of dy f_x(x, z)     dz = beta_z sum over copies of dy f_z(x, z)
///   x, z broadcast to y: aligned at the last axis, extents equal or 1
/// f, f_x, f_z: functions of two Accum<T>. Sums are formed in Accum<T> and rounded once. Under `propagate` the
/// functions get data. Every result then has the scale given by `scales`, divided by the result's factor and rounded.
/// The scale of a gradient is also multiplied by dy's scale.
/// Error, in the name of the op: shapes that do not broadcast. Test: tests/record/binary_test.cpp
template <class T, class F, class Fx, class Fz>
[[nodiscard]] Variable<T> record_binary(Op<T, 2>& op, const BinaryScales& scales, F f, Fx f_x, Fz f_z) {
    using A = Accum<T>;
    using kernels::BroadcastInput;
    const Tensor<T>&left = op.input(0), &right = op.input(1);
    const Shape shape = broadcast_shape(op.name(), left.shape(), right.shape());
    const Scaled scaled = op.scaled_alpha(scales.value);
    Tensor<T> output = op.make(shape);
    kernels::broadcast_map(
        op.execution(), shape, output.data(),
        [f, alpha = static_cast<A>(scaled.factor)](A u, A v) { return alpha * f(u, v); },
        BroadcastInput{left.data(), left.shape()}, BroadcastInput{right.data(), right.shape()});
    const bool either = left.any_scale() || right.any_scale(), both = left.any_scale() && right.any_scale();
    const Recording recording{.reads = reads_inputs,
                              .any_scale = (scales.product && either) || (scales.one_of_both && both)};
    return op.record(std::move(output), scaled.scale, recording, [f_x, f_z, scales](BackwardContext<T>& g) {
        const Tensor<T>&dy = g.output_gradient(), &u = g.input(0), &v = g.input(1);
        const auto part = [&](std::size_t i, auto slope, double slope_scale) {
            if (!g.needs(i)) return;
            const Scaled dx_scaled = g.scaled_beta(i, slope_scale);
            Tensor<T> dx = g.make(g.input_shape(i));
            kernels::broadcast_map_sum(
                g.execution(), dy.shape(), dx.data(), dx.shape(),
                [slope, beta = static_cast<A>(dx_scaled.factor)](A d, A s, A t) { return beta * d * slope(s, t); },
                BroadcastInput{dy.data(), dy.shape()}, BroadcastInput{u.data(), u.shape()},
                BroadcastInput{v.data(), v.shape()});
            dx.set_any_scale(scales.product && g.input(1 - i).any_scale());
            g.add(i, std::move(dx), dx_scaled.scale);
        };
        part(0, f_x, scales.slope_x);
        part(1, f_z, scales.slope_z);
    });
}

/// Records any f, f_x, f_z, applied to x and z themselves. Their scales are multiplied out inside, and y has scale 1.
template <class T, class F, class Fx, class Fz>
[[nodiscard]] Variable<T> record_binary(Op<T, 2>& op, F f, Fx f_x, Fz f_z) {
    using A = Accum<T>;
    const auto s = static_cast<A>(op.input(0).scale()), t = static_cast<A>(op.input(1).scale());
    if (s == A(1) && t == A(1)) return record_binary(op, BinaryScales{}, f, f_x, f_z);
    const auto plain = [s, t](auto function) { return [=](A u, A v) { return function(s * u, t * v); }; };
    return record_binary(op, BinaryScales{}, plain(f), plain(f_x), plain(f_z));
}

}  // namespace unitscale::ops
