// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/formats/block_codes.hpp>
#include <unitscale/formats/block_format.hpp>
#include <unitscale/formats/block_scale.hpp>
#include <unitscale/formats/code.hpp>
#include <unitscale/formats/format.hpp>
#include <unitscale/formats/minifloat.hpp>
#include <unitscale/io/safetensors.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

// Codes with their scales in a safetensors file, so that a reader without 8-bit floats decodes them: numpy in five
// lines (docs/formats.md). A tensor `w` of codes of e4m3 is stored as
//   w            U8 (or F8_E4M3, F8_E5M2: bytes all the same), one code per byte
//   w.scale      F64: [1], or [block rows, block columns]
//   w.block      I64: empty, or {lines in a block, elements of a line in a block}
//   table.e4m3   F32 [256]: the number of each code, once in a file
//   value = float32(table[code] scale)
// The product of the table's number and the scale is rounded once, to the bits of `decode_blocks`.
namespace unitscale::io {

/// Calls use(E{}) with the element type that a file keeps codes of `format` in.
/// E is the format's own type, or the code word Code where the format has no type.
template <CodeWord Code, class Use>
void with_code_type(const FloatFormat& format, const Use& use) {
    if constexpr (sizeof(Code) == 1) {
        if (format == e4m3) use(Minifloat<e4m3>{});
        else if (format == e5m2) use(Minifloat<e5m2>{});
        else use(Code{});
    } else {
        if (format == fp16) use(Half{});
        else if (format == bf16) use(BFloat16{});
        else use(Code{});
    }
}

/// The name of a format's decode table in a file.
[[nodiscard]] inline std::string decode_table_name(const FloatFormat& format) { return "table." + name(format); }

/// Adds a format's decode table, unless the file has it already. Error: codes of more than a byte.
inline void add_decode_table(SafetensorsWriter& writer, const FloatFormat& format) {
    check(format.code_bits() <= 8, "safetensors: codes of ", name(format), " have ", format.code_bits(),
          " bits; a decode table is for at most 8");
    const std::string table = decode_table_name(format);
    if (writer.contains(table)) return;
    const auto count = static_cast<std::size_t>(format.code_count());
    std::vector<std::uint8_t> codes(count);
    for (std::size_t i = 0; i < count; ++i) codes[i] = static_cast<std::uint8_t>(i);
    Tensor<float> numbers(Shape{count});
    decode(format, std::span<const std::uint8_t>(codes), numbers.span());
    writer.add(table, std::move(numbers));
}

/// Adds codes of one byte under one scale, which is stored instead of the tensor's. Errors: the errors of the writer.
/// Test: tests/io/safetensors_codes_test.cpp
template <CodedElement E>
    requires(sizeof(E) == 1)
void add_tensor_codes(SafetensorsWriter& writer, const std::string& tensor, Tensor<E> codes, double scale) {
    codes.set_scale(1.0);
    writer.add(tensor, std::move(codes));
    writer.add(tensor + ".scale", Tensor<double>(Shape{1}, {scale}));
    writer.add(tensor + ".block", Tensor<std::int64_t>(Shape{0}));
    add_decode_table(writer, format_of<E>);
}

/// Adds codes in blocks, [lines,length], as U8. The metadata `<tensor>.element` is the name of the elements' format.
/// A scale that divides elements (torchao's float8) is stored as its inverse, which in F64 gives equal bits.
/// Errors: the errors of the writer; more or fewer scales than blocks.
/// Test: tests/io/safetensors_codes_test.cpp
inline void add_block_codes(SafetensorsWriter& writer, const std::string& tensor, const BlockCodes& codes) {
    const BlockGrid grid(codes.format, codes.lines, codes.length);
    const std::size_t scales = codes.format.form == ScaleForm::code ? codes.scale_codes.size() : codes.scales.size();
    check(codes.codes.size() == grid.lines * grid.length && scales == grid.rows * grid.columns &&
              codes.block_rows == grid.rows && codes.block_columns == grid.columns,
          "safetensors: tensor ", quoted_text(tensor), ": ", codes.codes.size(), " codes and ", scales,
          " scales; expected ", grid.lines * grid.length, " and ", grid.rows * grid.columns);
    const TensorNumbers numbers = decode_numbers(codes.format, codes.number);
    Tensor<double> factors(Shape{grid.rows, grid.columns});
    for (std::size_t row = 0; row < grid.rows; ++row)
        for (std::size_t column = 0; column < grid.columns; ++column) {
            const BlockFactor factor = decode_factor(codes.format, scale_value(codes, row, column), numbers);
            const auto value = static_cast<double>(factor.value);
            factors.data()[row * grid.columns + column] = factor.divides ? 1.0 / value : value;
        }
    Tensor<std::uint8_t> elements(Shape{grid.lines, grid.length});
    // Bits above the format's mean nothing to `decode`, but would leave the table.
    const auto mask = static_cast<std::uint8_t>(codes.format.element.code_count() - 1);
    for (std::size_t i = 0; i < codes.codes.size(); ++i)
        elements.data()[i] = static_cast<std::uint8_t>(codes.codes[i] & mask);
    writer.add(tensor, std::move(elements));
    writer.add(tensor + ".scale", std::move(factors));
    writer.add(tensor + ".block", Tensor<std::int64_t>(Shape{2}, {static_cast<std::int64_t>(grid.across),
                                                                  static_cast<std::int64_t>(grid.along)}));
    writer.set_metadata(tensor + ".element", name(codes.format.element));
    add_decode_table(writer, codes.format.element);
}

/// The numbers of codes that `add_block_codes` has stored, [lines,length].
/// Errors: the errors of the reader; parts that do not fit each other.
[[nodiscard]] inline Tensor<float> read_block_codes(const SafetensorsReader& reader, const std::string& tensor) {
    const auto found = reader.metadata().find(tensor + ".element");
    check(found != reader.metadata().end(), "safetensors: tensor ", quoted_text(tensor), " has no metadata ",
          quoted_text(tensor + ".element"));
    const auto codes = reader.tensor<std::uint8_t>(tensor);
    const auto scale = reader.tensor<double>(tensor + ".scale");
    const auto block = reader.tensor<std::int64_t>(tensor + ".block", Shape{2});
    const auto table = reader.tensor<float>("table." + found->second);
    const std::int64_t across = block.data()[0], along = block.data()[1];
    check(codes.shape().size() == 2 && scale.shape().size() == 2 && across > 0 && along > 0, "safetensors: tensor ",
          quoted_text(tensor), " of shape ", to_string(codes.shape()), " has scales of shape ",
          to_string(scale.shape()), " in blocks of ", across, " x ", along);
    const std::size_t lines = codes.shape()[0], length = codes.shape()[1], rows = scale.shape()[0],
                      columns = scale.shape()[1], high = static_cast<std::size_t>(across),
                      wide = static_cast<std::size_t>(along);
    check(rows == (lines + high - 1) / high && columns == (length + wide - 1) / wide, "safetensors: tensor ",
          quoted_text(tensor), " of shape ", to_string(codes.shape()), " has scales of shape ",
          to_string(scale.shape()), " in blocks of ", across, " x ", along);
    Tensor<float> values(codes.shape());
    for (std::size_t i = 0; i < values.size(); ++i) {
        const std::size_t code = codes.data()[i];
        check(code < table.size(), "safetensors: tensor ", quoted_text(tensor), " holds the code ", code,
              "; expected less than ", table.size());
        values.data()[i] = static_cast<float>(static_cast<double>(table.data()[code]) *
                                              scale.data()[i / length / high * columns + i % length / wide]);
    }
    return values;
}

}  // namespace unitscale::io
