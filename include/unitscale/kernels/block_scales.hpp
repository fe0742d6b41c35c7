// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/formats/block_codes.hpp>
#include <unitscale/formats/block_scale.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace unitscale::kernels {

/// What became of blocks. `exact_in_bf16`: all their numbers are bf16 numbers, and none is subnormal there.
enum class BlockResult : std::uint8_t { refused, quantised, exact_in_bf16 };

/// Of elements times a factor, where no product is subnormal: their significant bits add up.
[[nodiscard]] constexpr BlockResult result_of(const FloatFormat& element, float factor) noexcept {
    const std::uint32_t significand = (magnitude_word(factor) & 0x7FFFFFu) | 0x800000u;
    return 24 - std::countr_zero(significand) + element.mantissa_bits <= 8 ? BlockResult::exact_in_bf16
                                                                           : BlockResult::quantised;
}

/// The scales of a tensor's blocks, as factors. Scales that are codes are computed once for each code, not for each
/// block: a tensor has thousands of blocks, and there are at most 256 codes.
/// Test: tests/kernels/block_scales_test.cpp
class BlockScales {
public:
    BlockScales(const BlockFormat& format, const TensorNumbers& tensor) noexcept : format_(format), tensor_(tensor) {
        coded_ = format.form == ScaleForm::code && format.scale.code_count() <= known_.size() &&
                 (format.has_exponent_codes() ||
                  (format.scale.has_zero() && format.scale.mantissa_bits >= 1 && format.scale.min_exponent() > -126)) &&
                 (!format.tensor_scale || (!is_nan(tensor.number) && !is_infinite(tensor.number)));
        if (coded_ && format.has_exponent_codes()) find_carry();
    }

    /// encode[c] and decode[c] = the factors of a block with the largest magnitude words[c]. A block of zeros has
    /// factors 0. Refused, with unspecified factors, if a block needs more than two plain products: it holds a NaN or
    /// an infinity, it divides, its scale is extreme.
    [[nodiscard]] BlockResult find(const std::uint32_t* words, std::ptrdiff_t count, float* encode,
                                   float* decode) noexcept {
        if (coded_) return find_coded(words, count, encode, decode);
        BlockResult result = BlockResult::exact_in_bf16;
        for (std::ptrdiff_t c = 0; c < count && result != BlockResult::refused; ++c) {
            if (words[c] >= infinity_word) return BlockResult::refused;
            const bool zeros = words[c] == 0;
            const Factors own =
                factors(zeros ? BlockScale{} : block_scale(format_, std::bit_cast<float>(words[c]), tensor_), zeros);
            encode[c] = own.encode;
            decode[c] = own.decode;
            result = std::min(result, own.result);
        }
        return result;
    }

private:
    static constexpr std::size_t chunk = 64;
    struct Factors {
        float encode = 0, decode = 0;
        BlockResult result = BlockResult::refused;
    };

    [[nodiscard]] Factors factors(const BlockScale& scale, bool zeros) const noexcept {
        if (zeros) return {0.0f, 0.0f, BlockResult::exact_in_bf16};
        const bool plain = !scale.encode.divides && !scale.decode.divides &&
                           BlockScaler::encodes_plainly(format_.element, scale.encode) &&
                           BlockScaler::decodes_plainly(format_.element, scale.decode);
        return {scale.encode.value, scale.decode.value,
                !plain ? BlockResult::refused : result_of(format_.element, scale.decode.value)};
    }

    [[nodiscard]] BlockResult find_coded(const std::uint32_t* words, std::ptrdiff_t count, float* encode,
                                         float* decode) noexcept {
        BlockResult result = BlockResult::exact_in_bf16;
        std::array<std::uint32_t, chunk> part;  // of a fixed size, so that the loops over it are vectorised
        std::array<std::uint8_t, chunk> codes;
        for (std::ptrdiff_t begin = 0; begin < count; begin += static_cast<std::ptrdiff_t>(chunk)) {
            const auto n = std::min(chunk, static_cast<std::size_t>(count - begin));
            std::copy_n(words + begin, n, part.begin());
            std::fill(part.begin() + n, part.end(), 0u);
            if (!(format_.has_exponent_codes() ? exponent_codes(part, codes) : mantissa_codes(part, codes)))
                return BlockResult::refused;
            bool missing = false;
            for (const std::uint8_t code : codes) missing |= !known_[code];
            if (missing) find_codes(codes);
            for (std::size_t c = 0; c < n; ++c) {
                encode[begin + static_cast<std::ptrdiff_t>(c)] = part[c] == 0 ? 0.0f : encode_[codes[c]];
                decode[begin + static_cast<std::ptrdiff_t>(c)] = part[c] == 0 ? 0.0f : decode_[codes[c]];
            }
            for (std::size_t c = 0; c < n && worst_ != BlockResult::exact_in_bf16; ++c)
                if (part[c] != 0) result = std::min(result, results_[codes[c]]);
            if (result == BlockResult::refused) return result;
        }
        return result;
    }

    /// The exponent of a scale grows with amax: by the steps of amax's own exponent, and by one more step at some
    /// mantissa. `least_` is the exponent for amax = 2^0, `carry_` that mantissa.
    void find_carry() noexcept {
        const auto exponent = [this](std::uint32_t mantissa) {
            return scale_exponent(format_, std::bit_cast<float>(0x3F800000u | mantissa), tensor_.inverse_max);
        };
        least_ = exponent(0);
        std::uint32_t low = 0, high = 0x00800000u;  // low has no carry, high has one
        while (high - low > 1) {
            const std::uint32_t middle = (low + high) / 2;
            (exponent(middle) == least_ ? low : high) = middle;
        }
        carry_ = high;
    }
    [[nodiscard]] bool exponent_codes(const std::array<std::uint32_t, chunk>& words,
                                      std::array<std::uint8_t, chunk>& codes) const noexcept {
        // 2^-64 to 2^64: no intermediate number is near float's limits. 0 is like 1 here.
        std::uint32_t outside = 0;
        for (std::size_t c = 0; c < words.size(); ++c) {
            const std::uint32_t word = words[c] == 0 ? 0x3F800000u : words[c];
            outside |= static_cast<std::uint32_t>(word - 0x1F800000u > 0x40000000u);
            const int carry = (word & 0x7FFFFFu) >= carry_ ? 1 : 0;
            const int exponent = static_cast<int>(word >> 23) - 127 + least_ + carry;
            codes[c] = static_cast<std::uint8_t>(clamped_exponent(format_, exponent) + format_.scale.bias);
        }
        return outside == 0;
    }
    [[nodiscard]] bool mantissa_codes(const std::array<std::uint32_t, chunk>& words,
                                      std::array<std::uint8_t, chunk>& codes) const noexcept {
        const bool product = format_.tensor_scale && format_.rule == BlockRule::transformer_engine;
        std::array<float, chunk> wanted;
        std::uint32_t outside = product ? 0 : 1;
        for (std::size_t c = 0; c < chunk; ++c) {  // 0 is like 1 here
            const std::uint32_t word = words[c] == 0 ? 0x3F800000u : words[c];
            // One product, which the processor rounds as `rounded_product` does where it is normal.
            wanted[c] = std::bit_cast<float>(word) * tensor_.by_max;
            outside |= static_cast<std::uint32_t>(word >= infinity_word) |
                       static_cast<std::uint32_t>(magnitude_word(wanted[c]) - 0x00800000u >= 0x7F000000u);
        }
        if (outside != 0)
            for (std::size_t c = 0; c < chunk; ++c) {
                if (words[c] >= infinity_word) return false;
                wanted[c] = words[c] == 0 ? 1.0f : wanted_scale(format_, std::bit_cast<float>(words[c]), tensor_);
                if (magnitude_word(wanted[c]) >= infinity_word) return false;
            }
        // The code of a finite scale, rounded to nearest even, saturated: `round_to` without its other options.
        const FloatFormat& format = format_.scale;
        const auto bits = static_cast<std::uint32_t>(format.mantissa_bits), dropped = 23 - bits;
        const auto lowest = static_cast<std::uint32_t>(format.min_exponent() + 127);
        const std::uint32_t largest = format.max_code();
        for (std::size_t c = 0; c < chunk; ++c) {
            const std::uint32_t word = magnitude_word(wanted[c]), field = word >> 23;
            const bool normal = field >= lowest;
            const std::uint32_t number = normal ? word : (word & 0x7FFFFFu) | 0x800000u;
            const std::uint32_t by = normal ? dropped : std::min(dropped + lowest - field, 31u);
            const std::uint32_t code =
                ((number + ((1u << (by - 1)) - 1) + (number >> by & 1u)) >> by) - (normal ? (lowest - 1) << bits : 0u);
            codes[c] = static_cast<std::uint8_t>(std::min(code, largest));
        }
        return true;
    }
    [[gnu::noinline]] void find_codes(const std::array<std::uint8_t, chunk>& codes) noexcept {
        for (const std::uint8_t code : codes) {
            if (known_[code]) continue;
            const Factors own = factors_of(code);
            known_[code] = true;
            encode_[code] = own.encode;
            decode_[code] = own.decode;
            results_[code] = own.result;
            worst_ = std::min(worst_, own.result);
        }
    }
    [[nodiscard]] Factors factors_of(std::uint32_t code) const noexcept {
        BlockScale scale;
        if (format_.has_exponent_codes()) {
            const int exponent = static_cast<int>(code) - format_.scale.bias;
            scale.encode = {compose<float>(false, 1, -exponent), false};
            scale.decode = {compose<float>(false, 1, exponent), false};
        } else {
            scale = scale_of_code(format_, code, tensor_, false);
        }
        // A scale of 0 decodes finite elements to zeros.
        return factors(scale, is_any_zero(scale.decode.value) && !is_nan(scale.encode.value));
    }

    BlockFormat format_;
    TensorNumbers tensor_;
    bool coded_ = false;
    int least_ = 0;
    std::uint32_t carry_ = 0;
    std::array<bool, 256> known_{};  ///< codes whose factors are found
    std::array<float, 256> encode_, decode_;
    std::array<BlockResult, 256> results_;
    BlockResult worst_ = BlockResult::exact_in_bf16;  ///< of known codes
};

}  // namespace unitscale::kernels
