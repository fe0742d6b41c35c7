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
        launched_ = launched();
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

    /// Adds --distributed. `help` says what the processes share.
    void add_option(CLI::App& app,
                    const char* help = "share the micro-batches of every step among the processes of mpirun") {
        app.add_flag(std::string(option), asked_, help);
    }
    /// Adds --wait-limit, for processes that train together.
    void add_wait_limit(CLI::App& app) {
        app.add_option(std::string(limit_option), wait_limit_,
                       "seconds that a process of --distributed waits for another before the run ends")
            ->check(CLI::PositiveNumber)
            ->capture_default_str();
    }

    /// The processes that train together; null without --distributed.
    /// Errors: the program was built without MPI. Several processes were started, and the option is missing or MPI does
    /// not know of them: all would write the same files.
    [[nodiscard]] std::shared_ptr<train::ProcessGroup> group() const {
        check(!asked_ || group_ != nullptr, option,
              ": this program was built without MPI; expected a build where CMake finds MPI");
        check(asked_ || launched_ <= 1, launched_, " processes were started; expected ", option, " or one process");
        check(
            group_ == nullptr || group_->size() > 1 || launched_ <= 1, option, ": ", launched_,
            " processes were started, and MPI knows of one; expected the launcher of this MPI, such as its mpirun, or "
            "srun --mpi=pmix");
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

    static constexpr std::string_view option = "--distributed", limit_option = "--wait-limit";

private:
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

    /// The number of processes that mpirun or srun has started, by the variables that they set; 0 if they set none.
    static std::size_t launched() {
        for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"})
            if (const char* const text = std::getenv(name); text != nullptr)
                return static_cast<std::size_t>(std::strtoull(text, nullptr, 10));
        return 0;
    }

    std::string name_;
    bool asked_ = false;         ///< for --distributed
    std::size_t launched_ = 0;   ///< processes, as the launcher says
    double wait_limit_ = 600.0;  ///< seconds
#ifdef UNITSCALE_EXAMPLE_MPI
    std::optional<distributed::Session> session_{};
#endif
    std::shared_ptr<train::ProcessGroup> group_{};  ///< ends before the session
};

}  // namespace unitscale::examples
