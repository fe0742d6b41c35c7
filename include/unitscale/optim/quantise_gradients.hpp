// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/parameter.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/kernels/amax.hpp>
#include <unitscale/kernels/round.hpp>
#include <unitscale/optim/clip.hpp>
#include <unitscale/scaling/storage.hpp>
#include <unitscale/scaling/tensor_scale.hpp>

#include <cmath>
#include <cstddef>
#include <span>

namespace unitscale::optim {

/// Quantises the gradients of linear layers' weights (role `weight`) to `storage.weight_gradient`, in place:
///   g = 2^-bias round(2^bias g), kept in T          bias from `storage.weight_gradient_scale`
/// Without a format it does nothing.
/// A gradient with an infinite or NaN element stays unchanged, so that a later check still finds the element.
/// Call it before such checks.
/// Stochastic rounding takes the stream of `key` and the parameter's name: give a key that depends on the step.
/// Errors: the errors of kernels::round_elements. Test: tests/optim/quantise_gradients_test.cpp
template <class T>
void quantise_weight_gradients(const Execution& execution, std::span<Parameter<T>* const> parameters,
                               const Storage& storage, RandomKey key = {}) {
    if (!storage.weight_gradient) return;
    for (Parameter<T>* parameter : parameters) parameter->mark(GradientStep::round);
    const ScaleRule& rule = storage.weight_gradient_scale;
    for (Parameter<T>* parameter : parameters) {
        if (!is_updated(*parameter) || parameter->facts().role != ParameterRole::weight) continue;
        T* const data = parameter->gradient().data();
        const auto size = static_cast<std::ptrdiff_t>(parameter->size());
        const float largest = kernels::amax(execution, data, size);
        if (!std::isfinite(largest)) continue;
        Quantiser quantiser = *storage.weight_gradient;
        const int bias = rule.source == ScaleSource::amax       ? amax_bias(quantiser.format, largest, rule.margin)
                         : rule.source == ScaleSource::constant ? rule.bias
                                                                : 0;
        if (bias != 0) quantiser.format = shifted(quantiser.format, bias);
        kernels::round_elements(execution, "quantise_weight_gradients", quantiser,
                                RandomKey{key.seed, mix(key.stream, hash_name(parameter->name()))}, data, data, size);
    }
}

}  // namespace unitscale::optim
