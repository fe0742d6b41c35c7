// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/backward.hpp>
#include <unitscale/autograd/observer.hpp>
#include <unitscale/autograd/op_info.hpp>
#include <unitscale/autograd/parameter.hpp>
#include <unitscale/autograd/planner.hpp>
#include <unitscale/autograd/recorded_graph.hpp>
#include <unitscale/autograd/variable.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/base/parallel.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/scaling/state.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace unitscale {

/// What a step is.
struct StepOptions {
    std::size_t micro_batches = 1;  ///< parts that the step's batch is cut into, each with a begin_step of its own
    std::size_t micro_batch = 0;    ///< which of them this is
    bool training = true;           ///< false: dropout keeps every value, random streams do not advance
    bool gradients = true;          ///< false: no backward pass will follow, nothing is kept for it
    bool retain = false;            ///< true: the backward pass keeps values and gradients of all ops for inspection
    bool true_gradients = false;    ///< true: every beta is its op's alpha; gradients are those of the scaled function
};

/// Reverse-mode differentiation of one step at a time. Ops record themselves as they run; `backward` walks back.
/// The tape borrows recipe and state, which outlive it. Buffers come from its pool and go back there, so that a step
/// after the first of its kind allocates nothing. One tape is used by one thread at a time; several tapes may share
/// parameters that none of them trains. After a throw the tape is usable: call `begin_step`.
/// T: float, double, Half or BFloat16. Test: tests/autograd/tape_test.cpp
template <class T>
class Tape {
public:
    Tape(const Recipe& recipe, ScalingState& state, int threads = 1)
        : recipe_(&recipe), state_(&state), threads_(threads), pool_(std::make_shared<MemoryPool>()) {
        check(threads >= 1, "Tape: threads is ", threads, "; expected at least 1");
    }
    Tape(const Tape&) = delete;
    Tape& operator=(const Tape&) = delete;
    ~Tape() = default;

    [[nodiscard]] const Recipe& recipe() const noexcept { return *recipe_; }
    [[nodiscard]] ScalingState& state() noexcept { return *state_; }
    [[nodiscard]] bool unit_scaled() const noexcept { return recipe_->scaling == Scaling::unit; }
    [[nodiscard]] Execution execution() const noexcept { return {threads_, pool_.get()}; }
    [[nodiscard]] const std::shared_ptr<MemoryPool>& pool() const noexcept { return pool_; }
    [[nodiscard]] const StepOptions& step_options() const noexcept { return options_; }

    /// Rows of the whole step for `rows` rows of this micro-batch: what the factors of weights' gradients depend on.
    [[nodiscard]] std::size_t step_rows(std::size_t rows) const noexcept { return rows * options_.micro_batches; }

    /// Sees every tensor from now on; null detaches. The tape borrows it.
    void set_observer(Observer<T>* observer) noexcept { observer_ = observer; }

    /// Forgets the last step and starts another. Handles of the last one become errors.
    void begin_step(const StepOptions& options = {}) {
        check(options.micro_batches >= 1 && options.micro_batch < options.micro_batches, "begin_step: micro_batch ",
              options.micro_batch, " of ", options.micro_batches, "; expected a number below micro_batches");
        forget();
        options_ = options;
        ++generation_;
        backward_done_ = false;
        const bool trains = options.training && options.gradients;
        if (trains && options.micro_batch == 0) state_->set_step(state_->step() + 1);
        if (observer_ != nullptr) observer_->begin_step({state_->step(), trains, options.micro_batch, options.micro_batches});
    }

    /// An uninitialised tensor from the tape's pool.
    [[nodiscard]] Tensor<T> make(const Shape& shape) { return Tensor<T>(shape, pool_); }

    /// Records one step without a backward pass or an update and fixes the forward factor of every op under `unit`: where
    /// the recipe's `automatic_rule` joins factors, those of {alpha, betas of the inputs that are not cut-edges}. The plan is
    /// kept in the state: from then on an op has this factor whatever the sizes of its inputs. Call it before the first
    /// update; a state that has a plan keeps it. `record()` runs the model and returns the loss, or a range of losses.
    /// With the rule `to_output_scale` ideal forward factors stand as they are, and planning is not required.
    template <class Record>
    void plan(Record&& record, StepOptions options = {}) {
        if (!unit_scaled() || state_->has_plan()) return;
        options.training = options.retain = options.true_gradients = false;
        options.gradients = true;
        begin_step(options);
        planning_ = true;
        asked_.clear();
        struct End {
            Tape& tape;
            ~End() {
                tape.planning_ = false;
                tape.forget();
                ++tape.generation_;
            }
        } const end{*this};
        const auto losses = record();
        if constexpr (std::is_same_v<std::decay_t<decltype(losses)>, Variable<T>>) find_cut_edges({&losses, 1});
        else find_cut_edges(losses);
        std::sort(asked_.begin(), asked_.end());
        planner_.fix_alphas(graph_, recipe_->automatic_rule, asked_, *state_);
    }

    /// The forward factor of the op at `site`, whose ideal one is alpha: the plan's if it has one, else alpha. Only
    /// ops that ask have their forward factor planned; that of others is fixed, and their betas alone follow. Error: the recipe's rule needs a plan and there is none.
    [[nodiscard]] double forward_factor(const char* op, Site site, double alpha) {
        if (planning_) {
            asked_.push_back(site.id);
            return alpha;
        }
        if (const std::optional<double> planned = state_->planned_alpha(site)) return *planned;
        check(recipe_->automatic_rule == Constraint::to_output_scale, op, ": no forward factor planned for ", state_->path(site),
              "; the rule ", unitscale::name(recipe_->automatic_rule),
              " joins it with gradient factors: call Tape::plan before the first step");
        return alpha;
    }

    /// Finds the cut-edges of what has been recorded so far, the losses joined.
    void find_cut_edges(std::span<const Variable<T>> losses) {
        loss_slots_.clear();
        for (const Variable<T> loss : losses) {
            static_cast<void>(checked("backward", loss));
            loss_slots_.push_back(loss.slot_);
        }
        planner_.find_cut_edges(graph_, loss_slots_);
    }

    /// The same, and gives every op that the plan joins its betas. `backward` does so by itself.
    void join_factors(std::span<const Variable<T>> losses) {
        find_cut_edges(losses);
        planner_.join_betas(graph_);
    }
    [[nodiscard]] const Planner& planner() const noexcept { return planner_; }

    /// Puts a tensor on the tape.
    [[nodiscard]] Variable<T> input(Tensor<T> tensor, bool requires_gradient = false) {
        check_begun("input");
        graph_.add_input(std::move(tensor), requires_gradient && options_.gradients);
        return last_handle();
    }

    /// Puts a parameter on the tape: its value as it is now, by reference. The same parameter is one vertex, however
    /// often it is used. A const one is a vertex of its own, without gradient.
    [[nodiscard]] Variable<T> parameter(Parameter<T>& parameter) {
        return parameter_slot(parameter, parameter.requires_gradient() ? &parameter : nullptr);
    }
    [[nodiscard]] Variable<T> parameter(const Parameter<T>& parameter) { return parameter_slot(parameter, nullptr); }

    /// The same value without a way back for the gradient.
    [[nodiscard]] Variable<T> detach(Variable<T> x) {
        const Tensor<T>& value = *checked("detach", x).value;
        Tensor<T> copy = make(value.shape());
        std::copy_n(value.data(), value.size(), copy.data());
        copy.set_scale(value.scale());
        return input(std::move(copy));
    }

    /// Names the module that the following ops belong to, until the guard dies.
    class ScopeGuard {
    public:
        ScopeGuard(Tape& tape, std::string_view name) : tape_(tape), outer_(tape.scope_) {
            tape.scope_ = tape.state_->scope(tape.scope_, name);
        }
        ScopeGuard(const ScopeGuard&) = delete;
        ScopeGuard& operator=(const ScopeGuard&) = delete;
        ~ScopeGuard() { tape_.scope_ = outer_; }

    private:
        Tape& tape_;
        ScalingState::Scope outer_;
    };
    [[nodiscard]] ScopeGuard scope(std::string_view name) { return ScopeGuard(*this, name); }

    /// The site of the op that is about to run: the first of that name in this scope that this step has not used.
    [[nodiscard]] Site next_site(const char* op) {
        const Site site = peek_site(op);
        site_generation_[site.id] = generation_;
        return site;
    }

    /// The same, left unused.
    [[nodiscard]] Site peek_site(const char* op) {
        for (std::uint32_t ordinal = 0;; ++ordinal) {
            const Site site = state_->site(scope_, op, ordinal);
            if (site.id >= site_generation_.size()) site_generation_.resize(site.id + 1, 0);
            if (site_generation_[site.id] != generation_) return site;
        }
    }

    /// The random stream of a site in this step and micro-batch.
    [[nodiscard]] RandomKey random_key(Site site, std::uint64_t part = 0) const noexcept {
        return state_->random_key(site, mix(options_.micro_batch, part));
    }

    /// Records an op with one output. `backward(BackwardContext<T>&)` is kept only if an input needs a gradient; it must
    /// not hold references to the op's arguments, only copies.
    template <class Backward>
    Variable<T> record(const OpInfo& op, std::initializer_list<Variable<T>> inputs, Tensor<T>&& output, Backward&& backward) {
        return record(op, std::span<const Variable<T>>(inputs.begin(), inputs.size()), std::move(output),
                      std::forward<Backward>(backward));
    }
    template <class Backward>
    Variable<T> record(const OpInfo& op, std::span<const Variable<T>> inputs, Tensor<T>&& output, Backward&& backward) {
        Node<T>& node = new_node(op, inputs);
        const Variable<T> result = add_output(node, std::move(output));
        graph_.keep_backward(node, std::forward<Backward>(backward));
        return result;
    }

    /// Records an op whose N outputs all repeat its first input (no copy is made).
    template <std::size_t N, class Backward>
    std::array<Variable<T>, N> record_repeats(const OpInfo& op, std::initializer_list<Variable<T>> inputs, Backward&& backward) {
        const Tensor<T>* value = checked(op.name, *inputs.begin()).value;
        Node<T>& node = new_node(op, std::span<const Variable<T>>(inputs.begin(), inputs.size()));
        std::array<Variable<T>, N> results;
        for (auto& result : results) result = add_output(node, Tensor<T>(), value);
        graph_.keep_backward(node, std::forward<Backward>(backward));
        return results;
    }

    /// Records an op with several outputs.
    template <std::size_t N, class Backward>
    std::array<Variable<T>, N> record_outputs(const OpInfo& op, std::initializer_list<Variable<T>> inputs,
                                              std::array<Tensor<T>, N>&& outputs, Backward&& backward) {
        Node<T>& node = new_node(op, std::span<const Variable<T>>(inputs.begin(), inputs.size()));
        std::array<Variable<T>, N> results;
        for (std::size_t i = 0; i < N; ++i) results[i] = add_output(node, std::move(outputs[i]));
        graph_.keep_backward(node, std::forward<Backward>(backward));
        return results;
    }

    /// Gradients of seeds[0] losses[0] + seeds[1] losses[1] + ... with respect to every parameter and input that asked
    /// for one. Parameters add to the gradient they have. Loss scaling is a seed.
    /// Error: a loss of several elements, no loss that depends on anything trained, a second call in one step.
    void backward(Variable<T> loss, Accum<T> seed = 1) {
        const Variable<T> losses[] = {loss};
        const Accum<T> seeds[] = {seed};
        backward(std::span<const Variable<T>>(losses), std::span<const Accum<T>>(seeds));
    }
    void backward(std::initializer_list<Variable<T>> losses, std::initializer_list<Accum<T>> seeds) {
        backward(std::span<const Variable<T>>(losses.begin(), losses.size()),
                 std::span<const Accum<T>>(seeds.begin(), seeds.size()));
    }
    void backward(std::span<const Variable<T>> losses, std::span<const Accum<T>> seeds) {
        check(losses.size() == seeds.size(), "backward: ", losses.size(), " losses but ", seeds.size(), " seeds");
        check(options_.gradients, "backward: this step was begun with gradients = false");
        check(!backward_done_, "backward: called twice in one step; join the losses in one call");
        bool reaches = false;
        for (const Variable<T> loss : losses) {
            const Slot<T>& slot = checked("backward", loss);
            check(slot.value->size() == 1, "backward: loss of shape ", to_string(slot.value->shape()), "; expected one element");
            reaches = reaches || slot.requires_gradient;
        }
        check(reaches, "backward: no loss depends on a parameter or input that requires a gradient");
        backward_done_ = true;
        if (unit_scaled()) join_factors(losses);
        for (std::size_t i = 0; i < losses.size(); ++i) {
            Slot<T>& slot = graph_.slots()[losses[i].slot_];
            slot.leaf = true;  // the caller still wants to read it
            Tensor<T> seed = make(slot.value->shape());
            seed.data()[0] = static_cast<T>(seeds[i]);
            if (slot.requires_gradient) add_gradient(execution(), slot, std::move(seed));
        }
        for (std::size_t i = graph_.nodes().size(); i-- > 0;) run_backward(graph_.nodes()[i]);
        if (observer_ != nullptr)
            for (const std::uint32_t index : graph_.parameter_slots())
                if (const Parameter<T>* trained = graph_.slots()[index].parameter; trained != nullptr && trained->has_gradient())
                    observer_->observe({trained->name(), "parameter", 0, Pass::gradient, trained->gradient(), {}});
    }

    /// Error if `x` is not a live handle of this tape; `op` names the caller.
    void check_handle(const char* op, Variable<T> x) const { static_cast<void>(checked(op, x)); }

    [[nodiscard]] const Tensor<T>& value(Variable<T> x) const {
        const Slot<T>& slot = checked("value", x);
        return *slot.value;
    }
    [[nodiscard]] const Tensor<T>& gradient(Variable<T> x) const {
        const Slot<T>& slot = checked("gradient", x);
        if (slot.parameter != nullptr) return std::as_const(*slot.parameter).gradient();
        check(slot.has_gradient, "gradient: the output of ", slot.origin,
              " has none; run backward(), with begin_step({.retain = true}) for the gradients of ops");
        return slot.gradient;
    }
    [[nodiscard]] bool has_gradient(Variable<T> x) const {
        const Slot<T>& slot = checked("has_gradient", x);
        return slot.parameter != nullptr ? slot.parameter->has_gradient() : slot.has_gradient;
    }
    [[nodiscard]] bool requires_gradient(Variable<T> x) const { return checked("requires_gradient", x).requires_gradient; }

    /// The recorded graph of the current step, in the order of recording.
    [[nodiscard]] std::size_t node_count() const noexcept { return graph_.nodes().size(); }
    [[nodiscard]] const Node<T>& node(std::size_t i) const noexcept { return graph_.nodes()[i]; }
    [[nodiscard]] const Slot<T>& slot(std::uint32_t i) const noexcept { return graph_.slots()[i]; }
    [[nodiscard]] std::size_t slot_count() const noexcept { return graph_.slots().size(); }
    /// The losses that the cut-edges were found for.
    [[nodiscard]] std::span<const std::uint32_t> loss_slots() const noexcept { return loss_slots_; }

private:
    [[nodiscard]] Variable<T> last_handle() { return {this, graph_.last_slot(), generation_}; }

    void check_begun(const char* what) const { check(generation_ > 0, what, ": call begin_step() first"); }

    [[nodiscard]] const Slot<T>& checked(const char* op, Variable<T> x) const {
        check(x.tape_ != nullptr, op, ": an empty Variable; make one with Tape::input, Tape::parameter or an op");
        check(x.tape_ == this, op, ": a Variable of another tape");
        check(x.generation_ == generation_, op, ": a handle of an earlier step; begin_step() ends the life of all handles");
        const Slot<T>& slot = graph_.slots()[x.slot_];
        check(slot.value != nullptr, op, ": the output of ", slot.origin,
              " was freed by backward(); begin_step({.retain = true}) keeps it");
        return slot;
    }

    Variable<T> parameter_slot(const Parameter<T>& source, Parameter<T>* trained) {
        check_begun("parameter");
        const auto found = graph_.parameter(source, options_.gradients ? trained : nullptr);
        if (found.is_new && observer_ != nullptr)
            observer_->observe({source.name(), "parameter", 0, Pass::value, source.value(), {}});
        return {this, found.slot, generation_};
    }

    Node<T>& new_node(const OpInfo& op, std::span<const Variable<T>> inputs) {
        check(op.betas.values().size() == inputs.size(), op.name, ": recorded with ", op.betas.values().size(), " betas for ",
              inputs.size(), " inputs");
        for (const Variable<T> input : inputs) static_cast<void>(checked(op.name, input));
        Node<T>& node = graph_.add_node(op);
        for (const Variable<T> input : inputs) graph_.connect(input.slot_, node);
        return node;
    }

    Variable<T> add_output(Node<T>& node, Tensor<T>&& output, const Tensor<T>* repeated = nullptr) {
        const Slot<T>& slot = graph_.add_output(node, std::move(output), repeated);
        if (observer_ != nullptr)
            observer_->observe_output(*state_, graph_.nodes(), graph_.slots(), node, node.outputs.size() - 1, Pass::value,
                                      *slot.value);
        return last_handle();
    }

    void run_backward(Node<T>& node) {
        ReusedList<Slot<T>>& slots = graph_.slots();
        bool arrived = false;
        for (const std::uint32_t output : node.outputs) arrived = arrived || slots[output].has_gradient;
        if (node.closure != nullptr && arrived) {
            if (observer_ != nullptr)
                for (std::size_t i = 0; i < node.outputs.size(); ++i)
                    if (const Slot<T>& slot = slots[node.outputs[i]]; slot.has_gradient)
                        observer_->observe_output(*state_, graph_.nodes(), slots, node, i, Pass::gradient, slot.gradient);
            BackwardContext<T> context(slots, node, execution(), pool_);
            context.set_keep(options_.retain);
            context.set_true_gradients(options_.true_gradients);
            node.run(node.closure, context);
        }
        node.drop_closure();
        if (options_.retain) return;
        for (const std::uint32_t output : node.outputs)
            if (!slots[output].leaf) RecordedGraph<T>::free(slots[output]);
    }

    void forget() noexcept {
        graph_.clear();
        scope_ = 0;
    }

    const Recipe* recipe_;
    ScalingState* state_;
    int threads_;
    std::shared_ptr<MemoryPool> pool_;
    Observer<T>* observer_ = nullptr;
    StepOptions options_{};
    RecordedGraph<T> graph_{};
    std::vector<std::uint32_t> loss_slots_{};
    Planner planner_{};
    std::vector<std::uint64_t> site_generation_{};
    ScalingState::Scope scope_ = 0;
    std::uint64_t generation_ = 0;
    bool backward_done_ = false;
    bool planning_ = false;
    std::vector<std::uint32_t> asked_{};  ///< sites that asked for their forward factor while planning
};

}  // namespace unitscale
