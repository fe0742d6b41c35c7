// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/kernels/amax.hpp>
#include <unitscale/kernels/elementwise.hpp>
#include <unitscale/tensor/rescale.hpp>

#include <cmath>
#include <cstddef>
#include <limits>

// Conversion of data to another scale, and measures of the size of data from which a scale may be chosen.
namespace unitscale::kernels {

/// y[i] = x[i] from / to, rounded once to T: data under the scale `to` from data under the scale `from`.
///   x, y [n], y may be x
/// The bits of `set_scaling` (tensor/rescale.hpp); exact for powers of two, short of over- and underflow. Both scales
/// are positive and finite. Test: tests/kernels/rescale_test.cpp
template <class T>
void rescale(const Execution& execution, const T* x, T* y, std::ptrdiff_t n, double from, double to) {
    int exponent = 0;
    const double ratio = from / to;
    const bool in_range = ratio >= std::numeric_limits<float>::min() && ratio <= 0x1p127;
    if (in_range && std::frexp(ratio, &exponent) == 0.5)
        return scale<T>(execution, x, y, n, static_cast<Accum<T>>(ratio));
    const Ratio times(from, to);
    parallel_for(execution.threads, n, work_threshold, [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
        for (std::ptrdiff_t i = begin; i < end; ++i) y[i] = element_cast<T>(times(widest(x[i])));
    });
}

/// A measure of the size of n numbers: the largest magnitude, the mean magnitude (L1), the root mean square (L2).
enum class DataNorm { max, l1, l2 };

/// The measure, in double. Squares neither overflow nor vanish, except of doubles beyond 1e154 or below 1e-154. NaN if
/// an element is NaN, or for a mean of no elements. Bits do not depend on the thread count.
template <class T>
[[nodiscard]] double data_norm(const Execution& execution, DataNorm norm, const T* x, std::ptrdiff_t n) {
    if (norm == DataNorm::max) return static_cast<double>(largest_magnitude(execution, x, n));
    const auto count = static_cast<double>(n);
    if (norm == DataNorm::l2) return std::sqrt(square_norm(execution, x, n) / count);
    return sum_over<double>(
               execution, n, [](Accum<T> v) { return std::abs(static_cast<double>(v)); }, x) /
           count;
}

}  // namespace unitscale::kernels
