// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/parameter.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/scaling/recipe.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace unitscale::optim {

/// One rule for the parameters with a name that matches `pattern` (`*` stands for any text).
/// A rule sets the fields that have a value and leaves the others.
/// Of several rules that set a field the last one holds.
struct ParameterGroup {
    std::string pattern = "*";
    std::optional<double> learning_rate_factor{};  ///< multiplies the parametrisation's factor
    std::optional<double> weight_decay{};
    std::optional<bool> trained{};  ///< false freezes
};

/// The settings of one parameter after all rules are applied.
struct ParameterSettings {
    double learning_rate_factor = 1.0;
    double weight_decay = 0.0;
    bool trained = true;
};

/// The settings where no group sets a field.
struct GroupDefaults {
    double weight_decay = 0.0;
    bool decay_bias_and_norm = true;  ///< false: parameters of these roles do not decay unless a group says so
    std::optional<ParametrisationRule> parametrisation{};  ///< gives learning-rate factors, and which roles decay
    OptimiserKind optimiser = OptimiserKind::adam;         ///< the optimiser that the factors are for
};

/// Settings of every parameter, in the parameters' order.
/// A parameter's own `requires_gradient` is its default for `trained`.
/// Errors, with `op` (the optimiser) in front: no parameters; a null pointer; a parameter or a name given twice;
/// a pattern that matches no parameter; a factor or decay that is negative or not finite;
/// the errors of `parameter_scaling`.
/// Test: tests/optim/groups_test.cpp
template <class T>
[[nodiscard, gnu::cold]] std::vector<ParameterSettings> resolve_groups(const char* op,
                                                                       const std::vector<Parameter<T>*>& parameters,
                                                                       const std::vector<ParameterGroup>& groups,
                                                                       const GroupDefaults& defaults) {
    check(!parameters.empty(), op, ": no parameters to train");
    std::set<std::string_view> names;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        check(parameters[i] != nullptr, op, ": parameter ", i, " of ", parameters.size(), " is a null pointer");
        check(names.insert(parameters[i]->name()).second, op, ": two parameters are called '", parameters[i]->name(),
              "'; names must differ");
    }

    const auto usable = [](double x) { return std::isfinite(x) && x >= 0.0; };
    check(usable(defaults.weight_decay), op, ": weight decay is ", defaults.weight_decay,
          "; expected a finite number, not negative");
    std::vector<ParameterSettings> settings(parameters.size());
    std::vector<double> own_factors(parameters.size(), 1.0);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        const ParameterRole role = parameters[i]->facts().role;
        const bool vector_like = role == ParameterRole::bias || role == ParameterRole::norm;
        settings[i].weight_decay = vector_like && !defaults.decay_bias_and_norm ? 0.0 : defaults.weight_decay;
        settings[i].trained = parameters[i]->requires_gradient();
        if (!defaults.parametrisation) continue;
        const ParameterScaling scaling =
            parameter_scaling(*defaults.parametrisation, parameters[i]->facts(), defaults.optimiser);
        own_factors[i] = settings[i].learning_rate_factor = scaling.learning_rate_factor;
        if (!scaling.decays) settings[i].weight_decay = 0.0;
    }
    for (const ParameterGroup& group : groups) {
        check(usable(group.learning_rate_factor.value_or(1.0)), op, ": group '", group.pattern,
              "' has the learning-rate factor ", group.learning_rate_factor.value_or(1.0),
              "; expected a finite number, not negative");
        check(usable(group.weight_decay.value_or(0.0)), op, ": group '", group.pattern, "' has the weight decay ",
              group.weight_decay.value_or(0.0), "; expected a finite number, not negative");
        bool used = false;
        for (std::size_t i = 0; i < parameters.size(); ++i) {
            if (!matches(group.pattern, parameters[i]->name())) continue;
            used = true;
            if (group.learning_rate_factor)
                settings[i].learning_rate_factor = own_factors[i] * *group.learning_rate_factor;
            settings[i].weight_decay = group.weight_decay.value_or(settings[i].weight_decay);
            settings[i].trained = group.trained.value_or(settings[i].trained);
        }
        check(used, op, ": group pattern '", group.pattern, "' matches none of the ", parameters.size(), " parameters");
    }
    return settings;
}

/// An optimiser's kind of weight decay: `wanted` (from its options) if given.
/// Else the parametrisation's kind, if there is a parametrisation and any parameter decays. Else `otherwise`.
/// Error: `independent` decay without the run's largest learning rate. `op` names the optimiser in it.
[[nodiscard]] inline WeightDecay resolve_decay(const char* op, std::optional<WeightDecay> wanted,
                                               const std::optional<ParametrisationRule>& parametrisation,
                                               WeightDecay otherwise, const std::vector<ParameterSettings>& settings,
                                               double peak_learning_rate) {
    const bool decays = std::any_of(settings.begin(), settings.end(),
                                    [](const ParameterSettings& one) { return one.weight_decay > 0.0; });
    const WeightDecay kind = wanted                      ? *wanted
                             : parametrisation && decays ? weight_decay_kind(parametrisation->kind)
                                                         : otherwise;
    check(kind != WeightDecay::independent || (std::isfinite(peak_learning_rate) && peak_learning_rate > 0.0), op,
          ": independent weight decay needs peak_learning_rate, the largest of the run; it is ", peak_learning_rate);
    return kind;
}

}  // namespace unitscale::optim
