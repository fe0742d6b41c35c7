// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <optional>

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace unitscale {

/// True inside a parallel region, where a nested loop runs in the calling thread.
[[nodiscard]] inline bool in_parallel_region() noexcept {
#if defined(_OPENMP)
    return omp_in_parallel() != 0;
#else
    return false;
#endif
}

/// The threads this machine offers to one process (1 without OpenMP).
[[nodiscard]] inline int available_threads() noexcept {
#if defined(_OPENMP)
    return omp_get_num_procs();
#else
    return 1;
#endif
}

/// Jobs [0, jobs), shared out to workers: the threads of a parallel region. Each worker has a contiguous range of jobs
/// and takes them in order. When its own range is empty, it takes jobs from the ranges of other workers. So a slow core
/// does not hold up the region. Each job is taken once.
/// Test: tests/base/parallel_test.cpp
class SharedJobs {
public:
    SharedJobs(std::ptrdiff_t workers, std::ptrdiff_t jobs) noexcept
        : workers_(std::max<std::ptrdiff_t>(workers, 1)), count_(std::min(workers_, most_ranges)) {
        for (std::ptrdiff_t i = 0; i < count_; ++i) {
            Range& range = ranges_[static_cast<std::size_t>(i)];
            range.next.store(jobs * i / count_, std::memory_order_relaxed);
            range.end = jobs * (i + 1) / count_;
        }
    }

    /// What one worker takes.
    class Taker {
    public:
        Taker(SharedJobs& jobs, std::ptrdiff_t worker) noexcept
            : jobs_(&jobs), own_(worker * jobs.count_ / jobs.workers_) {}
        /// The next job, or none when all are taken.
        [[nodiscard]] std::optional<std::ptrdiff_t> operator()() noexcept {
            for (; visited_ < jobs_->count_; ++visited_) {
                Range& range = jobs_->ranges_[static_cast<std::size_t>((own_ + visited_) % jobs_->count_)];
                if (range.next.load(std::memory_order_relaxed) >= range.end) continue;
                const std::ptrdiff_t job = range.next.fetch_add(1, std::memory_order_relaxed);
                if (job < range.end) return job;
            }
            return std::nullopt;
        }

    private:
        SharedJobs* jobs_;
        std::ptrdiff_t own_, visited_ = 0;
    };

private:
    static constexpr std::ptrdiff_t most_ranges = 64;  // of more workers, some begin in the same range
    struct alignas(64) Range {                         // a cache line each: workers do not wait for each other's
        std::atomic<std::ptrdiff_t> next;
        std::ptrdiff_t end;
    };
    std::ptrdiff_t workers_, count_;
    std::array<Range, static_cast<std::size_t>(most_ranges)> ranges_;
};

/// Runs body(worker, next) once in each of at most `workers` threads, worker in [0, workers). The body takes jobs of
/// [0, jobs) until none is left:
///   while (const std::optional<std::ptrdiff_t> job = next()) ...
/// What it prepares before this loop serves all its jobs. Which worker takes a job depends on time alone, so results
/// must not depend on it: each output element belongs to one job. A body must not throw.
/// Test: tests/base/parallel_test.cpp
template <class Body>
void parallel_jobs(std::ptrdiff_t workers, std::ptrdiff_t jobs, Body&& body) {
    if (jobs <= 0) return;
    workers = std::min(workers, jobs);
    const auto run = [&](SharedJobs& shared, std::ptrdiff_t worker) {
        body(worker, SharedJobs::Taker(shared, worker));
    };
#if defined(_OPENMP)
    if (workers > 1 && !in_parallel_region()) {
        SharedJobs shared(workers, jobs);
#pragma omp parallel num_threads(static_cast <int>(workers))
        run(shared, omp_get_thread_num());
        return;
    }
#endif
    SharedJobs shared(1, jobs);
    run(shared, 0);
}

/// Pieces of a loop for each thread: enough that a thread which is held up leaves some to the others.
inline constexpr std::ptrdiff_t pieces_per_thread = 8;

/// Runs body(begin, end) over [0, n) in at most `threads` threads, in contiguous pieces (`parallel_jobs`). Bounds of
/// pieces are multiples of `grain`. A piece therefore has at least `grain` items (the work threshold), and a vector or
/// tile is never cut in two. The partition depends on (threads, n, grain) alone; one thread has one piece. A body must
/// give equal results for every partition: each output element belongs to one item. It must not throw; check arguments
/// before the call. Test: tests/base/parallel_test.cpp
template <class Body>
void parallel_for(int threads, std::ptrdiff_t n, std::ptrdiff_t grain, Body&& body) {
    if (n <= 0) return;
    grain = std::max<std::ptrdiff_t>(grain, 1);
    const std::ptrdiff_t grains = (n + grain - 1) / grain;
    const std::ptrdiff_t workers = std::min<std::ptrdiff_t>(threads, grains);
    if (workers <= 1 || in_parallel_region()) {
        body(std::ptrdiff_t{0}, n);
        return;
    }
    const std::ptrdiff_t pieces = std::min(workers * pieces_per_thread, grains);
    parallel_jobs(workers, pieces, [&](std::ptrdiff_t, auto next) {
        while (const std::optional<std::ptrdiff_t> piece = next())
            body(grains * *piece / pieces * grain, std::min(n, grains * (*piece + 1) / pieces * grain));
    });
}

/// While it lives, OpenMP regions of other libraries in the calling thread get one thread, unless they request a
/// number. Regions of `parallel_jobs` request theirs. Test: tests/base/parallel_test.cpp
class OneThreadElsewhere {
public:
#if defined(_OPENMP)
    OneThreadElsewhere() noexcept : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
    ~OneThreadElsewhere() { omp_set_num_threads(before_); }
#else
    OneThreadElsewhere() noexcept {}
#endif
    OneThreadElsewhere(const OneThreadElsewhere&) = delete;
    OneThreadElsewhere& operator=(const OneThreadElsewhere&) = delete;

#if defined(_OPENMP)
private:
    int before_;
#endif
};

}  // namespace unitscale
