// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/parameter.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/scaling/parametrisation.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/scaling/storage.hpp>

#include <type_traits>

// An update follows the whole recipe of its gradients, or is an error. Test: tests/optim/whole_recipe_test.cpp
namespace unitscale::optim {

/// An optimiser's options with what the recipe determines: learning rates by parameter, and storage. A
/// `peak_learning_rate` of 0 becomes the recipe's learning rate. `op` names the optimiser in errors.
/// Error: the options determine it already.
template <class Options>
[[nodiscard]] Options by_recipe(const char* op, Options options, const Recipe& recipe) {
    const Options usual{};
    check(!options.parametrisation && options.storage == usual.storage, op,
          ": recipe and options both determine parametrisation or storage; expected the recipe alone");
    options.parametrisation = recipe.parametrisation_rule();
    options.storage = recipe.storage;
    if (options.peak_learning_rate == 0.0) options.peak_learning_rate = recipe.learning_rate;
    return options;
}

/// Error: an update of `parameter` with these options would leave out a part of the recipe that its gradient was
/// computed under. Parts are learning rates by parameter, storage, communication and rounding of gradients, loss
/// scaling and clipping. double keeps no storage format: a reference in double needs neither storage nor rounding.
/// Gradients that no tape computed pass.
template <class T, class Options>
void check_whole_recipe(const char* op, OptimiserKind kind, const Parameter<T>& parameter, const Options& options) {
    const Recipe* const recipe = parameter.gradient_recipe().get();
    if (recipe == nullptr) return;
    const auto expect = [&](bool has, const char* what, const char* call) {
        check(has, op, ": parameter ", parameter.name(), ": recipe ", recipe->name, ' ', what, "; expected ", call);
    };
    const auto made = [&](GradientStep step) { return parameter.has_made(step); };
    const ParametrisationRule own = options.parametrisation.value_or(ParametrisationRule{});
    ParametrisationRule wanted = recipe->parametrisation_rule();
    wanted.constrained_readout = own.constrained_readout;  // a fact of the model, which the recipe does not know
    const auto factor = [&](const ParametrisationRule& rule) {
        return parameter_scaling(rule, parameter.facts(), kind).learning_rate_factor;
    };
    expect(own == wanted || factor(own) == factor(wanted), "has learning rates by parameter",
           "an optimiser made with the recipe");
    if constexpr (!std::is_same_v<T, double>) {
        const Storage &storage = recipe->storage, &kept = options.storage;
        expect(kept.master == storage.master && kept.first_moment == storage.first_moment &&
                   kept.second_moment == storage.second_moment && kept.rescale_every == storage.rescale_every,
               "stores master weights or moments otherwise", "an optimiser made with the recipe");
        expect(!storage.weight_gradient || made(GradientStep::round), "rounds weight gradients",
               "optim::quantise_weight_gradients before the update");
    }
    expect(!recipe->communication || made(GradientStep::communicate), "rounds gradients between micro-batches",
           "train::TreeReducer in train::take_step");
    expect(recipe->loss_scaling.kind == LossScaleKind::none || made(GradientStep::unscale), "scales the loss",
           "optim::LossScaler::unscale before the update");
    expect(recipe->clip_norm == 0.0 || made(GradientStep::clip), "clips gradients",
           "optim::clip_gradients before the update");
}

}  // namespace unitscale::optim
