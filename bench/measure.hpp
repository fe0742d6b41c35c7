// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <vector>

// What the benchmarks share that take rounds in turn and compare medians.
namespace unitscale::bench {

using Clock = std::chrono::steady_clock;
[[nodiscard]] inline double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}
[[nodiscard]] double seconds_of(auto&& run) {
    const auto start = Clock::now();
    run();
    return seconds_since(start);
}
/// The upper of the two middle values where their number is even. `values` has at least one.
[[nodiscard]] inline double median(std::vector<double> values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
}

}  // namespace unitscale::bench
