// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/parameter.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/optim/adam.hpp>
#include <unitscale/optim/clip.hpp>
#include <unitscale/optim/groups.hpp>
#include <unitscale/optim/stored_update.hpp>
#include <unitscale/optim/weight_decay.hpp>
#include <unitscale/scaling/parametrisation.hpp>
#include <unitscale/scaling/storage.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace unitscale::optim {

struct LambOptions {
    double beta1 = 0.9;
    double beta2 = 0.999;
    double epsilon = 1e-6;
    bool bias_correction = true;
    double weight_decay = 0.01;
    std::optional<WeightDecay> decay{};  ///< empty: the parametrisation's kind, `coupled` without one, which is the paper's
    double peak_learning_rate = 0.0;     ///< the largest learning rate of the run; read by independent decay only
    bool decay_bias_and_norm = false;    ///< true: biases and norm gains decay too
    bool adapt_bias_and_norm = false;    ///< true: they have a trust ratio too
    double least_norm = 0.0;             ///< phi: the trust ratio's ||p|| is held in [least_norm, most_norm]
    double most_norm = std::numeric_limits<double>::infinity();
    std::vector<ParameterGroup> groups{};
    std::optional<ParametrisationRule> parametrisation{};  ///< learning-rate factors of every parameter: a recipe's
    Storage storage{};                                     ///< how master weights and moments are kept: a recipe's `storage`
    std::shared_ptr<MemoryPool> pool{};                    ///< where they live; null: the system's memory
};

/// Norms of a parameter and of the update that LAMB is about to make.
struct LambNorms {
    double value = 0.0, update = 0.0;
};

/// ||p|| and ||u||, p the values of an update's tensors and u = r + (constants.keep / value_scale) p, r = m / (sqrt(v) + epsilon) with
/// the new moments, corrected. Nothing is stored. Squares are summed in double over chunks of fixed length, the chunks in turn:
/// the same bits for any thread count. Scratch of two doubles per chunk from the execution.
template <class T>
[[nodiscard]] LambNorms lamb_norms(const Execution& execution, const StoredUpdate<T>& update, AdamConstants<Accum<T>> constants,
                                   double value_scale) {
    using A = Accum<T>;
    constants.rate = A(-1);  // adam_block then leaves keep p + r where p was
    const std::ptrdiff_t chunks = update_chunks(update);
    Scratch<double> scratch(execution, 2 * static_cast<std::size_t>(chunks));
    double* const values = scratch.data();
    double* const updates = values + chunks;
    for_update_chunks(execution, update, [&](std::ptrdiff_t index, std::ptrdiff_t, std::ptrdiff_t count, UpdateChunk<A>& c) {
        values[index] = sum_of_squares(c.value.data(), count);
        c.for_blocks(count, [&constants](A* p, const A* g, A* m, A* v) { adam_block(constants, p, g, m, v); });
        updates[index] = sum_of_squares(c.value.data(), count);
    });
    LambNorms squares;
    for (std::ptrdiff_t i = 0; i < chunks; ++i) {
        squares.value += values[i];
        squares.update += updates[i];
    }
    return {.value = std::sqrt(squares.value) * value_scale, .update = std::sqrt(squares.update)};
}

/// LAMB: Adam whose step is as long, relative to its parameter, as the learning rate says. For the gradient g of the t-th update of
/// a parameter p, a tensor:
///   m = beta1 m + (1 - beta1) g         v = beta2 v + (1 - beta2) g^2
///   u = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon) + wd p
///   p = p - lr phi(||p||) / ||u|| u     phi(z) = min(max(z, least_norm), most_norm)
/// lr is the learning rate times the group's factor. The trust ratio phi(||p||) / ||u|| is 1 where either is 0, and for
/// biases and norm gains unless `adapt_bias_and_norm`: what starts at 0 would only grow by the factor 1 + lr from its first step on.
/// wd p in u is `coupled` decay; `gradient` decay adds it to g instead; `independent` decay takes its share beside the step
/// (weight_decay.hpp).
///
/// What the trust ratio does to a parametrisation's learning-rate factors: a step changes p by lr ||p|| whatever the size of u, so
/// by lr relative to p. Adam changes every element by about lr, hence by lr / sigma relative to a p of initial standard
/// deviation sigma. Both move the function by the same share if
///   LAMB's factor = Adam's factor / sigma
/// so that under standard and u-µP (sigma the same for all widths) factors depend on width as Adam's do, and µP's of a hidden
/// weight, sigma ~ fan_in^-1/2, falls with fan_in^-1/2 instead of fan_in^-1. Where the ratio is 1 the factor is Adam's own.
///
/// The first pass over a parameter finds both norms, the second is Adam's update with the learning rate lr phi(||p||) / ||u||:
/// master weights, moments, frozen parameters, groups, threads and memory are as in Adam. Carried scales of value and gradient are
/// honoured: norms are those of the values.
/// Units: `learning_rate` is the relative change per update. Errors: those of resolve_groups; options or a learning rate out of
/// range.
/// Reference: You et al. 2019, arXiv:1904.00962, algorithm 2; biases and norms left out, as is common for BERT. The defaults are
/// those of the BERT runs of Blake, Orr, Luschi 2023, arXiv:2303.11257. Test: tests/optim/lamb_test.cpp
template <class T>
class Lamb {
    using A = Accum<T>;

public:
    explicit Lamb(std::vector<Parameter<T>*> parameters, LambOptions options = {})
        : parameters_(std::move(parameters)),
          options_(std::move(options)),
          settings_(resolve_groups(
              "Lamb", parameters_, options_.groups,
              {options_.weight_decay, options_.decay_bias_and_norm, options_.parametrisation, OptimiserKind::lamb})),
          decay_(resolve_decay("Lamb", options_.decay, options_.parametrisation, WeightDecay::coupled, settings_,
                               options_.peak_learning_rate)) {
        check_adam_options<T>("Lamb", options_);
        check(std::isfinite(options_.least_norm) && options_.least_norm >= 0.0 && options_.least_norm <= options_.most_norm,
              "Lamb: the norm in the trust ratio is held from ", options_.least_norm, " to ", options_.most_norm,
              "; expected a finite number, not negative, and one that is not below it");
        states_.resize(parameters_.size());
        trust_ratios_.assign(parameters_.size(), 1.0);
        for (std::size_t i = 0; i < parameters_.size(); ++i) {
            parameters_[i]->set_requires_gradient(settings_[i].trained);
            if (settings_[i].trained) make_state(i);
        }
    }

    [[nodiscard]] const std::vector<Parameter<T>*>& parameters() const noexcept { return parameters_; }
    [[nodiscard]] const std::vector<ParameterSettings>& settings() const noexcept { return settings_; }
    /// Of each parameter's last update; 1 before the first.
    [[nodiscard]] const std::vector<double>& trust_ratios() const noexcept { return trust_ratios_; }

    /// One update of every parameter that is trained and has a gradient. Gradients stay: see clear_gradients.
    void step(const Execution& execution, double learning_rate) {
        check(std::isfinite(learning_rate) && learning_rate >= 0.0, "Lamb: learning rate is ", learning_rate,
              "; expected a finite number, not negative");
        const double share = schedule_share("Lamb", decay_, learning_rate, options_.peak_learning_rate);
        for (std::size_t i = 0; i < parameters_.size(); ++i) {
            if (!is_updated(*parameters_[i])) continue;
            if (states_[i].first.empty()) make_state(i);
            update(execution, i, learning_rate * settings_[i].learning_rate_factor, share);
        }
    }

    void clear_gradients() noexcept {
        for (Parameter<T>* parameter : parameters_) parameter->clear_gradient();
    }

    /// Names the state to a visitor, as Adam does.
    template <class Visitor>
    void visit_state(Visitor&& visitor) {
        for (std::size_t i = 0; i < parameters_.size(); ++i)
            if (!states_[i].first.empty()) states_[i].visit_state(visitor, parameters_[i]->name());
    }

private:
    void make_state(std::size_t i) { states_[i].make(parameters_[i]->shape(), options_.storage, options_.pool); }

    [[nodiscard]] bool adapts(const Parameter<T>& parameter) const noexcept {
        const ParameterRole role = parameter.facts().role;
        return options_.adapt_bias_and_norm || (role != ParameterRole::bias && role != ParameterRole::norm);
    }

    void update(const Execution& execution, std::size_t i, double rate, double share) {
        Parameter<T>& parameter = *parameters_[i];
        AdamState<T>& state = states_[i];
        Tensor<T>& value = parameter.write();
        const double decay = settings_[i].weight_decay, scale = value.scale();
        AdamConstants<A> constants = adam_constants<T>(options_, ++state.updates, parameter.gradient().scale());
        if (decay_ == WeightDecay::gradient) constants.penalty = static_cast<A>(decay * scale);

        trust_ratios_[i] = 1.0;
        if (adapts(parameter)) {
            constants.keep = static_cast<A>(decay_ == WeightDecay::coupled ? decay * scale : 0.0);
            const LambNorms norms = lamb_norms<T>(execution, state.tensors(parameter, value), constants, scale);
            const double length = std::clamp(norms.value, options_.least_norm, options_.most_norm);
            if (length != 0.0 && norms.update != 0.0) trust_ratios_[i] = length / norms.update;
        }
        rate *= trust_ratios_[i];
        constants.keep = static_cast<A>(1.0 - decay_share(decay_, decay, rate, share));
        constants.rate = static_cast<A>(rate / scale);
        state.update(execution, parameter, value, constants);
    }

    std::vector<Parameter<T>*> parameters_;
    LambOptions options_;
    std::vector<ParameterSettings> settings_;
    WeightDecay decay_;
    std::vector<AdamState<T>> states_{};
    std::vector<double> trust_ratios_{};
};

}  // namespace unitscale::optim
