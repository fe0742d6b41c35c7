// SPDX-License-Identifier: MIT
#include <unitscale/tensor/cast.hpp>
#include <unitscale/tensor/fill.hpp>

#include "support/catch.hpp"

#include <cmath>
#include <cstdint>

using namespace unitscale;

TEST_CASE("casts keep shape, scale and flag", "[tensor]") {
    Tensor<float> x({2, 2}, {1, -2, 0.5f, 3});
    x.set_scale(0.25);
    x.set_any_scale(true);
    const auto y = cast<Half>(x);
    CHECK(y.shape() == Shape{2, 2});
    CHECK(y.scale() == 0.25);
    CHECK(y.any_scale());
    CHECK(static_cast<float>(y(0, 1)) == -2.0f);
    const auto pool = std::make_shared<MemoryPool>();
    { const auto pooled = cast<double>(x, pool); }
    CHECK(pool->system_allocations() == 1);
}

TEST_CASE("a cast to a wider type and back changes nothing", "[tensor]") {
    const auto narrow = normal<Half>({500}, {1, 1});
    const auto brain = normal<BFloat16>({500}, {1, 1});
    const auto single = normal<float>({500}, {1, 1});
    std::size_t same = 0;
    const auto half_back = cast<Half>(cast<float>(narrow));
    const auto brain_back = cast<BFloat16>(cast<double>(brain));
    const auto single_back = cast<float>(cast<double>(single));
    for (std::size_t i = 0; i < 500; ++i)
        same += half_back(i) == narrow(i) && brain_back(i) == brain(i) && single_back(i) == single(i);
    CHECK(same == 500);
}

TEST_CASE("casts round to nearest even and overflow to infinity", "[tensor]") {
    const Tensor<float> x({6}, {1.0f + 0x1p-11f, 1.0f + 0x1p-11f + 0x1p-20f, 1.0f + 0x3p-11f, 65519.0f, 65520.0f, -1e6f});
    const auto y = cast<float>(cast<Half>(x));
    CHECK(y(0) == 1.0f);
    CHECK(y(1) == 1.0f + 0x1p-10f);
    CHECK(y(2) == 1.0f + 0x1p-9f);
    CHECK(y(3) == 65504.0f);
    CHECK((std::isinf(y(4)) && y(4) > 0));
    CHECK((std::isinf(y(5)) && y(5) < 0));
    CHECK(std::isinf(cast<float>(Tensor<double>({1}, {1e300}))(0)));
    CHECK(std::isnan(static_cast<float>(cast<BFloat16>(Tensor<float>({1}, {std::nanf("")}))(0))));
}

TEST_CASE("a double is rounded to a 16-bit type once", "[tensor]") {
    // Just above a tie of the half format: rounding to float first would reach the tie and then round down to even.
    const double above = 1.0 + 0x1p-11 + 0x1p-40;
    CHECK(static_cast<float>(element_cast<Half>(above)) == 1.0f + 0x1p-10f);
    const double below = 1.0 + 0x3p-11 - 0x1p-40;
    CHECK(static_cast<float>(element_cast<Half>(below)) == 1.0f + 0x1p-10f);
    CHECK(static_cast<float>(element_cast<BFloat16>(1.0 + 0x1p-8 + 0x1p-40)) == 1.0f + 0x1p-7f);
    CHECK(static_cast<float>(element_cast<Half>(-above)) == -1.0f - 0x1p-10f);
    CHECK(static_cast<float>(element_cast<Half>(0x1p-25 + 0x1p-60)) == 0x1p-24f);
    CHECK(static_cast<float>(element_cast<Half>(0x1p-25)) == 0.0f);
    CHECK(static_cast<float>(element_cast<Half>(1e-320)) == 0.0f);
    CHECK(std::isinf(static_cast<float>(element_cast<BFloat16>(-1e300))));
    CHECK(std::isnan(static_cast<float>(element_cast<Half>(std::nan("")))));
    CHECK(static_cast<float>(element_cast<Half>(1.5)) == 1.5f);
}

TEST_CASE("casts between integers and floating point follow the language", "[tensor]") {
    const auto y = cast<float>(Tensor<std::int32_t>({2}, {3, -7}));
    CHECK((y(0) == 3.0f && y(1) == -7.0f));
}
