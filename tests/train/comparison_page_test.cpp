// SPDX-License-Identifier: MIT
#include <unitscale/train/comparison_page.hpp>

#include "support/catch.hpp"
#include "support/text_count.hpp"

#include <string>
#include <vector>

using namespace unitscale;
using namespace unitscale::train;
using unitscale::test::count;

namespace {

RunRecord record(const std::string& recipe, std::uint64_t seed, std::vector<double> losses) {
    RunRecord result{.run = {recipe, 0.1, seed}, .steps = losses.size(), .valid_loss = losses.back()};
    for (std::size_t i = 0; i < losses.size(); ++i) result.train_steps.push_back(i + 1);
    result.train = losses;
    result.valid_steps = result.train_steps;
    result.valid = std::move(losses);
    return result;
}

RateSummary of_runs(std::vector<RunRecord> runs) {
    RateSummary rate{.rate = 0.1, .runs = std::move(runs)};
    for (const RunRecord& run : rate.runs) rate.failed += run.failed ? 1 : 0;
    return rate;
}

}  // namespace

TEST_CASE("comparison page: a curve is the mean of the runs that ended, with its band") {
    RunRecord failed = record("a", 3, {9.0, 9.0});
    failed.failed = true;
    const auto curve = mean_curve(of_runs({record("a", 1, {4.0, 2.0, 1.0}), record("a", 2, {5.0, 3.0, 2.0}), failed}),
                                  &RunRecord::train_steps, &RunRecord::train);
    CHECK(curve.x == std::vector<double>{1, 2, 3});
    CHECK(curve.y == std::vector<double>{4.5, 2.5, 1.5});
    CHECK(curve.low == std::vector<double>{4, 2, 1});
    CHECK(curve.high == std::vector<double>{5, 3, 2});
    const auto alone = mean_curve(of_runs({failed}), &RunRecord::train_steps, &RunRecord::train);  // as far as it went
    CHECK(alone.y == std::vector<double>{9, 9});
    CHECK(alone.low.empty());
}

TEST_CASE("comparison page: the axis of losses leaves out the fall of the first tenth") {
    std::vector<analysis::PlotCurve> curves(1);
    for (int step = 1; step <= 100; ++step) {
        curves[0].x.push_back(step);
        curves[0].y.push_back(step < 10 ? 9.0 : 3.0 - 0.01 * step);
    }
    const auto axis = loss_axis(curves, 100.0);
    CHECK(axis.low == Approx(2.0 - 0.04 * 0.9));
    CHECK(axis.high == Approx(2.9 + 0.04 * 0.9));
    CHECK(loss_axis({}, 100.0).high > loss_axis({}, 100.0).low);
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

TEST_CASE("comparison page: whole, alone, and with every part that the records have") {
    RunRecord amax = record("fp8<amax>", 1, {4.0, 2.0, 1.0});
    amax.bias_steps = {1, 2, 3};
    for (const char* layer : {"0", "1"})
        for (const char* role : {"activation", "weight", "gradient"})
            amax.biases[std::string("decoder/block") + layer + "/ffn/up/linear|" + role] = {3, 4, 5};
    amax.zeros = {{"linear", {100, 1, 10}}};
    RunRecord failed = record("fp16", 1, {4.0, 2.0});
    failed.failed = true;
    failed.reason = "the loss is nan at step 3";
    std::vector<RecipeSummary> all = {{.recipe = {.name = "fp8<amax>"}, .rates = {of_runs({amax})}},
                                      {.recipe = {.name = "fp16"}, .rates = {of_runs({failed})}}};
    const BiasWindow window{.run = {"fp32", 0.1, 1}, .biases = {-1, 0, 1}, .losses = {3.0, 2.0, 2.5}, .unrounded = 2.0};
    const std::string page = comparison_page(all, "width 16 & so on", window);
    CHECK(page.starts_with("<!DOCTYPE html>\n"));
    CHECK(page.ends_with("</html>\n"));
    for (const char* word : {"http:", "https:", "src=", "@import", "fetch(", "url(", "<amax>", "nan\"", "inf"}) {
        std::string rest = page;
        for (std::size_t at = rest.find("http://www.w3.org/2000/svg"); at != std::string::npos;
             at = rest.find("http://www.w3.org/2000/svg"))
            rest.erase(at, 26);  // a name, which nobody fetches
        CAPTURE(word);
        CHECK(rest.find(word) == std::string::npos);
    }
    CHECK(page.find("width 16 &amp; so on") != std::string::npos);
    CHECK(page.find("<div class=\"alert\">fp16, rate 0.1, seed 1: failed: the loss is nan at step 3</div>") != std::string::npos);
    CHECK(count(page, "data-recipe=\"") == 2);
    CHECK(page.find("<h2>Validation loss</h2>") != std::string::npos);
    CHECK(page.find("<h2>Training loss</h2>") != std::string::npos);
    CHECK(page.find("by learning rate</h2>") == std::string::npos);  // there is one rate only
    CHECK(count(page, "<h3>ffn/up/linear</h3>") == 3);               // a plot for each role
    CHECK(count(page, "<title>layer 1</title>") == 3);
    CHECK(page.find("<td>10.0 % (1.00 %)</td>") != std::string::npos);
    CHECK(page.find("FP8-CSCALE") != std::string::npos);
    for (const char* tag : {"div", "svg", "table", "tr", "td", "h2", "p", "g", "label"}) {
        CAPTURE(tag);
        CHECK(count(page, std::string("<") + tag + ">") + count(page, std::string("<") + tag + " ") ==
              count(page, std::string("</") + tag + ">"));
    }
    CHECK(count(page, "</script>") == 1);

    // Two rates: their plot is there; without a window, gradients and biases those parts are not.
    all.pop_back();
    all[0].rates = {of_runs({record("a", 1, {4.0, 2.0})}), of_runs({record("a", 1, {4.0, 1.0})})};
    all[0].rates[1].rate = 0.2;
    const std::string other = comparison_page(all, "", std::nullopt);
    CHECK(other.find("by learning rate</h2>") != std::string::npos);
    CHECK(other.find("FP8-CSCALE") == std::string::npos);
    CHECK(other.find("Gradients that became zero") == std::string::npos);
    CHECK(other.find("biases over training") == std::string::npos);
}
