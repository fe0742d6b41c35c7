// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/formats/minifloat.hpp>
#include <unitscale/tensor/backend.hpp>

// Lets Eigen's arrays hold Minifloat: conversions by cast<float>() and cast<Minifloat<F>>(), comparisons, minima and
// maxima, negation and printing. Sums and products of elements work too, and each result is rounded to F. To avoid
// these roundings, as in a sum of many elements, convert first: x.cast<float>().sum().
template <unitscale::FloatFormat F>
struct Eigen::NumTraits<unitscale::Minifloat<F>> : Eigen::GenericNumTraits<unitscale::Minifloat<F>> {
    using Number = unitscale::Minifloat<F>;
    enum {
        IsSigned = F.is_signed() ? 1 : 0,
        RequireInitialization = 0,
        ReadCost = 1,
        AddCost = 16,
        MulCost = 16,
    };
    static Number epsilon() { return std::numeric_limits<Number>::epsilon(); }
    static Number dummy_precision() { return std::numeric_limits<Number>::epsilon(); }
};

namespace Eigen::internal {

// Eigen's functors return a + b as the scalar type. float converts to Minifloat only explicitly, hence these
// specialisations.
template <unitscale::FloatFormat F>
struct scalar_sum_op<unitscale::Minifloat<F>, unitscale::Minifloat<F>>
    : binary_op_base<unitscale::Minifloat<F>, unitscale::Minifloat<F>> {
    using result_type = unitscale::Minifloat<F>;
    result_type operator()(result_type a, result_type b) const { return result_type(float{a} + float{b}); }
};

template <unitscale::FloatFormat F>
struct scalar_product_op<unitscale::Minifloat<F>, unitscale::Minifloat<F>>
    : binary_op_base<unitscale::Minifloat<F>, unitscale::Minifloat<F>> {
    using result_type = unitscale::Minifloat<F>;
    result_type operator()(result_type a, result_type b) const { return result_type(float{a} * float{b}); }
};

}  // namespace Eigen::internal
