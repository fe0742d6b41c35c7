// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/parameter.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/base/parallel.hpp>
#include <unitscale/kernels/vector_math.hpp>
#include <unitscale/optim/clip.hpp>
#include <unitscale/optim/groups.hpp>
#include <unitscale/optim/weight_decay.hpp>
#include <unitscale/tensor/fill.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace unitscale::optim {

struct SgdOptions {
    double momentum = 0.0;
    bool nesterov = false;
    double weight_decay = 0.0;
    WeightDecay decay = WeightDecay::gradient;
    double peak_learning_rate = 0.0;  ///< the largest learning rate of the run; read by independent decay only
    bool decay_bias_and_norm = true;  ///< false: biases and norm gains do not decay
    std::vector<ParameterGroup> groups{};
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

/// One fused pass over p, g and, unless it is null, the velocity u. Blocks as in adam_update.
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
            for (std::size_t l = 0; l < static_cast<std::size_t>(width); ++l) {
                const A slope = gradient[l] * c.gradient_scale + c.penalty * value[l];
                velocity[l] = c.momentum * velocity[l] + slope;
                value[l] = c.keep * value[l] - (c.from_gradient * slope + c.from_velocity * velocity[l]);
            }
            kernels::store_block<T>(value, count, p + start);
            if (u != nullptr) kernels::store_block<A>(velocity, count, u + start);
        }
    });
}

/// Stochastic gradient descent with momentum mu. For a gradient g, to which `gradient` decay adds wd p:
///   u = mu u + g            p = (1 - d) p - lr u            with nesterov: p = (1 - d) p - lr (g + mu u)
/// d is the decay's share (weight_decay.hpp), lr the learning rate times the group's factor. The velocity u is held in Accum<T>,
/// not at all without momentum. Frozen parameters, groups, threads and memory as in Adam.
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
          settings_(resolve_groups("Sgd", parameters_, options_.groups, {options_.weight_decay, options_.decay_bias_and_norm})) {
        check(options_.momentum >= 0.0 && options_.momentum < 1.0, "Sgd: momentum is ", options_.momentum,
              "; expected a number from 0 to below 1");
        check(!options_.nesterov || options_.momentum > 0.0, "Sgd: nesterov needs a momentum above 0");
        check(options_.decay != WeightDecay::independent ||
                  (std::isfinite(options_.peak_learning_rate) && options_.peak_learning_rate > 0.0),
              "Sgd: independent weight decay needs peak_learning_rate, the largest of the run; it is ",
              options_.peak_learning_rate);
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
        const double share = schedule_share("Sgd", options_.decay, learning_rate, options_.peak_learning_rate);
        for (std::size_t i = 0; i < parameters_.size(); ++i) {
            Parameter<T>& parameter = *parameters_[i];
            if (!is_updated(parameter)) continue;
            if (velocities_[i].empty()) make_state(i);
            const Tensor<T>& gradient = parameter.gradient();
            Tensor<T>& value = parameter.write();
            const double decay = settings_[i].weight_decay;
            const double rate = learning_rate * settings_[i].learning_rate_factor;
            const double data_rate = rate / value.scale();
            const SgdConstants<A> constants{
                .gradient_scale = static_cast<A>(gradient.scale()),
                .penalty = static_cast<A>(options_.decay == WeightDecay::gradient ? decay * value.scale() : 0.0),
                .momentum = static_cast<A>(options_.momentum),
                .from_gradient = static_cast<A>(options_.nesterov ? data_rate : 0.0),
                .from_velocity = static_cast<A>(options_.nesterov ? data_rate * options_.momentum : data_rate),
                .keep = static_cast<A>(1.0 - decay_share(options_.decay, decay, rate, share))};
            sgd_update<T>(execution, value.data(), gradient.data(), options_.momentum > 0.0 ? velocities_[i].data() : nullptr,
                          value.size(), constants);
        }
    }

    void clear_gradients() noexcept {
        for (Parameter<T>* parameter : parameters_) parameter->clear_gradient();
    }

    /// Names the state to a visitor: visitor.tensor(name, Tensor<Accum<T>>&).
    template <class Visitor>
    void visit_state(Visitor&& visitor) {
        for (std::size_t i = 0; i < parameters_.size(); ++i)
            if (!velocities_[i].empty()) visitor.tensor(parameters_[i]->name() + "/velocity", velocities_[i]);
    }

private:
    void make_state(std::size_t i) {
        if (options_.momentum > 0.0) velocities_[i] = full<A>(parameters_[i]->shape(), A(0));
    }

    std::vector<Parameter<T>*> parameters_;
    SgdOptions options_;
    std::vector<ParameterSettings> settings_;
    std::vector<Tensor<A>> velocities_{};
};

}  // namespace unitscale::optim
