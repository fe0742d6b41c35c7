// SPDX-License-Identifier: MIT
#include <unitscale/scaling/code_rule.hpp>

#include <unitscale/scaling/tensor_scale.hpp>

#include "support/catch.hpp"

using namespace unitscale;

TEST_CASE("codes have the form of the rule that makes them") {
    Tensor<float> values({4, 32});
    for (std::size_t i = 0; i < values.size(); ++i) values.data()[i] = static_cast<float>(i) - 60.0f;
    BlockCodes codes;
    encode_blocks(mxfp4, {values.data(), 4, 32, 32}, codes);
    const CodedWeight in_blocks(codes), by_tensor = coded_weight(values, shifted(e4m3, 1));
    const auto rule = [](const FloatFormat& format) { return OperandRule{Quantiser{.format = format}, {}}; };
    CHECK(has_form(by_tensor, rule(e4m3)));
    CHECK_FALSE(has_form(by_tensor, rule(e5m2)));
    CHECK_FALSE(has_form(by_tensor, OperandRule::in_blocks(mxfp8_e4m3)));
    CHECK(has_form(in_blocks, OperandRule::in_blocks(mxfp4)));
    CHECK_FALSE(has_form(in_blocks, OperandRule::in_blocks(nvfp4)));
    CHECK_FALSE(has_form(in_blocks, rule(e2m1)));
    CHECK(has_form(in_blocks, OperandRule{}));
    CHECK(element_format(by_tensor, rule(e4m3)) == e4m3);
    CHECK(element_format(by_tensor, OperandRule{}) == shifted(e4m3, 1));
    CHECK(element_format(in_blocks, rule(e4m3)) == e2m1);
    OperandRule by_rows = rule(e4m3);
    by_rows.scale = {.source = ScaleSource::amax, .granularity = ScaleGranularity::row};
    CHECK_FALSE(has_form(by_tensor, by_rows));
}
