// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/layout.hpp>
#include <unitscale/kernels/rescale.hpp>
#include <unitscale/record/arguments.hpp>
#include <unitscale/record/op.hpp>
#include <unitscale/record/same_scale.hpp>

#include <cstddef>
#include <vector>

namespace unitscale::ops {

/// Equal parts of a tensor along an axis: [y_0, y_1, ...] = x; dx = [dy_0, dy_1, ...]. alpha = beta = 1.
/// The opposite of `concatenate`. Negative axes count from the end.
/// One op for all parts: the backward pass writes dx once, where a `slice` for each part would write it as often.
/// Scale under `propagate`: s_x; dx has the largest of the gradients' scales.
/// Errors: no parts; an axis that is not there; an extent that the parts do not divide. Test: tests/ops/split_test.cpp
template <class T>
[[nodiscard]] std::vector<Variable<T>> split(Variable<T> x, std::size_t parts, std::ptrdiff_t axis) {
    auto op = begin_op("split", x);
    const Tensor<T>& input = op.input(0);
    const std::size_t cut = front_axis("split", "x", input.shape(), axis), extent = input.shape()[cut];
    check(parts >= 1, "split: 0 parts; expected at least 1");
    check(extent % parts == 0, "split: axis ", cut, " of x ", shape_text(input.shape()), " is not divisible by ", parts,
          " parts");
    const std::size_t width = extent / parts;
    Shape shape = input.shape();
    shape[cut] = width;
    std::vector<Tensor<T>> outputs;
    for (std::size_t i = 0; i < parts; ++i) {
        outputs.push_back(op.make(shape));
        kernels::split_part<T>(op.execution(), input.data(), input.shape(), cut, i * width, outputs.back().data(),
                               width);
        outputs.back().set_scale(input.scale());
    }
    const Recording recording{.reads = reads_nothing, .any_scale = input.any_scale()};
    return op.record_outputs(outputs, recording, [=](BackwardContext<T>& g) {
        LargestScale largest;
        for (std::size_t i = 0; i < parts; ++i) largest.include(g.output_gradient(i));
        Tensor<T> dx = g.make(g.input_shape(0)), same;
        for (std::size_t i = 0; i < parts; ++i) {
            const Tensor<T>& dy = g.output_gradient(i);
            const T* data = dy.data();
            if (dy.scale() != largest.value()) {
                same = g.make(dy.shape());
                kernels::rescale<T>(g.execution(), dy.data(), same.data(), static_cast<std::ptrdiff_t>(dy.size()),
                                    dy.scale(), largest.value());
                data = same.data();
            }
            kernels::concatenate_part<T>(g.execution(), data, width, dx.data(), dx.shape(), cut, i * width);
        }
        dx.set_any_scale(largest.any_scale());
        g.add(0, std::move(dx), largest.value());
    });
}

}  // namespace unitscale::ops
