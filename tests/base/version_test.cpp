// SPDX-License-Identifier: MIT
#include <unitscale/base/version.hpp>

#include "support/catch.hpp"

#include <string>

TEST_CASE("the version string, its numbers and the CMake project agree") {
    const std::string numbers = std::to_string(unitscale::version_major) + '.' +
                                std::to_string(unitscale::version_minor) + '.' +
                                std::to_string(unitscale::version_patch);
    REQUIRE(unitscale::version == numbers);
    REQUIRE(unitscale::version == UNITSCALE_PROJECT_VERSION);
}
