// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/parameter.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/base/parallel.hpp>
#include <unitscale/kernels/vector_math.hpp>
#include <unitscale/optim/clip.hpp>
#include <unitscale/optim/groups.hpp>
#include <unitscale/optim/stored_tensor.hpp>
#include <unitscale/optim/stored_update.hpp>
#include <unitscale/optim/weight_decay.hpp>
#include <unitscale/scaling/storage.hpp>

#include <algorithm>
#include <cmath>
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
    std::optional<ParametrisationRule> parametrisation{};  ///< learning-rate factors of every parameter: a recipe's
    Storage storage{};  ///< how master weights and the velocity, its `first_moment`, are kept: a recipe's `storage`
    std::shared_ptr<MemoryPool> pool{};  ///< where they live; null: the system's memory
};

/// The constants of one update of one parameter, in the type of its state.
template <class A>
struct SgdConstants {
    A gradient_scale;  ///< carried scale of the gradient
    A penalty;         ///< times p, added to the gradient
    A momentum;
    A from_gradient, from_velocity;  ///< the step's parts
    A keep;                          ///< 1 - share lost to weight decay
};

/// The update of one block of elements, in place.
template <class A>
inline void sgd_block(const SgdConstants<A>& c, A* value, const A* gradient, A* velocity) noexcept {
    for (std::size_t l = 0; l < static_cast<std::size_t>(kernels::block_size); ++l) {
        const A slope = gradient[l] * c.gradient_scale + c.penalty * value[l];
        velocity[l] = c.momentum * velocity[l] + slope;
        value[l] = c.keep * value[l] - (c.from_gradient * slope + c.from_velocity * velocity[l]);
    }
}

/// One fused pass over p, g and, unless it is null, the velocity u, which is kept as computed. Blocks as in adam_update.
template <class T>
void sgd_update(const Execution& execution, T* p, const T* g, Accum<T>* u, std::size_t size, const SgdConstants<Accum<T>>& c) {
    using A = Accum<T>;
    constexpr std::ptrdiff_t width = kernels::block_size;
    const auto n = static_cast<std::ptrdiff_t>(size);
    const std::ptrdiff_t blocks = (n + width - 1) / width;
    parallel_for(execution.threads, blocks, kernels::work_threshold / width, [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
        kernels::Block<A> value{}, gradient{}, velocity{};  // lanes past the end hold some numbers, which nobody stores
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

/// Stochastic gradient descent with momentum mu. For a gradient g, to which `gradient` decay adds wd p:
///   u = mu u + g            p = (1 - d) p - lr u            with nesterov: p = (1 - d) p - lr (g + mu u)
/// d is the decay's share (weight_decay.hpp), lr the learning rate times the group's factor. The velocity u is kept as the
/// storage's `first_moment`, in Accum<T> by default, not at all without momentum. Master weights, frozen parameters, groups,
/// threads and memory as in Adam.
/// Units: `learning_rate` per update. Errors: those of resolve_groups; options or a learning rate out of range.
/// Reference: Sutskever, Martens, Dahl, Hinton, On the importance of initialization and momentum in deep learning, ICML
/// 2013 (here u is a sum of gradients: the learning rate stays outside). Test: tests/optim/sgd_test.cpp
template <class T>
class Sgd {
    using A = Accum<T>;

public:
    explicit Sgd(std::vector<Parameter<T>*> parameters, SgdOptions options = {})
        : parameters_(std::move(parameters)),
          options_(std::move(options)),
          settings_(resolve_groups(
              "Sgd", parameters_, options_.groups,
              {options_.weight_decay, options_.decay_bias_and_norm, options_.parametrisation, OptimiserKind::sgd})),
          decay_(resolve_decay("Sgd", options_.decay, options_.parametrisation, WeightDecay::gradient, settings_,
                               options_.peak_learning_rate)) {
        check(options_.momentum >= 0.0 && options_.momentum < 1.0, "Sgd: momentum is ", options_.momentum,
              "; expected a number from 0 to below 1");
        check(!options_.nesterov || options_.momentum > 0.0, "Sgd: nesterov needs a momentum above 0");
        options_.storage.validate();
        masters_.resize(parameters_.size());
        updates_.resize(parameters_.size());
        velocities_.resize(parameters_.size());
        for (std::size_t i = 0; i < parameters_.size(); ++i) {
            parameters_[i]->set_requires_gradient(settings_[i].trained);
            if (settings_[i].trained) make_state(i);
        }
    }

    [[nodiscard]] const std::vector<Parameter<T>*>& parameters() const noexcept { return parameters_; }
    [[nodiscard]] const std::vector<ParameterSettings>& settings() const noexcept { return settings_; }

    /// One update of every parameter that is trained and has a gradient. Gradients stay: see clear_gradients.
    void step(const Execution& execution, double learning_rate) {
        check(std::isfinite(learning_rate) && learning_rate >= 0.0, "Sgd: learning rate is ", learning_rate,
              "; expected a finite number, not negative");
        const double share = schedule_share("Sgd", decay_, learning_rate, options_.peak_learning_rate);
        for (std::size_t i = 0; i < parameters_.size(); ++i) {
            Parameter<T>& parameter = *parameters_[i];
            if (!is_updated(parameter)) continue;
            make_state(i);
            const Tensor<T>& gradient = parameter.gradient();
            Tensor<T>& value = parameter.write();
            const double decay = settings_[i].weight_decay;
            const double rate = learning_rate * settings_[i].learning_rate_factor;
            const double data_rate = rate / value.scale();
            const SgdConstants<A> constants{
                .gradient_scale = static_cast<A>(gradient.scale()),
                .penalty = static_cast<A>(decay_ == WeightDecay::gradient ? decay * value.scale() : 0.0),
                .momentum = static_cast<A>(options_.momentum),
                .from_gradient = static_cast<A>(options_.nesterov ? data_rate : 0.0),
                .from_velocity = static_cast<A>(options_.nesterov ? data_rate * options_.momentum : data_rate),
                .keep = static_cast<A>(1.0 - decay_share(decay_, decay, rate, share))};
            const bool has_master = options_.storage.master.has_value(), has_velocity = options_.momentum > 0.0;
            if (!is_stored(i)) {
                sgd_update<T>(execution, value.data(), gradient.data(), has_velocity ? velocities_[i].computed().data() : nullptr,
                              value.size(), constants);
                continue;
            }
            update_stored<T>(execution,
                             {.weights = value.data(),
                              .gradient = gradient.data(),
                              .size = value.size(),
                              .master = has_master ? &masters_[i] : nullptr,
                              .first = has_velocity ? &velocities_[i] : nullptr,
                              .key = {hash_name(parameter.name()), ++updates_[i]}},
                             [&constants](A* p, const A* g, A* u, A*) { sgd_block(constants, p, g, u); });
        }
    }

    void clear_gradients() noexcept {
        for (Parameter<T>* parameter : parameters_) parameter->clear_gradient();
    }

    /// Names the state to a visitor: visitor.tensor(name, tensor&) as StoredTensor does, and visitor.scalar(name, std::uint64_t&)
    /// where there are codes or a master.
    template <class Visitor>
    void visit_state(Visitor&& visitor) {
        for (std::size_t i = 0; i < parameters_.size(); ++i) {
            if (!masters_[i].empty()) masters_[i].visit_state(visitor, parameters_[i]->name() + "/master");
            if (!velocities_[i].empty()) velocities_[i].visit_state(visitor, parameters_[i]->name() + "/velocity");
            if (is_stored(i)) visitor.scalar(parameters_[i]->name() + "/updates", updates_[i]);
        }
    }

private:
    [[nodiscard]] bool is_stored(std::size_t i) const noexcept {
        return options_.storage.master.has_value() || !velocities_[i].is_computed();
    }
    void make_state(std::size_t i) {
        const Storage& storage = options_.storage;
        const Shape& shape = parameters_[i]->shape();
        if (options_.momentum > 0.0 && velocities_[i].empty())
            velocities_[i] = StoredTensor<A>(shape, storage.first_moment, false, options_.pool);
        if (storage.master && masters_[i].empty()) masters_[i] = StoredTensor<A>(shape, *storage.master, false, options_.pool);
    }

    std::vector<Parameter<T>*> parameters_;
    SgdOptions options_;
    std::vector<ParameterSettings> settings_;
    WeightDecay decay_;
    std::vector<StoredTensor<A>> masters_{};
    std::vector<StoredTensor<A>> velocities_{};
    std::vector<std::uint64_t> updates_{};  ///< of parameters with codes or a master
};

}  // namespace unitscale::optim
