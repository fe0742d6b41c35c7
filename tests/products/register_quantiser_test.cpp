// SPDX-License-Identifier: MIT
#include <unitscale/base/random.hpp>
#include <unitscale/products/register_quantiser.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

// Also built with -ffast-math: floats are compared by their bits.
using namespace unitscale;
using namespace unitscale::products;

TEST_CASE("rounding in a register is for nearest even, saturating, signed formats with a mantissa that fits",
          "[kernels][matmul]") {
    const auto kind = [](const FloatFormat& format) { return register_quantisation({.format = format}); };
    for (const FloatFormat& format : {fp16, e5m2, e4m3, e5m2fnuz, e4m3fnuz, e4m3b11fnuz, e4m3_ieee, e3m4, e3m2, e2m3,
                                      e2m1, make_format({4, 21, 10})})
        REQUIRE(kind(format) == RegisterQuantisation::by_exponent);
    for (const FloatFormat& format : {bf16, tf32}) REQUIRE(kind(format) == RegisterQuantisation::by_word);
    // Formats that no register kind fits: float itself; unsigned; no mantissa; 22 mantissa bits; half the smallest
    // number below 2^-126; a magic that overflows.
    for (const FloatFormat& format :
         {fp32, e8m0, make_format({4, 3, 7, Specials::single_nan, 0}), make_format({4, 0, 7, Specials::none}),
          make_format({4, 22, 10}), make_format({4, 3, 124}), make_format({4, 3, -93})})
        REQUIRE(kind(format) == RegisterQuantisation::none);
    REQUIRE(kind(make_format({4, 3, 123})) == RegisterQuantisation::by_exponent);  // the last formats that fit
    REQUIRE(kind(make_format({4, 3, -92})) == RegisterQuantisation::by_exponent);
    REQUIRE_FALSE(quantises_in_register({.format = e4m3, .rounding = Rounding::stochastic}));
    REQUIRE_FALSE(quantises_in_register({.format = e4m3, .rounding = Rounding::nearest_away}));
    REQUIRE_FALSE(quantises_in_register({.format = e5m2, .overflow = Overflow::to_infinity}));
}

#if UNITSCALE_X86

namespace {

template <RegisterQuantisation kind>
UNITSCALE_TARGET_AVX512 void round_avx512(const RegisterQuantiser& round, const float* in, float* out,
                                          std::size_t count) {
    for (std::size_t i = 0; i < count; i += 16)
        _mm512_storeu_ps(out + i, quantise_in_register<kind>(round, _mm512_loadu_ps(in + i)));
}
template <RegisterQuantisation kind>
UNITSCALE_TARGET_AVX2 void round_avx2(const RegisterQuantiser& round, const float* in, float* out, std::size_t count) {
    for (std::size_t i = 0; i < count; i += 8)
        _mm256_storeu_ps(out + i, quantise_in_register<kind>(round, _mm256_loadu_ps(in + i)));
}
template <RegisterQuantisation kind>
void round_all(Isa isa, const RegisterQuantiser& round, const std::vector<float>& in, std::vector<float>& out) {
    if (isa == Isa::avx512) round_avx512<kind>(round, in.data(), out.data(), in.size());
    else round_avx2<kind>(round, in.data(), out.data(), in.size());
}

/// Every sign, exponent and beginning of a mantissa. Their ends make ties, and neighbours of ties, of every format
/// here.
std::vector<float> words() {
    std::vector<float> values;
    for (std::uint32_t high = 0; high < 0x10000u; ++high)
        for (const std::uint32_t low : {0u, 1u, 2u, 3u, 6u, 0x0FFFu, 0x1000u, 0x1001u, 0x3000u, 0x5000u, 0x7FFFu,
                                        0x8000u, 0x8001u, 0xFFFFu, 0x10000u, 0x10000u})  // the last two: arbitrary
            values.push_back(
                std::bit_cast<float>(high << 16 | (low < 0x10000u ? low : random_word({3, 1}, values.size()) >> 16)));
    return values;
}

bool is_zero(float x) { return std::bit_cast<std::uint32_t>(x) << 1 == 0; }
/// Whether bits are equal. NaN may be another NaN, and zero may have the other sign.
bool same(float a, float b) {
    return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) || (is_nan(a) && is_nan(b)) ||
           (is_zero(a) && is_zero(b));
}

}  // namespace

TEST_CASE("rounding in a register gives the numbers of quantise in every mode of the processor", "[kernels][matmul]") {
    const std::vector<float> all = words();
    std::vector<float> values = all, expected(all.size()), rounded(all.size());
    for (const FloatFormat& format :
         {fp16, e5m2, e4m3, e5m2fnuz, e4m3fnuz, e4m3b11fnuz, e4m3_ieee, e3m4, e3m2, e2m3, e2m1, bf16, tf32,
          make_format({4, 21, 10}), make_format({4, 3, 123}), make_format({4, 3, -92})}) {
        const Quantiser quantiser{.format = format};
        const RegisterQuantiser round = register_quantiser(&quantiser);
        std::transform(all.begin(), all.end(), values.begin(),
                       [&](float x) { return is_nan(x) && !format.has_nan() ? 0.0f : x; });
        quantise_span(Isa::baseline, format, values, expected, quantiser.options());
        for (const Isa isa : {Isa::avx2, Isa::avx512}) {
            if (isa > active_isa()) continue;
            // The processor's mode unchanged; subnormals flushed on the way in and out; and flushing with each rounding
            // direction.
            const unsigned before = _mm_getcsr(), flush = 0x8040u;
            for (const unsigned mode : {before, before | flush, (before & ~0x6000u) | flush | 0x2000u,
                                        before | flush | 0x4000u, before | flush | 0x6000u}) {
                _mm_setcsr(mode);
                if (round.kind == RegisterQuantisation::by_exponent)
                    round_all<RegisterQuantisation::by_exponent>(isa, round, values, rounded);
                else round_all<RegisterQuantisation::by_word>(isa, round, values, rounded);
                _mm_setcsr(before);
                std::size_t wrong = 0;
                for (std::size_t i = 0; i < values.size(); ++i) wrong += !same(rounded[i], expected[i]);
                CAPTURE(name(format), name(isa), mode);
                REQUIRE(wrong == 0);
            }
        }
    }
}

TEST_CASE("without rounding a register is left alone", "[kernels][matmul]") {
    const RegisterQuantiser round = register_quantiser(nullptr);
    REQUIRE(round.kind == RegisterQuantisation::none);
    std::vector<float> values(16, 1.0f / 3), rounded(16);
    for (const Isa isa : {Isa::avx2, Isa::avx512})
        if (isa <= active_isa()) {
            round_all<RegisterQuantisation::none>(isa, round, values, rounded);
            REQUIRE(rounded == values);
        }
}

#endif
