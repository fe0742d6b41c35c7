// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/record/arguments.hpp>
#include <unitscale/record/factors.hpp>
#include <unitscale/scaling/constraint.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace unitscale::ops {

/// How an op is recorded, beside its name, inputs and factors.
struct Recording {
    Reads reads{};                                    ///< values that its backward function reads: see Reads
    bool any_scale = false;                           ///< under `propagate`: flag of its value, see `Tensor::any_scale`
    std::uint64_t multiply_adds = 0;                  ///< of its matrix products in the forward pass
    std::optional<double> item{};                     ///< a loss before rounding to T: see `Variable::item`
    Betas output_weights{std::span<const double>()};  ///< factors of arriving gradients, one per output; empty: all 1
};

/// The constraint of an op with a weight that other ops of the step use, too. The weight's own factor is right if all
/// these ops count all uses, so only alpha and beta_x are joined. The plan would take the weight for no cut-edge, and
/// join its factor with theirs. Where the recipe leaves joining to the plan, this is the rule that the plan applies.
template <class T>
[[nodiscard]] Constraint joined_at_once(const Tape<T>& tape, const std::optional<Constraint>& constraint) {
    const Recipe& recipe = tape.recipe();
    const Constraint rule = constraint.value_or(recipe.constraint);
    return rule == Constraint::automatic ? recipe.automatic_rule : rule;
}

/// An op of up to N inputs from `begin_op` to `record`: its tape, site, inputs, factors. An op header reads
///   auto op = begin_op("relu", x);                              the tape of x, the next site of this name
///   op.set_factors(relu_unit_factors(), options.constraint);    all 1 if the recipe applies no factors
///   const Scaled scaled = op.scaled_alpha(x's scale);           alpha, and the scale under `propagate`
///   Tensor<T> y = op.make(shape);                               the forward kernel fills it
///   return op.record(std::move(y), scaled.scale, {.reads = reads_inputs}, backward);
/// It cannot be copied, so that no backward function keeps its inputs alive by capturing it.
/// Test: tests/record/op_test.cpp
template <class T, std::size_t N>
class Op {
public:
    /// Use `begin_op`. `inputs[i]` is argument `arguments[i]`, for the `count` arguments that are present.
    Op(const char* name, Tape<T>& tape, std::array<Variable<T>, N>&& inputs, std::array<std::size_t, N> arguments,
       std::size_t count)
        : name_(name), tape_(tape), inputs_(std::move(inputs)), arguments_(arguments), count_(count) {
        site_ = tape.next_site(name);
    }
    Op(const Op&) = delete;
    Op& operator=(const Op&) = delete;

    [[nodiscard]] const char* name() const noexcept { return name_; }
    [[nodiscard]] Tape<T>& tape() const noexcept { return tape_; }
    [[nodiscard]] Site site() const noexcept { return site_; }
    [[nodiscard]] Execution execution() const noexcept { return tape_.execution(); }
    [[nodiscard]] RandomKey random_key(std::uint64_t part = 0) const noexcept { return tape_.random_key(site_, part); }

    /// Input i as data and scale. Inputs are numbered as they are recorded: absent arguments are left out.
    [[nodiscard]] const Tensor<T>& input(std::size_t i) const { return inputs_[i].scaled(); }
    [[nodiscard]] const Variable<T>& variable(std::size_t i) const noexcept { return inputs_[i]; }
    /// The number of inputs; `has`: whether argument i of `begin_op` is one of them.
    [[nodiscard]] std::size_t input_count() const noexcept { return count_; }
    [[nodiscard]] bool has(std::size_t argument) const noexcept { return index(argument) < count_; }
    /// The number of the input that comes from this argument; `input_count` if the argument is absent.
    [[nodiscard]] std::size_t index(std::size_t argument) const noexcept {
        std::size_t i = 0;
        while (i < count_ && arguments_[i] != argument) ++i;
        return i;
    }

    /// An uninitialised tensor from the tape's pool.
    [[nodiscard]] Tensor<T> make(const Shape& shape) const { return tape_.make(shape); }

    [[nodiscard]] const Factors<N>& factors() const noexcept { return factors_; }

    /// Sets ideal factors that the op's own rule relates to each other, so that no constraint joins them. They are
    /// recorded as given under `unit` and `propagate`. Under `none` all factors stay 1.
    void set_factors(const Factors<N>& ideal) noexcept {
        if (tape_.uses_factors()) factors_ = ideal;
    }

    /// Sets ideal factors. A constraint joins alpha and the betas of the first `joined` arguments: `constraint`, or the
    /// recipe's constraint if it is empty. Under `unit`, `automatic` takes the planned alpha and leaves the betas to
    /// the backward pass. Any other constraint joins the factors here. Under `propagate` factors become scales and stay
    /// ideal. Under `none` all stay 1. Error, in the name of the op: a factor that is not positive and finite.
    [[gnu::noinline]] void set_factors(const Factors<N>& ideal, const std::optional<Constraint>& constraint,
                                       std::size_t joined = N) {
        if (!tape_.uses_factors()) return;
        check_usable(ideal);
        factors_ = ideal;
        if (tape_.propagates()) return;
        const Constraint rule = constraint.value_or(tape_.recipe().constraint);
        if (rule == Constraint::automatic) {
            factors_.alpha = tape_.forward_factor(name_, site_, factors_.alpha);
            return;
        }
        constrain(name_, rule, factors_.alpha, std::span(factors_.betas).first(joined));
        joined_by_ = JoinedBy::hand;
    }

    /// Multiplies an argument's beta after the constraint, for an op whose rule for it depends on the final alpha.
    void multiply_beta(std::size_t argument, double factor) noexcept { factors_.betas[argument] *= factor; }

    /// The factors that a caller states for an op without a rule of its own. If none are stated: `otherwise`, or under
    /// `unit` an error.
    [[nodiscard]] Factors<N> stated(const std::optional<Factors<N>>& unit, const Factors<N>& otherwise = {}) const {
        check(!tape_.unit_scaled() || unit.has_value(), name_,
              ": no rule for scaling 'unit'; state its factors with {.unit = Factors<", N, ">{.alpha = a, .betas = {b",
              N > 1 ? ", ..." : "", "}}}");
        return unit.value_or(otherwise);
    }

    /// States how the factors are joined, if neither by the plan nor by an explicit constraint: see JoinedBy.
    void set_joined_by(JoinedBy joined_by) noexcept { joined_by_ = joined_by; }

    /// Data factor and scale of the value; `scales` is the product of the inputs' scales: see `Tape::scaled_alpha`.
    [[nodiscard]] Scaled scaled_alpha(double scales) const {
        const Scaled scaled = tape_.scaled_alpha(site_, factors_.alpha, scales);
        return tape_.propagates() ? tape_.carried(site_, scales, scaled.scale) : scaled;
    }
    /// The same for an op whose value keeps a scale that its inputs imply: `scales` under `propagate`.
    [[nodiscard]] Scaled kept_scale(double scales) const {
        return tape_.propagates() ? tape_.carried(site_, scales, scales) : Scaled{factors_.alpha, 1.0};
    }

    /// Records the op with its value and the value's scale. `backward(BackwardContext<T>&)` holds copies only.
    template <class Backward>
    [[nodiscard]] Variable<T> record(Tensor<T>&& value, double scale, const Recording& recording, Backward&& backward) {
        value.set_scale(scale);
        value.set_any_scale(tape_.propagates() && recording.any_scale);
        const std::array<double, N> betas = input_betas();
        return tape_.record(info(recording, betas), std::span<const Variable<T>>(inputs_.data(), count_),
                            std::move(value), std::forward<Backward>(backward));
    }

    /// Records an op with several outputs. Their scales are set already.
    template <class Backward>
    [[nodiscard]] std::vector<Variable<T>> record_outputs(std::span<Tensor<T>> outputs, const Recording& recording,
                                                          Backward&& backward) {
        for (Tensor<T>& output : outputs) output.set_any_scale(tape_.propagates() && recording.any_scale);
        const std::array<double, N> betas = input_betas();
        return tape_.record_outputs(info(recording, betas), std::span<const Variable<T>>(inputs_.data(), count_),
                                    outputs, std::forward<Backward>(backward));
    }

    /// Records an op with M outputs that all repeat its first input; no copy is made.
    template <std::size_t M, class Backward>
    [[nodiscard]] std::array<Variable<T>, M> record_repeats(const Recording& recording, Backward&& backward) {
        const std::array<double, N> betas = input_betas();
        return tape_.template record_repeats<M>(info(recording, betas),
                                                std::span<const Variable<T>>(inputs_.data(), count_),
                                                std::forward<Backward>(backward));
    }

private:
    void check_usable(const Factors<N>& ideal) const {
        check_positive(name_, "alpha", ideal.alpha);
        for (const double beta : ideal.betas) check_positive(name_, "beta", beta);
    }
    /// The betas of the arguments that are present.
    [[nodiscard]] std::array<double, N> input_betas() const noexcept {
        std::array<double, N> betas{};
        for (std::size_t i = 0; i < count_; ++i) betas[i] = factors_.betas[arguments_[i]];
        return betas;
    }
    [[nodiscard]] OpInfo info(const Recording& recording, const std::array<double, N>& betas) const noexcept {
        return {.name = name_,
                .site = site_,
                .alpha = factors_.alpha,
                .betas = std::span<const double>(betas.data(), count_),
                .joined_by = joined_by_,
                .multiply_adds = recording.multiply_adds,
                .output_weights = recording.output_weights,
                .reads = recording.reads,
                .propagates = true,
                .item = recording.item};
    }

    const char* name_;
    Tape<T>& tape_;
    Site site_{};
    std::array<Variable<T>, N> inputs_;
    std::array<std::size_t, N> arguments_;
    std::size_t count_;
    Factors<N> factors_{};
    JoinedBy joined_by_ = JoinedBy::plan;
};

/// An argument of an op: a variable, or an optional one that may be absent.
template <class A, class T>
concept OpArgument = std::same_as<A, Variable<T>> || std::same_as<A, std::optional<Variable<T>>>;

/// Begins the op `name` at the next site of this name in the current module. `name` must outlive the step.
/// Error, in the name of the op: x is empty, or its tape is gone.
template <class T, OpArgument<T>... More>
[[nodiscard]] Op<T, 1 + sizeof...(More)> begin_op(const char* name, const Variable<T>& x, const More&... more) {
    constexpr std::size_t arguments = 1 + sizeof...(More);
    Tape<T>& tape = x.tape(name);
    std::array<Variable<T>, arguments> inputs{x};
    std::array<std::size_t, arguments> numbers{};
    std::size_t count = 1, argument = 1;
    [[maybe_unused]] const auto add = [&]<class A>(const A& input) {
        if constexpr (std::same_as<A, Variable<T>>) {
            inputs[count] = input;
        } else {
            if (!input) return static_cast<void>(++argument);
            inputs[count] = *input;
        }
        numbers[count++] = argument++;
    };
    (add(more), ...);
    return Op<T, arguments>(name, tape, std::move(inputs), numbers, count);
}

}  // namespace unitscale::ops
