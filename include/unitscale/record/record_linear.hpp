// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/kernels/reduce.hpp>
#include <unitscale/products/product.hpp>
#include <unitscale/record/operand_rounding.hpp>
#include <unitscale/record/operands.hpp>
#include <unitscale/record/packed_weight.hpp>
#include <unitscale/record/same_scale.hpp>
#include <unitscale/record/saved_operand.hpp>

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
    const Tensor<T>&input = x.scaled(), &w = weight.scaled();
    check(w.rank() == 2, op, ": weight ", shape_text(w.shape()), " is not a matrix [out,in]");
    const std::size_t out = w.dim(0), in = w.dim(1), rows = row_count(input.shape()),
                      columns = last_extent(op, "x", input.shape());
    check(columns == in, op, ": x ", shape_text(input.shape()), " and weight ", shape_text(w.shape()),
          " do not contract: ", columns, " != ", in);
    if (bias)
        check(bias->shape() == Shape{out}, op, ": bias ", shape_text(bias->shape()), " does not fit weight ",
              shape_text(w.shape()), "; expected [", out, "]");
    const Site site = tape.next_site(op);
    const OperandRounding rounding(tape, site, kind);
    const RandomKey activation_key = tape.random_key(site, activation_part),
                    weight_key = tape.random_key(site, weight_part),
                    gradient_key = tape.random_key(site, gradient_part),
                    result_key = tape.random_key(site, result_part);
    const LinearFactors factors =
        tape.uses_factors() ? factors_of(site, in, out, tape.step_rows(rows)) : LinearFactors{};
    const auto m = static_cast<std::ptrdiff_t>(rows), n = static_cast<std::ptrdiff_t>(out),
               k = static_cast<std::ptrdiff_t>(in);

    const double scales = input.scale() * w.scale();
    const Scaled scaled = tape.scaled_alpha(site, factors.alpha, scales);
    const SameScale<T> vector(tape, bias, scales);  // the bias as if it had the product's own scale
    Tensor<T> output = tape.make(with_last_extent(input.shape(), out));
    const auto activation = rounding.quantiser(tape.execution(), OperandRole::activation, input),
               w_rounding = rounding.quantiser(tape.execution(), OperandRole::weight, w);
    {
        const PreparedOperand<T> a(tape.pool(), rounding, OperandRole::activation, input, in, activation_key,
                                   activation),
            b(tape.pool(), rounding, OperandRole::weight, w, in, weight_key, w_rounding);
        products::MatmulArguments<T> forward{.m = m,
                                             .n = n,
                                             .k = k,
                                             .a = {a.data, k, 1},
                                             .b = {b.data, 1, k},
                                             .c = {output.data(), n, 1},
                                             .alpha = static_cast<Accum<T>>(scaled.factor),
                                             .bias = vector.data(),
                                             .round_a = a.round(),
                                             .round_b = b.round(),
                                             .key_a = activation_key,
                                             .key_b = weight_key};
        const auto packed = rounding.by_lines(OperandRole::weight) ? nullptr : packed_weight(tape, weight, forward);
        forward.packed_b = packed.get();
        products::matmul<T>(tape.execution(), forward);
    }
    round_result(tape.execution(), rounding.formats(), result_key, output);
    output.set_scale(scaled.scale);

    // dx reads the weight, dw reads x: rounded as in the forward pass.
    const bool coded = weight.requires_gradient() && !rounding.by_lines(OperandRole::activation) &&
                       reads_codes(tape, x, activation, activation_key);
    const Reads reads{.inputs = (weight.requires_gradient() && !coded ? 1u : 0u) | (x.requires_gradient() ? 2u : 0u),
                      .outputs = 0,
                      .rounded = coded ? 1u : 0u};
    const auto backward = [=, has_bias = bias.has_value()](BackwardContext<T>& g) {
        const PreparedOperand<T> dy(g.pool(), rounding, OperandRole::gradient, g.output_gradient(), out, gradient_key,
                                    rounding.quantiser(g.execution(), OperandRole::gradient, g.output_gradient()));
        if (g.needs(0)) {
            const Scaled dx_scaled = g.scaled_beta(0, g.input_scale(1));
            const PreparedOperand<T> b(g.pool(), rounding, OperandRole::weight, g.input(1), in, weight_key, w_rounding);
            Tensor<T> dx = g.make(g.input_shape(0));
            products::matmul<T>(g.execution(), {.m = m,
                                                .n = k,
                                                .k = n,
                                                .a = {dy.data, n, 1},
                                                .b = {b.data, k, 1},
                                                .c = {dx.data(), k, 1},
                                                .alpha = static_cast<Accum<T>>(dx_scaled.factor),
                                                .round_a = dy.round(),
                                                .round_b = b.round(),
                                                .key_a = gradient_key,
                                                .key_b = weight_key});
            round_result(g.execution(), rounding.formats(), result_key, dx);
            g.add(0, std::move(dx), dx_scaled.scale);
        }
        if (g.needs(1)) {
            const Scaled dw_scaled = g.scaled_beta(1, g.input_scale(0));
            Tensor<T> dw = g.make(g.input_shape(1));
            products::MatmulArguments<T> product{.m = n,
                                                 .n = k,
                                                 .k = m,
                                                 .a = {dy.data, 1, n},
                                                 .c = {dw.data(), k, 1},
                                                 .alpha = static_cast<Accum<T>>(dw_scaled.factor),
                                                 .round_a = dy.round(),
                                                 .key_a = gradient_key,
                                                 .key_b = activation_key};
            const SavedOperand<T> b(g, 0, {.row = k}, rounding, OperandRole::activation, activation, activation_key);
            multiply_saved_right<T>(g.execution(), product, b);
            round_result(g.execution(), rounding.formats(), result_key, dw);
            g.add(1, std::move(dw), dw_scaled.scale);
        }
        if (has_bias && g.needs(2)) {
            const Scaled db_scaled = g.scaled_beta(2);
            Tensor<T> db = g.make(g.input_shape(2));
            kernels::column_sums<T>(g.execution(), g.output_gradient().data(), db.data(), m, n,
                                    static_cast<Accum<T>>(db_scaled.factor));
            g.add(2, std::move(db), db_scaled.scale);
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
                        .reads = reads,
                        .propagates = true},
                       std::span<const Variable<T>>(inputs.data(), used), std::move(output), backward);
}

}  // namespace unitscale::ops
