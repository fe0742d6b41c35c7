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
            run_kernel<NearestSaturating>(isa, c, in.data() + 1, out.data() + 3, count);
            std::size_t wrong = 0;
            for (std::size_t i = 0; i < out.size(); ++i) {
                const bool inside = i >= 3 && i < 3 + count;
                const std::uint32_t expected =
                    inside ? NearestSaturating::apply(c, bits_of(in[i - 2]), 0) : bits_of(-1000.0f);
                wrong += bits_of(out[i]) != expected ? 1u : 0u;
            }
            CHECK(wrong == 0);
        }
    }
}

TEST_CASE("loops read the pieces of the elements that they are given") {
    std::array<float, 200> in{};
    std::array<std::uint16_t, 200> halves{};
    std::array<std::uint32_t, 200> words{};
    for (std::size_t i = 0; i < in.size(); ++i) {
        in[i] = 0.37f * static_cast<float>(i) - 20.0f;
        words[i] = random_word({1, 2}, i);
        halves[i] = static_cast<std::uint16_t>(words[i] >> 16);
    }
    const QuantiseConstants c = quantise_constants(e4m3, {.rounding = Rounding::stochastic});
    for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512}) {
        if (isa > active_isa()) continue;
        for (const std::size_t count : {0u, 1u, 64u, 100u, 191u}) {
            std::array<float, 200> by_halves{}, by_words{};
            run_kernel<StochasticSaturating>(isa, c, in.data() + 2, by_halves.data(), count,
                                             {.pieces = halves.data() + 5, .piece_size = 2});
            run_kernel<Stochastic>(isa, c, in.data() + 2, by_words.data(), count,
                                   {.pieces = words.data() + 5, .piece_size = 4});
            std::size_t wrong = 0;
            for (std::size_t i = 0; i < count; ++i) {
                const std::uint32_t expected = Stochastic::apply(c, bits_of(in[i + 2]), words[i + 5]);
                wrong += bits_of(by_halves[i]) != expected || bits_of(by_words[i]) != expected ? 1u : 0u;
            }
            for (std::size_t i = count; i < in.size(); ++i)
                wrong += by_halves[i] != 0.0f || by_words[i] != 0.0f ? 1u : 0u;
            INFO(name(isa) << ' ' << count);
            CHECK(wrong == 0);
        }
    }
}

TEST_CASE("streamed results are the others, and nothing after them is written") {
    alignas(64) static std::array<float, 256> out{};
    std::array<float, 256> in{};
    for (std::size_t i = 0; i < in.size(); ++i) in[i] = 0.37f * static_cast<float>(i) - 20.0f;
    const QuantiseConstants c = quantise_constants(e4m3, {});
    for (const Isa isa : {Isa::baseline, Isa::avx2, Isa::avx512}) {
        if (isa > active_isa()) continue;
        out.fill(0);
        run_kernel<NearestSaturating>(isa, c, in.data(), out.data(), 200, {.streamed = true});
        stream_fence();
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < in.size(); ++i)
            wrong += bits_of(out[i]) != (i < 200 ? NearestSaturating::apply(c, bits_of(in[i]), 0) : 0u) ? 1u : 0u;
        INFO(name(isa));
        CHECK(wrong == 0);
    }
}

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
