// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/formats/block_codes.hpp>
#include <unitscale/formats/block_format.hpp>
#include <unitscale/formats/format.hpp>
#include <unitscale/formats/nibbles.hpp>
#include <unitscale/io/safetensors.hpp>
#include <unitscale/io/safetensors_codes.hpp>
#include <unitscale/tensor/coded_weight.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

// Coded weights in a safetensors file, in as many bits as they have. A weight `w` [out,in] is stored as
//   w            F32, F16 or BF16; or codes, U8 (F8_E4M3, F8_E5M2): one to a byte, [out,in], or where a code has 4 bits
//                and `in` is even two to a byte, the first in the low half, [out,in/2]
//   w.scale      codes of one scale: F64 [1], a power of two
//                codes in blocks: [block rows, block columns], U8 codes of the scale's format, or F32
//   w.number     F32 [1], the tensor's number (two levels of scales)
//   table.e2m1   F32: the number of each code, once in a file, and of each scale's code: table.e8m0, table.e4m3
//   metadata     `w.code`: the name of the format, or of the block format, such as nvfp4
// A file of one scale per tensor is read by other readers of this library as numbers, too.
namespace unitscale::io {

/// A format without the shift of a tensor's scale, and the shift. Error: a format without a name.
[[nodiscard]] inline std::pair<FloatFormat, int> unshifted(const FloatFormat& format) {
    for (const auto& known : named_formats) {
        FloatFormat moved = known.format;
        moved.bias = format.bias;
        if (moved == format) return {known.format, format.bias - known.format.bias};
    }
    fail("coded weight: format ", name(format), " is no named format with another bias");
}

/// Adds a coded weight. Errors: the errors of the writer; a block format without a name.
/// Test: tests/io/safetensors_weights_test.cpp
inline void add_coded_weight(SafetensorsWriter& writer, const std::string& tensor, const CodedWeight& weight) {
    const std::size_t out = weight.out(), in = weight.in();
    const auto code = [&](std::size_t i) { return weight.code(i / in, i % in); };
    const auto add_elements = [&]<class E>(E) {
        Tensor<E> elements({out, in});
        for (std::size_t i = 0; i < elements.size(); ++i) elements.data()[i] = element_cast<E>(weight.number(code(i)));
        writer.add(tensor, std::move(elements));
    };
    if (weight.bits() == WeightBits::float32) return add_elements(float{});
    if (weight.bits() == WeightBits::float16) return add_elements(Half{});
    if (weight.bits() == WeightBits::bfloat16) return add_elements(BFloat16{});

    std::vector<std::uint8_t> codes(out * in);
    for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint8_t>(code(i));
    const auto add_bytes = [&]<class E>(E) {
        Tensor<E> bytes({out, in});
        std::copy(codes.begin(), codes.end(), reinterpret_cast<std::uint8_t*>(bytes.data()));
        writer.add(tensor, std::move(bytes));
    };
    const bool blocks = weight.blocks().has_value();
    const auto [format, bias] = blocks ? std::pair(weight.format(), 0) : unshifted(weight.format());
    if (weight.bits() == WeightBits::nibble && in % 2 == 0) {
        Tensor<std::uint8_t> packed({out, in / 2});
        pack_nibbles(codes, packed.span());
        writer.add(tensor, std::move(packed));
    } else if (format == e4m3) {
        add_bytes(Minifloat<e4m3>{});
    } else if (format == e5m2) {
        add_bytes(Minifloat<e5m2>{});
    } else {
        add_bytes(std::uint8_t{});
    }
    add_decode_table(writer, format);
    if (!blocks) {
        writer.set_metadata(tensor + ".code", name(format));
        writer.add(tensor + ".scale", Tensor<double>(Shape{1}, {std::ldexp(1.0, -bias)}));
        writer.add(tensor + ".block", Tensor<std::int64_t>(Shape{0}));
        return;
    }
    const BlockFormat& form = *weight.blocks();
    check(find_block_format(name(form)) == form, "coded weight: block format ", name(form), " has no name");
    writer.set_metadata(tensor + ".code", name(form));
    const BlockGrid grid(form, out, in);
    const auto each_scale = [&](auto* to, const auto& scale) {
        for (std::size_t r = 0; r < grid.rows; ++r)
            for (std::size_t c = 0; c < grid.columns; ++c) *to++ = scale(r * grid.across, c);
    };
    if (form.form == ScaleForm::code) {
        Tensor<std::uint8_t> scales({grid.rows, grid.columns});
        each_scale(scales.data(), [&](std::size_t i, std::size_t b) { return weight.scale_code(i, b); });
        writer.add(tensor + ".scale", std::move(scales));
        add_decode_table(writer, form.scale);
    } else {
        Tensor<float> scales({grid.rows, grid.columns});
        each_scale(scales.data(), [&](std::size_t i, std::size_t b) { return weight.scale(i, b); });
        writer.add(tensor + ".scale", std::move(scales));
    }
    if (form.tensor_scale) writer.add(tensor + ".number", Tensor<float>(Shape{1}, {weight.tensor_number()}));
}

/// Whether the file holds codes of this tensor, as `add_coded_weight` stores them.
[[nodiscard]] inline bool holds_codes(const SafetensorsReader& reader, const std::string& tensor) {
    return reader.metadata().find(tensor + ".code") != reader.metadata().end();
}

/// The codes of a weight [out,in], which are not widened on the way. Errors: the errors of the reader; an unknown
/// format; a scale that is missing or has another shape or value; codes outside the format; the errors of CodedWeight.
[[nodiscard]] inline CodedWeight read_coded_weight(const SafetensorsReader& reader, const std::string& tensor,
                                                   const Shape& shape) {
    const auto where = [&] { return concatenate("safetensors: tensor ", quoted_text(tensor)); };
    const auto found = reader.metadata().find(tensor + ".code");
    check(found != reader.metadata().end(), "safetensors: tensor ", quoted_text(tensor), " has no metadata ",
          quoted_text(tensor + ".code"));
    check(shape.size() == 2, "safetensors: tensor ", quoted_text(tensor), " is a coded weight; expected a matrix");
    const std::size_t out = shape[0], in = shape[1];
    std::optional<BlockFormat> blocks;
    FloatFormat format;
    try {
        if (names_block_format(found->second)) format = blocks.emplace(find_block_format(found->second)).element;
        else format = find_format(found->second);
    } catch (const Error&) {  // its message may hold the raw name on several lines
        fail(where(), " is of format ", quoted_text(found->second), ", which is not known");
    }
    check(format.code_bits() <= 8, "safetensors: tensor ", quoted_text(tensor), " holds codes of ", name(format),
          "; expected at most 8 bits");
    const bool packed = format.code_bits() <= 4 && in % 2 == 0;
    const SafetensorsEntry& entry = reader.entry(tensor);
    const Shape stored = packed ? Shape{out, in / 2} : shape;
    if (entry.shape != stored || entry.bytes() != element_count(stored))
        fail(where(), " is ", cut_shape(entry.shape), " of type ", quoted_text(entry.dtype),
             "; expected bytes of shape ", to_string(stored));
    check(reader.contains(tensor + ".scale"), "safetensors: tensor ", quoted_text(tensor), " holds codes, but ",
          quoted_text(tensor + ".scale"), " is missing");

    int bias = 0;
    if (!blocks) {
        const double scale = reader.tensor<double>(tensor + ".scale", Shape{1}).data()[0];
        int exponent = 0;
        check(scale > 0 && std::isfinite(scale) && std::frexp(scale, &exponent) == 0.5, "safetensors: tensor ",
              quoted_text(tensor), " has the scale ", scale, "; expected a power of two");
        bias = 1 - exponent;
    }
    FloatFormat moved = format;
    moved.bias += bias;
    CodedWeight weight(out, in, moved);
    // Line by line, and not through a memory map, whose pages would count beside the codes.
    std::vector<std::uint8_t> bytes(packed ? in / 2 : in), codes(in);
    for (std::size_t i = 0; i < out; ++i) {
        reader.read_part(tensor, i * bytes.size(), std::as_writable_bytes(std::span(bytes)));
        if (packed) unpack_nibbles(bytes, codes);
        else std::copy(bytes.begin(), bytes.end(), codes.begin());
        for (std::size_t p = 0; p < in; ++p) {
            if (codes[p] >= format.code_count())
                fail(where(), " holds the code ", static_cast<int>(codes[p]), "; expected less than ",
                     format.code_count());
            weight.set_code(i, p, codes[p]);
        }
    }
    if (blocks) {
        const BlockGrid grid(*blocks, out, in);
        const Shape scales_shape{grid.rows, grid.columns};
        weight.set_blocks(*blocks,
                          blocks->tensor_scale ? reader.tensor<float>(tensor + ".number", Shape{1}).data()[0] : 1.0f);
        if (blocks->form == ScaleForm::code) {
            const auto scales = reader.tensor<std::uint8_t>(tensor + ".scale", scales_shape);
            for (std::size_t i = 0; i < out; ++i)
                for (std::size_t b = 0; b < grid.columns; ++b)
                    weight.set_scale_code(i, b, scales.data()[i / grid.across * grid.columns + b]);
        } else {
            const auto scales = reader.tensor<float>(tensor + ".scale", scales_shape);
            for (std::size_t i = 0; i < out; ++i)
                for (std::size_t b = 0; b < grid.columns; ++b)
                    weight.set_scale(i, b, scales.data()[i / grid.across * grid.columns + b]);
        }
    }
    weight.finish();
    return weight;
}

}  // namespace unitscale::io
