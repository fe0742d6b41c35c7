// SPDX-License-Identifier: MIT
#pragma once

#include <charconv>
#include <cstddef>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>

namespace unitscale {

/// Bad input to the library. The message is one line. It names the operation, the argument and the expectation:
/// `matmul: x [2,3] and w [4,5] do not contract: 3 != 4`.
/// Test: tests/base/error_test.cpp
class Error : public std::invalid_argument {
public:
    using std::invalid_argument::invalid_argument;
};

/// A value that is written only when a message needs it: `append` adds its text. The value must outlive the message.
struct LazyText {
    const void* value;
    void (*append)(std::string& text, const void* value);
};

/// One part of a message without its type: text, a number or lazy text. A part refers to its text and holds no copy.
/// One function builds every message from an array of parts, so a check adds next to no code to a program.
class MessagePart {
public:
    MessagePart(const char* text) noexcept : kind_(Kind::literal) { value_.literal = text; }
    MessagePart(std::string_view text) noexcept : kind_(Kind::text), size_(text.size()) {
        value_.literal = text.data();
    }
    MessagePart(const std::string& text) noexcept : MessagePart(std::string_view(text)) {}
    MessagePart(char letter) noexcept : kind_(Kind::letter) { value_.letter = letter; }
    MessagePart(bool truth) noexcept : MessagePart(static_cast<long long>(truth)) {}
    MessagePart(int number) noexcept : MessagePart(static_cast<long long>(number)) {}
    MessagePart(long number) noexcept : MessagePart(static_cast<long long>(number)) {}
    MessagePart(long long number) noexcept : kind_(number < 0 ? Kind::negative : Kind::natural) {
        const auto bits = static_cast<unsigned long long>(number);
        value_.natural = number < 0 ? 0 - bits : bits;
    }
    MessagePart(unsigned number) noexcept : MessagePart(static_cast<unsigned long long>(number)) {}
    MessagePart(unsigned long number) noexcept : MessagePart(static_cast<unsigned long long>(number)) {}
    MessagePart(unsigned long long number) noexcept : kind_(Kind::natural) { value_.natural = number; }
    MessagePart(double number) noexcept : kind_(Kind::real) { value_.real = number; }
    MessagePart(const LazyText& lazy) noexcept : kind_(Kind::lazy) { value_.lazy = &lazy; }

    /// Adds the part's text. Numbers are written as std::ostream does by default, under every locale. Floating-point
    /// numbers get six significant digits.
    [[gnu::cold]] void append_to(std::string& text) const {
        char digits[32];
        char* end = digits;
        switch (kind_) {
            case Kind::literal:
                text.append(value_.literal);
                return;
            case Kind::text:
                text.append(value_.literal, size_);
                return;
            case Kind::letter:
                text.push_back(value_.letter);
                return;
            case Kind::lazy:
                value_.lazy->append(text, value_.lazy->value);
                return;
            case Kind::negative:
                text.push_back('-');
                [[fallthrough]];
            case Kind::natural:
                end = std::to_chars(digits, digits + sizeof digits, value_.natural).ptr;
                break;
            case Kind::real:
                end = std::to_chars(digits, digits + sizeof digits, value_.real, std::chars_format::general, 6).ptr;
                break;
        }
        text.append(digits, end);
    }

private:
    enum class Kind : unsigned char { literal, text, letter, natural, negative, real, lazy };

    union {
        const char* literal;
        char letter;
        unsigned long long natural;
        double real;
        const LazyText* lazy;
    } value_;
    Kind kind_;
    std::size_t size_;  // set for Kind::text only
};

/// Concatenates the parts.
[[nodiscard]] inline std::string joined(std::initializer_list<MessagePart> parts) {
    std::string text;
    for (const MessagePart& part : parts) part.append_to(text);
    return text;
}

/// Throws Error with the parts as its message. Out of line and marked cold, so that the caller's code stays small and
/// straight.
[[noreturn, gnu::cold, gnu::noinline]] inline void throw_error(std::initializer_list<MessagePart> parts) {
    throw Error(joined(parts));
}

/// Concatenates the parts, each written as `operator<<` of a std::ostream writes it.
template <class... Parts>
[[nodiscard, gnu::always_inline]] inline std::string concatenate(const Parts&... parts) {
    return joined({MessagePart(parts)...});
}

/// Throws Error with the parts as its message.
template <class... Parts>
[[noreturn, gnu::always_inline]] inline void fail(const Parts&... parts) {
    throw_error({MessagePart(parts)...});
}

/// Throws Error unless `condition` holds. The parts are formatted on failure only, so a check costs one branch. Call it
/// before a parallel region, never inside: an exception must not leave an OpenMP thread.
template <class... Parts>
[[gnu::always_inline]] inline void check(bool condition, const Parts&... parts) {
    if (!condition) [[unlikely]]
        throw_error({MessagePart(parts)...});
}

}  // namespace unitscale
