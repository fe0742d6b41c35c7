// SPDX-License-Identifier: MIT
#pragma once

#include "support/catch.hpp"

#include <unitscale/analysis/grad_check.hpp>
#include <unitscale/tensor/cast.hpp>
#include <unitscale/tensor/fill.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <type_traits>
#include <vector>

namespace unitscale::test {

/// The largest ratio of |narrow - wide| to the error that `roundings` roundings allow, over all elements:
/// - u |x| for the last rounding, u the type's unit roundoff, but at least half a subnormal step;
/// - u times the largest element for each earlier rounding;
/// - 1e-5 times the largest element, because float itself may add in another order.
/// Without roundings the ratio is infinite unless all elements are equal.
template <class T>
[[nodiscard]] double rounding_error(const Tensor<T>& narrow, const Tensor<float>& wide, int roundings) {
    check(narrow.shape() == wide.shape(), "rounding_error: shapes ", to_string(narrow.shape()), " and ",
          to_string(wide.shape()), " differ");
    constexpr bool half = std::is_same_v<T, Half>;
    constexpr double unit_roundoff = half ? 0x1p-11 : 0x1p-8, half_subnormal = half ? 0x1p-25 : 0x1p-134;
    double largest = 0.0, worst = 0.0;
    for (const float x : wide.span()) largest = std::max(largest, std::abs(static_cast<double>(x)));
    const double earlier = (roundings - 1) * unit_roundoff * largest + 1e-5 * largest;
    for (std::size_t i = 0; i < wide.size(); ++i) {
        const double want = static_cast<double>(wide.data()[i]);
        const double distance = std::abs(static_cast<double>(narrow.data()[i]) - want);
        const double allowed =
            roundings == 0 ? 0.0 : std::max(unit_roundoff * std::abs(want), half_subnormal) + earlier;
        if (std::isnan(distance)) return std::numeric_limits<double>::infinity();
        if (distance > 0.0) worst = std::max(worst, distance / allowed);
    }
    return worst;
}

/// Checks an op in Half and BFloat16, forward and backward.
/// Its results must equal the results in float from equal inputs, rounded once: arithmetic and sums are in Accum<T>.
/// `value_roundings` and `gradient_roundings` allow more roundings, e.g. for a gradient computed from a rounded value.
template <class F>
void check_sixteen_bits(const char* name, const std::vector<Tensor<double>>& inputs, F f, int value_roundings = 1,
                        int gradient_roundings = 1) {
    const auto check_type = [&]<class T>(T, const char* type) {
        std::vector<Tensor<T>> narrow;
        std::vector<Tensor<float>> wide;  // equal numbers in float
        for (const Tensor<double>& input : inputs) {
            narrow.push_back(cast<T>(input));
            wide.push_back(cast<float>(narrow.back()));
        }
        for (const Scaling scaling : {Scaling::none, Scaling::unit}) {
            INFO(name << " in " << type << ", scaling " << unitscale::name(scaling));
            const Recipe recipe = analysis::plain_recipe(scaling);
            const auto run = analysis::run_op<T>(recipe_in<T>(recipe), narrow, f);
            const Tensor<T> dy = normal<T>(run.value.shape(), {1, hash_name("output gradient")});
            const auto expected = analysis::run_op<float>(recipe, wide, f, cast<float>(dy));
            CHECK(rounding_error(run.value, expected.value, value_roundings) <= 1.0);
            for (std::size_t i = 0; i < inputs.size(); ++i) {
                INFO("gradient of input " << i);
                CHECK(rounding_error(run.gradients[i], expected.gradients[i], gradient_roundings) <= 1.0);
            }
        }
    };
    check_type(Half(0.0F), "Half");
    check_type(BFloat16(0.0F), "BFloat16");
}
template <class F>
void check_sixteen_bits(const char* name, const std::vector<Shape>& shapes, F f, int value_roundings = 1,
                        int gradient_roundings = 1) {
    std::vector<Tensor<double>> inputs;
    for (const Shape& shape : shapes) inputs.push_back(normal<double>(shape, {1, 100 + inputs.size()}));
    check_sixteen_bits(name, inputs, f, value_roundings, gradient_roundings);
}

}  // namespace unitscale::test
