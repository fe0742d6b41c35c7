// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/elementwise.hpp>
#include <unitscale/kernels/strides.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <algorithm>
#include <cstddef>

// Products of elements along axes, in Accum<T>, in row-major order. Zeros among the elements need no care: gradients
// are products of the other elements, formed without a division.
namespace unitscale::kernels {

/// The axes of an array that a product keeps, and those along which it multiplies.
struct ProductAxes {
    StridedLoop<1> kept{}, multiplied{};

    /// kept_shape has the rank of x_shape, and 1 where x is multiplied along the axis.
    ProductAxes(const Shape& x_shape, const Shape& kept_shape) {
        for (std::size_t axis = 0; axis < x_shape.size(); ++axis)
            (kept_shape[axis] == x_shape[axis] ? kept : multiplied)
                .add_axis(static_cast<std::ptrdiff_t>(x_shape[axis]), {row_major_step(x_shape, axis)});
    }

    /// Calls body(first, count, step, row) for pieces of at most block_size kept elements: their offset in x and step
    /// there, and the number of the first in the result. In parallel.
    template <class Body>
    void for_pieces(const Execution& execution, Body body) const {
        const std::ptrdiff_t width = kept.inner_extent(), step = kept.inner_steps()[0];
        const std::ptrdiff_t pieces = (width + block_size - 1) / block_size;
        const std::ptrdiff_t length = multiplied.rows() * multiplied.inner_extent();
        parallel_for(execution.threads, kept.rows() * pieces, row_grain(std::min(width, block_size) * length),
                     [=, this](std::ptrdiff_t begin, std::ptrdiff_t end) {
                         for (std::ptrdiff_t piece = begin; piece < end; ++piece) {
                             const std::ptrdiff_t row = piece / pieces, j = piece % pieces * block_size;
                             body(kept.row_offsets(row)[0] + j * step, std::min(block_size, width - j), step,
                                  row * width + j);
                         }
                     });
    }
    /// The offset of factor i of a product, from the product's first factor.
    [[nodiscard]] std::ptrdiff_t offset(std::ptrdiff_t i) const noexcept {
        const std::ptrdiff_t inner = multiplied.inner_extent();
        return multiplied.row_offsets(i / inner)[0] + i % inner * multiplied.inner_steps()[0];
    }
    [[nodiscard]] std::ptrdiff_t length() const noexcept { return multiplied.rows() * multiplied.inner_extent(); }
};

/// y = alpha * the product of x along the axes where kept_shape has 1 and x_shape has not; alpha if there are none.
///   x of x_shape   y of kept_shape
/// Test: tests/kernels/product_along_test.cpp
template <class T>
void product_forward(const Execution& execution, const T* x, const Shape& x_shape, T* y, const Shape& kept_shape,
                     Accum<T> alpha) {
    using A = Accum<T>;
    const ProductAxes axes(x_shape, kept_shape);
    const std::ptrdiff_t n = axes.length();
    axes.for_pieces(execution,
                    [=, &axes](std::ptrdiff_t first, std::ptrdiff_t count, std::ptrdiff_t step, std::ptrdiff_t place) {
                        Block<A> product;
                        product.fill(A(1));
                        for (std::ptrdiff_t i = 0; i < n; ++i) {
                            const T* const in = x + first + axes.offset(i);
                            for (std::ptrdiff_t l = 0; l < count; ++l)
                                product[static_cast<std::size_t>(l)] *= widen(in[l * step]);
                        }
                        for (std::ptrdiff_t l = 0; l < count; ++l)
                            y[place + l] = narrow<T>(alpha * product[static_cast<std::size_t>(l)]);
                    });
}

/// dx_i = beta dy * the product of all x_j of the same y but x_i.
///   x, dx of x_shape   dy of kept_shape   before: scratch of x's size, for the products of earlier factors
template <class T>
void product_backward(const Execution& execution, const T* x, const T* dy, T* dx, Accum<T>* before,
                      const Shape& x_shape, const Shape& kept_shape, Accum<T> beta) {
    using A = Accum<T>;
    const ProductAxes axes(x_shape, kept_shape);
    const std::ptrdiff_t n = axes.length();
    axes.for_pieces(execution,
                    [=, &axes](std::ptrdiff_t first, std::ptrdiff_t count, std::ptrdiff_t step, std::ptrdiff_t place) {
                        Block<A> product;
                        product.fill(A(1));
                        for (std::ptrdiff_t i = 0; i < n; ++i) {
                            const std::ptrdiff_t at = first + axes.offset(i);
                            for (std::ptrdiff_t l = 0; l < count; ++l) {
                                A& running = product[static_cast<std::size_t>(l)];
                                before[at + l * step] = running;
                                running *= widen(x[at + l * step]);
                            }
                        }
                        product.fill(A(1));
                        for (std::ptrdiff_t i = n; i-- > 0;) {
                            const std::ptrdiff_t at = first + axes.offset(i);
                            for (std::ptrdiff_t l = 0; l < count; ++l) {
                                A& after = product[static_cast<std::size_t>(l)];
                                const A others = before[at + l * step] * after;
                                after *= widen(x[at + l * step]);
                                dx[at + l * step] = narrow<T>(beta * widen(dy[place + l]) * others);
                            }
                        }
                    });
}

}  // namespace unitscale::kernels
