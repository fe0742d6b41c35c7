// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string_view>

#if defined(__linux__)
#include <unistd.h>
#endif

namespace unitscale {

/// Bytes of memory that this process can have: the machine's, or its control group's limit where that is less.
/// 0: the system does not say. Read once. Test: tests/base/machine_memory_test.cpp
[[nodiscard, gnu::cold]] inline double machine_memory() {
    static const double bytes = [] {
        double most = 0.0;
#if defined(__linux__)
        most = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
        // Control groups of version 2 and of version 1. A group without a limit has the word "max", or a huge number.
        for (const char* path : {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
            std::ifstream file(path);
            if (double limit = 0.0; file >> limit && limit > 0.0) most = std::min(most, limit);
        }
#endif
        return most;
    }();
    return bytes;
}

/// Error: `bytes` alone are more than the machine's memory. `what` and `name` are the owner's kind and name:
///   Parameter w: takes 512 GB; this machine has 25.1 GB
inline void check_memory(const char* what, std::string_view name, double bytes) {
    if (bytes < 0x1p24) return;  // fits everywhere: no need to ask the system
    const auto gigabytes = [](double x) { return std::round(x / 1e8) / 10.0; };
    const double machine = machine_memory();
    check(machine <= 0.0 || bytes <= machine, what, name, ": takes ", gigabytes(bytes), " GB; this machine has ",
          gigabytes(machine), " GB");
}

}  // namespace unitscale
