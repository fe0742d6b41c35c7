// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

// Counts the calls of malloc, calloc, realloc, posix_memalign, aligned_alloc and memalign in all threads: what operator
// new, OpenMP and the C library itself ask for. tests/support/allocation_count.cpp puts itself before the C
// library's functions in every test program; it costs one relaxed load per call while nothing is counted.

namespace unitscale::test {

/// False where it cannot count: under a sanitizer that has an allocator of its own, and without the GNU C library.
[[nodiscard]] bool can_count_allocations() noexcept;

/// Counts from its construction on.
class AllocationCount {
public:
    AllocationCount() noexcept;
    AllocationCount(const AllocationCount&) = delete;
    AllocationCount& operator=(const AllocationCount&) = delete;
    ~AllocationCount();

    /// Allocations so far. Stops counting, so that an assertion may allocate.
    [[nodiscard]] std::size_t stop() noexcept;
};

}  // namespace unitscale::test
