// SPDX-License-Identifier: MIT
// Built twice: with the library's headers, and pasted below numerics_single.hpp. Both programs print equal text.
#include <unitscale/numerics.hpp>

#include <cstdint>
#include <iostream>
#include <span>
#include <vector>

int main() {
    using namespace unitscale;
    constexpr FloatFormat e3m3 = make_format({.exponent_bits = 3, .mantissa_bits = 3, .bias = 3});
    std::vector<float> x(100), y(x.size());
    std::vector<std::int8_t> int8(x.size());
    std::vector<std::uint8_t> codes(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(random_normal({1, 2}, i));
    for (const FloatFormat& format : {e4m3, e5m2, e2m1, e3m3, find_format("p3109_k8p4se")}) {
        for (const Rounding rounding : {Rounding::nearest_even, Rounding::stochastic}) {
            quantise(format, x, y, {.rounding = rounding, .bits = 8, .key = {3, 4}});
            encode<std::uint8_t>(format, y, codes);
            std::uint32_t sum = 0;
            for (const std::uint8_t code : codes) sum = 31 * sum + code;
            std::cout << name(format) << ' ' << name(rounding) << ' ' << y[0] << ' ' << sum << '\n';
        }
    }
    encode_int8(x, std::span(int8), int8_scale(4.0f));
    std::cout << static_cast<int>(int8[1]) << ' ' << quantise_and_count(e2m1, x, y).underflown << ' ';
    const Minifloat<bf16> third(1.0f / 3);
    std::cout << third << ' ' << pow2_down(3.0f) << ' ' << pow2_up(3.0) << ' ' << pow2_nearest(3.0) << ' '
              << pow2_stochastic(3.0f, 0u) << ' ' << version << '\n';
}
