// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/trigonometry.hpp>
#include <unitscale/kernels/vector_math.hpp>

#include <cmath>
#include <numbers>

// Element-wise functions as values, with `value(v)` and the derivative `slope(v)`, both in Accum<T>, and the two loops
// that apply one. Arguments outside a function's domain follow IEEE arithmetic: log(0) is -infinity, sqrt(-1) is NaN.
// In float all but powers are vectorised. In double exponentials and logarithms call the standard library.
namespace unitscale::kernels {

/// A function that is written with the square root r of its argument: `value(v, r)`, `slope(v, r)`.
template <class F>
concept FunctionOfRoot = requires(F f) { f.value(0.0f, 0.0f); };

/// y[i] = f(r, x[i], more[i]...), r = x[i]^1/2, in Accum<T>, rounded once.   x, more, y [n]; y may be an input.
template <class T, class F, class... More>
void map_with_roots(const Execution& execution, std::ptrdiff_t n, T* y, F f, const T* x, const More*... more) {
    using A = Accum<T>;
    parallel_for(execution.threads, n, work_threshold, [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
        Block<A> value, root;
        std::tuple<Block<Accum<More>>...> others;
        for (std::ptrdiff_t i = begin; i < end; i += block_size) {
            const std::ptrdiff_t count = std::min(block_size, end - i);
            load_block(x + i, count, value);
            square_roots(value, count, root);
            std::apply(
                [&](auto&... other) {
                    (load_block(more + i, count, other), ...);
                    for_lanes(count, [&](std::size_t l) { value[l] = f(root[l], value[l], other[l]...); });
                },
                others);
            store_block(value, count, y + i);
        }
    });
}

/// y = alpha f(x).   x, y [n]; y may be x. Half and BFloat16 compute in float and round once.
/// Test: tests/kernels/pointwise_test.cpp
template <class T, class F>
void pointwise_forward(const Execution& execution, const T* x, T* y, std::ptrdiff_t n, F f, Accum<T> alpha) {
    using A = Accum<T>;
    if constexpr (FunctionOfRoot<F>)
        map_with_roots(
            execution, n, y, [=](A r, A v) { return alpha * f.value(v, r); }, x);
    else
        map_elements(
            execution, n, y, [=](A v) { return alpha * f.value(v); }, x);
}

/// dx = beta dy f'(x).   x, dy, dx [n]; dx may be dy or x.
template <class T, class F>
void pointwise_backward(const Execution& execution, const T* x, const T* dy, T* dx, std::ptrdiff_t n, F f,
                        Accum<T> beta) {
    using A = Accum<T>;
    if constexpr (FunctionOfRoot<F>)
        map_with_roots(
            execution, n, dx, [=](A r, A v, A g) { return beta * g * f.slope(v, r); }, x, dy);
    else
        map_elements(
            execution, n, dx, [=](A v, A g) { return beta * g * f.slope(v); }, x, dy);
}

/// tanh(x). For |x| < 0.625 it is a convergent of the continued fraction x/(1 + x^2/(3 + x^2/(5 + ...))), exact to
/// 1e-12 there. The convergent keeps the relative accuracy near 0. Otherwise it is (1 - e) / (1 + e), e = exp(-2|x|).
[[nodiscard, gnu::always_inline]] inline float hyperbolic_tangent(float x) noexcept {
    const std::uint32_t sign = std::bit_cast<std::uint32_t>(x) & 0x80000000u,
                        bits = std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFFu;
    const float t = std::bit_cast<float>(bits);
    const float u = std::bit_cast<float>(std::min(bits, std::bit_cast<std::uint32_t>(0.625f))), z = u * u;
    const float numerator = multiply_add(multiply_add(21.0f, z, 1260.0f), z, 10395.0f);
    const float denominator = multiply_add(multiply_add(multiply_add(u, u, 210.0f), z, 4725.0f), z, 10395.0f);
    const float inner = u * numerator / denominator;
    const float e = exponential(-2.0f * t);
    const float magnitude = select(t < 0.625f, inner, (1.0f - e) / (1.0f + e));
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) | sign);
}
[[nodiscard]] inline double hyperbolic_tangent(double x) noexcept { return std::tanh(x); }

struct TanhFunction {
    [[nodiscard]] auto value(auto v) const noexcept { return hyperbolic_tangent(v); }
    /// 1 - tanh^2 = 4 e / (1 + e)^2, e = exp(-2|x|), computed without cancellation.
    template <class A>
    [[nodiscard]] A slope(A v) const noexcept {
        const A e = exponential(A(-2) * std::abs(v));
        return A(4) * e / ((A(1) + e) * (A(1) + e));
    }
};

/// 1 / (1 + exp(-x)).
struct SigmoidFunction {
    [[nodiscard]] auto value(auto v) const noexcept { return logistic(v); }
    /// sigmoid(x) sigmoid(-x): without the cancellation of 1 - sigmoid(x).
    [[nodiscard]] auto slope(auto v) const noexcept { return logistic(v) * logistic(-v); }
};

/// erf(x), with the slope 2 pi^-1/2 exp(-x^2).
struct ErfFunction {
    [[nodiscard]] auto value(auto v) const noexcept { return error_function(v); }
    template <class A>
    [[nodiscard]] A slope(A v) const noexcept {
        return A(2) * std::numbers::inv_sqrtpi_v<A> * exponential(-(v * v));
    }
};

struct SinFunction {
    [[nodiscard]] auto value(auto v) const noexcept { return sine(v); }
    [[nodiscard]] auto slope(auto v) const noexcept { return cosine(v); }
};

struct CosFunction {
    [[nodiscard]] auto value(auto v) const noexcept { return cosine(v); }
    [[nodiscard]] auto slope(auto v) const noexcept { return -sine(v); }
};

struct ExpFunction {
    [[nodiscard]] auto value(auto v) const noexcept { return exponential(v); }
    [[nodiscard]] auto slope(auto v) const noexcept { return exponential(v); }
};

/// The natural logarithm.
struct LogFunction {
    [[nodiscard]] auto value(auto v) const noexcept { return logarithm(v); }
    [[nodiscard]] auto slope(auto v) const noexcept { return 1 / v; }
};

struct SqrtFunction {
    [[nodiscard]] auto value(auto, auto root) const noexcept { return root; }
    template <class A>
    [[nodiscard]] A slope(A, A root) const noexcept {
        return A(0.5) / root;
    }
};

/// x^-1/2.
struct RsqrtFunction {
    template <class A>
    [[nodiscard]] A value(A, A root) const noexcept {
        return A(1) / root;
    }
    template <class A>
    [[nodiscard]] A slope(A v, A root) const noexcept {
        return A(-0.5) / (v * root);
    }
};

/// -1, 0 or 1; 0 for NaN.
template <class A>
[[nodiscard]] A sign_or_zero(A v) noexcept {
    return static_cast<A>(static_cast<int>(v > A(0)) - static_cast<int>(v < A(0)));
}

/// -1, 0 or 1, with slope 0 everywhere; NaN stays NaN.
struct SignFunction {
    [[nodiscard]] auto value(auto v) const noexcept { return std::isnan(v) ? v : sign_or_zero(v); }
    [[nodiscard]] auto slope(auto v) const noexcept { return decltype(v)(0); }
};

/// |x|, with slope 0 at 0.
struct AbsFunction {
    [[nodiscard]] auto value(auto v) const noexcept { return std::abs(v); }
    [[nodiscard]] auto slope(auto v) const noexcept { return sign_or_zero(v); }
};

/// x^2.
struct SquareFunction {
    [[nodiscard]] auto value(auto v) const noexcept { return v * v; }
    [[nodiscard]] auto slope(auto v) const noexcept { return v + v; }
};

/// x^p for a constant p other than 0.
template <class P>
struct PowFunction {
    P exponent;
    template <class A>
    [[nodiscard]] A value(A v) const noexcept {
        return std::pow(v, static_cast<A>(exponent));
    }
    template <class A>
    [[nodiscard]] A slope(A v) const noexcept {
        return static_cast<A>(exponent) * std::pow(v, static_cast<A>(exponent - P(1)));
    }
};

/// min(max(x, low), high); NaN stays NaN. The slope is 1 on the closed interval: at a bound, the slope inside counts.
template <class P>
struct ClampFunction {
    P low, high;
    template <class A>
    [[nodiscard]] A value(A v) const noexcept {
        return v < static_cast<A>(low) ? static_cast<A>(low) : v > static_cast<A>(high) ? static_cast<A>(high) : v;
    }
    template <class A>
    [[nodiscard]] A slope(A v) const noexcept {
        return v < static_cast<A>(low) || v > static_cast<A>(high) ? A(0) : A(1);
    }
};

}  // namespace unitscale::kernels
