// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace unitscale {

/// A program that runs beside this one. Its standard output is read here, its standard input is empty, and its errors
/// go where this program's errors go. It inherits no other open file. The variables by which MPI and Slurm tell a
/// process its place are removed from its environment, so that it is a process of its own.
/// `posix_spawn` starts it: this program is never copied, as `fork` would, which MPI forbids.
/// The destructor kills the program if it still runs. The header needs POSIX.
/// Test: tests/base/child_process_test.cpp
class ChildProcess {
public:
    /// Starts a program with its arguments. A name without a slash is looked up in PATH.
    /// Error: it cannot be started. As POSIX allows, qemu finds that out later: the program ends with exit code 127.
    explicit ChildProcess(std::vector<std::string> command) {
        check(!command.empty(), "ChildProcess: no program is given");
        std::array<int, 2> ends{};
        check(pipe(ends.data()) == 0, "ChildProcess: no pipe can be made: ", std::strerror(errno));
        output_ = ends[0];
        fcntl(output_, F_SETFL, O_NONBLOCK);
        const int failure = spawn(command, ends[1]);
        close(ends[1]);
        if (failure == 0) return;
        close(output_);
        fail("ChildProcess: ", command.front(), " cannot be started: ", std::strerror(failure));
    }
    ChildProcess(ChildProcess&& other) noexcept
        : id_(std::exchange(other.id_, -1)), output_(std::exchange(other.output_, -1)), how_(std::move(other.how_)) {}
    ChildProcess& operator=(ChildProcess&& other) noexcept {
        std::swap(id_, other.id_);
        std::swap(output_, other.output_);
        std::swap(how_, other.how_);
        return *this;
    }
    ~ChildProcess() {
        if (id_ > 0) {
            kill(id_, SIGKILL);
            while (waitpid(id_, nullptr, 0) < 0 && errno == EINTR) continue;
        }
        if (output_ >= 0) close(output_);
    }

    /// Adds to `text` all that the program has written since the last call. Does not wait.
    /// Returns false if the program has ended; then nothing more will come.
    [[nodiscard]] bool read(std::string& text) {
        const bool running = id_ > 0 && !has_ended();  // asked first: what it wrote before its end is read below
        std::array<char, 4096> part{};
        for (ssize_t count = 0; (count = ::read(output_, part.data(), part.size())) > 0;)
            text.append(part.data(), static_cast<std::size_t>(count));
        return running;
    }

    /// The way in which the program ended: empty for exit code 0, else `exit code 3` or `signal 9`.
    [[nodiscard]] const std::string& failure() const noexcept { return how_; }

    /// The number of the process; -1 once it has ended.
    [[nodiscard]] pid_t id() const noexcept { return id_; }

private:
    /// True for `NAME=value` of a variable by which a launcher tells a process its place.
    [[nodiscard]] static bool is_of_launcher(std::string_view variable) {
        constexpr std::array prefixes = {"OMPI_", "PMI_", "PMIX_", "PRTE_", "SLURM_STEP_", "SLURM_PROCID="};
        return std::any_of(prefixes.begin(), prefixes.end(),
                           [&](std::string_view prefix) { return variable.starts_with(prefix); });
    }

    /// Returns 0 or the number of an error.
    [[nodiscard]] int spawn(std::vector<std::string>& command, int write_end) {
        std::vector<char*> arguments, environment;
        for (std::string& argument : command) arguments.push_back(argument.data());
        arguments.push_back(nullptr);
        for (char** variable = environ; *variable != nullptr; ++variable)
            if (!is_of_launcher(*variable)) environment.push_back(*variable);
        environment.push_back(nullptr);

        posix_spawn_file_actions_t files;
        posix_spawn_file_actions_init(&files);
        posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
        posix_spawn_file_actions_adddup2(&files, write_end, STDOUT_FILENO);
        const long most = std::min<long>(sysconf(_SC_OPEN_MAX), 65536);
        for (int file = STDERR_FILENO + 1; file < most; ++file)
            if (fcntl(file, F_GETFD) >= 0) posix_spawn_file_actions_addclose(&files, file);

        // SIGPIPE ends a program when nobody reads its output. A process that ignores SIGPIPE would hand that on.
        posix_spawnattr_t attributes;
        posix_spawnattr_init(&attributes);
        sigset_t none, usual;
        sigemptyset(&none);
        sigemptyset(&usual);
        for (const int signal : {SIGPIPE, SIGINT, SIGTERM}) sigaddset(&usual, signal);
        posix_spawnattr_setsigmask(&attributes, &none);
        posix_spawnattr_setsigdefault(&attributes, &usual);
        posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);

        const int failure =
            posix_spawnp(&id_, arguments.front(), &files, &attributes, arguments.data(), environment.data());
        if (failure != 0) id_ = -1;
        posix_spawnattr_destroy(&attributes);
        posix_spawn_file_actions_destroy(&files);
        return failure;
    }

    [[nodiscard]] bool has_ended() {
        int status = 0;
        if (waitpid(id_, &status, WNOHANG) != id_) return false;
        id_ = -1;
        if (WIFSIGNALED(status)) how_ = concatenate("signal ", WTERMSIG(status));
        else if (WEXITSTATUS(status) != 0) how_ = concatenate("exit code ", WEXITSTATUS(status));
        return true;
    }

    pid_t id_ = -1;
    int output_ = -1;
    std::string how_{};
};

}  // namespace unitscale
