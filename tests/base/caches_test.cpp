// SPDX-License-Identifier: MIT
#include <unitscale/base/caches.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>

using namespace unitscale;

TEST_CASE("sizes of caches are read from a text") {
    const Caches caches = parse_caches("48k,2m,1536k");
    REQUIRE(caches == Caches{{{{48 << 10, 1}, {2 << 20, 1}, {1536 << 10, 1}}}});
    REQUIRE(text(caches) == "48k, 2m, 1536k");
    REQUIRE(text(parse_caches("32k,1m,0")) == "32k, 1m");
}

TEST_CASE("a text of another form is an error that shows the right one") {
    for (const char* wrong :
         {"32k", "32k,1m", "32k,1m,16m,1g", "32,1m,16m", "32k,1m,16g", "k,m,m", "32k,,16m", "-1k,1m,1m", "32k,1m,",
          "32k,0,16m", "1k,1m,1m", "32k 1m 16m", "99999999999999999999k,1m,1m"}) {
        CAPTURE(wrong);
        REQUIRE_THROWS_WITH(parse_caches(wrong), Catch::Contains("UNITSCALE_CACHES: is '" + std::string(wrong) +
                                                                 "'; expected the sizes of three levels"));
    }
}

TEST_CASE("a core has its share of a cache") {
    REQUIRE(CacheLevel{32 << 20, 8}.share() == 4 << 20);
    REQUIRE(text(Caches{{{{32 << 10, 1}, {1 << 20, 1}, {32 << 20, 8}}}}) == "32k, 1m, 32m shared by 8 cores");
}

TEST_CASE("caches are read from a folder as Linux has it") {
    const test::TemporaryFolder folder;
    const auto write = [&](int index, const char* level, const char* type, const char* size, const char* shared) {
        const std::filesystem::path entry = "index" + std::to_string(index);
        for (const auto& [name, content] :
             {std::pair("level", level), {"type", type}, {"size", size}, {"shared_cpu_list", shared}})
            folder.write(entry / name, content);
    };
    REQUIRE(read_caches(folder.path().string()) == Caches{});
    write(0, "1", "Data", "48K", "0,4");
    write(1, "1", "Instruction", "32K", "0,4");
    write(2, "2", "Unified", "2048K", "0,4");
    write(3, "3", "Unified", "24M", "0-3,4-7");
    REQUIRE(read_caches(folder.path().string()) == Caches{{{{48 << 10, 1}, {2 << 20, 1}, {24 << 20, 4}}}});
}

TEST_CASE("this processor's caches are found") {
    const Caches found = detected_caches();
    REQUIRE(found.level(1).bytes >= 4096);
    REQUIRE(found.level(2).bytes >= found.level(1).bytes);
#if UNITSCALE_X86 && defined(__linux__)
    if (const Caches named = read_caches_by_cpuid(); named.level(1).bytes != 0)
        REQUIRE(named.level(1).bytes == found.level(1).bytes);
#endif
    if (const char* wanted = std::getenv("UNITSCALE_CACHES"); wanted != nullptr && *wanted != '\0')
        REQUIRE(active_caches() == parse_caches(wanted));
    else REQUIRE(active_caches() == found);
}
