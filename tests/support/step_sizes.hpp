// SPDX-License-Identifier: MIT
#pragma once

#include "support/catch.hpp"

#include <unitscale/analysis/audit.hpp>
#include <unitscale/analysis/scale_warnings.hpp>
#include <unitscale/autograd/tape.hpp>
#include <unitscale/nn/initialise.hpp>
#include <unitscale/nn/module.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/scaling/recipe.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace unitscale::test {

/// What a step's root mean squares must keep to.
struct StepSizes {
    double least = 0.25, most = 4.0;
    double least_gradient = least;  ///< of values that are no parameters
    std::string_view masked{};      ///< op with values of which some are -infinity: only its gradients are checked
};

/// Checks a model's first step under `unit-fp32`: the factors are consistent, and all values, gradients and gradients
/// of parameters have root mean squares from 1/4 to 4, or in the range that `sizes` states. `run(tape)` computes a
/// single number. Values that are all 0, such as new biases, and single numbers are left out.
template <class Model, class Run>
void check_unit_sizes(Model& model, const Run& run, const StepSizes& sizes = {}) {
    const auto parameters = nn::parameters_of<float>(model);
    const Recipe recipe = find_recipe("unit-fp32");
    nn::initialise(parameters, recipe, 1);
    ScalingState state(1);
    Tape<float> tape(recipe, state);
    tape.plan([&] { return run(tape); });
    tape.begin_step({.retain = true});
    const Variable<float> loss = run(tape);
    tape.backward(loss);
    CHECK(analysis::audit(tape, loss).faults.empty());
    const auto check_size = [&](const std::string& what, double rms, double least) {
        INFO(what);
        CHECK(rms > least);
        CHECK(rms < sizes.most);
    };
    std::size_t checked = 0;
    for (std::size_t i = 0; i < tape.node_count(); ++i)
        for (const std::uint32_t output : tape.node(i).outputs) {
            const Slot<float>& slot = tape.slot(output);
            if (!slot.has_gradient || element_count(slot.shape) == 1) continue;
            const double value = root_mean_square(*slot.value);
            if (value == 0.0) continue;
            const std::string path = state.path(tape.node(i).site) + ", " + std::to_string(i);
            if (tape.node(i).op != sizes.masked) check_size("value of " + path, value, sizes.least);
            check_size("gradient of " + path, root_mean_square(slot.gradient), sizes.least_gradient);
            ++checked;
        }
    CHECK(checked > 0);
    for (const Parameter<float>* parameter : parameters)
        if (parameter->requires_gradient())
            check_size("gradient of " + parameter->name(), root_mean_square(parameter->gradient()),
                       sizes.least);
}

}  // namespace unitscale::test
