// SPDX-License-Identifier: MIT
#include <unitscale/kernels/windows.hpp>

#include "support/catch.hpp"

#include <unitscale/tensor/fill.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

using namespace unitscale;
using namespace unitscale::kernels;

namespace {

constexpr std::ptrdiff_t batch = 2, channels = 3;

/// Several geometries: strides, padding, dilation, windows beside each other and overlapping.
std::vector<Windows> geometries() {
    std::vector<Windows> all;
    const auto add = [&](Windows::Pair image, Windows::Pair kernel, Windows::Pair stride, Windows::Pair padding,
                         Windows::Pair dilation) {
        Windows w{.batch = batch,
                  .channels = channels,
                  .image = image,
                  .kernel = kernel,
                  .stride = stride,
                  .padding = padding,
                  .dilation = dilation};
        for (std::size_t i = 0; i < 2; ++i)
            w.count[i] = (image[i] + 2 * padding[i] - (kernel[i] - 1) * dilation[i] - 1) / stride[i] + 1;
        all.push_back(w);
    };
    add({5, 6}, {3, 3}, {1, 1}, {1, 1}, {1, 1});
    add({6, 4}, {2, 2}, {2, 2}, {0, 0}, {1, 1});
    add({7, 9}, {3, 2}, {2, 3}, {2, 0}, {2, 1});
    add({1, 1}, {1, 1}, {1, 1}, {0, 0}, {1, 1});
    return all;
}

/// The element of x at a window's tap, or 0 in the padding.
template <class T>
double at(const Windows& w, const std::vector<T>& x, std::ptrdiff_t plane, std::ptrdiff_t i, std::ptrdiff_t j,
          std::ptrdiff_t u, std::ptrdiff_t v) {
    const std::ptrdiff_t row = i * w.stride[0] - w.padding[0] + u * w.dilation[0],
                         column = j * w.stride[1] - w.padding[1] + v * w.dilation[1];
    if (row < 0 || column < 0 || row >= w.image[0] || column >= w.image[1]) return 0.0;
    return static_cast<double>(x[static_cast<std::size_t>((plane * w.image[0] + row) * w.image[1] + column)]);
}
std::vector<double> numbers(std::ptrdiff_t count, std::uint64_t stream) {
    const Tensor<double> x = normal<double>({static_cast<std::size_t>(count)}, {1, stream});
    return {x.span().begin(), x.span().end()};
}
double dot(const std::vector<double>& a, const std::vector<double>& b) {
    double sum = 0.0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
}

}  // namespace

TEST_CASE("windows: unfold copies each window, and fold is its transpose") {
    for (const Windows& w : geometries())
        for (const int threads : {1, 2}) {
            const std::ptrdiff_t row = channels * w.taps(), rows = batch * w.positions();
            const auto x = numbers(batch * channels * w.pixels(), 1), g = numbers(rows * row, 2);
            std::vector<double> y(g.size(), 7.0), dx(x.size(), 7.0);
            unfold<double>({threads}, w, x.data(), y.data(), 3.0);
            bool equal = true;
            for (std::ptrdiff_t r = 0; r < rows; ++r)
                for (std::ptrdiff_t k = 0; k < row; ++k) {
                    const std::ptrdiff_t place = r % w.positions(), tap = k % w.taps();
                    equal = equal && y[static_cast<std::size_t>(r * row + k)] ==
                                         3.0 * at(w, x, r / w.positions() * channels + k / w.taps(), place / w.count[1],
                                                  place % w.count[1], tap / w.kernel[1], tap % w.kernel[1]);
                }
            CHECK(equal);
            fold<double>({threads}, w, g.data(), dx.data(), 2.0);
            CHECK(3.0 * dot(dx, x) == Approx(2.0 * dot(g, y)).epsilon(1e-12));
        }
}

TEST_CASE("windows: sums of each window and their transpose") {
    for (const Windows& w : geometries()) {
        const auto x = numbers(batch * channels * w.pixels(), 1), g = numbers(batch * channels * w.positions(), 2);
        std::vector<double> y(g.size()), dx(x.size());
        window_sums<double>({2}, w, x.data(), y.data(), 0.5);
        for (std::ptrdiff_t place = 0; place < batch * channels * w.positions(); ++place) {
            const std::ptrdiff_t plane = place / w.positions(), in_plane = place % w.positions();
            double sum = 0.0;
            for (std::ptrdiff_t u = 0; u < w.kernel[0]; ++u)
                for (std::ptrdiff_t v = 0; v < w.kernel[1]; ++v)
                    sum += at(w, x, plane, in_plane / w.count[1], in_plane % w.count[1], u, v);
            CHECK(y[static_cast<std::size_t>(place)] == Approx(0.5 * sum).margin(1e-12));
        }
        window_sums_backward<double>({2}, w, g.data(), dx.data(), 0.5);
        CHECK(dot(dx, x) == Approx(dot(g, y)).epsilon(1e-12));
    }
}

TEST_CASE("windows: the largest of each window, with its place; the gradient goes there") {
    for (const Windows& w : geometries()) {
        const auto x = numbers(batch * channels * w.pixels(), 1), g = numbers(batch * channels * w.positions(), 2);
        std::vector<double> y(g.size()), dx(x.size()), expected(x.size(), 0.0);
        std::vector<std::int32_t> places(g.size());
        window_maxima<double>({2}, w, x.data(), y.data(), places.data(), 2.0);
        for (std::size_t place = 0; place < y.size(); ++place) {
            const std::size_t plane = place / static_cast<std::size_t>(w.positions());
            const std::size_t pixel =
                plane * static_cast<std::size_t>(w.pixels()) + static_cast<std::size_t>(places[place]);
            CHECK(y[place] == 2.0 * x[pixel]);
            expected[pixel] += 3.0 * g[place];
            double largest = -1e9;
            const auto in_plane = static_cast<std::ptrdiff_t>(place) % w.positions();
            w.for_each_tap(in_plane / w.count[1], in_plane % w.count[1], [&](std::ptrdiff_t, std::ptrdiff_t offset) {
                largest = std::max(largest,
                                   x[plane * static_cast<std::size_t>(w.pixels()) + static_cast<std::size_t>(offset)]);
            });
            CHECK(y[place] == 2.0 * largest);
        }
        window_maxima_backward<double>({2}, w, g.data(), places.data(), dx.data(), 3.0);
        for (std::size_t i = 0; i < dx.size(); ++i) CHECK(dx[i] == Approx(expected[i]).margin(1e-12));
    }
}

TEST_CASE("windows: the first of equal elements is the largest, and a NaN is") {
    const Windows w{.batch = 1, .channels = 1, .image = {1, 4}, .count = {1, 2}, .kernel = {1, 3}};
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> x = {2.0f, 2.0f, nan, 5.0f}, plain = {1.0f, 2.0f, 2.0f, 0.0f};
    std::vector<float> y(2);
    std::vector<std::int32_t> places(2);
    window_maxima<float>({1}, w, x.data(), y.data(), places.data(), 1.0f);
    CHECK(std::isnan(y[0]));
    CHECK(places == std::vector<std::int32_t>{2, 2});
    window_maxima<float>({1}, w, plain.data(), y.data(), places.data(), 1.0f);
    CHECK(y == std::vector<float>{2.0f, 2.0f});
    CHECK(places == std::vector<std::int32_t>{1, 1});
}
