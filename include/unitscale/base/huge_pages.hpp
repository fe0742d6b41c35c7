// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/base/memory.hpp>

#include <cstddef>
#include <cstdlib>
#include <string_view>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace unitscale {

/// Reads `on` or `off`. Error: any other text.
[[nodiscard, gnu::cold]] inline bool parse_huge_pages(std::string_view text) {
    check(text == "on" || text == "off", "UNITSCALE_HUGE_PAGES: is '", text, "'; expected on or off");
    return text == "on";
}

/// Asks Linux for huge pages: a MemoryAdvice. Linux then translates addresses by one entry for each huge page instead
/// of 512. A virtual machine translates twice, so misses cost it most. Elsewhere false.
inline bool ask_for_huge_pages([[maybe_unused]] void* data, [[maybe_unused]] std::size_t bytes) noexcept {
#if defined(MADV_HUGEPAGE)
    return madvise(data, bytes, MADV_HUGEPAGE) == 0;
#else
    return false;
#endif
}

/// The advice of a tape's pool: `ask_for_huge_pages`, or null where the environment variable UNITSCALE_HUGE_PAGES is
/// `off`. Read once per process. Error: another text than `on` or `off`. Test: tests/base/huge_pages_test.cpp
[[nodiscard]] inline MemoryAdvice huge_page_advice() {
    static const MemoryAdvice advice = []() -> MemoryAdvice {
        const char* const wanted = std::getenv("UNITSCALE_HUGE_PAGES");
        return wanted == nullptr || *wanted == '\0' || parse_huge_pages(wanted) ? ask_for_huge_pages : nullptr;
    }();
    return advice;
}

}  // namespace unitscale
