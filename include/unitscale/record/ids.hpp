// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace unitscale::ops {

/// Integers other than int32, in which ids and labels may be given.
template <class I>
concept OtherId = std::integral<I> && !std::same_as<I, std::int32_t> && !std::same_as<I, bool>;

/// Ids or labels as int32, which the kernels read. The op itself then checks them against its table.
/// Error, in the name of the op: a number that int32 does not hold. Test: tests/record/ids_test.cpp
template <OtherId I>
[[nodiscard]] Tensor<std::int32_t> narrow_ids(const char* op, const char* argument, const Tensor<I>& ids,
                                              const std::shared_ptr<MemoryPool>& pool) {
    Tensor<std::int32_t> narrow(ids.shape(), pool);
    for (std::size_t i = 0; i < ids.size(); ++i) {
        const I id = ids.data()[i];
        check(std::in_range<std::int32_t>(id), op, ": ", argument, "[", i, "] is ", +id,
              "; expected a number that int32 holds");
        narrow.data()[i] = static_cast<std::int32_t>(id);
    }
    return narrow;
}

}  // namespace unitscale::ops
