// SPDX-License-Identifier: MIT
#include <unitscale/train/resources.hpp>

#include "support/catch.hpp"

#include <vector>

TEST_CASE("resources: peak memory is in megabytes and grows when memory is used") {
    const double before = unitscale::train::peak_resident_megabytes();
    if (before == 0.0) return;  // this system does not say
    CHECK(before > 1.0);
    CHECK(before < 1e5);
    const std::size_t bytes = static_cast<std::size_t>(before * 1e6) + 64'000'000;
    const std::vector<char> block(bytes, 1);
    const double after = unitscale::train::peak_resident_megabytes();
    CHECK(after >= static_cast<double>(block.size()) * 1e-6 * 0.9);
    CHECK(after < 4.0 * before + 200.0);
}
