// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/multiply_add.hpp>
#include <unitscale/kernels/elementwise.hpp>
#include <unitscale/kernels/reduce.hpp>
#include <unitscale/ops/softmax_cross_entropy.hpp>
#include <unitscale/record/op.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>

namespace unitscale::ops {

struct MseLossOptions {
    Reduction reduction = Reduction::mean;
    /// Elements of the whole step, for `mean`; empty: micro-batches are alike.
    std::optional<std::size_t> step_elements{};
};

/// 8^-1/2, the factor of the gradients of the summed squared error under `unit`: see `mse_loss`.
[[nodiscard]] inline double mse_loss_unit_factor() noexcept { return 1.0 / std::sqrt(8.0); }

/// Squared error.
///   loss = sum of (x - y)^2, over their number N for `mean`    x, y of one shape    loss: one element
///   none: dx = 2 (x - y) seed, over N for `mean`; dy = -dx
///   unit: dx = 8^-1/2 2 (x - y) seed, for `mean` and `sum` alike; dy = -dx
/// Factors under `unit`, x and y independent unit normals: x - y has variance 2, the gradient of the sum 8, hence
/// 8^-1/2 for both inputs, whatever N, since nothing but the loss sees N. The value is never scaled. Relative to the
/// gradient of the mean: beta = N 8^-1/2.
/// Scale under `propagate`: 1; gradients: 2 (s_x^2 + s_y^2)^1/2, 1 / N and the seed, rounded.
/// Under `mean` and k micro-batches each loss is the sum of its elements over the whole step's N, so losses and
/// gradients of the micro-batches add up. Accumulated in Accum<T>.
/// Error: shapes that differ.
/// Reference: the unit scaling library for PyTorch by the authors of arXiv:2303.11257. Test:
/// tests/ops/mse_loss_test.cpp
template <class T>
[[nodiscard]] Variable<T> mse_loss(Variable<T> x, Variable<T> y, const MseLossOptions& options = {}) {
    auto op = begin_op("mse_loss", x, y);
    const Tensor<T>&left = op.input(0), &right = op.input(1);
    check(left.shape() == right.shape(), "mse_loss: x ", shape_text(left.shape()), " and y ", shape_text(right.shape()),
          " differ in shape");
    const auto count = static_cast<std::ptrdiff_t>(left.size());
    const std::size_t elements =
        std::max<std::size_t>(options.step_elements.value_or(op.tape().step_rows(left.size())), 1);
    const double share = options.reduction == Reduction::mean ? 1.0 / static_cast<double>(elements) : 1.0;
    const double a = left.scale(), b = right.scale();
    const double size = std::hypot(left.any_scale() ? 0.0 : a, right.any_scale() ? 0.0 : b);  // of x - y
    double beta = 1.0;
    if (op.tape().unit_scaled()) beta = mse_loss_unit_factor() / share;
    if (op.tape().propagates() && size > 0.0) beta = 1.0 / (2.0 * share * size);
    op.set_factors({.betas = {beta, beta}});

    const auto add_square = [s = static_cast<Accum<T>>(a), t = static_cast<Accum<T>>(b)](Accum<T> sum, Accum<T> u,
                                                                                         Accum<T> v) {
        const Accum<T> difference = multiply_add(s, u, -(t * v));
        return multiply_add(difference, difference, sum);
    };
    const Accum<T> total =
        kernels::accumulate_over<Accum<T>>(op.execution(), count, add_square, left.data(), right.data());
    Tensor<T> loss = op.make(Shape{1});
    const Accum<T> value = total * static_cast<Accum<T>>(share);
    loss.data()[0] = static_cast<T>(value);
    return op.record(
        std::move(loss), 1.0, {.reads = reads_inputs, .item = static_cast<double>(value)}, [=](BackwardContext<T>& g) {
            const double seed = g.item_gradient();
            for (std::size_t input = 0; input < 2; ++input) {
                if (!g.needs(input)) continue;
                const Scaled scaled = g.scaled_beta(input);
                const double factor = (input == 0 ? 2.0 : -2.0) * scaled.factor * share * seed;
                Tensor<T> gradient = g.make(g.input_shape(input));
                kernels::add_scaled<T>(g.execution(), g.input(0).data(), static_cast<Accum<T>>(factor * a),
                                       g.input(1).data(), static_cast<Accum<T>>(-factor * b), gradient.data(), count);
                g.add(input, std::move(gradient), scaled.scale);
            }
        });
}

}  // namespace unitscale::ops
