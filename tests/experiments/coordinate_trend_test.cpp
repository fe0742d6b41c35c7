// SPDX-License-Identifier: MIT
#include "experiments/coordinate_trend.hpp"
#include "support/catch.hpp"
#include "support/error_of.hpp"

#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

using namespace unitscale;
using experiments::CoordinateVerdict;
using experiments::WidthCoordinates;
using unitscale::test::error_of;

namespace {

/// Widths 64, 128, 256 with one step. The layers' changes go with these powers of the width, their outputs with the
/// negative powers.
std::vector<WidthCoordinates> measured(const std::vector<std::pair<std::string, double>>& powers) {
    std::vector<WidthCoordinates> result;
    for (const std::size_t width : {64u, 128u, 256u}) {
        WidthCoordinates& at = result.emplace_back();
        at.width = width;
        at.steps.resize(2);
        for (const auto& [layer, power] : powers) {
            const double factor = std::pow(static_cast<double>(width), power);
            at.steps[0].push_back({.layer = layer, .output = 2.0 / factor});
            at.steps[1].push_back({.layer = layer, .output = 3.0 / factor, .change = 0.25 * factor});
        }
    }
    return result;
}

experiments::CoordinateJudgement judged(const std::vector<std::pair<std::string, double>>& powers) {
    return experiments::judge(experiments::layer_trends(measured(powers), 1));
}

}  // namespace

TEST_CASE("width trend: the slope of least squares in logarithms, and the spread") {
    const experiments::WidthTrend root =
        experiments::width_trend({64, 128, 256, 512}, {1.0, std::sqrt(2.0), 2.0, std::sqrt(8.0)});
    CHECK(root.slope == Approx(0.5));
    CHECK(root.spread == Approx(std::sqrt(8.0)));
    // By hand: log2 of the widths -1, 0, 1 about their mean; of the values 0, 2, 1 about theirs: (-1 * -1 + 1 * 0) / 2.
    const experiments::WidthTrend bent = experiments::width_trend({32, 64, 128}, {1.0, 4.0, 2.0});
    CHECK(bent.slope == Approx(0.5));
    CHECK(bent.spread == Approx(4.0));
    CHECK(std::isnan(experiments::width_trend({32, 64}, {0.0, 0.0}).slope));
    CHECK(error_of([] { static_cast<void>(experiments::width_trend({64}, {1.0})); }) ==
          "width_trend: 1 values at 1 widths; expected as many, and at least 2");
}

TEST_CASE("coordinate verdict: flat, growing and shrinking, by the layer farthest from flat") {
    const auto flat = judged({{"embedding", 0.0}, {"block0", 0.1}, {"logits", -0.2}});
    CHECK(flat.verdict == CoordinateVerdict::flat);
    CHECK(flat.layer == "logits");
    CHECK(flat.slope == Approx(-0.2));
    const auto growing = judged({{"block0", 0.5}, {"block1", 1.0}, {"logits", -0.5}});
    CHECK(growing.verdict == CoordinateVerdict::growing);
    CHECK(growing.layer == "block1");
    CHECK(growing.slope == Approx(1.0));
    const auto shrinking = judged({{"block0", 0.1}, {"logits", -0.5}});
    CHECK(shrinking.verdict == CoordinateVerdict::shrinking);
    CHECK(shrinking.layer == "logits");
    CHECK(name(CoordinateVerdict::flat) == "flat");
    CHECK(name(CoordinateVerdict::growing) == "growing");
    CHECK(name(CoordinateVerdict::shrinking) == "shrinking");
    // The border, from both sides.
    CHECK(judged({{"block0", 0.24}}).verdict == CoordinateVerdict::flat);
    CHECK(judged({{"block0", 0.26}}).verdict == CoordinateVerdict::growing);
    CHECK(judged({{"block0", -0.24}}).verdict == CoordinateVerdict::flat);
    CHECK(judged({{"block0", -0.26}}).verdict == CoordinateVerdict::shrinking);
}

TEST_CASE("coordinate verdict: outputs and the embedding have no say") {
    // Outputs of `measured` go with the opposite power: block0's, by width^-0.2, logits' by width^0.1.
    const auto judgement = judged({{"embedding", -0.5}, {"block0", 0.2}, {"logits", -0.1}});
    CHECK(judgement.verdict == CoordinateVerdict::flat);
    CHECK(judgement.layer == "block0");
    auto outputs_only = measured({{"block0", 0.0}});
    outputs_only[2].steps[1][0].output = 1e6;
    CHECK(experiments::judge(experiments::layer_trends(outputs_only, 1)).verdict == CoordinateVerdict::flat);
}

TEST_CASE("coordinates: measurements that cannot be judged are an error of one line") {
    auto none = measured({{"block0", 0.0}});
    none[1].steps[1][0].change = 0.0;
    CHECK(error_of([&] { static_cast<void>(experiments::judge(experiments::layer_trends(none, 1))); }) ==
          "coordinates: the change of block0 is 0 at one of the widths; expected a positive number");
    none[1].steps[1][0].change = std::numeric_limits<double>::quiet_NaN();
    CHECK(error_of([&] {
              static_cast<void>(experiments::judge(experiments::layer_trends(none, 1)));
          }).starts_with("coordinates: the change of block0 is "));
    CHECK(error_of([] { static_cast<void>(judged({{"embedding", 0.0}})); }) == "coordinates: no layer to judge");
    CHECK(error_of([] { static_cast<void>(experiments::layer_trends({{.width = 64}}, 0)); }) ==
          "coordinates: of 1 widths; a trend needs at least 2");
    CHECK(error_of([] {
              static_cast<void>(experiments::layer_trends(measured({{"block0", 0.0}}), 2));
          }) == "coordinates: width 64 was not measured at step 2 in as many layers as the first width");
    CHECK(error_of([] { static_cast<void>(experiments::pooled({})); }) == "coordinates: no run");
    const auto runs = measured({{"block0", 0.0}});
    CHECK(error_of([&] { static_cast<void>(experiments::pooled(runs)); }) ==
          "coordinates: runs of widths 64 and 128 differ in width, steps or layers");
}

TEST_CASE("coordinates: runs of several seeds pool all their elements") {
    WidthCoordinates one{
        .width = 64, .steps = {{{"block0", 3.0, 0.0}}, {{"block0", 1.0, 0.5}}}, .first_loss = 6, .last_loss = 4};
    WidthCoordinates two{
        .width = 64, .steps = {{{"block0", 4.0, 0.0}}, {{"block0", 7.0, 0.5}}}, .first_loss = 5, .last_loss = 2};
    const WidthCoordinates pool = experiments::pooled({one, two});
    CHECK(pool.width == 64);
    CHECK(pool.steps[0][0].output == Approx(std::sqrt(12.5)));
    CHECK(pool.steps[0][0].change == 0.0);
    CHECK(pool.steps[1][0].output == Approx(5.0));
    CHECK(pool.steps[1][0].change == Approx(0.5));
    CHECK(pool.first_loss == Approx(5.5));
    CHECK(pool.last_loss == Approx(3.0));
}

TEST_CASE("coordinates: a table's rows have every width, the slope and the spread") {
    const auto widths = measured({{"block0", 0.5}, {"logits", 0.0}});
    const auto last = experiments::layer_trends(widths, 1);
    using Rows = std::vector<std::vector<std::string>>;
    CHECK(experiments::trend_rows(widths, last, &experiments::LayerTrend::changes, &experiments::LayerTrend::change) ==
          Rows{{"layer", "width 64", "width 128", "width 256", "slope", "max/min"},
               {"block0", "2", "2.83", "4", "+0.50", "2"},
               {"logits", "0.25", "0.25", "0.25", "+0.00", "1"}});
    CHECK(
        experiments::trend_rows(widths, last, &experiments::LayerTrend::outputs, &experiments::LayerTrend::output)[1] ==
        std::vector<std::string>{"block0", "0.375", "0.265", "0.188", "-0.50", "2"});
    const auto first = experiments::layer_trends(widths, 0);
    CHECK(experiments::trend_rows(widths, first, &experiments::LayerTrend::changes,
                                  &experiments::LayerTrend::change)[1] ==
          std::vector<std::string>{"block0", "0", "0", "0", "none", "none"});
}

TEST_CASE("coordinate verdict: the explanation has the rule and the slope that decided") {
    const std::string text = experiments::explain(judged({{"block0", 1.0}}), 8);
    CHECK(text.find("\nrule: of the changes' slopes the one farthest from 0 decides; within 0.25 of 0 is flat") !=
          std::string::npos);
    CHECK(text.ends_with("\nfound: +1.00, the change of block0 after 8 steps"));
    CHECK(experiments::explain(judged({{"block0", 1.0}}), 1).ends_with(" after 1 step"));
}
