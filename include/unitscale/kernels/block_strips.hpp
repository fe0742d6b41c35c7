// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/formats/block_codes.hpp>
#include <unitscale/formats/quantise.hpp>
#include <unitscale/kernels/block_lines.hpp>
#include <unitscale/products/register_quantiser.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#if UNITSCALE_X86
#include <immintrin.h>
#endif

// Blocks that run down the columns of a matrix, quantised in the order of its rows: the fast path of `round_blocks`
// where rows are contracted. A transposed copy would cost more than the quantisation.
namespace unitscale::kernels {

#if UNITSCALE_X86

/// words[j] = max(words[j], |x[j]| as a word).
UNITSCALE_TARGET_AVX512 inline void column_words_avx512(const float* x, std::ptrdiff_t n, std::uint32_t* words) {
    const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF);
    for (std::ptrdiff_t j = 0; j < n; j += 16) {
        const auto mask = static_cast<__mmask16>(n - j >= 16 ? 0xFFFFu : (1u << (n - j)) - 1);
        const __m512i word = _mm512_and_si512(_mm512_maskz_loadu_epi32(mask, x + j), magnitude);
        const __m512i largest = _mm512_maskz_max_epu32(mask, word, _mm512_maskz_loadu_epi32(mask, words + j));
        _mm512_mask_storeu_epi32(words + j, mask, largest);
    }
}
UNITSCALE_TARGET_AVX2 inline void column_words_avx2(const float* x, std::ptrdiff_t n, std::uint32_t* words) {
    const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF);
    std::ptrdiff_t j = 0;
    for (; j + 8 <= n; j += 8) {
        const __m256i word = _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + j)), magnitude);
        __m256i* const at = reinterpret_cast<__m256i*>(words + j);
        _mm256_storeu_si256(at, _mm256_max_epu32(word, _mm256_loadu_si256(at)));
    }
    for (; j < n; ++j) words[j] = std::max(words[j], magnitude_word(x[j]));
}

/// y[j] = Q(x[j] encode[j]) decode[j], to nearest even; y may be x.
UNITSCALE_TARGET_AVX512 inline void quantise_row_avx512(const products::RegisterQuantiser& constants, const float* x,
                                                        float* y, std::ptrdiff_t n, const float* encode,
                                                        const float* decode) {
    const products::RegisterQuantiser quantiser = constants;
    const auto sixteen = [&](__m512 v, __m512 forward, __m512 back) UNITSCALE_TARGET_AVX512 {
        v = _mm512_mul_ps(v, forward);
        return _mm512_mul_ps(products::quantise_in_register<products::RegisterQuantisation::by_exponent>(quantiser, v),
                             back);
    };
    std::ptrdiff_t j = 0;
    for (; j + 16 <= n; j += 16)
        _mm512_storeu_ps(y + j,
                         sixteen(_mm512_loadu_ps(x + j), _mm512_loadu_ps(encode + j), _mm512_loadu_ps(decode + j)));
    if (j == n) return;
    const auto mask = static_cast<__mmask16>((1u << (n - j)) - 1);
    _mm512_mask_storeu_ps(y + j, mask,
                          sixteen(_mm512_maskz_loadu_ps(mask, x + j), _mm512_maskz_loadu_ps(mask, encode + j),
                                  _mm512_maskz_loadu_ps(mask, decode + j)));
}
UNITSCALE_TARGET_AVX2 inline void quantise_row_avx2(const products::RegisterQuantiser& constants, const float* x,
                                                    float* y, std::ptrdiff_t n, const float* encode,
                                                    const float* decode) {
    const products::RegisterQuantiser quantiser = constants;
    const auto eight = [&](const float* from, const float* forward, const float* back,
                           float* to) UNITSCALE_TARGET_AVX2 {
        const __m256 v = _mm256_mul_ps(_mm256_loadu_ps(from), _mm256_loadu_ps(forward));
        const __m256 q = products::quantise_in_register<products::RegisterQuantisation::by_exponent>(quantiser, v);
        _mm256_storeu_ps(to, _mm256_mul_ps(q, _mm256_loadu_ps(back)));
    };
    std::ptrdiff_t j = 0;
    for (; j + 8 <= n; j += 8) eight(x + j, encode + j, decode + j, y + j);
    if (j == n) return;
    float part[3][8] = {};
    std::copy(x + j, x + n, part[0]);
    std::copy(encode + j, encode + n, part[1]);
    std::copy(decode + j, decode + n, part[2]);
    eight(part[0], part[1], part[2], part[0]);
    std::copy_n(part[0], n - j, y + j);
}

#endif

/// Strips of one tensor's blocks, quantised to numbers. A strip is `along` rows, or fewer at the tensor's end; blocks
/// are `across` columns wide. A zero may have another sign than in `quantise_blocks`.
/// Test: tests/kernels/block_strips_test.cpp
class BlockStrips {
public:
    /// `format` has no `four_over_six`; `element` does not round stochastically, because that depends on the order of
    /// elements. `columns`: the widest strip. `whole`: if the tensor has one scale.
    BlockStrips(Isa isa, const Execution& execution, const BlockFormat& format, const TensorNumbers& tensor,
                const QuantiseOptions& element, std::ptrdiff_t columns, const std::optional<WholeScale>& whole = {})
        : isa_(isa),
          element_format_(format.element),
          element_(element),
          whole_(whole),
          across_(format.across == whole_dimension ? columns : format.across),
          scales_(format, tensor),
          words_(execution, static_cast<std::size_t>(columns)),
          factors_(execution, static_cast<std::size_t>(2 * columns)),
          columns_(columns),
          constants_(BlockLines::register_constants(format.element, element)) {}

    /// Quantises a strip of `rows` rows, `x_row` and `y_row` floats apart, from x to y; y may be x. Refused, and y as
    /// before, if a block needs more than plain products (`BlockScales::find`). `scales`: not null, then y becomes the
    /// elements, and scales[j step] is the factor that decodes column j.
    [[nodiscard]] BlockResult quantise(const float* x, std::ptrdiff_t x_row, float* y, std::ptrdiff_t y_row,
                                       std::ptrdiff_t rows, std::ptrdiff_t columns, float* scales = nullptr,
                                       std::ptrdiff_t step = 1) {
        float *const encode = factors_.data(), *const decode = encode + columns_;
        BlockResult result = BlockResult::refused;
        if (whole_) {
            std::fill_n(encode, columns, whole_->encode);
            std::fill_n(decode, columns, whole_->decode);
            result = result_of(element_format_, whole_->decode);
        } else {
            result = find(x, x_row, rows, columns);
            if (result == BlockResult::refused) return result;
        }
        if (scales != nullptr) {
            for (std::ptrdiff_t j = 0; j < columns; ++j) scales[j * step] = decode[j];
            std::fill_n(decode, columns, 1.0f);
            result = result_of(element_format_, 1.0f);
        }
        for (std::ptrdiff_t i = 0; i < rows; ++i, x += x_row, y += y_row) quantise_row(x, y, columns, encode, decode);
        return result;
    }

private:
    [[nodiscard]] BlockResult find(const float* x, std::ptrdiff_t x_row, std::ptrdiff_t rows, std::ptrdiff_t columns) {
        std::uint32_t* const words = words_.data();
        float *const encode = factors_.data(), *const decode = encode + columns_;
        std::fill_n(words, columns, 0u);
        for (std::ptrdiff_t i = 0; i < rows; ++i, x += x_row) column_words(x, columns, words);
        if (across_ == 1) return scales_.find(words, columns, encode, decode);
        const std::ptrdiff_t blocks = (columns + across_ - 1) / across_;
        for (std::ptrdiff_t c = 0; c < blocks; ++c)
            words[c] = *std::max_element(words + c * across_, words + std::min((c + 1) * across_, columns));
        const BlockResult result = scales_.find(words, blocks, encode, decode);
        for (float* const factors : {encode, decode})
            for (std::ptrdiff_t c = blocks - 1; c >= 0; --c) {  // from the last, which moves farthest
                const float factor = factors[c];
                std::fill(factors + c * across_, factors + std::min((c + 1) * across_, columns), factor);
            }
        return result;
    }
    void column_words(const float* x, std::ptrdiff_t n, std::uint32_t* words) const noexcept {
#if UNITSCALE_X86
        if (isa_ == Isa::avx512) return column_words_avx512(x, n, words);
        if (isa_ == Isa::avx2) return column_words_avx2(x, n, words);
#endif
        for (std::ptrdiff_t j = 0; j < n; ++j) words[j] = std::max(words[j], magnitude_word(x[j]));
    }
    void quantise_row(const float* x, float* y, std::ptrdiff_t n, const float* encode, const float* decode) const {
#if UNITSCALE_X86
        if (constants_.kind != products::RegisterQuantisation::none && isa_ >= Isa::avx2)
            return isa_ == Isa::avx512 ? quantise_row_avx512(constants_, x, y, n, encode, decode)
                                       : quantise_row_avx2(constants_, x, y, n, encode, decode);
#endif
        for (std::ptrdiff_t j = 0; j < n; ++j) y[j] = x[j] * encode[j];
        const std::span<float> values(y, static_cast<std::size_t>(n));
        unitscale::quantise(element_format_, std::span<const float>(values), values, element_);
        for (std::ptrdiff_t j = 0; j < n; ++j) y[j] *= decode[j];
    }

    Isa isa_;
    FloatFormat element_format_;
    QuantiseOptions element_;
    std::optional<WholeScale> whole_;
    std::ptrdiff_t across_;
    BlockScales scales_;
    Scratch<std::uint32_t> words_;
    Scratch<float> factors_;
    std::ptrdiff_t columns_;
    products::RegisterQuantiser constants_;
};

}  // namespace unitscale::kernels
