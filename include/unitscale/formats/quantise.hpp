// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/cpu.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/formats/format.hpp>
#include <unitscale/formats/quantise_kernels.hpp>
#include <unitscale/formats/quantise_loops.hpp>
#include <unitscale/formats/random_words.hpp>
#include <unitscale/formats/rounding.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string_view>

namespace unitscale {

/// A rounded number as a Float: exact for every format. Kind::nan is the quiet NaN.
template <class Float>
[[nodiscard]] constexpr Float value_of(const FloatFormat& format, const Rounded& rounded) noexcept {
    using Bits = FloatBits<Float>;
    if (rounded.kind == Rounded::Kind::nan) return std::numeric_limits<Float>::quiet_NaN();
    if (rounded.kind == Rounded::Kind::finite) return format.magnitude<Float>(rounded.code, rounded.negative);
    const auto sign = static_cast<Bits>(rounded.negative) << (8 * sizeof(Bits) - 1);
    return std::bit_cast<Float>(std::bit_cast<Bits>(std::numeric_limits<Float>::infinity()) | sign);
}

/// Rounds x (float or double) to the format in one step and returns the value in x's type. Conventions at `round_to`.
/// This is the reference that the span loops are tested against.
template <class Float>
[[nodiscard]] constexpr Float quantise_one(const FloatFormat& format, Float x, const QuantiseOptions& options,
                                           std::uint64_t index) {
    const bool stochastic = options.rounding == Rounding::stochastic;
    const std::uint32_t random = stochastic ? random_piece(options, index) : 0;
    const Rounded rounded = round_to(format, x, options.rounding, options.overflow, options.bits, random);
    if (rounded.kind == Rounded::Kind::nan && !format.has_nan()) {
        check_options("quantise", format, options);
        fail("quantise: ", name(format), " has no NaN: element ", index, " of the input is NaN");
    }
    return value_of<Float>(format, rounded);
}

/// x rounded to the format. `index` is x's element number, for stochastic rounding: its random bits are piece
/// first_index + index of the stream (`random_piece`). NaN gives the quiet NaN. Error: NaN to a format without NaN.
/// Test: tests/formats/quantise_test.cpp
[[nodiscard]] constexpr float quantise(const FloatFormat& format, float x, const QuantiseOptions& options = {},
                                       std::uint64_t index = 0) {
    return quantise_one(format, x, options, index);
}

/// A double x rounded to the format in one step; rounding to float first would give other results.
[[nodiscard]] constexpr double quantise(const FloatFormat& format, double x, const QuantiseOptions& options = {},
                                        std::uint64_t index = 0) {
    return quantise_one(format, x, options, index);
}

/// Index of the first NaN, or the size if there is none. Found by bits.
template <class Float>
[[nodiscard]] constexpr std::size_t find_nan(std::span<const Float> values) noexcept {
    constexpr std::size_t block = 64;  // whole blocks, so that the loop is vectorised
    std::size_t begin = 0;
    using Bits = FloatBits<Float>;
    constexpr auto infinity = std::bit_cast<Bits>(std::numeric_limits<Float>::infinity());
    constexpr auto sign = ~(std::numeric_limits<Bits>::max() >> 1);
    for (; begin + block <= values.size(); begin += block) {
        Bits signs = 0;  // infinity - |x| is negative for NaN
        for (std::size_t i = 0; i < block; ++i) signs |= infinity - (std::bit_cast<Bits>(values[begin + i]) & ~sign);
        if ((signs & sign) != 0) break;
    }
    while (begin < values.size() && !is_nan(values[begin])) ++begin;
    return begin;
}

/// Error if the format has no NaN and the values have one. The values are elements `first` and following of the input.
template <class Float>
[[gnu::noinline]] void check_no_nan(std::string_view operation, const FloatFormat& format,
                                    std::span<const Float> values, std::size_t first = 0) {
    if (format.has_nan()) return;
    if (const std::size_t at = find_nan(values); at != values.size())
        fail(operation, ": ", name(format), " has no NaN: element ", first + at, " of the input is NaN");
}

template <class T>
void check_spans(std::string_view operation, std::span<const T> in, std::size_t out_size) {
    check(in.size() == out_size, operation, ": input and output sizes differ: ", in.size(), " != ", out_size);
}

/// Outputs of this many floats (64 MiB) or more are written past the caches, as memcpy does: they would not stay there.
inline constexpr std::size_t stream_threshold = std::size_t{1} << 24;

/// Whether there is a loop for the format.
[[nodiscard]] constexpr bool has_quantise_loop(const FloatFormat& format) noexcept {
    return format == e8m0 || has_quantise_kernel(format);
}

/// The loop, its constants and its random pieces for one call of `quantise` or `encode`, in chunks of at most
/// `random_chunk` elements. The format must have a loop.
class ChunkQuantiser {
public:
    ChunkQuantiser(Isa isa, const FloatFormat& format, const QuantiseOptions& options) noexcept
        : isa_(isa), options_(options), constants_(quantise_constants(format, options)) {
        const bool stochastic = options.rounding == Rounding::stochastic;
        const bool halves = options.bits <= half_word_bits;
        const bool common = options.overflow == Overflow::saturate && format.is_signed() && format.mantissa_bits > 0;
        if (format == e8m0) {
            loop_ = loop_of<PowersOfTwo>(isa);
            pieces_ = !stochastic ? Pieces::zeros : halves ? Pieces::halves_as_words : Pieces::words;
        } else if (!stochastic) {
            const bool nearest = common && options.rounding == Rounding::nearest_even;
            loop_ = nearest ? loop_of<NearestSaturating>(isa) : loop_of<Deterministic>(isa);
        } else if (halves && common && format.mantissa_bits <= StochasticSaturating::max_mantissa_bits) {
            loop_ = loop_of<StochasticSaturating>(isa);
            pieces_ = Pieces::halves;
        } else {
            loop_ = loop_of<Stochastic>(isa);
            pieces_ = halves ? Pieces::halves_as_words : Pieces::words;
        }
    }

    /// Whether elements do not depend on their position, so that a chunk may have any length.
    [[nodiscard]] bool any_length() const noexcept { return pieces_ == Pieces::none; }

    /// out = in rounded, for elements `begin` and following of the call. `streamed`: `out` is written past the caches
    /// and is aligned to 16 bytes.
    void run(const float* in, float* out, std::size_t count, std::size_t begin, bool streamed = false) noexcept {
        const std::uint64_t first = options_.first_index + begin;
        LoopExtras extras{.piece_size = sizeof(std::uint32_t), .streamed = streamed};
        switch (pieces_) {
            case Pieces::none:
                break;
            case Pieces::halves:
                extras.pieces = random_.halves(isa_, options_.key, first, count);
                extras.piece_size = sizeof(std::uint16_t);
                break;
            case Pieces::halves_as_words:
                extras.pieces = random_.halves_as_words(isa_, options_.key, first, count);
                break;
            case Pieces::words:
                extras.pieces = random_.words(isa_, options_.key, first, count);
                break;
            case Pieces::zeros:
                extras.pieces = random_.zeros(count);
                break;
        }
        run_loop(loop_, &constants_, in, out, count, extras);
    }

private:
    enum class Pieces { none, halves, words, halves_as_words, zeros };

    Isa isa_;
    QuantiseOptions options_;
    QuantiseConstants constants_;
    BlockLoop loop_;
    Pieces pieces_ = Pieces::none;
    RandomPieces random_;
};

/// Element by element: for formats without a loop. Out of line, because few programs need it.
template <class Float>
[[gnu::noinline]] void quantise_each(const FloatFormat& format, std::span<const Float> in, std::span<Float> out,
                                     const QuantiseOptions& options) {
    for (std::size_t i = 0; i < in.size(); ++i) out[i] = quantise_one(format, in[i], options, i);
}

/// Rounds with the loops of one instruction set, which the processor must have. For tests and benchmarks. Every
/// instruction set gives the bits of `quantise`.
inline void quantise_span(Isa isa, const FloatFormat& format, std::span<const float> in, std::span<float> out,
                          const QuantiseOptions& options = {}) {
    check_options("quantise", format, options);
    check_spans("quantise", in, out.size());
    if (!has_quantise_loop(format)) return quantise_each(format, in, out, options);
    ChunkQuantiser chunks(isa, format, options);
    const bool in_place = in.data() == out.data();
    if (in_place) check_no_nan("quantise", format, in);  // before anything is overwritten
    const bool streamed = isa != Isa::baseline && !in_place && in.size() >= stream_threshold;
    if (chunks.any_length() && !streamed && (in_place || format.has_nan()))
        return chunks.run(in.data(), out.data(), in.size(), 0);

    constexpr std::size_t line = 16;  // floats
    const auto misaligned = reinterpret_cast<std::uintptr_t>(out.data()) / sizeof(float) % line;
    std::size_t count = streamed ? (line - misaligned) % line : 0;
    for (std::size_t begin = 0; begin < in.size(); begin += count, count = 0) {
        const bool to_line = count > 0;
        if (!to_line) count = std::min(random_chunk, in.size() - begin);
        const float* const from = in.data() + begin;
        chunks.run(from, out.data() + begin, count, begin, streamed && !to_line);
        // The check comes after the loop, because the input is then in the cache.
        if (!in_place && !format.has_nan() && contains_nan(isa, from, count))
            check_no_nan("quantise", format, in.subspan(begin, count), begin);
    }
    if (streamed) stream_fence();
}

/// out[i] = in[i] rounded to the format, with the widest instruction set that the processor has. Every instruction set
/// gives the bits of the scalar `quantise(format, in[i], options, i)`. A span may therefore be cut anywhere if
/// first_index moves along. in and out may be equal, but must not overlap otherwise. About as fast as a copy.
/// Errors: sizes differ; a descriptor or options that make no sense; NaN to a format without NaN (FP6, FP4). A NaN is
/// found during the pass: part of a separate `out` may then have been written, but `in` is unchanged. Before a parallel
/// region, use `check_no_nan`.
/// Test: tests/formats/quantise_test.cpp
inline void quantise(const FloatFormat& format, std::span<const float> in, std::span<float> out,
                     const QuantiseOptions& options = {}) {
    quantise_span(active_isa(), format, in, out, options);
}

/// `quantise` for double: each element is rounded once. Element by element: for checks, not for speed.
inline void quantise(const FloatFormat& format, std::span<const double> in, std::span<double> out,
                     const QuantiseOptions& options = {}) {
    check_options("quantise", format, options);
    check_spans("quantise", in, out.size());
    check_no_nan("quantise", format, in);
    quantise_each(format, in, out, options);
}

}  // namespace unitscale
