// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>

// Counts the calls of malloc, calloc, realloc, posix_memalign, aligned_alloc and memalign in all threads.
// The count includes the calls of operator new, OpenMP and the C library itself.
// In every test program tests/support/allocation_count.cpp replaces the C library's functions.
// While nothing is counted, this costs one relaxed load per call.

namespace unitscale::test {

/// False where allocations cannot be counted: under a sanitizer with its own allocator, and without the GNU C library.
[[nodiscard]] bool can_count_allocations() noexcept;

/// Counts allocations from its construction on.
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
