// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/parameter.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/optim/adam.hpp>
#include <unitscale/optim/clip.hpp>
#include <unitscale/optim/groups.hpp>
#include <unitscale/optim/optimiser.hpp>
#include <unitscale/optim/stored_update.hpp>
#include <unitscale/optim/weight_decay.hpp>
#include <unitscale/scaling/parametrisation.hpp>
#include <unitscale/scaling/storage.hpp>

#include <algorithm>
#include <cmath>
#include <concepts>
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
    std::optional<WeightDecay> decay{};  ///< empty: the parametrisation's kind, or the paper's `coupled` without one
    double peak_learning_rate = 0.0;     ///< the largest learning rate of the run; read by independent decay only
    bool decay_bias_and_norm = false;    ///< true: biases and norm gains decay too
    bool adapt_bias_and_norm = false;    ///< true: biases and norm gains have a trust ratio too
    double least_norm = 0.0;             ///< phi clamps the trust ratio's ||p|| to [least_norm, most_norm]
    double most_norm = std::numeric_limits<double>::infinity();
    std::vector<ParameterGroup> groups{};
    std::optional<ParametrisationRule> parametrisation{};  ///< a recipe's: learning-rate factor of every parameter
    Storage storage{};                   ///< a recipe's `storage`: how master weights and moments are kept
    std::shared_ptr<MemoryPool> pool{};  ///< memory of master weights and moments; null: the system's memory
};

/// Norms of a parameter and of the update that LAMB is about to make.
struct LambNorms {
    double value = 0.0, update = 0.0;
};

/// ||p|| and ||u|| of an update, without storing anything:
///   u = r + (constants.keep / value_scale) p      r = m / (sqrt(v) + epsilon), with the new, corrected moments
/// p are the values of the update's tensors.
/// Squares are summed in double over chunks of fixed length, and the chunks in turn.
/// The result has the same bits for any thread count. The execution provides scratch of two doubles per chunk.
template <class T>
[[nodiscard]] LambNorms lamb_norms(const Execution& execution, const StoredUpdate<T>& update,
                                   AdamConstants<Accum<T>> constants, double value_scale) {
    using A = Accum<T>;
    constants.rate = A(-1);  // adam_block then writes keep p + r in place of p
    const std::ptrdiff_t chunks = update_chunks(update);
    Scratch<double> scratch(execution, 2 * static_cast<std::size_t>(chunks));
    double* const values = scratch.data();
    double* const updates = values + chunks;
    for_update_chunks(
        execution, update, [&](std::ptrdiff_t index, std::ptrdiff_t, std::ptrdiff_t count, UpdateChunk<A>& c) {
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

/// LAMB: Adam with a step length, relative to the parameter's norm, that equals the learning rate.
/// For the gradient g of the t-th update of a parameter p, a tensor:
///   m = beta1 m + (1 - beta1) g         v = beta2 v + (1 - beta2) g^2
///   u = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon) + wd p
///   p = p - lr phi(||p||) / ||u|| u     phi(z) = min(max(z, least_norm), most_norm)
/// lr is the learning rate times the group's factor.
/// The trust ratio phi(||p||) / ||u|| is 1 where phi(||p||) or ||u|| is 0.
/// It is also 1 for biases and norm gains unless `adapt_bias_and_norm` is set.
/// Reason: a parameter that starts at 0 would only grow by the factor 1 + lr per step from its first step on.
/// The term wd p in u is `coupled` decay; `gradient` decay adds wd p to g instead.
/// `independent` decay takes its share beside the step (weight_decay.hpp).
///
/// The trust ratio changes a parametrisation's learning-rate factors.
/// A LAMB step changes p by lr ||p|| for any size of u, hence by lr relative to p.
/// Adam changes every element by about lr, hence by lr / sigma relative to a p of initial standard deviation sigma.
/// Both change the function by the same share if
///   LAMB's factor = Adam's factor / sigma
/// Under standard and u-µP, sigma does not depend on the width. So LAMB's factors depend on the width as Adam's do.
/// Under µP a hidden weight has sigma ~ fan_in^-1/2, and its factor falls with fan_in^-1/2 instead of fan_in^-1.
/// Where the trust ratio is 1 the factor is Adam's own.
///
/// The first pass over a parameter finds both norms.
/// The second pass is Adam's update with the learning rate lr phi(||p||) / ||u||.
/// Master weights, moments, frozen parameters, groups, threads and memory are as in Adam.
/// Norms are of values: they include the carried scales of value and gradient.
/// Units: `learning_rate` is the relative change per update.
/// Errors: the errors of resolve_groups; options or a learning rate out of range.
/// Reference: You et al. 2019, arXiv:1904.00962, algorithm 2; biases and norms left out, as is common for BERT.
/// The defaults are from the BERT runs of Blake, Orr, Luschi 2023, arXiv:2303.11257.
/// Test: tests/optim/lamb_test.cpp
template <class T>
class Lamb : public Optimiser<T, LambOptions, AdamState<T>> {
    using A = Accum<T>;
    using Base = Optimiser<T, LambOptions, AdamState<T>>;

public:
    explicit Lamb(std::vector<Parameter<T>*> parameters, LambOptions options = {});
    /// With the recipe's learning rates by parameter and its storage (`by_recipe`).
    template <std::same_as<Recipe> R>
    Lamb(std::vector<Parameter<T>*> parameters, const R& recipe, LambOptions options = {})
        : Lamb(std::move(parameters), by_recipe("Lamb", std::move(options), recipe)) {}

    /// The trust ratio of each parameter's last update; 1 before the first update.
    [[nodiscard]] const std::vector<double>& trust_ratios() const noexcept { return trust_ratios_; }

    /// Updates every parameter that is trained and has a gradient. Gradients stay: see clear_gradients.
    void step(const Execution& execution, double learning_rate);

private:
    [[nodiscard]] static LambOptions checked(LambOptions options) {
        check(std::isfinite(options.least_norm) && options.least_norm >= 0.0 && options.least_norm <= options.most_norm,
              "Lamb: the norm in the trust ratio is held from ", options.least_norm, " to ", options.most_norm,
              "; expected a finite number, not negative, and one that is not below it");
        return checked_adam_options<T>("Lamb", std::move(options));
    }

    [[nodiscard]] bool adapts(const Parameter<T>& parameter) const noexcept {
        const ParameterRole role = parameter.facts().role;
        return this->options().adapt_bias_and_norm || (role != ParameterRole::bias && role != ParameterRole::norm);
    }

    std::vector<double> trust_ratios_;
};

template <class T>
Lamb<T>::Lamb(std::vector<Parameter<T>*> parameters, LambOptions options)
    : Base("Lamb", OptimiserKind::lamb, WeightDecay::coupled, std::move(parameters), checked(std::move(options))),
      trust_ratios_(this->parameters().size(), 1.0) {}

template <class T>
void Lamb<T>::step(const Execution& execution, double learning_rate) {
    const LambOptions& options = this->options();
    this->for_each_update(learning_rate, [&](const ParameterUpdate<T, AdamState<T>>& one) {
        const double scale = one.value.scale();
        AdamConstants<A> constants = adam_constants<T>(options, ++one.state.updates, one.parameter.gradient_scale());
        constants.penalty = static_cast<A>(one.penalty());

        double& ratio = trust_ratios_[one.index] = 1.0;
        if (adapts(one.parameter)) {
            constants.keep = static_cast<A>(one.decay == WeightDecay::coupled ? one.weight_decay * scale : 0.0);
            const LambNorms norms =
                lamb_norms<T>(execution, one.state.tensors(one.parameter, one.value), constants, scale);
            const double length = std::clamp(norms.value, options.least_norm, options.most_norm);
            if (length != 0.0 && norms.update != 0.0) ratio = length / norms.update;
        }
        const double rate = one.learning_rate * ratio;
        constants.keep = static_cast<A>(one.keep(rate));
        constants.rate = static_cast<A>(rate / scale);
        one.state.update(execution, one.parameter, one.value, constants);
    });
}

}  // namespace unitscale::optim
