// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/formats/block_codes.hpp>
#include <unitscale/formats/block_scale.hpp>
#include <unitscale/formats/code.hpp>
#include <unitscale/formats/quantise.hpp>
#include <unitscale/products/register_quantiser.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#if UNITSCALE_X86
#include <immintrin.h>
#endif

// Lines of blocks, quantised in place: the fast path of `round_blocks`. It computes the numbers that `quantise_blocks`
// computes. A zero may have the other sign, which no sum of products shows.
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
/// Test: tests/kernels/block_lines_test.cpp
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
            const Factors own = factors(
                zeros ? BlockScale{} : block_scale(format_, std::bit_cast<float>(words[c]), tensor_), zeros);
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
            const std::uint32_t code = ((number + ((1u << (by - 1)) - 1) + (number >> by & 1u)) >> by) -
                                       (normal ? (lowest - 1) << bits : 0u);
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

#if UNITSCALE_X86

/// GCC 12 warns of its own intrinsics without a mask where they shuffle.
[[gnu::always_inline]] UNITSCALE_TARGET_AVX512 inline std::uint32_t largest_lane(__m512i x) noexcept {
    constexpr auto all = static_cast<__mmask8>(0xFF);
    const __m256i eight =
        _mm256_max_epu32(_mm512_maskz_extracti64x4_epi64(all, x, 0), _mm512_maskz_extracti64x4_epi64(all, x, 1));
    __m128i four = _mm_max_epu32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0x4E));
    four = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0xB1));
    return static_cast<std::uint32_t>(_mm_cvtsi128_si32(four));
}

/// Lane c of the result is the largest lane of rows[c], for words without sign. Fewer than three instructions for each
/// of the rows, where `largest_lane` has nine.
[[gnu::always_inline]] UNITSCALE_TARGET_AVX512 inline products::Words512 largest_lanes(
    products::Words512 (&rows)[16]) noexcept {
    using products::Words512;
    const auto larger = [](Words512 a, Words512 b) UNITSCALE_TARGET_AVX512 { return a > b ? a : b; };
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {  // columns in pairs: 0 and 2, 1 and 3 of four
        const Words512 a = rows[2 * i], b = rows[2 * i + 1];
        rows[i] = larger(__builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29),
                         __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31));
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {  // the largest of every four columns, for four rows
        const Words512 a = rows[2 * i], b = rows[2 * i + 1];
        rows[i] = larger(__builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29),
                         __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31));
    }
#pragma GCC unroll 2
    for (int round = 0; round < 2; ++round)
#pragma GCC unroll 2
        for (int i = 0; i < 2 - round; ++i) {
            const Words512 a = rows[2 * i], b = rows[2 * i + 1];
            rows[i] = larger(__builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27),
                             __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31));
        }
    return rows[0];
}

/// words[c] = max(words[c], the largest magnitude of block c of a line, as a word).
UNITSCALE_TARGET_AVX512 inline void block_words_avx512(const float* x, std::ptrdiff_t n, std::ptrdiff_t along,
                                                       std::uint32_t* words) {
    using products::Words512;
    const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF);
    std::ptrdiff_t begin = 0;
    for (; along % 16 == 0 && begin + 16 * along <= n; begin += 16 * along, words += 16) {
        Words512 largest[16];
#pragma GCC unroll 16
        for (std::ptrdiff_t c = 0; c < 16; ++c) {
            const float* const block = x + begin + c * along;
            largest[c] = reinterpret_cast<Words512>(_mm512_loadu_ps(block)) & 0x7FFFFFFF;
            for (std::ptrdiff_t i = 16; i < along; i += 16) {
                const Words512 word = reinterpret_cast<Words512>(_mm512_loadu_ps(block + i)) & 0x7FFFFFFF;
                largest[c] = word > largest[c] ? word : largest[c];
            }
        }
        const Words512 found = largest_lanes(largest);
        const auto before = reinterpret_cast<Words512>(_mm512_loadu_si512(words));
        _mm512_storeu_si512(words, reinterpret_cast<__m512i>(found > before ? found : before));
    }
    for (; begin < n; begin += along, ++words) {
        const std::ptrdiff_t end = std::min(begin + along, n);
        __m512i largest = _mm512_setzero_si512();
        for (std::ptrdiff_t i = begin; i < end; i += 16) {
            const auto mask = static_cast<__mmask16>(end - i >= 16 ? 0xFFFFu : (1u << (end - i)) - 1);
            const __m512i word = _mm512_and_si512(_mm512_maskz_loadu_epi32(mask, x + i), magnitude);
            largest = _mm512_maskz_max_epu32(0xFFFF, largest, word);
        }
        *words = std::max(*words, largest_lane(largest));
    }
}

/// y[i] = Q(x[i] encode[c]) decode[c] for block c of a line, to nearest even; y may be x.
UNITSCALE_TARGET_AVX512 inline void quantise_line_avx512(const products::RegisterQuantiser& constants, const float* x,
                                                         float* y, std::ptrdiff_t n, std::ptrdiff_t along,
                                                         const float* encode, const float* decode) {
    const products::RegisterQuantiser quantiser = constants;
    const auto sixteen = [&](__m512 v, __m512 forward, __m512 back) UNITSCALE_TARGET_AVX512 {
        v = _mm512_mul_ps(v, forward);
        return _mm512_mul_ps(
            products::quantise_in_register<products::RegisterQuantisation::by_exponent>(quantiser, v), back);
    };
    for (std::ptrdiff_t begin = 0, c = 0; begin < n; begin += along, ++c) {
        const std::ptrdiff_t end = std::min(begin + along, n);
        const __m512 forward = _mm512_set1_ps(encode[c]), back = _mm512_set1_ps(decode[c]);
        std::ptrdiff_t i = begin;
        for (; i + 16 <= end; i += 16) _mm512_storeu_ps(y + i, sixteen(_mm512_loadu_ps(x + i), forward, back));
        if (i == end) continue;
        const auto mask = static_cast<__mmask16>((1u << (end - i)) - 1);
        _mm512_mask_storeu_ps(y + i, mask, sixteen(_mm512_maskz_loadu_ps(mask, x + i), forward, back));
    }
}
UNITSCALE_TARGET_AVX2 inline void quantise_line_avx2(const products::RegisterQuantiser& constants, const float* x,
                                                     float* y, std::ptrdiff_t n, std::ptrdiff_t along,
                                                     const float* encode, const float* decode) {
    const products::RegisterQuantiser quantiser = constants;
    for (std::ptrdiff_t begin = 0, c = 0; begin < n; begin += along, ++c) {
        const std::ptrdiff_t end = std::min(begin + along, n);
        const __m256 forward = _mm256_set1_ps(encode[c]), back = _mm256_set1_ps(decode[c]);
        for (std::ptrdiff_t i = begin; i < end; i += 8) {
            std::array<float, 8> part{};
            const std::ptrdiff_t count = std::min<std::ptrdiff_t>(end - i, 8);
            if (count < 8) std::copy_n(x + i, count, part.data());
            const __m256 v = _mm256_mul_ps(_mm256_loadu_ps(count < 8 ? part.data() : x + i), forward);
            const __m256 q = products::quantise_in_register<products::RegisterQuantisation::by_exponent>(quantiser, v);
            _mm256_storeu_ps(count < 8 ? part.data() : y + i, _mm256_mul_ps(q, back));
            if (count < 8) std::copy_n(part.data(), count, y + i);
        }
    }
}

#endif

/// words[c] = the largest magnitude of block c in `lines` lines, as a word.
inline void block_words(Isa isa, const float* x, std::ptrdiff_t lines, std::ptrdiff_t length, std::ptrdiff_t along,
                        std::uint32_t* words) {
    std::fill_n(words, (length + along - 1) / along, 0u);
    for (std::ptrdiff_t line = 0; line < lines; ++line, x += length) {
#if UNITSCALE_X86
        if (isa == Isa::avx512) {
            block_words_avx512(x, length, along, words);
            continue;
        }
#endif
        for (std::ptrdiff_t begin = 0, c = 0; begin < length; begin += along, ++c)
            words[c] = std::max(
                words[c], largest_word(x + begin, static_cast<std::size_t>(std::min(along, length - begin))));
    }
}

/// The factors of a tensor that has one scale.
struct WholeScale {
    float encode = 1, decode = 1;
};

/// Lines of blocks of one tensor, quantised to numbers. `format` has no `four_over_six`.
/// Test: tests/kernels/block_lines_test.cpp
class BlockLines {
public:
    /// `element`: the options of the tensor's elements. `length`: of a line. `whole`: if the tensor has one scale.
    BlockLines(Isa isa, const Execution& execution, const BlockFormat& format, const TensorNumbers& tensor,
               const QuantiseOptions& element, std::ptrdiff_t length, const std::optional<WholeScale>& whole = {})
        : isa_(isa),
          format_(format),
          element_(element),
          whole_(whole),
          scales_(format, tensor),
          length_(length),
          along_(format.along == whole_dimension ? length : format.along),
          blocks_((length + along_ - 1) / along_),
          words_(execution, static_cast<std::size_t>(blocks_)),
          factors_(execution, static_cast<std::size_t>(2 * blocks_)),
          constants_(register_constants(format.element, element)) {}

    /// Quantises lines `first` and following of the tensor, which share scales, from x to y; y may be x. Refused, and y
    /// as before, if a block needs more than plain products (`BlockScales::find`). `scales`: not null, then y becomes
    /// the elements, and scales[c] is the factor that decodes block c.
    [[nodiscard]] BlockResult quantise(const float* x, float* y, std::ptrdiff_t first, std::ptrdiff_t lines,
                                       float* scales = nullptr) {
        float *const encode = factors_.data(), *const decode = encode + blocks_;
        BlockResult result = BlockResult::refused;
        if (whole_) {
            *encode = whole_->encode;
            *decode = whole_->decode;
            result = result_of(format_.element, *decode);
        } else {
            block_words(isa_, x, lines, length_, along_, words_.data());
            result = scales_.find(words_.data(), blocks_, encode, decode);
            if (result == BlockResult::refused) return result;
        }
        if (scales != nullptr) {
            std::copy_n(decode, blocks_, scales);
            std::fill_n(decode, blocks_, 1.0f);
            result = result_of(format_.element, 1.0f);
        }
        quantise_lines(x, y, first, lines, encode, decode);
        return result;
    }

    /// The constants that quantise a block's elements in a register; of kind `none` if that is not possible.
    [[nodiscard]] static products::RegisterQuantiser register_constants(const FloatFormat& format,
                                                                        const QuantiseOptions& element) {
        const Quantiser quantiser{.format = format, .rounding = element.rounding, .overflow = element.overflow};
        return products::register_quantisation(quantiser) == products::RegisterQuantisation::by_exponent
                   ? products::register_quantiser(&quantiser)
                   : products::RegisterQuantiser{};
    }

private:
    void quantise_lines(const float* x, float* y, std::ptrdiff_t first, std::ptrdiff_t lines, const float* encode,
                        const float* decode) const {
#if UNITSCALE_X86
        if (constants_.kind != products::RegisterQuantisation::none && isa_ >= Isa::avx2) {
            for (std::ptrdiff_t line = 0; line < lines; ++line, x += length_, y += length_)
                isa_ == Isa::avx512 ? quantise_line_avx512(constants_, x, y, length_, along_, encode, decode)
                                    : quantise_line_avx2(constants_, x, y, length_, along_, encode, decode);
            return;
        }
#endif
        for (std::ptrdiff_t line = 0; line < lines; ++line) multiply(x + line * length_, y + line * length_, encode);
        QuantiseOptions options = element_;
        options.first_index += static_cast<std::uint64_t>(first * length_);
        const std::span<float> values(y, static_cast<std::size_t>(lines * length_));
        unitscale::quantise(format_.element, std::span<const float>(values), values, options);
        for (std::ptrdiff_t line = 0; line < lines; ++line) multiply(y + line * length_, y + line * length_, decode);
    }
    /// Plain products by block.
    void multiply(const float* x, float* y, const float* factors) const noexcept {
        constexpr std::ptrdiff_t lanes = 8;  // a fixed count, so that the loop is vectorised
        for (std::ptrdiff_t begin = 0, c = 0; begin < length_; begin += along_, ++c) {
            const std::ptrdiff_t end = std::min(begin + along_, length_);
            const float factor = factors[c];
            std::ptrdiff_t i = begin;
            for (; i + lanes <= end; i += lanes)
                for (std::ptrdiff_t l = 0; l < lanes; ++l) y[i + l] = x[i + l] * factor;
            for (; i < end; ++i) y[i] = x[i] * factor;
        }
    }

    Isa isa_;
    BlockFormat format_;
    QuantiseOptions element_;
    std::optional<WholeScale> whole_;
    BlockScales scales_;
    std::ptrdiff_t length_, along_, blocks_;
    Scratch<std::uint32_t> words_;
    Scratch<float> factors_;
    products::RegisterQuantiser constants_;
};

}  // namespace unitscale::kernels
