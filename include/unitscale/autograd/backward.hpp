// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/graph.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/base/parallel.hpp>
#include <unitscale/tensor/fill.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace unitscale {

/// Adds a part to the gradient of a slot; the first part is taken over, a parameter's goes to the parameter itself.
template <class T>
void add_gradient(const Execution& execution, Slot<T>& slot, Tensor<T>&& part) {
    if (slot.parameter != nullptr) {
        slot.parameter->add_gradient(std::move(part));
        return;
    }
    check(part.shape() == slot.shape, "backward: gradient of shape ", to_string(part.shape()), " for the output of ", slot.origin,
          ", which has shape ", to_string(slot.shape));
    if (!slot.has_gradient) {
        slot.gradient = std::move(part);
        slot.has_gradient = true;
        return;
    }
    T* sum = slot.gradient.data();
    const T* more = part.data();
    parallel_for(execution.threads, static_cast<std::ptrdiff_t>(part.size()), 1 << 15,
                 [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
                     for (std::ptrdiff_t i = begin; i < end; ++i)
                         sum[i] = static_cast<T>(static_cast<Accum<T>>(sum[i]) + static_cast<Accum<T>>(more[i]));
                 });
}

/// What an op's backward function works with: the gradients of its outputs, the values of its inputs, its factors, and
/// where to put the gradients of its inputs. Inputs and outputs are numbered as they were recorded.
/// Test: tests/autograd/backward_test.cpp
template <class T>
class BackwardContext {
public:
    BackwardContext(ReusedList<Slot<T>>& slots, Node<T>& node, const Execution& execution,
                    const std::shared_ptr<MemoryPool>& pool)
        : slots_(slots), node_(node), execution_(execution), pool_(pool) {}

    [[nodiscard]] const Execution& execution() const noexcept { return execution_; }

    /// Whether a gradient for input i is wanted; where not, computing it is wasted and adding it does nothing.
    [[nodiscard]] bool needs(std::size_t i) const noexcept { return input_slot(i).requires_gradient; }

    /// Values. Error: one that the op has said its backward function does not read (`OpInfo::reads`), and that was freed.
    [[nodiscard]] const Tensor<T>& input(std::size_t i) const { return value("input ", i, input_slot(i)); }
    [[nodiscard]] const Tensor<T>& output(std::size_t i = 0) const { return value("output ", i, slots_[node_.outputs[i]]); }

    /// Shapes, whether the value is there or not.
    [[nodiscard]] const Shape& input_shape(std::size_t i) const noexcept { return input_slot(i).shape; }
    [[nodiscard]] const Shape& output_shape(std::size_t i = 0) const noexcept { return slots_[node_.outputs[i]].shape; }

    /// The codes of an input that is kept rounded (`Tape::read_rounded`); null where the value itself is still there.
    [[nodiscard]] const Tensor<std::uint8_t>* codes(std::size_t i) const noexcept {
        const Slot<T>& root = slots_[input_slot(i).root];
        return root.value == nullptr && root.rounding ? &root.codes : nullptr;
    }

    /// The factor of the op's value.
    [[nodiscard]] double alpha() const noexcept { return node_.alpha; }

    /// The factor of input i's gradient, as the plan or a constraint has it.
    [[nodiscard]] double beta(std::size_t i) const noexcept { return true_gradients_ ? node_.alpha : node_.betas[i]; }

    /// The factor of the gradient that arrived at output i: 1 but for the ops that state others.
    [[nodiscard]] double output_weight(std::size_t i) const noexcept {
        return true_gradients_ || node_.output_weights.empty() ? 1.0 : node_.output_weights[i];
    }

    /// The gradient that arrived at output i; zeros where no consumer sent one.
    [[nodiscard]] const Tensor<T>& output_gradient(std::size_t i = 0) {
        Slot<T>& slot = slots_[node_.outputs[i]];
        if (!slot.has_gradient) {
            slot.gradient = make(slot.shape);
            fill_zero(slot.gradient);
            slot.has_gradient = true;
        }
        return slot.gradient;
    }

    /// The same, moved out where the tape does not keep it: for ops that pass a gradient on or work in place.
    [[nodiscard]] Tensor<T> take_output_gradient(std::size_t i = 0) {
        static_cast<void>(output_gradient(i));
        Slot<T>& slot = slots_[node_.outputs[i]];
        if (!keep_) {
            slot.has_gradient = false;
            return std::move(slot.gradient);
        }
        Tensor<T> copy = make(slot.gradient.shape());
        std::copy_n(slot.gradient.data(), copy.size(), copy.data());
        return copy;
    }

    /// An uninitialised tensor from the tape's pool.
    [[nodiscard]] Tensor<T> make(const Shape& shape) const { return Tensor<T>(shape, pool_); }

    /// Adds to the gradient of input i.
    void add(std::size_t i, Tensor<T>&& gradient) {
        if (needs(i)) add_gradient(execution_, slots_[node_.inputs[i]], std::move(gradient));
    }

    void set_keep(bool keep) noexcept { keep_ = keep; }
    void set_true_gradients(bool true_gradients) noexcept { true_gradients_ = true_gradients; }

private:
    [[nodiscard]] const Slot<T>& input_slot(std::size_t i) const noexcept { return slots_[node_.inputs[i]]; }
    [[nodiscard]] const Tensor<T>& value(const char* what, std::size_t i, const Slot<T>& slot) const {
        check(slot.value != nullptr, "backward: ", node_.op, " reads ", what, i,
              ", which its OpInfo::reads leaves out; it was freed");
        return *slot.value;
    }

    ReusedList<Slot<T>>& slots_;
    Node<T>& node_;
    Execution execution_;
    const std::shared_ptr<MemoryPool>& pool_;
    bool keep_ = false;
    bool true_gradients_ = false;
};

}  // namespace unitscale
