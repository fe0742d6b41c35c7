// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/reduce.hpp>
#include <unitscale/products/product.hpp>
#include <unitscale/record/arguments.hpp>
#include <unitscale/record/bias.hpp>
#include <unitscale/record/op.hpp>
#include <unitscale/record/operand_rounding.hpp>
#include <unitscale/record/packed_weight.hpp>
#include <unitscale/record/prepared_operand.hpp>

#include <cstddef>

// The products of a linear layer, for `linear` and `readout`.   Test: tests/record/linear_products_test.cpp
namespace unitscale::ops {

/// The sizes of a linear layer: the extents of its weight, and the rows of x. Errors: as `linear`.
struct LinearSizes {
    std::size_t in = 0, out = 0, rows = 0;
};
template <class T>
[[nodiscard]] LinearSizes linear_sizes(const Op<T, 3>& op) {
    const Shape &x = op.input(0).shape(), &weight = op.variable(1).shape();
    check(weight.size() == 2, op.name(), ": weight ", shape_text(weight), " is not a matrix [out,in]");
    const std::size_t columns = last_extent(op.name(), "x", x);
    check(columns == weight[1], op.name(), ": x ", shape_text(x), " and weight ", shape_text(weight),
          " do not contract: ", columns, " != ", weight[1]);
    if (op.has(2))
        check(op.input(2).shape() == Shape{weight[0]}, op.name(), ": bias ", shape_text(op.input(2).shape()),
              " does not fit weight ", shape_text(weight), "; expected [", weight[0], "]");
    return {.in = weight[1], .out = weight[0], .rows = row_count(x)};
}

/// Records the three products of a linear layer, with the factors that `op` has: the common part of `linear` and
/// `readout`. Operands are rounded as the recipe says for this kind; sums and the bias' gradient are not.
template <class T>
[[nodiscard]] Variable<T> record_linear(Op<T, 3>& op, ProductKind kind, const LinearSizes& size) {
    const auto [in, out, rows] = size;
    const Variable<T>&x = op.variable(0), &weight = op.variable(1);
    const auto m = static_cast<std::ptrdiff_t>(rows), n = static_cast<std::ptrdiff_t>(out),
               k = static_cast<std::ptrdiff_t>(in);
    Tape<T>& tape = op.tape();
    const Tensor<T>& input = op.input(0);
    const CodedWeight* const codes = tape.coded(weight);
    const OperandRounding rounding(tape, op.site(), kind);
    const RandomKey x_key = op.random_key(activation_part), w_key = op.random_key(weight_part),
                    dy_key = op.random_key(gradient_part), result_key = op.random_key(result_part);
    const auto x_rounding = rounding.quantiser(op.execution(), OperandSlot::forward_x, input);
    std::optional<Quantiser> w_rounding;
    if (codes != nullptr) check_coded_rule(op.name(), rounding, *codes);
    else w_rounding = rounding.quantiser(op.execution(), OperandSlot::forward_w, op.input(1));
    const double scales = input.scale() * (codes != nullptr ? 1.0 : op.input(1).scale());
    const Scaled scaled = op.scaled_alpha(scales);

    // y = alpha (x weight^T + bias)
    Tensor<T> output = op.make(with_last_extent(input.shape(), out));
    double bias_factor = 1.0;
    {
        const ProductBias<T> bias(op, scales);
        bias_factor = bias.factor();
        const PreparedOperand<T> a(tape, rounding, OperandSlot::forward_x, input, in, x_key, x_rounding);
        products::MatmulArguments<T> product{.m = m,
                                             .n = n,
                                             .k = k,
                                             .a = a.matrix(),
                                             .c = {output.data(), n, 1},
                                             .alpha = static_cast<Accum<T>>(scaled.factor),
                                             .bias = bias.data()};
        if (codes != nullptr) {
            product.b = coded_operand<T>(*codes);
            multiply_operands<T>(tape.execution(), rounding, OperandSlot::forward_w, product);
        } else {
            const PreparedOperand<T> b(tape, rounding, OperandSlot::forward_w, op.input(1), in, w_key, w_rounding,
                                       kept_parameter(tape, weight));
            product.b = b.transposed();
            multiply_by_weight<T>(tape, rounding, weight, product);
        }
        round_result(op.execution(), rounding.formats(), result_key, output);
    }

    // dx reads the weight, dw reads x. If x is rounded for dw as for y, with one bias, its codes are sufficient.
    const bool coded =
        weight.requires_gradient() && rounding.share(OperandSlot::forward_x, OperandSlot::weight_gradient_x) &&
        rounding.rule(OperandSlot::forward_x).scale.by_tensor() && reads_codes(tape, x, x_rounding, x_key);
    const Reads reads{.inputs = (weight.requires_gradient() && !coded ? 1u : 0u) | (x.requires_gradient() ? 2u : 0u),
                      .outputs = 0,
                      .rounded = coded ? 1u : 0u};
    const Recording recording{.reads = reads, .multiply_adds = rows * in * out};
    const bool has_bias = op.has(2);
    return op.record(std::move(output), scaled.scale, recording, [=, out = out, in = in](BackwardContext<T>& g) {
        const Tensor<T>& gradient = g.output_gradient();
        const auto dy_rounding = rounding.quantiser(g.execution(), OperandSlot::input_gradient_dy, gradient);
        const auto dy = [&](OperandSlot slot) {
            return PreparedOperand<T>(
                g, rounding, slot, gradient, out, dy_key,
                rounding.quantiser(g.execution(), slot, gradient, OperandSlot::input_gradient_dy, dy_rounding));
        };
        if (g.needs(0)) {  // dx = beta_x dy weight
            const Scaled dx_scaled = g.scaled_beta(0, g.input_scale(1));
            const auto w_again = rounding.quantiser(g.execution(), OperandSlot::input_gradient_w, g.input(1),
                                                    OperandSlot::forward_w, w_rounding);
            const PreparedOperand<T> a = dy(OperandSlot::input_gradient_dy),
                                     b(g, 1, rounding, OperandSlot::input_gradient_w, in, w_key, w_again);
            Tensor<T> dx = g.make(g.input_shape(0));
            multiply_operands<T>(g.execution(), rounding, OperandSlot::input_gradient_dy,
                                 {.m = m,
                                  .n = k,
                                  .k = n,
                                  .a = a.matrix(),
                                  .b = b.matrix(),
                                  .c = {dx.data(), k, 1},
                                  .alpha = static_cast<Accum<T>>(dx_scaled.factor)});
            round_result(g.execution(), rounding.formats(), result_key, dx);
            g.add(0, std::move(dx), dx_scaled.scale);
        }
        if (g.needs(1)) {  // dweight = beta_w dy^T x
            const Scaled dw_scaled = g.scaled_beta(1, g.input_scale(0));
            Tensor<T> dw = g.make(g.input_shape(1));
            const auto x_again = coded ? x_rounding
                                       : rounding.quantiser(g.execution(), OperandSlot::weight_gradient_x, g.input(0),
                                                            OperandSlot::forward_x, x_rounding);
            const PreparedOperand<T> a = dy(OperandSlot::weight_gradient_dy),
                                     b(g, 0, rounding, OperandSlot::weight_gradient_x, in, x_key, x_again);
            multiply_operands<T>(g.execution(), rounding, OperandSlot::weight_gradient_dy,
                                 {.m = n,
                                  .n = k,
                                  .k = m,
                                  .a = a.transposed(),
                                  .b = b.matrix(),
                                  .c = {dw.data(), k, 1},
                                  .alpha = static_cast<Accum<T>>(dw_scaled.factor)});
            round_result(g.execution(), rounding.formats(), result_key, dw);
            g.add(1, std::move(dw), dw_scaled.scale);
        }
        if (has_bias && g.needs(2)) {  // dbias = beta_w sum over rows of dy
            const Scaled db_scaled = g.scaled_beta(2);
            Tensor<T> db = g.make(g.input_shape(2));
            kernels::column_sums<T>(g.execution(), g.output_gradient().data(), db.data(), m, n,
                                    static_cast<Accum<T>>(db_scaled.factor * bias_factor));
            g.add(2, std::move(db), db_scaled.scale);
        }
    });
}

}  // namespace unitscale::ops
