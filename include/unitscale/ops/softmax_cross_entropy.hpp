// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/embedding.hpp>
#include <unitscale/kernels/softmax.hpp>
#include <unitscale/record/arguments.hpp>
#include <unitscale/record/ids.hpp>
#include <unitscale/record/op.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

namespace unitscale::ops {

enum class Reduction { mean, sum };

struct CrossEntropyOptions {
    std::optional<double> mult{};  ///< m, the logit multiplier; empty: the recipe's alpha_loss_softmax
    Reduction reduction = Reduction::mean;
    std::int32_t ignored = -1;  ///< rows with this label do not count
    /// Counted rows of the whole step, for `mean`; empty: micro-batches are alike.
    std::optional<std::size_t> step_rows{};
    /// beta under `unit` in place of the rule's. Losses that are added up need one: see `joint_cross_entropy_beta`.
    std::optional<double> beta{};
};

/// The factor of the gradient of the summed loss under `unit`: see `softmax_cross_entropy`.
[[nodiscard]] inline double cross_entropy_unit_factor(std::size_t classes) noexcept {
    const auto s = static_cast<double>(classes);
    return classes < 2 ? 1.0 : s / std::sqrt(s - 1.0);
}

/// The beta of two mean losses that are added up, of rows with these numbers of classes. Their gradients meet in the
/// model, so the betas must agree. As in Unit Scaling, the common value is the geometric mean of the ideal ones.
[[nodiscard]] inline double joint_cross_entropy_beta(std::size_t rows, std::size_t classes, std::size_t other_rows,
                                                     std::size_t other_classes) noexcept {
    return std::sqrt(static_cast<double>(rows) * cross_entropy_unit_factor(classes)) *
           std::sqrt(static_cast<double>(other_rows) * cross_entropy_unit_factor(other_classes));
}

/// Softmax cross-entropy of logits with integer labels.
///   loss = sum over counted rows of (ln sum_j exp(m x_j) - m x_label), over their number N_c for `mean`
///   x [...,s]   labels [...]   loss: one element
///   none: dx = m (softmax(m x) - onehot) seed, over N_c for `mean`
///   unit: dx = s (s - 1)^-1/2 (softmax(m x) - onehot) seed, m not applied, for `mean` and `sum` alike
/// Factors under `unit`: with flat logits a row of softmax - onehot has the mean square (s - 1) / s^2, hence
/// s (s - 1)^-1/2; it is the gradient of the sum, whatever N_c, since nothing but the loss sees N_c. The value is never
/// scaled. Relative to the mean's own gradient: beta = N_c s (s - 1)^-1/2 / m.
/// `beta` replaces the rule's, so that several losses agree; no constraint then changes it.
/// Scale under `propagate`: 1, m s_x being the multiplier; dx: m, 1 / N_c and the seed over s (s - 1)^-1/2, rounded.
/// Under `mean` and k micro-batches each loss is the sum of its rows over the whole step's N_c, so losses and gradients
/// of the micro-batches add up. Accumulated in Accum<T>: `item` reads this value, and dx uses this seed, both before
/// they are rounded to T.
/// Labels are integers of any type.
/// Errors: labels that are not one per row, a label outside [0, s) that is not `ignored`, no classes.
/// Reference: Blake, Orr, Luschi 2023, arXiv:2303.11257, table A.2; Blake et al. 2024, arXiv:2407.17465, table 8.
/// Test: tests/ops/softmax_cross_entropy_test.cpp
template <class T>
[[nodiscard]] Variable<T> softmax_cross_entropy(Variable<T> logits, const Tensor<std::int32_t>& labels,
                                                const CrossEntropyOptions& options = {}) {
    auto op = begin_op("softmax_cross_entropy", logits);
    const Tensor<T>& x = op.input(0);
    const std::size_t classes = last_extent(op.name(), "logits", x.shape());
    const std::size_t row_total = row_count(x.shape());
    check(classes >= 1, op.name(), ": logits ", shape_text(x.shape()), " have no classes");
    check(labels.size() == row_total, op.name(), ": labels ", shape_text(labels.shape()), " do not fit logits ",
          shape_text(x.shape()), "; expected ", row_total, " labels");
    const double mult = options.mult.value_or(op.tape().recipe().hyperparameters.alpha_loss_softmax);
    check_positive(op.name(), "mult", mult);
    if (options.beta) check_positive(op.name(), "beta", *options.beta);
    const auto rows = static_cast<std::ptrdiff_t>(row_total), n = static_cast<std::ptrdiff_t>(classes);
    const std::int32_t ignored = options.ignored;
    const std::ptrdiff_t bad = kernels::first_outside(labels.data(), rows, n, &ignored);
    check(bad == rows, op.name(), ": labels[", bad, "] is ", bad < rows ? labels.data()[bad] : 0,
          "; expected a number in [0,", n, ") or ", ignored, " to ignore the row");

    const auto counted_here =
        row_total - static_cast<std::size_t>(std::count(labels.data(), labels.data() + rows, ignored));
    const std::size_t counted = std::max<std::size_t>(options.step_rows.value_or(op.tape().step_rows(counted_here)), 1);
    const double share = options.reduction == Reduction::mean ? 1.0 / static_cast<double>(counted) : 1.0;
    const double own = mult * share;  // of softmax - onehot in the gradient of the unscaled op
    const bool stated = options.beta && op.tape().unit_scaled();
    op.set_factors({.betas = {stated ? *options.beta : cross_entropy_unit_factor(classes) / own}});
    if (stated) op.set_joined_by(JoinedBy::hand);
    const auto m = static_cast<Accum<T>>(mult * x.scale());
    Tensor<Accum<T>> log_sums({row_total}, op.tape().pool());
    const Accum<T> total = kernels::softmax_cross_entropy_forward<T>(op.execution(), x.data(), labels.data(),
                                                                     log_sums.data(), rows, n, m, ignored);
    Tensor<T> loss = op.make(Shape{1});
    const Accum<T> value = total * static_cast<Accum<T>>(share);
    loss.data()[0] = static_cast<T>(value);
    Tensor<std::int32_t> kept({row_total}, op.tape().pool());
    std::copy_n(labels.data(), row_total, kept.data());
    return op.record(std::move(loss), 1.0, {.reads = reads_inputs, .item = static_cast<double>(value)},
                     [=, log_sums = std::move(log_sums), kept = std::move(kept)](BackwardContext<T>& g) {
                         const double seed = g.item_gradient();
                         const Scaled dx_scaled = g.scaled_beta(0);
                         Tensor<T> dx = g.make(g.input_shape(0));
                         kernels::softmax_cross_entropy_backward<T>(
                             g.execution(), g.input(0).data(), kept.data(), log_sums.data(), dx.data(), rows, n, m,
                             static_cast<Accum<T>>(dx_scaled.factor * own * seed), ignored);
                         g.add(0, std::move(dx), dx_scaled.scale);
                     });
}

template <class T, OtherId I>
[[nodiscard]] Variable<T> softmax_cross_entropy(Variable<T> logits, const Tensor<I>& labels,
                                                const CrossEntropyOptions& options = {}) {
    const auto narrow =
        narrow_ids("softmax_cross_entropy", "labels", labels, logits.tape("softmax_cross_entropy").pool());
    return softmax_cross_entropy(std::move(logits), narrow, options);
}

}  // namespace unitscale::ops
