// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/parameter.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/optim/clip.hpp>
#include <unitscale/optim/groups.hpp>
#include <unitscale/optim/rescale_state.hpp>
#include <unitscale/optim/weight_decay.hpp>
#include <unitscale/optim/whole_recipe.hpp>
#include <unitscale/scaling/parametrisation.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace unitscale::optim {

/// One update of one parameter p, as an optimiser receives it. The values of p are value.data() times value.scale().
template <class T, class State>
struct ParameterUpdate {
    std::size_t index;              ///< among the optimiser's parameters
    const Parameter<T>& parameter;  ///< has a gradient
    Tensor<T>& value;               ///< the parameter's value, which the update writes
    State& state;
    double learning_rate;  ///< of this parameter: the step's learning rate times the parameter's factor
    double weight_decay;
    WeightDecay decay;
    double schedule_share;  ///< lr_t / lr_peak, which independent decay reads

    /// `gradient` decay adds penalty() value.data() to the gradient; 0 under the other kinds.
    [[nodiscard]] double penalty() const noexcept {
        return decay == WeightDecay::gradient ? weight_decay * value.scale() : 0.0;
    }
    /// The other kinds multiply p by this factor beside a step with the learning rate `rate`; 1 under `gradient`.
    [[nodiscard]] double keep(double rate) const noexcept {
        return kept_share(decay, weight_decay, rate, schedule_share);
    }
};

/// The base class of all optimisers, and of a user's own optimiser.
/// It holds the parameters with their settings. A parameter's state takes memory from its first update or visit on.
/// It walks over the parameters that a step updates, and names the state for saving.
/// After every `storage.rescale_every` updates of a parameter it calls `rescale_state`.
/// The derived class adds the formula alone:
///   void step(const Execution& e, double lr) { this->for_each_update(lr, [&](const auto& update) { ... }); }
///
/// Options has the fields weight_decay, decay, peak_learning_rate, decay_bias_and_norm, groups, parametrisation and
/// storage, as AdamOptions. State is constructed as State(shape, options) and has visit_state(visitor, name).
///
/// A frozen parameter, or one without gradient, keeps value and state.
/// The constructor writes the groups' `trained` to the parameters' `requires_gradient`.
/// If the constructor throws for its arguments, no parameter is changed.
/// The parameters outlive the optimiser.
/// Errors, with the optimiser's name in front: the errors of resolve_groups and resolve_decay; invalid storage.
/// Test: tests/optim/optimiser_test.cpp
template <class T, class Options, class State>
class Optimiser {
public:
    [[nodiscard]] const std::vector<Parameter<T>*>& parameters() const noexcept { return parameters_; }
    [[nodiscard]] const std::vector<ParameterSettings>& settings() const noexcept { return settings_; }
    [[nodiscard]] const Options& options() const noexcept { return options_; }

    void clear_gradients() noexcept {
        for (Parameter<T>* parameter : parameters_) parameter->clear_gradient();
    }

    /// From now on updates only the parameters with owned[i], and keeps state of these alone; other processes do so for
    /// the rest. Empty, as at first: all parameters. State of the rest is freed.
    /// Errors: `owned` has another size than the parameters; a parameter becomes owned after a step in which another
    /// process had its state.
    void set_owned(std::vector<bool> owned) {
        check(owned.empty() || owned.size() == parameters_.size(), name_, ": ", owned.size(),
              " owned parameters given; expected ", parameters_.size(), " or none");
        const auto is_new = [&](std::size_t i) { return !owns(i) && (owned.empty() || owned[i]); };
        if (begun_)
            for (std::size_t i = 0; i < parameters_.size(); ++i)
                check(!is_new(i), name_, ": the state of parameter ", parameters_[i]->name(),
                      " is in another process; expected a saved run that is resumed");
        owned_ = std::move(owned);
        for (std::size_t i = 0; i < parameters_.size(); ++i)
            if (!owns(i)) states_[i].reset();
    }
    /// Whether this process updates parameter i.
    [[nodiscard]] bool owns(std::size_t i) const noexcept { return owned_.empty() || owned_[i]; }
    /// Whether other processes update some parameters.
    [[nodiscard]] bool is_sharded() const noexcept { return !owned_.empty(); }

    /// Names the state to a visitor: tensors and codes as in StoredTensor, visitor.scalar(name, std::uint64_t&).
    /// State of parameters that other processes own is not here.
    template <class Visitor>
    void visit_state(Visitor&& visitor) {
        begun_ = true;
        for (std::size_t i = 0; i < parameters_.size(); ++i) {
            if (!owns(i)) continue;
            if (settings_[i].trained) make_state(i);
            if (!states_[i]) continue;
            states_[i]->visit_state(visitor, parameters_[i]->name());
            if (options_.storage.rescale_every > 0) visitor.scalar(parameters_[i]->name() + "/rescale", rescale_[i]);
        }
    }

protected:
    /// `name` begins errors. `kind` selects the learning-rate factors that a parametrisation gives.
    /// `otherwise` is the kind of weight decay where neither options nor parametrisation choose one.
    Optimiser(const char* name, OptimiserKind kind, WeightDecay otherwise, std::vector<Parameter<T>*> parameters,
              Options options)
        : name_(name),
          kind_(kind),
          parameters_(std::move(parameters)),
          options_(std::move(options)),
          settings_(
              resolve_groups(name, parameters_, options_.groups,
                             {options_.weight_decay, options_.decay_bias_and_norm, options_.parametrisation, kind})),
          decay_(resolve_decay(name, options_.decay, options_.parametrisation, otherwise, settings_,
                               options_.peak_learning_rate)),
          states_(parameters_.size()),
          rescale_(parameters_.size(), 0) {
        options_.storage.validate();
        for (std::size_t i = 0; i < parameters_.size(); ++i)
            parameters_[i]->set_requires_gradient(settings_[i].trained);
    }

    /// Calls use(const ParameterUpdate<T, State>&) for every owned parameter that is trained and has a gradient, in
    /// turn.
    /// Gradients stay.
    /// Errors, before anything is updated: no parameter to update; an update that leaves out a part of the recipe
    /// (`check_whole_recipe`); a learning rate that is negative or not finite, or above the peak that independent decay
    /// divides by.
    template <class Use>
    void for_each_update(double learning_rate, const Use& use) {
        check(std::isfinite(learning_rate) && learning_rate >= 0.0, name_, ": learning rate is ", learning_rate,
              "; expected a finite number, not negative");
        const double share = schedule_share(name_, decay_, learning_rate, options_.peak_learning_rate);
        std::size_t updates = 0;
        for (const Parameter<T>* parameter : parameters_) {
            if (!is_updated(*parameter)) continue;
            ++updates;
            check_whole_recipe(name_, kind_, *parameter, options_);
        }
        check(updates > 0 || is_sharded(), name_, ": none of the ", parameters_.size(),
              " parameters is trained and has a gradient; expected a backward pass before the update");
        begun_ = true;
        for (std::size_t i = 0; i < parameters_.size(); ++i) {
            Parameter<T>& parameter = *parameters_[i];
            if (!is_updated(parameter) || !owns(i)) continue;
            make_state(i);
            Tensor<T>& value = parameter.write();
            use(ParameterUpdate<T, State>{.index = i,
                                          .parameter = parameter,
                                          .value = value,
                                          .state = *states_[i],
                                          .learning_rate = learning_rate * settings_[i].learning_rate_factor,
                                          .weight_decay = settings_[i].weight_decay,
                                          .decay = decay_,
                                          .schedule_share = share});
            if (const std::size_t every = options_.storage.rescale_every; every > 0 && ++rescale_[i] >= every) {
                rescale_[i] = 0;
                rescale_state(parameter.name(), value, *states_[i]);
            }
        }
    }

private:
    void make_state(std::size_t i) {
        if (!states_[i]) states_[i].emplace(parameters_[i]->shape(), options_);
    }

    const char* name_;
    OptimiserKind kind_;
    std::vector<Parameter<T>*> parameters_;
    Options options_;
    std::vector<ParameterSettings> settings_;
    WeightDecay decay_;
    std::vector<std::optional<State>> states_;  ///< one per parameter; empty until the first update or visit
    std::vector<bool> owned_{};                 ///< by parameter; empty: all
    bool begun_ = false;                        ///< there was a step or a visit
    std::vector<std::uint64_t> rescale_;        ///< updates of each parameter since its last rescaling
};

/// Whether other processes hold a part of the optimiser's state (`set_owned`).
template <class AnyKind>
[[nodiscard]] bool is_sharded(const AnyKind& optimiser) {
    if constexpr (requires { optimiser.is_sharded(); }) return optimiser.is_sharded();
    else return false;
}
/// Error, which begins with `op`: other processes hold a part of the optimiser's state.
template <class AnyKind>
void check_whole_state(const char* op, const AnyKind& optimiser) {
    check(!is_sharded(optimiser), op,
          ": other processes hold a part of the optimiser's state; expected their group, or a run without sharding");
}

}  // namespace unitscale::optim
