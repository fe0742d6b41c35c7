// SPDX-License-Identifier: MIT
#include "support/allocation_count.hpp"

#include <atomic>
#include <cerrno>
#include <cstdlib>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define UNITSCALE_TEST_INTERPOSES 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define UNITSCALE_TEST_INTERPOSES 0
#endif
#endif
#if !defined(UNITSCALE_TEST_INTERPOSES)
#if defined(__GLIBC__)
#define UNITSCALE_TEST_INTERPOSES 1
#else
#define UNITSCALE_TEST_INTERPOSES 0
#endif
#endif

namespace {

std::atomic<bool> counting{false};
std::atomic<std::size_t> allocations{0};

}  // namespace

namespace unitscale::test {

bool can_count_allocations() noexcept { return UNITSCALE_TEST_INTERPOSES == 1; }

AllocationCount::AllocationCount() noexcept {
    allocations = 0;
    counting = true;
}
AllocationCount::~AllocationCount() { counting = false; }
std::size_t AllocationCount::stop() noexcept {
    counting = false;
    return allocations;
}

}  // namespace unitscale::test

#if UNITSCALE_TEST_INTERPOSES
namespace {

void count() noexcept {
    if (counting.load(std::memory_order_relaxed)) allocations.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

extern "C" {

// The GNU C library's own names for its functions.
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);

void* malloc(std::size_t bytes) noexcept {
    count();
    return __libc_malloc(bytes);
}
void* calloc(std::size_t number, std::size_t bytes) noexcept {
    count();
    return __libc_calloc(number, bytes);
}
void* realloc(void* block, std::size_t bytes) noexcept {
    count();
    return __libc_realloc(block, bytes);
}
void* memalign(std::size_t alignment, std::size_t bytes) noexcept {
    count();
    return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(std::size_t alignment, std::size_t bytes) noexcept {
    count();
    return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** block, std::size_t alignment, std::size_t bytes) noexcept {
    count();
    if (alignment % sizeof(void*) != 0 || (alignment & (alignment - 1)) != 0 || alignment == 0) return EINVAL;
    void* made = __libc_memalign(alignment, bytes);
    if (made == nullptr) return ENOMEM;
    *block = made;
    return 0;
}

}  // extern "C"
#endif
