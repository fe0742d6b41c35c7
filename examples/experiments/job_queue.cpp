// SPDX-License-Identifier: MIT
#include "experiments/job_queue.hpp"

#include <algorithm>
#include <thread>
#include <vector>

namespace unitscale::experiments {

void JobQueue::run(std::size_t jobs, std::size_t count, const std::function<void(std::size_t)>& work) {
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

void JobQueue::leave_if_stopped() const {
    if (stop_) throw Stopped{};
}

}  // namespace unitscale::experiments
