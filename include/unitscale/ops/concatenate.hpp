// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/kernels/layout.hpp>
#include <unitscale/record/arguments.hpp>
#include <unitscale/record/same_scale.hpp>

#include <cstddef>
#include <initializer_list>
#include <span>
#include <vector>

namespace unitscale::ops {

/// Tensors one after the other along an axis: y = [x_0, x_1, ...]; dx_i = its part of dy. alpha = beta = 1.
/// Negative axes count from the end.
/// Scale under `propagate`: the largest of the inputs' scales, to which the others' data are brought; gradients keep
/// dy's.
/// Errors: no inputs; an axis that is not there; extents that differ on another axis. Test:
/// tests/ops/concatenate_test.cpp
template <class T>
[[nodiscard]] Variable<T> concatenate(std::span<const Variable<T>> inputs, std::ptrdiff_t axis) {
    check(!inputs.empty(), "concatenate: no inputs");
    Tape<T>& tape = inputs[0].tape("concatenate");
    Shape shape = inputs[0].shape();
    const std::size_t joined = front_axis("concatenate", "input 0", shape, axis);
    for (std::size_t i = 1; i < inputs.size(); ++i) {
        const Shape& other = inputs[i].shape();
        bool fits = other.size() == shape.size();
        for (std::size_t a = 0; fits && a < shape.size(); ++a) fits = a == joined || other[a] == shape[a];
        check(fits, "concatenate: input ", i, " ", to_string(other), " and input 0 ", shape_text(inputs[0].shape()),
              " differ outside axis ", joined);
        shape[joined] += other[joined];
    }
    LargestScale largest;
    for (const Variable<T>& input : inputs) largest.include(input.scaled());
    Tensor<T> output = tape.make(shape);
    const Site site = tape.next_site("concatenate");
    const double scale = largest.carried(tape, site);
    output.set_scale(scale);
    output.set_any_scale(tape.propagates() && largest.any_scale());
    std::size_t start = 0;
    for (const Variable<T>& input : inputs) {
        const std::size_t extent = input.shape()[joined];
        kernels::concatenate_part<T>(tape.execution(), SameScale<T>(tape, &input.scaled(), scale).data(), extent,
                                     output.data(), shape, joined, start);
        start += extent;
    }
    const SmallVector<double> betas(inputs.size(), 1.0);
    return tape.record({.name = "concatenate",
                        .site = site,
                        .alpha = 1.0,
                        .betas = std::span<const double>(betas.data(), betas.size()),
                        .reads = reads_nothing,
                        .propagates = true},
                       inputs, std::move(output), [joined, count = inputs.size()](BackwardContext<T>& g) {
                           const Tensor<T>& dy = g.output_gradient();
                           std::size_t begin = 0;
                           for (std::size_t i = 0; i < count; ++i) {
                               const std::size_t extent = g.input_shape(i)[joined];
                               Tensor<T> dx = g.make(g.input_shape(i));
                               kernels::split_part<T>(g.execution(), dy.data(), dy.shape(), joined, begin, dx.data(),
                                                      extent);
                               g.add(i, std::move(dx), dy.scale());
                               begin += extent;
                           }
                       });
}
template <class T>
[[nodiscard]] Variable<T> concatenate(const std::vector<Variable<T>>& inputs, std::ptrdiff_t axis) {
    return concatenate<T>(std::span<const Variable<T>>(inputs), axis);
}
template <class T>
[[nodiscard]] Variable<T> concatenate(std::initializer_list<Variable<T>> inputs, std::ptrdiff_t axis) {
    return concatenate<T>(std::span<const Variable<T>>(inputs.begin(), inputs.size()), axis);
}

}  // namespace unitscale::ops
