// SPDX-License-Identifier: MIT
#pragma once

#include <string_view>

namespace unitscale {

/// Version of the library. This is its only place; CMake reads the three numbers from here. Before 1.0 a change of the
/// minor number may break code that uses the library.
/// Test: tests/base/version_test.cpp
inline constexpr int version_major = 0;
inline constexpr int version_minor = 1;
inline constexpr int version_patch = 0;
inline constexpr std::string_view version = "0.1.0";

}  // namespace unitscale
