// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/handles.hpp>
#include <unitscale/autograd/parameter.hpp>
#include <unitscale/autograd/recorded_graph.hpp>
#include <unitscale/autograd/variable.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace unitscale {

/// What a step is.
struct StepOptions {
    std::size_t micro_batches = 1;  ///< parts that the step's batch is cut into, each with a begin_step of its own
    std::size_t micro_batch = 0;    ///< which of them this is
    bool training = true;           ///< false: dropout keeps every value, random streams do not advance
    bool gradients = true;          ///< false: no backward pass will follow, nothing is kept for it
    bool retain = false;  ///< true: values and gradients of all ops are kept, during and after the backward pass
    bool true_gradients = false;  ///< true: every beta is its op's alpha; gradients are those of the scaled function
};

/// The tensors of a tape's current step: what handles name, and the memory behind it. The part of a tape that knows neither
/// ops nor factors.
/// Test: tests/autograd/step_record_test.cpp
template <class T>
class StepRecord {
public:
    StepRecord(const StepRecord&) = delete;
    StepRecord& operator=(const StepRecord&) = delete;

    [[nodiscard]] Execution execution() const noexcept { return {threads_, pool_.get()}; }
    [[nodiscard]] const std::shared_ptr<MemoryPool>& pool() const noexcept { return pool_; }
    [[nodiscard]] const StepOptions& step_options() const noexcept { return options_; }

    /// Rows of the whole step for `rows` rows of this micro-batch: what the factors of weights' gradients depend on.
    [[nodiscard]] std::size_t step_rows(std::size_t rows) const noexcept { return rows * options_.micro_batches; }

    /// An uninitialised tensor from the tape's pool, where what is not needed any more has gone back to before.
    [[nodiscard]] Tensor<T> make(const Shape& shape) {
        release_unnamed();
        return Tensor<T>(shape, pool_);
    }

    /// Error if `x` is not a live handle of this tape; `op` names the caller.
    void check_handle(const char* op, const Variable<T>& x) const { static_cast<void>(checked(op, x)); }

    /// The value as plain numbers: good as long as a handle of it lives, and until the backward pass. Error: as `check_handle`.
    [[nodiscard]] const Tensor<T>& value(const Variable<T>& x) const { return plain_value(checked("value", x), pool_); }
    /// The same as data and scale, for ops that propagate scales.
    [[nodiscard]] const Tensor<T>& scaled_value(const Variable<T>& x) const { return *checked("value", x).value; }
    /// The only element as a plain number; of a loss, as it was before it was rounded to T. Error: several elements.
    [[nodiscard]] double item(const Variable<T>& x) const {
        const Slot<T>& slot = checked("value", x);
        check(slot.value->size() == 1, "item: a value of shape ", shape_text(slot.shape), " has ", slot.value->size(),
              " elements, not one");
        return slot.item ? *slot.item : static_cast<double>(slot.value->data()[0]) * slot.value->scale();
    }
    [[nodiscard]] const Tensor<T>& gradient(const Variable<T>& x) const {
        const Slot<T>& slot = checked("gradient", x);
        if (slot.parameter != nullptr) return std::as_const(*slot.parameter).gradient();
        check(slot.has_gradient, "gradient: the output of ", slot.origin,
              " has none; run backward(), with begin_step({.retain = true}) for the gradients of ops");
        return slot.gradient;
    }
    [[nodiscard]] bool has_gradient(const Variable<T>& x) const {
        const Slot<T>& slot = checked("has_gradient", x);
        return slot.parameter != nullptr ? slot.parameter->has_gradient() : slot.has_gradient;
    }
    [[nodiscard]] bool requires_gradient(const Variable<T>& x) const {
        return checked("requires_gradient", x).requires_gradient;
    }

    /// The parameter that x is, or null.
    [[nodiscard]] const Parameter<T>* source(const Variable<T>& x) const { return checked("source", x).source; }

    /// The recorded graph of the current step, in the order of recording.
    [[nodiscard]] std::size_t node_count() const noexcept { return graph_.nodes().size(); }
    [[nodiscard]] const Node<T>& node(std::size_t i) const noexcept { return graph_.nodes()[i]; }
    [[nodiscard]] const Slot<T>& slot(std::uint32_t i) const noexcept { return graph_.slots()[i]; }
    [[nodiscard]] std::size_t slot_count() const noexcept { return graph_.slots().size(); }

protected:
    StepRecord(Tape<T>* tape, int threads)
        : threads_(threads), pool_(std::make_shared<MemoryPool>()), handles_(checked_table(tape, threads)) {}
    ~StepRecord() {
        graph_.clear();
        handles_->remove_tape();
    }

    [[nodiscard]] const Slot<T>& checked(const char* op, const Variable<T>& x) const {
        check(x.table_ != nullptr, op, ": an empty Variable; make one with Tape::input, Tape::parameter or an op");
        check(x.table_ == handles_, op, ": a Variable of another tape");
        check(x.generation_ == handles_->generation(), op,
              ": a handle of an earlier step; begin_step() ends the life of all handles");
        const Slot<T>& slot = graph_.slots()[x.slot_];
        check(slot.value != nullptr, op, ": the output of ", slot.origin,
              " was freed by backward(); begin_step({.retain = true}) keeps it");
        return slot;
    }

    /// Whether a step has been begun.
    [[nodiscard]] bool begun() const noexcept { return handles_->generation() > 0; }

    /// A handle of a tensor, and of the last one that the graph has been given.
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

    /// Gives everything back; handles become those of an earlier step.
    void forget() noexcept {
        graph_.clear();
        handles_->begin();
    }

    int threads_;
    std::shared_ptr<MemoryPool> pool_;
    StepOptions options_{};
    RecordedGraph<T> graph_{};

private:
    static HandleTable<T>* checked_table(Tape<T>* tape, int threads) {
        check(threads >= 1, "Tape: threads is ", threads, "; expected at least 1");
        return new HandleTable<T>(tape);
    }

    HandleTable<T>* handles_;  ///< owned together with the handles
};

}  // namespace unitscale
