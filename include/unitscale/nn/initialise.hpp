// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/parameter.hpp>
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

/// Standard deviation of a parameter's initial values: 0 for biases (they start at 0), 1 for gains means all ones.
///   standard: 0.02 for weights, embeddings and readout (GPT-2)
///   unit: 1 (the ops' factors scale the results)
[[nodiscard]] constexpr double initial_stddev(ParameterRole role, Parametrisation parametrisation) noexcept {
    if (role == ParameterRole::bias || role == ParameterRole::norm) return 0.0;
    return parametrisation == Parametrisation::unit ? 1.0 : 0.02;
}

/// Gives parameters their initial values: normal with `initial_stddev`, biases 0, gains 1. Each parameter's random
/// stream is its name's, so a model's initial values do not depend on what else it contains.
/// Test: tests/nn/initialise_test.cpp
template <class T>
void initialise(const std::vector<Parameter<T>*>& parameters, const Recipe& recipe, std::uint64_t seed) {
    for (Parameter<T>* parameter : parameters) {
        const ParameterRole role = parameter->facts().role;
        if (role == ParameterRole::norm) fill_constant(parameter->write(), T(1));
        else if (role == ParameterRole::bias) fill_zero(parameter->write());
        else
            fill_normal(parameter->write(), {.seed = seed, .stream = hash_name(parameter->name())},
                        initial_stddev(role, recipe.parametrisation));
    }
}

}  // namespace unitscale::nn
