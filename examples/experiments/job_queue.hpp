// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace unitscale::experiments {

/// Jobs side by side, each in a thread. After an error no job begins, and those under way end where they ask whether to.
/// Test: tests/experiments/job_queue_test.cpp
class JobQueue {
public:
    /// Calls `work(i)` for every i below `count`, at most `jobs` at a time, in order of i. Throws what a job has thrown first, once
    /// all have ended.
    template <class Work>
    void run(std::size_t jobs, std::size_t count, Work&& work) {
        next_ = 0;
        const auto share = [&]() noexcept {
            for (std::size_t i = next_++; i < count && !stop_; i = next_++) {
                try {
                    work(i);
                } catch (const Stopped&) {
                } catch (...) {
                    const std::lock_guard lock(mutex_);
                    if (!error_) error_ = std::current_exception();
                    stop_ = true;
                }
            }
        };
        std::vector<std::thread> threads;
        for (std::size_t i = 1; i < std::min(jobs, count); ++i) threads.emplace_back(share);
        share();
        for (std::thread& thread : threads) thread.join();
        if (error_) std::rethrow_exception(error_);
    }

    /// For a job to call now and then: leaves it where another has found an error.
    void leave_if_stopped() const {
        if (stop_) throw Stopped{};
    }

private:
    struct Stopped {};

    std::mutex mutex_{};
    std::exception_ptr error_{};
    std::atomic<std::size_t> next_{0};
    std::atomic<bool> stop_{false};
};

}  // namespace unitscale::experiments
