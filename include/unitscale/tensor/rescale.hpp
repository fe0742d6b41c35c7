// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/base/multiply_add.hpp>
#include <unitscale/tensor/cast.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <cmath>
#include <concepts>
#include <limits>
#include <string_view>
#include <type_traits>
#include <utility>

// Functions that keep a tensor's value and change its scale. The data is multiplied by a ratio of scales in double and
// rounded to the element type once, as by `element_cast`. This is exact for powers of two, unless the element type
// overflows or underflows.
namespace unitscale {

/// Elements that may have a scale: all but integers and bool.
template <class T>
concept RealElement = std::floating_point<T> || CodedElement<T>;

/// Error, in the name of `operation`: the number is not positive and finite.
inline void check_positive(std::string_view operation, std::string_view what, double value) {
    check(value > 0.0 && value <= std::numeric_limits<double>::max(), operation, ": ", what, " is ", value,
          "; expected a positive finite number");
}

/// Multiplies numbers by numerator / denominator, both positive and finite. The quotient itself may leave double's
/// range.
class Ratio {
public:
    Ratio(double numerator, double denominator) noexcept : factor_(numerator / denominator) {
        if (factor_ >= std::numeric_limits<double>::min() && factor_ <= std::numeric_limits<double>::max()) return;
        int up = 0, down = 0;
        factor_ = std::frexp(numerator, &up) / std::frexp(denominator, &down);
        exponent_ = up - down;
    }
    [[nodiscard]] double operator()(double x) const noexcept {
        return exponent_ == 0 ? x * factor_ : std::ldexp(x * factor_, exponent_);
    }

private:
    double factor_;
    int exponent_ = 0;
};

/// Whether A holds a positive factor without under- or overflow. A factor that became 0 would make NaN of infinity, and
/// a factor that became infinite would make NaN of 0.
template <class A>
[[nodiscard]] bool holds_factor(double factor) noexcept {
    return factor >= static_cast<double>(std::numeric_limits<A>::min()) &&
           factor <= static_cast<double>(std::numeric_limits<A>::max());
}

/// Changes the scale to the given one and keeps the value: data old / new. The flag "any scale" stays, because 0,
/// infinity and NaN keep their data.
/// Errors: a scale, the tensor's or the given one, that is not positive and finite.
/// Test: tests/tensor/rescale_test.cpp
template <RealElement T>
[[nodiscard]] Tensor<T> set_scaling(Tensor<T> tensor, double scale) {
    check_positive("set_scaling", "scale", scale);
    check_positive("set_scaling", "the tensor's scale", tensor.scale());
    if (scale == tensor.scale()) return tensor;
    const Ratio ratio(tensor.scale(), scale);
    for (T& x : tensor.span()) x = element_cast<T>(ratio(widest(x)));
    tensor.set_scale(scale);
    return tensor;
}

/// Moves `factor` from data to scale and keeps the value: data / factor, scale factor.
/// Errors: a factor, scale, or product of both that is not positive and finite.
template <RealElement T>
[[nodiscard]] Tensor<T> rebalance(Tensor<T> tensor, double factor) {
    check_positive("rebalance", "factor", factor);
    check_positive("rebalance", "the tensor's scale", tensor.scale());
    const double scale = tensor.scale() * factor;
    check_positive("rebalance", "the tensor's scale times factor", scale);
    const Ratio ratio(1.0, factor);
    for (T& x : tensor.span()) x = element_cast<T>(ratio(widest(x)));
    tensor.set_scale(scale);
    return tensor;
}

/// The value as a plain tensor of scale 1: data * scale, in element type To (absent: T), rounded once.
/// Error: a scale that is not positive and finite.
template <class To = void, RealElement T>
[[nodiscard]] auto value(const Tensor<T>& tensor) {
    using Result = std::conditional_t<std::is_void_v<To>, T, To>;
    check_positive("value", "the tensor's scale", tensor.scale());
    if (tensor.scale() == 1.0) return cast<Result>(tensor);
    Tensor<Result> result(tensor.shape());
    for (std::size_t i = 0; i < tensor.size(); ++i)
        result.data()[i] = element_cast<Result>(widest(tensor.data()[i]) * tensor.scale());
    result.set_any_scale(tensor.any_scale());
    return result;
}

/// The root mean square of a tensor of data and scale; NaN if an element is not finite; 0 without elements.
template <RealElement T>
[[nodiscard]] double root_mean_square(const Tensor<T>& tensor) {
    double sum = 0.0;
    for (const T& x : tensor.span()) sum = multiply_add(widest(x), widest(x), sum);
    return tensor.empty() ? 0.0 : std::sqrt(sum / static_cast<double>(tensor.size())) * tensor.scale();
}

/// plain = data scale, of scale 1, rounded once. `plain` has the tensor's shape.
template <RealElement T>
void multiply_out(const Tensor<T>& tensor, Tensor<T>& plain) {
    const double scale = tensor.scale();
    for (std::size_t i = 0; i < tensor.size(); ++i) plain.data()[i] = element_cast<T>(widest(tensor.data()[i]) * scale);
    plain.set_any_scale(tensor.any_scale());
}

}  // namespace unitscale
