// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/io/atomic_file.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace unitscale::io {

/// A file, open for reading: parts of it are copied to memory, or seen in a memory map, which is no copy.
///   const MappedFile file("safetensors: model.safetensors", "model.safetensors");
///   file.read(8, out);                                              // copies out.size() bytes from byte 8 on
///   const std::span<const std::byte> bytes = file.view(8, 4096);    // valid while the file lives
/// The file stays the file that was opened, even if another has taken its name since. Every function is const and may
/// be called from several threads. Where a file cannot be mapped, the first view of it would be a copy of the whole
/// file; the constructor makes that copy.
/// A file that another program shortens while `view`'s bytes are read ends the process (SIGBUS), as for every map.
/// Errors, with `where` in front: a missing or unreadable file; a file that has become shorter since it was opened.
/// Test: tests/io/mapped_file_test.cpp
class MappedFile {
public:
    MappedFile(std::string where, const std::filesystem::path& path) : where_(std::move(where)) {
        std::error_code error;
        check(std::filesystem::is_regular_file(path, error), where_, " does not exist or is not a file");
        file_ = FileDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
        struct stat facts {};
        const bool opened = file_.is_open() && ::fstat(file_.number(), &facts) == 0;
        if (!opened) fail(where_, " cannot be read: ", std::generic_category().message(errno));
        const auto bytes = static_cast<std::size_t>(facts.st_size);
        if (bytes == 0) return;
        void* const place = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file_.number(), 0);
        if (place != MAP_FAILED) {
            bytes_ = {static_cast<const std::byte*>(place), bytes};
            owner_ =
                std::shared_ptr<const void>(place, [bytes](const void* p) { ::munmap(const_cast<void*>(p), bytes); });
            return;
        }
        const auto copy = std::make_shared<std::vector<std::byte>>(bytes);
        copy_from_file(0, *copy);
        bytes_ = *copy;
        owner_ = copy;
        file_ = FileDescriptor();
    }
    /// Bytes in memory in place of a file, borrowed.
    MappedFile(std::string where, std::span<const std::byte> bytes) : where_(std::move(where)), bytes_(bytes) {}

    [[nodiscard]] const std::string& where() const noexcept { return where_; }
    [[nodiscard]] std::uint64_t size() const noexcept { return bytes_.size(); }

    /// Copies bytes. The range lies in the file.
    void read(std::uint64_t offset, std::span<std::byte> out) const {
        if (file_.is_open()) copy_from_file(offset, out);
        else std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(offset), out.size(), out.begin());
    }
    /// The bytes themselves. The range lies in the file.
    [[nodiscard]] std::span<const std::byte> view(std::uint64_t offset, std::uint64_t count) const {
        struct stat facts {};
        const bool whole = !file_.is_open() || (::fstat(file_.number(), &facts) == 0 &&
                                                static_cast<std::uint64_t>(facts.st_size) >= offset + count);
        check(whole, where_, " has become shorter since it was opened");
        return bytes_.subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(count));
    }

private:
    void copy_from_file(std::uint64_t offset, std::span<std::byte> out) const {
        while (!out.empty()) {
            constexpr std::size_t most = std::size_t{1} << 30;
            const ssize_t count =
                ::pread(file_.number(), out.data(), std::min(out.size(), most), static_cast<off_t>(offset));
            if (count < 0 && errno == EINTR) continue;
            if (count < 0) fail(where_, " cannot be read: ", std::generic_category().message(errno));
            check(count > 0, where_, " has become shorter since it was opened");
            out = out.subspan(static_cast<std::size_t>(count));
            offset += static_cast<std::uint64_t>(count);
        }
    }

    std::string where_;
    FileDescriptor file_{};
    std::span<const std::byte> bytes_{};
    std::shared_ptr<const void> owner_{};  ///< of the map or the copy; null: the bytes are borrowed
};

}  // namespace unitscale::io
