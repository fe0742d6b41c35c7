// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/kernels/broadcast.hpp>
#include <unitscale/record/operands.hpp>

#include <cmath>
#include <cstddef>
#include <optional>

namespace unitscale::ops {

/// The factors of an op with two inputs: of its value and of both gradients. A rule states ideal ones.
struct BinaryUnitRule {
    double alpha = 1.0, beta_x = 1.0, beta_z = 1.0;
    JoinedBy joined_by = JoinedBy::plan;  ///< set by `effective_factors`
};

/// How often broadcasting to `shape` repeats an element of `input` in the whole step: an input repeated along the first axis,
/// the batch, is repeated by every micro-batch as well. 1 where there is nothing to repeat.
template <class T>
[[nodiscard]] std::size_t broadcast_copies(const Tape<T>& tape, const Tensor<T>& input, const Shape& shape) noexcept {
    const std::size_t count = element_count(shape);
    if (input.empty() || count == input.size()) return 1;
    const bool repeated_by_rows = input.rank() < shape.size() || input.shape()[0] != shape[0];
    return repeated_by_rows ? tape.step_rows(count / input.size()) : count / input.size();
}

/// Factors 1 where nothing is scaled; under `unit` the ideal ones, joined as the constraint says.
template <class T>
[[nodiscard]] BinaryUnitRule effective_factors(const char* op, Tape<T>& tape, BinaryUnitRule ideal,
                                               const std::optional<Constraint>& constraint) {
    if (!tape.uses_factors()) return {};
    const auto usable = [](double factor) { return std::isfinite(factor) && factor > 0.0; };
    check(usable(ideal.alpha) && usable(ideal.beta_x) && usable(ideal.beta_z), op, ": unit rule {", ideal.alpha, ", ",
          ideal.beta_x, ", ", ideal.beta_z, "}; expected positive factors");
    ideal.joined_by = join_factors(op, tape.peek_site(op), tape, constraint, ideal.alpha, ideal.beta_x, ideal.beta_z);
    return ideal;
}

/// What a product, quotient or the like of x = s a and z = t b does to scales under `propagate`: f(x, z) is `value` times f(a, b),
/// f_x(x, z) and f_z(x, z) are `slope_x` f_x(a, b) and `slope_z` f_z(a, b).
struct BinaryScales {
    double value = 1.0, slope_x = 1.0, slope_z = 1.0;
    bool product = false;  ///< 0 or infinity in either input gives 0, infinity or NaN: any scale goes with the result
};

/// Records an element-wise op of two inputs with broadcasting, a product of powers of both.
///   y = alpha f(x, z)     dx = beta_x sum over copies of dy f_x(x, z)     dz = beta_z sum over copies of dy f_z(x, z)
///   x, z broadcast to y: aligned at the last axis, extents equal or 1
/// f, f_x, f_z: functions of two Accum<T>. Sums in Accum<T>, rounded once. Under `propagate` they are given data, and every result
/// has the scale that `scales` says (gradients: times dy's), times its factor inverted and rounded.
/// Error, in the name of `op`: shapes that do not broadcast. Test: tests/record/binary_test.cpp
template <class T, class F, class Fx, class Fz>
[[nodiscard]] Variable<T> record_binary(const char* op, Variable<T> x, Variable<T> z, const BinaryUnitRule& factors,
                                        const BinaryScales& scales, F f, Fx f_x, Fz f_z) {
    using A = Accum<T>;
    using kernels::BroadcastInput;
    Tape<T>& tape = x.tape(op);
    const Tensor<T>&left = x.scaled(), &right = z.scaled();
    const Shape shape = broadcast_shape(op, left.shape(), right.shape());
    const Site site = tape.next_site(op);
    const Scaled scaled = tape.scaled_alpha(site, factors.alpha, scales.value);
    Tensor<T> output = tape.make(shape);
    kernels::broadcast_map(
        tape.execution(), shape, output.data(),
        [f, alpha = static_cast<A>(scaled.factor)](A u, A v) { return alpha * f(u, v); },
        BroadcastInput{left.data(), left.shape()}, BroadcastInput{right.data(), right.shape()});
    output.set_scale(scaled.scale);
    output.set_any_scale(tape.propagates() && scales.product && (left.any_scale() || right.any_scale()));
    return tape.record(
        {.name = op,
         .site = site,
         .alpha = factors.alpha,
         .betas = {factors.beta_x, factors.beta_z},
         .joined_by = factors.joined_by,
         .reads = reads_inputs,
         .propagates = true},
        {x, z}, std::move(output), [f_x, f_z, scales](BackwardContext<T>& g) {
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

/// The same for any f: on x and z themselves, whose scales are multiplied out inside, so that the op's own scale is 1.
template <class T, class F, class Fx, class Fz>
[[nodiscard]] Variable<T> record_binary(const char* op, Variable<T> x, Variable<T> z, const BinaryUnitRule& factors,
                                        F f, Fx f_x, Fz f_z) {
    using A = Accum<T>;
    static_cast<void>(x.tape(op));
    const auto s = static_cast<A>(x.scaled().scale()), t = static_cast<A>(z.scaled().scale());
    if (s == A(1) && t == A(1)) return record_binary(op, x, z, factors, BinaryScales{}, f, f_x, f_z);
    const auto plain = [s, t](auto function) { return [=](A u, A v) { return function(s * u, t * v); }; };
    return record_binary(op, x, z, factors, BinaryScales{}, plain(f), plain(f_x), plain(f_z));
}

}  // namespace unitscale::ops
