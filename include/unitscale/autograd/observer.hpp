// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/scaling/state.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <cstddef>
#include <string_view>

namespace unitscale {

/// Which of a tensor's two sides was seen.
enum class Pass { value, gradient };

/// A tensor that a step has just completed: the output `index` of the op at `path`, or a parameter (`op` is
/// "parameter", `path` its name). Its gradient is complete: every consumer has added its part.
template <class T>
struct TensorEvent {
    std::string_view path{};
    std::string_view op{};
    std::size_t index = 0;
    Pass pass = Pass::value;
    const Tensor<T>& tensor;
};

/// Sees every tensor of a step while it is alive. Attached to a tape; with none attached the tape pays one branch per op.
/// Test: tests/autograd/observer_test.cpp
template <class T>
class Observer {
public:
    Observer() = default;
    Observer(const Observer&) = delete;
    Observer& operator=(const Observer&) = delete;
    virtual ~Observer() = default;
    virtual void observe(const TensorEvent<T>& event) = 0;
};

}  // namespace unitscale
