// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/kernels/rescale.hpp>

#include <algorithm>
#include <cstddef>
#include <optional>

namespace unitscale::ops {

/// The data that a tensor has under a given scale: its own where the scales agree, else a copy that is multiplied once. For
/// operands that a kernel adds or compares element by element.
/// Test: tests/record/same_scale_test.cpp
template <class T>
class SameScale {
public:
    SameScale(Tape<T>& tape, const Variable<T>& x, double scale)
        : SameScale(tape, std::optional<Variable<T>>(x), scale) {}
    /// Without a tensor: null.
    SameScale(Tape<T>& tape, const std::optional<Variable<T>>& x, double scale) {
        if (!x) return;
        const Tensor<T>& tensor = x->scaled();
        data_ = tensor.data();
        if (!tape.propagates() || tensor.scale() == scale) return;
        copy_ = tape.make(tensor.shape());
        kernels::rescale<T>(tape.execution(), tensor.data(), copy_.data(), static_cast<std::ptrdiff_t>(tensor.size()),
                            tensor.scale(), scale);
        data_ = copy_.data();
    }
    SameScale(const SameScale&) = delete;
    SameScale& operator=(const SameScale&) = delete;

    [[nodiscard]] const T* data() const noexcept { return data_; }

private:
    Tensor<T> copy_{};
    const T* data_ = nullptr;
};

/// The largest scale of several tensors, those that go with any scale left out; where all do, the largest of theirs.
class LargestScale {
public:
    template <class T>
    void include(const Tensor<T>& x) noexcept {
        double& largest = x.any_scale() ? of_any_ : largest_;
        largest = std::max(largest, x.scale());
    }
    [[nodiscard]] double value() const noexcept { return any_scale() ? of_any_ : largest_; }
    /// Whether all of them go with any scale.
    [[nodiscard]] bool any_scale() const noexcept { return largest_ == 0.0; }

private:
    double largest_ = 0.0, of_any_ = 0.0;
};

}  // namespace unitscale::ops
