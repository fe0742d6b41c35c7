// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/kernels/rescale.hpp>
#include <unitscale/tensor/rescale.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>

namespace unitscale::ops {

/// The data of a tensor under a given scale: its own data if the scales agree, else a copy that is multiplied once. For
/// operands that a kernel adds or compares element by element.
/// Test: tests/record/same_scale_test.cpp
template <class T>
class SameScale {
public:
    /// `tensor` may be null; then so is `data`.
    SameScale(Tape<T>& tape, const Tensor<T>* tensor, double scale) {
        if (tensor == nullptr) return;
        data_ = tensor->data();
        if (!tape.propagates() || tensor->scale() == scale) return;
        copy_ = tape.make(tensor->shape());
        kernels::rescale<T>(tape.execution(), tensor->data(), copy_.data(), static_cast<std::ptrdiff_t>(tensor->size()),
                            tensor->scale(), scale);
        data_ = copy_.data();
    }
    SameScale(const SameScale&) = delete;
    SameScale& operator=(const SameScale&) = delete;

    [[nodiscard]] const T* data() const noexcept { return data_; }

private:
    Tensor<T> copy_{};
    const T* data_ = nullptr;
};

/// An operand of a sum or a choice whose result has the scale `scale`: the result takes weight times the value.
///   factor data = weight (s_x / scale) times the tensor's data
/// The data is the tensor's own if Accum<T> holds the factor. Else the scales differ by 2^126 or more: the data is a
/// copy under the result's scale (SameScale), and the factor is the weight.
/// Test: tests/record/same_scale_test.cpp
template <class T>
class ScaledOperand {
public:
    ScaledOperand(Tape<T>& tape, const Tensor<T>& x, double scale, double weight = 1.0) : data_(x.data()) {
        double factor = weight * (x.scale() / scale);
        if (!holds_factor<Accum<T>>(std::abs(factor))) {
            data_ = moved_.emplace(tape, &x, scale).data();
            factor = weight;
        }
        factor_ = static_cast<Accum<T>>(factor);
    }

    [[nodiscard]] const T* data() const noexcept { return data_; }
    [[nodiscard]] Accum<T> factor() const noexcept { return factor_; }

private:
    std::optional<SameScale<T>> moved_{};
    const T* data_;
    Accum<T> factor_{};
};

/// The largest scale of several tensors. Tensors with the flag any scale (`Tensor::any_scale`) do not count. If all
/// tensors have the flag, the result is the largest of their scales.
class LargestScale {
public:
    template <class T>
    void include(const Tensor<T>& x) noexcept {
        double& largest = x.any_scale() ? of_any_ : largest_;
        largest = std::max(largest, x.scale());
    }
    [[nodiscard]] double value() const noexcept { return any_scale() ? of_any_ : largest_; }
    /// The scale of a value at `site` that is made of these tensors' elements: the planned one, or `value`.
    template <class T>
    [[nodiscard]] double carried(Tape<T>& tape, Site site) const {
        return tape.propagates() ? tape.carried(site, 1.0, value()).scale : value();
    }
    /// Whether all of the tensors have the flag any scale.
    [[nodiscard]] bool any_scale() const noexcept { return largest_ == 0.0; }

private:
    double largest_ = 0.0, of_any_ = 0.0;
};

/// The scale of the sum of two tensors at `site`; 1 except under `propagate`. If one tensor has the flag any scale, the
/// result is the other tensor's scale.
template <class T>
[[nodiscard]] double sum_of_scales(Tape<T>& tape, Site site, const Tensor<T>& x, const Tensor<T>& z) {
    if (!x.any_scale() && !z.any_scale()) return tape.scaled_sum(site, x.scale(), z.scale());
    const double scale = x.any_scale() ? z.scale() : x.scale();
    return tape.propagates() ? tape.carried(site, 1.0, scale).scale : scale;
}

}  // namespace unitscale::ops
