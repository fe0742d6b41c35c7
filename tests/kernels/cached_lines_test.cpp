// SPDX-License-Identifier: MIT
#include <unitscale/base/random.hpp>
#include <unitscale/formats/quantise.hpp>
#include <unitscale/kernels/cached_lines.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

using namespace unitscale;
using namespace unitscale::kernels;

namespace {

template <class T>
std::vector<T> numbers(std::size_t count, std::uint64_t stream, double size = 1.0) {
    std::vector<T> result(count);
    for (std::size_t i = 0; i < count; ++i) result[i] = element_cast<T>(size * random_normal({9, stream}, i));
    return result;
}

/// The rule of codes, from its definition: the least power of two s with amax / s <= max, and x / s rounded.
template <class T>
std::vector<double> rounded_by_rule(const FloatFormat& format, const std::vector<T>& line) {
    double amax = 0.0;
    for (const T x : line) amax = std::max(amax, std::abs(static_cast<double>(x)));
    double s = 0x1p-126;
    while (amax / s > static_cast<double>(format.max())) s *= 2.0;
    std::vector<double> result;
    for (const T x : line) result.push_back(s * quantise(format, static_cast<double>(x) / s));
    return result;
}

template <class T>
std::vector<Accum<T>> round_trip(const LineCoder<T>& coder, const std::vector<T>& line, Isa isa = active_isa()) {
    std::vector<std::byte> bytes(line.size() * coder.element_size());
    std::uint8_t scale = 77;
    coder.store(line.data(), line.size(), bytes.data(), &scale);
    std::vector<Accum<T>> result(line.size());
    coder.load(isa, bytes.data(), &scale, 1, static_cast<std::ptrdiff_t>(line.size()), result.data());
    return result;
}

const std::array code_formats = {e4m3, e5m2, e4m3fnuz, e5m2fnuz, e3m4, e3m2, e2m3, e2m1};

}  // namespace

TEMPLATE_TEST_CASE("cached lines: codes are the numbers over the least power of two, rounded once", "[kernels]", float,
                   double, Half, BFloat16) {
    using T = TestType;
    for (const FloatFormat& format : code_formats)
        for (const std::size_t depth : {1u, 7u, 64u, 300u})
            for (const double size : {1.0, 1e-4, 300.0}) {
                INFO(name(format) << ", depth " << depth << ", size " << size);
                const LineCoder<T> coder(format);
                CHECK(coder.element_size() == 1);
                CHECK(coder.scale_size() == 1);
                const auto line = numbers<T>(depth, depth, size);
                const std::vector<double> expected = rounded_by_rule(format, line);
                for (const Isa isa : {Isa::baseline, active_isa()}) {
                    const auto got = round_trip(coder, line, isa);
                    CHECK(std::equal(got.begin(), got.end(), expected.begin(), expected.end(),
                                     [](auto a, double b) { return static_cast<double>(a) == b; }));
                }
            }
}

TEST_CASE("cached lines: the scale's limits: zeros, sizes at and above the format's largest, the ends of float") {
    const LineCoder<float> coder(e4m3);
    CHECK(round_trip(coder, {0.0f, -0.0f, 0.0f}) == std::vector<float>{0.0f, 0.0f, 0.0f});
    CHECK(round_trip(coder, {448.0f, 1.0f}) == std::vector<float>{448.0f, 1.0f});
    CHECK(round_trip(coder, {449.0f, 1.0f}) == std::vector<float>{448.0f, 1.0f});  // scale 2: 224.5 gives 224
    const float largest = std::numeric_limits<float>::max();
    CHECK(round_trip(coder, {0x1.dp127f, 1.0f}) == std::vector<float>{0x1.cp127f, 0.0f});
    CHECK(std::isinf(round_trip(coder, {largest})[0]));  // the nearest code is 256, and the scale 2^120
    for (const float tiny : {0x1p-126f, 0x1p-130f}) CHECK(round_trip(coder, {tiny})[0] == tiny);
    // A line that is not finite is NaN whole, in formats without NaN too.
    for (const FloatFormat& format : {e4m3, e2m1})
        for (const float x : {std::nanf(""), std::numeric_limits<float>::infinity()})
            for (const float y : round_trip(LineCoder<float>(format), {1.0f, x, 2.0f})) CHECK(std::isnan(y));
}

TEMPLATE_TEST_CASE("cached lines: formats of 16 and 32 bits round each element once, without a scale", "[kernels]",
                   float, double, Half, BFloat16) {
    using T = TestType;
    const auto line = numbers<T>(70, 4);
    const auto expected = [&]<class To>(To) {
        std::vector<Accum<T>> result;
        for (const T x : line) result.push_back(element_cast<Accum<T>>(element_cast<To>(x)));
        return result;
    };
    CHECK(round_trip(LineCoder<T>(), line) == expected(T{}));
    CHECK(round_trip(LineCoder<T>(fp32), line) == expected(float{}));
    CHECK(round_trip(LineCoder<T>(fp16), line) == expected(Half{}));
    CHECK(round_trip(LineCoder<T>(bf16), line) == expected(BFloat16{}));
    CHECK(LineCoder<T>().element_size() == sizeof(T));
    CHECK(LineCoder<T>(fp32).element_size() == 4);
    CHECK(LineCoder<T>(fp16).element_size() == 2);
    CHECK(LineCoder<T>(bf16).element_size() == 2);
    for (const FloatFormat& format : {fp32, fp16, bf16}) CHECK(LineCoder<T>(format).scale_size() == 0);
    CHECK(LineCoder<float>(fp32).element() == LineElement::own);
    CHECK(LineCoder<Half>(fp16).element() == LineElement::own);
    CHECK(LineCoder<double>(fp32).element() == LineElement::fp32);
    CHECK(std::isinf(round_trip(LineCoder<float>(fp16), {1e5f})[0]));
}

TEST_CASE("cached lines: other formats are errors") {
    for (const FloatFormat& format : {e8m0, tf32})
        REQUIRE_THROWS_WITH(LineCoder<float>(format),
                            "cached lines: format " + std::string(name(format)) +
                                "; expected fp32, fp16, bf16 or a signed format of at most 8 bits");
}

TEMPLATE_TEST_CASE("cached lines: positions of a head stand in a ring, and in place where they are in one piece",
                   "[kernels]", float, Half) {
    using T = TestType;
    constexpr std::ptrdiff_t heads = 3, capacity = 5, depth = 6;
    for (const bool coded : {false, true}) {
        const LineCoder<T> coder = coded ? LineCoder<T>(e4m3) : LineCoder<T>();
        std::vector<std::byte> bytes(heads * capacity * depth * coder.element_size());
        std::vector<std::uint8_t> scales(heads * capacity);
        const CachedLines<T> lines(bytes.data(), coded ? scales.data() : nullptr, coder);
        CHECK((lines.coder == nullptr) == !coded);
        std::vector<std::vector<T>> written;
        for (std::ptrdiff_t head = 0; head < heads; ++head) {
            const HeadLines<T> own(lines, head, capacity, depth);
            for (std::ptrdiff_t p = 0; p < 8; ++p) {
                written.push_back(numbers<T>(depth, static_cast<std::uint64_t>(head * 8 + p)));
                own.store(p, written.back().data());
            }
        }
        for (std::ptrdiff_t head = 0; head < heads; ++head) {
            const HeadLines<T> own(lines, head, capacity, depth);
            std::vector<Accum<T>> got(5 * depth);
            own.load(active_isa(), 3, 8, got.data());
            for (std::ptrdiff_t p = 3; p < 8; ++p) {
                const auto expected = round_trip(coder, written[static_cast<std::size_t>(head * 8 + p)]);
                CHECK(std::equal(expected.begin(), expected.end(), got.begin() + (p - 3) * depth));
            }
            const bool direct = !coded && std::is_same_v<T, float>;
            CHECK((own.in_place(5, 8) != nullptr) == direct);
            CHECK(own.in_place(4, 6) == nullptr);  // the last line and the first
            if (direct) CHECK(static_cast<float>(*own.in_place(5, 8)) == static_cast<float>(got[2 * depth]));
        }
    }
}
