// SPDX-License-Identifier: MIT
#include <unitscale/kernels/exponential.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

using namespace unitscale;
using namespace unitscale::kernels;

TEST_CASE("exponential in float is within 1e-7 of the double one and right at the ends of its range", "[kernels]") {
    double worst = 0.0;
    for (double x = -87.0; x < 88.7; x += 0.00037) {
        const auto rounded = static_cast<float>(x);
        const double exact = std::exp(static_cast<double>(rounded));
        worst = std::max(worst, std::abs(static_cast<double>(exponential(rounded)) / exact - 1.0));
    }
    CHECK(worst < 1e-7);
    CHECK(worst > 1e-9);  // the float version was called

    const float infinity = std::numeric_limits<float>::infinity();
    CHECK(exponential(0.0f) == 1.0f);
    CHECK(exponential(-infinity) == 0.0f);
    CHECK(exponential(-1e30f) == 0.0f);
    CHECK(exponential(infinity) == infinity);
    CHECK(exponential(88.8f) == infinity);
    CHECK(exponential(1e30f) == infinity);
    CHECK(std::isnan(exponential(std::numeric_limits<float>::quiet_NaN())));
    CHECK(exponential(-100.0f) == Approx(std::exp(-100.0)).epsilon(0.02));  // subnormal
}

#if UNITSCALE_X86
namespace {

UNITSCALE_TARGET_AVX512 void exponentials(const float* x, float* y) {
    store_avx512(y, exponential_512(load_avx512(x)));
}
UNITSCALE_TARGET_AVX2 void exponentials_avx2(const float* x, float* y) {
    __m256 values[4];
    for (std::size_t v = 0; v < 4; ++v) values[v] = load_avx2(x + 8 * v);
    exponentials_256(values);
    for (std::size_t v = 0; v < 4; ++v) store_avx2(y + 8 * v, values[v]);
}
UNITSCALE_TARGET_AVX2 void fused_exponentials(const float* x, float* y) {
    for (std::size_t l = 0; l < 32; ++l) y[l] = exponential<true>(x[l]);
}

}  // namespace

TEST_CASE("exponentials in registers have the bits of one, for every 97th float", "[kernels]") {
    if (active_isa() == Isa::baseline) return;
    std::size_t different = 0, different_avx2 = 0;
    for (std::uint64_t word = 0; word < (std::uint64_t{1} << 32); word += 32 * 97) {
        std::array<float, 32> x, y, z;
        for (std::size_t l = 0; l < 32; ++l) {
            const float value = std::bit_cast<float>(static_cast<std::uint32_t>(word + 97 * l));
            x[l] = std::isnan(value) ? std::numeric_limits<float>::quiet_NaN() : value;
        }
        if (word == 0) x[1] = std::numeric_limits<float>::infinity(), x[2] = -x[1];
        fused_exponentials(x.data(), z.data());
        exponentials_avx2(x.data(), y.data());
        different_avx2 += std::memcmp(y.data(), z.data(), sizeof y) != 0;
        if (active_isa() != Isa::avx512) continue;
        exponentials(x.data(), y.data());
        exponentials(x.data() + 16, y.data() + 16);
        different += std::memcmp(y.data(), z.data(), sizeof y) != 0;
    }
    CHECK(different == 0);
    CHECK(different_avx2 == 0);
}
#endif
