// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/backward.hpp>
#include <unitscale/autograd/carried_scales.hpp>
#include <unitscale/autograd/handles.hpp>
#include <unitscale/autograd/observer.hpp>
#include <unitscale/autograd/op_info.hpp>
#include <unitscale/autograd/parameter.hpp>
#include <unitscale/autograd/planner.hpp>
#include <unitscale/autograd/recompute.hpp>
#include <unitscale/autograd/recorded_graph.hpp>
#include <unitscale/autograd/site_counter.hpp>
#include <unitscale/autograd/variable.hpp>
#include <unitscale/base/huge_pages.hpp>
#include <unitscale/base/parallel.hpp>
#include <unitscale/scaling/element.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/scaling/state.hpp>
#include <unitscale/tensor/tensor.hpp>

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

/// Reverse-mode differentiation of one step at a time. Ops record themselves as they run; `backward` visits them in
/// reverse order. The tape copies the recipe. It borrows the state, which must outlive it. Buffers come from its pool
/// and go back there: a step allocates nothing if an earlier one was like it. One thread at a time uses a tape. Several
/// tapes may share parameters that none of them trains. After a throw the tape is usable: call `begin_step`.
/// T: float, double, Half or BFloat16. Test: tests/autograd/tape_test.cpp
template <class T>
class Tape {
public:
    /// Errors: fewer than one thread; a recipe with inconsistent rules (`check_recipe`); a recipe of another element
    /// type (`check_element`); the environment (`huge_page_advice`).
    Tape(const Recipe& recipe, ScalingState& state, int threads = 1);
    Tape(const Tape&) = delete;
    Tape& operator=(const Tape&) = delete;
    ~Tape();

    [[nodiscard]] const Recipe& recipe() const noexcept { return *recipe_; }
    [[nodiscard]] ScalingState& state() noexcept { return *state_; }
    [[nodiscard]] const ScalingState& state() const noexcept { return *state_; }
    [[nodiscard]] bool unit_scaled() const noexcept { return recipe_->scaling == Scaling::unit; }
    [[nodiscard]] bool propagates() const noexcept { return recipe_->scaling == Scaling::propagate; }
    /// Whether an op's ideal factors matter: they are applied under `unit` and become scales under `propagate`.
    [[nodiscard]] bool uses_factors() const noexcept { return recipe_->scaling != Scaling::none; }

    [[nodiscard]] Execution execution() const noexcept { return {threads_, pool_.get()}; }
    [[nodiscard]] const std::shared_ptr<MemoryPool>& pool() const noexcept { return pool_; }
    [[nodiscard]] const StepOptions& step_options() const noexcept { return options_; }

    /// Whether a segment runs again in the backward pass (`recompute`). Modules that count calls leave these out.
    [[nodiscard]] bool recomputes() const noexcept { return replay_.active(); }

    /// Rows of the whole step for `rows` rows of this micro-batch. Factors of weight gradients depend on this number.
    [[nodiscard]] std::size_t step_rows(std::size_t rows) const noexcept { return rows * options_.micro_batches; }

    /// An uninitialised tensor from the tape's pool. Memory that is no longer needed goes back to the pool first.
    [[nodiscard]] Tensor<T> make(const Shape& shape) {
        release_unnamed();
        return Tensor<T>(shape, pool_);
    }

    /// The observer sees every tensor from now on; null detaches it. The tape borrows it.
    void set_observer(Observer<T>* observer) noexcept { observer_ = observer; }
    /// The observer of operands; null if there is none, and while a segment runs again, whose operands it has seen.
    [[nodiscard]] Observer<T>* observer() const noexcept { return replay_.active() ? nullptr : observer_; }

    /// Forgets the last step and begins another. Any use of the last step's handles is an error from now on.
    void begin_step(const StepOptions& options = {}) {
        check(options.micro_batches >= 1 && options.micro_batch < options.micro_batches, "begin_step: micro_batch ",
              options.micro_batch, " of ", options.micro_batches, "; expected a number below micro_batches");
        forget();
        options_ = options;
        backward_done_ = false;
        const bool trains = options.training && options.gradients;
        scales_.begin_step(trains);
        if (trains && options.micro_batch == 0) state_->set_step(state_->step() + 1);
        if (observer_ != nullptr)
            observer_->begin_step({state_->step(), trains, options.micro_batch, options.micro_batches});
    }

    /// Records one step without an update. Under `unit` it fixes the forward factor of every op.
    /// Where the recipe's `automatic_rule` joins factors, it joins alpha and the betas of the inputs that are not
    /// cut-edges. The plan is kept in the state: from then on an op has its planned factor, whatever its inputs' sizes.
    /// Call `plan` before the first update; a state that has a plan keeps it. `model()` runs the model and returns the
    /// loss, or a range of losses. With the rule `to_output_scale` ideal forward factors stand without a plan.
    /// Under `propagate` it measures the scales of values and gradients, where the recipe says so (`CarriedScales`).
    /// Error: a parameter has a gradient already.
    template <class Model>
    void plan(Model&& model, StepOptions options = {}) {
        const bool measures = propagates() && recipe_->propagate.measured;
        if (!(unit_scaled() || measures) || state_->has_plan()) return;
        options.training = options.retain = options.true_gradients = false;
        options.gradients = true;
        begin_step(options);
        planner_.begin_planning();
        if (measures) scales_.begin_measuring();
        struct End {
            Tape& tape;
            Observer<T>* observer;
            ~End() {
                tape.observer_ = observer;
                tape.forget();  // planning ends here
            }
        } const end{*this, std::exchange(observer_, nullptr)};
        const auto result = model();
        std::span<const Variable<T>> losses;
        if constexpr (std::is_same_v<std::decay_t<decltype(result)>, Variable<T>>) losses = {&result, 1};
        else losses = result;
        if (measures) {
            scales_.check_no_gradients(graph_);
            backward(losses, std::vector<Accum<T>>(losses.size(), Accum<T>(1)));
            return scales_.plan(graph_);
        }
        find_cut_edges(losses);
        planner_.fix_alphas(graph_, recipe_->automatic_rule, *state_);
    }

    /// The forward factor of the op at `site`, with alpha as its ideal factor: the plan's factor if it has one, else
    /// alpha. Only ops that call this function have their forward factor planned. Other ops have a fixed forward
    /// factor, and only their betas follow it. Error: the recipe's rule needs a plan and there is none.
    [[nodiscard]] double forward_factor(const char* op, Site site, double alpha) {
        return planner_.forward_factor(op, site, alpha, recipe_->automatic_rule, *state_);
    }

    /// Finds the cut-edges of the graph recorded so far, with the losses joined.
    void find_cut_edges(std::span<const Variable<T>> losses);

    /// Finds the cut-edges, then sets the betas that must equal alpha (`JoinedBy`). `backward` calls this function.
    void join_factors(std::span<const Variable<T>> losses) {
        find_cut_edges(losses);
        planner_.join_betas(graph_);
    }
    [[nodiscard]] const Planner& planner() const noexcept { return planner_; }

    /// Puts a tensor on the tape. Under `propagate` the tensor keeps its scale, and `split_constant` treats constants.
    [[nodiscard]] Variable<T> input(Tensor<T> tensor, bool requires_gradient = false);

    /// Puts a parameter on the tape: its current value, by reference. A parameter is one vertex, however often it is
    /// used. A const parameter is a vertex of its own, without gradient.
    /// Error: a parameter that was never written.
    [[nodiscard]] Variable<T> parameter(Parameter<T>& parameter) {
        return parameter_slot(parameter, parameter.requires_gradient() ? &parameter : nullptr);
    }
    [[nodiscard]] Variable<T> parameter(const Parameter<T>& parameter) { return parameter_slot(parameter, nullptr); }

    /// A copy of the value, through which no gradient flows back.
    [[nodiscard]] Variable<T> detach(Variable<T> x) {
        const Tensor<T>& value = x.scaled();
        return input(copy_into(value, make(value.shape())));
    }

    /// Names the module that the following ops belong to, until the guard is destroyed. `alias`: see
    /// ScalingState::scope.
    [[nodiscard]] SiteCounter::ScopeGuard scope(std::string_view name, std::string_view alias = {}) {
        return sites_.scope(name, alias);
    }

    /// The site of the op that is about to run: the first site of its name in this scope that this step has not used.
    [[nodiscard, gnu::noinline]] Site next_site(const char* op) {
        return replay_.active() ? replay_.site(graph_, op) : sites_.next(op);
    }

    /// The random stream of a site in this step and micro-batch.
    [[nodiscard]] RandomKey random_key(Site site, std::uint64_t part = 0) const noexcept {
        return state_->random_key(site, mix(options_.micro_batch, part));
    }

    /// Data factor and scale of a product of inputs, computed by an op with the factor alpha at `site`. `scales` is the
    /// product of the inputs' scales. Under `propagate`, `product_scale` gives the result, with alpha as ideal factor.
    /// Otherwise the result is alpha and 1.
    [[nodiscard, gnu::noinline]] Scaled scaled_alpha(Site site, double alpha, double scales) const {
        if (!propagates()) return {alpha, 1.0};
        return product_scale(recipe_->propagate.rounding, scales, alpha, scale_word(site));
    }
    /// The scale of a sum of terms of scales a and b at `site`; 1 except under `propagate`. See `carried`.
    [[nodiscard]] double scaled_sum(Site site, double a, double b) {
        if (!propagates()) return 1.0;
        return carried(site, 1.0, sum_scale(recipe_->propagate.rounding, a, b, scale_word(site))).scale;
    }
    /// Data factor and scale of the value of an op with a rule of its own: see `CarriedScales::value`.
    [[nodiscard]] Scaled carried(Site site, double unit, double wanted) {
        return scales_.value(site, unit, wanted, scale_word(site));
    }

    [[nodiscard]] CarriedScales& carried_scales() noexcept { return scales_; }

    /// Declares, before an op is recorded, that its backward function needs x only with this rounding (Reads::rounded).
    /// The tape may then keep codes instead of the value. False if another op needs x with another rounding: then read
    /// the value.
    [[nodiscard]] bool read_rounded(Variable<T> x, const Rounding8<T>& rounding) {
        static_cast<void>(checked("read_rounded", x));
        std::optional<Rounding8<T>>& known = graph_.root(slot_of(x)).rounding;
        if (!known) known = rounding;
        return known->same(rounding);
    }

    /// y = f(x), where the step keeps only x and y: the backward pass runs f once more for the values in between. f is
    /// a callable from one Variable to one, and is copied. It must record the same ops each time. It sees x only
    /// through its argument, and parameters through the tape. The bits equal a direct f(x). Time: one more forward pass
    /// of f.
    /// Error, in the backward pass: f recorded other ops the second time. Test: tests/autograd/recompute_test.cpp
    template <class F>
    [[nodiscard]] Variable<T> recompute(Variable<T> x, F f) {
        static_cast<void>(checked("recompute", x));
        if (!options_.gradients || options_.retain || discards_ || replay_.active()) return f(std::move(x));
        Segment segment{.first = graph_.nodes().size(), .first_slot = graph_.slots().size(), .input = slot_of(x)};
        discards_ = true;  // after a throw, the next begin_step resets it
        Variable<T> y = f(x);
        discards_ = false;
        segment.last = graph_.nodes().size();
        if (segment.last > segment.first) segments_.add(graph_, segment, std::move(x), std::move(f));
        return y;
    }

    /// Records an op with one output. `backward(BackwardContext<T>&)` is kept only if an input needs a gradient. It
    /// must hold copies of the op's arguments, never references.
    template <class Backward>
    Variable<T> record(const OpInfo& op, std::initializer_list<Variable<T>> inputs, Tensor<T>&& output,
                       Backward&& backward) {
        return record(op, std::span(inputs.begin(), inputs.size()), std::move(output),
                      std::forward<Backward>(backward));
    }
    template <class Backward>
    Variable<T> record(const OpInfo& op, std::span<const Variable<T>> inputs, Tensor<T>&& output, Backward&& backward) {
        Node<T>& node = new_node(op, inputs);
        if (!replay_.active()) scales_.measure(op.site, output);
        Variable<T> result = add_output(node, std::move(output));
        keep_backward(node, std::forward<Backward>(backward));
        return result;
    }

    /// Records an op with N outputs that all repeat its first input (no copy is made).
    template <std::size_t N, class Backward>
    std::array<Variable<T>, N> record_repeats(const OpInfo& op, std::span<const Variable<T>> inputs,
                                              Backward&& backward) {
        static_cast<void>(checked(op.name, inputs.front()));
        Node<T>& node = new_node(op, inputs);
        std::array<Variable<T>, N> results;
        for (auto& result : results) result = add_output(node, Tensor<T>(), slot_of(inputs.front()));
        keep_backward(node, std::forward<Backward>(backward));
        return results;
    }

    /// Records an op with several outputs, at least one. `outputs` are moved from.
    template <class Backward>
    std::vector<Variable<T>> record_outputs(const OpInfo& op, std::span<const Variable<T>> inputs,
                                            std::span<Tensor<T>> outputs, Backward&& backward) {
        Node<T>& node = new_node(op, inputs);
        std::vector<Variable<T>> results;
        results.reserve(outputs.size());
        for (Tensor<T>& output : outputs) results.push_back(add_output(node, std::move(output)));
        keep_backward(node, std::forward<Backward>(backward));
        return results;
    }

    /// Gradients of seeds[0] losses[0] + seeds[1] losses[1] + ... with respect to every parameter and input that
    /// requires one. Parameters add to the gradient they have. Loss scaling is a seed.
    /// `complete(parameter)` is called for every trained parameter as soon as the pass has added its whole gradient.
    /// Errors: a loss of several elements; losses that depend on nothing trained; a second call in one step; a
    /// parameter that was written since the step used it; in the first call, a rule of the recipe that matches no
    /// product (`ScalingState::check_patterns`).
    void backward(Variable<T> loss, Accum<T> seed = 1, const GradientSink<T>& complete = {}) {
        backward(std::span<const Variable<T>>(&loss, 1), std::span<const Accum<T>>(&seed, 1), complete);
    }
    void backward(std::initializer_list<Variable<T>> losses, std::initializer_list<Accum<T>> seeds) {
        backward(std::span(losses.begin(), losses.size()), std::span(seeds.begin(), seeds.size()));
    }
    void backward(std::span<const Variable<T>> losses, std::span<const Accum<T>> seeds,
                  const GradientSink<T>& complete = {});

    /// Whether this step's backward pass has begun.
    [[nodiscard]] bool backward_done() const noexcept { return backward_done_; }

    /// The slots of the losses for which the cut-edges were found.
    [[nodiscard]] std::span<const std::uint32_t> loss_slots() const noexcept { return loss_slots_; }

    /// Error if `x` is not a live handle of this tape; `op` names the caller.
    void check_handle(const char* op, const Variable<T>& x) const { static_cast<void>(checked(op, x)); }

    /// The value as plain numbers (see Variable::value). It is valid while a handle of it lives, and until the backward
    /// pass. Error: as `check_handle`.
    [[nodiscard]] const Tensor<T>& value(const Variable<T>& x) const { return plain_value(checked("value", x), pool_); }
    /// The value as data and scale, for ops that propagate scales.
    [[nodiscard]] const Tensor<T>& scaled_value(const Variable<T>& x) const { return *checked("value", x).value; }
    /// The shape of the value.
    [[nodiscard]] const Shape& shape(const Variable<T>& x) const { return live("value", x).shape; }
    /// The codes of the parameter that x stands for; null: it has elements.
    [[nodiscard]] const CodedWeight* coded(const Variable<T>& x) const { return live("coded", x).coded_value(); }
    /// The only element as a plain number; for a loss, its value before rounding to T. Error: several elements.
    [[nodiscard]] double item(const Variable<T>& x) const { return only_element(checked("value", x)); }
    [[nodiscard]] const Tensor<T>& gradient(const Variable<T>& x) const { return gradient_of(checked("gradient", x)); }
    [[nodiscard]] bool has_gradient(const Variable<T>& x) const { return holds_gradient(checked("has_gradient", x)); }
    [[nodiscard]] bool requires_gradient(const Variable<T>& x) const {
        return live("requires_gradient", x).requires_gradient;
    }

    /// The parameter that x stands for, or null.
    [[nodiscard]] const Parameter<T>* source(const Variable<T>& x) const { return live("source", x).source; }

    /// The recorded graph of the current step, in the order of recording.
    [[nodiscard]] std::size_t node_count() const noexcept { return graph_.nodes().size(); }
    [[nodiscard]] const Node<T>& node(std::size_t i) const noexcept { return graph_.nodes()[i]; }
    [[nodiscard]] const Slot<T>& slot(std::uint32_t i) const noexcept { return graph_.slots()[i]; }
    [[nodiscard]] std::size_t slot_count() const noexcept { return graph_.slots().size(); }

private:
    /// Refuses bad arguments before the tape owns anything.
    [[nodiscard]] static std::shared_ptr<const Recipe> checked_recipe(const Recipe& recipe, int threads) {
        check(threads >= 1, "Tape: threads is ", threads, "; expected at least 1");
        check_recipe(recipe);
        check_element<T>("Tape", recipe);
        return std::make_shared<const Recipe>(recipe);
    }

    /// The slot of a handle. Error: backward() has freed its value; a value can be elements or codes.
    [[nodiscard]] const Slot<T>& live(const char* op, const Variable<T>& x) const {
        x.check_of(handles_, op);
        const Slot<T>& slot = graph_.slots()[x.slot_];
        check(slot.value != nullptr || slot.coded_value() != nullptr, op, ": the output of ", slot.origin,
              " was freed by backward(); begin_step({.retain = true}) keeps it");
        return slot;
    }
    /// The slot of a handle whose value has elements.
    [[nodiscard]] const Slot<T>& checked(const char* op, const Variable<T>& x) const {
        const Slot<T>& slot = live(op, x);
        if (slot.value == nullptr)
            fail(op, ": parameter ", slot.source->name(), " is kept as codes; expected elements");
        return slot;
    }

    /// A handle of the tensor in `slot`, and of the tensor that the graph has added last.
    [[nodiscard]] Variable<T> handle(std::uint32_t slot) const noexcept { return {handles_, slot}; }
    [[nodiscard]] Variable<T> add_handle() {
        handles_->add_tensor(graph_.slots()[graph_.last_slot()].root);
        return handle(graph_.last_slot());
    }
    [[nodiscard]] static std::uint32_t slot_of(const Variable<T>& x) noexcept { return x.slot_; }

    /// Frees the values that no handle names and no backward function reads.
    void release_unnamed() {
        if (handles_->unnamed().empty()) return;
        if (!options_.retain)
            for (const std::uint32_t root : handles_->unnamed())
                if (handles_->count(root) == 0) graph_.release(root, execution(), pool_);
        handles_->forget_unnamed();
    }

    static constexpr std::uint64_t scale_part = 0x5CA1E;  ///< part of a site's random stream, for scales
    [[nodiscard]] std::uint32_t scale_word(Site site) const {
        return static_cast<std::uint32_t>(random_word(random_key(site, scale_part), 0));
    }

    void check_begun(const char* what) const { check(handles_->generation() > 0, what, ": call begin_step() first"); }

    Variable<T> parameter_slot(const Parameter<T>& source, Parameter<T>* trained) {
        check_begun("parameter");
        source.check_usable(options_.gradients, propagates());
        const auto found = graph_.parameter(source, options_.gradients ? trained : nullptr);
        if (!found.is_new) return handle(found.slot);
        check(!replay_.active(), "recompute: parameter ", source.name(), " is used in the backward pass only");
        if (observer_ != nullptr && source.coded_value() == nullptr)
            observer_->observe({source.name(), "parameter", 0, Pass::value, source.value(), {}});
        return add_handle();
    }

    Node<T>& new_node(const OpInfo& op, std::span<const Variable<T>> inputs) {
        check(op.betas.values().size() == inputs.size(), op.name, ": recorded with ", op.betas.values().size(),
              " betas for ", inputs.size(), " inputs");
        for (const Variable<T>& input : inputs) static_cast<void>(live(op.name, input));
        if (replay_.active()) {
            Node<T>& node = replay_.node(graph_, op, inputs.size());
            for (std::size_t i = 0; i < inputs.size(); ++i)
                replay_.check_same(node.inputs[i] == slot_of(inputs[i]), op.name);
            return node;
        }
        Node<T>& node = graph_.add_node(op);
        for (const Variable<T>& input : inputs) graph_.connect(slot_of(input), node);
        return node;
    }

    Variable<T> add_output(Node<T>& node, Tensor<T>&& output, std::uint32_t repeated = Slot<T>::none) {
        if (replay_.active()) return handle(replay_.output(graph_, node, std::move(output)));
        if (propagates() && !node.propagates) state_->note_wide(node.site);
        const Slot<T>& slot = graph_.add_output(node, std::move(output), repeated);
        if (observer_ != nullptr)
            observer_->observe_output(*state_, graph_.nodes(), graph_.slots(), node, node.outputs.size() - 1,
                                      Pass::value, *slot.value);
        return add_handle();
    }

    template <class Backward>
    void keep_backward(Node<T>& node, Backward&& backward) {
        if (!discards_) graph_.keep_backward(node, std::forward<Backward>(backward));
    }

    void run_backward(Node<T>& node) {
        ReusedList<Slot<T>>& slots = graph_.slots();
        bool arrived = false;
        for (const std::uint32_t output : node.outputs) arrived = arrived || slots[output].has_gradient;
        if (node.closure != nullptr && arrived) {
            if (observer_ != nullptr)
                for (std::size_t i = 0; i < node.outputs.size(); ++i)
                    if (const Slot<T>& slot = slots[node.outputs[i]]; slot.has_gradient)
                        observer_->observe_output(*state_, graph_.nodes(), slots, node, i, Pass::gradient,
                                                  slot.gradient);
            BackwardContext<T> context(slots, node, execution(), pool_);
            context.set_step(options_.retain, options_.true_gradients, observer_);
            if (propagates()) context.set_propagate(scales_, random_key(node.site, scale_part + 1));
            node.run(node.closure, context);
        }
        graph_.end_backward(node, options_.retain);
    }

    /// Gives back all memory of the step. Its handles become handles of an earlier step.
    void forget() noexcept {
        segments_.clear();
        graph_.clear();
        handles_->begin();
        sites_.begin();
        planner_.end_planning();
        scales_.end_measuring();
        replay_.stop();
        discards_ = false;
    }

    std::shared_ptr<const Recipe> recipe_;
    ScalingState* state_;
    int threads_;
    std::shared_ptr<MemoryPool> pool_;
    HandleTable<T>* handles_;  ///< owned together with the handles
    SiteCounter sites_;
    CarriedScales scales_;
    StepOptions options_{};
    RecordedGraph<T> graph_{};
    Observer<T>* observer_ = nullptr;
    std::vector<std::uint32_t> loss_slots_{};
    Planner planner_{};
    Segments<T> segments_{};
    Replay<T> replay_{};
    bool discards_ = false;  ///< inside `recompute`: backward functions are not kept
    bool backward_done_ = false;
    bool patterns_checked_ = false;
};

// Out of the class, so that users of unitscale::compiled do not compile them.
template <class T>
Tape<T>::Tape(const Recipe& recipe, ScalingState& state, int threads)
    : recipe_(checked_recipe(recipe, threads)),
      state_(&state),
      threads_(threads),
      pool_(std::make_shared<MemoryPool>(huge_page_advice())),
      handles_(new HandleTable<T>(this)),
      sites_(state),
      scales_(recipe.propagate, state) {}

template <class T>
Tape<T>::~Tape() {
    segments_.clear();
    graph_.clear();
    handles_->remove_tape();
}

template <class T>
void Tape<T>::find_cut_edges(std::span<const Variable<T>> losses) {
    loss_slots_.clear();
    for (const Variable<T>& loss : losses) {
        static_cast<void>(checked("backward", loss));
        loss_slots_.push_back(slot_of(loss));
    }
    planner_.find_cut_edges(graph_, loss_slots_);
}

template <class T>
Variable<T> Tape<T>::input(Tensor<T> tensor, bool requires_gradient) {
    check_begun("input");
    if (propagates() && !requires_gradient) {
        tensor = split_constant(std::move(tensor));
    } else if (!propagates() && tensor.scale() != 1.0) {
        multiply_out(tensor, tensor);
        tensor.set_scale(1.0);
    }
    if (replay_.active()) return handle(replay_.input(graph_, std::move(tensor)));
    graph_.add_input(std::move(tensor), requires_gradient && options_.gradients);
    return add_handle();
}

template <class T>
void Tape<T>::backward(std::span<const Variable<T>> losses, std::span<const Accum<T>> seeds,
                       const GradientSink<T>& complete) {
    check(losses.size() == seeds.size(), "backward: ", losses.size(), " losses but ", seeds.size(), " seeds");
    check(options_.gradients, "backward: this step was begun with gradients = false");
    check(!backward_done_, "backward: called twice in one step; join the losses in one call");
    bool reaches = false;
    for (const Variable<T>& loss : losses) {
        const Slot<T>& slot = checked("backward", loss);
        check(slot.value->size() == 1, "backward: loss of shape ", shape_text(slot.value->shape()),
              "; expected one element");
        reaches = reaches || slot.requires_gradient;
    }
    check(reaches, "backward: no loss depends on a parameter or input that requires a gradient");
    if (!std::exchange(patterns_checked_, true)) state_->check_patterns(*recipe_);
    graph_.check_versions();
    backward_done_ = true;
    release_unnamed();
    if (unit_scaled()) join_factors(losses);
    if (propagates()) scales_.set_seed(static_cast<double>(seeds[0]));
    for (std::size_t i = 0; i < losses.size(); ++i) {
        Slot<T>& slot = graph_.slots()[slot_of(losses[i])];
        seed_loss(execution(), slot, make(slot.value->shape()), seeds[i], propagates());
    }
    for (std::size_t i = graph_.nodes().size(); i-- > 0;) {
        if (segments_.ends_at(i + 1)) {
            replay_.run(graph_, segments_.back());
            segments_.pop();
        }
        Node<T>& node = graph_.nodes()[i];
        run_backward(node);
        for (const std::uint32_t input : node.inputs)
            if (Slot<T>& slot = graph_.slots()[input]; ++slot.passed == slot.uses)
                end_gradient(slot, recipe_, observer_, complete);
    }
    for (const std::uint32_t index : graph_.parameter_slots())  // that no op reads: losses themselves
        if (const Slot<T>& slot = graph_.slots()[index]; slot.uses == 0)
            end_gradient(slot, recipe_, observer_, complete);
}

}  // namespace unitscale
