// SPDX-License-Identifier: MIT
#include <unitscale/formats/rotation.hpp>

#include "support/catch.hpp"
#include "support/error_of.hpp"

#include <cstddef>
#include <string>

using namespace unitscale;
using unitscale::test::error_of;

TEST_CASE("rotation: TransformerEngine's signs") {
    const std::string signs = "+++-+------+-+--";
    CHECK(transformer_engine_rotation.size == 16);
    for (std::size_t i = 0; i < signs.size(); ++i)
        CHECK((transformer_engine_rotation.signs >> i & 1u) == (signs[i] == '-'));
    CHECK(transformer_engine_rotation.signs >> 16 == 0);
}

TEST_CASE("rotation: runs have 16 or 32 elements") {
    CHECK_NOTHROW(check_rotation("here", {.size = 16}));
    CHECK_NOTHROW(check_rotation("here", {.size = 32}));
    CHECK(error_of([] { check_rotation("here", {.size = 8}); }) == "here: rotation of 8; expected 16 or 32");
}
