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
#include <fstream>
#include <ios>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

// Replaces a file so that the old or the new version is there, whole, at any moment. POSIX.
namespace unitscale::io {

/// The number of an open file, closed in the destructor. It is -1 if the file could not be opened.
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

/// Opens a file that one process at a time writes to, and makes it where it is missing. Not open: the system refuses.
[[nodiscard]] inline FileDescriptor open_for_one_writer(const std::filesystem::path& path) {
    return FileDescriptor(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
}

/// Locks an open file until it is closed. False: another process holds the lock, or the file cannot be locked.
[[nodiscard]] inline bool lock(const FileDescriptor& file) noexcept {
    return ::flock(file.number(), LOCK_EX | LOCK_NB) == 0;
}

/// Turns a write past the process's file-size limit (`ulimit -f`) into the error EFBIG, in this thread, while it lives.
/// By default the signal SIGXFSZ ends the process there. The constructor blocks the signal.
/// The destructor consumes a SIGXFSZ that such a write has raised, and restores the signal mask.
/// The rest of the process sees no difference.
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
/// The bytes go to a temporary file beside the target, `model.bin.<16 hexadecimal digits>.part`. commit() syncs the
/// temporary file, renames it over the target and syncs the folder. The target stays unchanged until commit() returns,
/// and whenever commit() or write() throws. After such an error the temporary file is removed.
///
/// If the process is killed or the machine stops, the target is the old or the new file. A temporary file may stay
/// behind: the next commit() to that target removes it. A writer still at work holds a lock (flock) on its temporary
/// file, which is therefore kept. Of two writers to one target, the last to commit wins.
///
/// A link is followed: the file that it points to is replaced. The permissions of the replaced file are kept.
///
/// Errors, in one line that names operation and path: the target is a folder, a device or a pipe; any error of the
/// system, including a full disk and the file-size limit (see FileSizeLimitAsError). If the folder cannot be synced,
/// the target is the new file already, and the message says so.   Test: tests/io/atomic_file_test.cpp
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

    /// Appends bytes, unbuffered. After an error nothing more can be written.
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

    /// Puts the file in the place of the target.
    void commit() {
        check(file_.is_open(), where_, " is committed twice or after an error");
        const FileDescriptor folder(::open(target_.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        if (!folder.is_open()) give_up(errno);
        if (const int problem = sync(file_); problem != 0) give_up(problem);
        if (std::rename(temporary_.c_str(), target_.c_str()) != 0) give_up(errno);
        temporary_.clear();
        file_ = FileDescriptor();  // closed only now: its lock protects the temporary file until the rename
        if (const int problem = sync(folder); problem != 0 && problem != EINVAL)  // EINVAL: no sync here
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

    /// Marks the temporary file as in use. False if the commit() of another writer has just removed it as stale.
    /// Where files cannot be locked, no file is ever removed as stale.
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

    /// Removes the temporary files that killed writers to this target have left.
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

/// True for an existing device or pipe: it cannot be replaced by a new file.
[[nodiscard]] inline bool is_device_or_pipe(const std::filesystem::path& path) {
    std::error_code error;
    const std::filesystem::file_type type = std::filesystem::status(path, error).type();
    return type == std::filesystem::file_type::character || type == std::filesystem::file_type::block ||
           type == std::filesystem::file_type::fifo;
}

/// Writes a file by `AtomicFile`: whole or not at all. A device or a pipe is written directly.
/// Errors, naming operation and path: the errors of `AtomicFile`; a device or a pipe that cannot be written.
/// Test: tests/io/atomic_file_test.cpp
inline void write_atomically(std::string_view operation, const std::filesystem::path& path, std::string_view bytes) {
    if (is_device_or_pipe(path)) {
        std::ofstream stream(path, std::ios::binary);
        stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
        stream.close();
        check(!stream.fail(), operation, ": ", path.string(), " cannot be written");
        return;
    }
    AtomicFile file(operation, path);
    file.write(std::as_bytes(std::span(bytes)));
    file.commit();
}

/// Checks before a long computation that `write_atomically` can write its result to the path. No file changes.
/// A device or a pipe is not opened, because opening it may have effects.
/// Error, naming operation and path: the file cannot be written.   Test: tests/io/atomic_file_test.cpp
inline void check_writable(std::string_view operation, const std::filesystem::path& path) {
    if (is_device_or_pipe(path)) return;
    try {
        const AtomicFile probe(operation, path);
    } catch (const Error&) {
        fail(operation, ": ", path.string(), " cannot be written");
    }
}

}  // namespace unitscale::io
