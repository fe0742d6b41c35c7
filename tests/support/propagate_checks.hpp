// SPDX-License-Identifier: MIT
#pragma once

#include "support/op_checks.hpp"

#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

namespace unitscale::test {

/// The scales that an op gives to its value and to each gradient under `propagate`, in this order.
/// The inputs are positive data of the given shapes and scales; the output gradient has the scale `dy`.
template <class F>
[[nodiscard]] std::vector<double> propagated_scales(const std::vector<Shape>& shapes, const std::vector<double>& scales,
                                                    F f, double dy = 1.0,
                                                    ScaleRounding rounding = ScaleRounding::down) {
    Recipe recipe = analysis::plain_recipe(Scaling::propagate);
    recipe.propagate.rounding = rounding;
    ScalingState state(1);
    Tape<double> tape(recipe, state);
    tape.begin_step({.retain = true});
    std::vector<Variable<double>> variables;
    std::vector<Tensor<double>> inputs = positive_inputs(shapes);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
        inputs[i].set_scale(scales[i]);
        variables.push_back(tape.input(std::move(inputs[i]), true));
    }
    const auto y = f(tape, variables);
    std::vector<double> found{y.scaled().scale()};
    tape.backward(analysis::project(y, normal<double>(y.shape(), {1, 2}), dy));
    for (const auto& variable : variables) found.push_back(variable.gradient().scale());
    return found;
}

/// A tensor with the flag any_scale: zeros of the given shape, with the scale 2^-40.
template <class T>
[[nodiscard]] Variable<T> zeros_of_any_scale(Tape<T>& tape, const Shape& shape) {
    Tensor<T> zeros = full<T>(shape, T(0));
    zeros.set_any_scale(true);
    zeros.set_scale(0x1p-40);
    return tape.input(std::move(zeros));
}

/// Unit-normal data with a scale.
template <class T>
[[nodiscard]] Variable<T> scaled_input(Tape<T>& tape, const Shape& shape, double scale) {
    Tensor<T> x = normal<T>(shape, {1, 7});
    x.set_scale(scale);
    return tape.input(std::move(x), true);
}

}  // namespace unitscale::test
