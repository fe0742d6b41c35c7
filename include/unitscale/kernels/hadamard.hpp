// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/memory.hpp>
#include <unitscale/base/parallel.hpp>
#include <unitscale/formats/rotation.hpp>
#include <unitscale/kernels/vector_math.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace unitscale::kernels {

/// The definition of `rotate`: one run, by a sum over the matrix in double.   x, y [size], y may not be x
template <class T>
void rotate_run_naive(const HadamardRotation& rotation, const T* x, T* y) {
    for (int j = 0; j < rotation.size; ++j) {
        double sum = 0.0;
        for (int i = 0; i < rotation.size; ++i) {
            const std::uint32_t parity = static_cast<std::uint32_t>(i & j), sign = rotation.signs >> i & 1u;
            const bool negative = (static_cast<std::uint32_t>(std::popcount(parity)) + sign) % 2 != 0;
            const auto value = static_cast<double>(widen(x[i]));
            sum += negative ? -value : value;
        }
        y[j] = narrow<T>(static_cast<Accum<T>>(sum / std::sqrt(static_cast<double>(rotation.size))));
    }
}

/// Rotates `width` runs side by side in place: element i of run l is runs[i][l]. log2(size) rounds of sums and
/// differences, then one product with size^-1/2. Every sum is rounded once, in one order.
template <class A, std::size_t width>
void rotate_runs(const HadamardRotation& rotation, std::array<A, width>* runs) noexcept {
    const int size = rotation.size;
    for (int i = 0; i < size; ++i)
        if ((rotation.signs >> i & 1u) != 0)
            for (A& value : runs[i]) value = -value;
    for (int half = 1; half < size; half *= 2)
        for (int i = 0; i < size; ++i)
            if ((i & half) == 0)
                for (std::size_t l = 0; l < width; ++l) {
                    const A a = runs[i][l], b = runs[i + half][l];
                    runs[i][l] = a + b;
                    runs[i + half][l] = a - b;
                }
    const A factor = size == 16 ? A(0.25) : A(0.17677669529663688110);  // 32^-1/2
    for (int i = 0; i < size; ++i)
        for (A& value : runs[i]) value *= factor;
}

/// Rotates lines of numbers in place, run by run. A short last run stays as it is.
///   x [lines, length]     element k of line l at x[l line_stride + k stride]
/// Sums are in Accum<T> and rounded to T once. Bits do not depend on the number of threads.
/// Errors: as `check_rotation`.
/// Reference: arXiv:2509.25149, section on random Hadamard transforms. Test: tests/kernels/hadamard_test.cpp
template <class T>
void rotate(const Execution& execution, const HadamardRotation& rotation, T* x, std::ptrdiff_t lines,
            std::ptrdiff_t length, std::ptrdiff_t line_stride, std::ptrdiff_t stride) {
    check_rotation("rotate", rotation);
    constexpr std::ptrdiff_t width = 16;
    using Runs = std::array<std::array<Accum<T>, width>, 32>;
    const std::ptrdiff_t size = rotation.size, groups = (lines + width - 1) / width, runs = length / size;
    parallel_for(execution.threads, groups * runs, row_grain(width * size),
                 [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
                     Runs values{};
                     for (std::ptrdiff_t item = begin; item < end; ++item) {
                         const std::ptrdiff_t line = item / runs * width, count = std::min(width, lines - line);
                         const std::ptrdiff_t first = line * line_stride + item % runs * size * stride;
                         for (std::ptrdiff_t i = 0; i < size; ++i)
                             for (std::ptrdiff_t l = 0; l < count; ++l)
                                 values[static_cast<std::size_t>(i)][static_cast<std::size_t>(l)] =
                                     widen(x[first + l * line_stride + i * stride]);
                         rotate_runs<Accum<T>, width>(rotation, values.data());
                         for (std::ptrdiff_t i = 0; i < size; ++i)
                             for (std::ptrdiff_t l = 0; l < count; ++l)
                                 x[first + l * line_stride + i * stride] =
                                     narrow<T>(values[static_cast<std::size_t>(i)][static_cast<std::size_t>(l)]);
                     }
                 });
}

}  // namespace unitscale::kernels
