// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string_view>

namespace unitscale::test {

/// The number of times that `part` occurs in `text`.
[[nodiscard]] inline std::size_t count(std::string_view text, std::string_view part) {
    std::size_t found = 0;
    for (std::size_t at = text.find(part); at != std::string_view::npos; at = text.find(part, at + 1)) ++found;
    return found;
}

}  // namespace unitscale::test
