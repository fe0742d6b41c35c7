// SPDX-License-Identifier: MIT
#include <unitscale/report/html_report.hpp>

#include "support/catch.hpp"
#include "support/page.hpp"
#include "support/temporary_folder.hpp"

#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

using namespace unitscale;
using namespace unitscale::report;
using nlohmann::json;
using test::Page;
using test::TemporaryFolder;
using test::Texts;

namespace {

analysis::TrackedTensor tensor(const std::string& path, const std::string& op, std::vector<std::size_t> inputs,
                               double rms) {
    analysis::TrackedTensor result{
        .path = path, .op = op, .shape = {2, 4}, .inputs = std::move(inputs), .selected = true};
    analysis::TensorSummary first, last;
    first.count = last.count = 8;
    first.rms = rms;
    last.rms = 4.0 * rms;
    last.underflow = 2;
    for (const Pass pass : {Pass::value, Pass::gradient}) {
        result.side(pass).steps = {{1, first}, {6, last}};
        result.side(pass).first.at(0) = 6;
        result.side(pass).first.at(-3) = 2;
        result.side(pass).last.at(2) = 8;
    }
    return result;
}

/// A linear layer, then an op that only some runs have, then a loss.
analysis::Track track(const std::string& run, const std::string& middle) {
    analysis::Track result{.name = run, .value_format = e4m3, .gradient_format = e5m2};
    result.tensors = {tensor("model/block0/linear/weight", "parameter", {}, 0.5),
                      tensor("model/block0/linear/linear", "linear", {0}, 1.0),
                      tensor("model/block0/" + middle, middle, {1}, 2.0), tensor("model/loss", "loss", {2}, 3.0)};
    return result;
}

json data_of(const std::vector<analysis::Track>& tracks) { return json::parse(ReportData(tracks).json().dump()); }

}  // namespace

TEST_CASE("report: ops in model order, grouped by module, with the parameters that they use") {
    const json data = data_of({track("a", "gelu")});
    REQUIRE(data.at("groups").size() == 2);
    const json& block = data.at("groups").at(0);
    CHECK(block.at("name") == "model/block0");
    REQUIRE(block.at("rows").size() == 2);  // the weight is in the row of its op
    const json& linear = block.at("rows").at(0);
    CHECK(linear.at("name") == "linear/linear");
    CHECK(linear.at("notes") == std::vector<std::string>{"linear [2,4]", "weight [2,4]"});
    CHECK(linear.at("search") == "model/block0/linear/linear model/block0/linear/weight");
    CHECK(linear.at("value").at(0).at("start").at("rms") == 1.0);
    CHECK(linear.at("value").at(0).at("end").at("rms") == 4.0);
    CHECK(linear.at("value").at(0).at("end").at("under") == 0.25);
    CHECK(linear.at("value").at(0).at("rms") == std::vector<double>{0.0, 2.0});  // powers of two
    CHECK(linear.at("value").at(0).at("first") == std::vector<int>{-3, 250000, 0, 0, 750000});
    CHECK(linear.at("value").at(0).at("last") == std::vector<int>{2, 1000000});
    CHECK(linear.at("weight").at(0).at("start").at("rms") == 0.5);
    CHECK(linear.at("weight_gradient").at(0).at("end").at("rms") == 2.0);
    CHECK_FALSE(block.at("rows").at(1).contains("weight"));
    CHECK(data.at("groups").at(1).at("name") == "model");
    CHECK(data.at("groups").at(1).at("rows").at(0).at("name") == "loss");
    // e4m3: to zero below 2^-10, normal from 2^-6, up to 448 = 2^8.8
    CHECK(data.at("runs").at(0).at("formats") == std::vector<std::string>{"e4m3", "e5m2"});
    CHECK(linear.at("gradient").at(0).at("format").at("name") == "e5m2");
    const json& format = linear.at("value").at(0).at("format");
    CHECK(format.at("name") == "e4m3");
    CHECK(format.at("zero") == -10);
    CHECK(format.at("normal") == -6);
    CHECK(format.at("top").get<double>() == Approx(8.807).epsilon(1e-3));
    CHECK(data.at("exponents").at(0).get<int>() <= -16);  // e5m2 is shown whole
    CHECK(data.at("exponents").at(1).get<int>() >= 16);
}

TEST_CASE("report: runs side by side; tensors that only one has keep their place") {
    const json data = data_of({track("a", "gelu"), track("b", "silu")});
    CHECK(data.at("runs").at(0).at("name") == "a");
    CHECK(data.at("runs").at(1).at("name") == "b");
    const json& rows = data.at("groups").at(0).at("rows");
    REQUIRE(rows.size() == 3);
    CHECK(rows.at(0).at("value").size() == 2);
    CHECK(rows.at(1).at("name") == "silu");
    CHECK(rows.at(1).at("value").at(0).is_null());
    CHECK_FALSE(rows.at(1).at("value").at(1).is_null());
    CHECK(rows.at(2).at("name") == "gelu");
    CHECK(rows.at(2).at("value").at(1).is_null());
    CHECK(data.at("under").size() == 12);  // six for each run
    CHECK(data.at("under").at(0).at("share") == 0.25);
    CHECK(data.at("under").at(0).at("step") == 6);
    CHECK(data.at("under").at(6).at("run") == 1);
    CHECK(data.at("over").empty());
}

TEST_CASE("report: groups of a tensor's rows have histograms of their own, without a format's losses") {
    std::vector<analysis::Track> tracks{track("a", "gelu"), track("b", "gelu")};
    const auto rows = [](const std::string& name, int exponent) {
        analysis::TrackedRows result{.name = name};
        analysis::TensorSummary summary;
        summary.count = summary.underflow = 4;
        summary.rms = std::ldexp(1.0, exponent);
        result.gradient.steps = {{1, summary}, {6, summary}};
        result.gradient.first.at(exponent) = result.gradient.last.at(exponent) = 4;
        return result;
    };
    tracks[0].tensors[1].rows = {rows("first rows", 3), rows("masked rows", -20)};
    tracks[1].tensors[1].rows = {rows("masked rows", -21), rows("other rows", -30)};
    const json data = data_of(tracks);
    const json& linear = data.at("groups").at(0).at("rows").at(0);
    const json& groups = linear.at("row_groups");
    REQUIRE(groups.size() == 3);
    CHECK(groups.at(0).at("name") == "first rows");
    CHECK(groups.at(1).at("name") == "masked rows");
    CHECK(groups.at(2).at("name") == "other rows");
    CHECK(groups.at(0).at("value").at(0).is_null());  // only gradients were recorded
    CHECK(groups.at(0).at("gradient").at(1).is_null());
    CHECK(groups.at(2).at("gradient").at(0).is_null());
    const json& masked = groups.at(1).at("gradient");
    CHECK(masked.at(0).at("first") == std::vector<int>{-20, 1000000});
    CHECK(masked.at(1).at("last") == std::vector<int>{-21, 1000000});
    CHECK(masked.at(0).at("rms") == std::vector<double>{-20.0, -20.0});
    CHECK(masked.at(0).at("start").at("rms").get<double>() == Approx(0x1p-20));
    CHECK_FALSE(masked.at(0).at("start").contains("under"));
    CHECK(masked.at(0).at("format").at("name") == "e5m2");
    CHECK(linear.at("gradient").at(0).at("end").contains("under"));
    CHECK_FALSE(data.at("groups").at(0).at("rows").at(1).contains("row_groups"));
    CHECK(data.at("exponents").at(0).get<int>() <= -31);  // all of their exponents are shown
}

namespace {

analysis::TrackedRounding rounding(std::uint64_t step, std::size_t flushed, std::size_t saturated, double error,
                                   int lowest, int highest) {
    analysis::OperandSummary summary;
    summary.count = 8;
    summary.flushed = flushed;
    summary.saturated = saturated;
    summary.signal = 8.0;
    summary.error = error;
    summary.lowest_scale = lowest;
    summary.highest_scale = highest;
    return {step, summary};
}

/// The example, where no format tests all tensors, and the linear layer rounds three operands.
analysis::Track rounded() {
    analysis::Track result = track("a", "residual_add");
    result.value_format = result.gradient_format = {};
    result.storage = fp32;
    for (analysis::TrackedTensor& one : result.tensors)  // shares that another format would have counted
        for (const Pass pass : {Pass::value, Pass::gradient})
            for (analysis::TrackedStep& step : one.side(pass).steps) step.summary.overflow = 5;
    const std::string path = "model/block0/linear/linear";
    analysis::TrackedOperand w{.path = path,
                               .op = "linear",
                               .slot = OperandSlot::forward_w,
                               .rule = {Quantiser{.format = e4m3}, {.source = ScaleSource::amax}},
                               .tensor = 0,
                               .selected = true,
                               .steps = {rounding(1, 0, 1, 0.008, -3, -3), rounding(6, 2, 0, 0.08, -5, -5)}};
    analysis::TrackedOperand again = w;
    again.slot = OperandSlot::input_gradient_w;
    again.steps = {rounding(1, 1, 0, 0.8, -3, -3), rounding(6, 1, 0, 0.8, -5, -5)};
    analysis::TrackedOperand dy{.path = path,
                                .op = "linear",
                                .slot = OperandSlot::weight_gradient_dy,
                                .rule = OperandRule::in_blocks(nvfp4),
                                .rotation = HadamardRotation{},
                                .tensor = 1,
                                .selected = true,
                                .steps = {rounding(1, 4, 0, 0.0, -9, -6), rounding(6, 3, 0, 8.0, -9, -6)}};
    dy.first.at(-9) = 3;
    dy.first.at(-6) = 1;
    dy.last = dy.first;
    result.operands = {w, again, dy};
    return result;
}

}  // namespace

TEST_CASE("report: a tensor is judged by the operands that round it, at worst; others by their storage") {
    const json data = data_of({rounded()});
    CHECK(data.at("runs").at(0).at("formats") == std::vector<std::string>{"e4m3", "nvfp4", "fp32"});
    const json& rows = data.at("groups").at(0).at("rows");
    const json& weight = rows.at(0).at("weight").at(0);
    // e4m3 under bias 5: zero at 2^-10, normal from 2^-6, all times 2^-5.
    CHECK(weight.at("format").at("name") == "e4m3");
    CHECK(weight.at("format").at("zero") == -15);
    CHECK(weight.at("format").at("normal") == -11);
    CHECK(weight.at("format").at("top").get<double>() == Approx(3.807).epsilon(1e-3));
    CHECK(weight.at("start").at("under") == 0.125);
    CHECK(weight.at("start").at("over") == 0.125);
    CHECK(weight.at("start").at("snr").get<double>() == Approx(10.0));
    CHECK(weight.at("end").at("under") == 0.25);
    CHECK(weight.at("end").at("over") == 0.0);
    // Blocks have a name and no range. dy is the gradient of the layer's output.
    const json& dy = rows.at(0).at("gradient").at(0);
    CHECK(dy.at("format") == json{{"name", "nvfp4"}});
    CHECK(dy.at("start").at("under") == 0.5);
    CHECK(dy.at("start").at("snr") == "infinite");
    CHECK(dy.at("end").at("snr") == 0.0);
    // Rounded by nothing.
    const json& value = rows.at(0).at("value").at(0);
    CHECK(value.at("format") == json{{"name", "fp32"}});
    CHECK(value.at("end").at("under") == 0.0);
    CHECK(value.at("end").at("over") == 0.0);
    CHECK(rows.at(1).at("name") == "residual_add");
    CHECK(rows.at(1).at("value").at(0).at("end").at("over") == 0.0);

    // The operands, in the order of the slots.
    const json& operands = rows.at(0).at("operands");
    REQUIRE(operands.size() == 3);
    CHECK(operands.at(0).at("slot") == "forward.w");
    CHECK(operands.at(0).at("run") == 0);
    CHECK(operands.at(0).at("format") == "e4m3");
    CHECK(operands.at(0).at("start").at("scale") == "bias 3");
    CHECK(operands.at(0).at("end").at("scale") == "bias 5");
    CHECK(operands.at(0).at("start").at("saturated") == 0.125);
    CHECK(operands.at(0).at("end").at("flushed") == 0.25);
    CHECK(operands.at(0).at("end").at("snr").get<double>() == Approx(20.0));
    CHECK_FALSE(operands.at(0).contains("first"));
    CHECK(operands.at(2).at("slot") == "weight_gradient.dy");
    CHECK(operands.at(2).at("format") == "nvfp4 rotated by 16");
    CHECK(operands.at(2).at("end").at("scale") == "scales 2^-9 to 2^-6");
    CHECK(operands.at(2).at("first") == std::vector<int>{-9, 750000, 0, 0, 250000});
    CHECK_FALSE(rows.at(1).contains("operands"));
}

TEST_CASE("report: neither an FP32 readout leads the losses to zero nor a residual sum the overflows") {
    analysis::Track run = rounded();
    run.tensors[3] = tensor("model/readout", "readout", {2}, 1e-9);
    for (const Pass pass : {Pass::value, Pass::gradient})
        for (analysis::TrackedStep& step : run.tensors[3].side(pass).steps) step.summary.underflow = 8;
    run.operands.push_back(run.operands.back());  // another product rounds the tensor alike
    run.operands.back().path = "model/block0/other/linear";
    const json data = data_of({run});
    REQUIRE(data.at("under").size() == 3);
    CHECK(data.at("under").at(0).at("tensor") == "model/block0/linear/linear");
    CHECK(data.at("under").at(0).at("pass") == "weight_gradient.dy");
    CHECK(data.at("under").at(0).at("share") == 0.5);
    CHECK(data.at("under").at(0).at("step") == 1);
    CHECK(data.at("under").at(0).at("rms") == 1.0);
    CHECK(data.at("under").at(1).at("pass") == "forward.w");
    CHECK(data.at("under").at(1).at("step") == 6);
    REQUIRE(data.at("over").size() == 1);
    CHECK(data.at("over").at(0).at("pass") == "forward.w");
    CHECK(data.at("over").at(0).at("share") == 0.125);
    // A format that the user names tests them all.
    run.gradient_format = e5m2;
    const json tested = data_of({run});
    CHECK(tested.at("under").at(0).at("tensor") == "model/readout");
    CHECK(tested.at("under").at(0).at("pass") == "gradient");
}

TEST_CASE("report: NaN and infinity are shown as such") {
    analysis::Track run = rounded();
    analysis::TensorSummary& last = run.tensors[2].value.steps.back().summary;
    last.nans = last.count;
    last.mean = last.std = last.rms = last.smallest = last.largest = std::numeric_limits<double>::quiet_NaN();
    run.tensors[3].value.steps.back().summary.rms = std::numeric_limits<double>::infinity();
    run.operands[0].steps.back().summary.non_finite = 8;
    const json data = data_of({run});
    const json& cell = data.at("groups").at(0).at("rows").at(1).at("value").at(0);
    CHECK(cell.at("start").at("rms") == 2.0);
    CHECK(cell.at("end").at("rms") == "NaN");
    CHECK(cell.at("end").at("largest") == "NaN");
    CHECK(cell.at("end").at("bad") == 1.0);
    CHECK(cell.at("rms").at(1).is_null());
    CHECK(data.at("groups").at(1).at("rows").at(0).at("value").at(0).at("end").at("rms") == "infinite");
    const json& weight = data.at("groups").at(0).at("rows").at(0).at("weight").at(0);
    CHECK(weight.at("end").at("snr") == "NaN");  // the worst of two
    // The script writes a text where it gets one: `rms 2.00 → NaN`.
    CHECK(report_script.find("typeof v === 'string' ? v : v === 0 ? '0'") != std::string_view::npos);
}

TEST_CASE("report: a weight without its op is a row of its own; tensors that no pattern selects are left out") {
    analysis::Track only = track("a", "gelu");
    for (const std::size_t i : {1U, 2U, 3U}) only.tensors[i].selected = false;
    const json data = data_of({only});
    REQUIRE(data.at("groups").size() == 1);
    REQUIRE(data.at("groups").at(0).at("rows").size() == 1);
    const json& row = data.at("groups").at(0).at("rows").at(0);
    CHECK(row.at("name") == "linear/weight");
    CHECK_FALSE(row.contains("value"));
    CHECK(row.at("weight").size() == 1);
}

TEST_CASE("report: the first non-finite value is explained; text cannot leave the script") {
    analysis::Track bad = track("</script><b>", "gelu");
    analysis::NonFinite found{.step = 3,
                              .label = "model/loss",
                              .op = "loss",
                              .path = "model/loss",
                              .source = "loss at model/loss",
                              .shape = {1}};
    found.summary.count = found.summary.nans = 1;
    found.causes = {{.label = "model/block0/gelu", .largest = 7.0}};
    bad.non_finite = found;
    const json data = data_of({bad, track("good", "gelu")});
    CHECK(data.at("runs").at(0).at("non_finite").at("text") ==
          "step 3: the value of model/loss [1] has 1 NaN and 0 infinite of 1 elements; computed by loss at model/loss");
    CHECK(data.at("runs").at(0).at("non_finite").at("causes").at(0) == "model/block0/gelu: largest 7");
    CHECK(data.at("runs").at(1).at("non_finite").is_null());
    const std::vector<analysis::Track> tracks = {bad};
    const Page page(html_report(tracks, "a & b"));
    CHECK(page.problems() == Texts{});
    CHECK(page.requests() == Texts{});
    CHECK(page.texts("title") == Texts{"a & b"});
    CHECK(page.count("b") == 0);
    REQUIRE(page.count("script") == 1);
    const std::string script = page.texts("script")[0], before = "const data = ";
    const std::size_t begin = script.find(before) + before.size();
    CHECK(json::parse(script.substr(begin, script.find(";\n", begin) - begin)) == data_of(tracks));
}

TEST_CASE("report: written whole or not at all") {
    const TemporaryFolder folder;
    const std::vector<analysis::Track> tracks = {track("a", "gelu")};
    const auto path = folder.path() / "report.html";
    write_html_report(path, tracks, "title");
    CHECK(TemporaryFolder::read(path) == html_report(tracks, "title"));
    const PageSource source{.data = "a.txt", .date = "2026-11-23", .command = "scale_report"};
    write_html_report(path, tracks, "title", source);
    CHECK(TemporaryFolder::read(path) == html_report(tracks, "title", source));
    CHECK(Page(html_report(tracks, "title", source)).says("data: a.txt; date: 2026-11-23; command: scale_report"));
    const auto missing = folder.path() / "no" / "report.html";
    REQUIRE_THROWS_WITH(write_html_report(missing, tracks, "title"),
                        "report: " + missing.string() + " cannot be written: No such file or directory");
    REQUIRE_THROWS_WITH(html_report(std::vector<analysis::Track>{}, "title"), "report: no run was given");
}
