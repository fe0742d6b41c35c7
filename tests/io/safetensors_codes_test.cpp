// SPDX-License-Identifier: MIT
#include <unitscale/io/safetensors_codes.hpp>

#include <unitscale/base/random.hpp>
#include <unitscale/formats/block_codes.hpp>
#include <unitscale/tensor/cast.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

using namespace unitscale;
using namespace unitscale::io;

namespace {

constexpr std::size_t lines = 37, length = 150;  // the last blocks are short

/// Numbers over 16 octaves, with a NaN and zeros in blocks of their own.
std::vector<float> sample() {
    std::vector<float> x(lines * length);
    for (std::size_t i = 0; i < x.size(); ++i) {
        const auto word = static_cast<std::uint32_t>(2654435761u * (i + 1));
        x[i] = std::ldexp(static_cast<float>(static_cast<std::int32_t>(word)) * 0x1p-31f,
                          static_cast<int>(i / 48 % 16) - 8);
    }
    std::fill(x.begin(), x.begin() + 130, 0.0f);
    return x;
}

std::vector<float> numbers_of(const BlockCodes& codes) {
    std::vector<float> values(codes.lines * codes.length);
    decode_blocks(codes, {values.data(), codes.lines, codes.length, codes.length});
    return values;
}

BlockCodes coded(const BlockFormat& format, const std::vector<float>& x) {
    BlockCodes codes;
    encode_blocks(format, {x.data(), lines, length, length}, codes);
    return codes;
}

bool same_numbers(std::span<const float> a, std::span<const float> b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](float p, float q) {
        return std::bit_cast<std::uint32_t>(p) == std::bit_cast<std::uint32_t>(q) || (p != p && q != q);
    });
}

const std::vector<std::string> block_names = {
    "mxfp8_e4m3", "mxfp8_e5m2",   "mxfp6_e3m2",    "mxfp6_e2m3", "mxfp4",      "mxfp4_rceil",       "mxint8",
    "nvfp4",      "nvfp4_square", "nvfp4_torchao", "fp8_tile",   "fp8_square", "fp8_tile_deepgemm", "float8_tensor",
    "float8_line"};

/// Every block format by its name and, of 8, 6 and 4 bits, codes under one scale; each with the numbers beside it.
SafetensorsWriter all_formats() {
    SafetensorsWriter writer;
    const auto expect = [&](const std::string& tensor, const std::vector<float>& values) {
        Tensor<float> expected(Shape{lines, length});
        std::copy(values.begin(), values.end(), expected.data());
        writer.add(tensor + ".expected", std::move(expected));
    };
    std::vector<float> x = sample();
    const auto by_tensor = [&]<FloatFormat F>(Minifloat<F>) {
        Tensor<Minifloat<F>> codes(Shape{lines, length});
        std::vector<float> values(x.size());
        for (std::size_t i = 0; i < x.size(); ++i) {
            codes.data()[i] = element_cast<Minifloat<F>>(x[i]);
            values[i] = 0.25f * static_cast<float>(codes.data()[i]);
        }
        add_tensor_codes(writer, name(F), std::move(codes), 0.25);
        expect(name(F), values);
    };
    by_tensor(Minifloat<e4m3>{});
    by_tensor(Minifloat<e5m2>{});
    by_tensor(Minifloat<e3m2>{});
    by_tensor(Minifloat<e2m3>{});
    by_tensor(Minifloat<e2m1>{});
    for (const std::string& format : block_names) {
        const bool has_nan = format.starts_with("mxfp8");
        x = sample();
        if (has_nan) x[4000] = std::numeric_limits<float>::quiet_NaN();
        const BlockCodes codes = coded(find_block_format(format), x);
        add_block_codes(writer, format, codes);
        expect(format, numbers_of(codes));
    }
    return writer;
}

std::vector<std::byte> file_of(const SafetensorsWriter& writer) {
    std::vector<std::byte> file;
    writer.write_to([&file](std::span<const std::byte> bytes) { file.insert(file.end(), bytes.begin(), bytes.end()); });
    return file;
}

}  // namespace

TEST_CASE("codes in a file: elements, scales, sizes of blocks, and one table for each format") {
    SafetensorsWriter writer;
    const std::vector<float> x = sample();
    const BlockCodes codes = coded(mxfp4, x);
    add_block_codes(writer, "a", codes);
    add_block_codes(writer, "b", coded(nvfp4_square, x));
    add_tensor_codes(writer, "c", Tensor<Minifloat<e4m3>>(Shape{2}, {Minifloat<e4m3>(1.5f), Minifloat<e4m3>(-2.0f)}),
                     8.0);
    const std::vector<std::byte> file = file_of(writer);
    const SafetensorsReader reader(file, "memory");
    CHECK(reader.tensors().size() == 11);
    CHECK(reader.entry("a").dtype == "U8");
    CHECK(reader.entry("a").shape == Shape{lines, length});
    const auto elements = reader.tensor<std::uint8_t>("a");
    CHECK(std::equal(elements.span().begin(), elements.span().end(), codes.codes.begin(), codes.codes.end()));
    const auto scales = reader.tensor<double>("a.scale", Shape{37, 5});
    for (std::size_t i = 0; i < scales.size(); ++i)
        CHECK(scales.data()[i] == std::ldexp(1.0, codes.scale_codes[i] - 127));
    const auto block = reader.tensor<std::int64_t>("a.block", Shape{2});
    CHECK(block.data()[0] == 1);
    CHECK(block.data()[1] == 32);
    CHECK(reader.tensor<std::int64_t>("b.block").data()[0] == 16);
    CHECK(reader.entry("b.scale").shape == Shape{3, 10});
    CHECK(reader.metadata().at("b.element") == "e2m1");
    const auto table = reader.tensor<float>("table.e2m1", Shape{16});
    const std::vector<float> expected = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    for (std::size_t i = 0; i < 8; ++i) {
        CHECK(table.data()[i] == expected[i]);
        CHECK(table.data()[i + 8] == -expected[i]);
    }
    CHECK(reader.entry("c").dtype == "F8_E4M3");
    CHECK(reader.tensor<double>("c.scale", Shape{1}).data()[0] == 8.0);
    CHECK(reader.entry("c.block").shape == Shape{0});
    const auto wide = reader.tensor<float>("table.e4m3", Shape{256});
    CHECK(wide.data()[0x7E] == 448.0f);
    CHECK(std::isnan(wide.data()[0x7F]));
}

TEST_CASE("codes in a file: read back, they are the numbers of decode_blocks, for every form of scale") {
    const std::vector<std::byte> file = file_of(all_formats());
    const SafetensorsReader reader(file, "memory");
    for (const std::string& format : block_names) {
        INFO(format);
        const Tensor<float> values = read_block_codes(reader, format);
        CHECK(same_numbers(values.span(), reader.tensor<float>(format + ".expected", Shape{lines, length}).span()));
        CHECK(std::any_of(values.span().begin(), values.span().end(), [](float v) { return v != v; }) ==
              format.starts_with("mxfp8"));
    }
    CHECK(reader.entry("table.e3m2").shape == Shape{64});
}

TEST_CASE("codes in a file: scales that elements are divided by are stored as inverses, with equal bits") {
    BlockFormat divided = by_rule(BlockRule::torchao_float8, float8_tensor);
    divided.along = 32;
    divided.across = 1;
    const BlockCodes codes = coded(make_block_format(divided), sample());
    CHECK(decode_factor(codes.format, scale_value(codes, 20, 2)).divides);  // else this tests nothing
    SafetensorsWriter writer;
    add_block_codes(writer, "a", codes);
    const std::vector<std::byte> file = file_of(writer);
    CHECK(same_numbers(read_block_codes(SafetensorsReader(file, "memory"), "a").span(), numbers_of(codes)));
}

TEST_CASE("codes in a file: errors") {
    SafetensorsWriter writer;
    REQUIRE_THROWS_WITH(add_decode_table(writer, fp16),
                        "safetensors: codes of fp16 have 16 bits; a decode table is for at most 8");
    BlockCodes codes = coded(mxfp4, sample());
    codes.scale_codes.pop_back();
    REQUIRE_THROWS_WITH(add_block_codes(writer, "a", codes),
                        "safetensors: tensor 'a': 5550 codes and 184 scales; expected 5550 and 185");
    writer.add("a", Tensor<std::uint8_t>(Shape{2, 3}));
    writer.add("a.scale", Tensor<double>(Shape{2, 2}));
    writer.add("a.block", Tensor<std::int64_t>(Shape{2}, {1, 3}));
    add_decode_table(writer, e2m1);
    std::vector<std::byte> file = file_of(writer);
    REQUIRE_THROWS_WITH(read_block_codes(SafetensorsReader(file, "memory"), "a"),
                        "safetensors: tensor 'a' has no metadata 'a.element'");
    writer.set_metadata("a.element", "e2m1");
    file = file_of(writer);
    REQUIRE_THROWS_WITH(read_block_codes(SafetensorsReader(file, "memory"), "a"),
                        "safetensors: tensor 'a' of shape [2,3] has scales of shape [2,2] in blocks of 1 x 3");
    SafetensorsWriter high;
    high.add("a", Tensor<std::uint8_t>(Shape{1, 1}, {16}));
    high.add("a.scale", Tensor<double>(Shape{1, 1}, {1.0}));
    high.add("a.block", Tensor<std::int64_t>(Shape{2}, {1, 1}));
    high.set_metadata("a.element", "e2m1");
    add_decode_table(high, e2m1);
    file = file_of(high);
    REQUIRE_THROWS_WITH(read_block_codes(SafetensorsReader(file, "memory"), "a"),
                        "safetensors: tensor 'a' holds the code 16; expected less than 16");
}

// tests/structure/numpy_codes.sh decodes this file with numpy.
TEST_CASE("codes in a file: the file for numpy") {
    const char* const path = std::getenv("UNITSCALE_CODES_FILE");
    const SafetensorsWriter writer = all_formats();
    CHECK(writer.contains("nvfp4.expected"));
    CHECK_FALSE(writer.contains("nvfp4.other"));
    if (path != nullptr) writer.write(path);
}
