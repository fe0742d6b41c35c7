// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/memory.hpp>
#include <unitscale/formats/format.hpp>
#include <unitscale/kernels/rescale.hpp>
#include <unitscale/optim/clip.hpp>
#include <unitscale/optim/stored_tensor.hpp>
#include <unitscale/scaling/propagate.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace unitscale::optim {

/// A visitor of one parameter's optimiser state, for `rescale_state`. It divides the master copy `master` by a power of
/// two, and rescales every other tensor with a propagated scale.
template <std::floating_point A>
class StateRescaler {
public:
    StateRescaler(std::string master, double power) : master_(std::move(master)), power_(power) {}

    void stored(const std::string& name, StoredTensor<A>& tensor) const {
        if (name != master_) return tensor.rescale();
        if (power_ != 1.0) tensor.divide(power_);
    }
    // State without a scale of its own stays.
    template <class Element>
    void tensor(const std::string&, Tensor<Element>&) const {}
    template <class Code>
    void codes(const std::string&, const FloatFormat&, Tensor<Code>&) const {}
    void scalar(const std::string&, std::uint64_t&) const {}
    void number(const std::string&, double&) const {}

private:
    std::string master_;
    double power_;
};

/// The scale under which a tensor's data has unit size: its scale times `rescaling` of the data's rms.
/// Static scale rules rely on weights of unit data; trained weights may be far larger than new ones.
template <class T>
[[nodiscard]] double unit_scale(const Tensor<T>& tensor) {
    const double squares = sum_of_squares(tensor.data(), static_cast<std::ptrdiff_t>(tensor.size()));
    return tensor.scale() * rms_rescaling(squares, tensor.size());
}

/// Brings the data of a weight, and of its optimiser state, to unit size. Values stay: data is divided by a power of
/// two, and its scale is multiplied by it (`rescaling`, by the root mean square of the data).
///   weight   by its own data; a master copy, which has the scale of the weight, by the same power
///   moments  with a propagated scale, each by its own codes; others have scales of their own from every update
/// Under static scale rules a weight keeps the scale that it began with. Data that has grown by training then makes all
/// products with it grow, until a 16-bit format overflows.
/// It is exact, unless data leaves the normal numbers of its type.
/// `name` is the parameter's name, under which the state names its tensors.
/// Reference: Balanca et al. 2024 (Scalify, WANT@ICML), algorithm 1. Test: tests/optim/rescale_state_test.cpp
template <class T, class State>
void rescale_state(const std::string& name, Tensor<T>& weight, State& state) {
    const auto size = static_cast<std::ptrdiff_t>(weight.size());
    const double scale = with_scale(weight.scale(), unit_scale(weight)).scale, power = scale / weight.scale();
    if (power != 1.0) {
        kernels::rescale<T>(Execution{}, weight.data(), weight.data(), size, weight.scale(), scale);
        weight.set_scale(scale);
    }
    state.visit_state(StateRescaler<Accum<T>>(name + "/master", power), name);
}

}  // namespace unitscale::optim
