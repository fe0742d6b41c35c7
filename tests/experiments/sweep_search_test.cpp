// SPDX-License-Identifier: MIT
#include <unitscale/scaling/known_recipes.hpp>

#include "experiments/sweep_search.hpp"
#include "support/catch.hpp"
#include "support/error_of.hpp"

#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

using namespace unitscale;
using namespace unitscale::experiments;
using unitscale::test::error_of;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity(), missing = std::numeric_limits<double>::quiet_NaN();

SweepSpace space_of(const std::vector<std::string>& axes) {
    SweepSpace space;
    space.run.recipe = "unit-fp8";
    for (const std::string& axis : axes) space.axes.push_back(parse_axis(axis));
    return space;
}
double unknown(const SweepPoint&) { return missing; }
using Points = std::vector<SweepPoint>;

/// Learning rate 2^a, alpha_res 2^b, ratio 2^c: least at a = 1, b = -1, c = 0; b and c interact.
double bowl(const SweepPoint& point) {
    const double a = std::log2(std::stod(point[0])), b = std::log2(std::stod(point[1])),
                 c = std::log2(std::stod(point[2]));
    return 2.0 + (a - 1.0) * (a - 1.0) + (b + 1.0) * (b + 1.0) + c * c + 0.1 * b * c;
}

}  // namespace

TEST_CASE("sweep search: a grid is every combination, the last axis fastest") {
    CHECK(sweep_points(space_of({"width=32,64", "lr=1,2"}), {}, unknown) ==
          Points{{"32", "1"}, {"32", "2"}, {"64", "1"}, {"64", "2"}});
    // Sizes are conditions wherever they stand.
    CHECK(sweep_points(space_of({"lr=1,2", "width=32,64"}), {}, unknown) ==
          Points{{"1", "32"}, {"2", "32"}, {"1", "64"}, {"2", "64"}});
}

TEST_CASE("sweep search: sizes alone are each varied at the run's other sizes, for every combination of names") {
    SweepSpace space = space_of({"recipe=unit-fp8,fp32", "width=32,64", "depth=2,4", "lr=1,2"});
    space.run.width = 64;
    space.run.depth = 3;
    space.sizes_alone = true;
    Points wanted;
    for (const char* recipe : {"unit-fp8", "fp32"})
        for (const auto& [width, depth] : {std::pair("64", "3"), {"32", "3"}, {"64", "2"}, {"64", "4"}})
            for (const char* rate : {"1", "2"}) wanted.push_back({recipe, width, depth, rate});
    CHECK(sweep_points(space, {}, unknown) == wanted);
    space.axes.erase(space.axes.begin() + 1, space.axes.begin() + 3);  // no sizes
    CHECK(sweep_points(space, {}, unknown) ==
          Points{{"unit-fp8", "1"}, {"unit-fp8", "2"}, {"fp32", "1"}, {"fp32", "2"}});
}

TEST_CASE("sweep search: a line search goes along each axis through the defaults of the recipe") {
    const SweepSpace space = space_of({"recipe=unit-fp8,fp32", "lr=0.5,1", "alpha_res=0.5,1,2"});
    const std::string unit = number_text(find_recipe("unit-fp8").learning_rate),
                      fp32 = number_text(find_recipe("fp32").learning_rate);
    REQUIRE(unit != fp32);
    CHECK(sweep_points(space, {.strategy = SweepStrategy::line}, unknown) == Points{{"unit-fp8", unit, "1"},
                                                                                    {"unit-fp8", "0.5", "1"},
                                                                                    {"unit-fp8", "1", "1"},
                                                                                    {"unit-fp8", unit, "0.5"},
                                                                                    {"unit-fp8", unit, "2"},
                                                                                    {"fp32", fp32, "1"},
                                                                                    {"fp32", "0.5", "1"},
                                                                                    {"fp32", "1", "1"},
                                                                                    {"fp32", fp32, "0.5"},
                                                                                    {"fp32", fp32, "2"}});
}

TEST_CASE("sweep search: constant biases are searched as other hyperparameters are, from the recipe's own") {
    SweepSpace space = space_of({"lr=1,2", "constant_bias=-2,0,1"});
    space.run.recipe = "fp8-cscale";
    const std::string rate = number_text(find_recipe("fp8-cscale").learning_rate);
    CHECK(sweep_points(space, {.strategy = SweepStrategy::line}, unknown) ==
          Points{{rate, "0"}, {"1", "0"}, {"2", "0"}, {rate, "-2"}, {rate, "1"}});
    CHECK(sweep_points(space, {}, unknown).size() == 6);
    const auto loss = [](const SweepPoint& point) { return std::stod(point[0]) + std::abs(std::stod(point[1]) + 2.0); };
    CHECK(sweep_points(space, {.strategy = SweepStrategy::independent}, loss) ==
          Points{{"1", "0"}, {"2", "0"}, {"1", "-2"}, {"1", "1"}});
    for (const SweepPoint& point : sweep_points(space, {.strategy = SweepStrategy::random, .points = 4}, unknown))
        CHECK((point[1] == "-2" || point[1] == "0" || point[1] == "1"));
    space.axes.push_back(parse_axis("recipe=fp8-cscale,fp32"));
    CHECK(error_of([&] {
              static_cast<void>(sweep_points(space, {}, unknown));
          }).starts_with("--axis constant_bias: no operand of the recipe fp32 has a constant scale; "));
}

TEST_CASE("sweep search: random points are the seed's, log-uniform in an interval, any of the values in a list") {
    const SweepSpace space = space_of({"width=32,64", "lr=2^-4:2^4", "alpha_res=1,2,4"});
    const SweepSearch search{.strategy = SweepStrategy::random, .points = 300, .seed = 7};
    const Points points = sweep_points(space, search, unknown);
    REQUIRE(points.size() == 600);
    std::map<std::string, int> choices;
    double sum = 0.0, sum_of_squares = 0.0;
    for (std::size_t i = 0; i < 300; ++i) {
        CHECK(points[i][0] == "32");
        CHECK(points[300 + i] == SweepPoint{"64", points[i][1], points[i][2]});  // equal at every width
        const double log2 = std::log2(std::stod(points[i][1]));
        CHECK(std::abs(log2) <= 4.001);
        sum += log2;
        sum_of_squares += log2 * log2;
        ++choices[points[i][2]];
    }
    // Uniform over 8 octaves: mean 0, standard deviation 2.31, each known to about 0.13 from 300 draws.
    CHECK(std::abs(sum / 300.0) < 0.5);
    CHECK(std::sqrt(sum_of_squares / 300.0) == Approx(2.31).margin(0.3));
    REQUIRE(choices.size() == 3);
    for (const auto& [value, count] : choices) CHECK(std::abs(count - 100) < 35);
    CHECK(sweep_points(space, search, unknown) == points);
    CHECK(sweep_points(space, {.strategy = SweepStrategy::random, .points = 300, .seed = 8}, unknown) != points);
    // A longer search begins with the points of the shorter one.
    const Points fewer = sweep_points(space, {.strategy = SweepStrategy::random, .points = 10, .seed = 7}, unknown);
    CHECK(Points(fewer.begin(), fewer.begin() + 10) == Points(points.begin(), points.begin() + 10));
    // No more than there are.
    CHECK(sweep_points(space_of({"lr=1,2,4"}), {.strategy = SweepStrategy::random, .points = 50}, unknown).size() == 3);
}

TEST_CASE("sweep search: an independent search tunes the rate, each multiplier alone, and joins the best") {
    const SweepSpace space = space_of({"lr=1,2,4", "alpha_res=0.5,2", "alpha_res_attn_ratio=0.5,1,2"});
    const SweepSearch search{.strategy = SweepStrategy::independent};
    const Points rates = {{"1", "1", "1"}, {"2", "1", "1"}, {"4", "1", "1"}};
    CHECK(sweep_points(space, search, unknown) == rates);
    // The last rate is not known yet.
    CHECK(sweep_points(space, search,
                       [&](const SweepPoint& point) { return point[0] == "4" ? missing : bowl(point); }) == rates);
    Points alone = rates;
    for (const SweepPoint& point : Points{{"2", "0.5", "1"}, {"2", "2", "1"}, {"2", "1", "0.5"}, {"2", "1", "2"}})
        alone.push_back(point);
    const auto only_rates = [&](const SweepPoint& point) {
        return point[1] == "1" && point[2] == "1" ? bowl(point) : missing;
    };
    CHECK(sweep_points(space, search, only_rates) == alone);
    // All losses are known. The default is the best value of the second multiplier, so no new point is tried.
    CHECK(sweep_points(space, search, bowl) == alone);
    const IndependentSearch stages = independent_search(space, {"1", "1", "1"}, bowl);
    CHECK(stages.best_rate == SweepPoint{"2", "1", "1"});
    CHECK(stages.combined == SweepPoint{"2", "0.5", "1"});
    // Another loss, for which the default of neither multiplier is best.
    const auto low = [](const SweepPoint& point) {
        return std::stod(point[0]) + std::stod(point[1]) + std::stod(point[2]);
    };
    alone = {{"1", "1", "1"}, {"2", "1", "1"},   {"4", "1", "1"}, {"1", "0.5", "1"},
             {"1", "2", "1"}, {"1", "1", "0.5"}, {"1", "1", "2"}, {"1", "0.5", "0.5"}};
    CHECK(sweep_points(space, search, low) == alone);
}

TEST_CASE("sweep search: an upward search tries rates from the lowest until one is clearly worse or fails") {
    const SweepSpace space = space_of({"lr=8,1,2,4", "width=32,64"});
    const SweepSearch search{.strategy = SweepStrategy::upwards};
    std::map<std::string, double> at_32, at_64;  // the known losses by rate
    const auto known = [&](const SweepPoint& point) {
        const auto& losses = point[1] == "32" ? at_32 : at_64;
        const auto found = losses.find(point[0]);
        return found == losses.end() ? missing : found->second;
    };
    const auto points = [&](const SweepSearch& how) { return sweep_points(space, how, known); };
    CHECK(points(search) == Points{{"1", "32"}, {"1", "64"}});
    at_32["1"] = 2.0;
    CHECK(points(search) == Points{{"1", "32"}, {"2", "32"}, {"1", "64"}});  // each width at its own pace
    // A loss that is worse by less goes on, from the best so far and not from the last.
    at_32["2"] = 2.06;
    CHECK(points(search) == Points{{"1", "32"}, {"2", "32"}, {"4", "32"}, {"1", "64"}});
    at_32["4"] = 2.12;
    CHECK(points(search) == Points{{"1", "32"}, {"2", "32"}, {"4", "32"}, {"1", "64"}});
    // Known losses beyond the end change nothing.
    at_32["8"] = 1.0;
    CHECK(points(search).size() == 4);
    CHECK(points({.strategy = SweepStrategy::upwards, .worse_by = 0.2}).size() == 5);
    CHECK(points({.strategy = SweepStrategy::upwards, .worse_by = 0.0}) ==
          Points{{"1", "32"}, {"2", "32"}, {"1", "64"}});
    // A failed run ends the search, as the first one too. Without an end all rates are tried.
    at_64 = {{"1", 2.0}, {"2", infinity}};
    CHECK(points(search).size() == 5);
    at_64 = {{"1", infinity}};
    CHECK(points(search).size() == 4);
    at_64 = {{"1", 4.0}, {"2", 3.0}, {"4", 2.0}, {"8", 1.0}};
    CHECK(points(search) ==
          Points{{"1", "32"}, {"2", "32"}, {"4", "32"}, {"1", "64"}, {"2", "64"}, {"4", "64"}, {"8", "64"}});
}

TEST_CASE("sweep search: the defaults of a condition are those of its names") {
    const SweepSpace space = space_of({"recipe=unit-fp8,fp32", "placement=pre,post", "lr=1"});
    const Points conditions = sweep_conditions(space);
    REQUIRE(conditions.size() == 4);
    CHECK(conditions[1] == SweepPoint{"unit-fp8", "post", number_text(find_recipe("unit-fp8").learning_rate)});
    CHECK(conditions[2] == SweepPoint{"fp32", "pre", number_text(find_recipe("fp32").learning_rate)});
}

TEST_CASE("sweep search: a failed point is never the best") {
    const Points points = {{"1"}, {"2"}, {"4"}};
    const auto losses = [&](std::vector<double> values) {
        return best_point(points, [&points, values](const SweepPoint& point) {
            return values[static_cast<std::size_t>(std::find(points.begin(), points.end(), point) - points.begin())];
        });
    };
    CHECK(losses({infinity, 3.0, 2.0}) == 2u);
    CHECK(losses({2.0, 3.0, 2.0}) == 0u);
    CHECK_FALSE(losses({infinity, infinity, infinity}).has_value());
    CHECK_FALSE(losses({1.0, missing, 2.0}).has_value());
    // If every rate fails, the search ends.
    const SweepSpace space = space_of({"lr=1,2", "alpha_res=0.5,2"});
    CHECK(sweep_points(space, {.strategy = SweepStrategy::independent}, [](const SweepPoint&) {
              return infinity;
          }).size() == 2);
}

TEST_CASE("sweep search: searches that cannot be are one line") {
    const auto error = [](const std::vector<std::string>& axes, const SweepSearch& search) {
        return error_of([&] { static_cast<void>(sweep_points(space_of(axes), search, unknown)); });
    };
    CHECK(error({"lr=0.25:4"}, {}) ==
          "--axis lr: is an interval, which random search draws from; expected values, such as 0.25:4:x2");
    CHECK(error({"lr=1"}, {.strategy = SweepStrategy::random, .points = 0}) ==
          "--points: is 0; expected a number from 1 to 100000");
    CHECK(error({"alpha_res=1"}, {.strategy = SweepStrategy::independent}) ==
          "--strategy: an independent search begins with the learning rate; expected --axis lr=...");
    CHECK(error({"alpha_res=1"}, {.strategy = SweepStrategy::upwards}) ==
          "--strategy: an upward search tries learning rates; expected --axis lr=...");
    CHECK(
        error({"lr=1,2", "placement=pre,post", "weight_decay=1"}, {.strategy = SweepStrategy::upwards}) ==
        "--strategy: an upward search tries learning rates only; --axis weight_decay is neither one nor a condition: " +
            sweep_parameter_names(true));
    for (const double bits : {-0.1, missing, infinity})
        CHECK(error({"lr=1,2"}, {.strategy = SweepStrategy::upwards, .worse_by = bits}) ==
              concatenate("--worse-by: is ", bits, "; expected 0 or more"));
}
