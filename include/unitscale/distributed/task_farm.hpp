// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/child_process.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/distributed/communicator.hpp>
#include <unitscale/distributed/task_queue.hpp>

#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace unitscale::distributed {

/// The settings of a TaskFarm. All processes have equal ones.
struct TaskFarmOptions {
    std::size_t side_by_side = 1;                ///< tasks at a time in each process
    std::size_t attempts = 3;                    ///< a task that was lost so often is given out no more
    std::chrono::milliseconds patience{60'000};  ///< a process that is silent for longer is lost
    std::chrono::milliseconds pause{600'000};    ///< process 0 may be silent for so long while it runs no tasks
};

/// Tasks for the processes of an MPI communicator. As `xargs` does, the farm runs a program once for each task. The
/// task's text is the program's last argument. Process 0 gives the tasks out, and hears every line that their programs
/// write. All processes run programs, process 0 too. So a program that crashes costs its task only. The task is then
/// given out again.
///   distributed::Session session;
///   distributed::TaskFarm farm({"./train.sh", "fp32"});  // fp32 0.1, fp32 0.2, ...
///   if (farm.rank() > 0) return farm.serve(), 0;
///   farm.run({"0.1", "0.2", "0.4"}, {.line = [](std::size_t task, std::string_view line) { ... }});
/// A process that dies costs its tasks only, if the launcher lets the others live: Open MPI does where its variable
/// OMPI_MCA_orte_enable_recovery is 1. Then MPI cannot be ended in order: see `lost_process`.
/// Between looks at messages and programs the processes sleep for some milliseconds.
/// Test: tests/distributed/task_farm_test.cpp
class TaskFarm {
public:
    /// The program with its first arguments. Every process of the communicator makes a farm.
    explicit TaskFarm(std::vector<std::string> command, const TaskFarmOptions& options = {},
                      MPI_Comm of = MPI_COMM_WORLD)
        : command_(std::move(command)), options_(options) {
        MPI_Comm_dup(of, &comm_);
        MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);  // a message to a process that has died is no error
        int rank = 0, size = 0;
        MPI_Comm_rank(comm_, &rank);
        MPI_Comm_size(comm_, &size);
        rank_ = static_cast<std::size_t>(rank);
        alive_.assign(static_cast<std::size_t>(size), true);
    }
    TaskFarm(const TaskFarm&) = delete;
    TaskFarm& operator=(const TaskFarm&) = delete;
    /// In process 0: ends `serve` in the others.
    ~TaskFarm() {
        if (rank_ == 0)
            for (std::size_t other = 1; other < size(); ++other)
                send(other, Kind::stop, 0, lost_process() ? "lost" : "");
        const Clock::time_point begin = Clock::now();
        while (!outbox_.empty() && Clock::now() - begin < std::chrono::seconds(5)) wait();
        if (!lost_process()) MPI_Comm_free(&comm_);
    }

    [[nodiscard]] std::size_t rank() const noexcept { return rank_; }
    [[nodiscard]] std::size_t size() const noexcept { return alive_.size(); }
    /// True if a process was lost. MPI_Finalize would wait for it: end with std::_Exit, in every process.
    [[nodiscard]] bool lost_process() const noexcept {
        return lost_ || std::find(alive_.begin(), alive_.end(), false) != alive_.end();
    }

    /// Runs the tasks. For process 0. Errors: those that `events` throw; programs of this process are then killed.
    void run(const std::vector<std::string>& tasks, const TaskEvents& events) {
        TaskQueue queue(tasks.size(), alive_, options_.attempts, events);
        Programs programs;
        const std::uint64_t first = std::exchange(next_, next_ + tasks.size());  // a message of an earlier call is none
        heard_.assign(size(), Clock::now());
        while (!queue.empty()) {
            give(queue, tasks, first, programs);
            receive([&](std::size_t from, Kind kind, std::uint64_t task, const std::string& text) {
                if (!alive_[from]) return send(from, Kind::stop, 0, "lost");
                heard_[from] = Clock::now();
                if (kind == Kind::part) queue.write(from, task - first, text);
                if (kind == Kind::end) queue.end(from, task - first, text);
            });
            programs.look([&](std::uint64_t task, const std::string& text) { queue.write(0, task - first, text); },
                          [&](std::uint64_t task, const std::string& how) { queue.end(0, task - first, told(how)); });
            lose_silent(queue);
            if (is_due(told_))
                for (std::size_t other = 1; other < size(); ++other)
                    if (alive_[other]) send(other, Kind::alive, 0, "");
            wait();
        }
        for (std::size_t other = 1; other < size(); ++other)
            if (alive_[other]) send(other, Kind::pause, 0, "");
    }

    /// Runs the tasks that process 0 gives out, until its farm ends. For the other processes.
    /// Error: process 0 has been silent for longer than `patience`, or than `pause` while it runs no tasks.
    void serve() {
        Programs programs;
        bool stopped = false, paused = true;
        Clock::time_point heard = Clock::now();
        while (!stopped) {
            receive([&](std::size_t, Kind kind, std::uint64_t task, const std::string& text) {
                heard = Clock::now();
                stopped = stopped || kind == Kind::stop;
                paused = kind == Kind::pause;
                lost_ = lost_ || (kind == Kind::stop && !text.empty());
                if (kind == Kind::give) start(programs, task, text);
            });
            programs.look(
                [&](std::uint64_t task, const std::string& text) {
                    for (std::size_t at = 0; at < text.size(); at += most)
                        send(0, Kind::part, task, text.substr(at, most));
                },
                [&](std::uint64_t task, const std::string& how) { send(0, Kind::end, task, told(how)); });
            if (is_due(told_)) send(0, Kind::alive, 0, "");
            const std::chrono::milliseconds limit = paused ? options_.pause : options_.patience;
            lost_ = lost_ || Clock::now() - heard > limit;
            check(stopped || !lost_, "TaskFarm: process 0 has been silent for ", seconds(limit), " s",
                  paused ? " without tasks" : "");
            wait();
        }
    }

private:
    using Clock = std::chrono::steady_clock;

    /// Messages: process 0 sends give, pause and stop, the others part and end, and all alive.
    enum class Kind { give, pause, stop, part, end, alive };
    /// Bytes of text in a part. MPI sends so few at once, without waiting for the receiver, who may be dead.
    static constexpr std::size_t most = 2000;

    /// The programs that this process runs.
    class Programs {
    public:
        void start(std::uint64_t task, const std::vector<std::string>& command) {
            running_.push_back({task, ChildProcess(command)});
        }
        /// Reports what programs have written, a few times a second, and how programs have ended.
        template <class Wrote, class Ended>
        void look(Wrote&& wrote, Ended&& ended) {
            for (auto program = running_.begin(); program != running_.end();) {
                const bool runs = program->child.read(program->text);
                if (!program->text.empty() &&
                    (!runs || Clock::now() - program->told > std::chrono::milliseconds(200))) {
                    program->told = Clock::now();
                    wrote(program->task, std::exchange(program->text, {}));
                }
                if (!runs) ended(program->task, program->child.failure());
                program = runs ? std::next(program) : running_.erase(program);
            }
        }

    private:
        struct Program {
            std::uint64_t task;
            ChildProcess child;
            std::string text{};
            Clock::time_point told{};
        };
        std::list<Program> running_{};
    };

    /// A message on its way.
    struct Sent {
        std::string bytes{};
        MPI_Request request = MPI_REQUEST_NULL;
    };

    void send(std::size_t to, Kind kind, std::uint64_t task, std::string_view text) {
        Sent& sent = outbox_.emplace_back();
        sent.bytes.assign(reinterpret_cast<const char*>(&task), sizeof task).append(text);
        MPI_Isend(sent.bytes.data(), static_cast<int>(sent.bytes.size()), MPI_BYTE, static_cast<int>(to),
                  static_cast<int>(kind), comm_, &sent.request);
    }

    /// Calls handle(process, kind, task, text) for every message that has come.
    template <class Handle>
    void receive(Handle&& handle) {
        MPI_Status status{};
        for (int come = 0;
             MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm_, &come, &status) == MPI_SUCCESS && come != 0;) {
            int count = 0;
            MPI_Get_count(&status, MPI_BYTE, &count);
            std::string bytes(static_cast<std::size_t>(count), '\0');
            MPI_Recv(bytes.data(), count, MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG, comm_, MPI_STATUS_IGNORE);
            std::uint64_t task = 0;
            std::memcpy(&task, bytes.data(), sizeof task);
            handle(static_cast<std::size_t>(status.MPI_SOURCE), static_cast<Kind>(status.MPI_TAG), task,
                   bytes.substr(sizeof task));
        }
    }

    /// Gives waiting tasks to free processes, as many to each.
    void give(TaskQueue& queue, const std::vector<std::string>& tasks, std::uint64_t first, Programs& programs) {
        for (std::size_t held = 0; held < options_.side_by_side; ++held)
            for (std::size_t worker = 0; worker < size(); ++worker) {
                if (queue.held(worker) != held) continue;
                const std::optional<std::size_t> task = queue.take(worker);
                if (!task) continue;
                if (worker > 0) {
                    send(worker, Kind::give, first + *task, tasks[*task]);
                    continue;
                }
                try {
                    programs.start(first + *task, command_of(tasks[*task]));
                } catch (const Error& error) {
                    queue.end(0, *task, told(error.what()));
                }
            }
    }

    void start(Programs& programs, std::uint64_t task, const std::string& text) {
        try {
            programs.start(task, command_of(text));
        } catch (const Error& error) {
            send(0, Kind::end, task, told(error.what()));
        }
    }

    [[nodiscard]] std::vector<std::string> command_of(const std::string& task) const {
        std::vector<std::string> command = command_;
        command.push_back(task);
        return command;
    }

    /// The reason of a loss, with the process and its machine. Empty for no loss.
    [[nodiscard]] std::string told(const std::string& how) const {
        return how.empty() ? how : concatenate(how, " in process ", rank_, " on ", machine());
    }
    [[nodiscard]] static std::string machine() {
        char name[MPI_MAX_PROCESSOR_NAME];
        int length = 0;
        MPI_Get_processor_name(name, &length);
        return {name, static_cast<std::size_t>(length)};
    }

    void lose_silent(TaskQueue& queue) {
        for (std::size_t other = 1; other < size(); ++other)
            if (alive_[other] && Clock::now() - heard_[other] > options_.patience) {
                alive_[other] = false;
                queue.lose(other,
                           concatenate("process ", other, " has been silent for ", seconds(options_.patience), " s"));
            }
    }
    [[nodiscard]] static double seconds(std::chrono::milliseconds time) {
        return std::chrono::duration<double>(time).count();
    }

    /// True when it is time to send a sign of life: several times within the patience of the others.
    [[nodiscard]] bool is_due(Clock::time_point& last) const {
        const Clock::time_point now = Clock::now();
        if (now - last < options_.patience / 20) return false;
        last = now;
        return true;
    }

    /// Frees the messages that have gone, and sleeps for a moment.
    void wait() {
        outbox_.remove_if([](Sent& sent) {
            int gone = 0;
            return MPI_Test(&sent.request, &gone, MPI_STATUS_IGNORE) != MPI_SUCCESS || gone != 0;
        });
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }

    std::vector<std::string> command_;
    TaskFarmOptions options_;
    MPI_Comm comm_ = MPI_COMM_NULL;
    std::size_t rank_ = 0;
    std::vector<bool> alive_{};  ///< by process
    bool lost_ = false;          ///< process 0 has told of a lost process, or is lost
    std::uint64_t next_ = 0;     ///< number of the next task, over all calls of `run`
    std::list<Sent> outbox_{};
    std::vector<Clock::time_point> heard_{};  ///< by process
    Clock::time_point told_{};                ///< of the last sign of life
};

}  // namespace unitscale::distributed
