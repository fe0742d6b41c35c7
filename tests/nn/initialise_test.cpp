// SPDX-License-Identifier: MIT
#include <unitscale/nn/initialise.hpp>

#include <unitscale/analysis/scale_check.hpp>
#include <unitscale/tensor/rescale.hpp>

#include "support/catch.hpp"
#include "support/test_ops.hpp"

using namespace unitscale;

TEST_CASE("initialise: the last part of a module path") {
    CHECK(nn::last_name("decoder/block0/ffn") == "ffn");
    CHECK(nn::last_name("ffn") == "ffn");
    CHECK(nn::last_name("") == "");
}

TEST_CASE("initialise: under mup hidden weights are smaller in wider models, by the parameter's facts") {
    Recipe recipe = find_recipe("mup-fp32");
    recipe.hyperparameters.init_sigma = 2.0;
    Parameter<float> weight("net/weight", {100, 512}, {.role = ParameterRole::weight, .fan_in = 512, .fan_out = 100});
    Parameter<float> readout("net/readout", {100, 512},
                             {.role = ParameterRole::readout, .fan_in = 512, .fan_out = 100});
    nn::initialise<float>({&weight, &readout}, recipe, 4);
    CHECK(analysis::moments(weight.value()).std == Approx(0.02).epsilon(0.02));  // 0.02 sigma (128 / 512)^1/2
    CHECK(analysis::moments(readout.value()).std == Approx(0.04).epsilon(0.02));
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
    CHECK(weight.version() > version);  // caches of the old value are invalid

    const std::vector<float> before = test::elements(weight.value());
    const Recipe recipe = find_recipe("unit-fp8");
    nn::initialise<float>({&weight}, recipe, 4);  // without the model's other parameters
    CHECK(test::elements(weight.value()) == before);
    nn::initialise<float>({&weight}, recipe, 5);
    CHECK(test::elements(weight.value()) != before);
}

TEST_CASE("initialise: under propagate values are equal, data is near unit scale and the scale is a power of two") {
    const Recipe plain = find_recipe("fp32");
    Parameter<float> weight("net/weight", {50, 80}, {.role = ParameterRole::weight});
    Parameter<float> bias("net/bias", {9}, {.role = ParameterRole::bias});
    Parameter<float> gain("net/gain", {9}, {.role = ParameterRole::norm});
    nn::initialise<float>({&weight}, plain, 4);
    const std::vector<float> wanted = test::elements(weight.value());
    for (const auto& [rounding, scale] :
         {std::pair{ScaleRounding::down, 0x1p-6}, {ScaleRounding::up, 0x1p-5}, {ScaleRounding::nearest, 0x1p-6}}) {
        Recipe recipe = plain;
        recipe.scaling = Scaling::propagate;
        recipe.propagate.rounding = rounding;
        nn::initialise<float>({&weight, &bias, &gain}, recipe, 4);
        CHECK(weight.value().scale() == scale);
        CHECK(analysis::moments(weight.value()).std == Approx(0.02).epsilon(0.05));
        CHECK(weight.value().data()[7] ==
              static_cast<float>(0.02 / scale * random_normal({4, hash_name("net/weight")}, 7)));
        CHECK(test::elements(value(weight.value())) == wanted);
        CHECK(bias.value().scale() == scale);
        CHECK(bias.value().any_scale());
        CHECK(gain.value().scale() == 1.0);
        CHECK(test::elements(gain.value()) == std::vector<float>(9, 1.0f));
    }
    Recipe recipe = plain;
    recipe.scaling = Scaling::propagate;
    recipe.propagate.rounding = ScaleRounding::stochastic;
    std::size_t up = 0;
    for (std::uint64_t seed = 0; seed < 400; ++seed) {
        nn::initialise<float>({&bias}, recipe, seed);
        CHECK((bias.value().scale() == 0x1p-6 || bias.value().scale() == 0x1p-5));
        up += bias.value().scale() == 0x1p-5 ? 1u : 0u;
    }
    CHECK(static_cast<double>(up) / 400.0 == Approx(0.02 * 64 - 1.0).margin(0.07));  // so that the mean scale is 0.02
    recipe.parametrisation = Parametrisation::unit;
    nn::initialise<float>({&weight}, recipe, 4);
    CHECK(weight.value().scale() == 1.0);
    nn::initialise<float>({&weight}, plain, 4);  // back to a plain value
    CHECK(weight.value().scale() == 1.0);
    CHECK(test::elements(weight.value()) == wanted);
}
