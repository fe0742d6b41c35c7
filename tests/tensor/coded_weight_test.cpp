// SPDX-License-Identifier: MIT
#include <unitscale/tensor/coded_weight.hpp>

#include <unitscale/base/random.hpp>
#include <unitscale/tensor/fill.hpp>

#include "support/catch.hpp"

using namespace unitscale;

namespace {

Tensor<float> matrix(std::size_t out, std::size_t in) {
    Tensor<float> values({out, in});
    fill_normal(values, {.seed = 7, .stream = 1});
    return values;
}

}  // namespace

TEST_CASE("a coded weight holds the numbers that its format rounds to", "[tensor]") {
    const auto [format, bits] = GENERATE(table<FloatFormat, double>(
        {{fp32, 32.0}, {fp16, 16.0}, {bf16, 16.0}, {e4m3, 8.0}, {e5m2, 8.0}, {e3m2, 8.0}, {e2m1, 4.0}}));
    const auto [out, in] = GENERATE(table<std::size_t, std::size_t>({{16, 32}, {5, 7}, {33, 65}}));
    CAPTURE(name(format), out, in);
    const Tensor<float> values = matrix(out, in);
    const CodedWeight coded = coded_weight(values, format);
    CHECK(coded.out() == out);
    CHECK(coded.in() == in);
    const std::size_t padded = (out + 15) / 16 * 16 * ((in + 31) / 32 * 32);
    CHECK(static_cast<double>(coded.bytes()) == static_cast<double>(padded) * bits / 8);
    const Tensor<float> back = decoded<float>(coded);
    for (std::size_t i = 0; i < values.size(); ++i)
        CHECK(back.data()[i] == quantise(format, values.data()[i], {.overflow = Overflow::saturate}));
    CHECK(coded.exact_in_bf16() == (format.mantissa_bits <= 7));
}

TEST_CASE("a coded weight holds the numbers of its blocks", "[tensor]") {
    const BlockFormat format = GENERATE(mxfp8_e4m3, mxfp4, nvfp4, nvfp4_square, fp8_tile, fp8_square, float8_tensor);
    const auto [out, in] = GENERATE(table<std::size_t, std::size_t>({{16, 32}, {5, 7}, {33, 130}}));
    CAPTURE(name(format), out, in);
    if (format.rule == BlockRule::torchao_float8) return;  // refused below
    const Tensor<float> values = matrix(out, in);
    BlockCodes codes;
    encode_blocks(format, {values.data(), out, in, in}, codes);
    const CodedWeight coded(codes);
    Tensor<float> expected({out, in});
    decode_blocks(codes, {expected.data(), out, in, in});
    const Tensor<float> back = decoded<float>(coded), apart = decoded<float>(coded, true);
    for (std::size_t i = 0; i < values.size(); ++i) {
        CHECK(back.data()[i] == expected.data()[i]);
        CHECK(apart.data()[i] * coded.factor() == Approx(back.data()[i]).epsilon(1e-6));
    }
    CHECK((coded.factor() == 1) == !format.tensor_scale);
}

TEST_CASE("a 4-bit weight in blocks takes little more than half a byte", "[tensor]") {
    const Tensor<float> values = matrix(64, 256);
    BlockCodes codes;
    encode_blocks(nvfp4, {values.data(), 64, 256, 256}, codes);
    CHECK(CodedWeight(codes).bytes() == 64 * 256 / 2 + 64 * 256 / 16);
    encode_blocks(mxfp4, {values.data(), 64, 256, 256}, codes);
    CHECK(CodedWeight(codes).bytes() == 64 * 256 / 2 + 64 * 256 / 32);
}

TEST_CASE("what a coded weight cannot hold is an error", "[tensor]") {
    Tensor<float> values = matrix(4, 4);
    CHECK_THROWS_WITH(coded_weight(Tensor<float>({4}), e4m3), "coded weight: shape [4]; expected a matrix [out,in]");
    CHECK_THROWS_WITH(coded_weight(values, tf32),
                      "coded weight: format tf32; expected fp32, fp16, bf16 or at most 8 bits");
    values.data()[6] = std::numeric_limits<float>::quiet_NaN();
    CHECK_THROWS_WITH(coded_weight(values, fp16), Catch::Contains("element [1,2] is nan; expected a finite one"));
    BlockCodes codes;
    encode_blocks(float8_tensor, {values.data(), 1, 4, 4}, codes);
    if (float8_tensor.rule == BlockRule::torchao_float8)
        CHECK_THROWS_WITH(CodedWeight(codes), Catch::Contains("expected scales that multiply"));
}
