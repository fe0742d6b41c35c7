// SPDX-License-Identifier: MIT
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/scaling/state.hpp>

#include "experiments/measured_biases.hpp"
#include "support/catch.hpp"

#include <string>
#include <vector>

using namespace unitscale;
using namespace unitscale::experiments;

namespace {

/// A state with the linear layer `block0/linear` under a recipe.
struct OneLayer {
    Recipe recipe;
    ScalingState state{};
    Site site = state.site(state.scope(0, "block0"), "linear", 0);

    void measure(OperandRole role, float amax) {
        const ProductFormats& formats = state.formats(site, ProductKind::linear, recipe);
        static_cast<void>(state.operand_bias(site, role, formats.of(role)->format, formats.scale(role), false,
                                             [amax] { return amax; }));
    }
};

}  // namespace

TEST_CASE("measured biases: they come from amax rules by tensor only") {
    OneLayer layer{.recipe = find_recipe("fp8-amax")};
    ProductFormats& formats = layer.recipe.products.back().formats;
    formats.weight_scale.granularity = ScaleGranularity::row;
    formats.gradient_scale.source = ScaleSource::constant;
    CHECK(measured_biases(layer.state).empty());
    for (const OperandRole role : {OperandRole::activation, OperandRole::weight, OperandRole::gradient})
        layer.measure(role, 1.0f);
    CHECK(measured_biases(layer.state).dump() == "{\"block0/linear|activation\":4}");  // 240 / 1 is 2^7.9, margin 3
}

TEST_CASE("measured biases: an operand that no product has used is left out") {
    OneLayer layer{.recipe = find_recipe("fp8-amax")};
    layer.measure(OperandRole::activation, 1.0f);
    layer.measure(OperandRole::weight, 0.5f);
    CHECK(measured_biases(layer.state).dump() == "{\"block0/linear|activation\":4,\"block0/linear|weight\":5}");
}

TEST_CASE("measured biases: how often each one occurred, with the most frequent") {
    OneLayer layer{.recipe = find_recipe("fp8-amax")};
    layer.measure(OperandRole::weight, 0.5f);
    BiasCounts counts;
    counts.add(ScalingState());
    CHECK(counts.operands().empty());
    CHECK(counts.json().dump() == "{}");
    for (const float amax : {1.0f, 256.0f, 1.0f, 2.0f}) {  // biases 4, -4, 4, 3
        layer.measure(OperandRole::activation, amax);
        counts.add(layer.state);
    }
    REQUIRE(counts.operands().size() == 2);
    CHECK(counts.operands()[0].mode() == 4);
    CHECK(counts.operands()[0].share() == 0.5);
    CHECK(counts.rows() ==
          std::vector<std::vector<std::string>>{{"layer", "role", "bias", "share", "least", "largest"},
                                                {"block0/linear", "activation", "4", "50.0 %", "-4", "4"},
                                                {"block0/linear", "weight", "5", "100.0 %", "5", "5"}});
    CHECK(counts.json().dump() ==
          "{\"block0/linear|activation\":{\"-4\":1,\"3\":1,\"4\":2},\"block0/linear|weight\":{\"5\":4}}");
    CHECK(OperandBiases{.operand = "a", .counts = {{3, 2}, {-1, 2}, {0, 1}}}.mode() == -1);  // the lowest of two
}
