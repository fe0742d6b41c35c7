// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/parameter.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/formats/quantiser.hpp>
#include <unitscale/kernels/amax.hpp>
#include <unitscale/kernels/coding.hpp>
#include <unitscale/kernels/round.hpp>
#include <unitscale/optim/clip.hpp>
#include <unitscale/scaling/storage.hpp>
#include <unitscale/scaling/tensor_scale.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

namespace unitscale::optim {

/// Quantises the gradient of a linear layer's weight (role `weight`) to `storage.weight_gradient`:
///   g = 2^-bias round(2^bias g)          bias from `storage.weight_gradient_scale`
/// With at most 8 bits it is kept as codes (`Parameter::code_gradient`), in memory of `pool`; else in T.
/// Other parameters stay, and so does everything without a format.
/// A gradient with an infinite or NaN element stays unchanged, so that a later check still finds the element.
/// Call it before such checks.
/// Stochastic rounding takes the stream of `key` and the parameter's name: give a key that depends on the step.
/// Errors: the errors of kernels::encode and kernels::round_elements. Test: tests/optim/quantise_gradients_test.cpp
template <class T>
void quantise_weight_gradient(const Execution& execution, Parameter<T>& parameter, const Storage& storage,
                              RandomKey key = {}, const std::shared_ptr<MemoryPool>& pool = nullptr) {
    if (!storage.weight_gradient) return;
    parameter.mark(GradientStep::round);
    if (!is_updated(parameter) || parameter.facts().role != ParameterRole::weight) return;
    if (parameter.coded_gradient() != nullptr) return;
    const ScaleRule& rule = storage.weight_gradient_scale;
    T* const data = parameter.gradient().data();
    const auto size = static_cast<std::ptrdiff_t>(parameter.size());
    const float largest = kernels::amax(execution, data, size);
    if (!std::isfinite(largest)) return;
    Quantiser quantiser = *storage.weight_gradient;
    const int bias = rule.source == ScaleSource::amax       ? amax_bias(quantiser.format, largest, rule.margin)
                     : rule.source == ScaleSource::constant ? rule.bias
                                                            : 0;
    if (bias != 0) quantiser.format = shifted(quantiser.format, bias);
    key.stream = mix(key.stream, hash_name(parameter.name()));
    if (quantiser.format.code_bits() > 8)
        return kernels::round_elements(execution, "quantise_weight_gradient", quantiser, key, data, data, size);
    parameter.code_gradient(quantiser.format, pool, [&](Tensor<std::uint8_t>& codes) {
        kernels::encode(execution, data, codes.data(), size, quantiser, key);
    });
}

/// `quantise_weight_gradient` of all parameters. Gradients that are codes already stay.
template <class T>
void quantise_weight_gradients(const Execution& execution, std::span<Parameter<T>* const> parameters,
                               const Storage& storage, RandomKey key = {}) {
    for (Parameter<T>* parameter : parameters) quantise_weight_gradient(execution, *parameter, storage, key);
}

}  // namespace unitscale::optim
