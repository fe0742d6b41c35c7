// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/ops/add.hpp>
#include <unitscale/ops/constant.hpp>
#include <unitscale/ops/div.hpp>
#include <unitscale/ops/mul.hpp>
#include <unitscale/ops/sub.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <type_traits>
#include <utility>

// x + z, x - z, x * z and x / z: `ops::add`, `ops::sub`, `ops::mul` and `ops::div` with their default options, so with
// broadcasting and with unit-scaled factors. Under `unit`, x + z has unit variance for x and z of unit variance. At
// least one side is a Variable. A tensor or a number on the other side becomes an input of its tape, without gradient.
// -x is x * -1. Under `unit`, x / z has a rule for a number z only, which is part of the model: its factors are 1, as
// for x * z. Any other quotient is an error there: call `ops::div` with stated factors.
// Errors: as the op's. Test: tests/nn/operators_test.cpp
namespace unitscale {

namespace nn {

/// A constant beside x: a tensor as it is, a number as a tensor of one element.
template <class T>
[[nodiscard]] Variable<T> constant_beside(const char* op, const Variable<T>& x, const Tensor<T>& constant) {
    Tape<T>& tape = x.tape(op);
    return tape.input(copy_into(constant, tape.make(constant.shape())));
}
template <class T>
[[nodiscard]] Variable<T> constant_beside(const char* op, const Variable<T>& x, double constant) {
    return ops::constant(x.tape(op), constant);
}

}  // namespace nn

/// A constant operand of an operator: a tensor or a number.
template <class C, class T>
concept ConstantOperand = std::is_same_v<C, Tensor<T>> || std::is_arithmetic_v<C>;

template <class T>
[[nodiscard]] Variable<T> operator+(Variable<T> x, Variable<T> z) {
    return ops::add(std::move(x), std::move(z));
}
template <class T, ConstantOperand<T> C>
[[nodiscard]] Variable<T> operator+(Variable<T> x, const C& constant) {
    return ops::add(x, nn::constant_beside("add", x, constant));
}
template <class T, ConstantOperand<T> C>
[[nodiscard]] Variable<T> operator+(const C& constant, Variable<T> z) {
    return ops::add(nn::constant_beside("add", z, constant), z);
}

template <class T>
[[nodiscard]] Variable<T> operator-(Variable<T> x, Variable<T> z) {
    return ops::sub(std::move(x), std::move(z));
}
template <class T, ConstantOperand<T> C>
[[nodiscard]] Variable<T> operator-(Variable<T> x, const C& constant) {
    return ops::sub(x, nn::constant_beside("sub", x, constant));
}
template <class T, ConstantOperand<T> C>
[[nodiscard]] Variable<T> operator-(const C& constant, Variable<T> z) {
    return ops::sub(nn::constant_beside("sub", z, constant), z);
}

template <class T>
[[nodiscard]] Variable<T> operator*(Variable<T> x, Variable<T> z) {
    return ops::mul(std::move(x), std::move(z));
}
template <class T, ConstantOperand<T> C>
[[nodiscard]] Variable<T> operator*(Variable<T> x, const C& constant) {
    return ops::mul(x, nn::constant_beside("mul", x, constant));
}
template <class T, ConstantOperand<T> C>
[[nodiscard]] Variable<T> operator*(const C& constant, Variable<T> z) {
    return ops::mul(nn::constant_beside("mul", z, constant), z);
}

template <class T>
[[nodiscard]] Variable<T> operator/(Variable<T> x, Variable<T> z) {
    return ops::div(std::move(x), std::move(z));
}
template <class T, ConstantOperand<T> C>
[[nodiscard]] Variable<T> operator/(Variable<T> x, const C& constant) {
    ops::DivOptions options;
    if constexpr (std::is_arithmetic_v<C>) options.unit = ops::Factors<2>{};
    return ops::div(x, nn::constant_beside("div", x, constant), options);
}
template <class T, ConstantOperand<T> C>
[[nodiscard]] Variable<T> operator/(const C& constant, Variable<T> z) {
    return ops::div(nn::constant_beside("div", z, constant), z);
}

template <class T>
[[nodiscard]] Variable<T> operator-(Variable<T> x) {
    return std::move(x) * -1.0;
}

}  // namespace unitscale
