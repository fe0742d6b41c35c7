// SPDX-License-Identifier: MIT
#include <unitscale/report/judge.hpp>

#include "support/catch.hpp"

#include <nlohmann/json.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

using namespace unitscale;
using report::Judge;
using report::number_json;
using Json = nlohmann::ordered_json;

namespace {

analysis::TrackedOperand operand(OperandSlot slot, const OperandRule& rule, std::size_t flushed, std::size_t saturated,
                                 double error) {
    analysis::OperandSummary summary;
    summary.count = 16;
    summary.flushed = flushed;
    summary.saturated = saturated;
    summary.signal = 16.0;
    summary.error = error;
    summary.lowest_scale = summary.highest_scale = -3;
    return {.slot = slot, .rule = rule, .tensor = 0, .steps = {{5, summary}}};
}

/// One tensor with shares that a format for all tensors would count.
analysis::Track example() {
    analysis::Track track;
    track.tensors.resize(1);
    analysis::TensorSummary summary;
    summary.count = 16;
    summary.underflow = 8;
    summary.overflow = 4;
    summary.noise = 0.1;
    track.tensors[0].value.steps = {{5, summary}, {6, summary}};
    return track;
}

}  // namespace

TEST_CASE("judge: nothing, then the storage, then the operands, then a format for all tensors") {
    analysis::Track track = example();
    const auto judge = [&track] { return Judge(track, track.tensors[0], Pass::value); };
    const auto numbers = [&](std::size_t step) { return judge().numbers(track.tensors[0].value.steps[step]); };
    CHECK(judge().format().is_null());
    track.storage = bf16;
    CHECK(judge().format() == Json{{"name", "bf16"}});
    CHECK(numbers(0).at("under") == 0.0);
    CHECK(numbers(0).at("over") == 0.0);
    CHECK(numbers(0).at("snr") == "infinite");

    const OperandRule rule{Quantiser{.format = e4m3}, {.source = ScaleSource::amax}};
    track.operands = {operand(OperandSlot::forward_x, OperandRule::in_blocks(mxfp4), 4, 0, 1.6),
                      operand(OperandSlot::input_gradient_dy, rule, 16, 16, 16.0)};  // the gradient's
    CHECK(judge().format() == Json{{"name", "mxfp4"}});
    track.operands.push_back(operand(OperandSlot::weight_gradient_x, rule, 2, 8, 0.016));
    const Json format = judge().format();  // 2^-10 is e4m3's largest number that becomes zero, times 2^-3
    CHECK(format.at("name") == "mxfp4, e4m3");
    CHECK(format.at("zero") == -13.0);
    CHECK(format.at("normal") == -9.0);
    CHECK(format.at("top").get<double>() == Approx(std::log2(448.0) - 3.0));
    CHECK(numbers(0).at("under") == 0.25);
    CHECK(numbers(0).at("over") == 0.5);
    CHECK(numbers(0).at("snr").get<double>() == Approx(10.0));
    CHECK(numbers(1).at("under") == 0.0);                       // no operand was tracked in step 6
    track.operands.back().steps[0].summary.tensor_scale = 4.0;  // values are data times 4
    CHECK(judge().format().at("zero") == -11.0);
    track.operands.front().steps[0].summary.non_finite = 1;
    CHECK(numbers(0).at("snr") == "NaN");

    track.value_format = e5m2;
    CHECK(judge().format().at("name") == "e5m2");
    CHECK(judge().format().at("zero") == -17.0);
    CHECK(numbers(0).at("under") == 0.5);
    CHECK(numbers(0).at("over") == 0.25);
    CHECK(numbers(0).at("snr").get<double>() == Approx(20.0));
}

TEST_CASE("judge: numbers have six digits; NaN and infinity are texts") {
    CHECK(number_json(1.0 / 3.0) == 0.333333);
    CHECK(number_json(0.0) == 0.0);
    CHECK(number_json(-1e300) == -1e300);
    CHECK(number_json(std::numeric_limits<double>::quiet_NaN()) == "NaN");
    CHECK(number_json(std::numeric_limits<double>::infinity()) == "infinite");
    CHECK(number_json(-std::numeric_limits<double>::infinity()) == "-infinite");
}
