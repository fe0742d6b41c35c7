// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/kernels/pointwise.hpp>
#include <unitscale/ops/operands.hpp>

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
    if (!tape.unit_scaled()) return {};
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

/// Records an element-wise op of one input.
///   y = alpha f(x)     dx = beta_x dy f'(x)     x, y [any shape]
/// `forward(execution, x, y, n, alpha)` and `backward(execution, x, dy, dx, n, beta)` are its kernels; dx is dy's own memory.
/// Test: tests/ops/unary_test.cpp
template <class T, class Forward, class Backward>
[[nodiscard]] Variable<T> record_unary(const char* op, Variable<T> x, const UnitRule& factors, Forward forward,
                                       Backward backward) {
    Tape<T>& tape = x.tape(op);
    const Tensor<T>& input = x.value();
    const auto count = static_cast<std::ptrdiff_t>(input.size());
    Tensor<T> output = tape.make(input.shape());
    forward(tape.execution(), input.data(), output.data(), count, static_cast<Accum<T>>(factors.alpha));
    return tape.record({.name = op,
                        .site = tape.next_site(op),
                        .alpha = factors.alpha,
                        .betas = {factors.beta_x},
                        .joined_by = factors.joined_by,
                        .reads = reads_inputs},
                       {x}, std::move(output), [=](BackwardContext<T>& g) {
                           Tensor<T> dx = g.take_output_gradient();
                           backward(g.execution(), g.input(0).data(), dx.data(), dx.data(), count,
                                    static_cast<Accum<T>>(g.beta(0)));
                           g.add(0, std::move(dx));
                       });
}

/// The same for a function of kernels/pointwise.hpp.
template <class T, class F>
[[nodiscard]] Variable<T> record_pointwise(const char* op, Variable<T> x, const UnitRule& factors, F f) {
    return record_unary<T>(
        op, x, factors,
        [f](const Execution& execution, const T* from, T* y, std::ptrdiff_t n, Accum<T> alpha) {
            kernels::pointwise_forward<T>(execution, from, y, n, f, alpha);
        },
        [f](const Execution& execution, const T* from, const T* dy, T* dx, std::ptrdiff_t n, Accum<T> beta) {
            kernels::pointwise_backward<T>(execution, from, dy, dx, n, f, beta);
        });
}

}  // namespace unitscale::ops
