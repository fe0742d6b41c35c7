// SPDX-License-Identifier: MIT
#include <unitscale/optim/groups.hpp>

#include "support/catch.hpp"

#include <limits>
#include <vector>

using namespace unitscale;
using namespace unitscale::optim;

namespace {

struct Model {
    Parameter<float> embedding{"embedding", Shape{2}, {.role = ParameterRole::embedding}};
    Parameter<float> up{"block0/up/weight", Shape{2}, {.role = ParameterRole::weight}};
    Parameter<float> bias{"block0/up/bias", Shape{2}, {.role = ParameterRole::bias}};
    Parameter<float> gain{"block0/norm/gain", Shape{2}, {.role = ParameterRole::norm}};
    std::vector<Parameter<float>*> all{&embedding, &up, &bias, &gain};

    std::vector<ParameterSettings> resolve(const std::vector<ParameterGroup>& groups,
                                           const GroupDefaults& defaults = {}) {
        return resolve_groups("Adam", all, groups, defaults);
    }
};

}  // namespace

TEST_CASE("without groups every parameter has the defaults and its own flag") {
    Model model;
    model.up.set_requires_gradient(false);
    const auto settings = model.resolve({}, {.weight_decay = 0.1});
    for (const ParameterSettings& one : settings) {
        REQUIRE(one.learning_rate_factor == 1.0);
        REQUIRE(one.weight_decay == 0.1);
    }
    REQUIRE(settings[0].trained);
    REQUIRE_FALSE(settings[1].trained);
}

TEST_CASE("a later rule wins, field by field") {
    Model model;
    const auto settings = model.resolve({{.pattern = "*", .learning_rate_factor = 0.5, .weight_decay = 0.25},
                                         {.pattern = "block0/*", .learning_rate_factor = 2.0},
                                         {.pattern = "*/bias", .weight_decay = 0.0, .trained = false},
                                         {.pattern = "block0/up/bias", .trained = true}});
    REQUIRE(settings[0].learning_rate_factor == 0.5);
    REQUIRE(settings[1].learning_rate_factor == 2.0);
    REQUIRE(settings[1].weight_decay == 0.25);
    REQUIRE(settings[2].learning_rate_factor == 2.0);
    REQUIRE(settings[2].weight_decay == 0.0);
    REQUIRE(settings[2].trained);
    REQUIRE(settings[3].trained);
}

TEST_CASE("decay can be off for biases and norm gains unless a group names it") {
    Model model;
    const auto settings =
        model.resolve({{.pattern = "*gain", .weight_decay = 0.5}}, {.weight_decay = 0.1, .decay_bias_and_norm = false});
    REQUIRE(settings[0].weight_decay == 0.1);
    REQUIRE(settings[1].weight_decay == 0.1);
    REQUIRE(settings[2].weight_decay == 0.0);
    REQUIRE(settings[3].weight_decay == 0.5);
    REQUIRE(model.resolve({}, {.weight_decay = 0.1})[3].weight_decay == 0.1);
}

TEST_CASE("groups that cannot be meant are errors that name the pattern") {
    Model model;
    REQUIRE_THROWS_WITH(model.resolve({{.pattern = "block1/*"}}),
                        "Adam: group pattern 'block1/*' matches none of the 4 parameters");
    REQUIRE_THROWS_WITH(model.resolve({{.pattern = "*", .learning_rate_factor = -1.0}}),
                        "Adam: group '*' has the learning-rate factor -1; expected a finite number, not negative");
    REQUIRE_THROWS_WITH(model.resolve({{.pattern = "*", .weight_decay = -0.5}}),
                        "Adam: group '*' has the weight decay -0.5; expected a finite number, not negative");
    REQUIRE_THROWS_WITH(model.resolve({}, {.weight_decay = std::numeric_limits<double>::infinity()}),
                        "Adam: weight decay is inf; expected a finite number, not negative");
}

TEST_CASE("a list of parameters must have some, none of them null and no name twice") {
    Model model;
    const std::vector<Parameter<float>*> none, null{&model.up, nullptr}, twice{&model.up, &model.bias, &model.up};
    REQUIRE_THROWS_WITH(resolve_groups("Sgd", none, {}, {}), "Sgd: no parameters to train");
    REQUIRE_THROWS_WITH(resolve_groups("Sgd", null, {}, {}), "Sgd: parameter 1 of 2 is a null pointer");
    REQUIRE_THROWS_WITH(resolve_groups("Sgd", twice, {}, {}),
                        "Sgd: two parameters are called 'block0/up/weight'; names must differ");
}

TEST_CASE("a parametrisation gives factors, groups multiply them, and biases and norms do not decay") {
    const ParametrisationRule umup{Parametrisation::umup};
    Parameter<float> weight("a/weight", Shape{3, 16},
                            {.role = ParameterRole::weight, .fan_in = 16, .fan_out = 3, .depth = 4});
    Parameter<float> readout("b/weight", Shape{3, 16}, {.role = ParameterRole::readout, .fan_in = 16, .fan_out = 3});
    Parameter<float> bias("a/bias", Shape{3}, {.role = ParameterRole::bias, .fan_out = 3, .depth = 4});
    const std::vector<Parameter<float>*> all{&weight, &readout, &bias};
    const auto settings = resolve_groups("Adam", all, {{.pattern = "a/*", .learning_rate_factor = 3.0}},
                                         {.weight_decay = 0.5, .parametrisation = umup});
    CHECK(settings[0].learning_rate_factor == 3.0 * 0.125);
    CHECK(settings[1].learning_rate_factor == 1.0);
    CHECK(settings[2].learning_rate_factor == 3.0 * 0.5);
    CHECK(settings[0].weight_decay == 0.5);
    CHECK(settings[2].weight_decay == 0.0);
}

TEST_CASE(
    "the kind of weight decay: the options', else the parametrisation's where anything decays, else the optimiser's") {
    const std::vector<ParameterSettings> decaying{{.weight_decay = 0.1}}, not_decaying{{}};
    const ParametrisationRule umup{Parametrisation::umup}, standard{};
    CHECK(resolve_decay("Adam", WeightDecay::gradient, umup, WeightDecay::coupled, decaying, 0.0) ==
          WeightDecay::gradient);
    CHECK(resolve_decay("Adam", {}, umup, WeightDecay::coupled, decaying, 1.0) == WeightDecay::independent);
    CHECK(resolve_decay("Adam", {}, umup, WeightDecay::coupled, not_decaying, 0.0) == WeightDecay::coupled);
    CHECK(resolve_decay("Sgd", {}, standard, WeightDecay::gradient, decaying, 0.0) == WeightDecay::coupled);
    CHECK(resolve_decay("Sgd", {}, {}, WeightDecay::gradient, decaying, 0.0) == WeightDecay::gradient);
    CHECK_THROWS_WITH(resolve_decay("Adam", {}, umup, WeightDecay::coupled, decaying, 0.0),
                      "Adam: independent weight decay needs peak_learning_rate, the largest of the run; it is 0");
}
