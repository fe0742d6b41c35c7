// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/base/parallel.hpp>
#include <unitscale/train/process_group.hpp>
#ifdef UNITSCALE_EXAMPLE_MPI
#include <unitscale/distributed/communicator.hpp>
#endif

#include "program.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

// Programs that `mpirun` starts several times, with the option --distributed. Test: tests/runs/train_transformer.sh
namespace unitscale::examples {

/// The processes of a program, from the begin of `main` to its end. Without --distributed it is one process alone.
/// Only the first process writes to stdout. An error ends all processes.
class Processes {
public:
    Processes(const char* program, int argc, char** argv) : name_(program) {
        asked_ = std::any_of(argv, argv + argc, [](std::string_view text) { return text == option; });
        if (!asked_) return;
#ifdef UNITSCALE_EXAMPLE_MPI
        read_limit(argc, argv);
        session_.emplace(wait_limit_);
        group_ = std::make_shared<distributed::Communicator>(MPI_COMM_WORLD, wait_limit_);
        if (group_->rank() == 0) return;
        name_ += concatenate(": rank ", group_->rank());
        static_cast<void>(std::freopen("/dev/null", "w", stdout));
#endif
    }

    /// Adds the options.
    void add_option(CLI::App& app) {
        app.add_flag(std::string(option), asked_,
                     "share the micro-batches of every step among the processes that mpirun has started");
        app.add_option(std::string(limit_option), wait_limit_,
                       "seconds that a process of --distributed waits for another before the run ends")
            ->check(CLI::PositiveNumber)
            ->capture_default_str();
    }

    /// The processes that train together; null without --distributed.
    /// Error: the program was built without MPI.
    [[nodiscard]] std::shared_ptr<train::ProcessGroup> group() const {
        check(!asked_ || group_ != nullptr, option,
              ": this program was built without MPI; expected a build where CMake finds MPI");
        return group_;
    }

    /// The threads of one process, if the processes of a machine share its processors.
    [[nodiscard]] int threads() const {
        const int all = available_threads();
#ifdef UNITSCALE_EXAMPLE_MPI
        if (session_) {
            const auto processors = static_cast<std::size_t>(std::thread::hardware_concurrency());
            return std::min(all, static_cast<int>(std::max<std::size_t>(processors / session_->local_size(), 1)));
        }
#endif
        return all;
    }

    /// `run_program`. A process that fails ends all others. The first process speaks first, and a second process if
    /// the first is silent: an error that all have met is written once.
    int run(const char* out_of_memory, CLI::App& app, int argc, char** argv, const std::function<int()>& run) {
        Program program{name_.c_str(), out_of_memory};
        if (group_ != nullptr && group_->rank() > 0)
            program.before_error = [turn = std::min<std::size_t>(group_->rank(), 10)] {
                std::this_thread::sleep_for(std::chrono::milliseconds(2800 + 200 * turn));
            };
        const int code = run_program(program, app, argc, argv, run);
#ifdef UNITSCALE_EXAMPLE_MPI
        if (code != 0 && session_) {
            std::fflush(stdout);
            session_->abort(code);
        }
#endif
        return code;
    }

private:
    static constexpr std::string_view option = "--distributed", limit_option = "--wait-limit";

    /// Reads --wait-limit: MPI begins before the other arguments are read, which find a bad number.
    void read_limit(int argc, char** argv) {
        for (int i = 1; i < argc; ++i) {
            const std::string_view text = argv[i];
            const bool joined = text.starts_with(limit_option) && text.substr(limit_option.size()).starts_with('=');
            const char* const number = joined                                 ? argv[i] + limit_option.size() + 1
                                       : text == limit_option && i + 1 < argc ? argv[i + 1]
                                                                              : nullptr;
            const double limit = number != nullptr ? std::strtod(number, nullptr) : 0.0;
            if (limit > 0.0) wait_limit_ = limit;
        }
    }

    std::string name_;
    bool asked_ = false;         ///< for --distributed
    double wait_limit_ = 600.0;  ///< seconds
#ifdef UNITSCALE_EXAMPLE_MPI
    std::optional<distributed::Session> session_{};
#endif
    std::shared_ptr<train::ProcessGroup> group_{};  ///< ends before the session
};

}  // namespace unitscale::examples
