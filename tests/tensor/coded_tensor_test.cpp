// SPDX-License-Identifier: MIT
#include <unitscale/tensor/coded_tensor.hpp>

#include "support/catch.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>

using namespace unitscale;

TEMPLATE_TEST_CASE("a coded tensor stands for the numbers of its codes, times its scale", "", float, double, Half,
                   BFloat16) {
    for (const FloatFormat& format : {e4m3, e5m2, e2m1}) {
        const std::size_t count = std::size_t{1} << format.code_bits();
        CodedTensor coded{.format = format, .codes = Tensor<std::uint8_t>(Shape{count})};
        for (std::size_t i = 0; i < count; ++i) coded.codes.data()[i] = static_cast<std::uint8_t>(i);
        coded.codes.set_scale(0.25);
        coded.codes.set_any_scale(true);
        const Tensor<TestType> numbers = decoded<TestType>(coded);
        CHECK(numbers.scale() == 0.25);
        CHECK(numbers.any_scale());
        for (std::size_t i = 0; i < count; ++i) {
            const auto want = static_cast<double>(decode(format, static_cast<std::uint32_t>(i)));
            const double got = widest(numbers.data()[i]);
            REQUIRE((got == want || (std::isnan(got) && std::isnan(want))));
        }
    }
}
