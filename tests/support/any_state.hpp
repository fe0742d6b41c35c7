// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/formats/format.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace unitscale::test {

/// State of any type, by name, bit for bit. It is read from one optimiser and written into another.
struct AnyState {
    std::map<std::string, std::vector<std::byte>> bytes{};
    std::map<std::string, double> scales{};
    std::map<std::string, std::uint64_t> scalars{};
    bool write = false;
    template <class T>
    void tensor(const std::string& name, Tensor<T>& tensor) {
        const std::span<std::byte> data = std::as_writable_bytes(tensor.span());
        if (write) {
            std::copy(bytes.at(name).begin(), bytes.at(name).end(), data.begin());
            tensor.set_scale(scales.at(name));
        } else {
            bytes[name].assign(data.begin(), data.end());
            scales[name] = tensor.scale();
        }
    }
    template <class T>
    void codes(const std::string& name, const FloatFormat&, Tensor<T>& words) {
        tensor(name, words);
    }
    void scalar(const std::string& name, std::uint64_t& value) {
        if (write) value = scalars.at(name);
        else scalars[name] = value;
    }
};

}  // namespace unitscale::test
