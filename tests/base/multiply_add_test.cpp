// SPDX-License-Identifier: MIT
#include <unitscale/base/multiply_add.hpp>

#include "support/catch.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

using namespace unitscale;

namespace {

/// Hides a number from the compiler, which would otherwise compute with it.
template <class T>
T opaque(T x) {
    volatile T hidden = x;
    return hidden;
}

/// (1 + e)^2 - (1 + 2 e), e = 2^-(digits / 2): e^2 in one rounding; 0 in two, because the product is rounded to 1 + 2
/// e.
template <class T>
struct Case {
    static constexpr int digits = std::numeric_limits<T>::digits;
    T e = std::ldexp(T(1), -(digits / 2 + 1));
    T a = opaque(T(1) + e), c = opaque(-(T(1) + 2 * e)), exact = e * e;
};

template <class T, std::size_t bytes>
struct VectorOf {
    typedef T type __attribute__((vector_size(bytes)));
};

}  // namespace

TEMPLATE_TEST_CASE("the build's choice is fused or not, whatever the compiler contracts", "", float, double) {
    const Case<TestType> one;
    REQUIRE(multiply_add(one.a, one.a, one.c) == (has_multiply_add ? one.exact : TestType(0)));
    REQUIRE(multiply_add(-one.a, one.a, -one.c) == (has_multiply_add ? -one.exact : TestType(0)));
    REQUIRE(multiply_add(opaque(TestType(3)), opaque(TestType(5)), opaque(TestType(-7))) == TestType(8));
    STATIC_REQUIRE(std::is_same_v<decltype(multiply_add(one.a, one.a, one.c)), TestType>);
}

TEMPLATE_TEST_CASE("fused is one rounding in every build", "", float, double) {
    const Case<TestType> one;
    REQUIRE(multiply_add<true>(one.a, one.a, one.c) == one.exact);
    std::uint32_t state = 1;
    const auto next = [&state] {
        state = state * 1664525u + 1013904223u;
        return opaque(static_cast<TestType>(state) / TestType(7) - TestType(3e8));
    };
    for (int i = 0; i < 1000; ++i) {
        const TestType a = next(), b = next(), c = next() * next();
        REQUIRE(multiply_add<true>(a, b, c) == std::fma(a, b, c));
    }
}

TEST_CASE("the product of floats does not overflow before the sum where it is fused") {
    const float large = opaque(0x1p100f),
                sum = multiply_add<true>(large, large, opaque(-std::numeric_limits<float>::infinity()));
    REQUIRE(sum == -std::numeric_limits<float>::infinity());
    REQUIRE(std::isnan(multiply_add(opaque(0.0f), opaque(std::numeric_limits<float>::infinity()), 1.0f)));
}

TEMPLATE_TEST_CASE("each lane of a vector is one multiply_add", "", float, double) {
    using Vector = typename VectorOf<TestType, 16>::type;
    constexpr std::size_t lanes = 16 / sizeof(TestType);
    const Case<TestType> one;
    Vector a{}, b{}, c{}, fused{};
    for (std::size_t l = 0; l < lanes; ++l) {
        a[l] = one.a + static_cast<TestType>(l);
        b[l] = one.a - static_cast<TestType>(l);
        c[l] = fused[l] = one.c;
    }
    const Vector before = c;
    multiply_add_lanes<TestType>(a, b, c);
    multiply_add_lanes<TestType, true>(a, b, fused);
    for (std::size_t l = 0; l < lanes; ++l) {
        REQUIRE(c[l] == multiply_add(TestType(a[l]), TestType(b[l]), TestType(before[l])));
        REQUIRE(fused[l] == std::fma(TestType(a[l]), TestType(b[l]), TestType(before[l])));
    }
}
