// SPDX-License-Identifier: MIT
#include <unitscale/nn/initialise.hpp>

#include <unitscale/analysis/scale_check.hpp>

#include "support/catch.hpp"
#include "support/test_ops.hpp"

using namespace unitscale;

TEST_CASE("initialise: the last part of a module path") {
    CHECK(nn::last_name("decoder/block0/ffn") == "ffn");
    CHECK(nn::last_name("ffn") == "ffn");
    CHECK(nn::last_name("") == "");
}

TEST_CASE("initialise: standard deviations by role and parametrisation") {
    for (const ParameterRole role : {ParameterRole::weight, ParameterRole::embedding, ParameterRole::readout}) {
        CHECK(nn::initial_stddev(role, Parametrisation::standard) == 0.02);
        CHECK(nn::initial_stddev(role, Parametrisation::unit) == 1.0);
    }
    for (const Parametrisation parametrisation : {Parametrisation::standard, Parametrisation::unit}) {
        CHECK(nn::initial_stddev(ParameterRole::bias, parametrisation) == 0.0);
        CHECK(nn::initial_stddev(ParameterRole::norm, parametrisation) == 0.0);
    }
}

TEST_CASE("initialise: normal weights, biases 0, gains 1, each parameter's stream its name's") {
    Parameter<float> weight("net/weight", {50, 80}, {.role = ParameterRole::weight});
    Parameter<float> table("net/table", {50, 80}, {.role = ParameterRole::embedding});
    Parameter<float> readout("net/readout", {50, 80}, {.role = ParameterRole::readout});
    Parameter<float> bias("net/bias", {9}, {.role = ParameterRole::bias});
    Parameter<float> gain("net/gain", {9}, {.role = ParameterRole::norm});
    const std::uint64_t version = weight.version();
    for (const std::string_view name : {"fp32", "unit-fp8"}) {
        const Recipe recipe = find_recipe(name);
        fill_constant(bias.write(), 3.0f);
        nn::initialise<float>({&weight, &table, &readout, &bias, &gain}, recipe, 4);
        const double stddev = name == "fp32" ? 0.02 : 1.0;
        for (const Parameter<float>* parameter : {&weight, &table, &readout}) {
            CHECK(analysis::moments(parameter->value()).std == Approx(stddev).epsilon(0.05));
            CHECK(std::abs(analysis::moments(parameter->value()).mean) < 0.06 * stddev);
        }
        CHECK(test::elements(bias.value()) == std::vector<float>(9, 0.0f));
        CHECK(test::elements(gain.value()) == std::vector<float>(9, 1.0f));
        CHECK(test::elements(weight.value()) != test::elements(table.value()));
        CHECK(weight.value().data()[7] == static_cast<float>(stddev * random_normal({4, hash_name("net/weight")}, 7)));
    }
    CHECK(weight.version() > version);  // caches of the old value are void

    const std::vector<float> before = test::elements(weight.value());
    const Recipe recipe = find_recipe("unit-fp8");
    nn::initialise<float>({&weight}, recipe, 4);  // whatever else the model holds
    CHECK(test::elements(weight.value()) == before);
    nn::initialise<float>({&weight}, recipe, 5);
    CHECK(test::elements(weight.value()) != before);
}
