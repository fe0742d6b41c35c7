// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>

namespace unitscale::test {

/// How often `part` stands in `text`.
[[nodiscard]] inline std::size_t count(const std::string& text, const std::string& part) {
    std::size_t found = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
    return found;
}

}  // namespace unitscale::test
