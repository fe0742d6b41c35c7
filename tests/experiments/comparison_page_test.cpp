// SPDX-License-Identifier: MIT
#include "experiments/comparison_page.hpp"
#include "support/catch.hpp"
#include "support/page.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

using namespace unitscale;
using namespace unitscale::experiments;
using test::Page;
using test::PageElement;
using test::Texts;

namespace {

RunResult result_of(const std::string& recipe, std::uint64_t seed, std::vector<double> losses) {
    RunResult result{.run = {recipe, 0.1, seed}, .steps = losses.size(), .valid_loss = losses.back()};
    for (std::size_t i = 0; i < losses.size(); ++i) result.train_steps.push_back(i + 1);
    result.train = losses;
    result.valid_steps = result.train_steps;
    result.valid = std::move(losses);
    return result;
}

RateSummary of_runs(std::vector<RunResult> runs) {
    RateSummary rate{.rate = 0.1, .runs = std::move(runs)};
    for (const RunResult& run : rate.runs) {
        rate.failed += run.failed ? 1 : 0;
        rate.mean += run.valid_loss / static_cast<double>(rate.runs.size());
    }
    return rate;
}

}  // namespace

TEST_CASE("comparison page: a curve is the mean of the runs that ended, with its band") {
    RunResult failed = result_of("a", 3, {9.0, 9.0});
    failed.failed = true;
    const auto curve =
        mean_curve(of_runs({result_of("a", 1, {4.0, 2.0, 1.0}), result_of("a", 2, {5.0, 3.0, 2.0}), failed}),
                   &RunResult::train_steps, &RunResult::train);
    CHECK(curve.x == std::vector<double>{1, 2, 3});
    CHECK(curve.y == std::vector<double>{4.5, 2.5, 1.5});
    CHECK(curve.low == std::vector<double>{4, 2, 1});
    CHECK(curve.high == std::vector<double>{5, 3, 2});
    // The curve of a failed run ends where the run failed.
    const auto alone = mean_curve(of_runs({failed}), &RunResult::train_steps, &RunResult::train);
    CHECK(alone.y == std::vector<double>{9, 9});
    CHECK(alone.low.empty());
}

TEST_CASE("comparison page: the axis of losses leaves out the fall of the first tenth") {
    std::vector<report::PlotCurve> curves(1);
    for (int step = 1; step <= 100; ++step) {
        curves[0].x.push_back(step);
        curves[0].y.push_back(step < 10 ? 9.0 : 3.0 - 0.01 * step);
    }
    const auto axis = loss_axis(curves, 100.0);
    CHECK(axis.low == Approx(2.0 - 0.04 * 0.9));
    CHECK(axis.high == Approx(2.9 + 0.04 * 0.9));
    // A first point that costs the differences at most three quarters of the height is shown too.
    curves[0].y[0] = 5.5;
    CHECK(loss_axis(curves, 100.0).high == Approx(5.5 + 0.04 * 3.5));
    curves[0].y[0] = 5.7;
    CHECK(loss_axis(curves, 100.0).high == axis.high);
    // The first evaluation, after exactly a tenth, is within the axis.
    const report::PlotCurve evaluated{.x = {0.3, 3.0}, .y = {4.0, 2.0}};
    CHECK(loss_axis({evaluated}, 3.0).high > 4.0);
    CHECK(loss_axis({}, 100.0).high > loss_axis({}, 100.0).low);
}

TEST_CASE("comparison plot: one SVG image with a curve for each recipe at its best rate") {
    RunResult failed = result_of("fp16", 2, {4.0, 2.0});
    failed.failed = true;
    const std::vector<RecipeSummary> all = {
        {.recipe = {.name = "fp32"},
         .rates = {of_runs({result_of("fp32", 1, {5.0, 4.0, 3.0}), result_of("fp32", 2, {5.0, 4.0, 3.2})})}},
        {.recipe = {.name = "fp16"},
         .rates = {of_runs({result_of("fp16", 1, {5.0, 3.0, 2.0}), failed}),
                   of_runs({result_of("fp16", 1, {5.0, 4.5, 4.0})})},
         .best = 1}};
    const Page svg(comparison_plot(all));
    CHECK(svg.problems() == Texts{});
    CHECK(svg.requests() == Texts{});
    CHECK(svg.texts("title") == Texts{"fp32", "fp16"});
    CHECK(svg.count("path", "band") == 1);  // fp16's best rate has one seed
    CHECK(svg.says("Validation loss, 2 seeds"));
    const auto curves = curves_of(svg, "Validation loss, 2 seeds of a character model over training steps, by recipe");
    REQUIRE(curves.at("fp32").size() == 1);
    CHECK(curves.at("fp32")[0].size() == 3);
    const report::PlotAxis y = loss_axis({mean_curve(all[0].best_rate(), &RunResult::valid_steps, &RunResult::valid),
                                          mean_curve(all[1].best_rate(), &RunResult::valid_steps, &RunResult::valid)},
                                         3.0);
    const auto height = [&](double loss) { return 380.0 - 380.0 * (loss - y.low) / (y.high - y.low); };
    CHECK(curves.at("fp32")[0].back().y == Approx(height(3.1)).margin(0.06));
    CHECK(curves.at("fp16")[0].back().y == Approx(height(4.0)).margin(0.06));
    CHECK(comparison_plot({}).empty());
}

TEST_CASE("comparison page: a bias belongs to a layer, a product and a role") {
    const BiasPlace place = bias_place("decoder/block13/ffn/up/linear|gradient");
    CHECK(place.layer == 13);
    CHECK(place.product == "ffn/up/linear");
    CHECK(place.role == "gradient");
    const BiasPlace other = bias_place("model/blocks/linear|weight");
    CHECK(other.layer == 0);
    CHECK(other.product == "model/blocks/linear");
    CHECK(bias_place("linear|weight").product == "linear");
}

TEST_CASE("comparison page: whole, alone, and with every part that the results have") {
    RunResult amax = result_of("fp8<amax>", 1, {4.0, 2.0, 1.0});
    amax.bias_steps = {1, 2, 3};
    for (const char* layer : {"0", "1"})
        for (const char* role : {"activation", "weight", "gradient"})
            amax.biases[std::string("decoder/block") + layer + "/ffn/up/linear|" + role] = {3, 4, 5};
    amax.zeros = {{"linear", {100, 1, 10}}};
    amax.overflows = {{"linear gradient", 12}};
    RunResult failed = result_of("fp16", 1, {4.0, 2.0});
    failed.failed = true;
    failed.reason = "the loss is nan at step 3";
    const std::vector<RecipeSummary> all = {
        {.recipe = {.name = "fp8<amax>", .description = "8 \"bits\""}, .rates = {of_runs({amax})}},
        {.recipe = {.name = "fp16"}, .rates = {of_runs({failed})}}};
    const BiasWindow window{.run = {"fp32", 0.1, 1}, .biases = {-1, 0, 1}, .losses = {3.0, 2.0, 2.5}, .unrounded = 2.0};
    const Page page(comparison_page(all, "width 16 & so on", window, {.data = "a.txt", .date = "2026-11-23"}));
    CHECK(page.problems() == Texts{});
    CHECK(page.texts("p", "source") == Texts{"data: a.txt; date: 2026-11-23"});
    CHECK(page.links() == Texts{});
    CHECK(page.requests() == Texts{});
    CHECK(page.texts("h1") == Texts{"Recipes compared"});
    CHECK(page.says("width 16 & so on"));
    CHECK(page.texts("div", "alert") == Texts{"fp16, rate 0.1, seed 1: failed: the loss is nan at step 3"});
    CHECK(page.texts("h2") == Texts{"Validation loss", "Training loss", "Gradients that became zero",
                                    "Elements that overflowed", "fp8<amax>: biases over training, by layer and role",
                                    "activations", "gradients", "weights", "One constant bias for all (FP8-CSCALE)"});

    // comparison_table_test checks the numbers of the tables.
    const auto tables = page.all("table");
    REQUIRE(tables.size() == 4);
    CHECK(page.rows(*tables[0]) == comparison_rows(all));
    CHECK(page.rows(*tables[0]).at(1).at(0) == "fp8<amax>");
    CHECK(page.rows(*tables[0]).at(1).at(2) == "1.0000");
    CHECK(page.rows(*tables[1]) ==
          std::vector<Texts>{{"gradient of", "linear"}, {"fp8<amax>", "10.0 % (1.00 %)"}, {"fp16", "-"}});
    CHECK(page.rows(*tables[2]) == std::vector<Texts>{{"overflows", "linear gradient"}, {"fp8<amax>", "12"}});
    CHECK(page.rows(*tables[3]) == std::vector<Texts>{{"bias", "validation loss", "to unrounded", "works"},
                                                      {"-1", "3.0000", "+50.00 %", "no"},
                                                      {"0", "2.0000", "+0.00 %", "yes"},
                                                      {"1", "2.5000", "+25.00 %", "no"}});

    // Curves: losses by recipe, biases by layer in a chart for each role, losses of the window.
    Texts charts;
    for (const PageElement* chart : page.all("svg", "chart")) charts.push_back(chart->attribute("aria-label"));
    CHECK(charts == Texts{"Validation loss", "Training loss", "biases of the activation of ffn/up/linear",
                          "biases of the gradient of ffn/up/linear", "biases of the weight of ffn/up/linear",
                          "validation loss by constant bias"});
    for (const char* chart : {"Validation loss", "Training loss"}) {
        const auto curves = curves_of(page, chart);
        REQUIRE(curves.size() == 2);
        CHECK(curves.at("fp8<amax>").at(0).size() == 3);
        CHECK(curves.at("fp16").at(0).size() == 2);  // up to the step at which the run failed
    }
    for (const char* role : {"activation", "gradient", "weight"}) {
        const auto curves = curves_of(page, std::string("biases of the ") + role + " of ffn/up/linear");
        REQUIRE(curves.size() == 2);
        for (const PageElement* chart : page.all("svg", "chart")) {
            if (!chart->attribute("aria-label").starts_with("biases of")) continue;
            const Texts texts = page.texts("text", "", chart);
            CHECK(std::count(texts.begin(), texts.end(), "step") == 1);
            CHECK(std::count(texts.begin(), texts.end(), "bias") == 1);
        }
        for (const char* layer : {"layer 0", "layer 1"}) {
            const auto line = curves.at(layer).at(0);
            REQUIRE(line.size() == 3);
            CHECK(line[0].y > line[1].y);  // 3, 4, 5: upwards
            CHECK(line[1].y > line[2].y);
        }
    }
    const auto by_bias = curves_of(page, "validation loss by constant bias");
    REQUIRE(by_bias.size() == 2);
    CHECK(by_bias.at("operands rounded to FP8").at(0)[1].y == by_bias.at("not rounded").at(0)[1].y);  // 2.0 both
    CHECK(by_bias.at("operands rounded to FP8").at(0)[0].y < by_bias.at("not rounded").at(0)[0].y);

    // Each row has a box. The curves that it shows and hides exist. (`data-look` in cards of the class `recipes`.)
    const auto boxes = page.all("input");
    REQUIRE(boxes.size() == 2);
    for (std::size_t i = 0; i < boxes.size(); ++i) {
        INFO("box " << i);
        CHECK(boxes[i]->attribute("data-recipe") == std::to_string(i));
        CHECK(boxes[i]->attributes.contains("checked"));
        CHECK(page.parent(page.parent(*boxes[i])).text == all[i].recipe.name);
        CHECK(page.parent(*boxes[i]).attribute("title") == all[i].recipe.description);
        Texts names;
        for (const PageElement* card : page.all("div", "recipes"))
            for (const PageElement* group : page.all("g", "", card))
                if (group->attribute("data-look") == std::to_string(i)) names.push_back(group->text);
        CHECK(names == Texts(2, all[i].recipe.name));  // validation and training
    }
    REQUIRE(page.count("script") == 1);
    CHECK(page.texts("script")[0] == comparison_script);
}

TEST_CASE("comparison page: rates have a plot where there are several; parts without results are left out") {
    RateSummary other = of_runs({result_of("a", 1, {4.0, 1.0})});
    other.rate = 0.2;
    const std::vector<RecipeSummary> all = {
        {.recipe = {.name = "a"}, .rates = {of_runs({result_of("a", 1, {4.0, 2.0})}), other}}};
    const Page page(comparison_page(all, "", std::nullopt));
    CHECK(page.problems() == Texts{});
    CHECK(page.texts("h2") == Texts{"Validation loss", "Training loss", "Final validation loss by learning rate"});
    CHECK(page.count("p", "source") == 0);
    CHECK(page.count("circle") == 2);  // a dot at each rate; curves over steps have none
    CHECK(page.count("table") == 1);
    CHECK(page.count("div", "alert") == 0);
    const auto by_rate = curves_of(page, "Final validation loss by learning rate").at("a");
    REQUIRE(by_rate.size() == 1);
    REQUIRE(by_rate[0].size() == 2);
    CHECK(by_rate[0][0].x < by_rate[0][1].x);
    CHECK(by_rate[0][0].y < by_rate[0][1].y);  // 2, then 1: downwards
}
