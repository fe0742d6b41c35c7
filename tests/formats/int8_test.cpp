// SPDX-License-Identifier: MIT
#include <unitscale/formats/int8.hpp>

#include "formats/reference.hpp"
#include "support/catch.hpp"

#include <cmath>

using namespace unitscale;
using reference::bits_of;
using reference::from_bits;

static_assert(int8_grid.max() == 127.0f && int8_grid.min_subnormal() == 1.0f && int8_grid.lowest() == -127.0f);

TEST_CASE("int8 with a power-of-two scale rounds the exact quotient in every way") {
    // Quarters of a step from beyond one end to beyond the other. Integer arithmetic gives the expected codes.
    for (const float scale : {1.0f, 0x1p-20f, 0x1p60f}) {
        std::vector<float> in;
        for (int quarters = -600; quarters <= 600; ++quarters)
            in.push_back(0.25f * static_cast<float>(quarters) * scale);
        for (const Rounding rounding :
             {Rounding::nearest_even, Rounding::toward_zero, Rounding::up, Rounding::down, Rounding::nearest_away}) {
            std::vector<std::int8_t> codes(in.size());
            std::vector<float> values(in.size()), decoded(in.size());
            encode_int8(in, codes, scale, {.rounding = rounding});
            quantise_int8(in, values, scale, {.rounding = rounding});
            decode_int8(codes, decoded, scale);
            int wrong = 0;
            for (int quarters = -600; quarters <= 600; ++quarters) {
                const int floor = (quarters + 4000) / 4 - 1000, rest = quarters - 4 * floor;
                int expected = floor;
                if (rounding == Rounding::nearest_even) expected += rest > 2 || (rest == 2 && floor % 2 != 0);
                if (rounding == Rounding::nearest_away) expected += rest > 2 || (rest == 2 && quarters > 0);
                if (rounding == Rounding::up) expected += rest > 0;
                if (rounding == Rounding::toward_zero) expected += rest > 0 && quarters < 0;
                expected = std::clamp(expected, -127, 127);
                const auto i = static_cast<std::size_t>(quarters + 600);
                wrong += codes[i] != expected || values[i] != static_cast<float>(expected) * scale ||
                         decoded[i] != values[i];
            }
            INFO(name(rounding) << ' ' << scale);
            REQUIRE(wrong == 0);
        }
    }
}

TEST_CASE("the largest magnitude maps to 127, and infinity saturates") {
    for (const float amax : {1.0f, 3.3f, 1e-20f, 1e30f}) {
        const float scale = int8_scale(amax);
        std::vector<std::int8_t> codes(4);
        encode_int8(std::vector<float>{amax, -amax, amax / 2.01f, from_bits(reference::infinity_bits)}, codes, scale);
        REQUIRE(codes == std::vector<std::int8_t>{127, -127, 63, 127});
        std::vector<float> value(1);
        decode_int8(std::vector<std::int8_t>{127}, value, scale);
        REQUIRE(std::abs(value[0] - amax) <= 1e-6f * amax);
    }
    REQUIRE(int8_scale(0.0f) == 1.0f);
}

TEST_CASE("the signal-to-noise ratio of a unit normal in int8 is 12 over the squared step") {
    std::vector<float> x(200000), y(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(random_normal({1, 2}, i));
    for (const float range : {60.0f, 30.0f}) {
        const float scale = int8_scale(range);
        quantise_int8(x, y, scale);
        double signal = 0, noise = 0;
        for (std::size_t i = 0; i < x.size(); ++i) {
            signal += static_cast<double>(x[i]) * static_cast<double>(x[i]);
            noise += std::pow(static_cast<double>(x[i]) - static_cast<double>(y[i]), 2);
        }
        REQUIRE(signal / noise == Approx(12.0 * std::pow(127.0 / static_cast<double>(range), 2)).epsilon(0.02));
    }
}

TEST_CASE("stochastic rounding to int8 has the mean of its input and the words of its key") {
    std::vector<float> x(50000, 3.3f), y(x.size()), z(1500);
    const QuantiseOptions options{.rounding = Rounding::stochastic, .key = {7, 8}};
    quantise_int8(x, y, 0.5f, options);
    double sum = 0;
    for (const float value : y) {
        REQUIRE((value == 3.0f || value == 3.5f));
        sum += static_cast<double>(value);
    }
    // 3.3 / 0.5 = 6.6 steps: up with probability 0.6, so sigma = 0.5 sqrt(0.24 / n).
    REQUIRE(std::abs(sum / 50000 - 3.3) < 5 * 0.5 * std::sqrt(0.24 / 50000));
    QuantiseOptions later = options;
    later.first_index = 40000;
    quantise_int8(std::span<const float>(x).first(z.size()), z, 0.5f, later);
    REQUIRE(std::equal(z.begin(), z.end(), y.begin() + 40000));
}

TEST_CASE("int8 errors name the function and the argument") {
    const std::vector<float> x(3, 1.0f);
    std::vector<float> y(3);
    std::vector<std::int8_t> codes(2);
    REQUIRE_THROWS_WITH(encode_int8(x, codes, 1.0f), "encode_int8: input and output sizes differ: 3 != 2");
    REQUIRE_THROWS_WITH(quantise_int8(x, y, 0.0f), "quantise_int8: scale is 0; expected 2^-126 to 2^126");
    REQUIRE_THROWS_WITH(decode_int8(codes, std::span(y).first(2), -1.0f),
                        "decode_int8: scale is -1; expected 2^-126 to 2^126");
    REQUIRE_THROWS_WITH(int8_scale(-1.0f), "int8_scale: amax is -1; expected a finite number of at least 0");
    REQUIRE_THROWS_WITH(quantise_int8(std::vector<float>{0.0f, 1.0f, from_bits(0x7FC00000u)}, y, 1.0f),
                        "quantise_int8: e1m6b-5f has no NaN: element 2 of the input is NaN");
}
