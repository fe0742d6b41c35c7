// SPDX-License-Identifier: MIT
#include <unitscale/analysis/track.hpp>

#include "support/catch.hpp"

#include <cstddef>
#include <string>
#include <vector>

using namespace unitscale;
using analysis::Cause;
using analysis::OperandSummary;
using analysis::Track;
using analysis::TrackedOperand;
using analysis::TrackedTensor;

TEST_CASE("track: labels and roles of tensors, names and steps of operands") {
    TrackedTensor tensor{.path = "model/split", .op = "split", .index = 1};
    CHECK(tensor.label() == "model/split[1]");
    CHECK(role(tensor, Pass::value) == "activation");
    CHECK(role(tensor, Pass::gradient) == "gradient");
    tensor.side(Pass::gradient).steps.resize(2);
    CHECK(tensor.gradient.steps.size() == 2);
    TrackedOperand operand{.slot = OperandSlot::weight_gradient_x, .rule = {Quantiser{.format = e5m2}, {}}};
    CHECK(operand.format_name() == "e5m2");
    CHECK(operand.pass() == Pass::value);
    operand.rule = OperandRule::in_blocks(nvfp4_square);
    CHECK(operand.format_name() == "nvfp4_square");
    operand.slot = OperandSlot::input_gradient_dy;
    CHECK(operand.pass() == Pass::gradient);
    operand.steps.resize(2);
    operand.steps[1].step = 7;
    CHECK(operand.at(7) == &operand.steps[1].summary);
    CHECK(operand.at(8) == nullptr);
}

TEST_CASE("track: the scales of an operand in words") {
    TrackedOperand operand{.rule = {Quantiser{.format = e4m3}, {.source = ScaleSource::amax}}};
    OperandSummary summary;
    summary.lowest_scale = summary.highest_scale = -5;
    CHECK(scale_text(operand, summary) == "bias 5");
    operand.rule.scale.granularity = ScaleGranularity::row;
    CHECK(scale_text(operand, summary) == "bias 5");
    summary.highest_scale = 2;
    CHECK(scale_text(operand, summary) == "biases -2 to 5");
    operand.rule = OperandRule::in_blocks(mxfp4);
    CHECK(scale_text(operand, summary) == "scales 2^-5 to 2^2");
    summary.lowest_scale = 2;
    CHECK(scale_text(operand, summary) == "scale 2^2");
}

TEST_CASE("track: the operands that round one side of a tensor") {
    Track track;
    track.tensors = {{.path = "a"}, {.path = "b"}};
    track.operands = {{.slot = OperandSlot::forward_x, .tensor = 1},
                      {.slot = OperandSlot::forward_w, .tensor = 0},
                      {.slot = OperandSlot::input_gradient_dy, .tensor = 1},
                      {.slot = OperandSlot::weight_gradient_x, .tensor = 1},
                      {.slot = OperandSlot::forward_x}};
    CHECK(track.roundings(track.tensors[0], Pass::value) == std::vector<const TrackedOperand*>{&track.operands[1]});
    CHECK(track.roundings(track.tensors[0], Pass::gradient).empty());
    CHECK(track.roundings(track.tensors[1], Pass::value) ==
          std::vector<const TrackedOperand*>{&track.operands[0], &track.operands[3]});
    CHECK(track.roundings(track.tensors[1], Pass::gradient) == std::vector<const TrackedOperand*>{&track.operands[2]});
    track.value_format = e4m3;
    CHECK(track.format(Pass::value) == e4m3);
    CHECK_FALSE(track.format(Pass::gradient));
}

TEST_CASE("track: a cause in words, with the elements beyond the format that rounds them") {
    Cause cause{.label = "model/gelu", .largest = 1000.0};
    CHECK(explain(cause) == "model/gelu: largest 1e+03");
    cause.pass = Pass::gradient;
    CHECK(explain(cause) == "gradient of model/gelu: largest 1e+03");
    cause.pass = Pass::value;
    cause.format = e4m3;
    CHECK(explain(cause) == "model/gelu: largest 1e+03, beyond e4m3's 448");
    cause.largest = 464.0;  // still rounds to 448
    CHECK(explain(cause) == "model/gelu: largest 464");
    cause.factor = 0.5;
    CHECK(explain(cause) == "model/gelu: largest 464, beyond e4m3's 448 times 0.5");
    cause.summary.emplace();
    cause.summary->count = 64;
    cause.summary->rms = 2.0;
    cause.beyond = 7;
    CHECK(explain(cause) == "model/gelu: largest 464, rms 2, 7 of 64 elements beyond e4m3's 448 times 0.5");
    cause.beyond = 0;
    CHECK(explain(cause) == "model/gelu: largest 464, rms 2");
    analysis::NonFinite found{.step = 3,
                              .pass = Pass::gradient,
                              .label = "model/linear",
                              .source = "the backward pass of sum at model/sum",
                              .shape = {2, 4},
                              .causes = {cause}};
    found.summary.count = 8;
    found.summary.nans = 1;
    CHECK(explain(found) ==
          "step 3: the gradient of model/linear [2,4] has 1 NaN and 0 infinite of 8 elements; computed by the backward "
          "pass of sum at model/sum; model/gelu: largest 464, rms 2");
}
