// SPDX-License-Identifier: MIT
#include <unitscale/tensor/fill.hpp>
#include <unitscale/tensor/print.hpp>

#include "support/catch.hpp"

#include <cmath>
#include <cstdint>
#include <iomanip>
#include <limits>
#include <sstream>
#include <string>

using namespace unitscale;

namespace {

template <class T>
std::string printed(const Tensor<T>& tensor) {
    std::ostringstream out;
    out << tensor;
    return out.str();
}

template <class T>
Tensor<T> counting(const Shape& shape) {
    Tensor<T> tensor(shape);
    for (std::size_t i = 0; i < tensor.size(); ++i) tensor.data()[i] = element_cast<T>(static_cast<std::int64_t>(i));
    return tensor;
}

}  // namespace

TEST_CASE("a tensor prints its type, shape and aligned values", "[tensor]") {
    const Tensor<float> x({2, 3}, {1.0f, 2.5f, -0.125f, 0.5f, 1000.0f, std::nanf("")});
    CHECK(printed(x) ==
          "float [2,3]\n"
          "[[     1,    2.5, -0.125],\n"
          " [   0.5,   1000,    nan]]");
    CHECK(printed(Tensor<double>(Shape{}, {2.0 / 3.0})) == "double []\n0.6667");
    CHECK(printed(Tensor<float>({1}, {-std::numeric_limits<float>::infinity()})) == "float [1]\n[-inf]");
    CHECK(printed(counting<float>({2, 2, 2})) ==
          "float [2,2,2]\n"
          "[[[0, 1],\n"
          "  [2, 3]],\n"
          "\n"
          " [[4, 5],\n"
          "  [6, 7]]]");
}

TEST_CASE("a scale other than 1 is shown, and the values with it", "[tensor]") {
    Tensor<float> x({2}, {1.0f, 6.0f});
    x.set_scale(0.25);
    CHECK(printed(x) == "float [2], values = data * 0.25\n[0.25,  1.5]");
}

TEST_CASE("every element type prints numbers", "[tensor]") {
    CHECK(printed(Tensor<Half>({2}, {Half(0.5f), Half(-65504.0f)})) == "fp16 [2]\n[      0.5, -6.55e+04]");
    CHECK(printed(Tensor<BFloat16>({1}, {BFloat16(1.5f)})) == "bf16 [1]\n[1.5]");
    CHECK(printed(Tensor<Minifloat<e4m3>>({2}, {Minifloat<e4m3>(448.0f), Minifloat<e4m3>(-1.0f)})) ==
          "e4m3 [2]\n[448,  -1]");
    CHECK(printed(Tensor<std::int32_t>({3}, {7, -123456, 0})) == "int32 [3]\n[      7, -123456,       0]");
    CHECK(printed(Tensor<std::uint8_t>({2}, {65, 255})) == "uint8 [2]\n[ 65, 255]");
    CHECK(printed(Tensor<std::int8_t>({1}, {-7})) == "int8 [1]\n[-7]");
    CHECK(printed(Tensor<std::uint64_t>({1}, {18446744073709551615u})) == "uint64 [1]\n[18446744073709551615]");
    CHECK(printed(Tensor<bool>({2}, {true, false})) == "bool [2]\n[1, 0]");
    CHECK(printed(Tensor<double>({1}, {-0.0})) == "double [1]\n[-0]");
}

TEST_CASE("long axes are cut short, without losing the ends", "[tensor]") {
    CHECK(printed(counting<std::int32_t>({8})) == "int32 [8]\n[0, 1, 2, 3, 4, 5, 6, 7]");
    CHECK(printed(counting<std::int32_t>({1000})) == "int32 [1000]\n[  0,   1,   2, ..., 997, 998, 999]");
    CHECK(printed(counting<std::int32_t>({9, 2})) ==
          "int32 [9,2]\n"
          "[[ 0,  1],\n"
          " [ 2,  3],\n"
          " [ 4,  5],\n"
          " ...,\n"
          " [12, 13],\n"
          " [14, 15],\n"
          " [16, 17]]");
}

TEST_CASE("empty tensors print their shape", "[tensor]") {
    CHECK(printed(Tensor<float>()) == "float [0]\n[]");
    CHECK(printed(Tensor<float>(Shape{2, 0, 3})) == "float [2,0,3]\n[]");
}

TEST_CASE("the stream's own format neither shows nor changes", "[tensor]") {
    std::ostringstream out;
    out << std::fixed << std::setprecision(1) << std::hex << Tensor<float>({1}, {0.25f}) << ' '
        << Tensor<std::int32_t>({1}, {31}) << ' ' << 0.5 << ' ' << 31;
    CHECK(out.str() == "float [1]\n[0.25] int32 [1]\n[31] 0.5 1f");
}
