// SPDX-License-Identifier: MIT
#include "experiments/sweep_rms.hpp"
#include "support/catch.hpp"
#include "support/sweep_points.hpp"

#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

using namespace unitscale;
using namespace unitscale::experiments;

namespace {

using Row = std::vector<std::string>;

/// Two widths over two rates, where each number is a power of both. The best rate is 1 at width 32, and 2 at width 64.
SweepResults two_widths() {
    SweepResults results = test::sweep_results(
        {"width=32,64", "lr=1,2"}, {{{"32", "1"}, 1.0}, {{"32", "2"}, 2.0}, {{"64", "1"}, 2.0}, {{"64", "2"}, 1.0}},
        SweepStrategy::grid, "");
    for (PointResult& result : results.points) {
        const double width = std::strtod(result.point[0].c_str(), nullptr) / 32.0;
        const double rate = std::strtod(result.point[1].c_str(), nullptr);
        for (SweepRun& run : result.runs) {
            const double factor = run.seed == 1 ? 0.5 : 1.5;  // the median is their mean
            run.rms = {{.layer = "tokens", .weight = factor * width},
                       {.layer = "down",
                        .weight = factor,
                        .input = factor * rate * rate,
                        .weight_gradient = factor / width,
                        .output_gradient = factor * rate / 4096.0}};
        }
    }
    return results;
}

}  // namespace

TEST_CASE("sweep rms: the numbers of the best points are medians over seeds") {
    CHECK(rms_table(two_widths()).rows ==
          std::vector<Row>{{"", "layer", "weight", "input", "weight gradient", "output gradient"},
                           {"width 32", "tokens", "1", "-", "-", "-"},
                           {"width 32", "down", "1", "1", "1", "0.000244"},
                           {"width 64", "tokens", "2", "-", "-", "-"},
                           {"width 64", "down", "1", "4", "0.5", "0.000488"}});
}

TEST_CASE("sweep rms: slopes along a size are between best points, and along the rate on its slice") {
    CHECK(rms_trend_table(two_widths()).rows ==
          std::vector<Row>{{"", "along", "layer", "weight", "input", "weight gradient", "output gradient"},
                           {"unit-fp8", "width", "tokens", "+1.00", "-", "-", "-"},
                           {"unit-fp8", "width", "down", "+0.00", "+2.00", "-1.00", "+1.00"},
                           {"width 32", "lr", "tokens", "+0.00", "-", "-", "-"},
                           {"width 32", "lr", "down", "+0.00", "+2.00", "+0.00", "+1.00"},
                           {"width 64", "lr", "tokens", "+0.00", "-", "-", "-"},
                           {"width 64", "lr", "down", "+0.00", "+2.00", "+0.00", "+1.00"}});
}

TEST_CASE("sweep rms: runs without numbers, and failed points, have no rows") {
    SweepResults results = two_widths();
    CHECK(sweep_tables(results).back().title == rms_trend_table(results).title);
    for (PointResult& result : results.points)
        if (result.point[0] == "64") {
            result.loss = std::numeric_limits<double>::infinity();
            for (SweepRun& run : result.runs) run.rms.clear();
        }
    CHECK(rms_table(results).rows.size() == 3);
    CHECK(rms_trend_table(results).rows.size() == 3);  // the rates of width 32
    for (PointResult& result : results.points)
        for (SweepRun& run : result.runs) run.rms.clear();
    CHECK(rms_table(results).rows.size() == 1);
    CHECK(rms_trend_table(results).rows.size() == 1);
    CHECK(sweep_tables(results).back().title != rms_trend_table(results).title);
}
