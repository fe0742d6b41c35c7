// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <charconv>
#include <cmath>
#include <concepts>
#include <string>
#include <string_view>

namespace unitscale::report {

/// Writes JSON as text, in the order of the calls; commas come by themselves. Numbers are the shortest that read back the
/// same; NaN and infinity, which JSON does not have, become null. Strings are escaped so that the text may also stand in a
/// script of an HTML page. The caller balances what it opens.
///   JsonText json;
///   json.open('{').key("step").value(1).key("rms").value(0.5).close('}');   // {"step":1,"rms":0.5}
/// Test: tests/report/json_text_test.cpp
class JsonText {
public:
    JsonText& open(char bracket) {
        separate();
        text_ += bracket;
        fresh_ = true;
        return *this;
    }
    JsonText& close(char bracket) {
        text_ += bracket;
        fresh_ = false;
        return *this;
    }
    JsonText& key(std::string_view name) {
        value(name);
        text_ += ':';
        fresh_ = true;
        return *this;
    }
    JsonText& value(std::string_view string) {
        constexpr std::string_view digits = "0123456789abcdef";
        separate();
        text_ += '"';
        for (const char c : string) {
            const auto byte = static_cast<unsigned char>(c);
            if (c == '"' || c == '\\') {
                text_ += '\\';
                text_ += c;
            } else if (byte < 0x20 || c == '<' || c == '>' || c == '&') {
                text_ += "\\u00";
                text_ += digits[byte >> 4];
                text_ += digits[byte & 15];
            } else {
                text_ += c;
            }
        }
        text_ += '"';
        return *this;
    }
    JsonText& value(const char* string) { return value(std::string_view(string)); }
    JsonText& value(bool truth) { return raw(truth ? "true" : "false"); }
    JsonText& value(double number) {
        if (!std::isfinite(number)) return raw("null");
        return write(number);
    }
    template <std::integral Integer>
    JsonText& value(Integer number) {
        return write(number);
    }
    JsonText& null() { return raw("null"); }
    JsonText& newline() {
        text_ += '\n';
        fresh_ = true;
        return *this;
    }

    /// key(name).value(x).
    template <class Value>
    JsonText& member(std::string_view name, const Value& x) {
        return key(name).value(x);
    }

    [[nodiscard]] const std::string& text() const noexcept { return text_; }

private:
    void separate() {
        if (!fresh_) text_ += ',';
        fresh_ = false;
    }
    JsonText& raw(std::string_view token) {
        separate();
        text_ += token;
        return *this;
    }
    template <class Number>
    JsonText& write(Number number) {
        std::array<char, 32> digits;
        const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
        return raw(std::string_view(digits.data(), static_cast<std::size_t>(end - digits.data())));
    }

    std::string text_{};
    bool fresh_ = true;
};

}  // namespace unitscale::report
