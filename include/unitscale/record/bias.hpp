// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/elementwise.hpp>
#include <unitscale/record/factors.hpp>
#include <unitscale/record/op.hpp>
#include <unitscale/record/same_scale.hpp>

#include <cstddef>
#include <optional>

// The bias b of a product is argument 2 of its op. The op computes y = alpha f:
//   inside alpha    f = x w^T + b            y = alpha (x w^T + b)
//   beside alpha    f = x w^T + b / alpha    y = alpha x w^T + b
// So f = x w^T + c b with c = 1 or 1 / alpha, and the bias' gradient is beta_b c times the sum of dy.
namespace unitscale::ops {

/// Whether biases stand beside the factor alpha of their op (Recipe::bias_inside_alpha is false).
template <class T>
[[nodiscard]] bool bias_beside_alpha(const Tape<T>& tape) noexcept {
    return tape.unit_scaled() && !tape.recipe().bias_inside_alpha;
}

/// Sets the factors of a product, from the ideal ones for a bias inside alpha. A constraint joins {alpha, beta_x}.
/// The factor of the sum of dy is N^-1/2 in both places of the bias. It equals beta_b c, so that beta_b = N^-1/2 / c,
/// with the alpha that the constraint chose.
template <class T>
void set_product_factors(Op<T, 3>& op, const Factors<3>& inside, const std::optional<Constraint>& constraint) {
    op.set_factors(inside, constraint, /*joined=*/1);
    if (bias_beside_alpha(op.tape())) op.multiply_beta(2, op.factors().alpha);
}

/// The bias of a product as its kernel adds it, before alpha: c b, under `propagate` in the product's scale. It is made
/// after the op's factors are set, because c depends on alpha.
/// Test: tests/record/bias_test.cpp
template <class T>
class ProductBias {
public:
    /// `scale`: of the product x w^T.
    ProductBias(const Op<T, 3>& op, double scale)
        : same_scale_(op.tape(), op.has(2) ? &op.input(2) : nullptr, scale), data_(same_scale_.data()) {
        if (!op.has(2) || !bias_beside_alpha(op.tape())) return;
        factor_ = 1.0 / op.factors().alpha;
        const Tensor<T>& bias = op.input(2);
        copy_ = op.make(bias.shape());
        kernels::scale<T>(op.execution(), bias.data(), copy_.data(), static_cast<std::ptrdiff_t>(bias.size()),
                          static_cast<Accum<T>>(factor_));
        data_ = copy_.data();
    }
    ProductBias(const ProductBias&) = delete;
    ProductBias& operator=(const ProductBias&) = delete;

    /// Null: the op has no bias.
    [[nodiscard]] const T* data() const noexcept { return data_; }
    /// c, which the bias' gradient has too.
    [[nodiscard]] double factor() const noexcept { return factor_; }

private:
    SameScale<T> same_scale_;
    Tensor<T> copy_{};
    const T* data_ = nullptr;
    double factor_ = 1.0;
};

}  // namespace unitscale::ops
