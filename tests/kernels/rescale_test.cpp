// SPDX-License-Identifier: MIT
#include <unitscale/kernels/rescale.hpp>

#include "support/catch.hpp"

#include <unitscale/tensor/fill.hpp>

#include <cmath>
#include <limits>
#include <vector>

using namespace unitscale;
using kernels::DataNorm;

TEMPLATE_TEST_CASE("rescale gives the bits of set_scaling, for any ratio and thread count, in place too", "", double,
                   float, Half, BFloat16) {
    constexpr std::size_t n = 40001;
    auto x = normal<TestType>({n}, {1, 2});
    x(3) = TestType(std::numeric_limits<float>::infinity());
    x(4) = TestType(-0.0f);
    for (const double from : {1.0, 0.5, 0x1p-40, 3.0, 0x1p127})
        for (const double to : {1.0, 4.0, 0x1p9, 0.7, 0x1p-126}) {
            INFO("from " << from << " to " << to);
            x.set_scale(from);
            const Tensor<TestType> want = set_scaling(x, to);
            for (const int threads : {1, 2}) {
                Tensor<TestType> y = x;
                kernels::rescale<TestType>({threads, nullptr}, threads == 1 ? x.data() : y.data(), y.data(), n, from,
                                           to);
                std::size_t different = 0;
                for (std::size_t i = 0; i < n; ++i)
                    different +=
                        std::bit_cast<Code<TestType>>(y(i)) == std::bit_cast<Code<TestType>>(want(i)) ? 0u : 1u;
                CHECK(different == 0);
            }
        }
}

TEMPLATE_TEST_CASE("data_norm: largest magnitude, mean magnitude, root mean square", "", double, float, Half,
                   BFloat16) {
    constexpr std::ptrdiff_t n = 100003;
    const auto x = normal<TestType>({n}, {1, 2}, 3.0);
    double most = 0.0, sum = 0.0, squares = 0.0;
    for (const TestType v : x.span()) {
        const double size = std::abs(static_cast<double>(v));
        most = std::max(most, size);
        sum += size;
        squares += size * size;
    }
    const Execution one{}, two{2, nullptr};
    CHECK(kernels::data_norm(one, DataNorm::max, x.data(), n) == most);
    CHECK(kernels::data_norm(one, DataNorm::l1, x.data(), n) == Approx(sum / n).epsilon(1e-12));
    CHECK(kernels::data_norm(one, DataNorm::l2, x.data(), n) == Approx(std::sqrt(squares / n)).epsilon(1e-12));
    for (const DataNorm norm : {DataNorm::max, DataNorm::l1, DataNorm::l2})
        CHECK(kernels::data_norm(one, norm, x.data(), n) == kernels::data_norm(two, norm, x.data(), n));
}

TEST_CASE("data_norm: at the ends of float's range, of no elements, of infinity and of NaN") {
    const Execution one{};
    for (const float size : {1e-40f, 3e38f}) {
        const std::vector<float> x(100, -size);
        for (const DataNorm norm : {DataNorm::max, DataNorm::l1, DataNorm::l2})
            CHECK(kernels::data_norm(one, norm, x.data(), 100) == Approx(static_cast<double>(size)).epsilon(1e-12));
    }
    const std::vector<float> infinite = {1.0f, -std::numeric_limits<float>::infinity()}, nan = {1.0f, std::nanf("")};
    for (const DataNorm norm : {DataNorm::max, DataNorm::l1, DataNorm::l2}) {
        CHECK(std::isinf(kernels::data_norm(one, norm, infinite.data(), 2)));
        CHECK(std::isnan(kernels::data_norm(one, norm, nan.data(), 2)));
    }
    CHECK(kernels::data_norm(one, DataNorm::max, nan.data(), 0) == 0.0);
    CHECK(std::isnan(kernels::data_norm(one, DataNorm::l1, nan.data(), 0)));
    CHECK(std::isnan(kernels::data_norm(one, DataNorm::l2, nan.data(), 0)));
}
