// SPDX-License-Identifier: MIT
#include <unitscale/kernels/block_scales.hpp>

#include "kernels/block_formats.hpp"
#include "kernels/kernel_checks.hpp"

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

using namespace unitscale;
using namespace unitscale::kernels;
using unitscale::test::block_formats;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();

/// Magnitudes around every power of two and between, and numbers at the limits.
std::vector<std::uint32_t> magnitudes() {
    std::vector<std::uint32_t> words{0, 1, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0x7F800000, 0x7FC00000};
    for (std::uint32_t field = 1; field<255; field += field> 100 && field < 150 ? 1 : 7)
        for (const std::uint32_t mantissa : {0x000000u, 0x000001u, 0x200000u, 0x3FFFFFu, 0x400000u, 0x5FFFFFu,
                                             0x600000u, 0x600001u, 0x700000u, 0x780000u, 0x7FFFFFu})
            words.push_back(field << 23 | mantissa);
    for (std::size_t i = 0; i < 2000; ++i)
        words.push_back(std::bit_cast<std::uint32_t>(static_cast<float>(random_normal({1, 2}, i))) & 0x7FFFFFFFu);
    return words;
}

bool same(float a, float b) { return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b); }

}  // namespace

TEST_CASE("the factors of blocks are those of block_scale", "[kernels]") {
    const std::vector<std::uint32_t> words = magnitudes();
    for (const BlockFormat& format : block_formats())
        for (const float amax : {4.0f, 0x1.8p-60f, 3e30f}) {
            const TensorNumbers tensor = tensor_numbers(format, amax);
            BlockScales scales(format, tensor);
            std::size_t found = 0, wrong = 0;
            for (const std::uint32_t word : words) {
                float encode = not_a_number, decode = not_a_number;
                if (scales.find(&word, 1, &encode, &decode) == BlockResult::refused) continue;
                ++found;
                const BlockScale scale = block_scale(format, std::bit_cast<float>(word), tensor);
                const bool zeros = word == 0 || is_any_zero(scale.decode.value);
                if (zeros ? encode != 0 || decode != 0
                          : !same(encode, scale.encode.value) || !same(decode, scale.decode.value))
                    ++wrong;
                if (!zeros && (scale.encode.divides || scale.decode.divides || scale.nan())) ++wrong;
            }
            INFO(name(format) << " amax " << amax);
            CHECK(wrong == 0);
            if (format.rule != BlockRule::deepseek && format.rule != BlockRule::torchao_float8 && amax == 4.0f)
                CHECK(found > 2000);  // ordinary numbers are not refused
        }
}

TEST_CASE("many blocks have the factors of each, and one block that is not plain refuses all", "[kernels]") {
    for (const BlockFormat& format : {mxfp8_e4m3, nvfp4, fp8_tile}) {
        const TensorNumbers tensor = tensor_numbers(format, 8.0f);
        BlockScales scales(format, tensor);
        std::vector<std::uint32_t> words(150);
        for (std::size_t i = 0; i < words.size(); ++i)
            words[i] = i % 7 == 0 ? 0 : std::bit_cast<std::uint32_t>(0.01f * static_cast<float>(i));
        std::vector<float> encode(words.size()), decode(words.size());
        const auto count = static_cast<std::ptrdiff_t>(words.size());
        REQUIRE(scales.find(words.data(), count, encode.data(), decode.data()) != BlockResult::refused);
        for (std::size_t i = 0; i < words.size(); ++i) {
            const BlockScale scale = block_scale(format, std::bit_cast<float>(words[i]), tensor);
            CHECK(encode[i] == (words[i] == 0 ? 0.0f : scale.encode.value));
            CHECK(decode[i] == (words[i] == 0 ? 0.0f : scale.decode.value));
        }
        for (const float bad : {infinity, not_a_number}) {
            words[140] = std::bit_cast<std::uint32_t>(bad);
            CHECK(scales.find(words.data(), count, encode.data(), decode.data()) == BlockResult::refused);
        }
    }
    const std::uint32_t word = std::bit_cast<std::uint32_t>(1.0f);
    float encode, decode;
    BlockScales dividing(by_rule(BlockRule::deepseek, fp8_tile), {});
    CHECK(dividing.find(&word, 1, &encode, &decode) == BlockResult::refused);
    const TensorNumbers unknown = tensor_numbers(nvfp4, not_a_number);
    BlockScales of_nan(nvfp4, unknown);
    CHECK(of_nan.find(&word, 1, &encode, &decode) == BlockResult::refused);
}
