// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/scaling/constraint.hpp>
#include <unitscale/scaling/factors.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <cmath>
#include <cstddef>
#include <optional>

namespace unitscale::ops {

/// The constraint of an op: its option, or where that is empty the recipe's rule.
template <class T>
[[nodiscard]] Constraint effective_constraint(const Tape<T>& tape, const std::optional<Constraint>& option) noexcept {
    return option.value_or(tape.recipe().constraint);
}

/// Turns the ideal factors of an op under `unit` into those it is recorded with. An explicit constraint joins alpha and the
/// given betas, and the plan leaves them alone. `automatic` makes alpha the planned one; the betas follow in the backward pass.
/// Under `propagate` they stay as they are.
template <class T, class... Betas>
[[nodiscard]] JoinedBy join_factors(const char* op, Site site, Tape<T>& tape, const std::optional<Constraint>& option,
                                    double& alpha, Betas&... betas) {
    if (tape.propagates()) return JoinedBy::plan;  // every factor becomes a scale of its own
    const Constraint constraint = effective_constraint(tape, option);
    if (constraint == Constraint::automatic) {
        alpha = tape.forward_factor(op, site, alpha);
        return JoinedBy::plan;
    }
    constrain(op, constraint, alpha, betas...);
    return JoinedBy::hand;
}

/// The scale of the sum of two tensors at `site`: that of the other one where a tensor goes with any scale; 1 but under `propagate`.
template <class T>
[[nodiscard]] double sum_of_scales(const Tape<T>& tape, Site site, const Tensor<T>& x, const Tensor<T>& z) {
    if (x.any_scale() || z.any_scale()) return x.any_scale() ? z.scale() : x.scale();
    return tape.scaled_sum(site, x.scale(), z.scale());
}

/// Rows of a tensor seen as a matrix of its last dimension: the product of all other extents; 1 for rank 1.
[[nodiscard]] inline std::size_t row_count(const Shape& shape) noexcept {
    std::size_t rows = 1;
    for (std::size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
    return rows;
}

/// An axis as a number from the front; negative ones count from the end. Error: `argument` has no such axis.
[[nodiscard]] inline std::size_t front_axis(const char* op, const char* argument, const Shape& shape,
                                            std::ptrdiff_t axis) {
    const auto rank = static_cast<std::ptrdiff_t>(shape.size());
    check(axis >= -rank && axis < rank, op, ": axis ", axis, " is outside ", argument, " ", shape_text(shape));
    return static_cast<std::size_t>(axis < 0 ? axis + rank : axis);
}

/// Error unless an option of an op is a finite number above 0.
inline void check_positive(const char* op, const char* option, double value) {
    check(std::isfinite(value) && value > 0.0, op, ": ", option, " is ", value, "; expected a positive number");
}

/// Extent of the last dimension. Error: a tensor of rank 0, named `argument`.
[[nodiscard]] inline std::size_t last_extent(const char* op, const char* argument, const Shape& shape) {
    check(!shape.empty(), op, ": ", argument, " has rank 0; expected at least one dimension");
    return shape[shape.size() - 1];
}

/// A shape with another last extent.
[[nodiscard]] inline Shape with_last_extent(Shape shape, std::size_t extent) {
    shape[shape.size() - 1] = extent;
    return shape;
}

/// A pointer to a quantiser, or null: how kernels take an operand's rounding.
[[nodiscard]] inline const Quantiser* pointer(const std::optional<Quantiser>& quantiser) noexcept {
    return quantiser ? &*quantiser : nullptr;
}

/// Parts of a site's random stream, one per operand role of its products and one for their results.
inline constexpr std::uint64_t activation_part = 1, weight_part = 2, gradient_part = 3, result_part = 4;

}  // namespace unitscale::ops
