// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/formats/block_format.hpp>
#include <unitscale/formats/block_scale.hpp>
#include <unitscale/formats/code.hpp>
#include <unitscale/formats/float_arithmetic.hpp>
#include <unitscale/formats/four_over_six.hpp>
#include <unitscale/formats/quantise.hpp>
#include <unitscale/formats/quantiser.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace unitscale {

/// How elements are rounded, and facts about the tensor that x is a part of.
struct BlockOptions {
    /// nearest_even, nearest_away, toward_zero or stochastic, saturating. The random piece of an element has the index
    /// first_index + line * length + position. So cuts of the lines and threads do not change results.
    QuantiseOptions element{};
    /// Stochastic rounding of e2m1 as in TransformerEngine: see `transformer_engine_stochastic`.
    bool transformer_engine_bits = false;
    /// The amax of the whole tensor, where x is a part of it: for two levels and for one scale per tensor. Empty: x is
    /// the tensor.
    std::optional<float> tensor_amax{};
    /// Two levels: decoded numbers are element times block scale, without the tensor's factor (`tensor_factor`).
    bool tensor_apart = false;
    /// Memory for the scales of some lines; null: the system's.
    MemoryPool* pool = nullptr;
};

/// The options with which the operands of products are rounded in blocks. Elements in E2M1 with 8 random bits are
/// rounded as in TransformerEngine if their blocks follow its arithmetic.
[[nodiscard]] constexpr BlockOptions block_options(const BlockFormat& blocks, const Quantiser& element,
                                                   RandomKey key) noexcept {
    return {.element = element.options(key),
            .transformer_engine_bits = blocks.element == e2m1 && blocks.rule == BlockRule::transformer_engine &&
                                       element.rounding == Rounding::stochastic && element.bits == 8};
}

/// Codes of a matrix [lines,length] in blocks. A block row is `across` lines, a block column `along` positions.
struct BlockCodes {
    BlockFormat format{};
    std::size_t lines = 0, length = 0;
    std::size_t block_rows = 0, block_columns = 0;
    std::vector<std::uint8_t> codes;        ///< [lines,length], one byte each
    std::vector<std::uint8_t> scale_codes;  ///< [block_rows,block_columns], of form `code`
    std::vector<float> scales;              ///< [block_rows,block_columns], of the other forms; NaN marks a NaN block
    float number = 1;                       ///< the tensor's number (two levels): `TensorNumbers::number`
};

/// The block sizes of a matrix: whole dimensions resolved, and the number of blocks.
struct BlockGrid {
    std::size_t lines = 0, length = 0, across = 1, along = 1, rows = 0, columns = 0;

    BlockGrid(const BlockFormat& format, std::size_t line_count, std::size_t line_length) noexcept
        : lines(line_count),
          length(line_length),
          across(block_size(format.across, line_count)),
          along(block_size(format.along, line_length)),
          rows((lines + across - 1) / across),
          columns((length + along - 1) / along) {}

private:
    [[nodiscard]] static std::size_t block_size(int wanted, std::size_t dimension) noexcept {
        return wanted == whole_dimension ? std::max<std::size_t>(dimension, 1) : static_cast<std::size_t>(wanted);
    }
};

/// The largest magnitude of a line as a word. NaN is above infinity.
[[nodiscard]] inline std::uint32_t largest_word(const float* x, std::size_t count) noexcept {
    constexpr std::size_t lanes = 4;  // a fixed count, so that the loop is vectorised
    constexpr auto larger = [](std::int32_t a, std::int32_t b) { return a > b ? a : b; };
    std::int32_t largest[lanes] = {};
    const std::size_t even = count - count % lanes;
    for (std::size_t i = 0; i < even; i += lanes)
        for (std::size_t l = 0; l < lanes; ++l)
            largest[l] = larger(largest[l], static_cast<std::int32_t>(magnitude_word(x[i + l])));
    for (std::size_t i = even; i < count; ++i)
        largest[0] = larger(largest[0], static_cast<std::int32_t>(magnitude_word(x[i])));
    return static_cast<std::uint32_t>(larger(larger(largest[0], largest[1]), larger(largest[2], largest[3])));
}

/// TransformerEngine's stochastic rounding of v to e2m1 with 8 random bits r. With step(a) = 1/2 below 2, 1 below 4,
/// else 2:
///   t = fl(|v| + step(|v|) r / 256)        result = min(step(t) floor(t / step(t)), 6), with v's sign
/// NaN gives 6. It differs from `Rounding::stochastic` with 8 bits where the sum t is rounded up to a number of e2m1:
/// less than once in 30000 numbers below 1/4, never above 1.
[[nodiscard]] constexpr float transformer_engine_stochastic(float v, std::uint32_t r) noexcept {
    constexpr auto step = [](float a) { return a < 2 ? 0.5f : a < 4 ? 1.0f : 2.0f; };
    const float magnitude = std::bit_cast<float>(std::min(magnitude_word(v), std::bit_cast<std::uint32_t>(6.0f)));
    if (is_nan(v)) return 6;
    const float t = narrowed(widened(magnitude) + static_cast<double>(step(magnitude)) * static_cast<double>(r) / 256);
    const auto steps = static_cast<int>(t / step(t));  // exact: powers of two
    const float result = std::min(static_cast<float>(steps) * step(t), 6.0f);
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(result) | (std::bit_cast<std::uint32_t>(v) & sign_word));
}

/// A walk over a matrix in bands of block rows: first the scales of a band, then its elements in pieces that fit the
/// first-level cache.
class BlockWalk {
public:
    static constexpr std::size_t piece = 1024;

    /// Errors in the name of `operation`: a format or options that make no sense; lines that overlap.
    BlockWalk(std::string_view operation, const BlockFormat& format, MatrixLines<const float> x,
              const BlockOptions& options)
        : format_(checked(operation, format, x, options)),
          options_(options),
          x_(x),
          grid_(format, x.lines, x.length),
          band_rows_(std::max<std::size_t>(1, 2 * piece / std::max<std::size_t>(1, grid_.across * x.length))),
          words_({.pool = options.pool}, band_rows_ * grid_.columns),
          scales_({.pool = options.pool}, band_rows_ * grid_.columns),
          tensor_(tensor_numbers(format, format.tensor_scale ? tensor_amax() : 1.0f)) {
        tensor_.apart = options.tensor_apart;
    }

    [[nodiscard]] const BlockGrid& grid() const noexcept { return grid_; }
    [[nodiscard]] const TensorNumbers& tensor() const noexcept { return tensor_; }

    /// For each band: `use_band(first block row, scales [rows,columns])`, then `use_piece(begin, count)` for pieces of
    /// the band's elements, counted in row-major order from the band's first line.
    template <class Band, class Piece>
    void run(Band&& use_band, Piece&& use_piece) {
        if (x_.lines == 0 || x_.length == 0) return;
        for (std::size_t row = 0; row < grid_.rows; row += band_rows_) {
            first_line_ = row * grid_.across;
            const std::size_t rows = std::min(band_rows_, grid_.rows - row);
            make_scales(row, rows);
            use_band(row, std::span<const BlockScale>(scales_.span()).first(rows * grid_.columns));
            const std::size_t lines = std::min(rows * grid_.across, x_.lines - first_line_);
            for (std::size_t begin = 0; begin < lines * x_.length; begin += piece)
                use_piece(begin, std::min(piece, lines * x_.length - begin));
        }
    }

    /// Calls `use(line, position, offset, count, scale)` for the segments of elements `begin` and following of a band.
    /// A segment lies in one block and one line.
    template <class Use>
    void segments(std::size_t begin, std::size_t count, Use&& use) {
        const BlockScale* const scales = scales_.data();
        std::size_t line = begin / grid_.length, position = begin % grid_.length;
        std::size_t row = line / grid_.across, column = position / grid_.along;
        for (std::size_t offset = 0; offset < count;) {
            const std::size_t end = std::min((column + 1) * grid_.along, grid_.length);
            const std::size_t taken = std::min(end - position, count - offset);
            use(first_line_ + line, position, offset, taken, scales[row * grid_.columns + column]);
            offset += taken;
            position += taken;
            if (position == end) ++column;
            if (position < grid_.length) continue;
            ++line;
            position = column = 0;
            if (line % grid_.across == 0) ++row;
        }
    }

    /// Scaled elements of a piece, ready to be rounded: no NaN where the element format has none.
    void load(std::size_t begin, std::span<float> v) {
        const bool no_negative_zero = format_.tensor_scale && format_.rule == BlockRule::transformer_engine;
        segments(begin, v.size(),
                 [&](std::size_t line, std::size_t position, std::size_t offset, std::size_t count,
                     const BlockScale& scale) {
                     const float* const from = x_.data + line * x_.stride + position;
                     float* const to = v.data() + offset;
                     if (scale.nan()) return void(std::fill_n(to, count, 0.0f));
                     BlockScaler::encode(format_.element, scale.encode, from, to, count);
                     if (no_negative_zero) clear_negative_zeros(scale.encode.value, from, to, count);
                     const bool may_be_nan =
                         format_.non_finite == NonFiniteAmax::unit_scale || is_infinite(scale.encode.value);
                     if (may_be_nan && !format_.element.has_nan())
                         for (std::size_t i = 0; i < count; ++i) to[i] = is_nan(to[i]) ? 0.0f : to[i];
                 });
    }

    /// The options for rounding a piece that `load` made.
    [[nodiscard]] QuantiseOptions piece_options(std::size_t begin) const noexcept {
        QuantiseOptions options = options_.element;
        options.first_index += first_line_ * grid_.length + begin;
        return options;
    }

    /// Rounds a piece as TransformerEngine does, if wanted; the library's rounding then changes nothing.
    void round_by_rule(std::size_t begin, std::span<float> v) const noexcept {
        if (!options_.transformer_engine_bits) return;
        const QuantiseOptions options = piece_options(begin);
        for (std::size_t i = 0; i < v.size(); ++i)
            v[i] = transformer_engine_stochastic(v[i], random_piece(options, i) >> 24);
    }

private:
    static const BlockFormat& checked(std::string_view operation, const BlockFormat& format,
                                      const MatrixLines<const float>& x, const BlockOptions& options) {
        inspect_block_format(format, [operation](const char* what) { fail(operation, ": block format: ", what); });
        check_options(operation, format.element, options.element);
        check_lines(operation, "input", x);
        const Rounding rounding = options.element.rounding;
        if (rounding == Rounding::up || rounding == Rounding::down)
            fail(operation, ": rounding is ", name(rounding),
                 "; expected nearest_even, nearest_away, toward_zero or stochastic");
        check(options.element.overflow == Overflow::saturate, operation,
              ": overflow is to_infinity; expected saturate: a block's elements are saturated");
        if (options.transformer_engine_bits &&
            (format.element != e2m1 || rounding != Rounding::stochastic || options.element.bits != 8))
            fail(operation, ": transformer_engine_bits is for e2m1 elements, stochastic rounding and 8 bits");
        const float amax = options.tensor_amax.value_or(1.0f);
        if (!is_nan(amax) && std::bit_cast<std::uint32_t>(amax) > infinity_word)
            fail(operation, ": tensor_amax is ", amax, "; expected a number of at least 0");
        return format;
    }

    [[nodiscard]] float tensor_amax() const noexcept {
        if (options_.tensor_amax) return *options_.tensor_amax;
        std::uint32_t word = 0;
        for (std::size_t line = 0; line < x_.lines; ++line)
            word = std::max(word, largest_word(x_.data + line * x_.stride, x_.length));
        return std::bit_cast<float>(word);
    }

    void make_scales(std::size_t first_row, std::size_t rows) {
        const bool given = options_.tensor_amax && !format_.tensor_scale && format_.along == whole_dimension &&
                           format_.across == whole_dimension;
        const bool choose = format_.four_over_six != FourOverSix::off;
        const auto all_words = words_.span().first(rows * grid_.columns);
        std::fill(all_words.begin(), all_words.end(), 0u);
        const std::size_t first = first_row * grid_.across;
        const std::size_t last = std::min(first + rows * grid_.across, x_.lines);
        for (std::size_t line = first; line < last; ++line) {
            std::uint32_t* const words = all_words.data() + (line - first) / grid_.across * grid_.columns;
            const float* const x = x_.data + line * x_.stride;
            for (std::size_t c = 0; c < grid_.columns; ++c)
                words[c] = std::max(
                    words[c], largest_word(x + c * grid_.along, std::min(grid_.along, x_.length - c * grid_.along)));
        }
        BlockScale* const scales = scales_.data();
        for (std::size_t i = 0; i < all_words.size(); ++i) {
            const float amax = std::bit_cast<float>(all_words[i]);
            scales[i] = block_scale(format_, given && !is_nan(amax) ? *options_.tensor_amax : amax, tensor_);
            if (choose && !scales[i].nan()) {
                const std::size_t line = first + i / grid_.columns * grid_.across, c = i % grid_.columns;
                const MatrixLines<const float> block{x_.data + line * x_.stride + c * grid_.along,
                                                     std::min(grid_.across, x_.lines - line),
                                                     std::min(grid_.along, x_.length - c * grid_.along), x_.stride};
                scales[i] = four_over_six_scale(format_, amax, tensor_, block);
            }
        }
    }

    /// TransformerEngine's e2m1 has no sign where v is -0. That holds for x = 0 and where fl(x q) underflows.
    static void clear_negative_zeros(float q, const float* x, float* v, std::size_t count) noexcept {
        // The largest magnitude whose product with q is at most 2^-150, half of the smallest float.
        std::uint32_t limit = 0;
        if (magnitude_word(q) < 0x3F800000u) {
            const auto vanishes = [q](std::uint32_t word) {
                return is_any_zero(rounded_product(std::bit_cast<float>(word), q));
            };
            limit = magnitude_word(rounded_quotient(0x1p-149f, rounded_product(2.0f, q)));
            while (!vanishes(limit)) --limit;
            while (vanishes(limit + 1)) ++limit;
        }
        for (std::size_t i = 0; i < count; ++i) v[i] = magnitude_word(x[i]) <= limit ? 0.0f : v[i];
    }

    BlockFormat format_;
    BlockOptions options_;
    MatrixLines<const float> x_;
    BlockGrid grid_;
    std::size_t band_rows_;
    Scratch<std::uint32_t> words_;
    Scratch<BlockScale> scales_;
    TensorNumbers tensor_;
    std::size_t first_line_ = 0;
};

/// out = the codes of x [lines,length] in blocks, and the scales. With a pool, a second call of equal sizes allocates
/// nothing.
///   scales                 formats/block_scale.hpp
///   elements               scaled, rounded as `options` say, saturated
///   NaN blocks             code 0; two levels: a NaN makes every block a NaN block
/// -0 keeps its sign, but under two levels by TransformerEngine, where an element of -0 gets code 0.
/// Four Over Six chooses by elements rounded to nearest even, however they are rounded afterwards.
/// Errors: a format or options that make no sense; a stride below the length.
/// Test: tests/formats/block_codes_test.cpp
inline void encode_blocks(const BlockFormat& format, MatrixLines<const float> x, BlockCodes& out,
                          const BlockOptions& options = {}) {
    BlockWalk walk("encode_blocks", format, x, options);
    const BlockGrid& grid = walk.grid();
    const bool coded = format.form == ScaleForm::code;
    out.format = format;
    out.lines = x.lines;
    out.length = x.length;
    out.block_rows = grid.rows;
    out.block_columns = grid.columns;
    out.codes.resize(x.lines * x.length);
    out.scale_codes.resize(coded ? grid.rows * grid.columns : 0);
    out.scales.resize(coded ? 0 : grid.rows * grid.columns);
    out.number = walk.tensor().number;
    alignas(64) std::array<float, BlockWalk::piece> values;
    std::size_t first = 0;
    walk.run(
        [&](std::size_t row, std::span<const BlockScale> scales) {
            first = row * grid.across * x.length;
            for (std::size_t i = 0; i < scales.size(); ++i) {
                const std::size_t block = row * grid.columns + i;
                if (coded) out.scale_codes[block] = static_cast<std::uint8_t>(scales[i].code);
                else out.scales[block] = scales[i].value;
            }
        },
        [&](std::size_t begin, std::size_t count) {
            const auto v = std::span(values).first(count);
            walk.load(begin, v);
            walk.round_by_rule(begin, v);
            encode(format.element, std::span<const float>(v), std::span(out.codes).subspan(first + begin, count),
                   walk.piece_options(begin));
        });
}

/// out = x [lines,length] rounded to the blocks' numbers: `encode_blocks`, then `decode_blocks`, without codes. x and
/// out may be equal, but must not overlap otherwise.
/// Errors: as `encode_blocks`; sizes differ. Test: tests/formats/block_codes_test.cpp
inline void quantise_blocks(const BlockFormat& format, MatrixLines<const float> x, MatrixLines<float> out,
                            const BlockOptions& options = {}) {
    BlockWalk walk("quantise_blocks", format, x, options);
    check_lines("quantise_blocks", "output", out);
    check(x.lines == out.lines && x.length == out.length, "quantise_blocks: input [", x.lines, ',', x.length,
          "] and output [", out.lines, ',', out.length, "] differ in size");
    alignas(64) std::array<float, BlockWalk::piece> values;
    walk.run([](std::size_t, std::span<const BlockScale>) {},
             [&](std::size_t begin, std::size_t count) {
                 const auto v = std::span(values).first(count);
                 walk.load(begin, v);
                 walk.round_by_rule(begin, v);
                 quantise(format.element, v, v, walk.piece_options(begin));
                 walk.segments(begin, count,
                               [&](std::size_t line, std::size_t position, std::size_t offset, std::size_t length,
                                   const BlockScale& scale) {
                                   float* const to = out.data + line * out.stride + position;
                                   if (scale.nan()) std::fill_n(to, length, std::numeric_limits<float>::quiet_NaN());
                                   else
                                       BlockScaler::decode(format.element, scale.decode, v.data() + offset, to, length);
                               });
             });
}

/// The scale of block [row,column] as a float; NaN marks a NaN block.
[[nodiscard]] inline float scale_value(const BlockCodes& codes, std::size_t row, std::size_t column) {
    const std::size_t block = row * codes.block_columns + column;
    return codes.format.form == ScaleForm::code ? decode(codes.format.scale, codes.scale_codes[block])
                                                : codes.scales[block];
}

/// out = the numbers of the codes, [lines,length]. Bits of a code above the element format's are ignored.
/// Errors: sizes differ; vectors whose sizes do not fit the format. Test: tests/formats/block_codes_test.cpp
inline void decode_blocks(const BlockCodes& codes, MatrixLines<float> out) {
    const BlockFormat& format = codes.format;
    inspect_block_format(format, [](const char* what) { fail("decode_blocks: block format: ", what); });
    check_lines("decode_blocks", "output", out);
    check(codes.lines == out.lines && codes.length == out.length, "decode_blocks: codes [", codes.lines, ',',
          codes.length, "] and output [", out.lines, ',', out.length, "] differ in size");
    const BlockGrid grid(format, codes.lines, codes.length);
    const std::size_t blocks = grid.rows * grid.columns;
    const std::size_t scales = format.form == ScaleForm::code ? codes.scale_codes.size() : codes.scales.size();
    check(codes.block_rows == grid.rows && codes.block_columns == grid.columns && scales == blocks,
          "decode_blocks: ", scales, " scales in [", codes.block_rows, ',', codes.block_columns, "] blocks; expected [",
          grid.rows, ',', grid.columns, ']');
    check(codes.codes.size() == codes.lines * codes.length, "decode_blocks: ", codes.codes.size(), " codes; expected ",
          codes.lines, " x ", codes.length);
    const TensorNumbers tensor = decode_numbers(format, codes.number);
    alignas(64) std::array<float, BlockWalk::piece> values;
    for (std::size_t line = 0; line < grid.lines; ++line)
        for (std::size_t begin = 0; begin < grid.length; begin += values.size()) {
            const auto v = std::span(values).first(std::min(values.size(), grid.length - begin));
            const auto from = std::span(codes.codes).subspan(line * grid.length + begin, v.size());
            decode(format.element, std::span<const std::uint8_t>(from), v);
            for (std::size_t offset = 0; offset < v.size();) {
                const std::size_t position = begin + offset, column = position / grid.along;
                const std::size_t count = std::min((column + 1) * grid.along - position, v.size() - offset);
                const float scale = scale_value(codes, line / grid.across, column);
                const BlockFactor factor = decode_factor(format, scale, tensor);
                float* const to = out.data + line * out.stride + position;
                if (is_nan(scale)) std::fill_n(to, count, std::numeric_limits<float>::quiet_NaN());
                else BlockScaler::decode(format.element, factor, v.data() + offset, to, count);
                offset += count;
            }
        }
}

}  // namespace unitscale
