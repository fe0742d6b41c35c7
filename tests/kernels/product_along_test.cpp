// SPDX-License-Identifier: MIT
#include <unitscale/kernels/product_along.hpp>

#include "kernels/kernel_checks.hpp"

#include <cmath>
#include <limits>
#include <vector>

using namespace unitscale;
using namespace unitscale::kernels;

namespace {
template <class T>
void check_products(const Shape& shape, const Shape& kept, double tolerance) {
    const std::size_t size = element_count(shape), n = element_count(kept);
    auto x = normal_data<T>(size, 1);
    const auto dy = normal_data<T>(n, 2);
    if (size > 3) x[3] = T(0);
    std::vector<std::size_t> places(size);
    Doubles expected(n, 0.5), slopes(size);
    for (std::size_t flat = 0; flat < size; ++flat) {
        std::size_t rest = flat, step = 1;
        for (std::size_t axis = shape.size(); axis-- > 0;) {
            if (kept[axis] == shape[axis]) {
                places[flat] += rest % shape[axis] * step;
                step *= shape[axis];
            }
            rest /= shape[axis];
        }
        expected[places[flat]] *= static_cast<double>(x[flat]);
    }
    for (std::size_t i = 0; i < size; ++i) {
        slopes[i] = 0.25 * static_cast<double>(dy[places[i]]);
        for (std::size_t j = 0; j < size; ++j)
            if (places[j] == places[i] && j != i) slopes[i] *= static_cast<double>(x[j]);
    }
    INFO(to_string(shape) << " to " << to_string(kept));
    std::vector<T> y(n), dx(size);
    using Wide = WideProduct<Accum<T>>;
    std::vector<Wide> before(size);
    product_forward<T>(Execution{}, x.data(), shape, y.data(), kept, Wide(0.5));
    CHECK(largest_error(y, expected, 1e-3) < tolerance);
    product_backward<T>(Execution{}, x.data(), dy.data(), dx.data(), before.data(), shape, kept, Wide(0.25));
    CHECK(largest_error(dx, slopes, 1e-3) < tolerance);
}
}  // namespace

TEST_CASE("products and their gradients agree with plain loops for every pattern of axes, with zeros", "[kernels]") {
    for (const Shape& kept : {Shape{1, 1, 1}, Shape{3, 1, 1}, Shape{1, 4, 1}, Shape{1, 1, 5}, Shape{3, 4, 1},
                              Shape{3, 1, 5}, Shape{1, 4, 5}, Shape{3, 4, 5}})
        check_products<double>({3, 4, 5}, kept, 1e-12);
    check_products<float>({3, 70}, {1, 70}, 1e-5);
    check_products<Half>({2, 5}, {2, 1}, 2e-3);
    check_products<double>({1}, {1}, 1e-12);
    check_products<double>({0, 3}, {0, 1}, 1e-12);
}

TEST_CASE("a product of no elements is the factor", "[kernels]") {
    std::vector<double> y(3);
    product_forward<double>(Execution{}, nullptr, Shape{3, 0}, y.data(), Shape{3, 1}, WideProduct<double>(0.5));
    CHECK(y == std::vector<double>{0.5, 0.5, 0.5});
}

TEST_CASE("products give the same bits for any thread count", "[kernels]") {
    const auto x = normal_data<float>(300 * 20 * 70, 6), dy = normal_data<float>(300 * 70, 7);
    CHECK(threads_agree([&](const Execution& execution) {
        std::vector<float> out(x.size() + dy.size());
        std::vector<WideProduct<float>> before(x.size());
        const WideProduct<float> one;
        product_forward(execution, x.data(), Shape{300, 20, 70}, out.data(), Shape{300, 1, 70}, one);
        product_backward(execution, x.data(), dy.data(), out.data() + dy.size(), before.data(), Shape{300, 20, 70},
                         Shape{300, 1, 70}, one);
        return out;
    }));
}

TEST_CASE("only the whole of a product can leave the range", "[kernels]") {
    const auto product = [](const std::vector<float>& x, double alpha) {
        float y = 0.0f;
        product_forward<float>(Execution{}, x.data(), Shape{x.size()}, &y, Shape{1}, WideProduct<float>(alpha));
        return y;
    };
    CHECK(product({0x1p100f, 0x1p100f, -0x1p-100f, 0x1p-101f}, 1.0) == -0.5f);
    CHECK(product({0x1p-100f, 0x1p-100f, 0x1p100f, 0x1p101f}, 1.0) == 2.0f);
    CHECK(product({0x1p100f, 0x1p100f, 0.0f}, 0x1p900) == 0.0f);
    CHECK(product({0x1p-149f, 3.0f}, 0x1p140) == 3.0f * 0x1p-9f);  // a subnormal element
    CHECK(product({-0x1p100f, 0x1p100f}, 1.0) == -std::numeric_limits<float>::infinity());
    CHECK(product({0x1p-100f, 0x1p-100f}, 1.0) == 0.0f);
    CHECK(std::isnan(product({0.0f, std::numeric_limits<float>::infinity()}, 1.0)));
    CHECK(WideProduct<float>::power(0x1p1000, 1000000).value() == std::numeric_limits<float>::infinity());
    CHECK(WideProduct<double>::power(3.0, 5).value() == 243.0);
}
