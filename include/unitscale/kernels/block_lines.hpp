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
    /// factors 0. False, with unspecified factors, if a block needs more than two plain products: it holds a NaN or an
    /// infinity, it divides, its scale is extreme.
    [[nodiscard]] bool find(const std::uint32_t* words, std::ptrdiff_t count, float* encode, float* decode) noexcept {
        if (coded_) return find_coded(words, count, encode, decode);
        for (std::ptrdiff_t c = 0; c < count; ++c) {
            if (words[c] >= infinity_word) return false;
            if (!take(words[c] == 0 ? BlockScale{} : block_scale(format_, std::bit_cast<float>(words[c]), tensor_),
                      words[c] == 0, encode[c], decode[c]))
                return false;
        }
        return true;
    }

private:
    static constexpr std::ptrdiff_t chunk = 64;

    [[nodiscard]] bool take(const BlockScale& scale, bool zeros, float& encode, float& decode) const noexcept {
        encode = zeros ? 0.0f : scale.encode.value;
        decode = zeros ? 0.0f : scale.decode.value;
        return zeros || (!scale.encode.divides && !scale.decode.divides &&
                         BlockScaler::encodes_plainly(format_.element, scale.encode) &&
                         BlockScaler::decodes_plainly(format_.element, scale.decode));
    }

    [[nodiscard]] bool find_coded(const std::uint32_t* words, std::ptrdiff_t count, float* encode,
                                  float* decode) noexcept {
        std::array<std::uint8_t, chunk> codes;
        for (std::ptrdiff_t begin = 0; begin < count; begin += chunk) {
            const auto n = static_cast<std::size_t>(std::min(chunk, count - begin));
            const std::span<const std::uint32_t> part(words + begin, n);
            if (!(format_.has_exponent_codes() ? exponent_codes(part, codes) : mantissa_codes(part, codes)))
                return false;
            for (std::size_t c = 0; c < n; ++c) {
                Factors& known = known_[codes[c]];
                if (known.state == State::unknown) make(codes[c], known);
                if (part[c] != 0 && known.state == State::refused) return false;
                encode[begin + static_cast<std::ptrdiff_t>(c)] = part[c] == 0 ? 0.0f : known.encode;
                decode[begin + static_cast<std::ptrdiff_t>(c)] = part[c] == 0 ? 0.0f : known.decode;
            }
        }
        return true;
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
    [[nodiscard]] bool exponent_codes(std::span<const std::uint32_t> words,
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
    [[nodiscard]] bool mantissa_codes(std::span<const std::uint32_t> words,
                                      std::array<std::uint8_t, chunk>& codes) const noexcept {
        const bool product = format_.tensor_scale && format_.rule == BlockRule::transformer_engine;
        for (std::size_t c = 0; c < words.size(); ++c) {
            const float amax = std::bit_cast<float>(words[c]);
            if (words[c] >= infinity_word) return false;
            // One product, which the processor rounds as `rounded_product` does where it is normal.
            float wanted = product ? amax * tensor_.by_max : 0.0f;
            if (!is_normal(wanted)) wanted = wanted_scale(format_, amax, tensor_);
            if (magnitude_word(wanted) >= infinity_word) return false;
            codes[c] = static_cast<std::uint8_t>(nearest_code(magnitude_word(wanted)));
        }
        return true;
    }
    /// The code of a finite scale, rounded to nearest even, saturated: `round_to` without its other options.
    [[nodiscard]] std::uint32_t nearest_code(std::uint32_t word) const noexcept {
        const FloatFormat& format = format_.scale;
        const auto bits = static_cast<std::uint32_t>(format.mantissa_bits), dropped = 23 - bits;
        const std::uint32_t field = word >> 23, lowest = static_cast<std::uint32_t>(format.min_exponent() + 127);
        const auto shifted_nearest = [](std::uint32_t number, std::uint32_t by) {
            return (number + ((1u << (by - 1)) - 1) + (number >> by & 1u)) >> by;
        };
        std::uint32_t code = 0;
        if (field >= lowest) code = shifted_nearest(word, dropped) - ((lowest - 1) << bits);
        else if (dropped + lowest - field < 25)
            code = shifted_nearest((word & 0x7FFFFFu) | 0x800000u, dropped + lowest - field);
        return std::min(code, format.max_code());
    }

    enum class State : std::uint8_t { unknown, known, refused };
    struct Factors {
        float encode = 0, decode = 0;
        State state = State::unknown;
    };
    void make(std::uint32_t code, Factors& out) const noexcept {
        BlockScale scale;
        if (format_.has_exponent_codes()) {
            const int exponent = static_cast<int>(code) - format_.scale.bias;
            scale.encode = {compose<float>(false, 1, -exponent), false};
            scale.decode = {compose<float>(false, 1, exponent), false};
        } else {
            scale = scale_of_code(format_, code, tensor_, false);
        }
        // A scale of 0 decodes finite elements to zeros.
        out.state = take(scale, is_any_zero(scale.decode.value) && !is_nan(scale.encode.value), out.encode, out.decode)
                        ? State::known
                        : State::refused;
    }

    BlockFormat format_;
    TensorNumbers tensor_;
    bool coded_ = false;
    int least_ = 0;
    std::uint32_t carry_ = 0;
    std::array<Factors, 256> known_{};
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

/// words[c] = max(words[c], the largest magnitude of block c of a line, as a word).
UNITSCALE_TARGET_AVX512 inline void block_words_avx512(const float* x, std::ptrdiff_t n, std::ptrdiff_t along,
                                                       std::uint32_t* words) {
    const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF);
    for (std::ptrdiff_t begin = 0; begin < n; begin += along, ++words) {
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

/// x[i] = Q(x[i] encode[c]) decode[c] for block c of a line, to nearest even.
UNITSCALE_TARGET_AVX512 inline void quantise_line_avx512(const products::RegisterQuantiser& constants, float* x,
                                                         std::ptrdiff_t n, std::ptrdiff_t along, const float* encode,
                                                         const float* decode) {
    const products::RegisterQuantiser quantiser = constants;
    for (std::ptrdiff_t begin = 0, c = 0; begin < n; begin += along, ++c) {
        const std::ptrdiff_t end = std::min(begin + along, n);
        const __m512 forward = _mm512_set1_ps(encode[c]), back = _mm512_set1_ps(decode[c]);
        for (std::ptrdiff_t i = begin; i < end; i += 16) {
            const auto mask = static_cast<__mmask16>(end - i >= 16 ? 0xFFFFu : (1u << (end - i)) - 1);
            const __m512 v = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, x + i), forward);
            const __m512 q = products::quantise_in_register<products::RegisterQuantisation::by_exponent>(quantiser, v);
            _mm512_mask_storeu_ps(x + i, mask, _mm512_mul_ps(q, back));
        }
    }
}
UNITSCALE_TARGET_AVX2 inline void quantise_line_avx2(const products::RegisterQuantiser& constants, float* x,
                                                     std::ptrdiff_t n, std::ptrdiff_t along, const float* encode,
                                                     const float* decode) {
    const products::RegisterQuantiser quantiser = constants;
    for (std::ptrdiff_t begin = 0, c = 0; begin < n; begin += along, ++c) {
        const std::ptrdiff_t end = std::min(begin + along, n);
        const __m256 forward = _mm256_set1_ps(encode[c]), back = _mm256_set1_ps(decode[c]);
        for (std::ptrdiff_t i = begin; i < end; i += 8) {
            std::array<float, 8> part{};
            const std::ptrdiff_t count = std::min<std::ptrdiff_t>(end - i, 8);
            float* const at = count < 8 ? part.data() : x + i;
            if (count < 8) std::copy_n(x + i, count, part.data());
            const __m256 v = _mm256_mul_ps(_mm256_loadu_ps(at), forward);
            const __m256 q = products::quantise_in_register<products::RegisterQuantisation::by_exponent>(quantiser, v);
            _mm256_storeu_ps(at, _mm256_mul_ps(q, back));
            if (count < 8) std::copy_n(part.data(), count, x + i);
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

/// Lines of blocks of one tensor, quantised to numbers. `format` has no `four_over_six`.
/// Test: tests/kernels/block_lines_test.cpp
class BlockLines {
public:
    /// `element`: the options of the tensor's elements. `length`: of a line. `whole`: where the tensor has one scale,
    /// the factor that encodes it; elements are not decoded then.
    BlockLines(Isa isa, const Execution& execution, const BlockFormat& format, const TensorNumbers& tensor,
               const QuantiseOptions& element, std::ptrdiff_t length, std::optional<float> whole = {})
        : isa_(isa),
          format_(format),
          element_(element),
          whole_(whole),
          scales_(format, tensor),
          length_(length),
          along_(format.along == whole_dimension ? length : format.along),
          blocks_((length + along_ - 1) / along_),
          words_(execution, static_cast<std::size_t>(blocks_)),
          factors_(execution, static_cast<std::size_t>(2 * blocks_)) {
        const Quantiser quantiser{
            .format = format.element, .rounding = element_.rounding, .overflow = element_.overflow};
        if (products::register_quantisation(quantiser) == products::RegisterQuantisation::by_exponent)
            constants_ = products::register_quantiser(&quantiser);
    }

    enum class Result { refused, quantised, exact_in_bf16 };

    /// Quantises lines `first` and following of the tensor, which share scales, in place at x. Refused, and x as
    /// before, if a block needs more than plain products (`BlockScales::find`). `scales`: not null, then x becomes the
    /// elements, and scales[c] is the factor that decodes block c.
    [[nodiscard]] Result quantise(float* x, std::ptrdiff_t first, std::ptrdiff_t lines, float* scales = nullptr) {
        float *const encode = factors_.data(), *const decode = encode + blocks_;
        if (whole_) {
            *encode = *whole_;
            *decode = 1;
        } else {
            block_words(isa_, x, lines, length_, along_, words_.data());
            if (!scales_.find(words_.data(), blocks_, encode, decode)) return Result::refused;
        }
        if (scales != nullptr) {
            std::copy_n(decode, blocks_, scales);
            std::fill_n(decode, blocks_, 1.0f);
        }
        quantise_lines(x, first, lines, encode, decode);
        // Significant bits of element and factor add up in their product. `find` admits no subnormal product.
        const auto short_enough = [bits = format_.element.mantissa_bits](float factor) {
            const std::uint32_t significand = (magnitude_word(factor) & 0x7FFFFFu) | 0x800000u;
            return 24 - std::countr_zero(significand) + bits <= 8;
        };
        return std::all_of(decode, decode + blocks_, short_enough) ? Result::exact_in_bf16 : Result::quantised;
    }

private:
    void quantise_lines(float* x, std::ptrdiff_t first, std::ptrdiff_t lines, const float* encode,
                        const float* decode) const {
#if UNITSCALE_X86
        if (constants_.kind != products::RegisterQuantisation::none && isa_ >= Isa::avx2) {
            for (std::ptrdiff_t line = 0; line < lines; ++line, x += length_)
                isa_ == Isa::avx512 ? quantise_line_avx512(constants_, x, length_, along_, encode, decode)
                                    : quantise_line_avx2(constants_, x, length_, along_, encode, decode);
            return;
        }
#endif
        for (std::ptrdiff_t line = 0; line < lines; ++line) multiply(x + line * length_, encode);
        QuantiseOptions options = element_;
        options.first_index += static_cast<std::uint64_t>(first * length_);
        const std::span<float> values(x, static_cast<std::size_t>(lines * length_));
        unitscale::quantise(format_.element, std::span<const float>(values), values, options);
        for (std::ptrdiff_t line = 0; line < lines; ++line) multiply(x + line * length_, decode);
    }
    /// Plain products by block.
    void multiply(float* x, const float* factors) const noexcept {
        constexpr std::ptrdiff_t lanes = 8;  // a fixed count, so that the loop is vectorised
        for (std::ptrdiff_t begin = 0, c = 0; begin < length_; begin += along_, ++c) {
            const std::ptrdiff_t end = std::min(begin + along_, length_);
            const float factor = factors[c];
            std::ptrdiff_t i = begin;
            for (; i + lanes <= end; i += lanes)
                for (std::ptrdiff_t l = 0; l < lanes; ++l) x[i + l] *= factor;
            for (; i < end; ++i) x[i] *= factor;
        }
    }

    Isa isa_;
    BlockFormat format_;
    QuantiseOptions element_;
    std::optional<float> whole_;
    BlockScales scales_;
    std::ptrdiff_t length_, along_, blocks_;
    Scratch<std::uint32_t> words_;
    Scratch<float> factors_;
    products::RegisterQuantiser constants_{};
};

}  // namespace unitscale::kernels
