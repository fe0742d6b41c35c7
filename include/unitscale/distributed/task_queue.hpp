// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace unitscale::distributed {

/// The reports of tasks in progress.
struct TaskEvents {
    /// A task has written a line, given here without its end.
    std::function<void(std::size_t task, std::string_view line)> line{};
    /// A task is done: its program has ended with exit code 0.
    std::function<void(std::size_t task)> done{};
    /// A task was lost: its program or its worker has ended in another way. `again`: it will be given out again.
    std::function<void(std::size_t task, const std::string& reason, bool again)> lost{};
};

/// The tasks of a TaskFarm: those that wait, and those that workers hold. A lost task waits again, behind the others,
/// until it was lost `attempts` times. The worker that lost it last gets it again only if it is the only one, so that
/// one broken machine cannot lose it for good.
/// Test: tests/distributed/task_queue_test.cpp
class TaskQueue {
public:
    TaskQueue(std::size_t tasks, std::vector<bool> working, std::size_t attempts, const TaskEvents& events)
        : tasks_(tasks), held_(working.size()), working_(std::move(working)), attempts_(attempts), events_(events) {
        for (std::size_t i = 0; i < tasks; ++i) waiting_.push_back(i);
    }

    /// True if every task is done or was lost too often.
    [[nodiscard]] bool empty() const noexcept { return left_ == 0; }

    /// The number of tasks that a worker holds.
    [[nodiscard]] std::size_t held(std::size_t worker) const noexcept { return held_[worker]; }

    /// Gives a worker the next task that it may have, if there is one.
    [[nodiscard]] std::optional<std::size_t> take(std::size_t worker) {
        const bool alone = std::count(working_.begin(), working_.end(), true) == 1;
        const auto next = std::find_if(waiting_.begin(), waiting_.end(),
                                       [&](std::size_t i) { return alone || tasks_[i].loser != worker; });
        if (!working_[worker] || next == waiting_.end()) return {};
        const std::size_t task = *next;
        waiting_.erase(next);
        tasks_[task].holder = worker;
        ++held_[worker];
        return task;
    }

    /// A part of what a worker's task has written. Ignored if the worker does not hold the task.
    void write(std::size_t worker, std::size_t task, std::string_view text) {
        if (!holds(worker, task)) return;
        std::string& line = tasks_[task].line += text;
        std::size_t begin = 0;
        for (std::size_t end = 0; (end = line.find('\n', begin)) != std::string::npos; begin = end + 1)
            if (events_.line) events_.line(task, std::string_view(line).substr(begin, end - begin));
        line.erase(0, begin);
    }

    /// A worker's task has ended: done if `reason` is empty, else lost. Ignored if the worker does not hold the task.
    void end(std::size_t worker, std::size_t task, const std::string& reason) {
        if (!holds(worker, task)) return;
        Task& ended = tasks_[task];
        ended.holder.reset();
        --held_[worker];
        ended.line.clear();
        const bool again = !reason.empty() && ++ended.losses < attempts_;
        if (again) {
            ended.loser = worker;
            waiting_.push_back(task);
        } else {
            --left_;
        }
        if (reason.empty()) {
            if (events_.done) events_.done(task);
        } else if (events_.lost) {
            events_.lost(task, reason, again);
        }
    }

    /// A worker is gone: its tasks are lost.
    void lose(std::size_t worker, const std::string& reason) {
        working_[worker] = false;
        for (std::size_t task = 0; task < tasks_.size(); ++task) end(worker, task, reason);
    }

private:
    struct Task {
        std::optional<std::size_t> holder{}, loser{};
        std::size_t losses = 0;
        std::string line{};  ///< the part of a line that has come
    };

    [[nodiscard]] bool holds(std::size_t worker, std::size_t task) const {
        return task < tasks_.size() && tasks_[task].holder == worker;
    }

    std::vector<Task> tasks_;
    std::vector<std::size_t> waiting_{};  ///< in the order in which they are given out
    std::vector<std::size_t> held_;       ///< by worker: the number of its tasks
    std::vector<bool> working_;           ///< by worker: false for one that is gone
    std::size_t attempts_;
    TaskEvents events_;
    std::size_t left_ = tasks_.size();
};

}  // namespace unitscale::distributed
