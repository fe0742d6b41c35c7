// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/random.hpp>
#include <unitscale/tensor/backend.hpp>

#include "support/catch.hpp"

#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

// Helpers that the tests of row and element-wise kernels share.
namespace unitscale {

using Doubles = std::vector<double>;

/// Standard normal numbers, rounded to T, so that a test in T and its reference in double see equal values.
template <class T>
std::vector<T> normal_data(std::size_t n, std::uint64_t stream, double stddev = 1.0) {
    std::vector<T> data(n);
    for (std::size_t i = 0; i < n; ++i)
        data[i] = static_cast<T>(static_cast<Accum<T>>(stddev * random_normal({7, stream}, i)));
    return data;
}

template <class T>
Doubles doubles(const std::vector<T>& data) {
    Doubles result(data.size());
    for (std::size_t i = 0; i < data.size(); ++i) result[i] = static_cast<double>(data[i]);
    return result;
}

/// The largest |a - b| / max(|b|, floor): relative where |b| > floor, absolute in units of floor below.
template <class T>
double largest_error(const std::vector<T>& a, const Doubles& b, double floor = 1.0) {
    REQUIRE(a.size() == b.size());
    double worst = 0.0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        const double error = std::abs(static_cast<double>(a[i]) - b[i]) / std::max(std::abs(b[i]), floor);
        if (!(error <= worst)) worst = error;  // NaN counts as the largest
    }
    return worst;
}

/// The gradient of a scalar function by central differences.
inline Doubles numeric_gradient(const std::function<double(const Doubles&)>& f, Doubles x, double step = 1e-5) {
    Doubles gradient(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
        const double kept = x[i];
        x[i] = kept + step;
        const double above = f(x);
        x[i] = kept - step;
        const double below = f(x);
        x[i] = kept;
        gradient[i] = (above - below) / (2 * step);
    }
    return gradient;
}

inline double dot(const Doubles& a, const Doubles& b) {
    double total = 0.0;
    for (std::size_t i = 0; i < a.size(); ++i) total += a[i] * b[i];
    return total;
}

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/// Whether run(execution) returns the same bits with 1, 2 and 3 threads.
template <class Run>
bool threads_agree(Run run) {
    const auto one = run(Execution{.threads = 1});
    return same_bits(one, run(Execution{.threads = 2})) && same_bits(one, run(Execution{.threads = 3}));
}

/// Index into `from` of element `flat` of `to`, by the broadcasting rules.
inline std::size_t broadcast_index(std::size_t flat, const Shape& to, const Shape& from) {
    std::size_t index = 0, step = 1;
    for (std::size_t back = 1; back <= to.size(); ++back) {
        const std::size_t extent = to[to.size() - back], i = flat % extent;
        flat /= extent;
        if (back > from.size()) continue;
        const std::size_t own = from[from.size() - back];
        index += (own == 1 ? 0 : i) * step;
        step *= own;
    }
    return index;
}

inline std::ptrdiff_t size_of(const auto& data) { return static_cast<std::ptrdiff_t>(data.size()); }

}  // namespace unitscale
