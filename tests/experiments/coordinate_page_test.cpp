// SPDX-License-Identifier: MIT
#include "experiments/coordinate_page.hpp"
#include "support/catch.hpp"
#include "support/page.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <string>
#include <vector>

using namespace unitscale;
using test::Page;
using test::PageElement;
using test::Texts;

namespace {

/// Three widths, two steps, two layers; the changes of `logits` double with the width.
std::vector<experiments::WidthCoordinates> measured() {
    std::vector<experiments::WidthCoordinates> result;
    for (std::size_t i = 0; i < 3; ++i) {
        const double factor = static_cast<double>(1u << i);
        result.push_back({.width = 64u << i,
                          .steps = {{{"block0", 1.0, 0.0}, {"logits", 1.0 / factor, 0.0}},
                                    {{"block0", 1.0, 0.5}, {"logits", factor, factor}},
                                    {{"block0", 2.0, 1.5}, {"logits", factor, 4.0 * factor}}}});
    }
    return result;
}

}  // namespace

TEST_CASE("coordinate page: verdict and tables") {
    const Page page(experiments::coordinate_page(measured(), "model <one>", {.date = "2026-11-23"}));
    CHECK(page.problems() == Texts{});
    CHECK(page.texts("p", "source") == Texts{"date: 2026-11-23"});
    CHECK(page.links() == Texts{});
    CHECK(page.requests() == Texts{});
    CHECK(page.texts("h1") == Texts{"Coordinate check: growing"});
    CHECK(page.says("model <one>"));
    CHECK(page.says("found: +1.00, the change of logits after 2 steps"));
    std::vector<Texts> headers;
    std::vector<std::vector<Texts>> rows;
    for (const PageElement* table : page.all("table")) {
        rows.push_back(page.rows(*table));
        headers.push_back(rows.back().at(0));
        rows.back().erase(rows.back().begin());
    }
    CHECK(headers == std::vector<Texts>(3, {"layer", "width 64", "width 128", "width 256", "slope", "max/min"}));
    REQUIRE(rows.size() == 3);
    // Changes and outputs after both steps, outputs at initialisation.
    CHECK(rows[0] ==
          std::vector<Texts>{{"block0", "1.5", "1.5", "1.5", "+0.00", "1"}, {"logits", "4", "8", "16", "+1.00", "4"}});
    CHECK(rows[1] ==
          std::vector<Texts>{{"block0", "2", "2", "2", "+0.00", "1"}, {"logits", "1", "2", "4", "+1.00", "4"}});
    CHECK(rows[2] ==
          std::vector<Texts>{{"block0", "1", "1", "1", "+0.00", "1"}, {"logits", "1", "0.5", "0.25", "-1.00", "4"}});
    CHECK(page.texts("h2") == Texts{"Change of each layer's output after 2 steps", "Each layer's output after 2 steps",
                                    "Change after 2 steps", "Output after 2 steps", "Output at initialisation",
                                    "Change by layer"});
}

TEST_CASE("coordinate page: a curve for each layer and for each step") {
    const Page page(experiments::coordinate_page(measured(), ""));
    Texts charts;
    for (const PageElement* chart : page.all("svg", "chart")) charts.push_back(chart->attribute("aria-label"));
    CHECK(charts == Texts{"Change of each layer's output after 2 steps", "Each layer's output after 2 steps",
                          "change of block0", "change of logits"});
    for (const std::string& chart : charts) {
        INFO(chart);
        const auto curves = curves_of(page, chart);
        for (const PageElement* picture : page.all("svg", "chart")) {
            if (picture->attribute("aria-label") != chart) continue;
            CHECK(page.all("circle", "", picture).size() == 6);  // a dot at each width of both curves
            const Texts texts = page.texts("text", "", picture);
            CHECK(std::count(texts.begin(), texts.end(), "width") == 1);
            const char* const height = chart.starts_with("change of ") ? "rms of the change" : "rms";
            CHECK(std::count(texts.begin(), texts.end(), height) == 1);
        }
        // Charts of changes have no curve for step 0, because nothing has changed.
        const bool by_step = chart.starts_with("change of ");
        REQUIRE(curves.size() == 2);
        CHECK(curves.contains(by_step ? "step 1" : "block0"));
        CHECK(curves.contains(by_step ? "step 2" : "logits"));
        for (const auto& [name, lines] : curves) {
            INFO(name);
            REQUIRE(lines.size() == 1);
            REQUIRE(lines[0].size() == 3);
            // Equal steps to the right, and upwards where the number doubles with the width.
            CHECK(lines[0][0].x < lines[0][1].x);
            CHECK(lines[0][2].x - lines[0][1].x == Approx(lines[0][1].x - lines[0][0].x).margin(0.2));
            const double up = lines[0][0].y - lines[0][1].y;
            CHECK(lines[0][1].y - lines[0][2].y == Approx(up).margin(0.2));
            CHECK((name == "logits" || chart == "change of logits" ? up > 5.0 : up == 0.0));
        }
    }
    // The change of the logits after step 2 is four times the change after step 1: two octaves, twice the distance
    // between two widths.
    const auto logits = curves_of(page, "change of logits");
    const auto &first = logits.at("step 1").at(0), &second = logits.at("step 2").at(0);
    CHECK(first[0].y - second[0].y == Approx(2.0 * (first[0].y - first[1].y)).margin(0.3));
    CHECK(page.texts("h3") == Texts{"block0", "logits"});
}

TEST_CASE("coordinate page: axes in powers of two have a few ticks, and flat curves look flat") {
    const auto axis = [](std::vector<double> y) {
        return experiments::power_axis({{.x = std::vector<double>(y.size(), 0.0), .y = y}}, "rms", 8);
    };
    const report::PlotAxis flat = axis({1.0, 1.1});
    CHECK(flat.high - flat.low >= 3.0);
    CHECK(flat.low < 1.0);
    CHECK(flat.high > 1.1);
    const report::PlotAxis wide = axis({-20.0, 30.0});
    CHECK(wide.ticks.size() <= 9);
    CHECK(wide.ticks.size() >= 4);
    std::size_t strong = 0;
    for (const report::PlotTick& tick : wide.ticks) {
        CHECK(tick.at >= wide.low);
        CHECK(tick.at <= wide.high);
        if (!tick.strong) continue;
        ++strong;
        CHECK(tick.at == 0.0);
    }
    CHECK(strong == 1);
    CHECK(axis({std::numeric_limits<double>::infinity()}).high > axis({}).low);  // an axis without finite numbers
}

TEST_CASE("coordinate page: nothing trained is an error") {
    const auto error = [](auto&& widths) {
        try {
            static_cast<void>(experiments::coordinate_page(widths, ""));
        } catch (const Error& caught) {
            return std::string(caught.what());
        }
        return std::string();
    };
    CHECK(error(std::vector<experiments::WidthCoordinates>{}) == "coordinates: nothing was trained");
    auto untrained = measured();
    for (auto& width : untrained) width.steps.resize(1);
    CHECK(error(untrained) == "coordinates: nothing was trained");
}
