// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/io/atomic_file.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <random>
#include <string>
#include <string_view>
#include <system_error>

namespace unitscale::io {

/// Makes a folder that takes its name only when all its files are there:
///   AtomicFolder folder("published", "tuned");
///   write_atomically("published", folder.path() / "config.json", text);    // and other files
///   folder.commit();
/// Until then the files lie in a temporary folder beside the target, `tuned.<16 hexadecimal digits>.part`. commit()
/// renames it and syncs the folder above. Without commit() the temporary folder is removed with all files in it. If the
/// process is killed, it stays.
/// Errors, in one line that names operation and path: the target is a file, or a folder with files in it; any error of
/// the system.   Test: tests/io/atomic_folder_test.cpp
class AtomicFolder {
public:
    AtomicFolder(std::string_view operation, const std::filesystem::path& path)
        : where_(concatenate(operation, ": ", path.string())) {
        namespace fs = std::filesystem;
        std::error_code error;
        target_ = fs::absolute(path, error).lexically_normal();
        if (!target_.has_filename()) target_ = target_.parent_path();  // a slash at the end
        check(target_.has_filename(), where_, " names no folder");
        const fs::file_status old = fs::status(target_, error);
        check(!fs::exists(old) || fs::is_directory(old), where_, " is not a folder");
        check(!fs::exists(old) || fs::is_empty(target_, error), where_, " exists; expected no or an empty folder");
        std::random_device random;
        constexpr std::string_view hexadecimal = "0123456789abcdef";
        std::string end = ".";
        for (std::size_t i = 0; i < 16; ++i) end += hexadecimal[random() % hexadecimal.size()];
        const fs::path temporary = target_.string() + end + ".part";
        if (::mkdir(temporary.c_str(), 0777) != 0) give_up(errno);
        temporary_ = temporary;
    }
    AtomicFolder(const AtomicFolder&) = delete;
    AtomicFolder& operator=(const AtomicFolder&) = delete;
    ~AtomicFolder() {
        std::error_code ignored;
        if (!temporary_.empty()) std::filesystem::remove_all(temporary_, ignored);
    }

    /// The folder to write files into, until commit().
    [[nodiscard]] const std::filesystem::path& path() const noexcept { return temporary_; }

    /// Puts the folder in the place of the target.
    void commit() {
        check(!temporary_.empty(), where_, " is committed twice");
        if (std::rename(temporary_.c_str(), target_.c_str()) != 0) give_up(errno);
        temporary_.clear();
        const FileDescriptor above(::open(target_.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        if (above.is_open() && ::fsync(above.number()) != 0 && errno != EINVAL)  // EINVAL: no sync here
            fail(where_, " is written, but its folder cannot be synced: ", std::generic_category().message(errno));
    }

private:
    [[noreturn]] void give_up(int problem) const {
        fail(where_, " cannot be written: ", std::generic_category().message(problem));
    }

    std::string where_;
    std::filesystem::path target_{}, temporary_{};
};

/// Checks before a long computation that `AtomicFolder` can make the folder. No file changes.
/// Errors: the errors of AtomicFolder.   Test: tests/io/atomic_folder_test.cpp
inline void check_new_folder(std::string_view operation, const std::filesystem::path& path) {
    const AtomicFolder probe(operation, path);
}

}  // namespace unitscale::io
