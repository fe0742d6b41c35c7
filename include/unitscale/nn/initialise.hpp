// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/parameter.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/base/multiply_add.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/scaling/parameter_facts.hpp>
#include <unitscale/scaling/parametrisation.hpp>
#include <unitscale/scaling/propagate.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/tensor/fill.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace unitscale::nn {

/// The last part of a module path: `decoder/block0/ffn` gives `ffn`.
[[nodiscard]] inline std::string_view last_name(std::string_view path) noexcept {
    const std::size_t slash = path.rfind('/');
    return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

/// Standard deviation of initial weights and readouts under the parametrisation `standard`.
///   gpt2: 0.02, and for embeddings too     lecun: fan_in^-1/2     glorot: (2 / (fan_in + fan_out))^1/2
///   he: (2 / fan_in)^1/2                   embeddings of the last three: 1, as one row at a time is looked up
/// The other parametrisations have their own: see `parameter_scaling`.
enum class InitialScale { gpt2, lecun, glorot, he };

/// The standard deviation of a parameter under `standard`. 0 for biases and gains.
[[nodiscard]] inline double standard_initial_stddev(InitialScale scale, const ParameterFacts& facts) {
    if (facts.role == ParameterRole::bias || facts.role == ParameterRole::norm) return 0.0;
    if (scale == InitialScale::gpt2) return 0.02;
    if (facts.role == ParameterRole::embedding) return 1.0;
    const auto in = static_cast<double>(facts.fan_in), out = static_cast<double>(facts.fan_out);
    return std::sqrt(scale == InitialScale::lecun ? 1.0 / in : scale == InitialScale::he ? 2.0 / in : 2.0 / (in + out));
}

/// Initial values of every parameter with a name that matches `pattern` (`*` stands for any text).
struct InitialRule {
    std::string pattern;
    std::optional<double> stddev{};  ///< empty: the recipe's; 0: zeros
    /// A matrix [out,...] has orthogonal rows, or orthogonal columns if it has more rows, of one length. Its elements
    /// have the root mean square `stddev`.
    bool orthogonal = false;
};

struct InitialOptions {
    InitialScale standard = InitialScale::gpt2;
    std::optional<InitialDistribution> distribution{};  ///< of all but gains and biases; empty: the recipe's
    std::vector<InitialRule> rules{};                   ///< the last one that matches holds
};

/// Makes the rows of a matrix orthogonal, or its columns if it has more rows, with the root mean square `rms` of all
/// elements. Gram and Schmidt's method, twice for each row, in double. The rows are independent.
[[gnu::cold]] inline void make_orthogonal(std::vector<double>& matrix, std::size_t rows, std::size_t columns,
                                          double rms) {
    const bool wide = rows <= columns;
    const std::size_t count = wide ? rows : columns, length = wide ? columns : rows;
    const std::size_t step = wide ? 1 : columns, line = wide ? columns : 1;
    const auto at = [&](std::size_t i, std::size_t k) -> double& { return matrix[i * line + k * step]; };
    const auto dot = [&](std::size_t i, std::size_t j) {
        double sum = 0.0;
        for (std::size_t k = 0; k < length; ++k) sum = multiply_add(at(i, k), at(j, k), sum);
        return sum;
    };
    for (std::size_t i = 0; i < count; ++i) {
        for (int pass = 0; pass < 2; ++pass)
            for (std::size_t j = 0; j < i; ++j) {
                const double share = dot(i, j) / dot(j, j);
                for (std::size_t k = 0; k < length; ++k) at(i, k) = multiply_add(-share, at(j, k), at(i, k));
            }
        const double factor = rms * std::sqrt(static_cast<double>(length) / dot(i, i));
        for (std::size_t k = 0; k < length; ++k) at(i, k) *= factor;
    }
}

/// Independent values of mean 0 and the given standard deviation.
template <class T>
void fill_initial(Tensor<T>& value, InitialDistribution distribution, RandomKey key, double stddev) {
    const double bound = std::sqrt(3.0) * stddev;  // a uniform number in [-b, b] has variance b^2 / 3
    if (distribution == InitialDistribution::uniform) fill_uniform(value, key, -bound, bound);
    else fill_normal(value, key, stddev);
}

/// Gives parameters their initial values: biases 0, gains 1.
/// The other parameters have the standard deviation of `parameter_scaling`. `options` choose another one under
/// `standard`, or for single parameters. The recipe's `initial_distribution` says normal or uniform, unless `options`
/// do. The Unit Scaling experiments' standard model is `{.standard = InitialScale::glorot, .distribution = uniform}`.
/// A parameter's random stream depends on its name: its initial values do not depend on the model's other parameters.
/// Scale under `propagate`: for weights the standard deviation, rounded; for gains 1.
/// Biases take the scale of weights, because they grow to that size.
/// The values equal the values under the other scalings, to the bit where scales are powers of two.
/// Errors: a rule that matches no parameter; a standard deviation that is negative or not finite; `orthogonal` for a
/// parameter that is no matrix. Test: tests/nn/initialise_test.cpp
template <class T>
void initialise(const std::vector<Parameter<T>*>& parameters, const Recipe& recipe, std::uint64_t seed,
                const InitialOptions& options = {}) {
    const auto rule_of = [&](const Parameter<T>& parameter) {
        const InitialRule* found = nullptr;
        for (const InitialRule& rule : options.rules)
            if (matches(rule.pattern, parameter.name())) found = &rule;
        return found;
    };
    for (const InitialRule& rule : options.rules) {
        bool used = false;
        for (const Parameter<T>* parameter : parameters) used = used || matches(rule.pattern, parameter->name());
        check(used, "initialise: pattern '", rule.pattern, "' matches none of the ", parameters.size(), " parameters");
        check(!rule.stddev || (std::isfinite(*rule.stddev) && *rule.stddev >= 0.0), "initialise: pattern '",
              rule.pattern, "': stddev is ", rule.stddev.value_or(0.0), "; expected a finite number, not negative");
        for (const Parameter<T>* parameter : parameters)
            check(!rule.orthogonal || rule_of(*parameter) != &rule ||
                      (parameter->shape().size() >= 2 && parameter->size() > 0),
                  "initialise: ", parameter->name(), " ", shape_text(parameter->shape()),
                  " is no matrix, and cannot be orthogonal");
    }
    for (Parameter<T>* parameter : parameters) {
        const InitialRule* const own = rule_of(*parameter);
        const ParameterRole role = parameter->facts().role;
        Tensor<T>& value = parameter->write();
        const bool stated = own != nullptr && (own->stddev || own->orthogonal);
        if (role == ParameterRole::norm && !stated) {
            fill_constant(value, T(1));
            continue;
        }
        const std::uint64_t stream = hash_name(parameter->name());
        ParameterFacts weight_like = parameter->facts();
        if (role == ParameterRole::bias) weight_like.role = ParameterRole::weight;
        const ParametrisationRule rule = recipe.parametrisation_rule();
        double stddev = parameter_scaling(rule, weight_like).initial_stddev;
        if (rule.kind == Parametrisation::standard && options.standard != InitialScale::gpt2)
            stddev = standard_initial_stddev(options.standard, weight_like);
        if (own != nullptr && own->stddev) stddev = *own->stddev;
        double scale = 1.0;
        if (recipe.scaling == Scaling::propagate && stddev > 0.0)
            scale = as_scale(recipe.propagate.rounding, stddev,
                             random_word({.seed = seed, .stream = mix(stream, hash_name("scale"))}, 0));
        if (stddev == 0.0 || (role == ParameterRole::bias && !stated)) fill_zero(value);
        else
            fill_initial(value, options.distribution.value_or(recipe.initial_distribution),
                         {.seed = seed, .stream = stream}, stddev / scale);
        if (own != nullptr && own->orthogonal && stddev > 0.0) {
            std::vector<double> matrix(value.size());
            for (std::size_t i = 0; i < matrix.size(); ++i)
                matrix[i] = static_cast<double>(static_cast<Accum<T>>(value.data()[i]));
            make_orthogonal(matrix, value.shape()[0], value.size() / value.shape()[0], stddev / scale);
            for (std::size_t i = 0; i < matrix.size(); ++i) value.data()[i] = element_cast<T>(matrix[i]);
        }
        value.set_scale(scale);
    }
}

}  // namespace unitscale::nn
