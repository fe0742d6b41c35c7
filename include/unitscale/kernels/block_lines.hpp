// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/formats/block_codes.hpp>
#include <unitscale/formats/quantise.hpp>
#include <unitscale/kernels/block_scales.hpp>
#include <unitscale/products/register_quantiser.hpp>

#include <algorithm>
#include <array>
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

/// a = max(a, b), for words without sign.
[[gnu::always_inline]] UNITSCALE_TARGET_AVX512 inline void take_larger(products::Words512& a,
                                                                       const products::Words512& b) noexcept {
    a = a > b ? a : b;
}

/// Lane c of rows[0] becomes the largest lane of rows[c], for words without sign. Fewer than three instructions for
/// each of the rows, where `largest_lane` has nine.
[[gnu::always_inline]] UNITSCALE_TARGET_AVX512 inline void find_largest_lanes(products::Words512 (&rows)[16]) noexcept {
    using products::Words512;
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {  // columns in pairs: 0 and 2, 1 and 3 of four
        const Words512 a = rows[2 * i], b = rows[2 * i + 1];
        rows[i] = __builtin_shufflevector(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
        take_larger(rows[i], __builtin_shufflevector(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31));
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {  // the largest of every four columns, for four rows
        const Words512 a = rows[2 * i], b = rows[2 * i + 1];
        rows[i] = __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
        take_larger(rows[i], __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31));
    }
#pragma GCC unroll 2
    for (int round = 0; round < 2; ++round)
#pragma GCC unroll 2
        for (int i = 0; i < 2 - round; ++i) {
            const Words512 a = rows[2 * i], b = rows[2 * i + 1];
            rows[i] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27);
            take_larger(rows[i],
                        __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31));
        }
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
                take_larger(largest[c], reinterpret_cast<Words512>(_mm512_loadu_ps(block + i)) & 0x7FFFFFFF);
            }
        }
        find_largest_lanes(largest);
        take_larger(largest[0], reinterpret_cast<Words512>(_mm512_loadu_si512(words)));
        _mm512_storeu_si512(words, reinterpret_cast<__m512i>(largest[0]));
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
        return _mm512_mul_ps(products::quantise_in_register<products::RegisterQuantisation::by_exponent>(quantiser, v),
                             back);
    };
    std::ptrdiff_t begin = 0, c = 0;
    for (; along % 16 == 0 && begin + along <= n; begin += along, ++c) {  // whole vectors only
        const __m512 forward = _mm512_set1_ps(encode[c]), back = _mm512_set1_ps(decode[c]);
        for (std::ptrdiff_t i = begin; i != begin + along; i += 16)
            _mm512_storeu_ps(y + i, sixteen(_mm512_loadu_ps(x + i), forward, back));
    }
    for (; begin < n; begin += along, ++c) {
        const std::ptrdiff_t end = std::min(begin + along, n);
        const __m512 forward = _mm512_set1_ps(encode[c]), back = _mm512_set1_ps(decode[c]);
        for (std::ptrdiff_t i = begin; i < end; i += 16) {
            const auto mask = static_cast<__mmask16>(end - i >= 16 ? 0xFFFFu : (1u << (end - i)) - 1);
            _mm512_mask_storeu_ps(y + i, mask, sixteen(_mm512_maskz_loadu_ps(mask, x + i), forward, back));
        }
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
inline void block_words([[maybe_unused]] Isa isa, const float* x, std::ptrdiff_t lines, std::ptrdiff_t length,
                        std::ptrdiff_t along, std::uint32_t* words) {
    std::fill_n(words, (length + along - 1) / along, 0u);
    for (std::ptrdiff_t line = 0; line < lines; ++line, x += length) {
#if UNITSCALE_X86
        if (isa == Isa::avx512) {
            block_words_avx512(x, length, along, words);
            continue;
        }
#endif
        for (std::ptrdiff_t begin = 0, c = 0; begin < length; begin += along, ++c)
            words[c] =
                std::max(words[c], largest_word(x + begin, static_cast<std::size_t>(std::min(along, length - begin))));
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
          constants_(register_constants(format.element, element)) {
        if (constants_.kind == products::RegisterQuantisation::none && has_quantise_loop(format.element))
            chunks_.emplace(isa, format.element, element);
    }

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
                        const float* decode) {
#if UNITSCALE_X86
        if (constants_.kind != products::RegisterQuantisation::none && isa_ >= Isa::avx2) {
            for (std::ptrdiff_t line = 0; line < lines; ++line, x += length_, y += length_)
                isa_ == Isa::avx512 ? quantise_line_avx512(constants_, x, y, length_, along_, encode, decode)
                                    : quantise_line_avx2(constants_, x, y, length_, along_, encode, decode);
            return;
        }
#endif
        for (std::ptrdiff_t line = 0; line < lines; ++line) multiply(x + line * length_, y + line * length_, encode);
        const auto size = static_cast<std::size_t>(lines * length_);
        const auto begin = static_cast<std::uint64_t>(first * length_);
        if (chunks_) {
            for (std::size_t at = 0; at < size; at += random_chunk)
                chunks_->run(y + at, y + at, std::min(random_chunk, size - at), begin + at);
        } else {
            QuantiseOptions options = element_;
            options.first_index += begin;
            const std::span<float> values(y, size);
            unitscale::quantise(format_.element, std::span<const float>(values), values, options);
        }
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
    /// Else, for formats with a loop: set up once, because that takes as long as some hundred elements. Blocks with a
    /// NaN never come here.
    std::optional<ChunkQuantiser> chunks_{};
};

}  // namespace unitscale::kernels
