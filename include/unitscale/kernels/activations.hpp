// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/vector_math.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numbers>
#include <type_traits>

// Activations, element-wise over n elements. m multiplies the argument of the gate, alpha the result, beta the
// gradient. y may be x, dx may be dy. Half and BFloat16 compute in float and round once.
namespace unitscale::kernels {

/// m v, the argument of a gate, held in [-2^100, 2^100]. Where m v overflows, the gate is 0 or 1, and the product of
/// argument and slope has the limit 0. For m <= 1 no finite v overflows, and infinity stays. NaN stays. In float
/// without a branch.
template <class A>
class GateArgument {
public:
    explicit GateArgument(A m) noexcept : m_(m), limit_(m > A(1) ? A(0x1p100) : std::numeric_limits<A>::infinity()) {}
    [[nodiscard, gnu::always_inline]] A operator()(A v) const noexcept {
        const A z = m_ * v;
        if constexpr (std::is_same_v<A, float>) {
            const std::uint32_t bits = std::bit_cast<std::uint32_t>(z), magnitude = bits & 0x7FFFFFFFu;
            const std::uint32_t held =
                magnitude > 0x7F800000u ? magnitude : std::min(magnitude, std::bit_cast<std::uint32_t>(limit_));
            return std::bit_cast<float>(held | (bits & 0x80000000u));
        } else {
            return std::max(std::min(z, limit_), -limit_);
        }
    }

private:
    A m_, limit_;
};

/// gelu(z) = z Phi(z):  y = alpha gelu(m x) / m = alpha x Phi(m x).   x, y [n]
/// The second form also holds for m = 0. float: relative error under 7e-7 for |m x| <= 13.
/// Test: tests/kernels/activations_test.cpp
template <class T>
void gelu_forward(const Execution& execution, const T* x, T* y, std::ptrdiff_t n, Accum<T> m, Accum<T> alpha) {
    map_elements(
        execution, n, y, [=](Accum<T> v) { return alpha * v * normal_values(m * v).cdf; }, x);
}

/// dx = beta dy (Phi(m x) + m x phi(m x)).   x, dy, dx [n]
template <class T>
void gelu_backward(const Execution& execution, const T* x, const T* dy, T* dx, std::ptrdiff_t n, Accum<T> m,
                   Accum<T> beta) {
    const GateArgument<Accum<T>> argument(m);
    map_elements(
        execution, n, dx,
        [=](Accum<T> v, Accum<T> g) {
            const Accum<T> z = argument(v);
            const auto normal = normal_values(z);
            return beta * g * multiply_add(z, normal.density, normal.cdf);
        },
        x, dy);
}

/// z held between -20 and 20; in float without a branch. NaN becomes 20: the factor z of gelu keeps the NaN.
[[nodiscard]] inline float held_within_20(float z) noexcept {
    const std::uint32_t bits = std::bit_cast<std::uint32_t>(z);
    return std::bit_cast<float>(std::min(bits & 0x7FFFFFFFu, std::bit_cast<std::uint32_t>(20.0f)) |
                                (bits & 0x80000000u));
}
[[nodiscard]] inline double held_within_20(double z) noexcept { return std::min(std::max(z, -20.0), 20.0); }

/// The tanh form of gelu:  gelu(z) = z (1 + tanh(c (z + 0.044715 z^3))) / 2 = z sigmoid(u), u = 2 c (z + 0.044715 z^3),
/// c = sqrt(2 / pi).   `gate`: sigmoid(u); `slope`: du/dz. Beyond |z| = 20 the gate is 0 or 1, and the slope stays
/// finite.
template <class A>
struct TanhGate {
    A gate, slope;
};
template <class A>
[[nodiscard, gnu::always_inline]] inline TanhGate<A> tanh_gate(A z) noexcept {
    const A c = static_cast<A>(2.0 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi), cubic = static_cast<A>(0.044715);
    const A v = held_within_20(z);
    return {logistic(c * v * multiply_add(cubic * v, v, A(1))), c * multiply_add(A(3) * cubic * v, v, A(1))};
}

/// y = alpha gelu(m x) / m in the tanh form.   x, y [n]
template <class T>
void gelu_tanh_forward(const Execution& execution, const T* x, T* y, std::ptrdiff_t n, Accum<T> m, Accum<T> alpha) {
    map_elements(
        execution, n, y, [=](Accum<T> v) { return alpha * v * tanh_gate(m * v).gate; }, x);
}

/// dx = beta dy s (1 + m x (1 - s) u'(m x)), s = sigmoid(u(m x)).   x, dy, dx [n]
template <class T>
void gelu_tanh_backward(const Execution& execution, const T* x, const T* dy, T* dx, std::ptrdiff_t n, Accum<T> m,
                        Accum<T> beta) {
    using A = Accum<T>;
    const GateArgument<Accum<T>> argument(m);
    map_elements(
        execution, n, dx,
        [=](A v, A g) {
            const A z = argument(v);
            const auto [s, slope] = tanh_gate(z);
            return beta * g * s * multiply_add(z * (A(1) - s), slope, A(1));
        },
        x, dy);
}

/// y = alpha x sigmoid(m x).   x, y [n]
template <class T>
void silu_forward(const Execution& execution, const T* x, T* y, std::ptrdiff_t n, Accum<T> m, Accum<T> alpha) {
    map_elements(
        execution, n, y, [=](Accum<T> v) { return alpha * v * logistic(m * v); }, x);
}

/// dx = beta dy s (1 + m x (1 - s)), s = sigmoid(m x).   x, dy, dx [n]
template <class T>
void silu_backward(const Execution& execution, const T* x, const T* dy, T* dx, std::ptrdiff_t n, Accum<T> m,
                   Accum<T> beta) {
    using A = Accum<T>;
    const GateArgument<Accum<T>> argument(m);
    map_elements(
        execution, n, dx,
        [=](A v, A g) {
            const A z = argument(v);
            const A s = logistic(z);
            return beta * g * s * multiply_add(z, A(1) - s, A(1));
        },
        x, dy);
}

/// y = alpha max(x, 0).   x, y [n]
template <class T>
void relu_forward(const Execution& execution, const T* x, T* y, std::ptrdiff_t n, Accum<T> alpha) {
    using A = Accum<T>;
    map_elements(
        execution, n, y, [=](A v) { return v < A(0) ? A(0) : alpha * v; }, x);
}

/// dx = beta dy where x > 0, else 0.   x, dy, dx [n]
template <class T>
void relu_backward(const Execution& execution, const T* x, const T* dy, T* dx, std::ptrdiff_t n, Accum<T> beta) {
    using A = Accum<T>;
    map_elements(
        execution, n, dx, [=](A v, A g) { return v > A(0) ? beta * g : A(0); }, x, dy);
}

/// Gated silu (SwiGLU):  y = alpha x g sigmoid(m g).   x, g, y [n]
template <class T>
void gated_silu_forward(const Execution& execution, const T* x, const T* g, T* y, std::ptrdiff_t n, Accum<T> m,
                        Accum<T> alpha) {
    map_elements(
        execution, n, y, [=](Accum<T> v, Accum<T> gate) { return alpha * v * gate * logistic(m * gate); }, x, g);
}

/// With s = sigmoid(m g):  dx = beta dy g s,  dg = beta dy x s (1 + m g (1 - s)).   x, g, dy, dx, dg [n]
/// dx and dg must not overlap the inputs.
template <class T>
void gated_silu_backward(const Execution& execution, const T* x, const T* g, const T* dy, T* dx, T* dg,
                         std::ptrdiff_t n, Accum<T> m, Accum<T> beta) {
    using A = Accum<T>;
    const GateArgument<Accum<T>> argument(m);
    parallel_for(execution.threads, n, work_threshold, [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
        Block<A> value, gate, gradient, to_x, to_g;
        for (std::ptrdiff_t i = begin; i < end; i += block_size) {
            const std::ptrdiff_t count = std::min(block_size, end - i);
            load_block(x + i, count, value);
            load_block(g + i, count, gate);
            load_block(dy + i, count, gradient);
            for (std::size_t l = 0; l < value.size(); ++l) {
                const A z = argument(gate[l]);
                const A s = logistic(z);
                const A scaled = beta * gradient[l] * s;
                to_x[l] = scaled * gate[l];
                to_g[l] = scaled * value[l] * multiply_add(z, A(1) - s, A(1));
            }
            store_block(to_x, count, dx + i);
            store_block(to_g, count, dg + i);
        }
    });
}

}  // namespace unitscale::kernels
