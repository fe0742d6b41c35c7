// SPDX-License-Identifier: MIT
#pragma once

#if __has_include(<sys/resource.h>)
#include <sys/resource.h>
#endif

namespace unitscale::experiments {

/// The peak resident memory of this process, in megabytes (10^6 bytes); 0 if the system does not report it.
/// Test: tests/experiments/resources_test.cpp
[[nodiscard]] inline double peak_resident_megabytes() {
#if __has_include(<sys/resource.h>)
    rusage usage{};
    if (getrusage(RUSAGE_SELF, &usage) != 0) return 0.0;
#if defined(__APPLE__)
    return static_cast<double>(usage.ru_maxrss) * 1e-6;
#else
    return static_cast<double>(usage.ru_maxrss) * 1024e-6;
#endif
#else
    return 0.0;
#endif
}

}  // namespace unitscale::experiments
