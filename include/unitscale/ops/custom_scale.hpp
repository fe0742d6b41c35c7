// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/record/arguments.hpp>
#include <unitscale/record/op.hpp>
#include <unitscale/scaling/power_of_two.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <optional>
#include <span>
#include <tuple>
#include <utility>

namespace unitscale::ops {

/// The scale rule of an op f of N inputs x_i = s_i a_i, with data a_i and scale s_i (1 but under `propagate`):
///   f(s_0 a_0, s_1 a_1, ...) = scale g(a_0, a_1, ...)
/// where g is the function that the op's loops compute from data. A square has g(a) = a^2 and scale s^2; a product has
/// scale s_0 s_1; exp, of which no scale can be taken out, has g(a) = exp(s a) and scale 1. The scales of gradients
/// follow: df/dx_i = scale / s_i dg/da_i.
template <std::size_t N>
struct CustomRule {
    double scale = 1.0;
    std::optional<Factors<N>> unit{};  ///< ideal factors of g: required under `unit`; under `propagate` 1 unless given
    std::optional<Constraint> constraint{};  ///< joins {alpha, beta_0, ...} under `unit`; empty: the recipe's rule
    Reads reads{};                           ///< values that the backward function reads
};

/// The argument of such an op's backward function: a BackwardContext, with factors and scales by the rule.
template <class T, std::size_t N>
class CustomGradients : public BackwardContext<T> {
public:
    /// `power`: the power of two of the rule's scale; `rest`: the scale over it.
    CustomGradients(const BackwardContext<T>& g, double power, double rest) : BackwardContext<T>(g), rest_(rest) {
        for (std::size_t i = 0; i < N; ++i) scaled_[i] = BackwardContext<T>::scaled_beta(i, power / g.input_scale(i));
    }
    /// The factor of the data of input i's gradient, which multiplies the sum over y of dy dg/da_i, with dy's data.
    [[nodiscard]] Accum<T> factor(std::size_t i) const noexcept {
        return static_cast<Accum<T>>(scaled_[i].factor * rest_);
    }
    /// Adds to the gradient of input i, with the rule's scale.
    void add(std::size_t i, Tensor<T>&& data) { BackwardContext<T>::add(i, std::move(data), scaled_[i].scale); }

private:
    std::array<Scaled, N> scaled_{};
    double rest_;
};

/// The inputs of an op, as a list in braces.
template <class T, std::size_t N>
using InputList = const Variable<T> (&)[N];

/// An op of one's own with a scale rule: right under `none`, `unit` and `propagate` alike.
///   y = alpha f(x_0, x_1, ...)    dx_i = beta_i dy df/dx_i    f(s_0 a_0, ...) = scale g(a_0, ...)
/// `forward(factor)` returns factor g(a) from the inputs' data (`x.scaled().data()`), made by `Tape::make`; the factor
/// is an Accum<T>. `backward(g)`, g a CustomGradients, adds each input's gradient by g.add(i, dx): g.factor(i) times
/// the sum over y of dy dg/da_i. It reads data and holds copies, as any backward function.
/// Factors under `unit`: those that the rule states, joined by its constraint; without them an error.
/// Scale under `propagate`: scale / alpha, rounded; dx_i: dy's times scale / (s_i beta_i), rounded. Scales are powers
/// of two, also if the rule's is none: the rest goes to the factors.
/// Errors: a scale or a factor that is not positive and finite.
/// Reference: Balanca et al. 2024 (Scalify, WANT@ICML). Test: tests/ops/custom_scale_test.cpp
template <class T, std::size_t N, class Forward, class Backward>
[[nodiscard]] Variable<T> custom_scale(const char* name, InputList<T, N> inputs, const CustomRule<N>& rule,
                                       Forward&& forward, Backward backward) {
    auto op = std::apply([name](const auto&... x) { return begin_op(name, x...); }, std::to_array(inputs));
    check_positive(name, "scale", rule.scale);
    op.set_factors(op.stated(rule.unit), rule.constraint);
    const double power = op.tape().propagates() ? pow2_down(rule.scale) : 1.0, rest = rule.scale / power;
    const Scaled scaled = op.scaled_alpha(power);
    Tensor<T> output = forward(static_cast<Accum<T>>(scaled.factor * rest));
    return op.record(std::move(output), scaled.scale, {.reads = rule.reads},
                     [power, rest, backward = std::move(backward)](BackwardContext<T>& g) {
                         CustomGradients<T, N> gradients(g, power, rest);
                         backward(gradients);
                     });
}

}  // namespace unitscale::ops
