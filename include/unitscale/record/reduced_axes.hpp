// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/kernels/broadcast.hpp>
#include <unitscale/record/arguments.hpp>
#include <unitscale/record/op.hpp>
#include <unitscale/scaling/factors.hpp>
#include <unitscale/scaling/power_of_two.hpp>

#include <cstddef>
#include <optional>

namespace unitscale::ops {

/// Which axes a reduction removes.
struct ReductionOptions {
    SmallVector<std::ptrdiff_t> axes{};      ///< negative axes count from the end; empty: all
    bool keep_axes = false;                  ///< true: they stay, with extent 1
    std::optional<Constraint> constraint{};  ///< joins {alpha, beta_x}; empty: the recipe's rule
};

/// Which axes a reduction without factors of its own removes: `max`, `min`, `prod`.
struct UnruledReductionOptions {
    SmallVector<std::ptrdiff_t> axes{};      ///< negative axes count from the end; empty: all
    bool keep_axes = false;                  ///< true: they stay, with extent 1
    std::optional<Factors<1>> unit{};        ///< the ideal factors under `unit`, required there
    std::optional<Constraint> constraint{};  ///< joins {alpha, beta_x}; empty: the recipe's rule
};

/// The shapes of a reduction, and the number of elements that become one.
struct ReducedAxes {
    Shape kept{};            ///< reduced axes have extent 1
    Shape result{};          ///< without reduced axes, unless they are kept; [1] if no axis is left
    std::size_t count = 1;   ///< number of elements that become one
    bool over_rows = false;  ///< whether the first axis, the batch, is among them
};

/// Errors, in the name of `op`: an axis outside x; an axis that is named twice.
[[nodiscard]] inline ReducedAxes reduced_axes(const char* op, const Shape& shape,
                                              const SmallVector<std::ptrdiff_t>& axes, bool keep_axes) {
    SmallVector<bool> reduced(shape.size(), axes.empty());
    for (const std::ptrdiff_t axis : axes) {
        const std::size_t i = front_axis(op, "x", shape, axis);
        check(!reduced[i], op, ": axis ", axis, " of x ", shape_text(shape), " is named twice");
        reduced[i] = true;
    }
    ReducedAxes result{.kept = shape};
    for (std::size_t i = 0; i < shape.size(); ++i) {
        if (reduced[i]) {
            result.count *= shape[i];
            result.kept[i] = 1;
        }
        if (!reduced[i] || keep_axes) result.result.push_back(result.kept[i]);
    }
    result.over_rows = !shape.empty() && reduced[0];
    if (result.result.empty()) result.result.push_back(1);
    return result;
}

/// Error if a result would be computed from no elements.
inline void check_elements(const char* op, const Shape& x, const ReducedAxes& axes) {
    check(axes.count > 0 || element_count(axes.kept) == 0, op, ": x ", to_string(x), " has no elements along the axes");
}

/// Records a weighted sum over axes: the common part of `sum` and `mean`.
///   y = alpha weight times the sum of x over the axes     dx = beta_x weight dy, repeated along the axes
/// Under `propagate` a sum of n elements has the scale s r p. Here s is x's scale, r is n^1/2 rounded, and p is the
/// power of two at or above the weight. For the weight 1/n, p is 2^-e, where n = 2^e m with m in [1,2). dx has dy's
/// scale over beta_x, rounded.
/// Test: tests/record/reduced_axes_test.cpp
template <class T>
[[nodiscard]] Variable<T> record_reduced_sum(Op<T, 1>& op, const ReducedAxes& axes, double weight) {
    const Tensor<T>& input = op.input(0);
    Scaled scaled{op.factors().alpha * weight, 1.0};
    if (op.tape().propagates()) {
        const double root = op.tape().scaled_alpha(op.site(), rsqrt_count(axes.count), input.scale()).scale;
        scaled = op.tape().carried(op.site(), input.scale() * weight, root * pow2_up(weight));
    }
    Tensor<T> output = op.make(axes.result);
    kernels::sum_to_shape<T>(op.execution(), input.data(), input.shape(), output.data(), axes.kept,
                             static_cast<Accum<T>>(scaled.factor));
    return op.record(std::move(output), scaled.scale, {.reads = reads_nothing, .any_scale = input.any_scale()},
                     [kept = axes.kept, weight](BackwardContext<T>& g) {
                         using A = Accum<T>;
                         const Scaled dx_scaled = g.scaled_beta(0);
                         Tensor<T> dx = g.make(g.input_shape(0));
                         kernels::broadcast_map(
                             g.execution(), dx.shape(), dx.data(),
                             [factor = static_cast<A>(dx_scaled.factor * weight)](A d) { return factor * d; },
                             kernels::BroadcastInput{std::as_const(g.output_gradient()).data(), kept});
                         g.add(0, std::move(dx), dx_scaled.scale);
                     });
}

}  // namespace unitscale::ops
