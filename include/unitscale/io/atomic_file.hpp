// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

// Replacing a file so that whatever happens, the old or the new one is there, whole. POSIX.
namespace unitscale::io {

/// An open file's number, closed at the end; -1 where opening failed.
class FileDescriptor {
public:
    explicit FileDescriptor(int number = -1) noexcept : number_(number) {}
    FileDescriptor(FileDescriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
    FileDescriptor& operator=(FileDescriptor&& other) noexcept {
        std::swap(number_, other.number_);
        return *this;
    }
    ~FileDescriptor() {
        if (number_ >= 0) ::close(number_);
    }

    [[nodiscard]] bool is_open() const noexcept { return number_ >= 0; }
    [[nodiscard]] int number() const noexcept { return number_; }

private:
    int number_;
};

/// While it lives, writing past the process's file-size limit (`ulimit -f`) is in this thread an error of the write, EFBIG. By
/// default the signal SIGXFSZ ends the process there: it is blocked, taken back if such a write has raised it, and let
/// through again, so that nothing else of the process sees a difference.
class FileSizeLimitAsError {
public:
    FileSizeLimitAsError() noexcept {
        sigemptyset(&signal_);
        sigaddset(&signal_, SIGXFSZ);
        pthread_sigmask(SIG_BLOCK, &signal_, &mask_before_);
        pending_before_ = is_pending();
    }
    FileSizeLimitAsError(const FileSizeLimitAsError&) = delete;
    FileSizeLimitAsError& operator=(const FileSizeLimitAsError&) = delete;
    ~FileSizeLimitAsError() {
        int taken = 0;
        if (!pending_before_ && is_pending()) sigwait(&signal_, &taken);
        pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
    }

private:
    [[nodiscard]] static bool is_pending() noexcept {
        sigset_t pending;
        return sigpending(&pending) == 0 && sigismember(&pending, SIGXFSZ) == 1;
    }

    sigset_t signal_, mask_before_;
    bool pending_before_ = false;
};

/// Writes a file that takes its name only when it is whole and on the disk:
///   AtomicFile file("checkpoint", "model.bin");
///   file.write(bytes);
///   file.commit();
/// The bytes go to a temporary file beside the target, `model.bin.<16 hexadecimal digits>.part`; commit() syncs it, renames it over
/// the target and syncs the folder. Until commit() returns, and whenever it or write() throws, the target is what it was; the
/// temporary file is then removed. A process that is killed, or a machine that stops, at any moment leaves the old or the new
/// file under the target's name; it may leave its temporary file too, which the next commit() to that target removes. That of a
/// writer still at work is locked (flock) and stays. Of two writers to one target, the last to commit wins.
/// A link is followed: what it points to is replaced. The permissions of the file that is replaced are kept.
/// Errors, in one line that names operation and path: the target is a folder, a device or a pipe; whatever the system says, a
/// full disk and the file-size limit (see FileSizeLimitAsError) included; one case where the target is the new file: the
/// folder cannot be synced, and the message says so.   Test: tests/io/atomic_file_test.cpp
class AtomicFile {
public:
    AtomicFile(std::string_view operation, const std::filesystem::path& path)
        : where_(concatenate(operation, ": ", path.string())) {
        namespace fs = std::filesystem;
        std::error_code error;
        const fs::file_status old = fs::status(path, error);
        check(!fs::is_directory(old), where_, " is a directory");
        check(!fs::exists(old) || fs::is_regular_file(old), where_, " is not a regular file");
        // Absolute, so that a change of the working directory before commit() does no harm.
        target_ = fs::exists(old) ? fs::canonical(path, error) : fs::absolute(path, error);
        check(target_.has_filename(), where_, " names no file");
        open_temporary(fs::exists(old) ? 0600 : 0666);
        if (fs::exists(old)) static_cast<void>(::fchmod(file_.number(), static_cast<mode_t>(old.permissions())));
    }
    AtomicFile(const AtomicFile&) = delete;
    AtomicFile& operator=(const AtomicFile&) = delete;
    ~AtomicFile() { discard(); }

    /// Adds bytes at the end. Not buffered. After an error nothing more can be written.
    void write(std::span<const std::byte> bytes) {
        check(file_.is_open(), where_, " is written to after commit() or an error");
        const FileSizeLimitAsError guard;
        while (!bytes.empty()) {
            constexpr std::size_t most = std::size_t{1} << 30;
            const ssize_t count = ::write(file_.number(), bytes.data(), std::min(bytes.size(), most));
            if (count >= 0) bytes = bytes.subspan(static_cast<std::size_t>(count));
            else if (errno != EINTR) give_up(errno);
        }
    }

    /// Makes the file what the target's name stands for.
    void commit() {
        check(file_.is_open(), where_, " is committed twice or after an error");
        const FileDescriptor folder(::open(target_.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        if (!folder.is_open()) give_up(errno);
        if (const int problem = sync(file_); problem != 0) give_up(problem);
        if (std::rename(temporary_.c_str(), target_.c_str()) != 0) give_up(errno);
        temporary_.clear();
        file_ = FileDescriptor();  // closed here, not before: the lock says that the temporary file is in use
        if (const int problem = sync(folder); problem != 0 && problem != EINVAL)  // EINVAL: has no such thing
            fail(where_, " is written, but its folder cannot be synced: ", std::generic_category().message(problem));
        remove_stale();
    }

private:
    static constexpr std::string_view hexadecimal = "0123456789abcdef", suffix = ".part";
    static constexpr std::size_t digits = 16;

    void open_temporary(mode_t mode) {
        std::random_device random;
        for (int attempt = 0; attempt < 100; ++attempt) {
            std::string end = ".";
            for (std::size_t i = 0; i < digits; ++i) end += hexadecimal[random() % hexadecimal.size()];
            temporary_ = target_;
            temporary_ += end.append(suffix);
            file_ = FileDescriptor(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
            const int problem = errno;
            if (!file_.is_open()) temporary_.clear();  // not ours to remove
            if (file_.is_open() && lock()) return;
            if (!file_.is_open() && problem != EEXIST) give_up(problem);
        }
        give_up(EEXIST);
    }

    /// Marks the temporary file as in use. False if another writer's commit() has taken it for a stale one in between. Where
    /// files cannot be locked, none is ever taken for stale.
    [[nodiscard]] bool lock() const {
        if (::flock(file_.number(), LOCK_EX | LOCK_NB) != 0) return errno != EWOULDBLOCK;
        struct stat facts {};
        return ::fstat(file_.number(), &facts) != 0 || facts.st_nlink > 0;
    }

    [[nodiscard]] static int sync(const FileDescriptor& file) {
        while (::fsync(file.number()) != 0)
            if (errno != EINTR) return errno;
        return 0;
    }

    void discard() noexcept {
        if (!temporary_.empty()) ::unlink(temporary_.c_str());
        temporary_.clear();
        file_ = FileDescriptor();
    }
    [[noreturn]] void give_up(int problem) {
        discard();
        fail(where_, " cannot be written: ", std::generic_category().message(problem));
    }

    [[nodiscard]] bool is_temporary(std::string_view name) const {
        const std::string base = target_.filename().string() + ".";
        if (name.size() != base.size() + digits + suffix.size() || !name.starts_with(base) || !name.ends_with(suffix))
            return false;
        return name.substr(base.size(), digits).find_first_not_of(hexadecimal) == std::string_view::npos;
    }

    /// Removes what killed writers to this target have left.
    void remove_stale() const {
        namespace fs = std::filesystem;
        std::error_code error;
        for (fs::directory_iterator entry(target_.parent_path(), error), end; !error && entry != end;
             entry.increment(error)) {
            if (!is_temporary(entry->path().filename().string())) continue;
            const FileDescriptor stale(::open(entry->path().c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
            if (stale.is_open() && ::flock(stale.number(), LOCK_EX | LOCK_NB) == 0) ::unlink(entry->path().c_str());
        }
    }

    std::string where_;
    std::filesystem::path target_, temporary_;
    FileDescriptor file_;
};

}  // namespace unitscale::io
