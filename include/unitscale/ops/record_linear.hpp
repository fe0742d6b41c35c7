// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/kernels/matmul.hpp>
#include <unitscale/kernels/reduce.hpp>
#include <unitscale/ops/operands.hpp>
#include <unitscale/ops/packed_weight.hpp>
#include <unitscale/ops/saved_operand.hpp>

#include <array>
#include <cstddef>
#include <optional>
#include <span>

namespace unitscale::ops {

struct LinearFactors {
    double alpha = 1.0, beta_x = 1.0, beta_weight = 1.0;
    JoinedBy joined_by = JoinedBy::plan;
};

/// Ideal factors of a linear layer under `unit`: see `linear`.
[[nodiscard]] inline LinearFactors linear_unit_factors(std::size_t in, std::size_t out, std::size_t rows) noexcept {
    return {.alpha = rsqrt_count(in), .beta_x = rsqrt_count(out), .beta_weight = rsqrt_count(rows)};
}

/// Records y = alpha (x weight^T + bias) with given factors and the formats that the recipe gives to products of this
/// kind here: the common part of `linear` and `readout`. All three products round their operands; sums and the bias'
/// gradient are not rounded. `factors_of(site, in, out, rows)` runs after the shapes are known to fit.
template <class T, class FactorsOf>
[[nodiscard]] Variable<T> record_linear(const char* op, ProductKind kind, Variable<T> x, Variable<T> weight,
                                        std::optional<Variable<T>> bias, FactorsOf&& factors_of) {
    Tape<T>& tape = x.tape(op);
    const Tensor<T>& input = x.value();
    const Tensor<T>& w = weight.value();
    check(w.rank() == 2, op, ": weight ", to_string(w.shape()), " is not a matrix [out,in]");
    const std::size_t out = w.dim(0), in = w.dim(1), rows = row_count(input.shape()),
                      columns = last_extent(op, "x", input.shape());
    check(columns == in, op, ": x ", to_string(input.shape()), " and weight ", to_string(w.shape()),
          " do not contract: ", columns, " != ", in);
    if (bias)
        check(bias->shape() == Shape{out}, op, ": bias ", to_string(bias->shape()), " does not fit weight ", to_string(w.shape()),
              "; expected [", out, "]");
    const Site site = tape.next_site(op);
    const ProductFormats formats = tape.state().formats(site, kind, tape.recipe());
    const RandomKey activation_key = tape.random_key(site, activation_part), weight_key = tape.random_key(site, weight_part),
                    gradient_key = tape.random_key(site, gradient_part);
    const LinearFactors factors = tape.unit_scaled() ? factors_of(site, in, out, tape.step_rows(rows)) : LinearFactors{};
    const auto m = static_cast<std::ptrdiff_t>(rows), n = static_cast<std::ptrdiff_t>(out), k = static_cast<std::ptrdiff_t>(in);

    Tensor<T> output = tape.make(with_last_extent(input.shape(), out));
    kernels::MatmulArguments<T> forward{.m = m,
                                        .n = n,
                                        .k = k,
                                        .a = {input.data(), k, 1},
                                        .b = {w.data(), 1, k},
                                        .c = {output.data(), n, 1},
                                        .alpha = static_cast<Accum<T>>(factors.alpha),
                                        .bias = bias ? bias->value().data() : nullptr,
                                        .round_a = pointer(formats.activation),
                                        .round_b = pointer(formats.weight),
                                        .key_a = activation_key,
                                        .key_b = weight_key};
    const auto packed = packed_weight(tape, weight, forward);
    forward.packed_b = packed.get();
    kernels::matmul<T>(tape.execution(), forward);

    // dx reads the weight, dw reads x: rounded, if the recipe says so.
    const bool coded = weight.requires_gradient() && reads_codes(tape, x, formats.activation, activation_key);
    const Reads reads{.inputs = (weight.requires_gradient() && !coded ? 1u : 0u) | (x.requires_gradient() ? 2u : 0u),
                      .outputs = 0,
                      .rounded = coded ? 1u : 0u};
    const auto backward = [=, has_bias = bias.has_value()](BackwardContext<T>& g) {
        const T* dy = g.output_gradient().data();
        if (g.needs(0)) {
            Tensor<T> dx = g.make(g.input_shape(0));
            kernels::matmul<T>(g.execution(), {.m = m,
                                               .n = k,
                                               .k = n,
                                               .a = {dy, n, 1},
                                               .b = {g.input(1).data(), k, 1},
                                               .c = {dx.data(), k, 1},
                                               .alpha = static_cast<Accum<T>>(g.beta(0)),
                                               .round_a = pointer(formats.gradient),
                                               .round_b = pointer(formats.weight),
                                               .key_a = gradient_key,
                                               .key_b = weight_key});
            g.add(0, std::move(dx));
        }
        if (g.needs(1)) {
            Tensor<T> dw = g.make(g.input_shape(1));
            multiply_saved_right<T>(g.execution(),
                                    {.m = n,
                                     .n = k,
                                     .k = m,
                                     .a = {dy, 1, n},
                                     .c = {dw.data(), k, 1},
                                     .alpha = static_cast<Accum<T>>(g.beta(1)),
                                     .round_a = pointer(formats.gradient),
                                     .round_b = pointer(formats.activation),
                                     .key_a = gradient_key,
                                     .key_b = activation_key},
                                    {g, 0, {.row = k}, formats.activation});
            g.add(1, std::move(dw));
        }
        if (has_bias && g.needs(2)) {
            Tensor<T> db = g.make(g.input_shape(2));
            kernels::column_sums<T>(g.execution(), dy, db.data(), m, n, static_cast<Accum<T>>(g.beta(2)));
            g.add(2, std::move(db));
        }
    };
    const std::array<Variable<T>, 3> inputs = {x, weight, bias.value_or(x)};
    const std::array<double, 3> betas = {factors.beta_x, factors.beta_weight, factors.beta_weight};
    const std::size_t used = bias ? 3 : 2;
    return tape.record({.name = op,
                        .site = site,
                        .alpha = factors.alpha,
                        .betas = std::span<const double>(betas.data(), used),
                        .joined_by = factors.joined_by,
                        .multiply_adds = rows * in * out,
                        .reads = reads},
                       std::span<const Variable<T>>(inputs.data(), used), std::move(output), backward);
}

}  // namespace unitscale::ops
