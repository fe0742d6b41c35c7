// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>

#include <filesystem>
#include <fstream>
#include <ios>
#include <string_view>
#include <system_error>

namespace unitscale::io {

/// Writes a file whole or not at all: to a new file beside it, which then takes its name. What was there before stays until
/// then; a device or a pipe is written directly. `operation` starts the error message.
/// Error, naming the path: it cannot be written. Test: tests/io/whole_file_test.cpp
inline void write_whole(std::string_view operation, const std::filesystem::path& path, std::string_view bytes) {
    std::error_code error;
    const bool direct = std::filesystem::exists(path, error) && !std::filesystem::is_regular_file(path, error);
    std::filesystem::path target = path;
    if (!direct) target += ".part";
    bool written = false;
    {
        std::ofstream file(target, std::ios::binary | std::ios::trunc);
        file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
        file.close();
        written = !file.fail();
    }
    if (!direct) {
        if (written) std::filesystem::rename(target, path, error);
        if (!written || error) {
            std::error_code ignored;
            std::filesystem::remove(target, ignored);
        }
    }
    check(written && !error, operation, ": ", path.string(), " cannot be written");
}

/// Error unless `write_whole` could write there now: to be called before a long computation whose result goes there.
inline void check_writable(std::string_view operation, const std::filesystem::path& path) {
    std::error_code error;
    const bool exists = std::filesystem::exists(path, error);
    std::filesystem::path target = path;
    if (exists && !std::filesystem::is_regular_file(path, error)) {
        check(!std::filesystem::is_directory(path, error), operation, ": ", path.string(), " cannot be written");
        return;  // a device or a pipe: opening it may do something
    }
    target += ".part";
    const bool opened = std::ofstream(target, std::ios::binary | std::ios::trunc).is_open();
    if (opened) std::filesystem::remove(target, error);
    check(opened, operation, ": ", path.string(), " cannot be written");
}

}  // namespace unitscale::io
