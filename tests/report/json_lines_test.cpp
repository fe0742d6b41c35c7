// SPDX-License-Identifier: MIT
#include <unitscale/report/json_lines.hpp>

#include "support/catch.hpp"
#include "support/temporary_folder.hpp"

#include <nlohmann/json.hpp>

#include <cmath>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

using namespace unitscale;
using namespace unitscale::report;
using test::TemporaryFolder;

namespace {

std::vector<nlohmann::json> parse_lines(const std::string& text) {
    std::vector<nlohmann::json> lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
}

/// Two steps of one activation and its gradient.
analysis::Track example() {
    analysis::Track track{.name = "run \"1\"", .value_format = e4m3};
    analysis::TrackedTensor tensor{
        .path = "model/linear", .op = "linear", .index = 1, .shape = {2, 4}, .selected = true};
    analysis::TensorSummary summary;
    summary.count = 8;
    summary.zeros = 2;
    summary.underflow = 1;
    summary.rms = 0.5;
    summary.noise = 0.125;
    tensor.value.steps = {{1, summary}, {2, summary}, {3, summary}};
    tensor.value.steps[1].summary.mean = std::numeric_limits<double>::infinity();
    tensor.value.steps[1].summary.nans = 1;
    tensor.value.first.at(-3) = 5;
    tensor.value.first.at(-1) = 1;
    tensor.value.last.at(127) = 6;
    tensor.gradient.steps = {{1, summary}};
    track.tensors = {tensor};
    return track;
}

}  // namespace

TEST_CASE("json lines: one object per tensor, pass and step, with null and a flag for numbers that are not finite") {
    const auto lines = parse_lines(json_lines(example()));
    REQUIRE(lines.size() == 4);
    CHECK(lines[0].at("run") == "run \"1\"");
    CHECK(lines[0].at("step") == 1);
    CHECK(lines[0].at("path") == "model/linear");
    CHECK(lines[0].at("op") == "linear");
    CHECK(lines[0].at("output") == 1);
    CHECK(lines[0].at("pass") == "value");
    CHECK(lines[0].at("role") == "activation");
    CHECK(lines[0].at("shape") == std::vector<int>{2, 4});
    CHECK(lines[0].at("zeros") == 0.25);
    CHECK(lines[0].at("format") == "e4m3");
    CHECK(lines[0].at("underflow") == 0.125);
    CHECK(lines[0].at("noise") == 0.125);
    CHECK(lines[0].at("finite") == true);
    CHECK(lines[0].at("exponents").at("lowest") == -3);
    CHECK(lines[0].at("exponents").at("counts") == std::vector<int>{5, 0, 1});
    CHECK(lines[1].at("mean").is_null());
    CHECK(lines[1].at("finite") == false);
    CHECK_FALSE(lines[1].contains("exponents"));
    CHECK(lines[2].at("exponents").at("counts") == std::vector<int>{6});
    CHECK(lines[3].at("role") == "gradient");
    CHECK(lines[3].at("format").is_null());
    CHECK_FALSE(lines[3].contains("noise"));
    CHECK(lines[3].at("exponents").at("counts").empty());
}

TEST_CASE("json lines: groups of a tensor's rows follow the tensor, with their names") {
    analysis::Track track = example();
    analysis::TrackedRows rows{.name = "first rows"};
    analysis::TensorSummary summary;
    summary.count = 4;
    summary.rms = 2.0;
    rows.gradient.steps = {{1, summary}};
    rows.gradient.first.at(1) = rows.gradient.last.at(1) = 4;
    track.tensors[0].rows = {rows};
    const auto lines = parse_lines(json_lines(track));
    REQUIRE(lines.size() == 5);
    for (std::size_t i = 0; i < 4; ++i) CHECK_FALSE(lines[i].contains("rows"));
    CHECK(lines[4].at("rows") == "first rows");
    CHECK(lines[4].at("path") == "model/linear");
    CHECK(lines[4].at("pass") == "gradient");
    CHECK(lines[4].at("count") == 4);
    CHECK(lines[4].at("rms") == 2.0);
    CHECK(lines[4].at("exponents").at("lowest") == 1);
    CHECK(lines[4].at("exponents").at("counts") == std::vector<int>{4});
}

TEST_CASE("json lines: one object per rounded operand and step, with its scales") {
    analysis::Track track = example();
    track.value_format = {};
    track.storage = fp16;
    analysis::OperandSummary summary;
    summary.count = 64;
    summary.saturated = 16;
    summary.flushed = 8;
    summary.signal = 640.0;
    summary.error = 6.4;
    summary.scales = 1;
    summary.lowest_scale = summary.highest_scale = -5;
    summary.tensor_scale = 2.0;
    analysis::TrackedOperand bias{.path = "model/linear",
                                  .op = "linear",
                                  .slot = OperandSlot::forward_x,
                                  .rule = {Quantiser{.format = e4m3}, {.source = ScaleSource::amax}},
                                  .tensor = 0,
                                  .steps = {{1, summary}}};
    summary.scales = 4;
    summary.lowest_scale = -9;
    summary.non_finite = 1;
    analysis::TrackedOperand blocks{.path = "model/linear",
                                    .op = "linear",
                                    .slot = OperandSlot::weight_gradient_dy,
                                    .rule = OperandRule::in_blocks(nvfp4, Rounding::stochastic),
                                    .rotation = HadamardRotation{},
                                    .steps = {{1, summary}, {2, summary}, {3, summary}}};
    blocks.first.at(-9) = 1;
    blocks.first.at(-5) = 3;
    track.operands = {bias, blocks};
    const auto lines = parse_lines(json_lines(track));
    REQUIRE(lines.size() == 8);
    CHECK(lines[0].at("format") == "fp16");  // its storage: nothing was tested
    CHECK_FALSE(lines[0].contains("underflow"));
    const nlohmann::json& one = lines[4];
    CHECK(one.at("run") == "run \"1\"");
    CHECK(one.at("step") == 1);
    CHECK(one.at("path") == "model/linear");
    CHECK(one.at("op") == "linear");
    CHECK(one.at("operand") == "forward.x");
    CHECK(one.at("tensor") == "model/linear[1]");
    CHECK(one.at("format") == "e4m3");
    CHECK(one.at("rounding") == "nearest_even");
    CHECK_FALSE(one.contains("rotation"));
    CHECK(one.at("scaled_by") == "tensor");
    CHECK(one.at("scales") == 1);
    CHECK(one.at("bias") == 5);
    CHECK(one.at("scale_exponents") == std::vector<int>{-5, -5});
    CHECK(one.at("count") == 64);
    CHECK(one.at("saturated") == 0.25);
    CHECK(one.at("flushed") == 0.125);
    CHECK(one.at("snr").get<double>() == Approx(20.0));
    CHECK(one.at("rms").get<double>() == Approx(2.0 * std::sqrt(10.0)));
    const nlohmann::json& two = lines[5];
    CHECK(two.at("operand") == "weight_gradient.dy");
    CHECK(two.at("tensor").is_null());
    CHECK(two.at("format") == "nvfp4");
    CHECK(two.at("rounding") == "stochastic");
    CHECK(two.at("rotation") == 16);
    CHECK(two.at("scaled_by") == "block");
    CHECK_FALSE(two.contains("bias"));
    CHECK(two.at("scale_exponents") == std::vector<int>{-9, -5});
    CHECK(two.at("non_finite") == 1);
    CHECK(two.at("snr").is_null());
    CHECK(two.at("scale_counts").at("lowest") == -9);
    CHECK(two.at("scale_counts").at("counts") == std::vector<int>{1, 0, 0, 0, 3});
    CHECK_FALSE(lines[6].contains("scale_counts"));
    CHECK(lines[7].at("scale_counts").at("counts").empty());
}

TEST_CASE("json lines: the first non-finite value is the last line") {
    analysis::Track track = example();
    analysis::NonFinite found{.step = 7,
                              .label = "model/linear[1]",
                              .op = "linear",
                              .path = "model/linear",
                              .source = "linear at model/linear"};
    found.summary.infinities = 2;
    analysis::TensorSummary input;
    input.largest = 1e5;
    found.causes = {{.label = "model/gelu", .summary = input},
                    {.label = "weight", .pass = Pass::gradient, .largest = 3.0}};
    track.non_finite = found;
    const auto lines = parse_lines(json_lines(track));
    REQUIRE(lines.size() == 5);
    CHECK(lines[4].at("first_non_finite") == analysis::explain(found));
    CHECK(lines[4].at("step") == 7);
    CHECK(lines[4].at("infinite") == 2);
    CHECK(lines[4].at("causes").at(0).at("largest") == 1e5);
    CHECK(lines[4].at("causes").at(1).at("largest") == 3.0);
    CHECK(lines[4].at("causes").at(1).at("pass") == "gradient");
}

TEST_CASE("json lines: a file is written whole, or an error names it") {
    const TemporaryFolder folder;
    const auto path = folder.path() / "track.jsonl";
    write_json_lines(path, example());
    CHECK(TemporaryFolder::read(path) == json_lines(example()));
    const auto missing = folder.path() / "no" / "track.jsonl";
    REQUIRE_THROWS_WITH(write_json_lines(missing, example()),
                        "tracker: " + missing.string() + " cannot be written: No such file or directory");
}
