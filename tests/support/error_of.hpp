// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>

#include <string>

namespace unitscale::test {

/// The message of the Error that `body` throws; empty if it throws no Error.
template <class F>
[[nodiscard]] std::string error_of(F&& body) {
    try {
        body();
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

}  // namespace unitscale::test
