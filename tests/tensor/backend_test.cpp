// SPDX-License-Identifier: MIT
#include <unitscale/formats/code.hpp>
#include <unitscale/tensor/backend.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

using namespace unitscale;

TEST_CASE("sums are formed in float, of doubles in double", "[tensor]") {
    STATIC_REQUIRE(std::is_same_v<Accum<float>, float>);
    STATIC_REQUIRE(std::is_same_v<Accum<Half>, float>);
    STATIC_REQUIRE(std::is_same_v<Accum<BFloat16>, float>);
    STATIC_REQUIRE(std::is_same_v<Accum<double>, double>);
}

TEST_CASE("the storage types are the two 16-bit formats", "[tensor]") {
    STATIC_REQUIRE(sizeof(Half) == 2);
    STATIC_REQUIRE(sizeof(BFloat16) == 2);
    CHECK(static_cast<float>(Half(65504.0f)) == 65504.0f);
    CHECK(static_cast<float>(Half(1.0f + 0x1p-11f)) == 1.0f);
    CHECK(static_cast<float>(BFloat16(0x1p127f)) == 0x1p127f);
    CHECK(static_cast<float>(BFloat16(1.0f + 0x1p-8f)) == 1.0f);
}

namespace {

/// Floats at, half way between and beside the numbers of T's 65536 codes, and 100000 floats of every exponent. Counts
/// codes that differ between T's own conversion and `encode`, and codes with different values. NaN need only be NaN.
template <class T>
std::size_t count_different_conversions(const FloatFormat& format) {
    std::vector<std::uint32_t> words;
    std::size_t wrong = 0;
    for (std::uint32_t code = 0; code < 0x10000; ++code) {
        const float value = decode(format, code);
        const auto other = static_cast<float>(Eigen::numext::bit_cast<T>(static_cast<std::uint16_t>(code)));
        const auto word = std::bit_cast<std::uint32_t>(value);
        wrong += word != std::bit_cast<std::uint32_t>(other) && !(is_nan(value) && is_nan(other)) ? 1u : 0u;
        if (is_nan(value) || code == 0xFFFF) continue;
        const auto next = std::bit_cast<std::uint32_t>(decode(format, code + 1));
        for (const std::uint32_t step : {~0u, 0u, 1u}) {
            words.push_back(word + step);
            words.push_back(word / 2 + next / 2 + step);
        }
    }
    for (std::size_t i = 0; i < 100000; ++i) words.push_back(random_word({41, 42}, i));
    for (const std::uint32_t word : words) {
        const auto x = std::bit_cast<float>(word);
        const auto found = Eigen::numext::bit_cast<std::uint16_t>(static_cast<T>(x));
        const std::uint32_t expected = encode(format, x, {.overflow = Overflow::to_infinity});
        wrong += is_nan(x) ? !is_nan(decode(format, found)) : found != expected;
    }
    return wrong;
}

}  // namespace

TEST_CASE("Eigen's half and bfloat16 are fp16 and bf16, code by code and rounding by rounding", "[tensor]") {
    CHECK(count_different_conversions<Half>(fp16) == 0);
    CHECK(count_different_conversions<BFloat16>(bf16) == 0);
}

TEST_CASE("maps read row-major memory", "[tensor]") {
    std::vector<float> data{1, 2, 3, 4, 5, 6};
    MatrixMap<float> matrix(data.data(), 2, 3);
    CHECK(matrix(1, 0) == 4.0f);
    matrix(0, 2) = 9.0f;
    CHECK(data[2] == 9.0f);
    const ConstMatrixMap<float> read(data.data(), 3, 2);
    CHECK(read(1, 1) == 4.0f);
    std::vector<float> longer(100, 1.0f);
    ArrayMap<float>(longer.data(), 100) *= 2.0f;
    CHECK(ConstArrayMap<float>(longer.data(), 100).sum() == 200.0f);
}

TEST_CASE("the array container is row-major, aligned, and of one type for every flag", "[tensor]") {
    Array<float> array = Array<float>::from_shape({3, 5});
    CHECK(array.strides()[0] == 5);
    CHECK(reinterpret_cast<std::uintptr_t>(array.data()) % 64 == 0);
    STATIC_REQUIRE(std::is_same_v<Array<float>::allocator_type, ArrayAllocator<float>>);
}

TEMPLATE_TEST_CASE("a new array leaves its memory as it is, and a copied one gives its memory back to the system",
                   "[tensor]", Half, BFloat16, float) {
    using Storage = xt::uvector<TestType, ArrayAllocator<TestType>>;
    const auto pool = std::make_shared<MemoryPool>();
    const std::size_t count = 1000;
    {
        Storage written(count, ArrayAllocator<TestType>(pool));
        std::fill(written.begin(), written.end(), TestType(3.0f));
    }
    const Storage fresh(count, ArrayAllocator<TestType>(pool));  // the block of `written`
    CHECK(pool->system_allocations() == 1);
    CHECK(std::count(fresh.begin(), fresh.end(), TestType(3.0f)) == std::ptrdiff_t(count));
    const std::size_t live = pool->live_bytes();
    const Storage copy = fresh;
    CHECK(std::equal(copy.begin(), copy.end(), fresh.begin()));
    CHECK(pool->live_bytes() == live);
}
