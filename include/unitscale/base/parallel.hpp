// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace unitscale {

/// True inside a parallel region, where a nested `parallel_for` runs in the calling thread.
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

/// Runs body(begin, end) over [0, n), cut into at most `threads` contiguous parts. Bounds of parts are multiples of
/// `grain`. A part therefore has at least `grain` items (the work threshold), and a vector or tile is never cut in two.
/// The partition depends on (threads, n, grain) alone. A body must give equal results for every partition: each output
/// element belongs to one item. It must not throw; check arguments before the call.
/// Test: tests/base/parallel_test.cpp
template <class Body>
void parallel_for(int threads, std::ptrdiff_t n, std::ptrdiff_t grain, Body&& body) {
    if (n <= 0) return;
    grain = std::max<std::ptrdiff_t>(grain, 1);
    const std::ptrdiff_t grains = (n + grain - 1) / grain;
    const std::ptrdiff_t parts = std::min<std::ptrdiff_t>(threads, grains);
    if (parts <= 1 || in_parallel_region()) {
        body(std::ptrdiff_t{0}, n);
        return;
    }
#if defined(_OPENMP)
#pragma omp parallel for num_threads(static_cast <int>(parts)) schedule(static, 1)
    for (std::ptrdiff_t part = 0; part < parts; ++part) {
        const std::ptrdiff_t begin = std::min(n, grains * part / parts * grain);
        const std::ptrdiff_t end = std::min(n, grains * (part + 1) / parts * grain);
        if (begin < end) body(begin, end);
    }
#else
    body(std::ptrdiff_t{0}, n);
#endif
}

/// While it lives, OpenMP regions of other libraries in the calling thread get one thread, unless they request a
/// number. Regions of `parallel_for` request theirs. Test: tests/base/parallel_test.cpp
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
