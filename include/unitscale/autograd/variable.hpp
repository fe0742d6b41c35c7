// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/handles.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>

namespace unitscale {

template <class T>
class Tape;

/// A handle of one tensor on a tape: an input, a parameter or the output of an op. It is cheap to copy. It is valid
/// until the tape's next `begin_step`; any later use is an error. A tensor is freed while the step is still recorded if
/// no handle names it and no backward function reads it.
/// Test: tests/autograd/variable_test.cpp
template <class T>
class Variable {
public:
    Variable() = default;
    Variable(const Variable& other) noexcept
        : table_(other.table_), slot_(other.slot_), generation_(other.generation_) {
        if (table_ != nullptr) table_->add_handle(slot_, generation_);
    }
    Variable(Variable&& other) noexcept
        : table_(std::exchange(other.table_, nullptr)), slot_(other.slot_), generation_(other.generation_) {}
    Variable& operator=(Variable other) noexcept {
        std::swap(table_, other.table_);
        std::swap(slot_, other.slot_);
        std::swap(generation_, other.generation_);
        return *this;
    }
    ~Variable() {
        if (table_ != nullptr) table_->remove_handle(slot_, generation_);
    }

    /// The value as plain numbers: values with the scale multiplied out (scale 1). Error: a handle of an earlier step,
    /// or a value freed by the backward pass.
    [[nodiscard]] const Tensor<T>& value() const { return tape("value").value(*this); }
    /// The value as stored: data and, under `propagate`, a scale.
    [[nodiscard]] const Tensor<T>& scaled() const { return tape("value").scaled_value(*this); }
    [[nodiscard]] const Shape& shape() const { return tape("value").shape(*this); }

    /// d loss / d value (under `unit`, the scaled gradient). Error: no gradient was computed, or it was freed.
    [[nodiscard]] const Tensor<T>& gradient() const { return tape("gradient").gradient(*this); }

    /// Whether a gradient flows to this tensor.
    [[nodiscard]] bool requires_gradient() const { return tape("requires_gradient").requires_gradient(*this); }

    /// The only element of a one-element value, as a plain number. A loss is kept in Accum<T>, as it was computed.
    /// 16-bit types have too few digits for comparisons, and a sum over a batch may exceed their range. Error: several
    /// elements.
    [[nodiscard]] double item() const { return tape("value").item(*this); }

    /// The tape. `op` names the caller in the errors: for an empty handle, and for a handle that outlived its tape.
    [[nodiscard]] Tape<T>& tape(const char* op) const {
        check(table_ != nullptr, op, ": an empty Variable; make one with Tape::input, Tape::parameter or an op");
        check(table_->tape() != nullptr, op, ": a Variable of a tape that is gone");
        return *table_->tape();
    }

private:
    friend class Tape<T>;
    Variable(HandleTable<T>* table, std::uint32_t slot) noexcept
        : table_(table), slot_(slot), generation_(table->generation()) {
        table_->add_handle(slot_, generation_);
    }

    /// Error, in the name of `op`: an empty handle, or one of another tape or an earlier step.
    void check_of(const HandleTable<T>* table, const char* op) const {
        check(table_ != nullptr, op, ": an empty Variable; make one with Tape::input, Tape::parameter or an op");
        check(table_ == table, op, ": a Variable of another tape");
        check(generation_ == table->generation(), op,
              ": a handle of an earlier step; begin_step() ends the life of all handles");
    }

    HandleTable<T>* table_ = nullptr;
    std::uint32_t slot_ = 0;
    std::uint64_t generation_ = 0;
};

/// An argument that may be left out. T is not deduced from it, so that a Variable can be given as it is.
template <class T>
using OptionalVariable = std::type_identity_t<std::optional<Variable<T>>>;

}  // namespace unitscale
