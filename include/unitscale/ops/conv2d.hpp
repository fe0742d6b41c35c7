// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/ops/concatenate.hpp>
#include <unitscale/ops/linear.hpp>
#include <unitscale/ops/reshape.hpp>
#include <unitscale/ops/split.hpp>
#include <unitscale/ops/transpose.hpp>
#include <unitscale/ops/unfold.hpp>

#include <cstddef>
#include <optional>
#include <vector>

namespace unitscale::ops {

struct Conv2dOptions {
    WindowPair stride{1, 1}, padding{0, 0}, dilation{1, 1};  ///< {height, width}
    std::size_t groups = 1;
    std::optional<Constraint> constraint{};  ///< joins {alpha, beta_x}; empty: the recipe's rule
};

/// Unit-scaled convolution of images.
///   y[b,o,i,j] = alpha (sum over c, u, v of weight[o,c,u,v] x[b, c, i stride - padding + u dilation, ...] + bias[o])
///   x [B,in,H,W]   weight [out,in/groups,kh,kw]   bias [out]   y [B,out,H',W']
///   H' = (H + 2 padding - (kh-1) dilation - 1) / stride + 1, W' likewise; padding is 0
/// Made of `unfold`, `linear` and `transpose`, for each of the groups: the formats of the recipe's kind `linear` hold,
/// with blocks along the taps of all channels.
/// Factors under `unit`, entries independent unit normals: an output sums kh kw in/groups products, hence
/// alpha = (kh kw in/groups)^-1/2, the factor of `linear`. beta_x is (out/groups)^-1/2 by `linear`, times
/// (kh kw / stride^2)^-1/2 by `unfold` for the windows that hold a pixel. The constraint joins the factors of each of
/// the two ops: with the default rule beta_x is (kh kw in/groups)^-1/2. A weight meets the B H' W' positions of the
/// whole step.
/// Errors: sizes and groups that do not fit; a kernel, stride or dilation of 0; padded images smaller than the kernel.
/// Reference: Blake, Orr, Luschi 2023, arXiv:2303.11257, table A.2. Test: tests/ops/conv2d_test.cpp
template <class T>
[[nodiscard]] Variable<T> conv2d(Variable<T> x, Variable<T> weight, OptionalVariable<T> bias = {},
                                 const Conv2dOptions& options = {}) {
    const Shape images = x.shape(), kernel = weight.shape();
    const std::size_t groups = options.groups;
    check(images.size() == 4, "conv2d: x ", to_string(images), " is not [B,C,H,W]");
    check(kernel.size() == 4, "conv2d: weight ", to_string(kernel), " is not [out,in/groups,kh,kw]");
    check(groups >= 1 && images[1] % groups == 0 && kernel[0] % groups == 0, "conv2d: groups is ", groups,
          "; expected a divisor of ", images[1], " input and ", kernel[0], " output channels");
    check(images[1] / groups == kernel[1], "conv2d: x ", to_string(images), " and weight ", to_string(kernel),
          " do not fit in ", groups, groups == 1 ? " group: " : " groups: ", images[1] / groups, " != ", kernel[1]);
    if (bias)
        check(bias->shape() == Shape{kernel[0]}, "conv2d: bias ", shape_text(bias->shape()), " does not fit weight ",
              shape_text(kernel), "; expected [", kernel[0], "]");
    const WindowOptions window{.stride = options.stride,
                               .padding = options.padding,
                               .dilation = options.dilation,
                               .constraint = options.constraint};
    const kernels::Windows sizes = windows_of("conv2d", images, {kernel[2], kernel[3]}, window);
    const Variable<T> rows = reshape(weight, {kernel[0], kernel[1] * kernel[2] * kernel[3]});
    // A group reads a part of the weight. The part is no cut-edge, so the plan would join its factor with alpha.
    const auto constraint = groups > 1 ? joined_at_once(x.tape("conv2d"), options.constraint) : options.constraint;
    const auto convolve = [&](const Variable<T>& part, const Variable<T>& weights, OptionalVariable<T> shift) {
        return linear(unfold(part, {kernel[2], kernel[3]}, window), weights, std::move(shift),
                      {.constraint = constraint});
    };
    Variable<T> y;
    if (groups == 1) {
        y = convolve(x, rows, std::move(bias));
    } else {
        const std::vector<Variable<T>> inputs = split(x, groups, 1), weights = split(rows, groups, 0),
                                       shifts = bias ? split(*bias, groups, 0) : std::vector<Variable<T>>{};
        std::vector<Variable<T>> parts;
        for (std::size_t g = 0; g < groups; ++g)
            parts.push_back(convolve(inputs[g], weights[g], bias ? OptionalVariable<T>(shifts[g]) : std::nullopt));
        y = ops::concatenate(parts, -1);
    }
    return reshape(transpose(y, {0, 2, 1}), {images[0], kernel[0], static_cast<std::size_t>(sizes.count[0]),
                                             static_cast<std::size_t>(sizes.count[1])});
}
template <class T>
[[nodiscard]] Variable<T> conv2d(Variable<T> x, Variable<T> weight, const Conv2dOptions& options) {
    return conv2d(std::move(x), std::move(weight), std::optional<Variable<T>>{}, options);
}

}  // namespace unitscale::ops
