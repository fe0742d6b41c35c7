// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/formats/code.hpp>
#include <unitscale/formats/format.hpp>
#include <unitscale/tensor/cast.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <cstddef>
#include <cstdint>

namespace unitscale {

/// Numbers as codes of a format of at most 8 bits, chosen at run time: the value of an element is the number of its
/// code times the scale of `codes`. Minifloat<F> serves formats that are known when a program is compiled.
/// Test: tests/tensor/coded_tensor_test.cpp
struct CodedTensor {
    FloatFormat format{};
    Tensor<std::uint8_t> codes{};
};

/// The numbers of the codes, each rounded once to T, with the scale and the flag of the codes.
template <class T>
[[nodiscard]] Tensor<T> decoded(const CodedTensor& coded) {
    Tensor<T> numbers(coded.codes.shape());
    for (std::size_t i = 0; i < numbers.size(); ++i)
        numbers.data()[i] = element_cast<T>(static_cast<double>(decode(coded.format, coded.codes.data()[i])));
    numbers.set_scale(coded.codes.scale());
    numbers.set_any_scale(coded.codes.any_scale());
    return numbers;
}

}  // namespace unitscale
