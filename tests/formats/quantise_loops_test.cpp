// SPDX-License-Identifier: MIT
#include <unitscale/formats/quantise_loops.hpp>

#include "formats/reference.hpp"
#include "support/catch.hpp"

#include <array>

using namespace unitscale;
using reference::bits_of;

TEST_CASE("loops write exactly the elements that they are given") {
    std::array<float, 200> in{};
    for (std::size_t i = 0; i < in.size(); ++i) in[i] = 0.37f * static_cast<float>(i) - 20.0f;
    const QuantiseConstants c = quantise_constants(e4m3, {});
    for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512}) {
        if (isa > active_isa()) continue;
        for (const std::size_t count : {0u, 1u, 64u, 100u, 191u}) {
            std::array<float, 200> out{};
            out.fill(-1000.0f);
            quantise_dispatched<NearestSaturating>(isa, c, in.data() + 1, out.data() + 3, count);
            std::size_t wrong = 0;
            for (std::size_t i = 0; i < out.size(); ++i) {
                const bool inside = i >= 3 && i < 3 + count;
                const std::uint32_t expected = inside ? NearestSaturating::apply(c, bits_of(in[i - 2]), 0) : bits_of(-1000.0f);
                wrong += bits_of(out[i]) != expected ? 1u : 0u;
            }
            CHECK(wrong == 0);
        }
    }
}

#if UNITSCALE_X86
TEST_CASE("streamed loops give the bits of the others") {
    alignas(64) static std::array<float, 256> out{};
    std::array<float, 256> in{}, expected{};
    std::array<std::uint16_t, 256> pieces{};
    for (std::size_t i = 0; i < in.size(); ++i) in[i] = 0.37f * static_cast<float>(i) - 20.0f;
    for (std::size_t i = 0; i < in.size(); ++i) pieces[i] = static_cast<std::uint16_t>(random_word({1, 2}, i));
    const QuantiseConstants c = quantise_constants(e4m3, {.rounding = Rounding::stochastic});
    quantise_dispatched<StochasticSaturating>(Isa::baseline, c, in.data(), expected.data(), in.size(), pieces.data());
    for (const Isa isa : {Isa::avx2, Isa::avx512}) {
        if (isa > active_isa()) continue;
        out.fill(0);
        const auto streamed =
            isa == Isa::avx512 ? quantise_streamed_avx512<StochasticSaturating> : quantise_streamed_avx2<StochasticSaturating>;
        streamed(c, in.data(), out.data(), 192, pieces.data());
        stream_fence();
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < in.size(); ++i) wrong += bits_of(out[i]) != (i < 192 ? bits_of(expected[i]) : 0u) ? 1u : 0u;
        INFO(name(isa));
        CHECK(wrong == 0);
    }
}
#endif

TEST_CASE("a NaN is found wherever it stands, of either sign, and infinity is none") {
    std::array<float, 200> values{};
    values.fill(reference::from_bits(reference::infinity_bits | 0x80000000u));
    for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512}) {
        if (isa > active_isa()) continue;
        for (const std::size_t count : {0u, 1u, 64u, 200u}) REQUIRE_FALSE(contains_nan(isa, values.data(), count));
        for (const std::uint32_t nan : {0x7F800001u, 0xFFFFFFFFu})
            for (const std::size_t at : {0u, 63u, 64u, 130u, 199u}) {
                auto with_nan = values;
                with_nan[at] = reference::from_bits(nan);
                REQUIRE(contains_nan(isa, with_nan.data(), with_nan.size()));
                REQUIRE_FALSE(contains_nan(isa, with_nan.data(), at));
            }
    }
}
