// SPDX-License-Identifier: MIT
#pragma once

// Catch2 3 has many headers and a compiled library, Catch2 2 is one header.
// Both give TEST_CASE, REQUIRE and so on; this header makes Approx global in both.
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;
#else
#include <catch2/catch.hpp>
#endif
