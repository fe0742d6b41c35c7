// SPDX-License-Identifier: MIT
#include <unitscale/kernels/maximum.hpp>

#include "kernels/kernel_checks.hpp"

#include <algorithm>

using namespace unitscale;
using namespace unitscale::kernels;

namespace {
/// Values and places of the largest elements, by a plain loop. `axes`: the axes that are compared.
template <class T>
void check_maximum(const Shape& shape, const Shape& kept, Extreme extreme = Extreme::largest) {
    auto x = normal_data<T>(element_count(shape), 1);
    for (T& v : x) v = static_cast<T>(std::round(static_cast<Accum<T>>(v) * Accum<T>(2)));  // makes many equal elements
    const std::size_t n = element_count(kept);
    std::vector<T> y(n);
    std::vector<std::ptrdiff_t> index(n, -1), expected(n, -1);
    maximum_forward<T>(Execution{}, x.data(), shape, y.data(), index.data(), kept, Accum<T>(0.5), extreme);
    for (std::size_t flat = 0; flat < x.size(); ++flat) {
        std::size_t rest = flat, place = 0, step = 1;
        for (std::size_t axis = shape.size(); axis-- > 0;) {
            if (kept[axis] == shape[axis]) {
                place += rest % shape[axis] * step;
                step *= shape[axis];
            }
            rest /= shape[axis];
        }
        const auto better = [&](T a, T b) { return extreme == Extreme::largest ? a > b : a < b; };
        if (expected[place] < 0 || better(x[flat], x[static_cast<std::size_t>(expected[place])]))
            expected[place] = static_cast<std::ptrdiff_t>(flat);
    }
    INFO(to_string(shape) << " to " << to_string(kept));
    CHECK(index == expected);
    std::fill(index.begin(), index.end(), -1);
    maximum_forward<T>(Execution{}, x.data(), shape, nullptr, index.data(), kept, Accum<T>(1), extreme);
    CHECK(index == expected);
    for (std::size_t i = 0; i < n; ++i)
        CHECK(static_cast<double>(y[i]) == 0.5 * static_cast<double>(x[static_cast<std::size_t>(expected[i])]));
}
}  // namespace

TEST_CASE("maximum and its first place agree with a plain loop for every pattern of axes", "[kernels]") {
    for (const Shape& kept :
         {Shape{1, 1, 1, 1}, Shape{3, 1, 1, 1}, Shape{1, 4, 1, 1}, Shape{1, 1, 5, 1}, Shape{1, 1, 1, 70},
          Shape{3, 4, 1, 70}, Shape{3, 1, 5, 1}, Shape{1, 4, 5, 70}, Shape{3, 4, 5, 70}}) {
        check_maximum<double>({3, 4, 5, 70}, kept);
        check_maximum<double>({3, 4, 5, 70}, kept, Extreme::smallest);
    }
    check_maximum<float>({2, 90}, {2, 1});
    check_maximum<Half>({2, 90}, {1, 90});
    check_maximum<double>({1}, {1});
    check_maximum<double>({0, 3}, {0, 1});
}

TEST_CASE("the first NaN is the maximum, also in the first place", "[kernels]") {
    const double nan = std::nan("");
    const std::vector<double> x{1.0, nan, 5.0, nan, nan, 2.0, 3.0, 1.0};
    std::vector<double> y(2);
    std::vector<std::ptrdiff_t> index(2);
    maximum_forward<double>(Execution{}, x.data(), Shape{2, 4}, y.data(), index.data(), Shape{2, 1}, 1.0);
    CHECK(std::isnan(y[0]));
    CHECK(index == std::vector<std::ptrdiff_t>{1, 4});
    maximum_forward<double>(Execution{}, x.data(), Shape{2, 4}, y.data(), index.data(), Shape{2, 1}, 1.0,
                            Extreme::smallest);
    CHECK(std::isnan(y[1]));
    CHECK(index == std::vector<std::ptrdiff_t>{1, 4});
}

TEST_CASE("the gradient of a maximum goes to its place", "[kernels]") {
    const std::vector<float> dy{2.0f, -3.0f};
    const std::vector<std::ptrdiff_t> index{3, 1};
    std::vector<float> dx(5, 9.0f);
    maximum_backward(dy.data(), index.data(), dx.data(), 2, 5, 0.5f);
    CHECK(dx == std::vector<float>{0.0f, -1.5f, 0.0f, 1.0f, 0.0f});
}

TEST_CASE("maxima give the same bits for any thread count", "[kernels]") {
    const auto x = normal_data<float>(3 * 100 * 200, 6);
    CHECK(threads_agree([&](const Execution& execution) {
        std::vector<std::ptrdiff_t> index(300);
        std::vector<float> y(300);
        maximum_forward(execution, x.data(), Shape{3, 100, 200}, y.data(), index.data(), Shape{3, 100, 1}, 1.0f);
        return index;
    }));
}
