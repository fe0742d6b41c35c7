// SPDX-License-Identifier: MIT
#include <unitscale/tensor/backend.hpp>

#include "support/catch.hpp"

#include <cstdint>
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
    STATIC_REQUIRE(std::is_same_v<Array<float>::allocator_type, PoolAllocator<float>>);
}
