// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/parameter.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/scaling/propagate.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/tensor/fill.hpp>

#include <cstdint>
#include <string_view>
#include <vector>

namespace unitscale::nn {

/// The last part of a module path: `decoder/block0/ffn` gives `ffn`.
[[nodiscard]] inline std::string_view last_name(std::string_view path) noexcept {
    const std::size_t slash = path.rfind('/');
    return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

/// Gives parameters their initial values: biases 0, gains 1.
/// The other parameters are normal with the standard deviation of `parameter_scaling`.
/// A parameter's random stream depends on its name: its initial values do not depend on the model's other parameters.
/// Scale under `propagate`: for weights the standard deviation, rounded; for gains 1.
/// Biases take the scale of weights, because they grow to that size.
/// The values equal the values under the other scalings, to the bit where scales are powers of two.
/// Test: tests/nn/initialise_test.cpp
template <class T>
void initialise(const std::vector<Parameter<T>*>& parameters, const Recipe& recipe, std::uint64_t seed) {
    for (Parameter<T>* parameter : parameters) {
        const ParameterRole role = parameter->facts().role;
        Tensor<T>& value = parameter->write();
        if (role == ParameterRole::norm) {
            fill_constant(value, T(1));
            continue;
        }
        const std::uint64_t stream = hash_name(parameter->name());
        ParameterFacts weight_like = parameter->facts();
        if (role == ParameterRole::bias) weight_like.role = ParameterRole::weight;
        const double stddev = parameter_scaling(recipe.parametrisation_rule(), weight_like).initial_stddev;
        double scale = 1.0;
        if (recipe.scaling == Scaling::propagate)
            scale = as_scale(recipe.propagate.rounding, stddev,
                             random_word({.seed = seed, .stream = mix(stream, hash_name("scale"))}, 0));
        if (role == ParameterRole::bias) fill_zero(value);
        else fill_normal(value, {.seed = seed, .stream = stream}, stddev / scale);
        value.set_scale(scale);
    }
}

}  // namespace unitscale::nn
