// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/scaling/power_of_two.hpp>
#include <unitscale/tensor/cast.hpp>
#include <unitscale/tensor/fill.hpp>

#include <cmath>
#include <utility>

namespace unitscale::ops {

/// A number on the tape, without gradient.
///   y = c     y [shape]; [1] unless given
/// Factors under `unit`: none, since c is part of the model.
/// Scale under `propagate`: the largest power of two at or below |c|, kept within [2^-126, 2^127]. So c may be a number
/// that T does not hold. 0, infinity and NaN have any scale (`Tensor::any_scale`). An op that chooses or adds then
/// takes the other input's scale.
/// Test: tests/ops/constant_test.cpp
template <class T>
[[nodiscard]] Variable<T> constant(Tape<T>& tape, double c, const Shape& shape = {1}) {
    Tensor<T> tensor = tape.make(shape);
    if (!tape.propagates() || is_scale_free(c)) {
        fill_constant(tensor, element_cast<T>(c));
        return tape.input(std::move(tensor));
    }
    const Scaled split = with_scale(c, pow2_down(std::abs(c)));
    fill_constant(tensor, element_cast<T>(split.factor));
    tensor.set_scale(split.scale);
    return tape.input(std::move(tensor));
}

}  // namespace unitscale::ops
