// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/formats/format.hpp>
#include <unitscale/products/coded_matrix.hpp>
#include <unitscale/products/half_codes.hpp>
#include <unitscale/products/pack_pairs.hpp>
#include <unitscale/tensor/coded_weight.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

// Elements and scales of a coded weight (tensor/coded_weight.hpp) in registers: sixteen outputs at a time, as floats or
// as pairs of bf16. Test: tests/products/coded_elements_test.cpp
namespace unitscale::products {

/// Whether the codes can be decoded in registers here.
[[nodiscard]] inline bool decodes_in_registers(Isa isa, const CodedWeight& weight) noexcept {
    if (!UNITSCALE_X86 || isa == Isa::baseline) return false;
    const bool blocks_fit = weight.along() % 2 == 0 || weight.along() >= weight.in();
    if (isa == Isa::avx2) {
        const FloatFormat& format = weight.format();
        if (weight.bits() == WeightBits::byte) return blocks_fit && has_half_words(format);
        const bool signed_nibbles = format.is_signed() || format.code_bits() < 4;  // bit 3 is a sign, or 0
        return blocks_fit && (weight.bits() != WeightBits::nibble || signed_nibbles);
    }
    return blocks_fit &&
           (weight.table() == nullptr || weight.bits() == WeightBits::nibble || weight.table()->has_words);
}

/// The end of the run of elements from p on that share a scale, at most `end`.
[[nodiscard, gnu::always_inline]] inline std::ptrdiff_t end_of_run(const CodedWeight& weight, std::ptrdiff_t p,
                                                                   std::ptrdiff_t end) noexcept {
    const auto along = static_cast<std::ptrdiff_t>(weight.along());
    return std::min((p / along + 1) * along, end);
}

#if UNITSCALE_X86

// Without optimisation GCC's masked loads and conversions are macros, which convert masks in the caller's code.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-conversion"

/// Decodes the elements p and p + 1, p even, of the sixteen outputs of a group. `words`: pairs of bf16.
template <WeightBits Bits>
struct ElementPairs512 {
    static constexpr bool has_words = Bits != WeightBits::float32 && Bits != WeightBits::float16;
    static constexpr std::ptrdiff_t bytes = 4 * static_cast<std::ptrdiff_t>(bits_of(Bits));  ///< of such a step

    struct None {};
    std::conditional_t<Bits == WeightBits::byte, CodeWords512, None> words_of;
    __m512i nibble_words;

    [[gnu::always_inline]] UNITSCALE_TARGET_AVX512 explicit ElementPairs512(const CodedWeight& weight)
        : words_of(make_words(weight)), nibble_words(_mm512_setzero_si512()) {
        if constexpr (Bits == WeightBits::nibble) {
            alignas(64) std::uint16_t words[32] = {};
            for (std::size_t i = 0; i < 32; ++i)
                words[i] =
                    static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(weight.table()->values[i % 16]) >> 16);
            nibble_words = _mm512_load_si512(words);
        }
    }
    [[nodiscard, gnu::always_inline]] UNITSCALE_TARGET_AVX512 Unsigned512 words(const std::uint8_t* at) const {
        if constexpr (Bits == WeightBits::byte) {
            const auto codes =
                _mm512_maskz_cvtepu8_epi16(0xFFFFFFFF, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
            return reinterpret_cast<Unsigned512>(words_of.of_finite(reinterpret_cast<HalfWords512>(codes)));
        } else if constexpr (Bits == WeightBits::nibble) {
            const auto codes = reinterpret_cast<Unsigned512>(
                _mm512_maskz_cvtepu8_epi32(0xFFFF, _mm_loadu_si128(reinterpret_cast<const __m128i*>(at))));
            const auto index = (codes & 0xFu) | ((codes << 12) & 0xF0000u);
            return reinterpret_cast<Unsigned512>(
                _mm512_maskz_permutexvar_epi16(0xFFFFFFFF, reinterpret_cast<__m512i>(index), nibble_words));
        } else {
            return reinterpret_cast<Unsigned512>(_mm512_loadu_si512(at));
        }
    }
    [[gnu::always_inline]] UNITSCALE_TARGET_AVX512 void floats(const std::uint8_t* at, __m512& even,
                                                               __m512& odd) const {
        if constexpr (Bits == WeightBits::float32) {
            even = _mm512_loadu_ps(at);
            odd = _mm512_loadu_ps(at + 64);
        } else if constexpr (Bits == WeightBits::float16) {
            even = _mm512_maskz_cvtph_ps(0xFFFF, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
            odd = _mm512_maskz_cvtph_ps(0xFFFF, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at + 32)));
        } else {
            const Unsigned512 both = words(at);
            even = reinterpret_cast<__m512>(both << 16);
            odd = reinterpret_cast<__m512>(both & 0xFFFF0000u);
        }
    }

private:
    [[gnu::always_inline]] UNITSCALE_TARGET_AVX512 static auto make_words(const CodedWeight& weight) {
        if constexpr (Bits == WeightBits::byte) return CodeWords512(*weight.table());
        else return None{};
    }
};

/// How a kernel applies the scales of blocks. `exponents`: pairs of bf16 get the exponent of a power of two by an
/// addition, which is fewer instructions than two products.
enum class ScaleUse { none, products, exponents };

/// The scales of a block of each of the sixteen outputs of a group.
struct GroupScales512 {
    const CodedWeight& weight;
    CodeWords512 words_of;
    __m512 number, inverse;
    bool exponents, by_words;

    [[gnu::always_inline]] UNITSCALE_TARGET_AVX512 GroupScales512(const CodedWeight& of, bool apart)
        : weight(of),
          words_of(of.scale_table() != nullptr ? *of.scale_table() : *of.table()),
          exponents(of.scale_table() != nullptr && of.blocks()->scale == e8m0),
          by_words(of.scale_table() != nullptr && of.scale_table()->has_words) {
        const auto [a, b] = of.scale_factors(apart);
        number = _mm512_set1_ps(a);
        inverse = _mm512_set1_ps(b);
    }
    [[nodiscard, gnu::always_inline]] UNITSCALE_TARGET_AVX512 Unsigned512 codes(std::size_t group,
                                                                                std::ptrdiff_t block) const {
        const std::uint8_t* const from = weight.group_scale_codes(group) + 16 * block;
        return reinterpret_cast<Unsigned512>(
            _mm512_maskz_cvtepu8_epi32(0xFFFF, _mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
    }
    [[nodiscard, gnu::always_inline]] UNITSCALE_TARGET_AVX512 __m512 operator()(std::size_t group,
                                                                                std::ptrdiff_t block) const {
        __m512 kept;
        if (const float* const floats = weight.group_scales(group); floats != nullptr) {
            kept = _mm512_loadu_ps(floats + 16 * block);
        } else if (exponents) {
            const Unsigned512 code = codes(group, block);
            kept = reinterpret_cast<__m512>(code == 0 ? Unsigned512{} + 0x00400000u : code << 23);  // 0: 2^-127
        } else if (by_words) {
            const auto words = words_of.of_finite(reinterpret_cast<HalfWords512>(codes(group, block)));
            kept = reinterpret_cast<__m512>(reinterpret_cast<Unsigned512>(words) << 16);
        } else {
            alignas(64) float values[16];
            for (std::size_t l = 0; l < 16; ++l)
                values[l] = weight.scale_table()
                                ->values[weight.group_scale_codes(group)[16 * block + static_cast<std::ptrdiff_t>(l)]];
            kept = _mm512_load_ps(values);
        }
        return _mm512_mul_ps(_mm512_mul_ps(kept, number), inverse);
    }
    /// What is added to both words of a pair for a scale 2^e: e in the place of bf16's exponent.
    [[nodiscard, gnu::always_inline]] UNITSCALE_TARGET_AVX512 __m512 exponent_words(std::size_t group,
                                                                                    std::ptrdiff_t block) const {
        const Unsigned512 word = ((codes(group, block) - 127) << 7) & 0xFFFFu;
        return reinterpret_cast<__m512>(word | word << 16);
    }
    [[nodiscard, gnu::always_inline]] std::ptrdiff_t end_of_run(std::ptrdiff_t p, std::ptrdiff_t end) const noexcept {
        return products::end_of_run(weight, p, end);
    }
    /// The scale of element p, in the form in which the kernel applies it.
    template <ScaleUse Use>
    [[nodiscard, gnu::always_inline]] UNITSCALE_TARGET_AVX512 __m512 of(std::size_t group, std::ptrdiff_t p) const {
        const std::ptrdiff_t block = p / static_cast<std::ptrdiff_t>(weight.along());
        if constexpr (Use == ScaleUse::exponents) return exponent_words(group, block);
        else return (*this)(group, block);
    }
};

/// Stands for the scales of a weight that has none. All elements are one run. No kernel reads the run's scale.
struct NoScales512 {
    [[gnu::always_inline]] UNITSCALE_TARGET_AVX512 NoScales512(const CodedWeight&, bool) {}
    [[nodiscard, gnu::always_inline]] static std::ptrdiff_t end_of_run(std::ptrdiff_t, std::ptrdiff_t end) noexcept {
        return end;
    }
    template <ScaleUse Use>
    [[nodiscard, gnu::always_inline]] UNITSCALE_TARGET_AVX512 static __m512 of(std::size_t, std::ptrdiff_t) {
        return _mm512_setzero_ps();
    }
};
template <ScaleUse Use>
struct ScalesOf {
    using Type = std::conditional_t<Use == ScaleUse::none, NoScales512, GroupScales512>;
};

/// Pairs of bf16 times the scales of their columns. The products are exact in bf16, and none is subnormal.
template <ScaleUse Use>
[[nodiscard, gnu::always_inline]] UNITSCALE_TARGET_AVX512 inline Unsigned512 scaled_words(Unsigned512 words,
                                                                                          __m512 scale) {
    if constexpr (Use == ScaleUse::none) return words;
    if constexpr (Use == ScaleUse::exponents) {
        const auto halves = reinterpret_cast<HalfWords512>(words);
        const HalfWords512 moved = halves + reinterpret_cast<HalfWords512>(scale);
        return reinterpret_cast<Unsigned512>((halves & 0x7FFF) != 0 ? moved : halves);
    }
    const __m512 even = _mm512_mul_ps(reinterpret_cast<__m512>(words << 16), scale);
    const __m512 odd = _mm512_mul_ps(reinterpret_cast<__m512>(words & 0xFFFF0000u), scale);
    return reinterpret_cast<Unsigned512>(even) >> 16 | (reinterpret_cast<Unsigned512>(odd) & 0xFFFF0000u);
}

#pragma GCC diagnostic pop

/// Calls `use.run<Bits, Scaled>(arguments...)` for the weight's form. `Use::takes_floats`: whether elements become
/// floats; else they become pairs of bf16.
template <class Use, class... Arguments>
void with_form(const CodedWeight& weight, const Use& use, const Arguments&... arguments) {
    using enum ScaleUse;
    const auto run = [&]<WeightBits Bits>(std::integral_constant<WeightBits, Bits>) {
        if (weight.along() == 0) return use.template run<Bits, none>(arguments...);
        if constexpr (!Use::takes_floats)
            if (weight.blocks()->form == ScaleForm::code && weight.blocks()->scale == e8m0)
                return use.template run<Bits, exponents>(arguments...);
        return use.template run<Bits, products>(arguments...);
    };
    switch (weight.bits()) {
        case WeightBits::float32:
            if constexpr (Use::takes_floats) use.template run<WeightBits::float32, none>(arguments...);
            return;
        case WeightBits::float16:
            if constexpr (Use::takes_floats) use.template run<WeightBits::float16, none>(arguments...);
            return;
        case WeightBits::bfloat16:
            return use.template run<WeightBits::bfloat16, none>(arguments...);
        case WeightBits::byte:
            return run(std::integral_constant<WeightBits, WeightBits::byte>{});
        case WeightBits::nibble:
            return run(std::integral_constant<WeightBits, WeightBits::nibble>{});
    }
}

#endif

}  // namespace unitscale::products
