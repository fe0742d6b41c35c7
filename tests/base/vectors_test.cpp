// SPDX-License-Identifier: MIT
#include <unitscale/base/cpu.hpp>
#include <unitscale/base/multiply_add.hpp>
#include <unitscale/base/vectors.hpp>

#include "support/catch.hpp"

#include <array>
#include <cstddef>

using namespace unitscale;

namespace {

/// 16 numbers from the middle of a cache line, where no vector is aligned, with guards around.
template <class T>
struct Numbers {
    std::array<T, 18> line{};
    explicit Numbers(double first, double step) {
        for (std::size_t i = 0; i < line.size(); ++i) line[i] = static_cast<T>(first + step * static_cast<double>(i));
    }
    [[nodiscard]] T* data() { return line.data() + 1; }
};

/// Whether `count` results are a b + c, with one rounding or (where the build does not fuse) with two, and all other
/// elements are untouched.
template <class T>
void check_sums(Numbers<T>& result, Numbers<T>& a, Numbers<T>& b, Numbers<T>& c, std::size_t count, bool fused) {
    const Numbers<T> untouched(7.0, 0.0);
    CHECK(result.line[0] == untouched.line[0]);
    for (std::size_t i = 0; i < count; ++i) {
        const T sum = fused ? multiply_add<true>(a.data()[i], b.data()[i], c.data()[i])
                            : multiply_add(a.data()[i], b.data()[i], c.data()[i]);
        CHECK(result.data()[i] == sum);
    }
    for (std::size_t i = count; i < 17; ++i) CHECK(result.data()[i] == untouched.line[0]);
}

template <class T>
struct Case {
    // Inexact products: fused and separate results differ.
    Numbers<T> a{1.0 / 3.0, 0.7}, b{3.3, 0.1}, c{-1.1, -0.3}, result{7.0, 0.0};
};

}  // namespace

TEMPLATE_TEST_CASE("128 bits are loaded, multiplied, added and stored anywhere", "[kernels]", float, double) {
    constexpr std::size_t lanes = 16 / sizeof(TestType);
    Case<TestType> of;
    store_128(of.result.data(),
              multiply_add_128<TestType>(load_128(of.a.data()), load_128(of.b.data()), load_128(of.c.data())));
    check_sums(of.result, of.a, of.b, of.c, lanes, false);

    Case<TestType> one;
    store_128(one.result.data(),
              multiply_add_128<TestType>(TestType(0.1), load_128(one.b.data()), load_128(one.c.data())));
    one.a = Numbers<TestType>(0.1, 0.0);
    check_sums(one.result, one.a, one.b, one.c, lanes, false);
}

#if UNITSCALE_X86

namespace {

template <class T>
UNITSCALE_TARGET_AVX2 void run_avx2(Case<T>& of) {
    store_avx2(of.result.data(),
               fused_avx2(load_avx2(of.a.data()), load_once_avx2(of.b.data()), load_avx2(of.c.data())));
}
template <class T>
UNITSCALE_TARGET_AVX2 void run_broadcast_avx2(T x, Numbers<T>& to) {
    store_avx2(to.data(), broadcast_avx2(x));
}
template <class T>
UNITSCALE_TARGET_AVX512 void run_avx512(Case<T>& of) {
    store_avx512(of.result.data(),
                 fused_avx512(load_avx512(of.a.data()), load_once_avx512(of.b.data()), load_avx512(of.c.data())));
}
template <class T>
UNITSCALE_TARGET_AVX512 void run_masked_avx512(Case<T>& of, unsigned mask) {
    const auto a = load_avx512(mask, of.a.data()), b = load_avx512(mask, of.b.data()),
               c = load_avx512(mask, of.c.data());
    store_avx512(mask, of.result.data(), fused_avx512(a, b, c));
}
template <class T>
UNITSCALE_TARGET_AVX512 void run_broadcast_avx512(T x, Numbers<T>& to) {
    store_avx512(to.data(), broadcast_avx512(x));
}
/// The expected result, for all lanes, of a load of the lanes in `mask`.
template <class T>
UNITSCALE_TARGET_AVX512 void load_masked(Numbers<T>& from, unsigned mask, Numbers<T>& to) {
    store_avx512(to.data(), load_avx512(mask, from.data()));
}

}  // namespace

TEMPLATE_TEST_CASE("256 bits likewise", "[kernels]", float, double) {
    if (active_isa() < Isa::avx2) return;
    constexpr std::size_t lanes = 32 / sizeof(TestType);
    Case<TestType> of;
    run_avx2(of);
    check_sums(of.result, of.a, of.b, of.c, lanes, true);
    Numbers<TestType> same(7.0, 0.0);
    run_broadcast_avx2(TestType(0.1), same);
    for (std::size_t i = 0; i < lanes; ++i) CHECK(same.data()[i] == TestType(0.1));
    CHECK(same.data()[lanes] == TestType(7));
}

TEMPLATE_TEST_CASE("512 bits likewise, and of some lanes only", "[kernels]", float, double) {
    if (active_isa() < Isa::avx512) return;
    constexpr std::size_t lanes = 64 / sizeof(TestType);
    Case<TestType> of;
    run_avx512(of);
    check_sums(of.result, of.a, of.b, of.c, lanes, true);
    Case<TestType> some;
    run_masked_avx512(some, 0b101);
    CHECK(some.result.data()[0] == of.result.data()[0]);
    CHECK(some.result.data()[1] == TestType(7));
    CHECK(some.result.data()[2] == of.result.data()[2]);
    for (std::size_t i = 3; i < 17; ++i) CHECK(some.result.data()[i] == TestType(7));
    Numbers<TestType> part(7.0, 0.0);
    load_masked(some.a, 0b10, part);
    for (std::size_t i = 0; i < lanes; ++i) CHECK(part.data()[i] == (i == 1 ? some.a.data()[1] : TestType(0)));
    Numbers<TestType> same(7.0, 0.0);
    run_broadcast_avx512(TestType(0.1), same);
    for (std::size_t i = 0; i < lanes; ++i) CHECK(same.data()[i] == TestType(0.1));
}

#endif
