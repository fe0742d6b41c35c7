// SPDX-License-Identifier: MIT
#include "experiments/scale_report.hpp"
#include "experiments/language_run.hpp"
#include "support/catch.hpp"
#include "support/small_runs.hpp"
#include "support/temporary_folder.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

using namespace unitscale;
using experiments::ScaleReportOptions;
using test::TemporaryFolder;

namespace {

ScaleReportOptions small(const TemporaryFolder& folder) {
    ScaleReportOptions options;
    options.run = test::small_run(folder, /*depth=*/1, /*steps=*/12);
    options.out = (folder.path() / "out.html").string();
    return options;
}

/// The output of scale_report, and its error.
test::Outcome outcome_of(const ScaleReportOptions& options) {
    return test::outcome_of([&](std::FILE* file) { experiments::scale_report(options, file); });
}

/// The data in the page.
nlohmann::json data_of(const std::string& path) {
    const std::string page = TemporaryFolder::read(path);
    const std::size_t begin = page.find("const data = ") + 13;
    return nlohmann::json::parse(page.substr(begin, page.find(";\n", begin) - begin));
}

}  // namespace

TEST_CASE("scale report: recipes side by side, against their own formats, in one page and as JSON lines") {
    const TemporaryFolder folder;
    ScaleReportOptions options = small(folder);
    options.recipes = {"unit-fp8", "unit-fp16", "fp32"};
    options.json = (folder.path() / "out.jsonl").string();
    options.tracking.every = 5;
    const test::Outcome outcome = outcome_of(options);
    REQUIRE(outcome.error.empty());
    CHECK(outcome.text.find("result recipe=unit-fp8 steps=12 ") != std::string::npos);
    CHECK(outcome.text.find("result recipe=fp32 steps=12 ") != std::string::npos);
    CHECK(outcome.text.find("non-finite") == std::string::npos);

    const nlohmann::json data = data_of(options.out);
    REQUIRE(data.at("runs").size() == 3);
    CHECK(data.at("runs").at(0).at("formats") == std::vector<std::string>{"e4m3", "e5m2", "fp32"});
    CHECK(data.at("runs").at(1).at("formats") == std::vector<std::string>{"fp16"});
    CHECK(data.at("runs").at(2).at("formats") == std::vector<std::string>{"fp32"});
    // Only operands of the FP8 run's linear layers lose elements: neither the readout nor a sum, and no other run.
    for (const char* list : {"under", "over"})
        for (const auto& worst : data.at(list)) {
            INFO(list << ' ' << worst.dump());
            CHECK(worst.at("run") == 0);
            CHECK(worst.at("tensor").get<std::string>().ends_with("/linear"));
            CHECK(std::find(slot_names.begin(), slot_names.end(), worst.at("pass").get<std::string>()) !=
                  slot_names.end());
        }
    std::size_t rows = 0;
    for (const auto& group : data.at("groups"))
        for (const auto& row : group.at("rows")) {
            ++rows;
            if (!row.contains("value")) continue;
            INFO(row.at("name"));
            // Six operands in the run that rounds them.
            const std::string op = row.at("notes").at(0);
            CHECK(row.contains("operands") == op.starts_with("linear "));
            if (row.contains("operands")) CHECK(row.at("operands").size() == linear_slot_count);
            for (const auto& cell : row.at("value")) {
                REQUIRE_FALSE(cell.is_null());
                CHECK(cell.at("rms").size() == 4);  // steps 1, 6, 11 and 12
            }
            // Unit scale at initialisation: the root mean square is within a factor of two of 1.
            // The loss and its logits are exempt.
            if (row.at("name").get<std::string>().find("linear") != std::string::npos)
                CHECK(std::abs(std::log2(row.at("value").at(0).at("start").at("rms").get<double>())) < 1.0);
        }
    CHECK(rows > 10);

    std::istringstream lines(TemporaryFolder::read(options.json));
    std::size_t count = 0;
    std::string last;
    for (std::string line; std::getline(lines, line); ++count) last = nlohmann::json::parse(line).at("run");
    CHECK(count > 3 * 4 * rows);
    CHECK(last == "fp32");
}

TEST_CASE("scale report: a run that overflows is explained: tensor, pass and step") {
    const TemporaryFolder folder;
    ScaleReportOptions options = small(folder);
    options.recipes = {"unit-fp8"};
    options.rate_factor = 1e6;
    options.run.warmup = 1;
    options.run.to_infinity = true;
    const test::Outcome outcome = outcome_of(options);
    REQUIRE(outcome.error.empty());
    INFO(outcome.text);
    CHECK(outcome.text.starts_with("recipe=unit-fp8 ended early: train: the loss is "));
    CHECK(outcome.text.find("\ndecoder/readout/readout ") != std::string::npos);  // the readout is not rounded
    CHECK(outcome.text.find("first non-finite value: step 2: the value of decoder/") != std::string::npos);
    CHECK(outcome.text.find("; computed by linear at decoder/") != std::string::npos);
    CHECK(outcome.text.find(" elements beyond e4m3's 448") != std::string::npos);  // the operand's own format
    const nlohmann::json found = data_of(options.out).at("runs").at(0).at("non_finite");
    CHECK(outcome.text.find(found.at("text").get<std::string>()) != std::string::npos);
    CHECK(found.at("causes").size() >= 2);  // the activation and the weight
}

TEST_CASE("scale report: the tensors that u-µP keeps out of FP8 are tracked by name, step by step") {
    const TemporaryFolder folder;
    experiments::LanguageRunOptions run = small(folder).run;
    run.recipe = "umup-fp8";
    run.model = "llama";
    run.depth = 2;
    run.quiet = true;
    run.sample = 0;
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::tmpfile(), std::fclose);
    std::vector<experiments::TrackedRun> parts;
    static_cast<void>(experiments::run_tracked(run, {.every = 4}, file.get(), file.get(), parts));
    REQUIRE(parts.size() == 1);
    const experiments::TrackedRun& seen = parts.front();
    const analysis::Track& track = seen.track;
    const auto tensor = [&](const std::string& path, std::string_view op) {
        const auto found = std::find_if(
            track.tensors.begin(), track.tensors.end(),
            [&](const analysis::TrackedTensor& one) { return one.path == path && one.op == op && one.index == 0; });
        INFO(path);
        REQUIRE(found != track.tensors.end());
        return *found;
    };
    // Three tensors of each product: its input, its weight, and the product of the two.
    std::vector<std::array<std::string, 4>> products = {
        {"decoder/norm/rms_norm", "rms_norm", "decoder/readout/weight", "decoder/readout/readout"}};
    for (const std::string block : {"decoder/block0/", "decoder/block1/"}) {
        products.push_back({block + "attention/attention", "attention", block + "attention/out/weight",
                            block + "attention/out/linear"});
        products.push_back(
            {block + "ffn/gated_silu", "gated_silu", block + "ffn/down/weight", block + "ffn/down/linear"});
    }
    for (const auto& [input, op, weight, product] : products) {
        INFO(product);
        for (const analysis::TrackedTensor& one : {tensor(input, op), tensor(weight, "parameter")}) {
            std::vector<std::uint64_t> steps;
            for (const analysis::TrackedStep& step : one.value.steps) {
                steps.push_back(step.step);
                CHECK(step.summary.rms > 0.25);
                CHECK(step.summary.rms < 4.0);
            }
            CHECK(steps == std::vector<std::uint64_t>{1, 5, 9, 12});
        }
        const auto& inputs = tensor(product, product.ends_with("readout") ? "readout" : "linear").inputs;
        REQUIRE(inputs.size() == 2);
        CHECK(track.tensors[inputs[0]].path == input);
        CHECK(track.tensors[inputs[1]].path == weight);
    }
    // The critical products of the run are equal to these.
    REQUIRE(seen.critical.size() == products.size());
    for (const train::CriticalProduct& one : seen.critical) {
        const auto named = [&](const auto& product) { return product[3] == one.path; };
        CHECK(std::any_of(products.begin(), products.end(), named));
        CHECK(one.last_step == 12);
    }
    // Training moves the weights, so the last tracked step differs from the first.
    const auto& weight = tensor("decoder/block1/ffn/down/weight", "parameter").value.steps;
    CHECK(weight.front().summary.rms != weight.back().summary.rms);
    CHECK_FALSE(track.value_format);
    // The products that are rounded have six operands each, the others none.
    std::size_t rounded = 0;
    for (const analysis::TrackedTensor& one : track.tensors) rounded += one.op == "linear" ? 1U : 0U;
    CHECK(track.operands.size() == linear_slot_count * (rounded - (products.size() - 1)));
    for (const analysis::TrackedOperand& operand : track.operands) {
        INFO(operand.path << ' ' << name(operand.slot));
        for (const auto& product : products) CHECK(operand.path != product[3]);
        CHECK(operand.steps.size() == 4);
        CHECK(operand.steps.front().summary.snr() > 20.0);
    }
}

TEST_CASE("scale report: a named format tests every tensor, whatever rounds it") {
    const TemporaryFolder folder;
    ScaleReportOptions options = small(folder);
    options.recipes = {"fp32"};
    options.tracking.value_format = "e2m1";
    REQUIRE(outcome_of(options).error.empty());
    const nlohmann::json data = data_of(options.out);
    CHECK(data.at("runs").at(0).at("formats") == std::vector<std::string>{"e2m1", "fp32"});
    REQUIRE_FALSE(data.at("under").empty());
    for (const auto& worst : data.at("under")) CHECK(worst.at("pass") == "value");
}

TEST_CASE("scale report: a run that switches its recipe is tracked in two parts, on one page") {
    const TemporaryFolder folder;
    experiments::LanguageRunOptions run = small(folder).run;
    run.recipe = "mxfp8";
    run.switch_at = 5;
    run.switch_to = "bf16";
    run.quiet = true;
    run.sample = 0;
    const std::string page = (folder.path() / "page.html").string();
    const test::File file = test::temporary_file();
    static_cast<void>(experiments::run_and_report(run, page, {}, file.get(), file.get()));
    const nlohmann::json data = data_of(page);
    REQUIRE(data.at("runs").size() == 2);
    CHECK(data.at("runs").at(0).at("name") == "mxfp8 to step 5");
    CHECK(data.at("runs").at(1).at("name") == "bf16 from step 6");
    CHECK(data.at("runs").at(1).at("formats") == std::vector<std::string>{"bf16"});

    std::vector<experiments::TrackedRun> parts;
    static_cast<void>(experiments::run_tracked(run, {.every = 4}, file.get(), file.get(), parts));
    REQUIRE(parts.size() == 2);
    const auto steps_of = [](const experiments::TrackedRun& part) {
        std::vector<std::uint64_t> steps;
        for (const analysis::TrackedStep& step : part.track.tensors.front().value.steps) steps.push_back(step.step);
        return steps;
    };
    CHECK(steps_of(parts[0]) == std::vector<std::uint64_t>{1, 5});
    CHECK(steps_of(parts[1]) == std::vector<std::uint64_t>{9, 12});

    // Resumed at its switch, a run has no step of the first part to show.
    run.save = (folder.path() / "run.safetensors").string();
    run.save_every = 5;
    struct CutOff {};
    const auto cut_off = [](const experiments::LanguageStep& step, const ScalingState&) {
        if (step.step == 6) throw CutOff{};
    };
    CHECK_THROWS_AS(experiments::run_language(run, file.get(), file.get(), cut_off), CutOff);
    run.resume = run.save;
    parts.clear();
    static_cast<void>(experiments::run_tracked(run, {.every = 4}, file.get(), file.get(), parts));
    REQUIRE(parts.size() == 1);
    CHECK(parts.front().track.name == "bf16 from step 6");
}

TEST_CASE("scale report: bad input is one line, and no page is begun") {
    const TemporaryFolder folder;
    const auto error_of = [&](auto&& change) {
        ScaleReportOptions options = small(folder);
        options.run.steps = 2;
        change(options);
        const std::string error = outcome_of(options).error;
        CHECK_FALSE(std::filesystem::exists(folder.path() / "out.html"));
        return error;
    };
    CHECK(error_of([](auto& o) { o.recipes = {"fp7"}; }).starts_with("recipe: unknown name 'fp7'; expected one of "));
    CHECK(error_of([](auto& o) { o.recipes.clear(); }) == "--recipe: none given");
    CHECK(error_of([](auto& o) {
              o.tracking.value_format = "e9m9";
          }).starts_with("format: unknown name 'e9m9'; expected "));
    CHECK(error_of([](auto& o) { o.tracking.gradient_format = "e8m0"; }) ==
          "tensor_statistics: e8m0 is not a format for signed numbers");
    CHECK(error_of([](auto& o) { o.rate_factor = 0.0; }) == "--lr-factor: is 0; expected a positive number");
    CHECK(
        error_of([](auto& o) {
            o.tracking.patterns = {"foo*"};
        }).starts_with("tracker: pattern 'foo*' matched no tensor; the model's tensors begin decoder/tokens/weight, "));
    CHECK(error_of([](auto& o) { o.run.heads = 3; }) == "--heads: width 16 is not divisible by 3 heads");
    const std::string missing = (folder.path() / "no" / "out.html").string();
    CHECK(error_of([&](auto& o) { o.out = missing; }) == "--out: " + missing + " cannot be written");
    CHECK(error_of([&](auto& o) { o.json = missing; }) == "--json: " + missing + " cannot be written");
}
