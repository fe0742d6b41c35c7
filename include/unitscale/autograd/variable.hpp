// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/tensor/tensor.hpp>

#include <cstddef>
#include <cstdint>

namespace unitscale {

template <class T>
class Tape;

/// A handle of one tensor on a tape: an input, a parameter or the output of an op. Cheap to copy; good until the tape's
/// next `begin_step`, after which any use of it is an error.
/// Test: tests/autograd/variable_test.cpp
template <class T>
class Variable {
public:
    Variable() = default;

    /// The value. Error: a handle of an earlier step, or a value freed by the backward pass.
    [[nodiscard]] const Tensor<T>& value() const { return tape("value").value(*this); }
    [[nodiscard]] const Shape& shape() const { return value().shape(); }

    /// d loss / d value (under `unit`, the scaled gradient). Error: none was computed, or it was freed.
    [[nodiscard]] const Tensor<T>& gradient() const { return tape("gradient").gradient(*this); }

    /// Whether a gradient flows to it.
    [[nodiscard]] bool requires_gradient() const { return tape("requires_gradient").requires_gradient(*this); }

    /// The only element of a one-element value, as a plain number. Error: several elements.
    [[nodiscard]] double item() const {
        const Tensor<T>& tensor = value();
        check(tensor.size() == 1, "item: a value of shape ", to_string(tensor.shape()), " has ", tensor.size(),
              " elements, not one");
        return static_cast<double>(tensor.data()[0]) * tensor.scale();
    }

    /// The tape. `op` names the caller in the error for an empty handle.
    [[nodiscard]] Tape<T>& tape(const char* op) const {
        check(tape_ != nullptr, op, ": an empty Variable; make one with Tape::input, Tape::parameter or an op");
        return *tape_;
    }

private:
    friend class Tape<T>;
    Variable(Tape<T>* tape, std::uint32_t slot, std::uint64_t generation) : tape_(tape), slot_(slot), generation_(generation) {}

    Tape<T>* tape_ = nullptr;
    std::uint32_t slot_ = 0;
    std::uint64_t generation_ = 0;
};

}  // namespace unitscale
