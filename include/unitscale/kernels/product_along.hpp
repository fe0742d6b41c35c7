// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/elementwise.hpp>
#include <unitscale/kernels/strides.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

// Products of elements along axes, in Accum<T>, in row-major order. Zeros among the elements need no care: gradients
// are products of the other elements, formed without a division. The product of the first few elements may leave the
// range of Accum<T>, whatever the whole product is.
namespace unitscale::kernels {

/// A running product with an exponent of its own: its parts neither overflow nor underflow. 0 times any finite numbers
/// stays 0.
template <class A>
class WideProduct {
public:
    WideProduct() = default;
    explicit WideProduct(double first) noexcept {
        int up = 0;
        mantissa_ = static_cast<A>(std::frexp(first, &up));
        exponent_ = up;
    }
    [[nodiscard]] static WideProduct power(double base, std::size_t n) noexcept {
        const WideProduct once(base);
        WideProduct result;
        for (std::size_t i = 0; i < n; ++i) result.multiply(once);
        return result;
    }

    void multiply(A x) noexcept {
        int up = 0;
        mantissa_ *= std::frexp(x, &up);
        exponent_ += up;
        if (std::abs(mantissa_) < A(0.5)) {
            mantissa_ *= A(2);
            --exponent_;
        }
    }
    void multiply(const WideProduct& other) noexcept {
        multiply(other.mantissa_);
        exponent_ += other.exponent_;
    }
    /// Infinity or 0 where the product is outside A's range.
    [[nodiscard]] A value() const noexcept {
        constexpr std::int64_t beyond = 4096;  // takes every mantissa out of double's range
        return std::ldexp(mantissa_, static_cast<int>(std::clamp(exponent_, -beyond, beyond)));
    }

private:
    A mantissa_ = A(0.5);  // its absolute value is in [1/2, 1), 0, infinity or NaN
    std::int64_t exponent_ = 1;
};

/// y = alpha * the product of x along the axes where kept_shape has 1 and x_shape has not; alpha if there are none.
///   x of x_shape   y of kept_shape
/// Test: tests/kernels/product_along_test.cpp
template <class T>
void product_forward(const Execution& execution, const T* x, const Shape& x_shape, T* y, const Shape& kept_shape,
                     const WideProduct<Accum<T>>& alpha) {
    using A = Accum<T>;
    const FoldedAxes axes(x_shape, kept_shape);
    axes.for_pieces(execution,
                    [=, &axes](std::ptrdiff_t first, std::ptrdiff_t count, std::ptrdiff_t step, std::ptrdiff_t place) {
                        Block<WideProduct<A>> product{};
                        axes.for_offsets([&](std::ptrdiff_t offset) {
                            const T* const in = x + first + offset;
                            for (std::ptrdiff_t l = 0; l < count; ++l)
                                product[static_cast<std::size_t>(l)].multiply(widen(in[l * step]));
                        });
                        for (std::ptrdiff_t l = 0; l < count; ++l) {
                            WideProduct<A>& whole = product[static_cast<std::size_t>(l)];
                            whole.multiply(alpha);
                            y[place + l] = narrow<T>(whole.value());
                        }
                    });
}

/// dx_i = beta dy * the product of all x_j of the same y but x_i.
///   x, dx of x_shape   dy of kept_shape   before: scratch of x's size, for the products of earlier factors
template <class T>
void product_backward(const Execution& execution, const T* x, const T* dy, T* dx, WideProduct<Accum<T>>* before,
                      const Shape& x_shape, const Shape& kept_shape, const WideProduct<Accum<T>>& beta) {
    using A = Accum<T>;
    const FoldedAxes axes(x_shape, kept_shape);
    const std::ptrdiff_t n = axes.length();
    axes.for_pieces(execution,
                    [=, &axes](std::ptrdiff_t first, std::ptrdiff_t count, std::ptrdiff_t step, std::ptrdiff_t place) {
                        Block<WideProduct<A>> product{};
                        for (std::ptrdiff_t i = 0; i < n; ++i) {
                            const std::ptrdiff_t at = first + axes.offset(i);
                            for (std::ptrdiff_t l = 0; l < count; ++l) {
                                WideProduct<A>& running = product[static_cast<std::size_t>(l)];
                                before[at + l * step] = running;
                                running.multiply(widen(x[at + l * step]));
                            }
                        }
                        product.fill({});
                        for (std::ptrdiff_t i = n; i-- > 0;) {
                            const std::ptrdiff_t at = first + axes.offset(i);
                            for (std::ptrdiff_t l = 0; l < count; ++l) {
                                WideProduct<A>& after = product[static_cast<std::size_t>(l)];
                                WideProduct<A> slope = before[at + l * step];
                                slope.multiply(after);
                                slope.multiply(beta);
                                slope.multiply(widen(dy[place + l]));
                                dx[at + l * step] = narrow<T>(slope.value());
                                after.multiply(widen(x[at + l * step]));
                            }
                        }
                    });
}

}  // namespace unitscale::kernels
