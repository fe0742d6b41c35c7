// SPDX-License-Identifier: MIT
#include <unitscale/train/parameter_table.hpp>

#include "support/catch.hpp"

#include <unitscale/optim/adam.hpp>
#include <unitscale/optim/lamb.hpp>
#include <unitscale/optim/sgd.hpp>
#include <unitscale/scaling/known_recipes.hpp>

#include <cstdio>
#include <limits>
#include <memory>
#include <string>
#include <vector>

using namespace unitscale;

namespace {

/// A small model's parameters: width 16, 4 blocks.
struct Parameters {
    Parameter<float> table{
        "tokens", Shape{10, 16}, {.role = ParameterRole::embedding, .fan_in = 10, .fan_out = 16, .width = 16}};
    Parameter<float> up{"up", Shape{64, 16}, {.fan_in = 16, .fan_out = 64, .depth = 4, .width = 16}};
    Parameter<float> bias{"bias", Shape{64}, {.role = ParameterRole::bias, .fan_out = 64, .depth = 4, .width = 16}};
    Parameter<float> gain{"gain", Shape{16}, {.role = ParameterRole::norm, .fan_out = 16, .width = 16}};
    Parameter<float> readout{
        "readout", Shape{10, 16}, {.role = ParameterRole::readout, .fan_in = 16, .fan_out = 10, .width = 16}};
    std::vector<Parameter<float>*> all{&table, &up, &bias, &gain, &readout};
};

}  // namespace

TEST_CASE("parameter table: every role under u-µP, with group factors and frozen parameters") {
    Parameters p;
    const Recipe recipe = find_recipe("umup-fp32");
    const optim::Adam<float> adam(
        p.all, {.weight_decay = 0.25,
                .peak_learning_rate = 2.0,
                .groups = {{.pattern = "up", .learning_rate_factor = 4.0}, {.pattern = "gain", .trained = false}},
                .parametrisation = recipe.parametrisation_rule()});
    const std::string table = train::parameter_table(adam, recipe, 0.5);
    CHECK(table ==
          "parameter  shape    role       initial  multiplier  factor  learning rate  decay\n"
          "tokens     [10,16]  embedding  1        1           0.25    0.125          0.25\n"
          "up         [64,16]  weight     1        0.25        0.5     0.25           0.25\n"
          "bias       [64]     bias       zeros    -           0.5     0.25           none\n"
          "gain       [16]     norm       ones     -           1       frozen         none\n"
          "readout    [10,16]  readout    1        0.0625      1       0.5            0.25\n"
          "5 parameters of 1424 values\n");
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::tmpfile(), std::fclose);
    train::print_parameters(file.get(), adam, recipe, 0.5);
    std::rewind(file.get());
    std::string printed;
    for (int c = std::fgetc(file.get()); c != EOF; c = std::fgetc(file.get())) printed += static_cast<char>(c);
    CHECK(printed == table);
}

TEST_CASE("parameter table: µP and the standard parametrisation, with the factors of the given optimiser") {
    Recipe recipe = find_recipe("mup-fp32");
    recipe.hyperparameters.base_width = 4;  // a quarter of the model's width
    recipe.hyperparameters.base_depth = 1;  // a quarter of the model's depth
    const auto row = [](const std::string& table, const std::string& begin) {
        const std::size_t place = table.find('\n' + begin);
        REQUIRE(place != std::string::npos);
        return table.substr(place + 1, table.find('\n', place + 1) - place - 1);
    };
    Parameters p;
    const auto mup = train::parameter_table(
        optim::Adam<float>(p.all, {.parametrisation = recipe.parametrisation_rule()}), recipe, 1.0);
    CHECK(row(mup, "up ") == "up         [64,16]  weight     0.01     1           0.125   0.125          none");
    CHECK(row(mup, "readout ") == "readout    [10,16]  readout    0.02     0.25        1       1              none");
    const auto lamb = train::parameter_table(
        optim::Lamb<float>(p.all, {.weight_decay = 0.0, .parametrisation = recipe.parametrisation_rule()}), recipe,
        1.0);
    CHECK(row(lamb, "up ") == "up         [64,16]  weight     0.01     1           0.25    0.25           none");
    const Recipe plain = find_recipe("fp32");
    const auto standard = train::parameter_table(optim::Sgd<float>(p.all, {.weight_decay = 0.5}), plain, 1e-3);
    CHECK(row(standard, "tokens ") == "tokens     [10,16]  embedding  0.02     1           1       0.001          0.5");
    CHECK(row(standard, "bias ") == "bias       [64]     bias       zeros    -           1       0.001          0.5");
}

TEST_CASE("parameter table: a readout with Unit Scaling's own exponent, and invalid learning rates") {
    Parameters p;
    const Recipe recipe = find_recipe("unit-fp32");
    const optim::Adam<float> adam(p.all, {.parametrisation = recipe.parametrisation_rule()});
    CHECK(train::parameter_table(adam, recipe, 1.0).find("readout    1        0.25 ") != std::string::npos);
    CHECK_THROWS_WITH(train::parameter_table(adam, recipe, -1.0),
                      "parameter_table: learning rate is -1; expected a finite number, not negative");
    CHECK_THROWS_AS(train::parameter_table(adam, recipe, std::numeric_limits<double>::quiet_NaN()), Error);
}
