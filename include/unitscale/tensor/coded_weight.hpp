// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/formats/block_codes.hpp>
#include <unitscale/formats/block_format.hpp>
#include <unitscale/formats/block_scale.hpp>
#include <unitscale/formats/code.hpp>
#include <unitscale/formats/format.hpp>
#include <unitscale/tensor/cast.hpp>
#include <unitscale/tensor/code_table.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace unitscale {

/// The bits that a coded weight keeps of an element.
enum class WeightBits : std::uint8_t {
    float32,
    float16,
    bfloat16,
    byte,    ///< a code of 5 to 8 bits
    nibble,  ///< a code of at most 4 bits
};
[[nodiscard]] constexpr std::size_t bits_of(WeightBits bits) noexcept {
    return bits == WeightBits::float32 ? 32 : bits == WeightBits::byte ? 8 : bits == WeightBits::nibble ? 4 : 16;
}
/// How a format's elements are kept. Error: a format of more than 8 bits other than fp32, fp16 and bf16.
[[nodiscard]] inline WeightBits weight_bits(const FloatFormat& format) {
    if (format.code_bits() <= 4) return WeightBits::nibble;
    if (format.code_bits() <= 8) return WeightBits::byte;
    if (format == fp32) return WeightBits::float32;
    if (format == fp16) return WeightBits::float16;
    check(format == bf16, "coded weight: format ", name(format), "; expected fp32, fp16, bf16 or at most 8 bits");
    return WeightBits::bfloat16;
}

/// A weight [out,in] as codes and scales, in the order in which products of few rows read it.
///   w[i,p] = fl(number of the code scale[i, p / along])        without scales: the number of the code
///   scale = fl(fl(s number) inverse) with a scale's number s; `number` and `inverse` are 1 with one level of scales
/// Sixteen outputs i make a group. A group holds one element p of each output after the other, for all p:
///   fp32, fp16           element (i, p) at p 16 + i % 16
///   bf16, byte, nibble   pairs of elements: (i, p) at (p / 2) 32 + (i % 16) 2 + p % 2; nibbles from the low half up
/// `out` is padded with zeros to whole groups, `in` to a multiple of 32. Scales: (i, b) at b 16 + i % 16 of the group.
/// Reason: a product streams each group once, for any number of rows, and fills a vector from consecutive bytes.
/// Test: tests/tensor/coded_weight_test.cpp
class CodedWeight {
public:
    using Bytes = std::vector<std::uint8_t, PoolAllocator<std::uint8_t>>;
    static constexpr std::size_t group = 16, depth = 32;

    /// All codes 0, without scales of blocks. The scale of a tensor shifts the bias of `format` (`shifted`).
    CodedWeight(std::size_t out, std::size_t in, const FloatFormat& format)
        : format_(format),
          bits_(weight_bits(format)),
          out_(out),
          in_(in),
          padded_in_((in + depth - 1) / depth * depth),
          elements_((out + group - 1) / group * group * padded_in_ * bits_of(bits_) / 8) {
        if (format.code_bits() <= 8) table_ = std::make_shared<const CodeTable<float>>(format);
    }

    /// The weight with scales of blocks. Errors: scales that divide; NaN blocks or a tensor's factor out of range.
    explicit CodedWeight(const BlockCodes& codes) : CodedWeight(codes.lines, codes.length, codes.format.element) {
        const BlockFormat& format = codes.format;
        const BlockGrid grid(format, codes.lines, codes.length);
        set_blocks(format, codes.number);
        for (std::size_t i = 0; i < out_; ++i) {
            for (std::size_t b = 0; b < blocks_; ++b) {
                const std::size_t from = i / grid.across * grid.columns + b;
                if (format.form == ScaleForm::code) set_scale_code(i, b, codes.scale_codes[from]);
                else set_scale(i, b, codes.scales[from]);
            }
            for (std::size_t p = 0; p < in_; ++p) set_code(i, p, codes.codes[i * in_ + p]);
        }
        finish();
    }

    [[nodiscard]] std::size_t out() const noexcept { return out_; }
    [[nodiscard]] std::size_t in() const noexcept { return in_; }
    [[nodiscard]] const FloatFormat& format() const noexcept { return format_; }
    [[nodiscard]] WeightBits bits() const noexcept { return bits_; }
    /// The blocks that share a scale; empty: no scales but the format's bias.
    [[nodiscard]] const std::optional<BlockFormat>& blocks() const noexcept { return block_format_; }
    /// Elements of an output that share a scale; 0: no scales.
    [[nodiscard]] std::size_t along() const noexcept { return along_; }
    [[nodiscard]] std::size_t bytes() const noexcept {
        return elements_.size() + scale_codes_.size() + scales_.size() * sizeof(float);
    }
    /// Whether every number is a bf16 number and not subnormal there, with the tensor's factor apart.
    [[nodiscard]] bool exact_in_bf16() const noexcept { return exact_in_bf16_; }
    /// The tensor's factor, which a product may leave to its sums; 1 if it may not.
    [[nodiscard]] float factor() const noexcept { return factor_; }

    // For kernels.
    [[nodiscard]] const std::uint8_t* group_elements(std::size_t g) const noexcept {
        return elements_.data() + g * group * padded_in_ * bits_of(bits_) / 8;
    }
    [[nodiscard]] const CodeTable<float>* table() const noexcept { return table_.get(); }
    [[nodiscard]] const CodeTable<float>* scale_table() const noexcept { return scale_table_.get(); }
    [[nodiscard]] const std::uint8_t* group_scale_codes(std::size_t g) const noexcept {
        return scale_codes_.empty() ? nullptr : scale_codes_.data() + g * group * blocks_;
    }
    [[nodiscard]] const float* group_scales(std::size_t g) const noexcept {
        return scales_.empty() ? nullptr : scales_.data() + g * group * blocks_;
    }
    /// Factors of scales: {number, inverse}, or {1, 1} where the tensor's factor is left to the product.
    [[nodiscard]] std::pair<float, float> scale_factors(bool apart) const noexcept {
        return apart && factor_ != 1 ? std::pair(1.0f, 1.0f) : std::pair(number_, inverse_);
    }
    /// Place of an element in its group, in elements.
    [[nodiscard]] std::size_t place(std::size_t i, std::size_t p) const noexcept {
        return bits_ == WeightBits::float32 || bits_ == WeightBits::float16 ? p * group + i % group
                                                                            : p / 2 * 2 * group + i % group * 2 + p % 2;
    }

    /// The bits of element (i, p).
    [[nodiscard]] std::uint32_t code(std::size_t i, std::size_t p) const noexcept {
        const std::uint8_t* const from = group_elements(i / group);
        const std::size_t at = place(i, p);
        if (bits_ == WeightBits::nibble) return at % 2 == 0 ? from[at / 2] & 15u : from[at / 2] >> 4;
        std::uint32_t word = 0;
        for (std::size_t byte = bits_of(bits_) / 8; byte-- > 0;)
            word = word << 8 | from[at * bits_of(bits_) / 8 + byte];
        return word;
    }
    void set_code(std::size_t i, std::size_t p, std::uint32_t code) noexcept {
        std::uint8_t* const to = elements_.data() + (group_elements(i / group) - elements_.data());
        const std::size_t at = place(i, p);
        if (bits_ == WeightBits::nibble) {
            const auto half = static_cast<std::uint8_t>(code & 15u);
            to[at / 2] = static_cast<std::uint8_t>(
                at % 2 == 0 ? (to[at / 2] & 0xF0u) | half : (to[at / 2] & 0x0Fu) | static_cast<unsigned>(half) << 4);
            return;
        }
        for (std::size_t byte = 0; byte < bits_of(bits_) / 8; ++byte)
            to[at * bits_of(bits_) / 8 + byte] = static_cast<std::uint8_t>(code >> 8 * byte);
    }
    /// The number of a code, without a scale.
    [[nodiscard]] float number(std::uint32_t code) const noexcept {
        if (table_) return table_->values[code & 255u];
        if (bits_ == WeightBits::float32) return std::bit_cast<float>(code);
        if (bits_ == WeightBits::bfloat16) return std::bit_cast<float>(code << 16);
        return decode(fp16, static_cast<std::uint16_t>(code));
    }
    /// The scale of block b of output i.
    [[nodiscard]] float scale(std::size_t i, std::size_t b, bool apart = false) const noexcept {
        const std::size_t at = b * group + i % group;
        const float kept =
            scales_.empty() ? scale_table_->values[group_scale_codes(i / group)[at]] : group_scales(i / group)[at];
        const auto [number, inverse] = scale_factors(apart);
        return rounded_product(rounded_product(kept, number), inverse);
    }
    /// The code of that scale; of scales that are codes only.
    [[nodiscard]] std::uint8_t scale_code(std::size_t i, std::size_t b) const noexcept {
        return group_scale_codes(i / group)[b * group + i % group];
    }
    /// The tensor's number, as `BlockCodes::number`.
    [[nodiscard]] float tensor_number() const noexcept { return number_; }
    /// w[i,p].
    [[nodiscard]] float value(std::size_t i, std::size_t p, bool apart = false) const noexcept {
        const float own = number(code(i, p));
        return along_ == 0 ? own : rounded_product(own, scale(i, p / along_, apart));
    }

    /// Sets the blocks' form. Then every scale is set, and `finish` is called.
    void set_blocks(const BlockFormat& format, float tensor_number) {
        const TensorNumbers tensor = decode_numbers(format, tensor_number);
        check(format.form == ScaleForm::code || format.rule != BlockRule::torchao_float8,
              "coded weight: scales of torchao_float8 divide; expected scales that multiply");
        block_format_ = format;
        along_ =
            format.along == whole_dimension ? std::max<std::size_t>(in_, 1) : static_cast<std::size_t>(format.along);
        blocks_ = (in_ + along_ - 1) / along_;
        const std::size_t count = (out_ + group - 1) / group * group * blocks_;
        if (format.form == ScaleForm::code) {
            scale_codes_.resize(count);
            scale_table_ = std::make_shared<const CodeTable<float>>(format.scale);
        } else {
            scales_.resize(count);
        }
        if (!format.tensor_scale) return;
        number_ = tensor.number;
        inverse_ = format.rule == BlockRule::torchao ? 1.0f : tensor.inverse_p;
        const float factor = tensor_factor(format, tensor);
        const std::uint32_t word = magnitude_word(factor);
        check(word >= 0x21800000u && word <= 0x5D800000u, "coded weight: the tensor's factor is ", factor,
              "; expected one between 2^-60 and 2^60");
        factor_ = factor;
    }
    void set_scale_code(std::size_t i, std::size_t b, std::uint8_t code) noexcept {
        scale_codes_[(i / group * blocks_ + b) * group + i % group] = code;
    }
    void set_scale(std::size_t i, std::size_t b, float scale) noexcept {
        scales_[(i / group * blocks_ + b) * group + i % group] = scale;
    }
    /// Looks at all numbers once. Error: a number that is not finite.
    void finish() {
        std::uint32_t lost = 0, subnormal = 0;
        for (std::size_t i = 0; i < out_; ++i)
            for (std::size_t p = 0; p < in_; ++p) {
                const float own = value(i, p, true);
                const std::uint32_t word = magnitude_word(own);
                if (word >= 0x7F800000u)
                    fail("coded weight: element [", i, ",", p, "] is ", own, "; expected a finite one");
                lost |= word & 0xFFFFu;
                subnormal |= static_cast<std::uint32_t>(word - 1 < 0x007FFFFFu);
            }
        exact_in_bf16_ = lost == 0 && subnormal == 0;
    }

private:
    FloatFormat format_;
    WeightBits bits_;
    std::size_t out_, in_, padded_in_;
    std::optional<BlockFormat> block_format_{};
    std::size_t along_ = 0, blocks_ = 0;
    Bytes elements_{}, scale_codes_{};
    std::vector<float, PoolAllocator<float>> scales_{};
    float number_ = 1, inverse_ = 1, factor_ = 1;
    bool exact_in_bf16_ = false;
    std::shared_ptr<const CodeTable<float>> table_{}, scale_table_{};
};

/// A matrix rounded to a format, without scales of blocks: fp32, fp16, bf16, or codes of at most 8 bits under one
/// bias. `format` is the shifted format (`shifted`) where the tensor has a scale. Numbers are rounded to nearest even
/// and saturate. Errors: not a matrix; a number that is not finite.
template <class T>
[[nodiscard]] CodedWeight coded_weight(const Tensor<T>& matrix, const FloatFormat& format) {
    check(matrix.rank() == 2, "coded weight: shape ", shape_text(matrix.shape()), "; expected a matrix [out,in]");
    CodedWeight coded(matrix.dim(0), matrix.dim(1), format);
    for (std::size_t i = 0; i < coded.out(); ++i)
        for (std::size_t p = 0; p < coded.in(); ++p) {
            const auto x = element_cast<float>(matrix.data()[i * coded.in() + p]);
            std::uint32_t code = 0;
            if (coded.bits() == WeightBits::float32) code = std::bit_cast<std::uint32_t>(x);
            else code = static_cast<std::uint32_t>(encode(format, x, {.overflow = Overflow::saturate}));
            coded.set_code(i, p, code);
        }
    coded.finish();
    return coded;
}

/// The numbers of a coded weight, each rounded once to T.
template <class T>
[[nodiscard]] Tensor<T> decoded(const CodedWeight& coded, bool apart = false) {
    Tensor<T> numbers({coded.out(), coded.in()});
    for (std::size_t i = 0; i < coded.out(); ++i)
        for (std::size_t p = 0; p < coded.in(); ++p)
            numbers.data()[i * coded.in() + p] = element_cast<T>(coded.value(i, p, apart));
    return numbers;
}

}  // namespace unitscale
