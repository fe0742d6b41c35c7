// SPDX-License-Identifier: MIT
#include "experiments/sweep_results.hpp"
#include "support/catch.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string>
#include <utility>
#include <vector>

using namespace unitscale;
using namespace unitscale::experiments;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity(), missing = std::numeric_limits<double>::quiet_NaN();

/// Results of one seed each.
SweepResults results_of(const std::vector<std::string>& axes, const std::vector<std::pair<SweepPoint, double>>& losses,
                        SweepStrategy strategy = SweepStrategy::grid) {
    SweepResults results{.search = {.strategy = strategy}};
    results.space.run.recipe = "unit-fp8";
    for (const std::string& axis : axes) results.space.axes.push_back(parse_axis(axis));
    for (const auto& [point, loss] : losses)
        results.points.push_back({.point = point,
                                  .runs = {{.point = point, .failed = std::isinf(loss), .valid_loss = loss}},
                                  .seeds = {1},
                                  .loss = loss});
    return results;
}

}  // namespace

TEST_CASE("sweep results: the median, where a failed run is an infinite loss") {
    CHECK(median({3.0, 1.0, 2.0}) == 2.0);
    CHECK(median({4.0, 1.0, 2.0, 3.0}) == 2.5);
    CHECK(median({1.0, infinity, 2.0}) == 2.0);
    CHECK(median({1.0, infinity}) == infinity);
    CHECK(std::isnan(median({})));
    PointResult result{.runs = {{.valid_loss = 2.0}, {.failed = true}, {.valid_loss = 1.5}}, .seeds = {1, 2, 3}};
    CHECK(result.whole());
    CHECK(result.failed() == 1);
    CHECK(result.range() == std::pair(1.5, 2.0));
    result.runs.pop_back();
    CHECK_FALSE(result.whole());
}

TEST_CASE("sweep results: the vertex of a parabola through three points") {
    // 3 - 7/2 x + 3/2 x^2 is least at 7/6.
    CHECK(parabola_vertex(0.0, 3.0, 1.0, 1.0, 2.0, 2.0) == Approx(7.0 / 6.0).epsilon(1e-15));
    // (x - 3/2)^2 at places that are not a step apart.
    CHECK(parabola_vertex(0.0, 2.25, 1.0, 0.25, 3.0, 2.25) == Approx(1.5).epsilon(1e-15));
    CHECK(parabola_vertex(0.0, 1.0, 1.0, 1.0, 2.0, 1.0) == 1.0);
}

TEST_CASE("sweep results: the optimum of an axis lies between the best point's neighbours, or at an edge") {
    using Place = AxisOptimum::Place;
    auto optimum = axis_optimum({{2.0, 2.0}, {0.0, 3.0}, {1.0, 1.0}, {3.0, 9.0}});
    REQUIRE(optimum.has_value());
    CHECK(optimum->octaves == Approx(7.0 / 6.0).epsilon(1e-15));
    CHECK(optimum->loss == 1.0);
    CHECK(optimum->place == Place::inside);
    CHECK(optimum->note().empty());
    optimum = axis_optimum({{-1.0, 1.0}, {0.0, 2.0}, {1.0, 3.0}});
    CHECK(optimum->octaves == -1.0);
    CHECK(optimum->note() == "at the lower edge");
    optimum = axis_optimum({{-1.0, 3.0}, {0.0, 2.0}, {1.0, 1.0}});
    CHECK(optimum->octaves == 1.0);
    CHECK(optimum->note() == "at the upper edge");
    // The upper neighbour has failed, so there is no parabola.
    optimum = axis_optimum({{-1.0, 3.0}, {0.0, 2.0}, {1.0, infinity}});
    CHECK(optimum->octaves == 0.0);
    CHECK(optimum->note() == "beside a failed point");
    CHECK_FALSE(axis_optimum({{0.0, infinity}}).has_value());
    CHECK_FALSE(axis_optimum(std::vector<std::pair<double, double>>{}).has_value());
    // Losses are equal if the recipe does not use the parameter.
    CHECK(axis_optimum({{0.0, 2.0}, {1.0, 2.0}, {2.0, 2.0}})->note() == "no effect");
    CHECK(axis_optimum({{0.0, 2.0}})->note() == "at the lower edge");
    // If neighbours have equal losses, the optimum is at most half-way between them.
    CHECK(axis_optimum({{0.0, 2.0}, {1.0, 1.0}, {2.0, 1.0}})->octaves == 1.5);
}

TEST_CASE("sweep results: the best point of each recipe and size") {
    const SweepResults results =
        results_of({"width=32,64", "lr=1,2"},
                   {{{"32", "1"}, 3.0}, {{"32", "2"}, 2.0}, {{"64", "1"}, infinity}, {{"64", "2"}, infinity}});
    REQUIRE(results.conditions().size() == 2);
    CHECK(results.best({"32", ""})->point == SweepPoint{"32", "2"});
    CHECK(results.best({"64", ""}) == nullptr);
    CHECK(results.loss({"32", "1"}) == 3.0);
    CHECK(results.loss({"64", "1"}) == infinity);
    CHECK(std::isnan(results.loss({"32", "4"})));
    SweepResults partly = results;
    partly.points[0].seeds = {1, 2};  // the run of one seed has not ended
    CHECK(std::isnan(partly.loss({"32", "1"})));
}

TEST_CASE("sweep results: a slice goes through the best point of a grid, and along the line of a line search") {
    const SweepResults grid = results_of(
        {"width=32", "lr=1,2", "alpha_res=1,2"},
        {{{"32", "1", "1"}, 3.0}, {{"32", "1", "2"}, 4.0}, {{"32", "2", "1"}, 5.0}, {{"32", "2", "2"}, 1.0}});
    std::vector<SweepSlice> slices = sweep_slices(grid, {1});
    REQUIRE(slices.size() == 1);
    REQUIRE(slices[0].points.size() == 2);
    CHECK(slices[0].points[0]->point == SweepPoint{"32", "1", "2"});
    CHECK(slices[0].points[1]->point == SweepPoint{"32", "2", "2"});
    // The point outside the line is better, but the line is longer.
    const SweepResults line = results_of({"width=32,64", "lr=1,2,4", "alpha_res=1,2"}, {{{"32", "1", "1"}, 3.0},
                                                                                        {{"32", "2", "1"}, 2.0},
                                                                                        {{"32", "4", "1"}, 2.5},
                                                                                        {{"32", "2", "2"}, 1.0},
                                                                                        {{"64", "1", "1"}, 3.0}});
    slices = sweep_slices(line, {1});
    REQUIRE(slices.size() == 2);
    CHECK(slices[0].points.size() == 3);
    CHECK(axis_optimum(line, slices[0], 1)->octaves == Approx(parabola_vertex(0.0, 3.0, 1.0, 2.0, 2.0, 2.5)));
    CHECK(slices[1].points.size() == 1);
    CHECK(sweep_slices(line, {0, 1, 2}).size() == 1);
    CHECK(sweep_slices(line, {0, 1, 2})[0].points.size() == 5);
}

TEST_CASE("sweep results: the optimum of an axis of exponents is one of them, or lies between them") {
    const SweepResults results = results_of({"constant_bias=0,-2,-4"}, {{{"0"}, 3.0}, {{"-2"}, 1.0}, {{"-4"}, 3.0}});
    const auto optimum = axis_optimum(results, sweep_slices(results, {0})[0], 0);
    CHECK(optimum->octaves == -2.0);
    CHECK(optimum->place == AxisOptimum::Place::inside);
}

TEST_CASE("sweep results: the map of two axes has its values in order, and holes where there is no point") {
    const SweepResults results = results_of(
        {"lr=4,1,2", "alpha_res=2,0.5"},
        {{{"4", "2"}, 1.0}, {{"4", "0.5"}, 2.0}, {{"1", "2"}, 3.0}, {{"2", "0.5"}, infinity}, {{"1", "0.5"}, 5.0}});
    const std::vector<SweepSlice> slices = sweep_slices(results, {0, 1});
    REQUIRE(slices.size() == 1);
    const auto map = loss_map(results, slices[0], 0, 1);
    REQUIRE(map.has_value());
    CHECK(map->row_name == "lr");
    CHECK(map->column_name == "alpha_res");
    CHECK(map->rows == std::vector<std::string>{"1", "2", "4"});
    CHECK(map->columns == std::vector<std::string>{"0.5", "2"});
    CHECK(map->losses[0] == std::vector<double>{5.0, 3.0});
    CHECK(map->losses[1][0] == infinity);
    CHECK(std::isnan(map->losses[1][1]));
    CHECK(map->losses[2] == std::vector<double>{2.0, 1.0});
    const LossMap turned = map->transposed();
    CHECK(turned.row_name == "alpha_res");
    CHECK(turned.rows == map->columns);
    CHECK(turned.losses[1][0] == 3.0);
    CHECK(turned.losses[0][2] == 2.0);
    // A cross of points gives no map.
    const SweepResults cross =
        results_of({"lr=1,2", "alpha_res=1,2"}, {{{"1", "1"}, 1.0}, {{"2", "1"}, 2.0}, {{"1", "2"}, 3.0}});
    CHECK_FALSE(loss_map(cross, sweep_slices(cross, {0, 1})[0], 0, 1).has_value());
}

TEST_CASE("sweep results: the transfer error by hand") {
    LossMap map{.rows = {"1", "2", "4"}, .columns = {"1", "2"}};
    // The best is 1 at row 2, column 1. Rows 1 and 4 choose column 2 and column 1: 0.5 and 0 are lost at row 2.
    map.losses = {{3.0, 2.0}, {1.0, 1.5}, {2.0, 2.5}};
    CHECK(transfer_error(map) == 0.25);
    map.losses[2] = {2.5, 2.0};
    CHECK(transfer_error(map) == 0.5);
    // Transposed: the best row is the former column 1, and both rows choose the former row 2.
    CHECK(transfer_error(map.transposed()) == 0.0);
    // The loss of row 1's choice is not known at row 2, so only row 4 counts.
    map.losses = {{3.0, 2.0}, {1.0, missing}, {2.0, 2.5}};
    CHECK(transfer_error(map) == 0.0);
    // The choice of row 1 fails at row 2.
    map.losses[1][1] = infinity;
    CHECK(transfer_error(map) == infinity);
    // A row that has failed throughout chooses nothing; a failed point is not chosen.
    map.losses = {{infinity, missing}, {1.0, 1.5}, {infinity, 2.5}};
    CHECK(transfer_error(map) == 0.5);
    map.losses = {{infinity, missing}, {1.0, 1.5}};
    CHECK(std::isnan(transfer_error(map)));
    map.losses = {{infinity}, {missing}};
    CHECK(std::isnan(transfer_error(map)));
}

TEST_CASE("sweep results: the least loss to expect of a shorter search is its mean over all draws") {
    const std::vector<double> losses = {2.5, 1.0, infinity, 4.0, 1.5, infinity, 2.5};
    for (std::size_t draws = 1; draws <= losses.size(); ++draws) {
        CAPTURE(draws);
        double sum = 0.0, found = 0.0, none = 0.0;
        for (unsigned set = 0; set < (1u << losses.size()); ++set) {
            if (static_cast<std::size_t>(std::popcount(set)) != draws) continue;
            double least = infinity;
            for (std::size_t i = 0; i < losses.size(); ++i)
                if ((set >> i & 1u) != 0) least = std::min(least, losses[i]);
            if (std::isinf(least)) {
                none += 1.0;
                continue;
            }
            sum += least;
            found += 1.0;
        }
        const ShorterSearch search = shorter_search(losses, draws);
        CHECK(search.loss == Approx(sum / found).epsilon(1e-14));
        CHECK(search.none == Approx(none / (found + none)).margin(1e-15));
    }
    CHECK(shorter_search(losses, 7).loss == 1.0);
    CHECK(std::isnan(shorter_search({infinity, infinity}, 1).loss));
    CHECK(shorter_search({infinity, infinity}, 1).none == 1.0);
    CHECK_THROWS_WITH(shorter_search({1.0}, 2), "shorter_search: 2 draws of 1 losses; expected 1 to 1");
    CHECK_THROWS_WITH(shorter_search({1.0}, 0), "shorter_search: 0 draws of 1 losses; expected 1 to 1");

    // Of very many losses no binomial coefficient overflows: the least of n numbers of 1..N is (N + 1) / (n + 1).
    std::vector<double> many(100000);
    for (std::size_t i = 0; i < many.size(); ++i) many[i] = static_cast<double>(i + 1);
    for (const std::size_t draws : {1u, 2u, 1000u, 50000u, 99999u, 100000u})
        CHECK(shorter_search(many, draws).loss == Approx(100001.0 / static_cast<double>(draws + 1)).epsilon(1e-10));
}
