// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/kernels/broadcast.hpp>

#include <cmath>
#include <concepts>
#include <cstdint>
#include <type_traits>

// Comparisons, element by element: 1 where they hold, else 0, in the form that `select` takes as its condition.
//   select(greater(x, 0.0), x, 0.0)
// Integers have neither gradient nor scale, and nothing is recorded.
namespace unitscale::ops {

/// The right side of a comparison: a Variable, a Tensor or a number.
template <class Z, class T>
concept Comparand = std::same_as<Z, Variable<T>> || std::same_as<Z, Tensor<T>> || std::is_arithmetic_v<Z>;

/// y = f(s a, t b) for x of data a and scale s, z of data b and scale t.   x, z broadcast to y
/// Values are compared in double. Every product of data and a scale is exact there, if the scale is a power of two. The
/// exception is data of type double: its product may leave double's range, so equal scales are left out there.
/// A number is compared as it is, not rounded to T.
/// Errors: shapes that do not broadcast. Test: tests/ops/compare_test.cpp
template <class T, Comparand<T> Z, class F>
[[nodiscard]] Tensor<std::uint8_t> compare(const char* name, const Variable<T>& variable, const Z& other, F f) {
    using A = Accum<T>;
    using kernels::BroadcastInput;
    Tape<T>& tape = variable.tape(name);
    const Tensor<T>& x = variable.scaled();
    if constexpr (std::is_arithmetic_v<Z>) {
        Tensor<std::uint8_t> y(x.shape(), tape.pool());
        kernels::broadcast_map(
            tape.execution(), x.shape(), y.data(),
            [f, s = x.scale(), number = static_cast<double>(other)](A u) {
                return f(s * static_cast<double>(u), number) ? 1.0f : 0.0f;
            },
            BroadcastInput{x.data(), x.shape()});
        return y;
    } else {
        const Tensor<T>& z = [&]() -> const Tensor<T>& {
            if constexpr (std::same_as<Z, Tensor<T>>) return other;
            else return static_cast<void>(other.tape(name)), other.scaled();
        }();
        const Shape shape = broadcast_shape(name, x.shape(), z.shape());
        Tensor<std::uint8_t> y(shape, tape.pool());
        const bool equal_scales = x.scale() == z.scale();
        kernels::broadcast_map(
            tape.execution(), shape, y.data(),
            [f, s = equal_scales ? 1.0 : x.scale(), t = equal_scales ? 1.0 : z.scale()](A u, A v) {
                return f(s * static_cast<double>(u), t * static_cast<double>(v)) ? 1.0f : 0.0f;
            },
            BroadcastInput{x.data(), x.shape()}, BroadcastInput{z.data(), z.shape()});
        return y;
    }
}

/// x > z, element by element, with broadcasting. A comparison with NaN is false.
/// Factors under `unit`: none. Scales are counted: see `compare`.
template <class T, Comparand<T> Z>
[[nodiscard]] Tensor<std::uint8_t> greater(Variable<T> x, const Z& z) {
    return compare("greater", x, z, [](double u, double v) { return u > v; });
}

/// x >= z, element by element, with broadcasting. A comparison with NaN is false.
/// Factors under `unit`: none. Scales are counted: see `compare`.
template <class T, Comparand<T> Z>
[[nodiscard]] Tensor<std::uint8_t> greater_equal(Variable<T> x, const Z& z) {
    return compare("greater_equal", x, z, [](double u, double v) { return u >= v; });
}

/// x < z, element by element, with broadcasting. A comparison with NaN is false.
/// Factors under `unit`: none. Scales are counted: see `compare`.
template <class T, Comparand<T> Z>
[[nodiscard]] Tensor<std::uint8_t> less(Variable<T> x, const Z& z) {
    return compare("less", x, z, [](double u, double v) { return u < v; });
}

/// x <= z, element by element, with broadcasting. A comparison with NaN is false.
/// Factors under `unit`: none. Scales are counted: see `compare`.
template <class T, Comparand<T> Z>
[[nodiscard]] Tensor<std::uint8_t> less_equal(Variable<T> x, const Z& z) {
    return compare("less_equal", x, z, [](double u, double v) { return u <= v; });
}

/// x = z, element by element, with broadcasting. A comparison with NaN is false.
/// Factors under `unit`: none. Scales are counted: see `compare`.
template <class T, Comparand<T> Z>
[[nodiscard]] Tensor<std::uint8_t> equal(Variable<T> x, const Z& z) {
    return compare("equal", x, z, [](double u, double v) { return u == v; });
}

/// x != z, element by element, with broadcasting. A comparison with NaN is true.
/// Factors under `unit`: none. Scales are counted: see `compare`.
template <class T, Comparand<T> Z>
[[nodiscard]] Tensor<std::uint8_t> not_equal(Variable<T> x, const Z& z) {
    return compare("not_equal", x, z, [](double u, double v) { return u != v; });
}

/// Whether elements are neither infinite nor NaN.
/// Factors under `unit`: none. Scales do not count: an element with finite data is finite, also beyond the range of T.
template <class T>
[[nodiscard]] Tensor<std::uint8_t> is_finite(Variable<T> x) {
    Tape<T>& tape = x.tape("is_finite");
    const Tensor<T>& data = x.scaled();
    Tensor<std::uint8_t> y(data.shape(), tape.pool());
    kernels::broadcast_map(
        tape.execution(), data.shape(), y.data(), [](Accum<T> u) { return std::isfinite(u) ? 1.0f : 0.0f; },
        kernels::BroadcastInput{data.data(), data.shape()});
    return y;
}

}  // namespace unitscale::ops
