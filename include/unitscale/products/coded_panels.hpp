// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/products/coded_elements.hpp>
#include <unitscale/products/coded_elements_avx2.hpp>
#include <unitscale/products/micro_kernel.hpp>
#include <unitscale/products/pack.hpp>
#include <unitscale/products/pack_pairs.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

// Coded weights, decoded into the panels of the kernels that multiply many rows. Test:
// tests/products/coded_panels_test.cpp
namespace unitscale::products {

/// out[p width + j] = the number of B[p,j], for `depth` rows p and `columns` columns j; zero up to `width`.
template <class P>
void decode_panel_slowly(const CodedRight& b, std::ptrdiff_t depth, std::ptrdiff_t columns, std::ptrdiff_t width,
                         P* out) {
    const CodedWeight& w = *b.weight;
    for (std::ptrdiff_t p = 0; p < depth; ++p) {
        for (std::ptrdiff_t j = 0; j < columns; ++j)
            out[p * width + j] =
                static_cast<P>(w.value(static_cast<std::size_t>(b.j + j), static_cast<std::size_t>(b.p + p), b.apart));
        std::fill(out + p * width + columns, out + (p + 1) * width, P{0});
    }
}

/// out[p width + j] = the pair of rows 2p and 2p + 1 of column j; zero up to `width` and up to pairs_of(depth).
inline void decode_pairs_slowly(const CodedRight& b, std::ptrdiff_t depth, std::ptrdiff_t columns, std::ptrdiff_t width,
                                Pair* out) {
    const auto word = [&](std::ptrdiff_t p, std::ptrdiff_t j) {
        if (p >= depth) return 0u;
        return std::bit_cast<std::uint32_t>(
                   b.weight->value(static_cast<std::size_t>(b.j + j), static_cast<std::size_t>(b.p + p), b.apart)) >>
               16;
    };
    for (std::ptrdiff_t p = 0; p < pairs_of(depth); ++p)
        for (std::ptrdiff_t j = 0; j < width; ++j)
            out[p * width + j] = j < columns ? word(2 * p, j) | word(2 * p + 1, j) << 16 : 0u;
}

#if UNITSCALE_X86

/// out[p out_step + j] = the numbers of `depth` rows p and the sixteen columns j of a group.
template <WeightBits Bits, ScaleUse Scaled>
UNITSCALE_TARGET_AVX512 void decode_floats_avx512(const CodedRight& b, std::ptrdiff_t depth, float* out,
                                                  std::ptrdiff_t out_step) {
    constexpr std::ptrdiff_t bytes = ElementPairs512<Bits>::bytes;
    const CodedWeight& weight = *b.weight;
    const ElementPairs512<Bits> elements(weight);
    const typename ScalesOf<Scaled>::Type scales(weight, b.apart);
    const auto group = static_cast<std::size_t>(b.j / 16);
    const std::uint8_t* codes = weight.group_elements(group) + b.p / 2 * bytes;
    const std::ptrdiff_t end = b.p + depth;
    for (std::ptrdiff_t p = b.p; p < end;) {
        const std::ptrdiff_t stop = scales.end_of_run(p, end);
        const __m512 scale = scales.template of<Scaled>(group, p);
        for (; p < stop; p += 2, codes += bytes, out += 2 * out_step) {
            __m512 even, odd;
            elements.floats(codes, even, odd);
            if constexpr (Scaled != ScaleUse::none) {
                even = _mm512_mul_ps(even, scale);
                odd = _mm512_mul_ps(odd, scale);
            }
            _mm512_storeu_ps(out, even);
            if (p + 1 < stop) _mm512_storeu_ps(out + out_step, odd);
        }
        p = stop;
    }
}
/// Where the halves of a group's columns go, which may belong to two panels: columns j from out[h] on, in rows of
/// step[h]. Null: no such columns.
struct GroupHalves {
    float* out[2] = {};
    std::ptrdiff_t step[2] = {};
};
/// `decode_floats_avx512` for AVX2.
template <WeightBits Bits, ScaleUse Scaled>
UNITSCALE_TARGET_AVX2 void decode_floats_avx2(const CodedRight& b, std::ptrdiff_t depth, GroupHalves to) {
    constexpr std::ptrdiff_t bytes = ElementPairs256<Bits>::bytes;
    const CodedWeight& weight = *b.weight;
    const ElementPairs256<Bits> elements(weight);
    const GroupScales256 scales(weight, b.apart);
    const auto group = static_cast<std::size_t>(b.j / 16);
    const std::uint8_t* codes = weight.group_elements(group) + b.p / 2 * bytes;
    const std::ptrdiff_t end = b.p + depth;
    __m256 scale[2], even[2], odd[2];
    for (std::ptrdiff_t p = b.p; p < end;) {
        const std::ptrdiff_t stop = Scaled == ScaleUse::none ? end : end_of_run(weight, p, end);
        if constexpr (Scaled != ScaleUse::none) scales.read(group, p, scale);
        for (; p < stop; p += 2, codes += bytes) {
            elements.floats(codes, even, odd);
#pragma GCC unroll 2
            for (int h = 0; h < 2; ++h) {
                if (to.out[h] == nullptr) continue;
                if constexpr (Scaled != ScaleUse::none) {
                    even[h] = _mm256_mul_ps(even[h], scale[h]);
                    odd[h] = _mm256_mul_ps(odd[h], scale[h]);
                }
                _mm256_storeu_ps(to.out[h], even[h]);
                if (p + 1 < stop) _mm256_storeu_ps(to.out[h] + to.step[h], odd[h]);
                to.out[h] += 2 * to.step[h];
            }
        }
        p = stop;
    }
}
/// out[p out_step + j] = pairs of rows 2p and 2p + 1, for the sixteen columns j of a group.
template <WeightBits Bits, ScaleUse Scaled>
UNITSCALE_TARGET_AVX512 void decode_pairs_avx512(const CodedRight& b, std::ptrdiff_t depth, Pair* out,
                                                 std::ptrdiff_t out_step) {
    constexpr std::ptrdiff_t bytes = ElementPairs512<Bits>::bytes;
    const CodedWeight& weight = *b.weight;
    const ElementPairs512<Bits> elements(weight);
    const typename ScalesOf<Scaled>::Type scales(weight, b.apart);
    const auto group = static_cast<std::size_t>(b.j / 16);
    const std::uint8_t* codes = weight.group_elements(group) + b.p / 2 * bytes;
    const std::ptrdiff_t end = b.p + round_up(depth, 2);
    for (std::ptrdiff_t p = b.p; p < end;) {
        const std::ptrdiff_t stop = scales.end_of_run(p, end);
        const __m512 scale = scales.template of<Scaled>(group, p);
        for (; p < stop; p += 2, codes += bytes, out += out_step) {
            Unsigned512 words = elements.words(codes);
            words = scaled_words<Scaled>(words, scale);
            _mm512_storeu_si512(out, reinterpret_cast<__m512i>(words));
        }
    }
    for (std::ptrdiff_t p = round_up(depth, 2) / 2; p < pairs_of(depth); ++p, out += out_step)
        _mm512_storeu_si512(out, _mm512_setzero_si512());
}

/// A group's columns into panels.
struct DecodeFloats {
    static constexpr bool takes_floats = true;
    template <WeightBits Bits, ScaleUse Scaled>
    void run(const CodedRight& b, std::ptrdiff_t depth, float* out, std::ptrdiff_t out_step) const {
        decode_floats_avx512<Bits, Scaled>(b, depth, out, out_step);
    }
};
struct DecodeHalves {
    static constexpr bool takes_floats = true;
    template <WeightBits Bits, ScaleUse Scaled>
    void run(const CodedRight& b, std::ptrdiff_t depth, const GroupHalves& to) const {
        decode_floats_avx2<Bits, Scaled>(b, depth, to);
    }
};
struct DecodePairs {
    static constexpr bool takes_floats = false;
    template <WeightBits Bits, ScaleUse Scaled>
    void run(const CodedRight& b, std::ptrdiff_t depth, Pair* out, std::ptrdiff_t out_step) const {
        decode_pairs_avx512<Bits, Scaled>(b, depth, out, out_step);
    }
};

/// B's columns [0, n) and rows [0, k) in panels of pairs, which `out` holds.
[[nodiscard]] inline RightPairs decode_right_pairs(const CodedRight& b, std::ptrdiff_t k, std::ptrdiff_t n, Pair* out) {
    const RightPairs panels{out, k, n, pair_columns, 16, pairs_of(k), 0};
    for (std::ptrdiff_t q = 0; q < panels.count(); ++q) {
        Pair* const panel = out + q * panels.width * pairs_of(k);
        const CodedRight part = b.block(0, q * panels.width);
        if (!decodes_in_registers(Isa::avx512, *b.weight)) {
            decode_pairs_slowly(part, k, panels.columns(q), panels.padded_columns(q), panel);
            continue;
        }
        for (std::ptrdiff_t j = 0; j < panels.columns(q); j += 16)
            with_form(*b.weight, DecodePairs{}, part.block(0, j), k, panel + j, panels.padded_columns(q));
    }
    return panels;
}
#endif

/// B's columns [0, n) and rows [0, k) in panels, which `out` holds (packed_right_size elements).
template <class P>
[[nodiscard]] RightPanels<P> decode_right(Isa isa, const CodedRight& b, std::ptrdiff_t k, std::ptrdiff_t n, P* out) {
    const TileShape shape = tile_shape(isa);
    const RightPanels<P> panels{out, k, n, shape.columns<P>(), shape.lanes<P>(), k, 0};
#if UNITSCALE_X86
    if constexpr (std::is_same_v<P, float>)
        if (isa == Isa::avx2 && b.j % 16 == 0 && decodes_in_registers(isa, *b.weight)) {
            for (std::ptrdiff_t j = 0; j < n; j += 16) {
                GroupHalves to;
                for (std::ptrdiff_t h = 0, column = j; h < 2 && column < n; ++h, column += 8) {
                    const std::ptrdiff_t q = column / panels.width;
                    to.out[h] = out + q * panels.width * k + column % panels.width;
                    to.step[h] = panels.padded_columns(q);
                }
                with_form(*b.weight, DecodeHalves{}, b.block(0, j), k, to);
            }
            return panels;
        }
#endif
    for (std::ptrdiff_t q = 0; q < panels.count(); ++q) {
        P* const panel = out + q * panels.width * k;
        const CodedRight part = b.block(0, q * panels.width);
        bool done = false;
#if UNITSCALE_X86
        if constexpr (std::is_same_v<P, float>)
            if (isa == Isa::avx512 && decodes_in_registers(isa, *b.weight)) {
                for (std::ptrdiff_t j = 0; j < panels.columns(q); j += 16)
                    with_form(*b.weight, DecodeFloats{}, part.block(0, j), k, panel + j, panels.padded_columns(q));
                done = true;
            }
#endif
        if (!done) decode_panel_slowly(part, k, panels.columns(q), panels.padded_columns(q), panel);
    }
    return panels;
}

}  // namespace unitscale::products
