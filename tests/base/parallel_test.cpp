// SPDX-License-Identifier: MIT
#include <unitscale/base/parallel.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <atomic>
#include <mutex>
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

TEST_CASE("each index is in exactly one part, and parts begin at multiples of the grain") {
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
                CHECK(static_cast<std::ptrdiff_t>(parts.ranges.size()) <= std::max(threads, 1));
            }
}

TEST_CASE("work below the grain stays in the calling thread, in one part") {
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
    if (outer_parts > 1) REQUIRE(inner_parts == 2);
    REQUIRE_FALSE(in_parallel_region());
}

#if defined(_OPENMP)
TEST_CASE("with OpenMP there are as many parts as threads asked for") {
    Parts parts;
    parallel_for(3, 9, 1, [&](std::ptrdiff_t begin, std::ptrdiff_t end) { parts.add(begin, end); });
    REQUIRE(parts.ranges.size() == 3);
    REQUIRE(available_threads() >= 1);
}

TEST_CASE("other libraries that ask OpenMP find one thread; our loops use the requested number") {
    omp_set_num_threads(3);
    {
        const OneThreadElsewhere one;
        REQUIRE(omp_get_max_threads() == 1);
        Parts parts;
        parallel_for(2, 2, 1, [&](std::ptrdiff_t begin, std::ptrdiff_t end) { parts.add(begin, end); });
        REQUIRE(parts.ranges.size() == 2);
    }
    REQUIRE(omp_get_max_threads() == 3);
    omp_set_num_threads(available_threads());
}
#endif
