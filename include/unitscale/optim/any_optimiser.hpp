// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/parameter.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/base/parallel.hpp>
#include <unitscale/optim/adam.hpp>
#include <unitscale/optim/groups.hpp>
#include <unitscale/optim/lamb.hpp>
#include <unitscale/optim/optimiser.hpp>
#include <unitscale/optim/sgd.hpp>
#include <unitscale/optim/weight_decay.hpp>
#include <unitscale/optim/whole_recipe.hpp>
#include <unitscale/scaling/parametrisation.hpp>
#include <unitscale/scaling/storage.hpp>

#include <concepts>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace unitscale::optim {

/// Options of all kinds. Each kind reads its own.
struct AnyOptimiserOptions {
    OptimiserKind kind = OptimiserKind::adam;
    double beta1 = 0.9;               ///< read by adam and lamb
    double beta2 = 0.999;             ///< read by adam and lamb
    double momentum = 0.9;            ///< read by sgd
    std::optional<double> epsilon{};  ///< read by adam and lamb; empty: 1e-8 and 1e-6
    double weight_decay = 0.0;
    std::optional<WeightDecay> decay{};  ///< empty: the parametrisation's kind, or the optimiser's own
    double peak_learning_rate = 0.0;     ///< the largest learning rate of the run; read by independent decay only
    bool decay_bias_and_norm = true;     ///< false: biases and norm gains do not decay
    std::vector<ParameterGroup> groups{};
    std::optional<ParametrisationRule> parametrisation{};  ///< a recipe's: learning-rate factor of every parameter
    Storage storage{};                   ///< a recipe's `storage`: how master weights and moments are kept
    std::shared_ptr<MemoryPool> pool{};  ///< memory of master weights and moments; null: the system's memory
};

/// An optimiser whose kind is chosen at run time: Adam, Sgd or Lamb, with their bits.
///   train::Trainer<float, optim::AnyOptimiser<float>> trainer(model, recipe, options, {.kind = OptimiserKind::sgd});
/// Errors: those of the kind. Test: tests/optim/any_optimiser_test.cpp
template <class T>
class AnyOptimiser {
public:
    explicit AnyOptimiser(std::vector<Parameter<T>*> parameters, AnyOptimiserOptions options = {})
        : options_(std::move(options)), chosen_(make(std::move(parameters), options_)) {}
    /// With the recipe's learning rates by parameter and its storage (`by_recipe`).
    template <std::same_as<Recipe> R>
    AnyOptimiser(std::vector<Parameter<T>*> parameters, const R& recipe, AnyOptimiserOptions options = {})
        : AnyOptimiser(std::move(parameters), by_recipe("AnyOptimiser", std::move(options), recipe)) {}

    [[nodiscard]] const AnyOptimiserOptions& options() const noexcept { return options_; }
    [[nodiscard]] const std::vector<Parameter<T>*>& parameters() const {
        return std::visit([](const auto& chosen) -> const auto& { return chosen.parameters(); }, chosen_);
    }
    [[nodiscard]] const std::vector<ParameterSettings>& settings() const {
        return std::visit([](const auto& chosen) -> const auto& { return chosen.settings(); }, chosen_);
    }
    void clear_gradients() {
        std::visit([](auto& chosen) { chosen.clear_gradients(); }, chosen_);
    }
    /// Updates every parameter that is trained and has a gradient.
    void step(const Execution& execution, double learning_rate) {
        std::visit([&](auto& chosen) { chosen.step(execution, learning_rate); }, chosen_);
    }
    /// Updates only the parameters that this process owns, as the chosen optimiser does.
    void set_owned(std::vector<bool> owned) {
        std::visit([&](auto& chosen) { chosen.set_owned(std::move(owned)); }, chosen_);
    }
    [[nodiscard]] bool is_sharded() const {
        return std::visit([](const auto& chosen) { return chosen.is_sharded(); }, chosen_);
    }
    /// Names the state to a visitor, as the chosen optimiser does.
    template <class Visitor>
    void visit_state(Visitor&& visitor) {
        std::visit([&](auto& chosen) { chosen.visit_state(visitor); }, chosen_);
    }

private:
    using Chosen = std::variant<Adam<T>, Sgd<T>, Lamb<T>>;  // in the order of OptimiserKind

    /// The options that every kind has.
    template <class Options>
    [[nodiscard]] static Options common(const AnyOptimiserOptions& from) {
        Options options{};
        options.weight_decay = from.weight_decay;
        options.decay = from.decay;
        options.peak_learning_rate = from.peak_learning_rate;
        options.decay_bias_and_norm = from.decay_bias_and_norm;
        options.groups = from.groups;
        options.parametrisation = from.parametrisation;
        options.storage = from.storage;
        options.pool = from.pool;
        return options;
    }
    template <class Options>
    [[nodiscard]] static Options with_betas(const AnyOptimiserOptions& from) {
        auto options = common<Options>(from);
        options.beta1 = from.beta1;
        options.beta2 = from.beta2;
        options.epsilon = from.epsilon.value_or(options.epsilon);
        return options;
    }
    [[nodiscard]] static Chosen make(std::vector<Parameter<T>*> parameters, const AnyOptimiserOptions& options) {
        switch (options.kind) {
            case OptimiserKind::sgd: {
                auto own = common<SgdOptions>(options);
                own.momentum = options.momentum;
                return Chosen(std::in_place_type<Sgd<T>>, std::move(parameters), std::move(own));
            }
            case OptimiserKind::lamb:
                return Chosen(std::in_place_type<Lamb<T>>, std::move(parameters), with_betas<LambOptions>(options));
            case OptimiserKind::adam:
                break;
        }
        return Chosen(std::in_place_type<Adam<T>>, std::move(parameters), with_betas<AdamOptions>(options));
    }

    AnyOptimiserOptions options_;
    Chosen chosen_;
};

}  // namespace unitscale::optim
