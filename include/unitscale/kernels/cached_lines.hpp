// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/base/vectors.hpp>
#include <unitscale/formats/code.hpp>
#include <unitscale/products/pack.hpp>
#include <unitscale/products/quantise_lines.hpp>
#include <unitscale/tensor/cast.hpp>
#include <unitscale/tensor/code_table.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <type_traits>

// The lines of a key-value cache. A line is the key, or the value, of one head at one position.
namespace unitscale::kernels {

/// How a cache keeps the elements of its lines.
///   own               elements of T, copied
///   fp32, fp16, bf16  each element rounded once, to nearest even; too large a number becomes infinity
///   codes             codes of at most 8 bits, one to a byte, under one scale s for each line:
///     s = the smallest power of two with amax / s <= max, between 2^-126 and 2^127       amax of the line
///     code = x / s rounded once, to nearest even       decoded: value(code) s, exact in float
/// Formats of 16 bits and more need no scale: their range holds every key and value that half-precision models have.
/// The scale is a power of two and not amax / max itself. So a decoded number is exact: the one rounding of an element
/// is the rounding to its code, and the results equal attention over numbers rounded by this rule. Up to one bit of the
/// range is lost. A floating-point code has equal relative precision at every size, so this costs no precision but of
/// the smallest elements. The scale takes one byte, its exponent + 127.
/// A line that holds NaN or infinity decodes to NaN: its scale is the byte 255. A number that rounds to 2^128 decodes
/// to infinity, as it does by any rounding of floats.
enum class LineElement { own, fp32, fp16, bf16, codes };

/// Codes as numbers of half precision by shifts: the code's value is 2^power times the half's. The half's exponent is
/// below its largest, which stands for infinity and NaN. Codes of NaN and infinity are never stored.
struct HalfCodes {
    bool fits = false;
    std::int16_t sign_mask = 0, magnitude_mask = 0;
    int sign_shift = 0, magnitude_shift = 0, power = 0;

    explicit HalfCodes(const FloatFormat& format) noexcept
        : fits(format.mantissa_bits <= 10 && format.max_code() >> format.mantissa_bits < 31),
          sign_mask(static_cast<std::int16_t>(format.sign_mask())),
          magnitude_mask(static_cast<std::int16_t>(format.top_code())),
          sign_shift(16 - format.code_bits()),
          magnitude_shift(10 - format.mantissa_bits),
          power(15 - format.bias) {}
};

#if UNITSCALE_X86
/// out = the numbers of codes, as halves, times `scale`. In steps of 16; returns how many are done.
UNITSCALE_TARGET_AVX2 inline std::ptrdiff_t decode_halves_avx2(const HalfCodes& how, const std::uint8_t* codes,
                                                               std::ptrdiff_t n, float scale, float* out) noexcept {
    const __m256i sign_mask = _mm256_set1_epi16(how.sign_mask), magnitude_mask = _mm256_set1_epi16(how.magnitude_mask);
    const __m128i sign_shift = _mm_cvtsi32_si128(how.sign_shift),
                  magnitude_shift = _mm_cvtsi32_si128(how.magnitude_shift);
    const __m256 scales = _mm256_set1_ps(scale);
    std::ptrdiff_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m256i code = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i)));
        const __m256i half = _mm256_or_si256(_mm256_sll_epi16(_mm256_and_si256(code, sign_mask), sign_shift),
                                             _mm256_sll_epi16(_mm256_and_si256(code, magnitude_mask), magnitude_shift));
        _mm256_storeu_ps(out + i, _mm256_mul_ps(_mm256_cvtph_ps(_mm256_castsi256_si128(half)), scales));
        _mm256_storeu_ps(out + i + 8, _mm256_mul_ps(_mm256_cvtph_ps(_mm256_extracti128_si256(half, 1)), scales));
    }
    return i;
}
/// The same for elements of bfloat16, without a scale.
UNITSCALE_TARGET_AVX2 inline std::ptrdiff_t widen_bfloat16_avx2(const BFloat16* in, std::ptrdiff_t n,
                                                                float* out) noexcept {
    std::ptrdiff_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i)));
        _mm256_storeu_ps(out + i, _mm256_castsi256_ps(_mm256_slli_epi32(words, 16)));
    }
    return i;
}
#endif

/// Writes and reads lines in one format. A line depends on its elements alone.
/// Error: a format that is none of fp32, fp16, bf16, or signed with at most 8 bits.
/// Test: tests/kernels/cached_lines_test.cpp
template <class T>
class LineCoder {
public:
    using P = Accum<T>;

    /// Empty format: elements of T.
    explicit LineCoder(const std::optional<FloatFormat>& format = {}) {
        if (!format || is_own(*format)) return;
        if (*format == fp32) element_ = LineElement::fp32;
        else if (*format == fp16) element_ = LineElement::fp16;
        else if (*format == bf16) element_ = LineElement::bf16;
        else {
            check(format->code_bits() <= 8 && format->is_signed() && format->mantissa_bits > 0, "cached lines: format ",
                  name(*format), "; expected fp32, fp16, bf16 or a signed format of at most 8 bits");
            element_ = LineElement::codes;
            codes_.emplace(*format);
        }
    }

    [[nodiscard]] LineElement element() const noexcept { return element_; }
    /// Bytes of one element.
    [[nodiscard]] std::size_t element_size() const noexcept {
        switch (element_) {
            case LineElement::own:
                return sizeof(T);
            case LineElement::fp32:
                return 4;
            case LineElement::fp16:
            case LineElement::bf16:
                return 2;
            case LineElement::codes:
                break;
        }
        return 1;
    }
    /// Bytes of the scale of a line.
    [[nodiscard]] std::size_t scale_size() const noexcept { return codes_ ? 1 : 0; }

    /// `to` [element_size() depth] and `scale`, which is written for codes only.
    void store(const T* line, std::size_t depth, std::byte* to, std::uint8_t* scale) const {
        switch (element_) {
            case LineElement::own:
                return std::copy_n(line, depth, reinterpret_cast<T*>(to)), void();
            case LineElement::fp32:
                return cast_line<float>(line, depth, to);
            case LineElement::fp16:
                return cast_line<Half>(line, depth, to);
            case LineElement::bf16:
                return cast_line<BFloat16>(line, depth, to);
            case LineElement::codes:
                break;
        }
        encode_line(line, depth, reinterpret_cast<std::uint8_t*>(to), *scale);
    }

    /// out [lines,depth] = the numbers of lines that stand one after the other.
    void load(Isa isa, const std::byte* from, const std::uint8_t* scales, std::ptrdiff_t lines, std::ptrdiff_t depth,
              P* out) const {
        switch (element_) {
            case LineElement::own:
                return products::widen_line(isa, reinterpret_cast<const T*>(from), lines * depth, out);
            case LineElement::fp32:
                return widen_lines<float>(isa, from, lines * depth, out);
            case LineElement::fp16:
                return widen_lines<Half>(isa, from, lines * depth, out);
            case LineElement::bf16:
                return widen_lines<BFloat16>(isa, from, lines * depth, out);
            case LineElement::codes:
                break;
        }
        for (std::ptrdiff_t i = 0; i < lines; ++i)
            decode_line(isa, reinterpret_cast<const std::uint8_t*>(from) + i * depth, scales[i], depth,
                        out + i * depth);
    }

private:
    struct Codes {
        explicit Codes(const FloatFormat& how) : format(how), table(how), halves(how) {
            max_mantissa = std::frexp(how.max(), &max_exponent);
        }
        FloatFormat format;
        CodeTable<P> table;
        HalfCodes halves;
        int max_exponent = 0;
        float max_mantissa = 0;
    };

    [[nodiscard]] static constexpr bool is_own(const FloatFormat& format) noexcept {
        if constexpr (CodedElement<T>) return format == format_of<T>;
        else return std::is_same_v<T, float> && format == fp32;
    }
    [[nodiscard]] static P scale_of(std::uint8_t exponent) noexcept {
        return exponent == 255 ? std::numeric_limits<P>::quiet_NaN()
                               : static_cast<P>(std::bit_cast<float>(static_cast<std::uint32_t>(exponent) << 23));
    }
    template <class To>
    static void cast_line(const T* line, std::size_t depth, std::byte* to) {
        cast_elements(std::span<const T>(line, depth), std::span<To>(reinterpret_cast<To*>(to), depth));
    }
    template <class From>
    static void widen_lines(Isa isa, const std::byte* from, std::ptrdiff_t count, P* out) {
        const auto* const in = reinterpret_cast<const From*>(from);
        std::ptrdiff_t done = 0;
        if constexpr (std::is_same_v<P, float>) {
#if UNITSCALE_X86
            if constexpr (std::is_same_v<From, BFloat16>)
                if (isa != Isa::baseline) done = widen_bfloat16_avx2(in, count, out);
#endif
            products::widen_line(isa, in + done, count - done, out + done);
        } else {
            std::transform(in, in + count, out, [](From x) { return element_cast<P>(x); });
        }
    }
    void decode_line(Isa isa, const std::uint8_t* codes, std::uint8_t scale_code, std::ptrdiff_t depth, P* out) const {
        const P scale = scale_of(scale_code);
        std::ptrdiff_t done = 0;
#if UNITSCALE_X86
        if constexpr (std::is_same_v<P, float>) {
            const int exponent = scale_code + codes_->halves.power;
            if (isa != Isa::baseline && codes_->halves.fits && scale_code != 255 && exponent > 0 && exponent < 255)
                done = decode_halves_avx2(codes_->halves, codes, depth, scale_of(static_cast<std::uint8_t>(exponent)),
                                          out);
        }
#endif
        (void)isa;
        for (std::ptrdiff_t l = done; l < depth; ++l) out[l] = codes_->table.values[codes[l]] * scale;
    }

    void encode_line(const T* line, std::size_t depth, std::uint8_t* codes, std::uint8_t& scale) const {
        P amax = 0;
        bool finite = true;
        for (std::size_t i = 0; i < depth; ++i) {
            const P size = std::abs(element_cast<P>(line[i]));
            finite = finite && std::isfinite(size);
            amax = std::max(amax, size);
        }
        if (!finite) {
            scale = 255;
            std::fill_n(codes, depth, std::uint8_t{0});
            return;
        }
        int exponent = 0;
        const P mantissa = std::frexp(amax, &exponent);
        exponent -= codes_->max_exponent;
        if (mantissa > static_cast<P>(codes_->max_mantissa)) ++exponent;
        exponent = amax == 0 ? 0 : std::clamp(exponent, -126, 127);
        scale = static_cast<std::uint8_t>(exponent + 127);
        const P inverse = std::ldexp(P(1), -exponent);
        constexpr std::size_t part = 256;
        std::array<P, part> values;
        for (std::size_t begin = 0; begin < depth; begin += part) {
            const std::size_t count = std::min(part, depth - begin);
            for (std::size_t i = 0; i < count; ++i) values[i] = element_cast<P>(line[begin + i]) * inverse;
            if constexpr (std::is_same_v<P, float>) {
                encode(codes_->format, std::span<const float>(values).first(count), std::span(codes + begin, count));
            } else {
                for (std::size_t i = 0; i < count; ++i)
                    codes[begin + i] = static_cast<std::uint8_t>(encode(codes_->format, values[i]));
            }
        }
    }

    LineElement element_ = LineElement::own;
    std::optional<Codes> codes_{};
};

/// The keys, or the values, of a cache: lines [items, groups, capacity] of `depth` elements, each with its scale.
/// Position p of an item is line p mod capacity, so that a window of positions needs no more lines than it has.
template <class T>
struct CachedLines {
    std::byte* data = nullptr;
    std::uint8_t* scales = nullptr;       ///< null: lines without scales
    const LineCoder<T>* coder = nullptr;  ///< null: elements of T

    CachedLines() = default;
    CachedLines(T* elements) noexcept : data(reinterpret_cast<std::byte*>(elements)) {}
    CachedLines(std::byte* lines, std::uint8_t* line_scales, const LineCoder<T>& how) noexcept
        : data(lines), scales(line_scales), coder(how.element() == LineElement::own ? nullptr : &how) {}
    friend bool operator==(const CachedLines&, const CachedLines&) = default;
};

/// The lines of one head of one item.
template <class T>
class HeadLines {
public:
    using P = Accum<T>;

    /// `head`: item groups + group.
    HeadLines(const CachedLines<T>& lines, std::ptrdiff_t head, std::ptrdiff_t capacity, std::ptrdiff_t depth) noexcept
        : coder_(lines.coder),
          capacity_(capacity),
          depth_(depth),
          line_size_(depth * static_cast<std::ptrdiff_t>(coder_ != nullptr ? coder_->element_size() : sizeof(T))),
          data_(lines.data + head * capacity * line_size_),
          scales_(lines.scales != nullptr ? lines.scales + head * capacity : nullptr) {}

    void store(std::ptrdiff_t position, const T* line) const {
        const std::ptrdiff_t at = position % capacity_;
        std::byte* const to = data_ + at * line_size_;
        if (coder_ == nullptr) std::copy_n(line, depth_, reinterpret_cast<T*>(to));
        else coder_->store(line, static_cast<std::size_t>(depth_), to, scales_ != nullptr ? scales_ + at : nullptr);
    }

    /// out [last - first,depth] = the numbers of the positions [first, last), of which there are at most `capacity`.
    void load(Isa isa, std::ptrdiff_t first, std::ptrdiff_t last, P* out) const {
        while (first < last) {
            const std::ptrdiff_t at = first % capacity_, count = std::min(last - first, capacity_ - at);
            const std::byte* const from = data_ + at * line_size_;
            if (coder_ == nullptr) products::widen_line(isa, reinterpret_cast<const T*>(from), count * depth_, out);
            else coder_->load(isa, from, scales_ != nullptr ? scales_ + at : nullptr, count, depth_, out);
            first += count;
            out += count * depth_;
        }
    }

    /// The numbers of these positions where they stand; null if they are coded, or not in one piece.
    [[nodiscard]] const P* in_place(std::ptrdiff_t first, std::ptrdiff_t last) const noexcept {
        if constexpr (std::is_same_v<T, P>)
            if (coder_ == nullptr && first % capacity_ + (last - first) <= capacity_)
                return reinterpret_cast<const P*>(data_ + first % capacity_ * line_size_);
        return nullptr;
    }

private:
    const LineCoder<T>* coder_;
    std::ptrdiff_t capacity_, depth_, line_size_;
    std::byte* data_;
    std::uint8_t* scales_;
};

}  // namespace unitscale::kernels
