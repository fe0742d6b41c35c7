// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/kernels/layout.hpp>
#include <unitscale/ops/operands.hpp>

#include <cstddef>
#include <initializer_list>
#include <span>

namespace unitscale::ops {

/// Tensors one after the other along an axis: y = [x_0, x_1, ...]; dx_i = its part of dy. alpha = beta = 1.
/// Errors: no inputs; an axis that is not there; extents that differ on another axis. Test: tests/ops/concatenate_test.cpp
template <class T>
[[nodiscard]] Variable<T> concatenate(std::span<const Variable<T>> inputs, std::size_t axis) {
    check(!inputs.empty(), "concatenate: no inputs");
    Tape<T>& tape = inputs[0].tape("concatenate");
    Shape shape = inputs[0].shape();
    check(axis < shape.size(), "concatenate: axis ", axis, " is outside input 0 ", to_string(shape));
    for (std::size_t i = 1; i < inputs.size(); ++i) {
        const Shape& other = inputs[i].shape();
        bool fits = other.size() == shape.size();
        for (std::size_t a = 0; fits && a < shape.size(); ++a) fits = a == axis || other[a] == shape[a];
        check(fits, "concatenate: input ", i, " ", to_string(other), " and input 0 ", to_string(inputs[0].shape()),
              " differ outside axis ", axis);
        shape[axis] += other[axis];
    }
    Tensor<T> output = tape.make(shape);
    std::size_t start = 0;
    for (const Variable<T> input : inputs) {
        const std::size_t extent = input.shape()[axis];
        kernels::concatenate_part<T>(tape.execution(), input.value().data(), extent, output.data(), shape, axis, start);
        start += extent;
    }
    const SmallVector<double> betas(inputs.size(), 1.0);
    return tape.record({"concatenate", tape.next_site("concatenate"), 1.0, std::span<const double>(betas.data(), betas.size())},
                       inputs, std::move(output), [axis, count = inputs.size()](BackwardContext<T>& g) {
                           const Tensor<T>& dy = g.output_gradient();
                           std::size_t begin = 0;
                           for (std::size_t i = 0; i < count; ++i) {
                               const std::size_t extent = g.input(i).shape()[axis];
                               Tensor<T> dx = g.make(g.input(i).shape());
                               kernels::split_part<T>(g.execution(), dy.data(), dy.shape(), axis, begin, dx.data(), extent);
                               g.add(i, std::move(dx));
                               begin += extent;
                           }
                       });
}
template <class T>
[[nodiscard]] Variable<T> concatenate(std::initializer_list<Variable<T>> inputs, std::size_t axis) {
    return concatenate<T>(std::span<const Variable<T>>(inputs.begin(), inputs.size()), axis);
}

}  // namespace unitscale::ops
