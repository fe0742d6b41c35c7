// SPDX-License-Identifier: MIT
#include <unitscale/train/coordinate_page.hpp>

#include "support/catch.hpp"
#include "support/text_count.hpp"

#include <cstddef>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

using namespace unitscale;
using unitscale::test::count;

namespace {

/// Three widths, two steps, two layers; the changes of `logits` double with the width.
std::vector<train::WidthCoordinates> measured() {
    std::vector<train::WidthCoordinates> result;
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

TEST_CASE("coordinate page: verdict, tables, a curve for each layer and for each step") {
    const std::string page = train::coordinate_page(measured(), "model <one>");
    CHECK(page.starts_with("<!DOCTYPE html>"));
    CHECK(page.ends_with("</html>\n"));
    CHECK(page.find("<h1>Coordinate check: growing</h1>") != std::string::npos);
    CHECK(page.find("found: +1.00, the change of logits after 2 steps") != std::string::npos);
    CHECK(page.find("model &lt;one>") != std::string::npos);
    CHECK(count(page, "<table>") == 3);
    CHECK(page.find("<td>logits</td><td>4</td><td>8</td><td>16</td><td>+1.00</td><td>4</td>") != std::string::npos);
    CHECK(page.find("<td>logits</td><td>1</td><td>0.5</td><td>0.25</td><td>-1.00</td><td>4</td>") != std::string::npos);
    CHECK(count(page, "<svg xmlns") == 4);             // change and output; a panel for each of two layers
    CHECK(count(page, "<title>block0</title>") == 2);  // in both
    CHECK(count(page, "<title>step 1</title>") == 2);  // in every panel
    CHECK(count(page, "<title>step 2</title>") == 2);
    CHECK(count(page, "<title>step 0</title>") == 0);  // no change yet
    CHECK(page.find("aria-label=\"change of logits\"") != std::string::npos);
    for (const char* asks : {"http:", "https:", "src=", "url("})
        CHECK(count(page, asks) == (std::string_view(asks) == "http:" ? 4u : 0u));  // the SVGs' name space
}

TEST_CASE("coordinate page: axes in powers of two have a few ticks, and what is flat looks flat") {
    const auto axis = [](std::vector<double> y) {
        return train::power_axis({{.x = std::vector<double>(y.size(), 0.0), .y = y}}, "rms", 8);
    };
    const analysis::PlotAxis flat = axis({1.0, 1.1});
    CHECK(flat.high - flat.low >= 3.0);
    CHECK(flat.low < 1.0);
    CHECK(flat.high > 1.1);
    const analysis::PlotAxis wide = axis({-20.0, 30.0});
    CHECK(wide.ticks.size() <= 9);
    CHECK(wide.ticks.size() >= 4);
    std::size_t strong = 0;
    for (const analysis::PlotTick& tick : wide.ticks) {
        CHECK(tick.at >= wide.low);
        CHECK(tick.at <= wide.high);
        if (!tick.strong) continue;
        ++strong;
        CHECK(tick.at == 0.0);
    }
    CHECK(strong == 1);
    CHECK(axis({std::numeric_limits<double>::infinity()}).high > axis({}).low);  // nothing finite: some axis
}

TEST_CASE("coordinate page: nothing trained is an error") {
    const auto error = [](auto&& widths) {
        try {
            static_cast<void>(train::coordinate_page(widths, ""));
        } catch (const Error& caught) {
            return std::string(caught.what());
        }
        return std::string();
    };
    CHECK(error(std::vector<train::WidthCoordinates>{}) == "coordinates: nothing was trained");
    auto untrained = measured();
    for (auto& width : untrained) width.steps.resize(1);
    CHECK(error(untrained) == "coordinates: nothing was trained");
}
