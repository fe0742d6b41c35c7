// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/parameter.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/io/text_table.hpp>
#include <unitscale/optim/groups.hpp>
#include <unitscale/scaling/parametrisation.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

namespace unitscale::train {

/// A table of an optimiser's parameters, a line each.
/// It shows the effects of the recipe's parametrisation and the optimiser's groups:
///   name, shape, role
///   initial        standard deviation of the initial values; `zeros`, `ones`
///   multiplier     of the parameter's product or lookup in the forward pass; `-` for biases and gains
///   factor         of the learning rate: the parametrisation's factor times the groups' factor
///   learning rate  `learning_rate` (the schedule's) times the factor; `frozen` for a parameter that is not trained
///   decay          strength of the weight decay, `none` where it is 0
/// The last line counts parameters and values.
/// The table reads the data that the optimiser and nn::initialise read, so that it agrees with them.
/// Optimiser: Adam, Sgd, Lamb or a class with their `parameters()` and `settings()`.
/// Error: a learning rate that is negative or not finite. Test: tests/train/parameter_table_test.cpp
template <class Optimiser>
[[nodiscard]] std::string parameter_table(const Optimiser& optimiser, const Recipe& recipe, double learning_rate) {
    check(std::isfinite(learning_rate) && learning_rate >= 0.0, "parameter_table: learning rate is ", learning_rate,
          "; expected a finite number, not negative");
    const auto number = [](double x) {
        char text[32];
        std::snprintf(text, sizeof text, "%.4g", x);
        return std::string(text);
    };
    std::vector<std::vector<std::string>> rows = {
        {"parameter", "shape", "role", "initial", "multiplier", "factor", "learning rate", "decay"}};
    std::size_t values = 0;
    for (std::size_t i = 0; i < optimiser.parameters().size(); ++i) {
        const auto& parameter = *optimiser.parameters()[i];
        const optim::ParameterSettings& settings = optimiser.settings()[i];
        const ParameterRole role = parameter.facts().role;
        const ParameterScaling scaling = parameter_scaling(recipe.parametrisation_rule(), parameter.facts(),
                                                           OptimiserKind::adam, recipe.readout_exponent);
        const bool bias = role == ParameterRole::bias, gain = role == ParameterRole::norm;
        rows.push_back(
            {parameter.name(), to_string(parameter.shape()), std::string(name(role)),
             bias   ? "zeros"
             : gain ? "ones"
                    : number(scaling.initial_stddev),
             bias || gain ? "-" : number(scaling.multiplier), number(settings.learning_rate_factor),
             parameter.requires_gradient() ? number(learning_rate * settings.learning_rate_factor) : "frozen",
             settings.weight_decay > 0.0 ? number(settings.weight_decay) : "none"});
        values += parameter.size();
    }
    return io::text_table(rows) + concatenate(optimiser.parameters().size(), " parameters of ", values, " values\n");
}

/// Writes the parameter_table to a stream.
template <class Optimiser>
void print_parameters(std::FILE* out, const Optimiser& optimiser, const Recipe& recipe, double learning_rate) {
    std::fputs(parameter_table(optimiser, recipe, learning_rate).c_str(), out);
}

}  // namespace unitscale::train
