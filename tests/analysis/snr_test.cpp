// SPDX-License-Identifier: MIT
#include <unitscale/analysis/snr.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/formats/quantise.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

using namespace unitscale;
using namespace unitscale::analysis;

namespace {
/// Signal over noise of a unit normal on the integers -127 to 127 times range / 127, cut off towards zero.
double truncated_int8(double range) {
    const double step = range / 127.0, infinity = std::numeric_limits<double>::infinity();
    double noise = 2.0 * squared_error(range, range, infinity);
    for (int k = 0; k < 127; ++k) noise += 2.0 * squared_error(k * step, k * step, (k + 1) * step);
    return 1.0 / noise;
}
}  // namespace

// The Unit Scaling paper (arXiv:2303.11257, figure 2 and appendix D) prints 2.03 for INT8 with a range of +-180, 14.8
// with +-60, and 1.29e3 for E4, "635 times" the first. Rounding to nearest gives 5.97, 53.8 and 1419, so 238 times.
// Truncated INT8 gives 2.12 and 14.8: the paper most likely truncated. All of it is checked here, as what it is.
TEST_CASE("snr: at unit scale, rounded to nearest, and INT8 as the Unit Scaling paper most likely computed it") {
    CHECK(truncated_int8(180.0) == Approx(2.12).epsilon(0.005));  // printed: 2.03
    CHECK(truncated_int8(60.0) == Approx(14.8).epsilon(0.005));   // printed: 14.8
    CHECK(signal_to_noise(e4m3, 1.0) / find_scaled_format("int8:180").signal_to_noise(1.0) ==
          Approx(238.0).epsilon(0.01));
    CHECK(signal_to_noise(e4m3, 1.0) == Approx(1419.0).epsilon(0.01));
    CHECK(signal_to_noise(e4m3fnuz, 1.0) == Approx(1419.0).epsilon(0.01));
    CHECK(signal_to_noise(e5m2, 1.0) == Approx(358.0).epsilon(0.01));
    CHECK(signal_to_noise(fp16, 1.0) == Approx(2.3e7).epsilon(0.02));
    CHECK(find_scaled_format("int8:180").signal_to_noise(1.0) == Approx(5.97).epsilon(0.02));
    CHECK(find_scaled_format("int8:60").signal_to_noise(1.0) == Approx(53.8).epsilon(0.01));
}

TEST_CASE("snr: integration agrees with sampling, far from unit scale too") {
    constexpr std::size_t samples = 400'000;
    for (const FloatFormat& format : {e4m3, e5m2, e2m1, e3m2, fp16, int8_grid})
        for (const double sigma : {0x1p-10, 0.05, 1.0, 3.0, 100.0, 0x1p17}) {
            double signal = 0.0, noise = 0.0;
            for (std::size_t i = 0; i < samples; ++i) {
                const double x = sigma * random_normal({11, 3}, i);
                const double error = quantise(format, x) - x;
                signal += x * x;
                noise += error * error;
            }
            INFO(name(format) << " at " << sigma);
            CHECK(signal_to_noise(format, sigma) == Approx(signal / noise).epsilon(0.02));
        }
}

TEST_CASE("snr: limits that are known in closed form") {
    // Far below the smallest number the whole signal is lost; far above the largest, nearly the whole.
    CHECK(signal_to_noise(e4m3, 0x1p-20) == Approx(1.0).epsilon(1e-12));
    CHECK(signal_to_noise(e4m3, 0x1p30) == Approx(1.0).epsilon(1e-4));
    // A fine grid of step h that reaches far enough: sigma^2 / (h^2 / 12).
    CHECK(signal_to_noise(int8_grid, 20.0) == Approx(12.0 * 400.0).epsilon(1e-6));
    // A bias lower by one moves the curve by a factor of two.
    CHECK(signal_to_noise(e4m3b11fnuz, 1.0) == Approx(signal_to_noise(e4m3fnuz, 8.0)).epsilon(1e-12));
    // One more mantissa bit quarters the noise, as long as no value leaves the normal range.
    CHECK(signal_to_noise(bf16, 1.0) * 64.0 == Approx(signal_to_noise(tf32, 1.0)).epsilon(1e-4));
    CHECK(signal_to_noise(tf32, 1.0) * 0x1p26 == Approx(signal_to_noise(fp32, 1.0)).epsilon(1e-6));
}

TEST_CASE("snr: the pieces of the integral") {
    const double infinity = std::numeric_limits<double>::infinity();
    CHECK(squared_error(0.0, 0.0, infinity) == Approx(0.5).epsilon(1e-14));  // half of the variance
    CHECK(squared_error(1.0, -30.0, 30.0) == Approx(2.0).epsilon(1e-14));    // variance and squared distance
    CHECK(squared_error(0.3, 0.2, 0.7) + squared_error(0.3, 0.7, 1.4) ==
          Approx(squared_error(0.3, 0.2, 1.4)).epsilon(1e-9));
}

TEST_CASE("snr: block formats by name agree with published figures, and hold at every scale") {
    const auto decibels = [](double ratio) { return 10.0 * std::log10(ratio); };
    struct Figure {
        const char* name;
        double at_one;
    };
    // Unit normals, 1024 x 1024, by the reference implementations of each format (spread over seeds 0.02 dB).
    for (const Figure& figure : {Figure{"mxfp8_e5m2", 25.35},
                                 {"mxfp8_e5m2_rceil", 25.54},
                                 {"mxfp8_e4m3", 30.63},
                                 {"mxfp8_e4m3_ceil", 31.52},
                                 {"mxfp8_e4m3_even", 31.17},
                                 {"mxfp6_e3m2", 25.35},
                                 {"mxfp6_e2m3", 30.94},
                                 {"mxfp6_e2m3_ceil", 28.77},
                                 {"mxfp4", 18.78},
                                 {"mxfp4_ceil", 16.82},
                                 {"mxfp4_rceil", 18.75},
                                 {"mxfp4_even", 19.02},
                                 {"mxint8", 41.67},
                                 {"nvfp4", 20.43},
                                 {"nvfp4_torchao", 20.43},
                                 {"nvfp4_square", 19.07},
                                 {"fp8_tile", 31.52},
                                 {"fp8_tile_torchao", 31.80},
                                 {"fp8_square_torchao", 31.55},
                                 {"float8_tensor", 31.54}}) {
        INFO(figure.name);
        const ScaledFormat format = find_scaled_format(figure.name);
        CHECK(format.label == figure.name);
        REQUIRE(format.blocks);
        CHECK(decibels(format.signal_to_noise(1.0)) == Approx(figure.at_one).margin(0.06));
        // Scales follow the tensor: a power of two changes nothing, far from 1 too.
        CHECK(format.signal_to_noise(0x1p-20) == Approx(format.signal_to_noise(1.0)).epsilon(1e-3));
        CHECK(format.signal_to_noise(0x1p+15) == Approx(format.signal_to_noise(1.0)).epsilon(1e-3));
    }
    // Another matrix moves the ratio by about 1 %.
    CHECK(signal_to_noise(mxfp4, 1.0, NormalMatrix(256, 1024, {2, 9})) ==
          Approx(find_scaled_format("mxfp4").signal_to_noise(1.0)).epsilon(0.02));
    // By hand, block by block: floor takes 2^(u - 2).
    const NormalMatrix small(4, 64);
    double signal = 0.0, noise = 0.0;
    for (std::size_t begin = 0; begin < 256; begin += 32) {
        double amax = 0.0;
        for (std::size_t i = begin; i < begin + 32; ++i)
            amax = std::max(amax, std::abs(3.0 * static_cast<double>(small.numbers[i])));
        const double scale = std::ldexp(1.0, std::ilogb(amax) - 2);
        for (std::size_t i = begin; i < begin + 32; ++i) {
            const double x = static_cast<double>(static_cast<float>(3.0 * static_cast<double>(small.numbers[i])));
            const double error = quantise(e2m1, x / scale) * scale - x;
            signal += x * x;
            noise += error * error;
        }
    }
    CHECK(signal_to_noise(mxfp4, 3.0, small) == Approx(signal / noise).epsilon(1e-12));
    REQUIRE_THROWS_WITH(find_scaled_format("mxfp4").signal_to_noise(0.0),
                        "signal_to_noise: sigma is 0; expected a positive number");
}

TEST_CASE("snr: curves, their best point and where they are good") {
    const SnrCurve curve = snr_curve(find_scaled_format("e4m3"), -14, 10, 2);
    REQUIRE(curve.exponents.size() == 49);
    CHECK(curve.exponents.front() == -14.0);
    CHECK(curve.exponents[1] == -13.5);
    CHECK(curve.ratios[28] == signal_to_noise(e4m3, 1.0));
    CHECK(curve.ratios[curve.best()] >= curve.ratios[28]);
    const auto [low, high] = curve.good_range();
    CHECK(low < -2.0);
    CHECK(low > -6.0);
    CHECK(high > 5.0);
    CHECK(high < 8.0);
}

TEST_CASE("snr: bad names, formats and scales are errors") {
    REQUIRE_THROWS_WITH(
        find_scaled_format("fp7"),
        "format: unknown name 'fp7'; expected fp32, tf32, bf16, fp16, e5m2, e4m3, e5m2fnuz, e4m3fnuz, e4m3b11fnuz, "
        "e4m3_ieee, e3m4, e3m2, e2m3, e2m1, mxfp8_e4m3, mxfp8_e5m2, mxfp6_e3m2, mxfp6_e2m3, mxfp4, mxint8, nvfp4, "
        "nvfp4_square, fp8_tile, fp8_square, float8_tensor, float8_line, a variant such as mxfp4_rceil or "
        "nvfp4_torchao, p3109_k<width>p<precision>s<e|f> or int8:<range>");
    for (const char* bad : {"int8:", "int8:-3", "int8:x", "int8:60x"})
        REQUIRE_THROWS_WITH(
            find_scaled_format(bad),
            std::string("format: '") + bad + "' has no range; expected int8: and a positive number, such as int8:180");
    CHECK(find_scaled_format("p3109_k8p4se").format == p3109(8, 4, Signedness::signed_format, Domain::extended));
    REQUIRE_THROWS_WITH(find_scaled_format("p3109_k8p4ue"), "format: p3109_k8p4ue is not a format for signed numbers");
    REQUIRE_THROWS_WITH(signal_to_noise(e8m0, 1.0), "signal_to_noise: e8m0 is not a format for signed numbers");
    REQUIRE_THROWS_WITH(signal_to_noise(e4m3, 0.0), "signal_to_noise: sigma is 0; expected a positive number");
    REQUIRE_THROWS_WITH(snr_curve({}, 3, 3, 1), "snr_curve: from 2^3 to 2^3 in steps of 1/1 is no range");
}
