// SPDX-License-Identifier: MIT
#include <unitscale/base/machine_memory.hpp>

#include "support/catch.hpp"

using namespace unitscale;

TEST_CASE("a machine has some memory, and what takes more of it is an error that says both sizes") {
    const double bytes = machine_memory();
    CHECK_NOTHROW(check_memory("parameter ", "w", 1e6));
#if defined(__linux__)
    CHECK(bytes > 0x1p24);
    CHECK_NOTHROW(check_memory("parameter ", "w", bytes));
    CHECK_THROWS_WITH(check_memory("parameter ", "w", 4e20),
                      Catch::StartsWith("parameter w: takes 4e+11 GB; this machine has ") && Catch::EndsWith(" GB"));
#else
    CHECK(bytes == 0.0);
    CHECK_NOTHROW(check_memory("parameter ", "w", 4e20));
#endif
}
