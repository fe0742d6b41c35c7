// SPDX-License-Identifier: MIT
#include <unitscale/tensor/half_lanes.hpp>

#include "support/catch.hpp"

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

using namespace unitscale;

TEST_CASE("element conversions equal the conversions of the storage types", "[tensor]") {
    const auto same = [](auto a, auto b) { return std::bit_cast<std::uint16_t>(a) == std::bit_cast<std::uint16_t>(b); };
    std::size_t differing = 0;
    for (std::uint32_t code = 0; code < 0x10000u; ++code) {
        const auto half = std::bit_cast<Half>(static_cast<std::uint16_t>(code));
        const auto brain = std::bit_cast<BFloat16>(static_cast<std::uint16_t>(code));
        const auto wide_half = static_cast<float>(half), wide_brain = static_cast<float>(brain);
        if (std::isnan(wide_half)
                ? !std::isnan(widen(half))
                : std::bit_cast<std::uint32_t>(widen(half)) != std::bit_cast<std::uint32_t>(wide_half))
            ++differing;
        if (std::isnan(wide_brain)
                ? !std::isnan(widen(brain))
                : std::bit_cast<std::uint32_t>(widen(brain)) != std::bit_cast<std::uint32_t>(wide_brain))
            ++differing;
    }
    for (std::uint64_t bits = 0; bits < 0x100000000u; bits += 4093) {
        const float x = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
        if (std::isnan(x) ? !std::isnan(static_cast<float>(narrow<Half>(x))) : !same(narrow<Half>(x), Half(x)))
            ++differing;
        if (std::isnan(x) ? !std::isnan(static_cast<float>(narrow<BFloat16>(x)))
                          : !same(narrow<BFloat16>(x), BFloat16(x)))
            ++differing;
    }
    for (std::uint32_t code = 0; code < 0x7C00u; ++code) {  // ties and their neighbours, between every two halves
        const float low = widen(std::bit_cast<Half>(static_cast<std::uint16_t>(code)));
        const float high =
            code == 0x7BFFu ? 65536.0f : widen(std::bit_cast<Half>(static_cast<std::uint16_t>(code + 1)));
        const float tie = 0.5f * (low + high);
        for (const float x : {tie, std::nextafter(tie, 0.0f), std::nextafter(tie, 1e9f), -tie})
            if (!same(narrow<Half>(x), Half(x))) ++differing;
    }
    CHECK(differing == 0);
}

TEMPLATE_TEST_CASE("lanes hold the numbers of one element at a time, and storing them back gives the elements",
                   "[tensor]", Half, BFloat16, float, double) {
    std::array<TestType, 48> elements;
    for (std::size_t i = 0; i < elements.size(); ++i)
        elements[i] =
            static_cast<TestType>(std::ldexp(1.0f + 0.0625f * static_cast<float>(i), static_cast<int>(i) - 30));
    elements[1] = static_cast<TestType>(-0.0f);
    elements[2] = static_cast<TestType>(INFINITY);
    std::array<Accum<TestType>, 48> numbers{};
    load_lanes<48>(elements.data(), numbers.data());
    std::array<TestType, 48> back{};
    store_lanes<48>(numbers.data(), back.data());
    for (std::size_t i = 0; i < elements.size(); ++i) {
        CHECK(numbers[i] == widen(elements[i]));
        CHECK(numbers[i] == static_cast<Accum<TestType>>(elements[i]));
        CHECK(std::signbit(numbers[i]) == (i == 1));
        CHECK(std::bit_cast<Code<TestType>>(back[i]) == std::bit_cast<Code<TestType>>(elements[i]));
    }
}
