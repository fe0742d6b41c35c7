// SPDX-License-Identifier: MIT
#pragma once

#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>
#include <mutex>

namespace unitscale::experiments {

/// Runs jobs in parallel, each in a thread. After an error no further job begins; running jobs end at their next check.
/// Test: tests/experiments/job_queue_test.cpp
class JobQueue {
public:
    /// Calls `work(i)` for every i below `count`, at most `jobs` at a time, in the order of i.
    /// Rethrows the first error of a job after all jobs have ended.
    void run(std::size_t jobs, std::size_t count, const std::function<void(std::size_t)>& work);

    /// Called by a job now and then: ends the job if another job has failed.
    void leave_if_stopped() const;

private:
    struct Stopped {};

    std::mutex mutex_{};
    std::exception_ptr error_{};
    std::atomic<std::size_t> next_{0};
    std::atomic<bool> stop_{false};
};

}  // namespace unitscale::experiments
