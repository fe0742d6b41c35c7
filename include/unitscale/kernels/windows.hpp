// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/memory.hpp>
#include <unitscale/base/parallel.hpp>
#include <unitscale/kernels/vector_math.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>

// Windows of images, for convolutions and pooling. Images x [batch,channels,height,width]. Window (i, j) of an image
// has the elements x[i stride - padding + u dilation, j stride - padding + v dilation], u and v from 0 up to the
// kernel's extents. Elements beside the image are padding.
namespace unitscale::kernels {

/// The sizes of the windows of a batch of images. Pairs are {height, width}.
struct Windows {
    using Pair = std::array<std::ptrdiff_t, 2>;

    std::ptrdiff_t batch = 0, channels = 0;
    Pair image{}, count{}, kernel{}, stride{1, 1}, padding{}, dilation{1, 1};

    [[nodiscard]] std::ptrdiff_t positions() const noexcept { return count[0] * count[1]; }
    [[nodiscard]] std::ptrdiff_t taps() const noexcept { return kernel[0] * kernel[1]; }
    [[nodiscard]] std::ptrdiff_t pixels() const noexcept { return image[0] * image[1]; }

    /// Calls use(tap, offset) for every element of window (i, j) that lies in the image, in row-major order.
    template <class Use>
    void for_each_tap(std::ptrdiff_t i, std::ptrdiff_t j, const Use& use) const {
        const std::ptrdiff_t top = i * stride[0] - padding[0], left = j * stride[1] - padding[1];
        for (std::ptrdiff_t u = 0; u < kernel[0]; ++u) {
            const std::ptrdiff_t row = top + u * dilation[0];
            if (row < 0 || row >= image[0]) continue;
            for (std::ptrdiff_t v = 0; v < kernel[1]; ++v) {
                const std::ptrdiff_t column = left + v * dilation[1];
                if (column >= 0 && column < image[1]) use(u * kernel[1] + v, row * image[1] + column);
            }
        }
    }
};

/// Calls use(b, c, x's first pixel, first window) for every image and channel, in parallel.
template <class Use>
void for_each_channel(const Execution& execution, const Windows& w, const Use& use) {
    const std::ptrdiff_t work = std::max<std::ptrdiff_t>(w.positions() * w.taps(), 1);
    parallel_for(execution.threads, w.batch * w.channels, std::max<std::ptrdiff_t>(work_threshold / work, 1),
                 [&](std::ptrdiff_t begin, std::ptrdiff_t end) {
                     for (std::ptrdiff_t plane = begin; plane < end; ++plane)
                         use(plane / w.channels, plane % w.channels, plane * w.pixels(), plane * w.positions());
                 });
}

/// Sums over windows for every pixel: x[b,c,pixel] = alpha sums[pixel].   x [batch,channels,height,width]
/// add(b, c, place, sums) is called once for each window of a channel. It adds the window's terms to `sums`, which has
/// an element for each pixel of the channel. Sums are formed in Accum<T> and rounded once. One thread computes each
/// channel.
template <class T, class Add>
void sum_over_windows(const Execution& execution, const Windows& w, T* x, Accum<T> alpha, const Add& add) {
    using A = Accum<T>;
    const std::ptrdiff_t pixels = w.pixels();
    Scratch<A> sums(execution, static_cast<std::size_t>(w.batch * w.channels * pixels));
    A* const all = sums.data();
    for_each_channel(execution, w, [=, &w](std::ptrdiff_t b, std::ptrdiff_t c, std::ptrdiff_t pixel, std::ptrdiff_t) {
        A* const sum = all + pixel;
        std::fill_n(sum, pixels, A(0));
        for (std::ptrdiff_t place = 0; place < w.positions(); ++place) add(b, c, place, sum);
        for (std::ptrdiff_t p = 0; p < pixels; ++p) x[pixel + p] = static_cast<T>(alpha * sum[p]);
    });
}

/// Windows as rows: y[b, (i, j), (c, u, v)] = alpha times the window's element, 0 for padding.
///   x [batch,channels,height,width]   y [batch,positions,channels taps]
/// Test: tests/kernels/windows_test.cpp
template <class T>
void unfold(const Execution& execution, const Windows& w, const T* x, T* y, Accum<T> alpha) {
    const std::ptrdiff_t row = w.channels * w.taps();
    parallel_for(execution.threads, w.batch * w.positions(),
                 std::max<std::ptrdiff_t>(work_threshold / std::max<std::ptrdiff_t>(row, 1), 1),
                 [=](std::ptrdiff_t begin, std::ptrdiff_t end) {
                     for (std::ptrdiff_t r = begin; r < end; ++r) {
                         const std::ptrdiff_t b = r / w.positions(), place = r % w.positions();
                         T* const out = y + r * row;
                         std::fill_n(out, row, T(0));
                         for (std::ptrdiff_t c = 0; c < w.channels; ++c) {
                             const T* const in = x + (b * w.channels + c) * w.pixels();
                             w.for_each_tap(place / w.count[1], place % w.count[1],
                                            [&](std::ptrdiff_t tap, std::ptrdiff_t offset) {
                                                out[c * w.taps() + tap] =
                                                    static_cast<T>(alpha * static_cast<Accum<T>>(in[offset]));
                                            });
                         }
                     }
                 });
}

/// The transpose of `unfold`: x[b,c,...] = alpha times the sum of y over the windows that hold the pixel.
template <class T>
void fold(const Execution& execution, const Windows& w, const T* y, T* x, Accum<T> alpha) {
    const std::ptrdiff_t row = w.channels * w.taps();
    sum_over_windows(
        execution, w, x, alpha, [=](std::ptrdiff_t b, std::ptrdiff_t c, std::ptrdiff_t place, Accum<T>* sums) {
            const T* const in = y + (b * w.positions() + place) * row + c * w.taps();
            w.for_each_tap(place / w.count[1], place % w.count[1], [&](std::ptrdiff_t tap, std::ptrdiff_t offset) {
                sums[offset] += static_cast<Accum<T>>(in[tap]);
            });
        });
}

/// y = alpha times the sum of each window; padding is 0.   x [batch,channels,height,width]   y [batch,channels,count]
template <class T>
void window_sums(const Execution& execution, const Windows& w, const T* x, T* y, Accum<T> alpha) {
    using A = Accum<T>;
    for_each_channel(
        execution, w, [=, &w](std::ptrdiff_t, std::ptrdiff_t, std::ptrdiff_t pixel, std::ptrdiff_t window) {
            for (std::ptrdiff_t place = 0; place < w.positions(); ++place) {
                A sum = 0;
                w.for_each_tap(place / w.count[1], place % w.count[1], [&](std::ptrdiff_t, std::ptrdiff_t offset) {
                    sum += static_cast<A>(x[pixel + offset]);
                });
                y[window + place] = static_cast<T>(alpha * sum);
            }
        });
}
/// Its transpose: dx = beta times the sum of dy over the windows that hold the pixel.
template <class T>
void window_sums_backward(const Execution& execution, const Windows& w, const T* dy, T* dx, Accum<T> beta) {
    sum_over_windows(execution, w, dx, beta,
                     [=](std::ptrdiff_t b, std::ptrdiff_t c, std::ptrdiff_t place, Accum<T>* sums) {
                         const auto slope = static_cast<Accum<T>>(dy[(b * w.channels + c) * w.positions() + place]);
                         w.for_each_tap(place / w.count[1], place % w.count[1],
                                        [&](std::ptrdiff_t, std::ptrdiff_t offset) { sums[offset] += slope; });
                     });
}

/// y = alpha times the largest element of each window, the first of equal ones; a NaN counts as the largest. Padding
/// does not count. places: its offset in the channel.   places as y
template <class T>
void window_maxima(const Execution& execution, const Windows& w, const T* x, T* y, std::int32_t* places,
                   Accum<T> alpha) {
    using A = Accum<T>;
    for_each_channel(
        execution, w, [=, &w](std::ptrdiff_t, std::ptrdiff_t, std::ptrdiff_t pixel, std::ptrdiff_t window) {
            for (std::ptrdiff_t place = 0; place < w.positions(); ++place) {
                A largest = -std::numeric_limits<A>::infinity();
                std::ptrdiff_t at = -1;
                w.for_each_tap(place / w.count[1], place % w.count[1], [&](std::ptrdiff_t, std::ptrdiff_t offset) {
                    const auto value = static_cast<A>(x[pixel + offset]);
                    if (at >= 0 && !(value > largest) && !(value != value)) return;
                    if (at >= 0 && largest != largest) return;
                    largest = value;
                    at = offset;
                });
                y[window + place] = static_cast<T>(alpha * largest);
                places[window + place] = static_cast<std::int32_t>(at);
            }
        });
}
/// Its gradient: dx = beta times the sum of dy over the windows in which the pixel is the largest element.
template <class T>
void window_maxima_backward(const Execution& execution, const Windows& w, const T* dy, const std::int32_t* places,
                            T* dx, Accum<T> beta) {
    sum_over_windows(execution, w, dx, beta,
                     [=](std::ptrdiff_t b, std::ptrdiff_t c, std::ptrdiff_t place, Accum<T>* sums) {
                         const std::ptrdiff_t window = (b * w.channels + c) * w.positions() + place;
                         if (places[window] >= 0) sums[places[window]] += static_cast<Accum<T>>(dy[window]);
                     });
}

}  // namespace unitscale::kernels
