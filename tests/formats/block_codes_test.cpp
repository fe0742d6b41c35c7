// SPDX-License-Identifier: MIT
#include <unitscale/formats/block_codes.hpp>

#include "formats/reference.hpp"
#include "support/catch.hpp"
#include "support/error_of.hpp"

#include <algorithm>
#include <cmath>
#include <vector>

using namespace unitscale;
using reference::bits_of;
using reference::from_bits;
using reference::to_double;
using unitscale::test::error_of;

namespace {

struct Matrix {
    std::size_t lines, length;
    std::vector<float> data;

    Matrix(std::size_t line_count, std::size_t line_length)
        : lines(line_count), length(line_length), data(line_count * line_length) {}
    [[nodiscard]] MatrixLines<const float> view() const { return {data.data(), lines, length, length}; }
    [[nodiscard]] MatrixLines<float> view() { return {data.data(), lines, length, length}; }
};

Matrix quantised(const BlockFormat& format, const Matrix& x, const BlockOptions& options = {}) {
    Matrix out(x.lines, x.length);
    quantise_blocks(format, x.view(), out.view(), options);
    return out;
}

std::size_t count_different(std::span<const float> a, std::span<const float> b) {
    std::size_t count = 0;
    for (std::size_t i = 0; i < a.size(); ++i)
        count += bits_of(a[i]) != bits_of(b[i]) && !(is_nan(a[i]) && is_nan(b[i])) ? 1u : 0u;
    return count + (a.size() != b.size() ? 1u : 0u);
}

/// Unit normals. `seed` chooses the stream.
Matrix normals(std::size_t lines, std::size_t length, std::uint32_t seed) {
    Matrix x(lines, length);
    for (std::size_t i = 0; i + 1 < x.data.size(); i += 2) {
        const NormalPair pair({seed, 77}, i / 2);
        x.data[i] = static_cast<float>(pair.even());
        x.data[i + 1] = static_cast<float>(pair.odd());
    }
    return x;
}

/// Lines of very different sizes, from subnormal numbers to the largest floats. There are zeros of both signs.
Matrix wide(std::size_t lines, std::size_t length) {
    Matrix x(lines, length);
    for (std::size_t i = 0; i < x.data.size(); ++i) {
        const std::uint32_t word = random_word({41, 42}, i);
        const std::size_t line = i / length;
        const std::uint32_t field = line % 5 == 0   ? (word >> 23) % 255
                                    : line % 5 == 1 ? 0
                                    : line % 5 == 2 ? 250 + word % 5
                                    : line % 5 == 3 ? 120 + word % 9
                                                    : word % 4 + static_cast<std::uint32_t>(7 * line) % 250;
        x.data[i] = from_bits(i % 13 == 0 ? word & 0x80000000u : (word & 0x807FFFFFu) | (field << 23));
    }
    return x;
}

/// The float nearest to an exact double, by the library's general rounding.
float fl(double exact) {
    return value_of<float>(fp32, round_to(fp32, exact, Rounding::nearest_even, Overflow::to_infinity, 0, 0));
}

/// Operation of a factor in double, rounded once; infinity and NaN as in IEEE 754.
float apply(float x, const BlockFactor& factor) {
    const float f = factor.value;
    if (is_nan(x) || is_nan(f)) return from_bits(reference::nan_bits);
    const std::uint32_t sign = (bits_of(x) ^ bits_of(f)) & 0x80000000u;
    if (is_infinite(x) || is_infinite(f)) {
        if (is_any_zero(x) || is_any_zero(f)) return from_bits(reference::nan_bits);
        return from_bits(reference::infinity_bits | sign);
    }
    const float result = factor.divides ? fl(to_double(x) / to_double(f)) : fl(to_double(x) * to_double(f));
    return from_bits(magnitude_word(result) | sign);
}

/// Quantisation by the definition, element by element.
Matrix naive(const BlockFormat& format, const Matrix& x, const BlockOptions& options) {
    Matrix out(x.lines, x.length);
    const auto size = [](int wanted, std::size_t all) {
        return wanted == whole_dimension ? all : static_cast<std::size_t>(wanted);
    };
    const std::size_t across = size(format.across, x.lines), along = size(format.along, x.length);
    const auto larger = [](float a, float b) { return magnitude_word(b) > magnitude_word(a) ? b : a; };
    float tensor_amax = 0;
    for (const float e : x.data) tensor_amax = from_bits(magnitude_word(larger(tensor_amax, e)));
    const TensorNumbers tensor = tensor_numbers(format, tensor_amax);
    for (std::size_t top = 0; top < x.lines; top += across)
        for (std::size_t left = 0; left < x.length; left += along) {
            float amax = 0;
            const auto each = [&](auto&& use) {
                for (std::size_t i = top; i < std::min(top + across, x.lines); ++i)
                    for (std::size_t j = left; j < std::min(left + along, x.length); ++j) use(i * x.length + j);
            };
            each([&](std::size_t at) { amax = from_bits(magnitude_word(larger(amax, x.data[at]))); });
            const BlockScale scale = block_scale(format, amax, tensor);
            each([&](std::size_t at) {
                const float v = apply(x.data[at], scale.encode);
                float rounded = 0;
                if (!is_nan(v) || format.element.has_nan())
                    rounded = quantise_one(format.element, v, options.element, at);
                const bool clears = format.tensor_scale && format.rule == BlockRule::transformer_engine;
                if (clears && is_any_zero(v)) rounded = 0;
                out.data[at] = scale.nan() ? from_bits(reference::nan_bits) : apply(rounded, scale.decode);
            });
        }
    return out;
}

/// Every named format, and formats of other sizes.
std::vector<BlockFormat> all_formats() {
    std::vector<BlockFormat> formats;
    each_named_block_format(
        [&](std::string_view, std::string_view, const BlockFormat& format) { formats.push_back(format); });
    formats.push_back(make_block_format({.element = e2m1, .along = 24, .scale = {5, 3, 15, Specials::single_nan, 0}}));
    formats.push_back(make_block_format({.element = e4m3fnuz, .along = 7, .across = 3, .scale = e5m2}));
    formats.push_back(make_block_format({.element = e5m2, .along = 128, .form = ScaleForm::float32}));
    formats.push_back(make_block_format(
        {.element = e3m4, .along = 5, .across = 2, .form = ScaleForm::float32, .rule = BlockRule::torchao_float8}));
    return formats;
}

double snr(const Matrix& x, const Matrix& q) {
    double signal = 0, noise = 0;
    for (std::size_t i = 0; i < x.data.size(); ++i) {
        const auto a = static_cast<double>(x.data[i]), e = a - static_cast<double>(q.data[i]);
        signal += a * a;
        noise += e * e;
    }
    return 10 * std::log10(signal / noise);
}

}  // namespace

TEST_CASE("blocks give the results of the definition, for every format, rounding and size of numbers") {
    const Matrix x = wide(37, 301);
    for (const BlockFormat& format : all_formats())
        for (const Rounding rounding :
             {Rounding::nearest_even, Rounding::nearest_away, Rounding::toward_zero, Rounding::stochastic}) {
            const BlockOptions options{.element = {.rounding = rounding, .bits = 11, .key = {3, 4}}};
            const Matrix expected = naive(format, x, options), got = quantised(format, x, options);
            INFO(name(format) << ' ' << name(rounding));
            CHECK(count_different(got.data, expected.data) == 0);
            // Codes decode to the same bits.
            BlockCodes codes;
            encode_blocks(format, x.view(), codes, options);
            Matrix decoded(x.lines, x.length);
            decode_blocks(codes, decoded.view());
            CHECK(count_different(decoded.data, expected.data) == 0);
        }
}

TEST_CASE("one scale per block is stored, with the tensor's number") {
    const Matrix x = normals(20, 70, 5);
    BlockCodes codes;
    encode_blocks(mxfp4, x.view(), codes);
    CHECK(codes.block_rows == 20);
    CHECK(codes.block_columns == 3);
    CHECK(codes.scale_codes.size() == 60);
    CHECK(codes.scales.empty());
    CHECK(codes.codes.size() == 1400);
    const float amax = std::bit_cast<float>(largest_word(x.data.data() + 70 * 4 + 64, 6));
    CHECK(codes.scale_codes[4 * 3 + 2] == block_scale(mxfp4, amax, tensor_numbers(mxfp4)).code);
    CHECK(scale_value(codes, 4, 2) == block_scale(mxfp4, amax, tensor_numbers(mxfp4)).value);
    encode_blocks(fp8_square, x.view(), codes);
    CHECK(codes.scale_codes.empty());
    CHECK(codes.scales.size() == 1);
    CHECK(scale_value(codes, 0, 0) == codes.scales[0]);
    encode_blocks(nvfp4_square, x.view(), codes);
    CHECK(codes.scale_codes.size() == 2 * 5);
    CHECK(codes.number == std::bit_cast<float>(largest_word(x.data.data(), x.data.size())));
    encode_blocks(float8_line, x.view(), codes);
    CHECK(codes.scales.size() == 20);
    encode_blocks(float8_tensor, x.view(), codes);
    CHECK(codes.scales.size() == 1);
}

TEST_CASE("strides, places and empty matrices do not matter") {
    const Matrix x = wide(19, 150);
    std::vector<float> strided(19 * 163, 7.0f), out(19 * 171, -1.0f);
    for (std::size_t i = 0; i < 19; ++i)
        std::copy_n(x.data.begin() + static_cast<std::ptrdiff_t>(150 * i), 150,
                    strided.begin() + static_cast<std::ptrdiff_t>(163 * i));
    const BlockOptions options{.element = {.rounding = Rounding::stochastic, .key = {8, 9}, .first_index = 5}};
    for (const BlockFormat& format : all_formats()) {
        INFO(name(format));
        const Matrix expected = quantised(format, x, options);
        quantise_blocks(format, {strided.data(), 19, 150, 163}, {out.data(), 19, 150, 171}, options);
        BlockCodes plain, codes;
        encode_blocks(format, x.view(), plain, options);
        encode_blocks(format, {strided.data(), 19, 150, 163}, codes, options);
        CHECK(codes.codes == plain.codes);
        CHECK(codes.scale_codes == plain.scale_codes);
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < 19; ++i) {
            const std::span<const float> line(out.data() + 171 * i, 171);
            wrong += count_different(line.first(150), std::span(expected.data).subspan(150 * i, 150));
            for (const float untouched : line.subspan(150)) wrong += untouched != -1.0f ? 1u : 0u;
        }
        CHECK(wrong == 0);
        Matrix in_place = x;
        quantise_blocks(format, in_place.view(), in_place.view(), options);
        CHECK(count_different(in_place.data, expected.data) == 0);
        for (const auto& [lines, length] : {std::pair{0, 5}, std::pair{5, 0}, std::pair{0, 0}}) {
            const Matrix empty(static_cast<std::size_t>(lines), static_cast<std::size_t>(length));
            CHECK(quantised(format, empty).data.empty());
            encode_blocks(format, empty.view(), codes);
            CHECK(codes.codes.empty());
            Matrix none = empty;
            decode_blocks(codes, none.view());
        }
    }
}

TEST_CASE("a short last block equals one that is padded with zeros") {
    const Matrix x = normals(3, 45, 9);
    Matrix padded(3, 64);
    for (std::size_t i = 0; i < 3; ++i)
        for (std::size_t j = 0; j < 45; ++j) padded.data[64 * i + j] = x.data[45 * i + j];
    for (const BlockFormat& format : {mxfp8_e4m3, mxfp4, nvfp4, nvfp4_square, fp8_tile, fp8_square}) {
        const Matrix short_blocks = quantised(format, x), full_blocks = quantised(format, padded);
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < 3; ++i)
            for (std::size_t j = 0; j < 45; ++j)
                wrong += bits_of(short_blocks.data[45 * i + j]) != bits_of(full_blocks.data[64 * i + j]) ? 1u : 0u;
        CHECK(wrong == 0);
    }
}

TEST_CASE("squares decode to the same numbers for a matrix and its transpose") {
    const Matrix w = wide(50, 70);
    Matrix transposed(70, 50);
    for (std::size_t i = 0; i < 50; ++i)
        for (std::size_t j = 0; j < 70; ++j) transposed.data[50 * j + i] = w.data[70 * i + j];
    BlockFormat squares = mxfp8_e4m3;
    squares.across = 32;
    for (const BlockFormat& format : {nvfp4_square, fp8_square, squares, float8_tensor}) {
        const Matrix a = quantised(format, w), b = quantised(format, transposed);
        std::size_t wrong = 0;
        for (std::size_t i = 0; i < 50; ++i)
            for (std::size_t j = 0; j < 70; ++j)
                wrong += bits_of(a.data[70 * i + j]) != bits_of(b.data[50 * j + i]) ? 1u : 0u;
        CHECK(wrong == 0);
    }
    // Blocks of one line do not.
    const Matrix x = normals(50, 70, 12);
    for (std::size_t i = 0; i < 50; ++i)
        for (std::size_t j = 0; j < 70; ++j) transposed.data[50 * j + i] = x.data[70 * i + j];
    const Matrix a = quantised(nvfp4, x), b = quantised(nvfp4, transposed);
    std::size_t different = 0;
    for (std::size_t i = 0; i < 50; ++i)
        for (std::size_t j = 0; j < 70; ++j)
            different += bits_of(a.data[70 * i + j]) != bits_of(b.data[50 * j + i]) ? 1u : 0u;
    CHECK(different > 100);
}

TEST_CASE("bands of lines, given their place and the tensor's amax, give the results of the whole") {
    const Matrix x = normals(48, 100, 3);
    const float amax = std::bit_cast<float>(largest_word(x.data.data(), x.data.size()));
    for (const BlockFormat& format : {mxfp4, nvfp4, nvfp4_square, float8_tensor}) {
        BlockOptions options{.element = {.rounding = Rounding::stochastic, .bits = 8, .key = {1, 2}}};
        const Matrix expected = quantised(format, x, options);
        Matrix out(48, 100);
        options.tensor_amax = amax;
        for (std::size_t first = 0; first < 48; first += 16) {
            options.element.first_index = first * 100;
            quantise_blocks(format, {x.data.data() + 100 * first, 16, 100, 100},
                            {out.data.data() + 100 * first, 16, 100, 100}, options);
        }
        INFO(name(format));
        CHECK(count_different(out.data, expected.data) == 0);
        options.tensor_amax = 1.3f * amax;
        options.element.first_index = 0;
        CHECK((count_different(quantised(format, x, options).data, expected.data) > 100) == (format != mxfp4));
    }
}

TEST_CASE("signal-to-noise ratios of unit normals are those of the reference implementations") {
    struct Row {
        BlockFormat format;
        double expected;
        BlockOptions options;
        bool slow = false;
    };
    std::vector<Row> rows;
    const auto add = [&rows](const char* format, std::initializer_list<double> of_roundings, double toward_zero) {
        auto expected = of_roundings.begin();
        for (const char* suffix : {"", "_ceil", "_rceil", "_even"})
            rows.push_back({find_block_format(std::string(format) + suffix), *expected++, {}});
        rows.push_back({find_block_format(format), toward_zero, {.element = {.rounding = Rounding::toward_zero}}});
    };
    add("mxfp8_e5m2", {25.35, 25.54, 25.54, 25.54}, 20.13);
    add("mxfp8_e4m3", {30.63, 31.52, 31.52, 31.17}, 25.61);
    add("mxfp6_e3m2", {25.35, 25.54, 25.54, 25.54}, 20.13);
    add("mxfp6_e2m3", {30.94, 28.77, 30.95, 30.98}, 25.28);
    add("mxfp4", {18.78, 16.82, 18.75, 19.02}, 14.15);
    rows.push_back({mxint8, 41.67, {.element = {.rounding = Rounding::nearest_away}}});
    rows.push_back({mxint8, 35.68, {.element = {.rounding = Rounding::toward_zero}}});

    const auto changed = [](BlockFormat format, auto change) {
        change(format);
        return make_block_format(format);
    };
    const BlockOptions stochastic{.element = {.rounding = Rounding::stochastic, .bits = 8, .key = {5, 5}}};
    BlockOptions engine_bits = stochastic;
    engine_bits.transformer_engine_bits = true;
    rows.push_back({nvfp4, 20.43, {}});
    rows.push_back({by_rule(BlockRule::torchao, nvfp4), 20.43, {}});
    rows.push_back({changed(nvfp4,
                            [](BlockFormat& f) {
                                f.tensor_scale = false;
                                f.rule = BlockRule::torchao;
                            }),
                    20.43,
                    {}});
    rows.push_back({nvfp4_square, 19.07, {}});
    rows.push_back({nvfp4, 17.23, stochastic});
    rows.push_back({nvfp4, 17.23, engine_bits, true});
    const auto choice = [&](const BlockFormat& format, FourOverSix error, int max) {
        return changed(format, [&](BlockFormat& f) {
            f.four_over_six = error;
            f.four_over_six_max = max;
        });
    };
    rows.push_back({choice(nvfp4, FourOverSix::absolute_error, 256), 21.08, {}, true});
    rows.push_back({choice(nvfp4, FourOverSix::squared_error, 256), 21.21, {}, true});
    rows.push_back({choice(nvfp4, FourOverSix::squared_error, 448), 21.21, {}, true});
    rows.push_back({choice(nvfp4_square, FourOverSix::squared_error, 256), 19.07, {}, true});

    const auto unrounded = [&](const BlockFormat& format) {
        return changed(format, [](BlockFormat& f) { f.form = ScaleForm::float32; });
    };
    for (const BlockFormat& powers : {fp8_tile, fp8_square, float8_line}) rows.push_back({powers, 31.52, {}});
    rows.push_back({unrounded(fp8_tile), 31.80, {}});
    rows.push_back({unrounded(fp8_square), 31.55, {}});
    rows.push_back({unrounded(float8_line), 31.56, {}});
    rows.push_back({float8_tensor, 31.54, {}});
    const BlockFormat wide_range = changed(fp8_tile, [](BlockFormat& f) { f.element = e5m2; });
    rows.push_back({wide_range, 25.54, {}});
    rows.push_back({unrounded(wide_range), 25.80, {}});

    for (const std::uint32_t seed : {1u, 2u, 3u}) {
        const Matrix x = normals(1024, 1024, seed);
        const Matrix some = [&x] {  // the slow rows' share of the lines
            Matrix part(256, 1024);
            std::copy_n(x.data.begin(), part.data.size(), part.data.begin());
            return part;
        }();
        for (const Row& row : rows) {
            const Matrix& sample = row.slow ? some : x;
            INFO(name(row.format) << " seed " << seed);
            CHECK(std::abs(snr(sample, quantised(row.format, sample, row.options)) - row.expected) < 0.05);
        }
        // One element in a hundred is 20 times as large.
        Matrix outliers = x;
        for (std::size_t i = 0; i < outliers.data.size(); ++i)
            if (random_word({seed, 99}, i) < 42949673u) outliers.data[i] *= 20;
        CHECK(std::abs(snr(outliers, quantised(nvfp4, outliers)) - 20.85) < 0.1);
        CHECK(std::abs(snr(outliers, quantised(find_block_format("mxfp4_rceil"), outliers)) - 15.29) < 0.1);
    }
}

TEST_CASE("NaN and infinity in a block") {
    const float nan_number = from_bits(reference::nan_bits), infinite = from_bits(reference::infinity_bits);
    Matrix x(2, 64);
    for (std::size_t i = 0; i < x.data.size(); ++i) x.data[i] = static_cast<float>(i % 7) - 3;
    const auto nans = [](const Matrix& q) {
        std::vector<std::size_t> found;
        for (std::size_t i = 0; i < q.data.size(); ++i)
            if (is_nan(q.data[i])) found.push_back(i);
        return found;
    };
    for (const float bad : {nan_number, infinite}) {
        Matrix one = x;
        one.data[70] = bad;
        // The block of 32 becomes NaN, and no other.
        for (const BlockFormat& format : {mxfp4, mxfp8_e4m3, mxint8}) {
            const std::vector<std::size_t> found = nans(quantised(format, one));
            CHECK(found.size() == 32);
            CHECK((found.front() == 64 && found.back() == 95));
            BlockCodes codes;
            encode_blocks(format, one.view(), codes);
            CHECK(codes.scale_codes ==
                  std::vector<std::uint8_t>{codes.scale_codes[0], codes.scale_codes[1], 255, codes.scale_codes[3]});
            CHECK(std::count(codes.codes.begin() + 64, codes.codes.begin() + 96, 0) == 32);
        }
    }
    Matrix one = x;
    one.data[70] = nan_number;
    // Two levels: every block.
    CHECK(nans(quantised(nvfp4, one)).size() == 128);
    BlockCodes codes;
    encode_blocks(nvfp4, one.view(), codes);
    CHECK(codes.codes == std::vector<std::uint8_t>(128, 0));
    CHECK(codes.scale_codes == std::vector<std::uint8_t>(8, 0x7F));
    // TransformerEngine's kernel: scale 1. NaN stays where the elements have it, else it is 0.
    CHECK(nans(quantised(fp8_tile, one)) == std::vector<std::size_t>{70});
    CHECK(quantised(fp8_tile, one).data[71] == x.data[71]);
    BlockFormat format = fp8_tile;
    format.element = e2m1;
    CHECK(nans(quantised(format, one)).empty());
    CHECK(is_any_zero(quantised(format, one).data[70]));
    CHECK(quantised(format, one).data[71] == x.data[71]);

    one.data[70] = -infinite;
    CHECK(quantised(fp8_tile, one).data[70] == -448.0f);
    format = mxfp8_e4m3;
    format.non_finite = NonFiniteAmax::saturate;
    CHECK(is_infinite(quantised(format, one).data[70]));  // 448 2^127
    CHECK(is_any_zero(quantised(format, one).data[71]));
    encode_blocks(format, one.view(), codes);
    CHECK(codes.codes[70] == (e4m3.max_code() | 0x80));
    CHECK(codes.scale_codes[2] == 254);
    // Two levels: 0 times infinity is NaN.
    const Matrix engine = quantised(nvfp4, one);
    CHECK((is_infinite(engine.data[70]) && bits_of(engine.data[70]) >> 31 == 1));
    CHECK(is_infinite(engine.data[60]));
    CHECK(is_nan(engine.data[59]));
}

TEST_CASE("signs of zeros: kept, but by TransformerEngine's two levels only for numbers that round to zero") {
    Matrix x(1, 32);
    x.data[0] = 6;
    x.data[1] = from_bits(0x80000000u);
    x.data[2] = -0.1f;
    BlockCodes codes;
    encode_blocks(mxfp4, x.view(), codes);
    CHECK(std::vector<std::uint8_t>(codes.codes.begin(), codes.codes.begin() + 4) ==
          std::vector<std::uint8_t>{7, 8, 8, 0});
    encode_blocks(by_rule(BlockRule::torchao, nvfp4), x.view(), codes);
    CHECK(codes.codes[1] == 8);
    encode_blocks(nvfp4, x.view(), codes);
    CHECK(std::vector<std::uint8_t>(codes.codes.begin(), codes.codes.begin() + 4) ==
          std::vector<std::uint8_t>{7, 0, 8, 0});
    // -2^-149 times q = 1/8 rounds to -0; times 1 it is a subnormal number.
    x.data[2] = from_bits(0x80000001u);
    encode_blocks(nvfp4, x.view(), codes);
    CHECK(codes.codes[2] == 8);
    x.data[0] = 48;
    encode_blocks(nvfp4, x.view(), codes);
    CHECK(codes.codes[2] == 0);
}

TEST_CASE("blocks whose scale is 0 have codes of 6 and decode to 0") {
    Matrix x(1, 32);
    x.data[0] = 1e6f;
    for (std::size_t i = 16; i < 32; ++i) x.data[i] = i % 2 == 0 ? 1.0f : -1e-30f;
    BlockCodes codes;
    encode_blocks(nvfp4, x.view(), codes);
    CHECK(codes.scale_codes == std::vector<std::uint8_t>{0x7E, 0});
    CHECK(codes.codes[16] == 7);
    CHECK(codes.codes[17] == 15);
    const Matrix q = quantised(nvfp4, x);
    CHECK((is_any_zero(q.data[16]) && is_any_zero(q.data[17])));
    CHECK(quantised(by_rule(BlockRule::torchao, nvfp4), x).data[16] == 0.0f);
}

TEST_CASE("a zero tensor decodes to zeros in every format, and a flushed block too") {
    const Matrix zeros(5, 40);
    for (const BlockFormat& format : all_formats()) {
        INFO(name(format));
        CHECK(count_different(quantised(format, zeros).data, zeros.data) == 0);
    }
    Matrix x(1, 64);
    x.data[3] = from_bits(0x007FFFFFu);
    x.data[40] = from_bits(0x00800000u);
    BlockFormat format = mxfp8_e5m2;
    CHECK(!is_any_zero(quantised(format, x).data[3]));
    format.flush_subnormal_blocks = true;
    CHECK(is_any_zero(quantised(format, x).data[3]));
    CHECK(bits_of(quantised(format, x).data[40]) == 0x00800000u);
}

TEST_CASE("TransformerEngine's stochastic rounding is the library's with 8 bits, but where a sum is rounded up") {
    // By exact integers: |v| in steps of 2^-40, the sum t rounded to 24 bits.
    const auto exact = [](float v, std::uint32_t r) {
        const double a = std::min(to_double(from_bits(magnitude_word(v))), 6.0);
        const double step = a < 2 ? 0.5 : a < 4 ? 1 : 2;
        const double t = to_double(fl(a + step * r / 256));
        const double size = t < 2 ? 0.5 : t < 4 ? 1 : 2;
        return std::min(size * std::floor(t / size), 6.0);
    };
    const auto library = [](float v, std::uint32_t r) {
        const Rounded rounded = round_to(e2m1, v, Rounding::stochastic, Overflow::saturate, 8, r << 24);
        return to_double(e2m1.magnitude<float>(rounded.code));
    };
    std::size_t different_small = 0, different_large = 0, wrong = 0;
    for (std::uint32_t i = 0; i < 60000; ++i) {
        const std::uint32_t word = random_word({51, 52}, i);
        const float v = from_bits((word & 0x80000000u) | (0x3A000000u + (word & 0x7FFFFFFFu) % 0x06C00000u));  // to 6
        const std::uint32_t r = random_word({53, 54}, i) >> 24;
        const float got = transformer_engine_stochastic(v, r);
        wrong += std::abs(to_double(got)) != exact(v, r) || bits_of(got) >> 31 != bits_of(v) >> 31 ? 1u : 0u;
        const bool differs = std::abs(to_double(got)) != library(v, r);
        (magnitude_word(v) < bits_of(1.0f) ? different_small : different_large) += differs ? 1u : 0u;
    }
    CHECK(wrong == 0);
    CHECK(different_large == 0);
    CHECK(different_small < 3);
    // A float just below 2^-9 and 255/512 add up to less than 1/2, but their sum is rounded to 1/2.
    const float v = from_bits(bits_of(0x1p-9f) - 1);
    CHECK(transformer_engine_stochastic(v, 255) == 0.5f);
    CHECK(library(v, 255) == 0.0);
    CHECK(transformer_engine_stochastic(v, 254) == 0.0f);
    CHECK(transformer_engine_stochastic(-5.0f, 128) == -6.0f);
    CHECK(transformer_engine_stochastic(100.0f, 255) == 6.0f);
    CHECK(transformer_engine_stochastic(from_bits(0xFFC00000u), 0) == 6.0f);

    const Matrix x = normals(64, 128, 4);
    BlockOptions options{.element = {.rounding = Rounding::stochastic, .bits = 8, .key = {9, 1}}};
    const Matrix plain = quantised(nvfp4, x, options);
    options.transformer_engine_bits = true;
    CHECK(count_different(plain.data, quantised(nvfp4, x, options).data) <= 1);
    BlockCodes codes;
    encode_blocks(nvfp4, x.view(), codes, options);
    Matrix decoded(64, 128);
    decode_blocks(codes, decoded.view());
    CHECK(count_different(decoded.data, quantised(nvfp4, x, options).data) == 0);
}

TEST_CASE("stochastic rounding in blocks has the mean of its input") {
    Matrix x(500, 32);
    for (std::size_t i = 0; i < 500; ++i) {
        std::fill_n(x.data.begin() + static_cast<std::ptrdiff_t>(32 * i), 32, 2.3f);
        x.data[32 * i] = 6;
    }
    for (const bool engine : {false, true}) {
        const Matrix q = quantised(mxfp4, x,
                                   {.element = {.rounding = Rounding::stochastic, .bits = 8, .key = {2, 2}},
                                    .transformer_engine_bits = engine});
        double sum = 0;
        for (std::size_t i = 0; i < q.data.size(); ++i)
            if (i % 32 != 0) {
                CHECK((q.data[i] == 2.0f || q.data[i] == 3.0f));
                sum += static_cast<double>(q.data[i]);
            }
        // Up with probability 0.3, right to 2^-8.
        CHECK(std::abs(sum / (500 * 31) - 2.3) < 5 * std::sqrt(0.21 / (500 * 31)) + 1.0 / 256);
    }
}

TEST_CASE("Four Over Six decodes with its own number, and never with a larger error") {
    const Matrix x = normals(32, 256, 6);
    BlockFormat format = nvfp4;
    format.four_over_six = FourOverSix::squared_error;
    const Matrix q = quantised(format, x);
    BlockCodes codes;
    encode_blocks(format, x.view(), codes);
    Matrix decoded(32, 256);
    decode_blocks(codes, decoded.view());
    CHECK(count_different(q.data, decoded.data) == 0);
    // The choice 6 alone, by the scales of a format that maps A to 6 * 256.
    std::size_t fours = 0;
    const TensorNumbers tensor = tensor_numbers(format, codes.number);
    for (std::size_t i = 0; i < 32; ++i)
        for (std::size_t c = 0; c < 16; ++c) {
            const float amax = std::bit_cast<float>(largest_word(x.data.data() + 256 * i + 16 * c, 16));
            const BlockScale six = block_scale(format, amax, tensor), four = block_scale(format, amax, tensor, true);
            double error_six = 0, error_four = 0, error = 0;
            for (std::size_t j = 0; j < 16; ++j) {
                const float e = x.data[256 * i + 16 * c + j];
                const auto distance = [e](float value) {
                    return (static_cast<double>(value) - static_cast<double>(e)) *
                           (static_cast<double>(value) - static_cast<double>(e));
                };
                error_six += distance(apply(quantise(e2m1, apply(e, six.encode)), six.decode));
                error_four += distance(apply(quantise(e2m1, apply(e, four.encode)), four.decode));
                error += distance(q.data[256 * i + 16 * c + j]);
            }
            fours += codes.scale_codes[16 * i + c] == four.code ? 1u : 0u;
            CHECK(error <= std::min(error_six, error_four) * (1 + 1e-5));
        }
    CHECK((fours > 100 && fours < 412));
}

TEST_CASE("errors of blocks name the function and the argument") {
    std::vector<float> x(64), out(64);
    const MatrixLines<const float> in{x.data(), 2, 32, 32};
    const MatrixLines<float> to{out.data(), 2, 32, 32};
    const auto message = [&](const BlockFormat& format, const BlockOptions& options) {
        const std::string of_quantise = error_of([&] { quantise_blocks(format, in, to, options); });
        BlockCodes codes;
        std::string of_encode = error_of([&] { encode_blocks(format, in, codes, options); });
        if (of_encode.starts_with("encode_blocks")) of_encode.replace(0, 6, "quantise");
        CHECK(of_quantise == of_encode);
        return of_quantise;
    };
    CHECK(message(mxfp4, {}).empty());
    CHECK(message({.element = fp16}, {}) == "quantise_blocks: block format: element codes must fit a byte");
    CHECK(message({.element = e2m1, .along = -4}, {}) ==
          "quantise_blocks: block format: along and across must be at least 1, or 0 for the whole dimension");
    CHECK(message(mxfp4, {.element = {.rounding = Rounding::up}}) ==
          "quantise_blocks: rounding is up; expected nearest_even, nearest_away, toward_zero or stochastic");
    CHECK(message(mxfp8_e4m3, {.element = {.overflow = Overflow::to_infinity}}) ==
          "quantise_blocks: overflow is to_infinity; expected saturate: a block's elements are saturated");
    CHECK(message(mxfp8_e4m3, {.element = {.bits = 25}}) == "quantise_blocks: bits is 25; expected 1 to 24");
    const std::string bits =
        "quantise_blocks: transformer_engine_bits is for e2m1 elements, stochastic rounding and 8 bits";
    CHECK(message(mxfp4, {.transformer_engine_bits = true}) == bits);
    CHECK(message(mxfp4, {.element = {.rounding = Rounding::stochastic}, .transformer_engine_bits = true}) == bits);
    CHECK(message(mxfp8_e4m3,
                  {.element = {.rounding = Rounding::stochastic, .bits = 8}, .transformer_engine_bits = true}) == bits);
    CHECK(message(nvfp4, {.tensor_amax = -1.0f}) ==
          "quantise_blocks: tensor_amax is -1; expected a number of at least 0");
    CHECK(error_of([&] {
              quantise_blocks(mxfp4, {x.data(), 2, 32, 31}, to);
          }) == "quantise_blocks: input [2,32] has stride 31; expected at least 32");
    CHECK(error_of([&] {
              quantise_blocks(mxfp4, in, {out.data(), 2, 32, 31});
          }) == "quantise_blocks: output [2,32] has stride 31; expected at least 32");
    CHECK(error_of([&] {
              quantise_blocks(mxfp4, in, {out.data(), 1, 64, 64});
          }) == "quantise_blocks: input [2,32] and output [1,64] differ in size");

    BlockCodes codes;
    encode_blocks(mxfp4, in, codes);
    CHECK(error_of([&] {
              decode_blocks(codes, {out.data(), 1, 64, 64});
          }) == "decode_blocks: codes [2,32] and output [1,64] differ in size");
    BlockCodes broken = codes;
    broken.scale_codes.pop_back();
    CHECK(error_of([&] { decode_blocks(broken, to); }) == "decode_blocks: 1 scales in [2,1] blocks; expected [2,1]");
    broken = codes;
    broken.block_rows = 1;
    CHECK(error_of([&] { decode_blocks(broken, to); }) == "decode_blocks: 2 scales in [1,1] blocks; expected [2,1]");
    broken = codes;
    broken.codes.pop_back();
    CHECK(error_of([&] { decode_blocks(broken, to); }) == "decode_blocks: 63 codes; expected 2 x 32");
    broken = codes;
    broken.format.element = fp16;
    CHECK(error_of([&] { decode_blocks(broken, to); }) == "decode_blocks: block format: element codes must fit a byte");
}

TEST_CASE("an operand's options: TransformerEngine's stochastic bits where its formula holds") {
    const RandomKey key{3, 4};
    const Quantiser stochastic{.format = e2m1, .rounding = Rounding::stochastic, .bits = 8};
    CHECK(block_options(nvfp4, stochastic, key).transformer_engine_bits);
    CHECK(block_options(nvfp4, stochastic, key).element.key.stream == 4);
    CHECK(block_options(nvfp4, stochastic, key).element.bits == 8);
    CHECK_FALSE(block_options(by_rule(BlockRule::torchao, nvfp4), stochastic, key).transformer_engine_bits);
    Quantiser other = stochastic;
    other.bits = 16;
    CHECK_FALSE(block_options(nvfp4, other, key).transformer_engine_bits);
    other = stochastic;
    other.rounding = Rounding::nearest_even;
    CHECK_FALSE(block_options(nvfp4, other, key).transformer_engine_bits);
    other = stochastic;
    other.format = e4m3;
    CHECK_FALSE(block_options(mxfp8_e4m3, other, key).transformer_engine_bits);
}
