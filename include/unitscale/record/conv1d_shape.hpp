// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/kernels/conv1d.hpp>
#include <unitscale/scaling/constraint.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <cstddef>
#include <optional>

namespace unitscale::ops {

struct Conv1dOptions {
    std::size_t stride = 1, dilation = 1, groups = 1;
    std::size_t padding_left = 0, padding_right = 0;  ///< zeros beside x
    bool causal = false;                     ///< pads (k-1) dilation zeros on the left: y[l] sees x up to l stride
    std::optional<Constraint> constraint{};  ///< joins {alpha, beta_x}; empty: the recipe's rule
};

/// The sizes of a convolution. Errors: as `conv1d`. Test: tests/record/conv1d_shape_test.cpp
[[nodiscard]] inline kernels::Conv1dShape conv1d_shape(const Shape& x, const Shape& weight,
                                                       const Conv1dOptions& options) {
    check(x.size() == 3, "conv1d: x ", to_string(x), " is not [B,C,L]");
    check(weight.size() == 3, "conv1d: weight ", to_string(weight), " is not [out,in/groups,k]");
    const std::size_t in = x[1], length = x[2], out = weight[0], taps = weight[2], groups = options.groups;
    check(taps >= 1, "conv1d: weight ", to_string(weight), " has no taps");
    check(options.stride >= 1 && options.dilation >= 1, "conv1d: stride is ", options.stride, " and dilation ",
          options.dilation, "; expected at least 1");
    check(groups >= 1 && in % groups == 0 && out % groups == 0, "conv1d: groups is ", groups,
          "; expected a divisor of ", in, " input and ", out, " output channels");
    check(in / groups == weight[1], "conv1d: x ", to_string(x), " and weight ", to_string(weight), " do not fit in ",
          groups, groups == 1 ? " group: " : " groups: ", in / groups, " != ", weight[1]);
    check(!options.causal || (options.padding_left == 0 && options.padding_right == 0), "conv1d: causal with padding ",
          options.padding_left, " and ", options.padding_right, "; expected none, causal pads by itself");
    const std::size_t reach = (taps - 1) * options.dilation + 1,
                      left = options.causal ? reach - 1 : options.padding_left;
    const std::size_t padded = length + left + options.padding_right;
    check(padded >= reach, "conv1d: x ", to_string(x), " with padding is ", padded, " long; the kernel reaches over ",
          reach);
    const auto size = [](std::size_t n) { return static_cast<std::ptrdiff_t>(n); };
    return {.batch = size(x[0]),
            .in_channels = size(in),
            .length = size(length),
            .out_channels = size(out),
            .out_length = size((padded - reach) / options.stride + 1),
            .taps = size(taps),
            .stride = size(options.stride),
            .dilation = size(options.dilation),
            .left = size(left),
            .groups = size(groups)};
}

}  // namespace unitscale::ops
