// SPDX-License-Identifier: MIT
// 1. Number formats: a format is a value; codes and numbers, rounding, overflow, a format of your own, counts, blocks,
// storage.
// Needs the standard library only. Every result is exact, the same on every machine.
// Run: g++ -std=c++20 -O2 -Iinclude examples/1_formats.cpp && ./a.out

#include <unitscale/numerics.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

using namespace unitscale;

int main() {
    // A format is a handful of integers. What it can hold follows from them.
    std::printf("format  bits  smallest    largest      step above 1\n");
    for (const FloatFormat& format : {fp16, bf16, e5m2, e4m3, e2m1})
        std::printf("%-6s  %4d  %-10.4g  %-11g  %g\n", name(format).c_str(), format.code_bits(), format.min_subnormal(),
                    format.max(), format.epsilon());

    // Numbers become codes and back. In between lies the rounding: 0.3 is not a number of e4m3.
    const std::uint32_t code = encode(e4m3, 0.3f);
    std::printf("\n0.3 in e4m3 has the code 0x%02x, which stands for %g\n", code, decode(e4m3, code));

    // `quantise` goes there and back in one step. 17 is halfway between two numbers of e4m3, 16 and 18.
    std::printf("\n17 and -17 in e4m3\n");
    for (const Rounding rounding :
         {Rounding::nearest_even, Rounding::nearest_away, Rounding::toward_zero, Rounding::up, Rounding::down})
        std::printf("  %-12s  %3g  %3g\n", std::string(name(rounding)).c_str(),
                    quantise(e4m3, 17.0f, {.rounding = rounding}), quantise(e4m3, -17.0f, {.rounding = rounding}));

    // Stochastic rounding is right on average: 16.5 goes to 18 one time in four. Its random numbers are a function of
    // the key and the element's index, so a run can be repeated, and cut into parts.
    const std::vector<float> many(100000, 16.5f);
    std::vector<float> rounded(many.size());
    quantise(e4m3, many, rounded, {.rounding = Rounding::stochastic, .bits = 16, .key = {.seed = 1, .stream = 2}});
    double sum = 0.0;
    for (const float x : rounded) sum += static_cast<double>(x);
    std::printf("\n16.5 rounded stochastically: first %g, %g, %g, %g; mean of 100000: %.2f\n", rounded[0], rounded[1],
                rounded[2], rounded[3], sum / static_cast<double>(many.size()));

    // Too large: the largest number, or infinity, or NaN in a format without infinity. Operands of products saturate; a
    // cast to a storage type overflows, as it does in hardware.
    std::printf("\n1e6 saturates to %g in e4m3 and %g in e5m2; not saturating it becomes %g and %g\n",
                quantise(e4m3, 1e6f), quantise(e5m2, 1e6f), quantise(e4m3, 1e6f, {.overflow = Overflow::to_infinity}),
                quantise(e5m2, 1e6f, {.overflow = Overflow::to_infinity}));

    // A format of your own is one line. One that makes no sense does not compile; at run time it is an error.
    constexpr FloatFormat e3m3 = make_format({.exponent_bits = 3, .mantissa_bits = 3, .bias = 3});
    std::printf("\n%s: %d bits, %g to %g\n", name(e3m3).c_str(), e3m3.code_bits(), e3m3.min_subnormal(), e3m3.max());
    try {
        static_cast<void>(make_format({.exponent_bits = 9, .mantissa_bits = 2, .bias = 255}));
    } catch (const Error& error) {
        std::printf("%s\n", error.what());
    }

    // What a format loses of a tensor: the question behind every scale. Gradients of this size are lost to e4m3;
    // multiplied by 1024, a power of two so that nothing is rounded, they fit. Unit scaling makes tensors fit without
    // measuring them.
    std::vector<float> gradients(10000), kept(gradients.size());
    for (std::size_t i = 0; i < gradients.size(); ++i)
        gradients[i] = static_cast<float>(1e-3 * random_normal({3, 4}, i));
    for (const float scale : {1.0f, 1024.0f, 1048576.0f}) {
        std::vector<float> scaled = gradients;
        for (float& x : scaled) x *= scale;
        const QuantiseCounts lost = quantise_and_count(e4m3, scaled, kept);
        std::printf("%sgradients times %7.0f: %4zu of 10000 become zero, %4zu saturate\n", scale == 1.0f ? "\n" : "",
                    scale, lost.underflown, lost.saturated);
    }

    // Blocks that share a scale: 24 elements of e2m1 under an unsigned e5m3, and NVIDIA's format with two levels.
    constexpr BlockFormat mine =
        make_block_format({.element = e2m1, .along = 24, .scale = {5, 3, 15, Specials::single_nan, 0}});
    BlockCodes codes;
    for (const BlockFormat& format : {mine, nvfp4, find_block_format("mxfp4_rceil")}) {
        encode_blocks(format, {gradients.data(), 100, 100, 100}, codes);  // 100 lines of 100
        decode_blocks(codes, {kept.data(), 100, 100, 100});
        std::printf("%-23s %zu scales; %.4f becomes %.4f\n", name(format).c_str(), codes.scale_codes.size(),
                    1e3 * gradients[7], 1e3 * kept[7]);
    }

    // To store codes instead of simulating them: one byte each, arithmetic in float.
    const std::array<Minifloat<e4m3>, 2> stored{Minifloat<e4m3>(0.3f), Minifloat<e4m3>(1e6)};
    std::printf("\n%zu bytes hold %g and %g\n", sizeof(stored), static_cast<double>(stored[0]),
                static_cast<double>(stored[1]));
}
