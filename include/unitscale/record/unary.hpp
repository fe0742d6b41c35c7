// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/kernels/pointwise.hpp>
#include <unitscale/record/operands.hpp>

#include <cmath>
#include <cstddef>
#include <optional>

namespace unitscale::ops {

/// The factors of an op with one input: of its value and of its gradient. A rule states ideal ones.
struct UnitRule {
    double alpha = 1.0, beta_x = 1.0;
    JoinedBy joined_by = JoinedBy::plan;  ///< set by `effective_factors`
};

/// Options of an op that has no rule of its own under `unit`.
struct UnruledOptions {
    std::optional<UnitRule> unit{};          ///< its ideal factors under `unit`, required there
    std::optional<Constraint> constraint{};  ///< joins {alpha, beta_x}; empty: the recipe's rule
};

/// Factors 1 where nothing is scaled; under `unit` the ideal ones, joined as the constraint says.
template <class T>
[[nodiscard]] UnitRule effective_factors(const char* op, Tape<T>& tape, UnitRule ideal,
                                         const std::optional<Constraint>& constraint) {
    if (!tape.uses_factors()) return {};
    const auto usable = [](double factor) { return std::isfinite(factor) && factor > 0.0; };
    check(usable(ideal.alpha) && usable(ideal.beta_x), op, ": unit rule {", ideal.alpha, ", ", ideal.beta_x,
          "}; expected positive factors");
    ideal.joined_by = join_factors(op, tape.peek_site(op), tape, constraint, ideal.alpha, ideal.beta_x);
    return ideal;
}

/// The same for an op without a rule of its own. Error under `unit` if the caller states none.
template <class T>
[[nodiscard]] UnitRule stated_factors(const char* op, Tape<T>& tape, const UnruledOptions& options) {
    check(!tape.unit_scaled() || options.unit.has_value(), op,
          ": no rule for scaling 'unit'; state its factors with {.unit = UnitRule{.alpha = a, .beta_x = b}}");
    return effective_factors(op, tape, options.unit.value_or(UnitRule{}), options.constraint);
}

/// What an element-wise function does to scales under `propagate`, x = s a:
///   wide: y = f(s a), of scale 1
///   activation: f(x) = x g(m x) with a multiplier m, which is s m here: y = a g(s m a), of scale s
enum class UnaryScale { wide, activation };

/// The same for a function that treats data and scale apart: f(s a) is `value` times what its forward kernel makes of a, and
/// f'(s a) is `slope` times what its backward kernel multiplies dy by. Both are 1 where s is 1.
struct UnaryScales {
    double value = 1.0, slope = 1.0;
};

/// Records an element-wise op of one input.
///   y = alpha f(x)     dx = beta_x dy f'(x)     x, y [any shape]
/// `forward(execution, x, y, n, alpha, s)` and `backward(execution, x, dy, dx, n, beta, s)` are its kernels on x's data, s being x's
/// scale; dx is dy's own memory. Under `propagate` y has the scale `scales.value` and dx that of dy times `scales.slope`, and
/// alpha and beta are 1 but for what leaves the range of scales.
/// Test: tests/record/unary_test.cpp
template <class T, class Forward, class Backward>
[[nodiscard]] Variable<T> record_unary(const char* op, Variable<T> x, const UnitRule& factors,
                                       const UnaryScales& scales, Forward forward, Backward backward) {
    Tape<T>& tape = x.tape(op);
    const Tensor<T>& input = x.scaled();
    const auto count = static_cast<std::ptrdiff_t>(input.size());
    const Scaled scaled = tape.propagates() ? with_scale(scales.value, scales.value) : Scaled{factors.alpha, 1.0};
    Tensor<T> output = tape.make(input.shape());
    forward(tape.execution(), input.data(), output.data(), count, static_cast<Accum<T>>(scaled.factor),
            static_cast<Accum<T>>(input.scale()));
    output.set_scale(scaled.scale);
    return tape.record({.name = op,
                        .site = tape.next_site(op),
                        .alpha = factors.alpha,
                        .betas = {factors.beta_x},
                        .joined_by = factors.joined_by,
                        .reads = reads_inputs,
                        .propagates = true},
                       {x}, std::move(output),
                       [=, slope = scales.slope, propagates = tape.propagates()](BackwardContext<T>& g) {
                           Tensor<T> dx = g.take_output_gradient();
                           const double worth = dx.scale() * slope;
                           const Scaled dx_scaled = propagates ? with_scale(worth, worth) : Scaled{g.beta(0), 1.0};
                           backward(g.execution(), g.input(0).data(), dx.data(), dx.data(), count,
                                    static_cast<Accum<T>>(dx_scaled.factor), static_cast<Accum<T>>(g.input_scale(0)));
                           g.add(0, std::move(dx), dx_scaled.scale);
                       });
}
template <class T, class Forward, class Backward>
[[nodiscard]] Variable<T> record_unary(const char* op, Variable<T> x, const UnitRule& factors, UnaryScale rule,
                                       Forward forward, Backward backward) {
    static_cast<void>(x.tape(op));
    const double value = rule == UnaryScale::activation ? x.scaled().scale() : 1.0;
    return record_unary<T>(op, x, factors, UnaryScales{.value = value}, forward, backward);
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

/// The same for a function of kernels/pointwise.hpp, applied to x's data.
template <class T, class F>
[[nodiscard]] Variable<T> record_pointwise(const char* op, Variable<T> x, const UnitRule& factors,
                                           const UnaryScales& scales, F f) {
    return record_unary<T>(
        op, x, factors, scales,
        [f](const Execution& execution, const T* from, T* y, std::ptrdiff_t n, Accum<T> alpha, Accum<T>) {
            kernels::pointwise_forward<T>(execution, from, y, n, f, alpha);
        },
        [f](const Execution& execution, const T* from, const T* dy, T* dx, std::ptrdiff_t n, Accum<T> beta, Accum<T>) {
            kernels::pointwise_backward<T>(execution, from, dy, dx, n, f, beta);
        });
}

/// The same applied to x itself: the kernels multiply its scale out, and y has scale 1.
template <class T, class F>
[[nodiscard]] Variable<T> record_pointwise(const char* op, Variable<T> x, const UnitRule& factors, F f) {
    static_cast<void>(x.tape(op));
    const double scale = x.scaled().scale();
    if (scale == 1.0) return record_pointwise(op, x, factors, UnaryScales{}, f);
    return record_pointwise(op, x, factors, UnaryScales{}, OfScaled<F>{f, scale});
}

}  // namespace unitscale::ops
