// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/elementwise.hpp>
#include <unitscale/record/factors.hpp>
#include <unitscale/record/op.hpp>
#include <unitscale/record/same_scale.hpp>

#include <cstddef>

namespace unitscale::ops {

/// Whether biases stand beside the factor alpha of their op: y = alpha x w^T + b (Recipe::bias_inside_alpha).
template <class T>
[[nodiscard]] bool bias_beside_alpha(const Tape<T>& tape) noexcept {
    return tape.unit_scaled() && !tape.recipe().bias_inside_alpha;
}

/// Ideal factors of a product with the bias as input 2. Factors are relative to f(x, w, b) = x w^T + b / alpha if the
/// bias stands beside alpha. So beta_b is alpha times as large, and the gradient is beta_b / alpha = N^-1/2 times the
/// sum of dy.
template <class T>
[[nodiscard]] Factors<3> with_bias(const Tape<T>& tape, Factors<3> ideal) noexcept {
    if (bias_beside_alpha(tape)) ideal.betas[2] *= ideal.alpha;
    return ideal;
}

/// The bias of a product (argument 2 of the op) as its kernel adds it, before the factor: under `propagate` in the
/// product's scale, beside alpha as b / alpha, else as it is. Made after the op's factors are set.
/// Test: tests/record/bias_test.cpp
template <class T>
class ProductBias {
public:
    ProductBias(const Op<T, 3>& op, double scales)
        : same_scale_(op.tape(), op.has(2) ? &op.input(2) : nullptr, scales), data_(same_scale_.data()) {
        if (!op.has(2) || !bias_beside_alpha(op.tape())) return;
        weight_ = 1.0 / op.factors().alpha;
        const Tensor<T>& bias = op.input(2);
        copy_ = op.make(bias.shape());
        kernels::scale<T>(op.execution(), bias.data(), copy_.data(), static_cast<std::ptrdiff_t>(bias.size()),
                          static_cast<Accum<T>>(weight_));
        data_ = copy_.data();
    }
    ProductBias(const ProductBias&) = delete;
    ProductBias& operator=(const ProductBias&) = delete;

    /// Null: the op has no bias.
    [[nodiscard]] const T* data() const noexcept { return data_; }
    /// The bias' factor inside f: 1, or 1 / alpha. Its gradient has it too.
    [[nodiscard]] double weight() const noexcept { return weight_; }

private:
    SameScale<T> same_scale_;
    Tensor<T> copy_{};
    const T* data_ = nullptr;
    double weight_ = 1.0;
};

}  // namespace unitscale::ops
