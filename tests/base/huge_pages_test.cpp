// SPDX-License-Identifier: MIT
#include <unitscale/base/huge_pages.hpp>

#include "support/catch.hpp"

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <new>
#include <sstream>
#include <string>

using namespace unitscale;

namespace {

/// Linux' flags of the mapping that holds an address; empty where they are not listed.
std::string mapping_flags(const void* address) {
    std::ifstream file("/proc/self/smaps");
    bool inside = false;
    for (std::string line; std::getline(file, line);) {
        std::uintptr_t begin = 0, end = 0;
        char dash = 0;
        std::istringstream words(line);
        if (words >> std::hex >> begin >> dash >> end && dash == '-')
            inside =
                begin <= reinterpret_cast<std::uintptr_t>(address) && reinterpret_cast<std::uintptr_t>(address) < end;
        else if (inside && line.rfind("VmFlags:", 0) == 0) return line + " ";
    }
    return "";
}

}  // namespace

TEST_CASE("huge pages are on or off, and any other text is an error") {
    CHECK(parse_huge_pages("on"));
    CHECK_FALSE(parse_huge_pages("off"));
    for (const char* wrong : {"", "yes", "On", "off "})
        CHECK_THROWS_WITH(parse_huge_pages(wrong),
                          "UNITSCALE_HUGE_PAGES: is '" + std::string(wrong) + "'; expected on or off");
}

TEST_CASE("a pool with the advice of the environment serves large blocks, and the advice comes once for each region") {
    static int calls = 0;
    static std::uintptr_t last = 0;
    calls = 0;
    MemoryPool counted([](void* data, std::size_t bytes) noexcept {
        ++calls;
        last = reinterpret_cast<std::uintptr_t>(data);
        return bytes >= MemoryPool::large_block_bytes;
    });
    void* const small = counted.allocate(1000);
    CHECK(calls == 0);
    void* const large = counted.allocate(MemoryPool::large_block_bytes);
    CHECK(calls == 1);
    CHECK(last % huge_page_bytes == 0);
    CHECK(reinterpret_cast<std::uintptr_t>(large) - last < huge_page_bytes);
    counted.deallocate(large, MemoryPool::large_block_bytes);
    CHECK(counted.allocate(MemoryPool::large_block_bytes) == large);
    CHECK(calls == 1);
    counted.deallocate(large, MemoryPool::large_block_bytes);
    counted.deallocate(small, 1000);

    MemoryPool pool(huge_page_advice());
    constexpr std::size_t bytes = 3 * huge_page_bytes;
    void* const block = pool.allocate(bytes);
    std::memset(block, 3, bytes);
    const char* const wanted = std::getenv("UNITSCALE_HUGE_PAGES");
    CHECK((huge_page_advice() == nullptr) == (wanted != nullptr && std::string(wanted) == "off"));
    pool.deallocate(block, bytes);
}

TEST_CASE("memory for which huge pages were asked keeps its contents, and Linux lists the request") {
    const std::size_t bytes = 2 * huge_page_bytes;
    auto* const data = static_cast<unsigned char*>(::operator new (bytes, std::align_val_t{huge_page_bytes}));
    std::memset(data, 7, bytes);
    const bool noted = ask_for_huge_pages(data, bytes);
    const std::string flags = mapping_flags(data);
    if (noted && !flags.empty()) CHECK_THAT(flags, Catch::Contains(" hg "));
    bool kept = true;
    for (std::size_t i = 0; i < bytes; ++i) kept = kept && data[i] == 7;
    CHECK(kept);
    ::operator delete (data, std::align_val_t{huge_page_bytes});
}
