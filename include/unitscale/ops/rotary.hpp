// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/rotary.hpp>
#include <unitscale/record/arguments.hpp>
#include <unitscale/record/op.hpp>

#include <cstddef>
#include <vector>

namespace unitscale::ops {

struct RotaryOptions {
    std::size_t heads = 1;
    double base = 10000.0;
    std::size_t first_position = 0;  ///< position of the first row: the number of positions before it
    /// [B]: the same for each batch item by itself, in place of `first_position`; empty: it holds for all.
    std::vector<std::size_t> first_positions{};
};

/// Rotary position embedding.
///   for each head, i < d/2, position p, angle a = p base^(-2 i / d):
///   y_i = x_i cos a - x_{i+d/2} sin a      y_{i+d/2} = x_{i+d/2} cos a + x_i sin a
///   dx: the rotation by -a of dy           x, y [B,T,H d]
/// Factors: a rotation keeps variances, so alpha = beta = 1.
/// Scale under `propagate`: s_x; gradients keep dy's.
/// Errors: rank other than 3, heads that do not divide the last extent, heads of odd size, a base that is not positive,
/// first positions that are not one per batch item.
/// Reference: Su et al. 2021, arXiv:2104.09864. Test: tests/ops/rotary_test.cpp
template <class T>
[[nodiscard]] Variable<T> rotary(Variable<T> x, const RotaryOptions& options) {
    auto op = begin_op("rotary", x);
    const Tensor<T>& input = op.input(0);
    check(input.rank() == 3, "rotary: x ", shape_text(input.shape()), "; expected [B,T,H d]");
    check(options.heads >= 1 && input.dim(2) % options.heads == 0, "rotary: x ", shape_text(input.shape()),
          " is not divisible by ", options.heads, " heads");
    check_positive("rotary", "base", options.base);
    const std::size_t depth = input.dim(2) / options.heads;
    check(depth % 2 == 0, "rotary: heads of size ", depth, "; expected an even size");
    const kernels::RotarySizes sizes{.batch = static_cast<std::ptrdiff_t>(input.dim(0)),
                                     .time = static_cast<std::ptrdiff_t>(input.dim(1)),
                                     .heads = static_cast<std::ptrdiff_t>(options.heads),
                                     .width = static_cast<std::ptrdiff_t>(depth),
                                     .first_position = static_cast<std::ptrdiff_t>(options.first_position),
                                     .base = options.base};
    check(options.first_positions.empty() || options.first_positions.size() == input.dim(0),
          "rotary: ", options.first_positions.size(), " first positions; expected one for each of ", input.dim(0),
          " batch items");
    const std::ptrdiff_t row = sizes.heads * sizes.width;
    const kernels::HeadStrides strides{
        .batch_stride = sizes.time * row, .time_stride = row, .head_stride = sizes.width};
    Tensor<T> output = op.make(input.shape());
    // Runs rotate(offset of the first element, sizes) for the batch items that begin at one position.
    const auto each_part = [=, firsts = options.first_positions](const auto& rotate) {
        if (firsts.empty()) return rotate(std::ptrdiff_t{0}, sizes);
        kernels::RotarySizes own = sizes;
        own.batch = 1;
        for (std::size_t b = 0; b < firsts.size(); ++b) {
            own.first_position = static_cast<std::ptrdiff_t>(firsts[b]);
            rotate(static_cast<std::ptrdiff_t>(b) * strides.batch_stride, own);
        }
    };
    each_part([&](std::ptrdiff_t at, const kernels::RotarySizes& part) {
        kernels::rotary_forward<T>(op.execution(), input.data() + at, strides, output.data() + at, strides, part,
                                   Accum<T>(1));
    });
    return op.record(std::move(output), input.scale(), {.reads = reads_nothing, .any_scale = input.any_scale()},
                     [=](BackwardContext<T>& g) {
                         Tensor<T> dx = g.take_output_gradient();
                         each_part([&](std::ptrdiff_t at, const kernels::RotarySizes& part) {
                             kernels::rotary_backward<T>(g.execution(), dx.data() + at, strides, dx.data() + at,
                                                         strides, part, static_cast<Accum<T>>(g.beta(0)));
                         });
                         g.add(0, std::move(dx));
                     });
}

}  // namespace unitscale::ops
