// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>

#include <cstddef>
#include <cstdlib>
#include <string_view>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace unitscale {

/// Bytes of a huge page of x86-64, and of 64-bit ARM with pages of 4 KB.
inline constexpr std::size_t huge_page_bytes = std::size_t{1} << 21;

/// Reads `on` or `off`. Error: any other text.
[[nodiscard, gnu::cold]] inline bool parse_huge_pages(std::string_view text) {
    check(text == "on" || text == "off", "UNITSCALE_HUGE_PAGES: is '", text, "'; expected on or off");
    return text == "on";
}

/// Whether memory pools ask for huge pages: unless the environment variable UNITSCALE_HUGE_PAGES is `off`. Read once
/// per process. Error: another text than `on` or `off`. Test: tests/base/huge_pages_test.cpp
[[nodiscard]] inline bool wants_huge_pages() {
    static const bool wants = [] {
        const char* const wanted = std::getenv("UNITSCALE_HUGE_PAGES");
        return wanted == nullptr || *wanted == '\0' || parse_huge_pages(wanted);
    }();
    return wants;
}

/// Asks Linux for huge pages in memory that begins at a multiple of `huge_page_bytes`. Linux then translates addresses
/// by one entry for each huge page instead of 512. A virtual machine translates twice, so misses cost it most.
/// Returns whether Linux took note; elsewhere false. The contents stay.
inline bool ask_for_huge_pages([[maybe_unused]] void* data, [[maybe_unused]] std::size_t bytes) noexcept {
#if defined(MADV_HUGEPAGE)
    return madvise(data, bytes, MADV_HUGEPAGE) == 0;
#else
    return false;
#endif
}

}  // namespace unitscale
