// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/multiply_add.hpp>
#include <unitscale/kernels/broadcast.hpp>
#include <unitscale/kernels/vector_math.hpp>
#include <unitscale/record/op.hpp>
#include <unitscale/record/same_scale.hpp>

#include <cstddef>

namespace unitscale::ops {

/// A gate's choice between two tensors, element by element.
///   y = (1 - s) x + s z          s = 1 / (1 + exp(-g))          x, z, g, y [one shape]
///   dx = dy (1 - s)     dz = dy s     dg = dy (z - x) s (1 - s)
/// All factors are 1 under `unit` too. y lies between x and z, so a state that passes many steps keeps their size: it
/// neither grows where a gate stays shut nor shrinks where both are equal. For independent x and z of unit variance its
/// standard deviation is 0.77. A factor that made it 1 would multiply a state that is kept by 1.3 in every step.
/// Scale under `propagate`: the larger of s_x and s_z; gradients: dy's for x and z, dy's times that scale for g.
/// Errors: shapes that differ.
/// Reference: highway networks, Srivastava et al. 2015, arXiv:1505.00387; the update of a GRU, Cho et al. 2014,
/// arXiv:1406.1078. Test: tests/ops/lerp_test.cpp
template <class T>
[[nodiscard]] Variable<T> lerp(Variable<T> x, Variable<T> z, Variable<T> g) {
    using A = Accum<T>;
    using kernels::BroadcastInput;
    auto op = begin_op("lerp", x, z, g);
    const Tensor<T>&first = op.input(0), &second = op.input(1), &gates = op.input(2);
    const Shape& shape = first.shape();
    check(second.shape() == shape && gates.shape() == shape, "lerp: x ", shape_text(shape), ", z ",
          shape_text(second.shape()), " and gate ", shape_text(gates.shape()), " differ in shape");
    LargestScale largest;
    largest.include(first);
    largest.include(second);
    const double scale = largest.carried(op.tape(), op.site());
    const ScaledOperand<T> from_x(op.tape(), first, scale), from_z(op.tape(), second, scale);
    const auto t = static_cast<A>(gates.scale());
    Tensor<T> output = op.make(shape);
    kernels::broadcast_map(
        op.execution(), shape, output.data(),
        [t, p = from_x.factor(), q = from_z.factor()](A u, A v, A w) {
            return multiply_add(kernels::logistic(-(t * w)), p * u, kernels::logistic(t * w) * (q * v));
        },
        BroadcastInput{from_x.data(), shape}, BroadcastInput{from_z.data(), shape},
        BroadcastInput{gates.data(), shape});
    const Recording recording{.reads = reads_inputs, .any_scale = largest.any_scale()};
    const bool propagates = op.tape().propagates();
    // Zeros of any scale need no ratio, and float may not hold theirs.
    const auto ratio_of = [scale](const Tensor<T>& tensor) {
        const double ratio = tensor.scale() / scale;
        return static_cast<A>(tensor.any_scale() && !holds_factor<A>(ratio) ? 1.0 : ratio);
    };
    const auto p = ratio_of(first), q = ratio_of(second);
    return op.record(std::move(output), scale, recording, [=](BackwardContext<T>& context) {
        const Tensor<T>& dy = context.output_gradient();
        const BroadcastInput gradient{dy.data(), dy.shape()}, gate{context.input(2).data(), dy.shape()};
        for (const std::size_t i : {std::size_t{0}, std::size_t{1}}) {
            if (!context.needs(i)) continue;
            Tensor<T> dx = context.make(dy.shape());
            const Scaled part = propagates ? context.carried(i, dy.scale(), dy.scale()) : Scaled{context.beta(i), 1.0};
            const A sign = i == 0 ? -t : t;
            kernels::broadcast_map(
                context.execution(), dy.shape(), dx.data(),
                [=, beta = static_cast<A>(part.factor)](A d, A w) { return beta * d * kernels::logistic(sign * w); },
                gradient, gate);
            context.add(i, std::move(dx), part.scale);
        }
        if (!context.needs(2)) return;
        const Scaled scaled = context.scaled_beta(2, scale);
        Tensor<T> dg = context.make(dy.shape());
        kernels::broadcast_map(
            context.execution(), dy.shape(), dg.data(),
            [=, beta = static_cast<A>(scaled.factor)](A d, A w, A u, A v) {
                const A slope = kernels::logistic(t * w) * kernels::logistic(-(t * w));
                return beta * d * multiply_add(q, v, -(p * u)) * slope;
            },
            gradient, gate, BroadcastInput{context.input(0).data(), dy.shape()},
            BroadcastInput{context.input(1).data(), dy.shape()});
        context.add(2, std::move(dg), scaled.scale);
    });
}

}  // namespace unitscale::ops
