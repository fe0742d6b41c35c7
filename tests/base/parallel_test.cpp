// SPDX-License-Identifier: MIT
#include <unitscale/base/parallel.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

using namespace unitscale;

namespace {

struct Parts {
    std::mutex mutex;
    std::vector<std::pair<std::ptrdiff_t, std::ptrdiff_t>> ranges;

    void add(std::ptrdiff_t begin, std::ptrdiff_t end) {
        const std::lock_guard lock(mutex);
        ranges.emplace_back(begin, end);
    }
};

}  // namespace

TEST_CASE("each index is in exactly one piece, and pieces begin at multiples of the grain") {
    for (const int threads : {0, 1, 2, 3, 7})
        for (const std::ptrdiff_t n : {0, 1, 2, 15, 16, 17, 100, 1023})
            for (const std::ptrdiff_t grain : {0, 1, 4, 16, 1000}) {
                Parts parts;
                parallel_for(threads, n, grain,
                             [&](std::ptrdiff_t begin, std::ptrdiff_t end) { parts.add(begin, end); });
                std::sort(parts.ranges.begin(), parts.ranges.end());
                std::ptrdiff_t next = 0;
                bool whole = true;
                for (const auto& [begin, end] : parts.ranges) {
                    whole = whole && begin == next && begin < end && begin % std::max<std::ptrdiff_t>(grain, 1) == 0;
                    next = end;
                }
                INFO(threads << " threads, n " << n << ", grain " << grain);
                CHECK(whole);
                CHECK(next == n);
                CHECK(static_cast<std::ptrdiff_t>(parts.ranges.size()) <=
                      (threads > 1 ? threads * pieces_per_thread : 1));
            }
}

TEST_CASE("work below the grain stays in the calling thread, in one piece") {
    Parts parts;
    parallel_for(4, 100, 100, [&](std::ptrdiff_t begin, std::ptrdiff_t end) { parts.add(begin, end); });
    REQUIRE(parts.ranges.size() == 1);
}

TEST_CASE("a nested loop runs in the calling thread") {
    std::atomic<int> outer_parts = 0;
    std::atomic<int> inner_parts = 0;
    std::atomic<std::ptrdiff_t> covered = 0;
    parallel_for(2, 2, 1, [&](std::ptrdiff_t begin, std::ptrdiff_t end) {
        ++outer_parts;
        for (std::ptrdiff_t i = begin; i < end; ++i)
            parallel_for(2, 10, 1, [&](std::ptrdiff_t from, std::ptrdiff_t to) {
                ++inner_parts;
                covered += to - from;
            });
    });
    REQUIRE(covered == 20);
    REQUIRE(outer_parts == 2);
    if (available_threads() > 1) REQUIRE(inner_parts == 2);
    REQUIRE_FALSE(in_parallel_region());
}

TEST_CASE("each job is taken once, by any number of workers") {
    for (const std::ptrdiff_t workers : {0, 1, 2, 3, 70, 200})
        for (const std::ptrdiff_t count : {0, 1, 2, 5, 64, 300}) {
            SharedJobs jobs(workers, count);
            std::vector<int> taken(static_cast<std::size_t>(count));
            // Workers take one job each in turn until none is left.
            std::vector<SharedJobs::Taker> takers;
            for (std::ptrdiff_t w = 0; w < std::max<std::ptrdiff_t>(workers, 1); ++w) takers.emplace_back(jobs, w);
            for (bool any = true; any;) {
                any = false;
                for (auto& take : takers)
                    if (const auto job = take()) any = true, ++taken[static_cast<std::size_t>(*job)];
            }
            INFO(workers << " workers, " << count << " jobs");
            CHECK(std::all_of(taken.begin(), taken.end(), [](int times) { return times == 1; }));
        }
}

TEST_CASE("a worker takes its own range in order, then the jobs that others left") {
    SharedJobs jobs(2, 10);
    SharedJobs::Taker first(jobs, 0), second(jobs, 1);
    CHECK(second() == 5);
    for (const std::ptrdiff_t expected : {0, 1, 2, 3, 4, 6, 7}) CHECK(first() == expected);
    CHECK(second() == 8);
    CHECK(first() == 9);
    CHECK(first() == std::nullopt);
    CHECK(second() == std::nullopt);
}

TEST_CASE("one worker runs all jobs in order in the calling thread") {
    std::vector<std::ptrdiff_t> order;
    parallel_jobs(1, 5, [&](std::ptrdiff_t worker, auto next) {
        REQUIRE(worker == 0);
        while (const auto job = next()) order.push_back(*job);
    });
    CHECK(order == std::vector<std::ptrdiff_t>{0, 1, 2, 3, 4});
    parallel_jobs(3, 0, [](auto&&...) { FAIL("there is no job"); });
}

#if defined(_OPENMP)
TEST_CASE("with OpenMP there are as many workers as threads asked for, and at most as many as jobs") {
    for (const std::ptrdiff_t jobs : {2, 9}) {
        std::mutex mutex;
        std::vector<std::ptrdiff_t> workers;
        parallel_jobs(3, jobs, [&](std::ptrdiff_t worker, auto) {
            const std::lock_guard lock(mutex);
            workers.push_back(worker);
        });
        std::sort(workers.begin(), workers.end());
        CHECK(workers == (jobs == 2 ? std::vector<std::ptrdiff_t>{0, 1} : std::vector<std::ptrdiff_t>{0, 1, 2}));
    }
    REQUIRE(available_threads() >= 1);
}

TEST_CASE("a thread that is held up leaves its jobs to the others") {
    std::atomic<int> done = 0;
    std::atomic<bool> waited_in_vain = false;
    parallel_jobs(2, 10, [&](std::ptrdiff_t, auto next) {
        while (const auto job = next()) {
            const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
            while (*job == 0 && done < 9 && !waited_in_vain) {
                std::this_thread::yield();
                if (std::chrono::steady_clock::now() > limit) waited_in_vain = true;
            }
            ++done;
        }
    });
    CHECK(done == 10);
    CHECK_FALSE(waited_in_vain);
}

TEST_CASE("other libraries that ask OpenMP find one thread; our loops use the requested number") {
    omp_set_num_threads(3);
    {
        const OneThreadElsewhere one;
        REQUIRE(omp_get_max_threads() == 1);
        std::atomic<int> workers = 0;
        parallel_jobs(2, 2, [&](std::ptrdiff_t, auto) { ++workers; });
        REQUIRE(workers == 2);
    }
    REQUIRE(omp_get_max_threads() == 3);
    omp_set_num_threads(available_threads());
}
#endif
