// SPDX-License-Identifier: MIT
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace unitscale {

/// Bad input to the library. The message is one line that names the operation, the argument and what was expected:
/// `matmul: x [2,3] and w [4,5] do not contract: 3 != 4`.
/// Test: tests/base/error_test.cpp
class Error : public std::invalid_argument {
public:
    using std::invalid_argument::invalid_argument;
};

/// The parts written one after the other with `operator<<`.
template <class... Parts>
[[nodiscard]] std::string concatenate(const Parts&... parts) {
    std::ostringstream out;
    static_cast<void>((out << ... << parts));
    return out.str();
}

/// Throws Error with the parts as its message.
template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
    throw Error(concatenate(parts...));
}

/// Throws Error unless `condition` holds. The parts are only formatted on failure, so a check costs one branch.
/// Call it before a parallel region, never inside: an exception must not leave an OpenMP thread.
template <class... Parts>
void check(bool condition, const Parts&... parts) {
    if (!condition) [[unlikely]]
        fail(parts...);
}

}  // namespace unitscale
