// SPDX-License-Identifier: MIT
#include "experiments/layer_rms.hpp"
#include "support/catch.hpp"

#include <cmath>
#include <limits>
#include <vector>

using namespace unitscale;
using namespace unitscale::experiments;

TEST_CASE("layer rms: layers of one name become their medians, in the order of the first") {
    const std::vector<LayerRms> medians =
        medians_by_layer({{.layer = "tokens", .weight = 1.0},
                          {.layer = "query", .weight = 1.0, .input = 2.0, .output_gradient = 4.0},
                          {.layer = "out", .weight = 5.0},
                          {.layer = "query", .weight = 4.0, .input = std::numeric_limits<double>::infinity()},
                          {.layer = "query", .weight = 3.0, .input = 6.0}});
    REQUIRE(medians.size() == 3);
    CHECK(medians[0].layer == "tokens");
    CHECK(std::isnan(medians[0].input));
    CHECK(medians[1].layer == "query");
    CHECK(medians[1].weight == 3.0);
    CHECK(medians[1].input == 4.0);  // of the finite numbers
    CHECK(std::isnan(medians[1].weight_gradient));
    CHECK(medians[1].output_gradient == 4.0);
    CHECK(medians[2].weight == 5.0);
    CHECK(medians_by_layer({}).empty());
}

TEST_CASE("layer rms: the JSON leaves out numbers that are not finite, and is read back") {
    const auto json = json_of(
        {{.layer = "tokens", .weight = 0.1}, {.layer = "query", .weight = 1.5, .input = 2.0, .weight_gradient = 0.25}});
    CHECK(json.dump() == R"({"tokens":{"weight":0.1},"query":{"weight":1.5,"input":2.0,"weight_gradient":0.25}})");
    const std::vector<LayerRms> layers = read_layers(json);
    REQUIRE(layers.size() == 2);
    CHECK(layers[0].layer == "tokens");
    CHECK(layers[0].weight == 0.1);
    CHECK(std::isnan(layers[0].input));
    CHECK(layers[1].weight_gradient == 0.25);
    CHECK(json_of({}).dump() == "{}");
    CHECK(read_layers(json_of({})).empty());
    CHECK_THROWS_AS(read_layers(nlohmann::ordered_json::parse(R"({"query":1})")), nlohmann::json::exception);
}
