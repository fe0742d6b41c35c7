// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/backward.hpp>
#include <unitscale/autograd/graph.hpp>
#include <unitscale/autograd/observer.hpp>
#include <unitscale/autograd/parameter.hpp>
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
#include <span>
#include <string_view>
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
};

/// The gradient factors of an op, one per input: a list in braces or a span, read before the call returns.
class Betas {
public:
    Betas(std::initializer_list<double> list) : values_(list.begin(), list.size()) {}
    Betas(std::span<const double> values) : values_(values) {}
    [[nodiscard]] std::span<const double> values() const noexcept { return values_; }

private:
    std::span<const double> values_;
};

/// What an op tells the tape when it is recorded: its name, where it is, its factors.
struct OpInfo {
    const char* name = "";
    Site site{};
    double alpha = 1.0;
    Betas betas{std::span<const double>()};
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
    ~Tape() { forget(); }

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
        if (options.training && options.gradients && options.micro_batch == 0) state_->set_step(state_->step() + 1);
    }

    /// An uninitialised tensor from the tape's pool.
    [[nodiscard]] Tensor<T> make(const Shape& shape) { return Tensor<T>(shape, pool_); }

    /// Puts a tensor on the tape.
    [[nodiscard]] Variable<T> input(Tensor<T> tensor, bool requires_gradient = false) {
        Slot<T>& slot = new_slot("input", requires_gradient && options_.gradients);
        slot.owned = std::move(tensor);
        slot.value = &slot.owned;
        slot.leaf = true;
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
        for (std::uint32_t ordinal = 0;; ++ordinal) {
            const Site site = state_->site(scope_, op, ordinal);
            if (site.id >= site_generation_.size()) site_generation_.resize(site.id + 1, 0);
            if (site_generation_[site.id] == generation_) continue;
            site_generation_[site.id] = generation_;
            return site;
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
        keep_backward(node, std::forward<Backward>(backward));
        return result;
    }

    /// Records an op whose N outputs all repeat its first input (no copy is made).
    template <std::size_t N, class Backward>
    std::array<Variable<T>, N> record_repeats(const OpInfo& op, std::initializer_list<Variable<T>> inputs, Backward&& backward) {
        const Tensor<T>* value = checked(op.name, *inputs.begin()).value;
        Node<T>& node = new_node(op, std::span<const Variable<T>>(inputs.begin(), inputs.size()));
        std::array<Variable<T>, N> results;
        for (auto& result : results) result = add_output(node, Tensor<T>(), value);
        keep_backward(node, std::forward<Backward>(backward));
        return results;
    }

    /// Records an op with several outputs.
    template <std::size_t N, class Backward>
    std::array<Variable<T>, N> record_outputs(const OpInfo& op, std::initializer_list<Variable<T>> inputs,
                                              std::array<Tensor<T>, N>&& outputs, Backward&& backward) {
        Node<T>& node = new_node(op, std::span<const Variable<T>>(inputs.begin(), inputs.size()));
        std::array<Variable<T>, N> results;
        for (std::size_t i = 0; i < N; ++i) results[i] = add_output(node, std::move(outputs[i]));
        keep_backward(node, std::forward<Backward>(backward));
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
        for (std::size_t i = 0; i < losses.size(); ++i) {
            Slot<T>& slot = slots_[losses[i].slot_];
            slot.leaf = true;  // the caller still wants to read it
            Tensor<T> seed = make(slot.value->shape());
            seed.data()[0] = static_cast<T>(seeds[i]);
            if (slot.requires_gradient) add_gradient(execution(), slot, std::move(seed));
        }
        for (std::size_t i = nodes_.size(); i-- > 0;) run_backward(nodes_[i]);
        if (observer_ != nullptr)
            for (const std::uint32_t index : parameter_slots_)
                if (const Parameter<T>* trained = slots_[index].parameter; trained != nullptr && trained->has_gradient())
                    observer_->observe({trained->name(), "parameter", 0, Pass::gradient, trained->gradient()});
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
    [[nodiscard]] bool requires_gradient(Variable<T> x) const { return checked("requires_gradient", x).requires_gradient; }

    /// The recorded graph of the current step, in the order of recording.
    [[nodiscard]] std::size_t node_count() const noexcept { return nodes_.size(); }
    [[nodiscard]] const Node<T>& node(std::size_t i) const noexcept { return nodes_[i]; }
    [[nodiscard]] const Slot<T>& slot(std::uint32_t i) const noexcept { return slots_[i]; }

private:
    [[nodiscard]] Variable<T> last_handle() { return {this, static_cast<std::uint32_t>(slots_.size() - 1), generation_}; }

    [[nodiscard]] const Slot<T>& checked(const char* op, Variable<T> x) const {
        check(x.tape_ != nullptr, op, ": an empty Variable; make one with Tape::input, Tape::parameter or an op");
        check(x.tape_ == this, op, ": a Variable of another tape");
        check(x.generation_ == generation_, op, ": a handle of an earlier step; begin_step() ends the life of all handles");
        const Slot<T>& slot = slots_[x.slot_];
        check(slot.value != nullptr, op, ": the output of ", slot.origin,
              " was freed by backward(); begin_step({.retain = true}) keeps it");
        return slot;
    }

    Slot<T>& new_slot(const char* origin, bool requires_gradient) {
        check(generation_ > 0, origin, ": call begin_step() first");
        Slot<T>& slot = slots_.add();
        slot.origin = origin;
        slot.value = nullptr;
        slot.parameter = nullptr;
        slot.source = nullptr;
        slot.uses = 0;
        slot.requires_gradient = requires_gradient;
        slot.has_gradient = slot.leaf = false;
        return slot;
    }

    Variable<T> parameter_slot(const Parameter<T>& source, Parameter<T>* trained) {
        for (const std::uint32_t index : parameter_slots_)
            if (slots_[index].source == &source && slots_[index].parameter == trained) return {this, index, generation_};
        Slot<T>& slot = new_slot("parameter", trained != nullptr && options_.gradients);
        slot.source = &source;
        slot.parameter = trained;
        slot.value = &source.value();
        slot.leaf = true;
        parameter_slots_.push_back(static_cast<std::uint32_t>(slots_.size() - 1));
        if (observer_ != nullptr) observer_->observe({source.name(), "parameter", 0, Pass::value, source.value()});
        return last_handle();
    }

    Node<T>& new_node(const OpInfo& op, std::span<const Variable<T>> inputs) {
        check(op.betas.values().size() == inputs.size(), op.name, ": recorded with ", op.betas.values().size(), " betas for ",
              inputs.size(), " inputs");
        for (const Variable<T> input : inputs) static_cast<void>(checked(op.name, input));
        Node<T>& node = nodes_.add();
        node.op = op.name;
        node.site = op.site;
        node.alpha = op.alpha;
        node.betas.assign(op.betas.values().begin(), op.betas.values().end());
        node.inputs.clear();
        node.outputs.clear();
        for (const Variable<T> input : inputs) {
            node.inputs.push_back(input.slot_);
            ++slots_[input.slot_].uses;
        }
        return node;
    }

    Variable<T> add_output(Node<T>& node, Tensor<T>&& output, const Tensor<T>* repeated = nullptr) {
        bool requires_gradient = false;
        for (const std::uint32_t input : node.inputs) requires_gradient = requires_gradient || slots_[input].requires_gradient;
        Slot<T>& slot = new_slot(node.op, requires_gradient);
        slot.owned = std::move(output);
        slot.value = repeated != nullptr ? repeated : &slot.owned;
        node.outputs.push_back(static_cast<std::uint32_t>(slots_.size() - 1));
        if (observer_ != nullptr)
            observer_->observe({state_->path(node.site), node.op, node.outputs.size() - 1, Pass::value, *slot.value});
        return last_handle();
    }

    template <class Backward>
    void keep_backward(Node<T>& node, Backward&& backward) {
        using Closure = std::decay_t<Backward>;
        if (!slots_[node.outputs.front()].requires_gradient) return;
        node.closure = arena_.make(Closure(std::forward<Backward>(backward)));
        node.run = [](void* closure, BackwardContext<T>& context) { (*static_cast<Closure*>(closure))(context); };
        node.destroy = [](void* closure) { static_cast<Closure*>(closure)->~Closure(); };
    }

    void run_backward(Node<T>& node) {
        bool arrived = false;
        for (const std::uint32_t output : node.outputs) arrived = arrived || slots_[output].has_gradient;
        if (node.closure != nullptr && arrived) {
            if (observer_ != nullptr)
                for (std::size_t i = 0; i < node.outputs.size(); ++i)
                    if (const Slot<T>& slot = slots_[node.outputs[i]]; slot.has_gradient)
                        observer_->observe({state_->path(node.site), node.op, i, Pass::gradient, slot.gradient});
            BackwardContext<T> context(slots_, node, execution(), pool_);
            context.set_keep(options_.retain);
            node.run(node.closure, context);
        }
        node.drop_closure();
        if (options_.retain) return;
        for (const std::uint32_t output : node.outputs)
            if (!slots_[output].leaf) free_slot(slots_[output]);
    }

    static void free_slot(Slot<T>& slot) {
        slot.gradient = Tensor<T>();
        slot.has_gradient = false;
        slot.owned = Tensor<T>();
        slot.value = nullptr;
    }

    void forget() noexcept {
        for (std::size_t i = 0; i < nodes_.size(); ++i) nodes_[i].drop_closure();
        for (std::size_t i = 0; i < slots_.size(); ++i) free_slot(slots_[i]);
        nodes_.clear();
        slots_.clear();
        parameter_slots_.clear();
        arena_.reset();
        scope_ = 0;
    }

    const Recipe* recipe_;
    ScalingState* state_;
    int threads_;
    std::shared_ptr<MemoryPool> pool_;
    Observer<T>* observer_ = nullptr;
    StepOptions options_{};
    ReusedList<Node<T>> nodes_{};
    ReusedList<Slot<T>> slots_{};
    Arena arena_{};
    std::vector<std::uint32_t> parameter_slots_{};
    std::vector<std::uint64_t> site_generation_{};
    ScalingState::Scope scope_ = 0;
    std::uint64_t generation_ = 0;
    bool backward_done_ = false;
};

}  // namespace unitscale
