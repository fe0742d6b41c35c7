// SPDX-License-Identifier: MIT
#include <unitscale/train/job_queue.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

using namespace unitscale::train;

TEST_CASE("job queue: every job is done once, at most so many side by side") {
    for (const std::size_t jobs : {1u, 3u, 50u}) {
        JobQueue queue;
        std::vector<std::atomic<int>> done(20);
        std::atomic<std::size_t> now{0}, most{0};
        queue.run(jobs, done.size(), [&](std::size_t i) {
            const std::size_t beside = ++now;
            for (std::size_t known = most; beside > known && !most.compare_exchange_weak(known, beside);) {
            }
            ++done[i];
            --now;
        });
        CHECK(std::all_of(done.begin(), done.end(), [](const auto& count) { return count == 1; }));
        CHECK(most <= jobs);
    }
}

TEST_CASE("job queue: it can be used again, and with nothing to do") {
    JobQueue queue;
    std::vector<std::size_t> order;
    queue.run(1, 3, [&](std::size_t i) { order.push_back(i); });
    queue.run(2, 0, [&](std::size_t i) { order.push_back(i); });
    queue.run(1, 2, [&](std::size_t i) { order.push_back(i); });
    CHECK(order == std::vector<std::size_t>{0, 1, 2, 0, 1});
}

TEST_CASE("job queue: the first error stops the jobs under way where they ask, and is thrown") {
    JobQueue queue;
    std::atomic<int> ended{0}, begun{0};
    REQUIRE_THROWS_WITH(queue.run(2, 100,
                                  [&](std::size_t i) {
                                      ++begun;
                                      if (i == 1) throw std::runtime_error("job 1");
                                      while (true) {  // until the other one has thrown
                                          queue.leave_if_stopped();
                                          std::this_thread::yield();
                                      }
                                      ++ended;
                                  }),
                        "job 1");
    CHECK(ended == 0);
    CHECK(begun == 2);
}
