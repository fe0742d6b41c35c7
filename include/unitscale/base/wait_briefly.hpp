// SPDX-License-Identifier: MIT
#pragma once

#if defined(__linux__) && defined(_OPENMP) && !defined(__clang__)
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#endif

namespace unitscale {

/// Call it first in `main`, before threads start and anything is printed. Afterwards a thread that waits for the others
/// of a parallel region sleeps after about 30 microseconds.
///
/// GCC's OpenMP lets such a thread spin for some milliseconds. That is fast while processors are free. Where several
/// programs share them, a spinning thread holds up the thread that it waits for. A thread that sleeps at once has to be
/// woken for each parallel region. docs/benchmarks.md has figures of all three.
///
/// OpenMP reads its settings before `main`. So the function sets GOMP_SPINCOUNT and starts the program anew, in one and
/// the same process. The second call returns, as any call where OMP_WAIT_POLICY or GOMP_SPINCOUNT is set. It also
/// returns where the program cannot be started anew, and without GCC's OpenMP on Linux. The header needs POSIX.
/// Test: tests/base/wait_briefly_test.cpp
inline void wait_briefly([[maybe_unused]] char** argv) {
#if defined(__linux__) && defined(_OPENMP) && !defined(__clang__)
    if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
    // The path, rather than /proc/self/exe: an emulator answers with the path of the program that it runs.
    std::array<char, 4096> path{};
    const ssize_t length = readlink("/proc/self/exe", path.data(), path.size() - 1);
    if (length <= 0 || setenv("GOMP_SPINCOUNT", "3000", 0) != 0) return;
    execv(path.data(), argv);  // comes back only if it fails
#endif
}

}  // namespace unitscale
