// SPDX-License-Identifier: MIT
#include <unitscale/kernels/hadamard.hpp>

#include "kernels/kernel_checks.hpp"
#include "support/error_of.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

using namespace unitscale;
using namespace unitscale::kernels;
using unitscale::test::error_of;

namespace {

/// Lines of `length` numbers, rotated by the definition.
template <class T>
std::vector<T> expected(const HadamardRotation& rotation, const std::vector<T>& x) {
    std::vector<T> y(x.size());
    for (std::size_t i = 0; i < x.size(); i += static_cast<std::size_t>(rotation.size))
        rotate_run_naive(rotation, x.data() + i, y.data() + i);
    return y;
}

template <class T>
void check_rotated(const HadamardRotation& rotation, std::ptrdiff_t lines, std::ptrdiff_t length, double tolerance) {
    const auto x = normal_data<T>(static_cast<std::size_t>(lines * length), 3);
    const std::vector<T> wanted = expected(rotation, x);
    std::vector<T> y = x;
    rotate<T>(Execution{}, rotation, y.data(), lines, length, length, 1);
    for (std::size_t i = 0; i < x.size(); ++i)
        CHECK(std::abs(static_cast<double>(y[i]) - static_cast<double>(wanted[i])) <= tolerance);

    // The lines as columns of a matrix, in place.
    std::vector<T> turned(x.size());
    for (std::ptrdiff_t l = 0; l < lines; ++l)
        for (std::ptrdiff_t k = 0; k < length; ++k)
            turned[static_cast<std::size_t>(k * lines + l)] = x[static_cast<std::size_t>(l * length + k)];
    rotate<T>(Execution{.threads = 2}, rotation, turned.data(), lines, length, 1, lines);
    for (std::ptrdiff_t l = 0; l < lines; ++l)
        for (std::ptrdiff_t k = 0; k < length; ++k)
            CHECK(turned[static_cast<std::size_t>(k * lines + l)] == y[static_cast<std::size_t>(l * length + k)]);
}

}  // namespace

TEST_CASE("a rotation agrees with the matrix, along rows and along columns", "[kernels]") {
    for (const HadamardRotation& rotation :
         {HadamardRotation{.size = 16}, transformer_engine_rotation, HadamardRotation{.size = 32},
          HadamardRotation{.size = 32, .signs = 0x9E3779B9u}}) {
        check_rotated<double>(rotation, 3, 64, 1e-14);
        check_rotated<float>(rotation, 37, 32, 2e-6);
        check_rotated<float>(rotation, 1, 160, 2e-6);
        check_rotated<BFloat16>(rotation, 5, 32, 0.04);
    }
}

TEST_CASE("the rotation's matrix: rows of Sylvester's matrix, with the published signs", "[kernels]") {
    std::vector<double> run(16), y(16);
    run[5] = 1.0;
    rotate_run_naive<double>({.size = 16}, run.data(), y.data());
    // Row 5 = 0101b: + where column & 5 has an even number of ones.
    const std::vector<double> row5 = {1, -1, 1, -1, -1, 1, -1, 1, 1, -1, 1, -1, -1, 1, -1, 1};
    for (std::size_t j = 0; j < 16; ++j) CHECK(y[j] == 0.25 * row5[j]);
    rotate_run_naive(transformer_engine_rotation, run.data(), y.data());
    for (std::size_t j = 0; j < 16; ++j) CHECK(y[j] == -0.25 * row5[j]);  // the sixth sign is -
}

TEST_CASE("rotated operands have the product of the operands", "[kernels]") {
    for (const HadamardRotation& rotation : {transformer_engine_rotation, HadamardRotation{.size = 32, .signs = 77}}) {
        const auto a = normal_data<float>(96, 1), b = normal_data<float>(96, 2);
        std::vector<float> ra = a, rb = b;
        rotate<float>(Execution{}, rotation, ra.data(), 1, 96, 96, 1);
        rotate<float>(Execution{}, rotation, rb.data(), 1, 96, 96, 1);
        double plain = 0.0, rotated = 0.0, size = 0.0;
        for (std::size_t i = 0; i < 96; ++i) {
            plain += static_cast<double>(a[i]) * b[i];
            rotated += static_cast<double>(ra[i]) * rb[i];
            size += std::abs(static_cast<double>(a[i]) * b[i]);
        }
        CHECK(std::abs(plain - rotated) <= 1e-6 * size);
        CHECK(ra != a);
    }
}

TEST_CASE("one large number is spread over its run and leaves other runs alone", "[kernels]") {
    std::vector<float> x(32);
    x[3] = 40.0f;
    std::vector<float> y = x;
    rotate<float>(Execution{}, transformer_engine_rotation, y.data(), 1, 32, 32, 1);
    for (std::size_t i = 0; i < 16; ++i) CHECK(std::abs(y[i]) == 10.0f);
    for (std::size_t i = 16; i < 32; ++i) CHECK(y[i] == 0.0f);
    x[20] = std::numeric_limits<float>::quiet_NaN();
    y = x;
    rotate<float>(Execution{}, transformer_engine_rotation, y.data(), 1, 32, 32, 1);
    for (std::size_t i = 0; i < 16; ++i) CHECK(std::abs(y[i]) == 10.0f);
    for (std::size_t i = 16; i < 32; ++i) CHECK(std::isnan(y[i]));
}

TEST_CASE("a short last run is not rotated, and a size other than 16 and 32 is an error", "[kernels]") {
    const auto x = normal_data<float>(40, 1);
    std::vector<float> y = x, whole(x.begin(), x.begin() + 32);
    rotate<float>(Execution{}, {.size = 16}, y.data(), 1, 40, 40, 1);
    rotate<float>(Execution{}, {.size = 16}, whole.data(), 1, 32, 32, 1);
    CHECK(std::equal(whole.begin(), whole.end(), y.begin()));
    CHECK(std::equal(x.begin() + 32, x.end(), y.begin() + 32));
    rotate<float>(Execution{}, {.size = 32}, y.data(), 0, 32, 32, 1);
    rotate<float>(Execution{}, {.size = 32}, y.data(), 1, 0, 0, 1);
    CHECK(error_of([&] { rotate<float>(Execution{}, {.size = 8}, y.data(), 1, 32, 32, 1); }) ==
          "rotate: rotation of 8; expected 16 or 32");
}
