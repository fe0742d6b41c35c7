// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/parameter.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/base/multiply_add.hpp>
#include <unitscale/base/parallel.hpp>
#include <unitscale/kernels/vector_math.hpp>
#include <unitscale/optim/clip.hpp>
#include <unitscale/optim/groups.hpp>
#include <unitscale/optim/optimiser.hpp>
#include <unitscale/optim/stored_tensor.hpp>
#include <unitscale/optim/stored_update.hpp>
#include <unitscale/optim/weight_decay.hpp>
#include <unitscale/scaling/storage.hpp>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace unitscale::optim {

struct SgdOptions {
    double momentum = 0.0;
    bool nesterov = false;
    double weight_decay = 0.0;
    std::optional<WeightDecay> decay{};  ///< empty: the parametrisation's kind, `gradient` without one
    double peak_learning_rate = 0.0;     ///< the largest learning rate of the run; read by independent decay only
    bool decay_bias_and_norm = true;     ///< false: biases and norm gains do not decay
    std::vector<ParameterGroup> groups{};
    std::optional<ParametrisationRule> parametrisation{};  ///< a recipe's: learning-rate factor of every parameter
    Storage storage{};  ///< a recipe's `storage`: how master weights and velocity (`first_moment`) are kept
    std::shared_ptr<MemoryPool> pool{};  ///< memory of master weights and velocity; null: the system's memory
};

/// The constants of one update of one parameter p, in the type of its state.
template <class A>
struct SgdConstants {
    A gradient_scale;  ///< carried scale of the gradient
    A penalty;         ///< penalty * p is added to the gradient
    A momentum;
    A from_gradient, from_velocity;  ///< factors of gradient and velocity in the step
    A keep;                          ///< 1 - (share lost to weight decay)
};

/// The update of one block of elements, in place.
template <class A>
[[gnu::always_inline]] inline void sgd_block(const SgdConstants<A>& c, A* value, const A* gradient,
                                             A* velocity) noexcept {
    for (std::size_t l = 0; l < static_cast<std::size_t>(kernels::block_size); ++l) {
        const A slope = multiply_add(gradient[l], c.gradient_scale, c.penalty * value[l]);
        velocity[l] = multiply_add(c.momentum, velocity[l], slope);
        value[l] = multiply_add(c.keep, value[l], -multiply_add(c.from_gradient, slope, c.from_velocity * velocity[l]));
    }
}

/// One fused pass over p, g and the velocity u, which is kept as computed. u may be null. Blocks as in adam_update.
template <class T>
void sgd_update(const Execution& execution, T* p, const T* g, Accum<T>* u, std::size_t size,
                const SgdConstants<Accum<T>>& c) {
    using A = Accum<T>;
    constexpr std::ptrdiff_t width = kernels::block_size;
    const auto n = static_cast<std::ptrdiff_t>(size);
    const std::ptrdiff_t blocks = (n + width - 1) / width;
    parallel_for(execution.threads, blocks, kernels::work_threshold / width,
                 [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
                     // Lanes past the end hold numbers that are never stored.
                     kernels::Block<A> value{}, gradient{}, velocity{};
                     for (std::ptrdiff_t block = begin; block < end; ++block) {
                         const std::ptrdiff_t start = block * width, count = std::min(width, n - start);
                         kernels::load_block<T>(p + start, count, value);
                         kernels::load_block<T>(g + start, count, gradient);
                         if (u != nullptr) kernels::load_block<A>(u + start, count, velocity);
                         sgd_block(c, value.data(), gradient.data(), velocity.data());
                         kernels::store_block<T>(value, count, p + start);
                         if (u != nullptr) kernels::store_block<A>(velocity, count, u + start);
                     }
                 });
}

/// Sgd's state of one parameter, and the parameter's update. Without momentum there is no velocity.
template <class T>
struct SgdState {
    StoredTensor<Accum<T>> master{}, velocity{};
    std::uint64_t updates = 0;  ///< counted where there are codes or a master

    SgdState(const Shape& shape, const SgdOptions& options) {
        if (options.storage.master)
            master = StoredTensor<Accum<T>>(shape, *options.storage.master, false, options.pool);
        if (options.momentum > 0.0)
            velocity = StoredTensor<Accum<T>>(shape, options.storage.first_moment, false, options.pool);
    }

    /// Whether there are codes or a master.
    [[nodiscard]] bool is_stored() const { return !master.empty() || !velocity.is_computed(); }

    void update(const Execution& execution, const Parameter<T>& parameter, Tensor<T>& value,
                const SgdConstants<Accum<T>>& constants) {
        using A = Accum<T>;
        const T* const gradient = parameter.gradient_data();
        if (!is_stored() && gradient != nullptr)
            return sgd_update<T>(execution, value.data(), gradient,
                                 velocity.empty() ? nullptr : velocity.computed().data(), value.size(), constants);
        ++updates;
        if (velocity.is_propagated())  // u = mu u + g
            velocity.expect_sum(constants.momentum, gradient_unit(execution, parameter), updates == 1);
        update_stored<T>(execution,
                         {.weights = value.data(),
                          .gradient = gradient,
                          .coded_gradient = parameter.coded_gradient(),
                          .size = value.size(),
                          .master = master.empty() ? nullptr : &master,
                          .first = velocity.empty() ? nullptr : &velocity,
                          .key = {hash_name(parameter.name()), updates}},
                         [&constants](A* p, const A* g, A* u, A*) { sgd_block(constants, p, g, u); });
    }

    template <class Visitor>
    void visit_state(Visitor&& visitor, const std::string& name) {
        if (!master.empty()) master.visit_state(visitor, name + "/master");
        if (!velocity.empty()) velocity.visit_state(visitor, name + "/velocity");
        if (is_stored()) visitor.scalar(name + "/updates", updates);
    }
};

/// Stochastic gradient descent with momentum mu. For a gradient g, to which `gradient` decay adds wd p:
///   u = mu u + g            p = (1 - d) p - lr u            with nesterov: p = (1 - d) p - lr (g + mu u)
/// d is the share that weight decay takes (weight_decay.hpp); lr is the learning rate times the group's factor.
/// The velocity u is kept as the storage's `first_moment`, in Accum<T> by default; without momentum it is not kept.
/// Master weights, frozen parameters, groups, threads and memory are as in Adam.
/// Units: `learning_rate` per update. Errors: the errors of resolve_groups; options or a learning rate out of range.
/// Reference: Sutskever, Martens, Dahl, Hinton, On the importance of initialization and momentum in deep learning, ICML
/// 2013. Here u is a sum of gradients, and the learning rate stays outside of it. Test: tests/optim/sgd_test.cpp
template <class T>
class Sgd : public Optimiser<T, SgdOptions, SgdState<T>> {
    using A = Accum<T>;
    using Base = Optimiser<T, SgdOptions, SgdState<T>>;

public:
    explicit Sgd(std::vector<Parameter<T>*> parameters, SgdOptions options = {});
    /// With the recipe's learning rates by parameter and its storage (`by_recipe`).
    template <std::same_as<Recipe> R>
    Sgd(std::vector<Parameter<T>*> parameters, const R& recipe, SgdOptions options = {})
        : Sgd(std::move(parameters), by_recipe("Sgd", std::move(options), recipe)) {}

    /// Updates every parameter that is trained and has a gradient. Gradients stay: see clear_gradients.
    void step(const Execution& execution, double learning_rate);

private:
    [[nodiscard]] static SgdOptions checked(SgdOptions options) {
        check(options.momentum >= 0.0 && options.momentum < 1.0, "Sgd: momentum is ", options.momentum,
              "; expected a number from 0 to below 1");
        check(!options.nesterov || options.momentum > 0.0, "Sgd: nesterov needs a momentum above 0");
        return options;
    }
};

template <class T>
Sgd<T>::Sgd(std::vector<Parameter<T>*> parameters, SgdOptions options)
    : Base("Sgd", OptimiserKind::sgd, WeightDecay::gradient, std::move(parameters), checked(std::move(options))) {}

template <class T>
void Sgd<T>::step(const Execution& execution, double learning_rate) {
    const SgdOptions& options = this->options();
    this->for_each_update(learning_rate, [&](const ParameterUpdate<T, SgdState<T>>& one) {
        const double data_rate = one.learning_rate / one.value.scale();
        one.state.update(execution, one.parameter, one.value,
                         {.gradient_scale = static_cast<A>(one.parameter.gradient_scale()),
                          .penalty = static_cast<A>(one.penalty()),
                          .momentum = static_cast<A>(options.momentum),
                          .from_gradient = static_cast<A>(options.nesterov ? data_rate : 0.0),
                          .from_velocity = static_cast<A>(options.nesterov ? data_rate * options.momentum : data_rate),
                          .keep = static_cast<A>(one.keep(one.learning_rate))});
    });
}

}  // namespace unitscale::optim
