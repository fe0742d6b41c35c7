// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <ios>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <unordered_map>
#include <vector>

namespace unitscale::io {

/// A byte as text in error messages: `0xff`.
[[nodiscard]] inline std::string byte_name(unsigned char byte) {
    constexpr std::string_view digits = "0123456789abcdef";
    return {'0', 'x', digits[byte >> 4], digits[byte & 15]};
}

/// A hash by which maps of texts find views. It is not noexcept: libstdc++ then keeps every text's hash, which costs
/// less than to hash all texts of a bucket in every search.
struct TextHash {
    using is_transparent = void;
    [[nodiscard]] std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
/// The ids of tokens by their texts.
using TokenIds = std::unordered_map<std::string, std::int32_t, TextHash, std::equal_to<>>;

/// A part of a text in UTF-8: its bytes from `begin` to before `end`.
struct TextRange {
    std::size_t begin = 0, end = 0;

    friend constexpr bool operator==(const TextRange&, const TextRange&) = default;
};

/// The length in bytes of a code point in UTF-8.
[[nodiscard]] constexpr std::size_t utf8_length(char32_t point) noexcept {
    return point < 0x80 ? 1 : point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
}

/// The length in bytes of a UTF-8 sequence, and its code point. Length 0: no valid sequence, but a stray continuation
/// byte, a truncated or overlong sequence, a surrogate, or a value above U+10FFFF.
struct Utf8Sequence {
    std::size_t length = 0;
    char32_t code_point = 0;
};

/// The UTF-8 sequence at the start of `bytes`. Reference: Unicode 15, table 3-7. Test: tests/io/text_test.cpp
[[nodiscard]] constexpr Utf8Sequence decode_utf8_sequence(std::string_view bytes) noexcept {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
    if (bytes.empty()) return {};
    const unsigned char lead = byte(0);
    if (lead < 0x80) return {1, lead};
    if (lead < 0xC2 || lead > 0xF4) return {};  // continuation bytes; C0, C1: overlong; from F5 on: above U+10FFFF
    const std::size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (bytes.size() < length) return {};
    const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;   // below: overlong
    const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;  // above: surrogates, U+110000
    if (byte(1) < low || byte(1) > high) return {};
    char32_t value = lead & (0xFFu >> (length + 1));
    for (std::size_t i = 1; i < length; ++i) {
        if ((byte(i) & 0xC0) != 0x80) return {};
        value = value << 6 | (byte(i) & 0x3Fu);
    }
    return {length, value};
}

/// The code points of UTF-8 text. `origin` (a path) starts the error message. The message names the first byte of the
/// invalid sequence and its offset: `data: corpus.txt is not UTF-8: byte 0xff at offset 17`.
[[nodiscard]] inline std::u32string decode_utf8(std::string_view bytes, std::string_view origin = "text") {
    std::u32string text;
    text.reserve(bytes.size());
    for (std::size_t i = 0; i < bytes.size();) {
        const Utf8Sequence sequence = decode_utf8_sequence(bytes.substr(i, 4));
        check(sequence.length > 0, "data: ", origin, " is not UTF-8: byte ",
              byte_name(static_cast<unsigned char>(bytes[i])), " at offset ", i);
        text.push_back(sequence.code_point);
        i += sequence.length;
    }
    return text;
}

/// Cuts bytes into runs that are UTF-8 and runs that are not, each as long as possible, and calls take(run, is_utf8) in
/// their order.   Test: tests/io/text_test.cpp
template <class Take>
void for_each_utf8_run(std::string_view bytes, Take&& take) {
    std::size_t at = 0;
    const auto run = [&](bool valid) {
        const std::size_t begin = at;
        while (at < bytes.size()) {
            const std::size_t length = decode_utf8_sequence(bytes.substr(at, 4)).length;
            if ((length > 0) != valid) break;
            at += valid ? length : 1;
        }
        if (at > begin) take(bytes.substr(begin, at - begin), valid);
    };
    while (at < bytes.size()) {
        run(true);
        run(false);
    }
}

/// Appends one code point to `out`, in UTF-8. Error: a surrogate or a value above U+10FFFF.
inline void append_utf8(std::string& out, char32_t point) {
    check(point <= 0x10FFFF && (point < 0xD800 || point > 0xDFFF), "utf-8: ", static_cast<std::uint32_t>(point),
          " is not a code point");
    const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(static_cast<unsigned char>(byte))); };
    if (point < 0x80) {
        put(point);
    } else if (point < 0x800) {
        put(0xC0 | point >> 6);
        put(0x80 | (point & 0x3F));
    } else if (point < 0x10000) {
        put(0xE0 | point >> 12);
        put(0x80 | (point >> 6 & 0x3F));
        put(0x80 | (point & 0x3F));
    } else {
        put(0xF0 | point >> 18);
        put(0x80 | (point >> 12 & 0x3F));
        put(0x80 | (point >> 6 & 0x3F));
        put(0x80 | (point & 0x3F));
    }
}

[[nodiscard]] inline std::string encode_utf8(std::u32string_view text) {
    std::string bytes;
    bytes.reserve(text.size());
    for (const char32_t point : text) append_utf8(bytes, point);
    return bytes;
}

/// All bytes of a file. Error, naming the path: the file is missing or cannot be read.
[[nodiscard]] inline std::string read_bytes(const std::filesystem::path& path) {
    std::error_code error;
    check(std::filesystem::exists(path, error), "data: ", path.string(), " does not exist");
    std::ifstream file(path, std::ios::binary);
    std::string bytes;
    std::array<char, 1 << 16> buffer;
    while (file.read(buffer.data(), static_cast<std::streamsize>(buffer.size())) || file.gcount() > 0)
        bytes.append(buffer.data(), static_cast<std::size_t>(file.gcount()));
    check(file.is_open() && !file.bad() && file.eof(), "data: ", path.string(), " cannot be read");
    return bytes;
}

inline constexpr std::array<std::string_view, 10> text_extensions = {".txt", ".md", ".hpp",   ".cpp",  ".h",
                                                                     ".c",   ".sh", ".cmake", ".json", ".py"};

/// True if a file counts as text, by its name.
[[nodiscard]] inline bool is_text_file(const std::filesystem::path& path) {
    return path.filename() == "CMakeLists.txt" || std::find(text_extensions.begin(), text_extensions.end(),
                                                            path.extension().string()) != text_extensions.end();
}

/// The text files of a folder and its subfolders, sorted by path, so that all machines give one order. Hidden files and
/// folders are left out, and so are build folders (with a CMakeCache.txt) below `folder`. Links to folders are not
/// followed. Error: the folder cannot be listed.
[[nodiscard]] inline std::vector<std::filesystem::path> find_text_files(const std::filesystem::path& folder) {
    namespace fs = std::filesystem;
    std::vector<fs::path> files;
    std::error_code error;
    fs::recursive_directory_iterator entry(folder, error);
    check(!error, "data: ", folder.string(), " cannot be listed: ", error.message());
    while (entry != fs::recursive_directory_iterator()) {
        const fs::path& path = entry->path();
        const bool hidden = path.filename().string().starts_with(".");
        std::error_code ignored;
        if (entry->is_directory(ignored)) {
            if (hidden || fs::exists(path / "CMakeCache.txt", ignored)) entry.disable_recursion_pending();
        } else if (!hidden && entry->is_regular_file(ignored) && is_text_file(path)) {
            files.push_back(path);
        }
        entry.increment(error);
        check(!error, "data: ", folder.string(), " cannot be listed: ", error.message());
    }
    std::sort(files.begin(), files.end(),
              [](const fs::path& a, const fs::path& b) { return a.generic_string() < b.generic_string(); });
    return files;
}

/// The text of files and folders, as code points. A folder stands for the files that find_text_files lists. The texts
/// are joined; a text that does not end in a newline gets one before the next text. An empty file inside a folder is
/// allowed. An empty file that is named itself is an error, and so is a folder with empty files only.
/// Errors, each naming the path: missing; unreadable; empty; a folder without text; not UTF-8.
/// Test: tests/io/text_test.cpp
[[nodiscard]] inline std::u32string read_text(std::span<const std::filesystem::path> paths) {
    namespace fs = std::filesystem;
    check(!paths.empty(), "data: no path was given");
    std::u32string text;
    const auto append = [&](const fs::path& path) {
        const std::u32string part = decode_utf8(read_bytes(path), path.string());
        if (part.empty()) return false;
        if (!text.empty() && text.back() != U'\n') text.push_back(U'\n');
        text += part;
        return true;
    };
    for (const fs::path& path : paths) {
        std::error_code error;
        check(fs::exists(path, error), "data: ", path.string(), " does not exist");
        if (!fs::is_directory(path, error)) {
            check(append(path), "data: ", path.string(), " is empty");
            continue;
        }
        bool any = false;
        for (const fs::path& file : find_text_files(path)) any = append(file) || any;
        check(any, "data: folder ", path.string(), " holds no text (files *.txt, *.md, source files)");
    }
    return text;
}
[[nodiscard]] inline std::u32string read_text(const std::filesystem::path& path) {
    return read_text(std::span<const std::filesystem::path>(&path, 1));
}

}  // namespace unitscale::io
