// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/train/process_group.hpp>
#include <unitscale/train/shared_facts.hpp>
#ifdef UNITSCALE_EXAMPLE_MPI
#include <unitscale/distributed/task_farm.hpp>
#endif

#include "experiments/run_set.hpp"
#include "processes.hpp"
#include "program.hpp"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

// The processes of mpirun share the runs of a search. Tests: tests/runs/sweep.sh, tests/runs/compare_recipes.sh
namespace unitscale::examples {

/// The processes of a search. With --distributed each trains as many runs at a time as --jobs says, each run in a
/// process of its own: this program with the option --run.
class SearchProcesses {
public:
    SearchProcesses(const char* program, int argc, char** argv)
        : processes_(program, argc, argv), argc_(argc), argv_(argv) {}

    /// Adds the options.
    void add_options(CLI::App& app) {
        processes_.add_option(app, "share the runs among the processes of mpirun; each makes --jobs runs at a time");
        app.add_option(
               "--patience", patience_,
               "with --distributed: seconds after which a process that is silent is taken for dead; ten times as "
               "long for the first one while no run is under way")
            ->check(CLI::PositiveNumber)
            ->capture_default_str();
        app.add_option("--run", task_, "make this run of --distributed")->group("");
        threads_ = app.get_option("--threads");
    }

    /// `run_program`, with `search(options)` or, for one run, `make(options, task)`.
    template <class Options>
    int run(CLI::App& app, Options& options, const std::function<void()>& search,
            const std::function<void(const std::string& task)>& make) {
        return processes_.run(many_models_too_large, app, argc_, argv_, [&] {
            if (!task_.empty()) return make(task_), 0;
            const std::shared_ptr<train::ProcessGroup> group = processes_.group();
            if (group == nullptr) return search(), 0;
            options.check_counts();
            train::check_same(*group, std::vector{train::build_fact(), train::SharedFact{"options", arguments()}});
            if (!share(options, search)) {
                std::fflush(nullptr);
                std::_Exit(0);  // a process has died, for which MPI_Finalize would wait
            }
            return 0;
        });
    }

private:
    /// This program's path. A full path in `argv[0]` may be a script that starts an emulator with this program.
    [[nodiscard]] std::string own_path() const {
        if (std::filesystem::path(argv_[0]).is_absolute()) return argv_[0];
        std::error_code error;
        const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
        return error ? std::string(argv_[0]) : self.string();
    }

    [[nodiscard]] std::string arguments() const {
        return argc_ < 2 ? std::string() : command_line(argc_ - 1, argv_ + 1);
    }

    /// Makes the search. False if a process has died.
    template <class Options>
    bool share(Options& options, const std::function<void()>& search) {
#ifdef UNITSCALE_EXAMPLE_MPI
        const std::size_t side_by_side = options.jobs;
        std::vector<std::string> command = {own_path()};
        for (int i = 1; i < argc_; ++i)
            if (argv_[i] != Processes::option) command.emplace_back(argv_[i]);
        if (threads_->count() == 0) {
            options.run.threads = std::max(1, processes_.threads() / static_cast<int>(side_by_side));
            command.insert(command.end(), {"--threads", std::to_string(options.run.threads)});
        }
        command.emplace_back("--run");
        const std::chrono::milliseconds patience(static_cast<std::int64_t>(1e3 * patience_));
        distributed::TaskFarm farm(std::move(command),
                                   {.side_by_side = side_by_side, .patience = patience, .pause = 10 * patience});
        if (farm.rank() > 0) {
            farm.serve();
            return !farm.lost_process();
        }
        options.jobs = side_by_side * farm.size();  // for headings
        options.tasks = [&](const std::vector<std::string>& texts, const distributed::TaskEvents& events) {
            farm.run(texts, events);
        };
        search();
        return !farm.lost_process();
#else
        static_cast<void>(options);
        return search(), true;  // Processes::group has refused --distributed
#endif
    }

    Processes processes_;
    int argc_;
    char** argv_;
    std::string task_{};
    double patience_ = 60.0;
    CLI::Option* threads_ = nullptr;
};

}  // namespace unitscale::examples
