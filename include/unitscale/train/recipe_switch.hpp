// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/parameter.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/formats/format.hpp>
#include <unitscale/optim/loss_scaler.hpp>
#include <unitscale/optim/stored_tensor.hpp>
#include <unitscale/optim/stored_update.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/scaling/state.hpp>
#include <unitscale/tensor/cast.hpp>
#include <unitscale/tensor/rescale.hpp>
#include <unitscale/tensor/tensor.hpp>
#include <unitscale/train/checkpoint.hpp>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// A run that changes its recipe between two steps, from FP8 to BF16 near its end for instance:
//   const auto carried = train::leave_recipe(parts_of_first, first);
//   ... model, optimiser, scaler, state and tape of the second recipe, of another element type if it asks for one ...
//   train::enter_recipe(carried, parts_of_second, second);
namespace unitscale::train {

/// Error, with `what` in front: a run under `from` cannot go on under `to`.
/// The second recipe must give the same function of the same weights, and learning rates the same meaning.
/// So these fields must be equal: scaling, parametrisation, hyperparameters, vector_learning_rate, embedding_rate,
/// residual;
/// under `unit` constraint, automatic_rule, readout_exponent, gelu_constants and bias_inside_alpha too;
/// under `propagate` propagate.exact_norms.
/// All others may differ, formats of products, storage, loss scaling and clipping among them.
[[gnu::cold]] inline void check_recipe_switch(std::string_view what, const Recipe& from, const Recipe& to) {
    const auto same = [&](std::string_view field, const auto& before, const auto& after) {
        check(before == after, what, ": ", to.name, " has ", field, ' ', after, "; expected ", before, ", as ",
              from.name, " has");
    };
    same("scaling", name(from.scaling), name(to.scaling));
    same("parametrisation", name(from.parametrisation), name(to.parametrisation));
    const Hyperparameters &h = from.hyperparameters, &other = to.hyperparameters;
    same("hyperparameters.alpha_attn", h.alpha_attn, other.alpha_attn);
    same("hyperparameters.alpha_ffn_act", h.alpha_ffn_act, other.alpha_ffn_act);
    same("hyperparameters.alpha_loss_softmax", h.alpha_loss_softmax, other.alpha_loss_softmax);
    same("hyperparameters.init_sigma", h.init_sigma, other.init_sigma);
    same("hyperparameters.alpha_emb", h.alpha_emb, other.alpha_emb);
    same("hyperparameters.alpha_out", h.alpha_out, other.alpha_out);
    same("hyperparameters.embedding_rate", h.embedding_rate, other.embedding_rate);
    same("hyperparameters.base_width", h.base_width, other.base_width);
    same("hyperparameters.base_depth", h.base_depth, other.base_depth);
    same("residual.scheme", name(from.residual.scheme), name(to.residual.scheme));
    same("residual.tau", from.residual.tau, to.residual.tau);
    same("residual.share", from.residual.share.value_or(0.0), to.residual.share.value_or(0.0));
    same("residual.multiplier", from.residual.multiplier, to.residual.multiplier);
    same("residual.attention_ratio", from.residual.attention_ratio, to.residual.attention_ratio);
    const auto truth = [](bool value) { return std::string_view(value ? "true" : "false"); };
    same("vector_learning_rate", truth(from.vector_learning_rate), truth(to.vector_learning_rate));
    same("embedding_rate", name(from.embedding_rate), name(to.embedding_rate));
    if (from.scaling == Scaling::unit) {
        same("constraint", name(from.constraint), name(to.constraint));
        same("automatic_rule", name(from.automatic_rule), name(to.automatic_rule));
        same("readout_exponent", from.readout_exponent, to.readout_exponent);
        same("gelu_constants", name(from.gelu_constants), name(to.gelu_constants));
        same("bias_inside_alpha", truth(from.bias_inside_alpha), truth(to.bias_inside_alpha));
    }
    if (from.scaling == Scaling::propagate)
        same("propagate.exact_norms", truth(from.propagate.exact_norms), truth(to.propagate.exact_norms));
}

/// A weight between two recipes.
template <std::floating_point A>
struct CarriedWeight {
    std::string name{};
    ParameterFacts facts{};
    bool requires_gradient = true;
    Tensor<A> value{};  ///< before it was rounded to the element type; with the scale of the weight
};

/// A run between two recipes: all of it that the second recipe takes over, in numbers of A.
template <std::floating_point A>
struct CarriedRun {
    Recipe recipe{};  ///< the first
    std::vector<CarriedWeight<A>> weights{};
    std::map<std::string, Tensor<A>> state{};       ///< of the optimiser, by name, decoded; without master copies
    std::map<std::string, std::uint64_t> counts{};  ///< of the optimiser, by name
    std::map<std::string, double> plan{};           ///< forward factors
    std::uint64_t step = 0, seed = 0, skipped = 0;
};

/// An optimiser's state by name: a visitor for `visit_state`. It borrows the tensors.
template <std::floating_point A>
class StateIndex {
public:
    void stored(const std::string& name, optim::StoredTensor<A>& tensor) { stored_[name] = &tensor; }
    /// Tensors of a user's own optimiser, outside of a StoredTensor.
    template <class Element>
    void tensor(const std::string& name, Tensor<Element>& tensor) {
        if constexpr (std::same_as<Element, A>) plain_[name] = &tensor;
        else fail("recipe switch: optimiser state ", name, " is neither a StoredTensor nor of the type of sums");
    }
    template <class Code>
    void codes(const std::string& name, const FloatFormat&, Tensor<Code>&) {
        fail("recipe switch: optimiser state ", name, " holds codes outside of a StoredTensor");
    }
    void scalar(const std::string& name, std::uint64_t& value) { counts_[name] = &value; }

    /// Takes the master copy of a parameter out of the index; null: there is none.
    [[nodiscard]] optim::StoredTensor<A>* take_master(const std::string& parameter) {
        const auto found = stored_.find(parameter + "/master");
        if (found == stored_.end()) return nullptr;
        optim::StoredTensor<A>* const master = found->second;
        stored_.erase(found);
        return master;
    }

    [[nodiscard]] std::map<std::string, Tensor<A>> values() const {
        std::map<std::string, Tensor<A>> all;
        for (const auto& [name, tensor] : plain_) all.emplace(name, *tensor);
        for (const auto& [name, tensor] : stored_) all.emplace(name, tensor->values());
        return all;
    }
    [[nodiscard]] std::map<std::string, std::uint64_t> counts() const {
        std::map<std::string, std::uint64_t> all;
        for (const auto& [name, count] : counts_) all.emplace(name, *count);
        return all;
    }

    /// Error: `state` has other names or other sizes than the index.
    void check_same(const std::map<std::string, Tensor<A>>& state) const {
        const auto check_one = [&](const std::string& name, std::size_t size) {
            const auto found = state.find(name);
            check(found != state.end(), "recipe switch: optimiser state ", name, expectation("after"));
            check(found->second.size() == size, "recipe switch: optimiser state ", name, " has ", size,
                  " values; before the switch it has ", found->second.size());
        };
        for (const auto& [name, tensor] : plain_) check_one(name, tensor->size());
        for (const auto& [name, tensor] : stored_) check_one(name, tensor->size());
        for (const auto& [name, tensor] : state)
            check(plain_.contains(name) || stored_.contains(name), "recipe switch: optimiser state ", name,
                  expectation("before"));
    }
    /// Writes checked state. Counts that only one of the two has are left alone.
    void set(const std::map<std::string, Tensor<A>>& state, const std::map<std::string, std::uint64_t>& counts) {
        for (const auto& [name, tensor] : plain_) {
            const Tensor<A>& from = state.at(name);
            std::copy_n(from.data(), from.size(), tensor->data());
            tensor->set_scale(from.scale());
        }
        for (const auto& [name, tensor] : stored_) tensor->assign(value(state.at(name)).span(), rounding_key(name));
        for (const auto& [name, count] : counts_)
            if (const auto found = counts.find(name); found != counts.end()) *count = found->second;
    }

    /// Of a tensor's stochastic rounding at the switch. The optimisers' updates have other streams.
    [[nodiscard]] static RandomKey rounding_key(const std::string& name) noexcept {
        return {hash_name(name), hash_name("recipe switch")};
    }

private:
    [[nodiscard]] static std::string expectation(std::string_view place) {
        return concatenate(" exists only ", place, " the switch; expected the same optimiser and trained parameters");
    }

    std::map<std::string, optim::StoredTensor<A>*> stored_{};
    std::map<std::string, Tensor<A>*> plain_{};
    std::map<std::string, std::uint64_t*> counts_{};
};

/// The weight of type T that an update leaves for these values: rounded to the master's format, if there is a master,
/// then to T.
template <class T>
[[nodiscard]] Tensor<T> rounded_weight(const std::string& name, const Tensor<Accum<T>>& values,
                                       const optim::StoredTensor<Accum<T>>* master) {
    using State = optim::StoredTensor<Accum<T>>;
    Tensor<T> weight(values.shape());
    weight.set_scale(values.scale());
    const auto store = [&weight](const Tensor<Accum<T>>& exact) {
        optim::store_elements<T>(exact.data(), static_cast<std::ptrdiff_t>(exact.size()), weight.data());
    };
    if (master == nullptr) {
        store(values);
    } else {
        State copy(values.shape(), master->how());
        copy.assign(values.span(), StateIndex<Accum<T>>::rounding_key(name + "/master"));
        store(copy.values());
    }
    for (std::size_t i = 0; i < values.size(); ++i)
        check(std::isfinite(widest(weight.data()[i])) || !std::isfinite(values.data()[i]), "recipe switch: ", name,
              " holds ", values.data()[i], ", which the second recipe's weights cannot");
    return weight;
}

/// What the next recipe takes over from a run under `recipe`. The run is unchanged, and may go on or end.
/// Weights are the values of their master copies where there are any (load_exact_weights), and keep their scales.
/// The optimiser's state is decoded, exactly.
/// Step, seed and planned forward factors are carried, and so is the number of skipped steps.
/// Not carried: gradients and remainders of error feedback, the loss scale, the magnitudes of past steps that it and
/// `delayed` scales follow.
/// `run.optimiser` is any class with `visit_state`, as `save_run` takes it.
/// Errors: an optimiser of one's own has state that is neither a StoredTensor nor a Tensor<Accum<T>>; other processes
/// hold a part of the optimiser's state.
/// Test: tests/train/recipe_switch_test.cpp
template <class T, class Optimiser>
[[nodiscard]] CarriedRun<Accum<T>> leave_recipe(const RunParts<T, Optimiser>& run, const Recipe& recipe) {
    using State = optim::StoredTensor<Accum<T>>;
    optim::check_whole_state("recipe switch", run.optimiser);
    StateIndex<Accum<T>> index;
    run.optimiser.visit_state(index);
    CarriedRun<Accum<T>> carried{.recipe = recipe,
                                 .plan = run.state.plan(),
                                 .step = run.state.step(),
                                 .seed = run.state.seed(),
                                 .skipped = run.scaler.skipped()};
    typename State::Chunk exact{}, scratch{};
    for (const Parameter<T>* parameter : run.parameters) {
        const Tensor<T>& weight = parameter->value();
        const State* const master = index.take_master(parameter->name());
        Tensor<Accum<T>> all(weight.shape());
        all.set_scale(weight.scale());
        const auto size = static_cast<std::ptrdiff_t>(weight.size());
        for (std::ptrdiff_t begin = 0; begin < size; begin += State::chunk) {
            const std::ptrdiff_t count = std::min(State::chunk, size - begin);
            optim::load_exact_weights<T>(weight.data(), master, begin, count, exact, scratch);
            std::copy_n(exact.begin(), count, all.data() + begin);
        }
        carried.weights.push_back(
            {parameter->name(), parameter->facts(), parameter->requires_gradient(), std::move(all)});
    }
    carried.state = index.values();
    carried.counts = index.counts();
    return carried;
}

/// Lets a new model with its optimiser take over a run, under `recipe`, from the next step on.
/// The run's model is the first recipe's, and its optimiser is of the same kind; the element type T may be another one.
/// Let x be a carried weight. As in an update:
///   with a master copy:  master = x rounded to its format    weight = master rounded to T
///   else:                weight = x rounded to T
/// Moments are rounded to their formats, and positive second moments stay positive. Rounding follows `recipe.storage`.
/// A switch to the first recipe itself changes no bit of the steps that follow, with these exceptions.
/// The loss scale begins at its initial value. It and `delayed` scales begin without past magnitudes. Error feedback
/// begins without remainders.
/// Errors, before anything is changed: the errors of check_recipe_switch; parameters with other names, shapes or facts;
/// state of another optimiser; a finite weight that is infinite in T. Test: tests/train/recipe_switch_test.cpp
template <class T, class Optimiser>
void enter_recipe(const CarriedRun<Accum<T>>& carried, const RunParts<T, Optimiser>& run, const Recipe& recipe) {
    using State = optim::StoredTensor<Accum<T>>;
    check_recipe_switch("recipe switch", carried.recipe, recipe);
    check(carried.weights.size() == run.parameters.size(), "recipe switch: ", run.parameters.size(),
          " parameters; before the switch there are ", carried.weights.size());
    StateIndex<Accum<T>> index;
    run.optimiser.visit_state(index);
    std::vector<State*> masters;
    std::vector<Tensor<T>> weights;
    for (std::size_t i = 0; i < run.parameters.size(); ++i) {
        const Parameter<T>& parameter = *run.parameters[i];
        const CarriedWeight<Accum<T>>& from = carried.weights[i];
        check(parameter.name() == from.name && parameter.shape() == from.value.shape(), "recipe switch: parameter ", i,
              " is ", parameter.name(), ' ', shape_text(parameter.shape()), "; before the switch it is ", from.name,
              ' ', shape_text(from.value.shape()));
        if (parameter.facts() != from.facts)
            fail("recipe switch: ", from.name, " has the facts ", io::facts_to_json(parameter.facts()).dump(),
                 "; before the switch it has ", io::facts_to_json(from.facts).dump());
        masters.push_back(index.take_master(from.name));
        weights.push_back(rounded_weight<T>(from.name, from.value, masters.back()));
    }
    index.check_same(carried.state);

    for (std::size_t i = 0; i < weights.size(); ++i) {
        const CarriedWeight<Accum<T>>& from = carried.weights[i];
        if (masters[i] != nullptr)
            masters[i]->assign(from.value.span(), StateIndex<Accum<T>>::rounding_key(from.name + "/master"));
        run.parameters[i]->write() = std::move(weights[i]);
        run.parameters[i]->set_requires_gradient(from.requires_gradient);
    }
    index.set(carried.state, carried.counts);
    struct Progress {
        const CarriedRun<Accum<T>>& carried;
        void scalar(const std::string& name, std::uint64_t& value) const {
            if (name == "step") value = carried.step;
            if (name == "seed") value = carried.seed;
            if (name == "loss_scale/skipped") value = carried.skipped;
        }
        void table(const std::string& name, std::map<std::string, double>& table) const {
            if (name == "plan") table = carried.plan;
            else table.clear();
        }
        void number(const std::string&, double&) const {}
    };
    run.state.visit_state(Progress{carried});
    run.scaler = optim::LossScaler(recipe.loss_scaling);
    run.scaler.visit_state(Progress{carried});
}

}  // namespace unitscale::train
