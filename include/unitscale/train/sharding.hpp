// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/parameter.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/tensor/tensor.hpp>
#include <unitscale/train/process_group.hpp>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <numeric>
#include <span>
#include <string_view>
#include <vector>

// State of a training that its processes share among each other, by whole parameters.
// Reference: Rajbhandari et al. 2019 (ZeRO), arXiv:1910.02054.   Test: tests/train/sharding_test.cpp
namespace unitscale::train {

/// The state of which each process keeps its own parameters' part alone.
enum class Sharding {
    none,       ///< every process keeps everything
    optimiser,  ///< moments and master weights (ZeRO 1)
    gradients,  ///< these, and the gradients of the whole step (ZeRO 2)
};
[[nodiscard]] constexpr std::string_view name(Sharding sharding) noexcept {
    return sharding == Sharding::none ? "none" : sharding == Sharding::optimiser ? "optimiser" : "gradients";
}
/// Error: another name.
[[nodiscard]] inline Sharding parse_sharding(std::string_view text) {
    for (const Sharding sharding : {Sharding::none, Sharding::optimiser, Sharding::gradients})
        if (text == name(sharding)) return sharding;
    fail("sharding: unknown name '", text, "'; expected none, optimiser or gradients");
}

/// The process that owns each parameter. Parameters of these sizes are given out from the largest to the smallest,
/// equal ones in turn, each to the process with the fewest elements so far, the first of several. All processes find
/// the same owners. No process has more elements than the mean and one parameter together.
[[nodiscard]] inline std::vector<std::size_t> owners_of(std::span<const std::size_t> sizes, std::size_t processes) {
    std::vector<std::size_t> order(sizes.size()), owners(sizes.size()), elements(processes, 0);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, [sizes](std::size_t a, std::size_t b) { return sizes[a] > sizes[b]; });
    for (const std::size_t i : order) {
        const auto least = std::ranges::min_element(elements);
        *least += sizes[i];
        owners[i] = static_cast<std::size_t>(least - elements.begin());
    }
    return owners;
}

/// `share_values` of all parameters in one message.
template <class T>
std::size_t share_at_once(ProcessGroup& group, const Execution& execution, std::span<Parameter<T>* const> parameters,
                          std::span<const std::size_t> owners) {
    std::vector<std::size_t> bytes(group.size(), 0);
    for (std::size_t i = 0; i < parameters.size(); ++i)
        bytes[owners[i]] += sizeof(double) + parameters[i]->size() * sizeof(T);
    const std::size_t own = bytes[group.rank()];
    Scratch<std::byte> mine(execution, own);
    Scratch<std::byte> all(execution, std::accumulate(bytes.begin(), bytes.end(), std::size_t{0}));
    std::byte* to = mine.data();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        if (owners[i] != group.rank()) continue;
        const double scale = parameters[i]->scale();
        const auto data = std::as_bytes(parameters[i]->value().span());
        std::memcpy(to, &scale, sizeof scale);
        to = std::copy(data.begin(), data.end(), to + sizeof scale);
    }
    group.collect(mine.span(), all.span(), bytes);
    const std::byte* from = all.data();
    for (std::size_t r = 0; r < group.size(); ++r)
        for (std::size_t i = 0; i < parameters.size(); ++i) {
            if (owners[i] != r) continue;
            const std::size_t size = parameters[i]->size() * sizeof(T);
            if (r != group.rank()) {
                double scale = 1.0;
                std::memcpy(&scale, from, sizeof scale);
                Tensor<T>& value = parameters[i]->write();
                std::memcpy(static_cast<void*>(value.data()), from + sizeof scale, size);
                value.set_scale(scale);
            }
            from += sizeof(double) + size;
        }
    return own * (group.size() - 1);
}

/// Gives the values of parameters to all processes, each from its owner: data and scale. Every process calls it with
/// equal parameters. About `bucket_elements` are sent at a time. Returns the bytes that this process has sent to
/// others. The execution provides scratch.
template <class T>
std::size_t share_values(ProcessGroup& group, const Execution& execution, std::span<Parameter<T>* const> parameters,
                         std::span<const std::size_t> owners, std::size_t bucket_elements) {
    std::size_t sent = 0, elements = 0, begin = 0;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
        elements += parameters[i]->size();
        if (elements < bucket_elements && i + 1 < parameters.size()) continue;
        const std::size_t count = i + 1 - begin;
        sent += share_at_once(group, execution, parameters.subspan(begin, count), owners.subspan(begin, count));
        begin = i + 1;
        elements = 0;
    }
    return sent;
}

}  // namespace unitscale::train
