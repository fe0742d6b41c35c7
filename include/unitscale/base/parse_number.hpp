// SPDX-License-Identifier: MIT
#pragma once

#include <version>

#include <charconv>
#include <optional>
#include <string_view>

#if !defined(__cpp_lib_to_chars)  // libc++ reads whole numbers only until version 20
#include <locale>
#include <sstream>
#include <string>
#endif

namespace unitscale {

/// The number that a text consists of: decimal, with a point in every locale. Nothing: another text, a sign +, spaces,
/// or a number out of double's range. Infinity and NaN are numbers in some standard libraries only.
/// Test: tests/base/parse_number_test.cpp
[[nodiscard, gnu::cold]] inline std::optional<double> parse_number(std::string_view text) {
    double number = 0.0;
#if defined(__cpp_lib_to_chars)
    const auto read = std::from_chars(text.data(), text.data() + text.size(), number);
    if (read.ec != std::errc() || read.ptr != text.data() + text.size()) return {};
#else
    if (text.find_first_not_of("0123456789+-.eE") != text.npos || text.starts_with('+')) return {};
    std::istringstream stream{std::string(text)};
    stream.imbue(std::locale::classic());
    if (!(stream >> number) || stream.peek() != std::istringstream::traits_type::eof()) return {};
#endif
    return number;
}

}  // namespace unitscale
