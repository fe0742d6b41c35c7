// SPDX-License-Identifier: MIT
#include <unitscale/kernels/coding.hpp>

#include "kernels/kernel_checks.hpp"

#include <algorithm>
#include <cstdint>
#include <limits>

using namespace unitscale;
using namespace unitscale::kernels;

namespace {

/// Normal numbers of very different sizes, zeros, infinities and NaN. Lengths are no multiple of a vector.
template <class T>
std::vector<T> telling_data(std::size_t n) {
    std::vector<T> data = normal_data<T>(n, 5);
    for (std::size_t i = 0; i < n; ++i)
        if (i % 3 != 0)
            data[i] = static_cast<T>(std::ldexp(static_cast<double>(data[i]), static_cast<int>(i % 41) - 30));
    const double specials[] = {0.0, -0.0, std::numeric_limits<double>::infinity(),
                               -std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()};
    for (std::size_t i = 0; i < std::size(specials) && 11 * i < n; ++i) data[11 * i] = static_cast<T>(specials[i]);
    return data;
}

}  // namespace

TEMPLATE_TEST_CASE("codes of a tensor are the codes of its elements, each rounded once", "[kernels]", float, double,
                   Half, BFloat16) {
    for (const auto& [known, format] : named_formats) {
        if (format.code_bits() > 8) continue;
        for (const Rounding rounding : {Rounding::nearest_even, Rounding::down, Rounding::stochastic})
            for (const Overflow overflow : {Overflow::saturate, Overflow::to_infinity}) {
                if (overflow == Overflow::to_infinity && !format.has_nan()) continue;
                for (const int bits : {9, 20}) {
                    const Quantiser round{format, rounding, overflow, bits};
                    auto x = telling_data<TestType>(2500);
                    if (!format.has_nan()) x[44] = TestType(1);
                    std::vector<std::uint8_t> codes(x.size() + 1, 0xA5), expected(x.size());
                    for (std::size_t i = 0; i < x.size(); ++i)
                        expected[i] = static_cast<std::uint8_t>(encode(format, widen(x[i]), round.options({3, 4}), i));
                    encode(Execution{}, x.data(), codes.data(), size_of(x), round, {3, 4});
                    CAPTURE(known, name(rounding), int(overflow), bits);
                    REQUIRE(codes.back() == 0xA5);
                    codes.pop_back();
                    REQUIRE(same_bits(codes, expected));

                    std::vector<TestType> back(x.size() + 1, TestType(77)), numbers(x.size());
                    for (std::size_t i = 0; i < x.size(); ++i)
                        numbers[i] = narrow<TestType>(static_cast<Accum<TestType>>(decode(format, codes[i])));
                    decode(Execution{}, codes.data(), back.data(), size_of(codes), format);
                    REQUIRE(back.back() == TestType(77));
                    back.pop_back();
                    REQUIRE(same_bits(back, numbers));
                }
            }
    }
}

TEST_CASE("a double goes to its code in one rounding", "[kernels]") {
    const double x = 1.0625 + 0x1p-40;  // just above a tie; as float it is the tie
    std::uint8_t code = 0;
    encode(Execution{}, &x, &code, 1, {.format = e4m3});
    CHECK(decode(e4m3, code) == 1.125f);
    const float tie = 1.0625f;
    encode(Execution{}, &tie, &code, 1, {.format = e4m3});
    CHECK(decode(e4m3, code) == 1.0f);
}

TEST_CASE("coding gives the same bits for any thread count", "[kernels]") {
    const auto x = telling_data<float>(100003);
    for (const Rounding rounding : {Rounding::nearest_even, Rounding::stochastic}) {
        const Quantiser round{.format = e5m2, .rounding = rounding};
        std::vector<std::uint8_t> codes(x.size());
        CHECK(threads_agree([&](const Execution& execution) {
            encode(execution, x.data(), codes.data(), size_of(x), round, {1, 2});
            return codes;
        }));
        CHECK(threads_agree([&](const Execution& execution) {
            std::vector<float> back(x.size());
            decode(execution, codes.data(), back.data(), size_of(codes), e5m2);
            return back;
        }));
    }
}

TEST_CASE("coding reports errors before it writes", "[kernels]") {
    std::vector<float> x(70, 1.3f);
    std::vector<std::uint8_t> codes(x.size(), 7);
    x[5] = x[69] = std::nanf("");
    REQUIRE_THROWS_WITH(encode(Execution{}, x.data(), codes.data(), size_of(x), {.format = e2m1}),
                        "encode: e2m1 has no NaN: element 5 is NaN");
    x[5] = 0;
    REQUIRE_THROWS_WITH(encode(Execution{}, x.data(), codes.data(), size_of(x), {.format = e2m1}),
                        "encode: e2m1 has no NaN: element 69 is NaN");
    REQUIRE_THROWS_WITH(encode(Execution{}, x.data(), codes.data(), size_of(x), {.format = fp16}),
                        "encode: codes of fp16 take 16 bits, not 8");
    REQUIRE_THROWS_WITH(encode(Execution{}, x.data(), codes.data(), size_of(x), {.format = e4m3, .bits = 0}),
                        "encode: bits is 0; expected 1 to 24");
    REQUIRE_THROWS_WITH(decode(Execution{}, codes.data(), x.data(), size_of(x), bf16),
                        "decode: codes of bf16 take 16 bits, not 8");
    CHECK(std::count(codes.begin(), codes.end(), 7) == 70);
    encode<float>(Execution{}, nullptr, nullptr, 0, {.format = e4m3});
    decode<float>(Execution{}, nullptr, nullptr, 0, e4m3);
}
