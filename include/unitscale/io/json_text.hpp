// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <string_view>

namespace unitscale::io {

/// The value of a JSON text, such as a file that a user wrote. `where` begins the errors and names the text.
/// `keep` is nlohmann-json's callback: it may leave values out.
/// Errors: `<where> is not JSON: error at byte B, line L`, both from 1; a number beyond double.
/// Test: tests/io/json_text_test.cpp
template <class Json>
[[nodiscard]] Json parse_json(std::string_view where, std::string_view text,
                              const typename Json::parser_callback_t& keep = nullptr) {
    try {
        return Json::parse(text.begin(), text.end(), keep);
    } catch (const typename Json::parse_error& error) {
        const std::string_view read = text.substr(0, error.byte);
        fail(where, " is not JSON: error at byte ", error.byte, ", line ",
             1 + std::count(read.begin(), read.end(), '\n'));
    } catch (const typename Json::out_of_range&) {
        fail(where, " has a number that is too large");
    }
}

}  // namespace unitscale::io
