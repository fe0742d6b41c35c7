// SPDX-License-Identifier: MIT
#pragma once

#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <exception>
#include <stdexcept>
#include <string>

namespace unitscale::test {

/// A copy of this process that runs `body`, which returns a text, and ends.
/// The message of an exception from `body` becomes its text.
/// The process is killed when this object is destroyed; it ends itself after two minutes.
class ChildProcess {
public:
    template <class Body>
    explicit ChildProcess(const Body& body) {
        std::array<int, 2> ends{};
        if (::pipe(ends.data()) != 0) throw std::runtime_error("no pipe");
        process_ = ::fork();
        if (process_ < 0) throw std::runtime_error("no child process");
        if (process_ == 0) {
            ::alarm(120);
            std::string text;
            try {
                text = body();
            } catch (const std::exception& error) {
                text = error.what();
            }
            const bool told = ::write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size());
            ::_exit(told ? 0 : 1);
        }
        ::close(ends[1]);
        text_end_ = ends[0];
    }
    ChildProcess(const ChildProcess&) = delete;
    ChildProcess& operator=(const ChildProcess&) = delete;
    ~ChildProcess() {
        kill();
        ::close(text_end_);
    }

    /// Kills the process at once, at any point of its work (SIGKILL). Does nothing if it has ended.
    void kill() {
        if (process_ <= 0) return;
        ::kill(process_, SIGKILL);
        wait();
    }

    /// Waits for the end of the process, and returns its text: "" if a signal ended it.
    std::string text() {
        std::string text;
        std::array<char, 1024> buffer{};
        while (true) {
            const ssize_t count = ::read(text_end_, buffer.data(), buffer.size());
            if (count <= 0) break;
            text.append(buffer.data(), static_cast<std::size_t>(count));
        }
        wait();
        return text;
    }

    /// The signal that ended the process, after its end; 0 if it ended by itself.
    [[nodiscard]] int signal() const { return WIFSIGNALED(status_) ? WTERMSIG(status_) : 0; }

private:
    void wait() {
        if (process_ > 0) ::waitpid(process_, &status_, 0);
        process_ = 0;
    }

    pid_t process_ = 0;
    int text_end_ = -1;
    int status_ = 0;
};

}  // namespace unitscale::test
