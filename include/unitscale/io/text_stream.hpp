// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/io/text.hpp>

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// Text that arrives in pieces of bytes, as tokens give it, and is to be shown at once.
namespace unitscale::io {

/// The number of bytes at the start of `bytes`, at least 1, that begin a sequence of UTF-8: all of a whole sequence, or
/// those before the byte that no sequence has in that place. `whole`: the bytes of such a sequence, if it went on.
struct Utf8Start {
    std::size_t length = 1, whole = 1;
};
/// Error: no bytes. Reference: Unicode 15, table 3-7 and section 3.9, maximal subparts. Test:
/// tests/io/text_stream_test.cpp
[[nodiscard]] inline Utf8Start utf8_start(std::string_view bytes) {
    check(!bytes.empty(), "utf8_start: no bytes");
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
    const unsigned char lead = byte(0);
    if (lead < 0xC2 || lead > 0xF4) return {};
    const std::size_t whole = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
    const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
    std::size_t length = 1;
    while (length < std::min(whole, bytes.size()) && byte(length) >= (length == 1 ? low : 0x80) &&
           byte(length) <= (length == 1 ? high : 0xBF))
        ++length;
    return {length, whole};
}

/// Bytes as UTF-8: U+FFFD in place of each maximal part that is none, as the function `bytes.decode` of Python has with
/// errors="replace".   Test: tests/io/text_stream_test.cpp
[[nodiscard]] inline std::string replace_invalid_utf8(std::string_view bytes) {
    std::string text;
    while (!bytes.empty()) {
        std::size_t length = decode_utf8_sequence(bytes.substr(0, 4)).length;
        if (length > 0) {
            text += bytes.substr(0, length);
        } else {
            text += "\xEF\xBF\xBD";
            length = utf8_start(bytes).length;
        }
        bytes.remove_prefix(length);
    }
    return text;
}

/// Passes on text as soon as it can no longer change, up to a stop string:
///   TextStream stream({"\nUser:"});
///   while (!stream.stopped()) std::fputs(stream.add(next_bytes()).c_str(), stdout);
///   std::fputs(stream.finish().c_str(), stdout);
/// Held back are the start of a character, until it is whole, and the start of a stop string, until it goes on
/// otherwise.
/// A stop string is not passed on, and nothing behind it. Of several the one that ends first counts.
/// Text that is passed on is UTF-8 (`replace_invalid_utf8`).
/// Error: an empty stop string. Test: tests/io/text_stream_test.cpp
class TextStream {
public:
    explicit TextStream(std::vector<std::string> stops = {}) : stops_(std::move(stops)) {
        for (const std::string& stop : stops_) check(!stop.empty(), "stop: a stop string is empty");
    }

    /// Takes more bytes, and returns the text that can be shown now.
    [[nodiscard]] std::string add(std::string_view bytes) {
        if (stopped_) return {};
        held_ += bytes;
        std::size_t end = std::string::npos, behind = std::string::npos;
        for (const std::string& stop : stops_) {
            const std::size_t at = held_.find(stop);
            if (at == std::string::npos || std::pair(at + stop.size(), at) >= std::pair(behind, end)) continue;
            end = at;
            behind = at + stop.size();
        }
        stopped_ = end != std::string::npos;
        if (!stopped_) end = held_.size() - std::max(begun_stop(), begun_character());
        const std::string text = replace_invalid_utf8(std::string_view(held_).substr(0, end));
        held_.erase(0, stopped_ ? held_.size() : end);
        return text;
    }
    /// The text that was held back, at the end of all bytes.
    [[nodiscard]] std::string finish() { return replace_invalid_utf8(std::exchange(held_, {})); }
    /// Whether a stop string has come.
    [[nodiscard]] bool stopped() const noexcept { return stopped_; }

private:
    /// The bytes at the end that a stop string begins with.
    [[nodiscard]] std::size_t begun_stop() const {
        std::size_t most = 0;
        for (const std::string& stop : stops_)
            for (std::size_t n = std::min(stop.size() - 1, held_.size()); n > most; --n)
                if (held_.ends_with(std::string_view(stop).substr(0, n))) most = n;
        return most;
    }
    /// The bytes at the end that begin a character.
    [[nodiscard]] std::size_t begun_character() const {
        for (std::size_t n = std::min<std::size_t>(3, held_.size()); n > 0; --n) {
            const Utf8Start start = utf8_start(std::string_view(held_).substr(held_.size() - n));
            if (start.length == n && start.whole > n) return n;
        }
        return 0;
    }

    std::vector<std::string> stops_;
    std::string held_{};
    bool stopped_ = false;
};

}  // namespace unitscale::io
