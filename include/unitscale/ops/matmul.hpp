// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/products/product.hpp>
#include <unitscale/record/arguments.hpp>
#include <unitscale/record/op.hpp>
#include <unitscale/record/operand_rounding.hpp>
#include <unitscale/record/prepared_operand.hpp>
#include <unitscale/scaling/factors.hpp>

#include <cstddef>
#include <optional>

namespace unitscale::ops {

struct MatmulOptions {
    /// Ideal factors under `unit` in place of `matmul_unit_factors`: for a product inside a non-linearity, such as
    /// attention's, where factors of several ops must fit each other.
    std::optional<Factors<2>> unit{};
    std::optional<Constraint> constraint{};  ///< joins {alpha, beta_x, beta_w}; empty: the recipe's rule
};

/// Ideal factors of a product under `unit`: see `matmul`. `terms`: the number of terms summed in an entry of dw.
[[nodiscard]] inline Factors<2> matmul_unit_factors(std::size_t k, std::size_t n, std::size_t terms) noexcept {
    return {.alpha = rsqrt_count(k), .betas = {rsqrt_count(n), rsqrt_count(terms)}};
}

/// Unit-scaled matrix product, batched.
///   y = alpha x w              x [...,m,k]   w [k,n] or [...,k,n]   y [...,m,n]
///   dx = beta_x dy w^T         dw = beta_w x^T dy
/// Factors under `unit`, entries independent with zero mean and unit variance: a sum of r products has variance r,
/// hence alpha = k^-1/2, beta_x = n^-1/2, beta_w = r^-1/2. If every batch item has its own w, r = m. If one w serves
/// the whole batch, r counts all left rows of the step. All three share one value unless the constraint is `none`.
/// Scale under `propagate`: s_x s_w times k^1/2, rounded; gradients: dy's times s_w n^1/2 and s_x r^1/2, each root
/// rounded.
/// Rounding: by the recipe, kind `matmul`; both x and w are activations.
/// Errors: ranks below 2, batches that differ, x and w that do not contract.
/// Reference: Blake, Orr, Luschi 2023, arXiv:2303.11257, table A.2. Test: tests/ops/matmul_test.cpp
template <class T>
[[nodiscard]] Variable<T> matmul(Variable<T> x, Variable<T> w, const MatmulOptions& options = {}) {
    auto op = begin_op("matmul", x, w);
    Tape<T>& tape = op.tape();
    const Tensor<T>&left = op.input(0), &right = op.input(1);
    check(left.rank() >= 2 && right.rank() >= 2, "matmul: x ", shape_text(left.shape()), " and w ",
          shape_text(right.shape()), " need at least two dimensions each");
    check(left.dim(-1) == right.dim(-2), "matmul: x ", shape_text(left.shape()), " and w ", shape_text(right.shape()),
          " do not contract: ", left.dim(-1), " != ", right.dim(-2));
    const bool shared = right.rank() == 2;
    bool same_batch = shared || left.rank() == right.rank();
    for (std::size_t i = 0; same_batch && !shared && i + 2 < left.rank(); ++i)
        same_batch = left.shape()[i] == right.shape()[i];
    check(same_batch, "matmul: x ", shape_text(left.shape()), " and w ", shape_text(right.shape()),
          " have different batches; expected equal leading extents, or a w of rank 2");

    // A w of rank 2 serves the whole batch: then the left rows of all items are one tall matrix.
    std::size_t items = 1;
    for (std::size_t i = 0; !shared && i + 2 < left.rank(); ++i) items *= left.shape()[i];
    const std::size_t rows = shared ? row_count(left.shape()) : left.dim(-2);
    const auto batch = static_cast<std::ptrdiff_t>(items), m = static_cast<std::ptrdiff_t>(rows);
    const auto k = static_cast<std::ptrdiff_t>(left.dim(-1)), n = static_cast<std::ptrdiff_t>(right.dim(-1));
    const std::size_t terms = shared ? tape.step_rows(rows) : rows;
    op.set_factors(options.unit.value_or(matmul_unit_factors(left.dim(-1), right.dim(-1), terms)), options.constraint);

    const OperandRounding rounding(tape, op.site(), ProductKind::matmul);
    rounding.check_by_tensor("matmul");
    const auto x_rounding = rounding.quantiser(tape.execution(), OperandSlot::forward_x, left),
               w_rounding = rounding.quantiser(tape.execution(), OperandSlot::forward_w, right);
    const RandomKey x_key = op.random_key(activation_part), w_key = op.random_key(weight_part),
                    dy_key = op.random_key(gradient_part), result_key = op.random_key(result_part);
    // Each input is read for the other's gradient: rounded, if the recipe says so.
    const bool codes_x = w.requires_gradient() &&
                         rounding.share(OperandSlot::forward_x, OperandSlot::weight_gradient_x) &&
                         reads_codes(tape, x, x_rounding, x_key);
    const bool codes_w = x.requires_gradient() &&
                         rounding.share(OperandSlot::forward_w, OperandSlot::input_gradient_w) &&
                         reads_codes(tape, w, w_rounding, w_key);
    const Reads reads{
        .inputs = (w.requires_gradient() && !codes_x ? 1u : 0u) | (x.requires_gradient() && !codes_w ? 2u : 0u),
        .outputs = 0,
        .rounded = (codes_x ? 1u : 0u) | (codes_w ? 2u : 0u)};

    const Scaled scaled = op.scaled_alpha(left.scale() * right.scale());
    Tensor<T> output = op.make(with_last_extent(left.shape(), right.dim(-1)));
    const PreparedOperand<T> a(tape, rounding, OperandSlot::forward_x, left, left.dim(-1), x_key, x_rounding),
        b(tape, rounding, OperandSlot::forward_w, right, right.dim(-1), w_key, w_rounding);
    products::matmul<T>(op.execution(), {.m = m,
                                         .n = n,
                                         .k = k,
                                         .batch = batch,
                                         .a = a.matrix(m * k),
                                         .b = b.matrix(k * n),
                                         .c = {output.data(), n, 1, m * n},
                                         .alpha = static_cast<Accum<T>>(scaled.factor)});
    round_result(op.execution(), rounding.formats(), result_key, output);
    const Recording recording{.reads = reads, .multiply_adds = items * rows * left.dim(-1) * right.dim(-1)};
    return op.record(std::move(output), scaled.scale, recording, [=](BackwardContext<T>& g) {
        const Tensor<T>& gradient = g.output_gradient();
        const auto dy_rounding = rounding.quantiser(g.execution(), OperandSlot::input_gradient_dy, gradient);
        const auto dy = [&](OperandSlot slot) {
            return PreparedOperand<T>(
                g, rounding, slot, gradient, static_cast<std::size_t>(n), dy_key,
                rounding.quantiser(g.execution(), slot, gradient, OperandSlot::input_gradient_dy, dy_rounding));
        };
        if (g.needs(0)) {  // dx = beta_x dy w^T
            const Scaled dx_scaled = g.scaled_beta(0, g.input_scale(1));
            Tensor<T> dx = g.make(g.input_shape(0));
            const auto w_again = codes_w ? w_rounding
                                         : rounding.quantiser(g.execution(), OperandSlot::input_gradient_w, g.input(1),
                                                              OperandSlot::forward_w, w_rounding);
            const PreparedOperand<T> dy_left = dy(OperandSlot::input_gradient_dy);
            const PreparedOperand<T> saved_w(g, 1, rounding, OperandSlot::input_gradient_w, static_cast<std::size_t>(n),
                                             w_key, w_again);
            products::matmul<T>(g.execution(), {.m = m,
                                                .n = k,
                                                .k = n,
                                                .batch = batch,
                                                .a = dy_left.matrix(m * n),
                                                .b = saved_w.transposed(k * n),
                                                .c = {dx.data(), k, 1, m * k},
                                                .alpha = static_cast<Accum<T>>(dx_scaled.factor)});
            round_result(g.execution(), rounding.formats(), result_key, dx);
            g.add(0, std::move(dx), dx_scaled.scale);
        }
        if (g.needs(1)) {  // dw = beta_w x^T dy
            const Scaled dw_scaled = g.scaled_beta(1, g.input_scale(0));
            Tensor<T> dw = g.make(g.input_shape(1));
            const auto x_again = codes_x ? x_rounding
                                         : rounding.quantiser(g.execution(), OperandSlot::weight_gradient_x, g.input(0),
                                                              OperandSlot::forward_x, x_rounding);
            const PreparedOperand<T> dy_right = dy(OperandSlot::weight_gradient_dy);
            const PreparedOperand<T> saved_x(g, 0, rounding, OperandSlot::weight_gradient_x,
                                             static_cast<std::size_t>(k), x_key, x_again);
            products::matmul<T>(g.execution(), {.m = k,
                                                .n = n,
                                                .k = m,
                                                .batch = batch,
                                                .a = saved_x.transposed(m * k),
                                                .b = dy_right.matrix(m * n),
                                                .c = {dw.data(), n, 1, k * n},
                                                .alpha = static_cast<Accum<T>>(dw_scaled.factor)});
            round_result(g.execution(), rounding.formats(), result_key, dw);
            g.add(1, std::move(dw), dw_scaled.scale);
        }
    });
}

}  // namespace unitscale::ops
