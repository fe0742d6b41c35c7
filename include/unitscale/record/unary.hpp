// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/kernels/pointwise.hpp>
#include <unitscale/record/op.hpp>

#include <cmath>
#include <cstddef>
#include <optional>

namespace unitscale::ops {

/// Options of a one-input op that has no rule of its own under `unit`.
struct UnruledOptions {
    std::optional<Factors<1>> unit{};        ///< its ideal factors under `unit`, required there
    std::optional<Constraint> constraint{};  ///< joins {alpha, beta_x}; empty: the recipe's rule
};

/// How an element-wise function treats scales under `propagate`, for x = s a with data a and scale s.
///   plain: y = f(s a), with scale 1
///   activation: f(x) = x g(m x) with a multiplier m, so that y = a g(s m a), with scale s
enum class UnaryScale { plain, activation };

/// Scales of a function that treats data and scale apart. f(s a) is `value` times the result of its forward kernel on
/// a. f'(s a) is `slope` times the factor by which its backward kernel multiplies dy. Both are 1 if s is 1.
struct UnaryScales {
    double value = 1.0, slope = 1.0;
};

/// Records an element-wise op of one input.
///   y = alpha f(x)     dx = beta_x dy f'(x)     x, y [any shape]
/// `forward(execution, x, y, n, alpha, s)` and `backward(execution, x, dy, dx, n, beta, s)` are its kernels on x's
/// data; s is x's scale. dx uses dy's memory. Under `propagate` y has the scale `scales.value`, and dx has dy's scale
/// times `scales.slope`. alpha and beta are then 1, except for factors outside the range of scales.
/// Test: tests/record/unary_test.cpp
template <class T, class Forward, class Backward>
[[nodiscard]] Variable<T> record_unary(Op<T, 1>& op, const UnaryScales& scales, Forward forward, Backward backward) {
    const bool propagates = op.tape().propagates();
    const Tensor<T>& input = op.input(0);
    const auto count = static_cast<std::ptrdiff_t>(input.size());
    const Scaled scaled = op.kept_scale(scales.value);
    Tensor<T> output = op.make(input.shape());
    forward(op.execution(), input.data(), output.data(), count, static_cast<Accum<T>>(scaled.factor),
            static_cast<Accum<T>>(input.scale()));
    return op.record(std::move(output), scaled.scale, {.reads = reads_inputs},
                     [=, slope = scales.slope](BackwardContext<T>& g) {
                         Tensor<T> dx = g.take_output_gradient();
                         const double value = dx.scale() * slope;
                         const Scaled dx_scaled = propagates ? g.carried(0, value, value) : Scaled{g.beta(0), 1.0};
                         backward(g.execution(), g.input(0).data(), dx.data(), dx.data(), count,
                                  static_cast<Accum<T>>(dx_scaled.factor), static_cast<Accum<T>>(g.input_scale(0)));
                         g.add(0, std::move(dx), dx_scaled.scale);
                     });
}
template <class T, class Forward, class Backward>
[[nodiscard]] Variable<T> record_unary(Op<T, 1>& op, UnaryScale rule, Forward forward, Backward backward) {
    const double value = rule == UnaryScale::activation ? op.input(0).scale() : 1.0;
    return record_unary<T>(op, UnaryScales{.value = value}, forward, backward);
}

/// f(s v) for a function f of kernels/pointwise.hpp.
template <class F>
struct OfScaled {
    F f;
    double scale = 1.0;
    template <class A>
    [[nodiscard]] A value(A v) const {
        const A x = static_cast<A>(scale) * v;
        if constexpr (kernels::FunctionOfRoot<F>) return f.value(x, std::sqrt(x));
        else return f.value(x);
    }
    template <class A>
    [[nodiscard]] A slope(A v) const {
        const A x = static_cast<A>(scale) * v;
        if constexpr (kernels::FunctionOfRoot<F>) return f.slope(x, std::sqrt(x));
        else return f.slope(x);
    }
};

/// Records a function of kernels/pointwise.hpp, applied to x's data: see `record_unary`.
template <class T, class F>
[[nodiscard]] Variable<T> record_pointwise(Op<T, 1>& op, const UnaryScales& scales, F f) {
    return record_unary<T>(
        op, scales,
        [f](const Execution& execution, const T* from, T* y, std::ptrdiff_t n, Accum<T> alpha, Accum<T>) {
            kernels::pointwise_forward<T>(execution, from, y, n, f, alpha);
        },
        [f](const Execution& execution, const T* from, const T* dy, T* dx, std::ptrdiff_t n, Accum<T> beta, Accum<T>) {
            kernels::pointwise_backward<T>(execution, from, dy, dx, n, f, beta);
        });
}

/// Records a function of kernels/pointwise.hpp, applied to x itself. The kernels multiply x's scale out, and y has
/// scale 1.
template <class T, class F>
[[nodiscard]] Variable<T> record_pointwise(Op<T, 1>& op, F f) {
    const double scale = op.input(0).scale();
    if (scale == 1.0) return record_pointwise(op, UnaryScales{}, f);
    return record_pointwise(op, UnaryScales{}, OfScaled<F>{f, scale});
}

}  // namespace unitscale::ops
