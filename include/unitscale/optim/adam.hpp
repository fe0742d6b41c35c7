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
#include <unitscale/scaling/power_of_two.hpp>
#include <unitscale/scaling/storage.hpp>

#include <algorithm>
#include <bit>
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

/// sqrt(z times + the smallest normal number) within 1 ulp, for z times >= 0.
/// An estimate of x^-1/2 from the exponent, Newton steps for it, and one more Newton step for the root itself.
/// Compilers vectorise this arithmetic; a call of sqrt may set errno, which they do not vectorise.
/// The smallest normal number keeps Adam without an epsilon from dividing 0 by 0.
[[nodiscard, gnu::always_inline]] inline float positive_root(float z, float times = 1.0f) noexcept {
    const float x = multiply_add(z, times, 0x1p-126f), half = 0.5f * x;
    float y = std::bit_cast<float>(0x5F3759DFu - (std::bit_cast<std::uint32_t>(x) >> 1));
    y = y * multiply_add(-(half * y), y, 1.5f);
    y = y * multiply_add(-(half * y), y, 1.5f);
    y = y * multiply_add(-(half * y), y, 1.5f);
    const float root = x * y;
    return multiply_add(0.5f * y, multiply_add(-root, root, x), root);
}
[[nodiscard, gnu::always_inline]] inline double positive_root(double z, double times = 1.0) noexcept {
    const double x = multiply_add(z, times, 0x1p-1022), half = 0.5 * x;
    double y = std::bit_cast<double>(std::uint64_t{0x5FE6EB50C7B537A9} - (std::bit_cast<std::uint64_t>(x) >> 1));
    y = y * multiply_add(-(half * y), y, 1.5);
    y = y * multiply_add(-(half * y), y, 1.5);
    y = y * multiply_add(-(half * y), y, 1.5);
    y = y * multiply_add(-(half * y), y, 1.5);
    const double root = x * y;
    return multiply_add(0.5 * y, multiply_add(-root, root, x), root);
}

struct AdamOptions {
    double beta1 = 0.9;
    double beta2 = 0.999;
    double epsilon = 1e-8;
    bool bias_correction = true;
    double weight_decay = 0.0;
    std::optional<WeightDecay> decay{};  ///< empty: the parametrisation's kind, `coupled` without one
    double peak_learning_rate = 0.0;     ///< the largest learning rate of the run; read by independent decay only
    bool decay_bias_and_norm = true;     ///< false: biases and norm gains do not decay
    std::vector<ParameterGroup> groups{};
    std::optional<ParametrisationRule> parametrisation{};  ///< a recipe's: learning-rate factor of every parameter
    Storage storage{};                   ///< a recipe's `storage`: how master weights and moments are kept
    std::shared_ptr<MemoryPool> pool{};  ///< memory of master weights and moments; null: the system's memory
};

/// The constants of one Adam update of one parameter p, in the type of its state.
template <class A>
struct AdamConstants {
    A beta1 = 0, beta2 = 0, epsilon = 0;
    A gradient_scale = 1;  ///< carried scale of the gradient
    A penalty = 0;         ///< penalty * p is added to the gradient
    A correction1 = 1, correction2 = 1;
    A keep = 1;  ///< 1 - (share lost to weight decay)
    A rate = 0;
};

/// The update of one block of elements, in place.
template <class A>
[[gnu::always_inline]] inline void adam_block(const AdamConstants<A>& c, A* value, const A* gradient, A* first,
                                              A* second) noexcept {
    for (std::size_t l = 0; l < static_cast<std::size_t>(kernels::block_size); ++l) {
        const A slope = multiply_add(gradient[l], c.gradient_scale, c.penalty * value[l]);
        const A mean = multiply_add(c.beta1, first[l], (A(1) - c.beta1) * slope);
        const A square = multiply_add(c.beta2, second[l], (A(1) - c.beta2) * (slope * slope));
        const A denominator = positive_root(square, c.correction2) + c.epsilon;
        first[l] = mean;
        second[l] = square;
        value[l] = multiply_add(c.keep, value[l], -(c.rate * ((mean * c.correction1) / denominator)));
    }
}

/// One fused pass over state that is kept as computed: reads p, g, m, v and writes p, m, v, each once.
/// Every block runs the same loop of fixed length, and the last block is padded.
/// Results therefore depend, to the bit, neither on the partition nor on the alignment.
template <class T>
void adam_update(const Execution& execution, T* p, const T* g, Accum<T>* m, Accum<T>* v, std::size_t size,
                 const AdamConstants<Accum<T>>& c) {
    using A = Accum<T>;
    constexpr std::ptrdiff_t width = kernels::block_size;
    const auto n = static_cast<std::ptrdiff_t>(size);
    const std::ptrdiff_t blocks = (n + width - 1) / width;
    parallel_for(execution.threads, blocks, kernels::work_threshold / width,
                 [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
                     // Lanes past the end hold numbers that are never stored.
                     kernels::Block<A> value{}, gradient{}, first{}, second{};
                     for (std::ptrdiff_t block = begin; block < end; ++block) {
                         const std::ptrdiff_t start = block * width, count = std::min(width, n - start);
                         kernels::load_block<T>(p + start, count, value);
                         kernels::load_block<T>(g + start, count, gradient);
                         kernels::load_block<A>(m + start, count, first);
                         kernels::load_block<A>(v + start, count, second);
                         adam_block(c, value.data(), gradient.data(), first.data(), second.data());
                         kernels::store_block<T>(value, count, p + start);
                         kernels::store_block<A>(first, count, m + start);
                         kernels::store_block<A>(second, count, v + start);
                     }
                 });
}

/// The constants of a parameter's update number `updates` that its moments depend on.
/// The optimiser sets `penalty`, `keep` and `rate`.
/// Options: AdamOptions, or a type with its fields.
template <class T, class Options>
[[nodiscard]] AdamConstants<Accum<T>> adam_constants(const Options& options, std::uint64_t updates,
                                                     double gradient_scale) {
    using A = Accum<T>;
    const auto beta1 = static_cast<A>(options.beta1), beta2 = static_cast<A>(options.beta2);
    const auto correction = [&](A beta) {  // from the rounded beta: 1 - 0.999f differs from 0.001 by 1e-5 of it
        const double power = std::pow(static_cast<double>(beta), static_cast<double>(updates));
        return static_cast<A>(options.bias_correction ? 1.0 / (1.0 - power) : 1.0);
    };
    return {.beta1 = beta1,
            .beta2 = beta2,
            .epsilon = static_cast<A>(options.epsilon),
            .gradient_scale = static_cast<A>(gradient_scale),
            .correction1 = correction(beta1),
            .correction2 = correction(beta2)};
}

/// Returns the options. Error: an option that `adam_constants` reads is out of range. `op` names the optimiser in it.
template <class T, class Options>
[[nodiscard]] Options checked_adam_options(const char* op, Options options) {
    const auto check_beta = [op](const char* name, double beta) {
        check(beta >= 0.0 && static_cast<Accum<T>>(beta) < Accum<T>(1), op, ": ", name, " is ", beta,
              "; expected a number from 0 to below 1");
    };
    check_beta("beta1", options.beta1);
    check_beta("beta2", options.beta2);
    check(std::isfinite(options.epsilon) && options.epsilon >= 0.0, op, ": epsilon is ", options.epsilon,
          "; expected a finite number, not negative");
    return options;
}

/// Adam's state of one parameter, and the parameter's update.
template <class T>
struct AdamState {
    StoredTensor<Accum<T>> master{}, first{}, second{};
    std::uint64_t updates = 0;

    /// Options: AdamOptions, or a type with its fields.
    template <class Options>
    AdamState(const Shape& shape, const Options& options)
        : first(shape, options.storage.first_moment, false, options.pool),
          second(shape, options.storage.second_moment, true, options.pool) {
        if (options.storage.master)
            master = StoredTensor<Accum<T>>(shape, *options.storage.master, false, options.pool);
    }

    /// The tensors of an update; `value` is the parameter's value, which the update writes.
    [[nodiscard]] StoredUpdate<T> tensors(const Parameter<T>& parameter, Tensor<T>& value) {
        return {.weights = value.data(),
                .gradient = parameter.gradient_data(),
                .coded_gradient = parameter.coded_gradient(),
                .size = value.size(),
                .master = master.empty() ? nullptr : &master,
                .first = &first,
                .second = &second,
                .key = {hash_name(parameter.name()), updates}};
    }

    /// Makes update number `updates` with adam_block.
    void update(const Execution& execution, const Parameter<T>& parameter, Tensor<T>& value,
                const AdamConstants<Accum<T>>& constants) {
        const StoredUpdate<T> all = tensors(parameter, value);
        if (all.master == nullptr && all.coded_gradient == nullptr && first.is_computed() && second.is_computed())
            return adam_update<T>(execution, all.weights, all.gradient, first.computed().data(),
                                  second.computed().data(), all.size, constants);
        if (first.is_propagated() || second.is_propagated()) {
            // m = beta1 m + (1 - beta1) g and v = beta2 v + (1 - beta2) g^2: the scales of their terms.
            const double unit = gradient_unit(execution, parameter), beta1 = constants.beta1, beta2 = constants.beta2;
            const bool is_first = updates == 1;
            if (first.is_propagated()) first.expect_sum(beta1, unit * pow2_down(1.0 - beta1), is_first);
            if (second.is_propagated()) second.expect_sum(beta2, unit * unit * pow2_down(1.0 - beta2), is_first);
        }
        update_stored<T>(execution, all,
                         [&constants](auto* p, auto* g, auto* m, auto* v) { adam_block(constants, p, g, m, v); });
    }

    template <class Visitor>
    void visit_state(Visitor&& visitor, const std::string& name) {
        if (!master.empty()) master.visit_state(visitor, name + "/master");
        first.visit_state(visitor, name + "/first_moment");
        second.visit_state(visitor, name + "/second_moment");
        visitor.scalar(name + "/updates", updates);
    }
};

/// Adam, and AdamW when the weight decay is coupled or independent.
/// For the gradient g of the t-th update of a parameter:
///   m = beta1 m + (1 - beta1) g         v = beta2 v + (1 - beta2) g^2
///   p = (1 - d) p - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon)
/// d is the share that weight decay takes (weight_decay.hpp); lr is the learning rate times the group's factor.
/// t is the parameter's own count: a parameter that is unfrozen late starts at t = 1. epsilon may be 0.
///
/// `options.storage` says how m, v and a master copy of p are kept (stored_tensor.hpp).
/// All arithmetic is in Accum<T>; m and v are kept in Accum<T> unless `options.storage` says otherwise.
/// v is never rounded from a positive number to zero.
/// Without a master copy the weights are updated in place and rounded to T, under the scale that they have.
/// A storage format keeps v from falling where half its unit is above 1 - beta2.
/// FP16 rounded to nearest serves up to beta2 = 0.9995, E4M3 up to 0.94; with stochastic rounding any format serves.
///
/// Results are equal, to the bit, for any thread count.
/// A step allocates only where it is the first of a parameter.
/// Trained parameters, and the optimiser's duties towards parameters: optimiser.hpp.
/// Units: `learning_rate` per update. Errors: the errors of resolve_groups; options or a learning rate out of range.
/// References: Kingma, Ba 2014, arXiv:1412.6980; Loshchilov, Hutter 2017, arXiv:1711.05101.
/// Test: tests/optim/adam_test.cpp
template <class T>
class Adam : public Optimiser<T, AdamOptions, AdamState<T>> {
    using A = Accum<T>;
    using Base = Optimiser<T, AdamOptions, AdamState<T>>;

public:
    explicit Adam(std::vector<Parameter<T>*> parameters, AdamOptions options = {});
    /// With the recipe's learning rates by parameter and its storage (`by_recipe`).
    template <std::same_as<Recipe> R>
    Adam(std::vector<Parameter<T>*> parameters, const R& recipe, AdamOptions options = {})
        : Adam(std::move(parameters), by_recipe("Adam", std::move(options), recipe)) {}

    /// Updates every parameter that is trained and has a gradient. Gradients stay: see clear_gradients.
    void step(const Execution& execution, double learning_rate);
};

// Every optimiser defines heavy members outside its class: users of unitscale::compiled then do not instantiate them.
template <class T>
Adam<T>::Adam(std::vector<Parameter<T>*> parameters, AdamOptions options)
    : Base("Adam", OptimiserKind::adam, WeightDecay::coupled, std::move(parameters),
           checked_adam_options<T>("Adam", std::move(options))) {}

template <class T>
void Adam<T>::step(const Execution& execution, double learning_rate) {
    this->for_each_update(learning_rate, [&](const ParameterUpdate<T, AdamState<T>>& one) {
        AdamConstants<A> constants =
            adam_constants<T>(this->options(), ++one.state.updates, one.parameter.gradient_scale());
        constants.penalty = static_cast<A>(one.penalty());
        constants.keep = static_cast<A>(one.keep(one.learning_rate));
        constants.rate = static_cast<A>(one.learning_rate / one.value.scale());
        one.state.update(execution, one.parameter, one.value, constants);
    });
}

}  // namespace unitscale::optim
