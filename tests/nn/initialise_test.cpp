// SPDX-License-Identifier: MIT
#include <unitscale/nn/initialise.hpp>

#include <unitscale/analysis/scale_check.hpp>
#include <unitscale/scaling/known_recipes.hpp>
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

TEST_CASE("initialise: other standard deviations under standard, and no change under unit") {
    const ParameterFacts facts{.role = ParameterRole::weight, .fan_in = 400, .fan_out = 100};
    CHECK(nn::standard_initial_stddev(nn::InitialScale::gpt2, facts) == 0.02);
    CHECK(nn::standard_initial_stddev(nn::InitialScale::lecun, facts) == 0.05);
    CHECK(nn::standard_initial_stddev(nn::InitialScale::he, facts) == Approx(std::sqrt(0.005)));
    CHECK(nn::standard_initial_stddev(nn::InitialScale::glorot, facts) == Approx(std::sqrt(0.004)));
    CHECK(nn::standard_initial_stddev(nn::InitialScale::he, {.role = ParameterRole::embedding, .fan_in = 50}) == 1.0);
    CHECK(nn::standard_initial_stddev(nn::InitialScale::he, {.role = ParameterRole::bias}) == 0.0);
    Parameter<float> weight("net/weight", {100, 400}, facts);
    Parameter<float> bias("net/bias", {9}, {.role = ParameterRole::bias});
    const auto stddev = [&](const char* recipe, nn::InitialScale scale) {
        nn::initialise<float>({&weight, &bias}, find_recipe(recipe), 4, {.standard = scale});
        CHECK(test::elements(bias.value()) == std::vector<float>(9, 0.0f));
        return analysis::moments(weight.value()).std;
    };
    CHECK(stddev("fp32", nn::InitialScale::lecun) == Approx(0.05).epsilon(0.02));
    CHECK(stddev("fp32", nn::InitialScale::gpt2) == Approx(0.02).epsilon(0.02));
    CHECK(stddev("unit-fp32", nn::InitialScale::lecun) == Approx(1.0).epsilon(0.02));
    CHECK(stddev("scalify-fp16-2", nn::InitialScale::lecun) == Approx(0.05).epsilon(0.02));
    CHECK(weight.value().scale() == 0.03125);
}

TEST_CASE("initialise: uniform values of the same standard deviation, by the recipe or by the options") {
    const ParameterFacts facts{.role = ParameterRole::weight, .fan_in = 300, .fan_out = 200};
    const auto values = [&](const Recipe& recipe, const nn::InitialOptions& options) {
        Parameter<float> weight("net/weight", {200, 300}, facts);
        nn::initialise<float>({&weight}, recipe, 4, options);
        double largest = 0.0, squares = 0.0, sum = 0.0;
        for (const float x : weight.value().span()) {
            const auto value = static_cast<double>(x) * weight.value().scale();
            largest = std::max(largest, std::abs(value));
            squares += value * value;
            sum += value;
        }
        const auto n = static_cast<double>(weight.size());
        CHECK(std::abs(sum / n) < 0.02 * std::sqrt(squares / n));
        return std::pair(largest, std::sqrt(squares / n));
    };
    const double root = std::sqrt(3.0);
    for (const char* name : {"us-fp32", "us-fp16"}) {
        const auto [largest, rms] = values(find_recipe(name), {});
        CHECK(rms == Approx(1.0).epsilon(0.01));
        CHECK(largest <= root);
        CHECK(largest > 0.999 * root);
    }
    CHECK(values(find_recipe("us-fp32"), {.distribution = InitialDistribution::normal}).first > 3.0);
    CHECK(values(find_recipe("unit-fp32"), {}).first > 3.0);
    // The standard model of the Unit Scaling experiments: Glorot's bound is (6 / (fan_in + fan_out))^1/2.
    for (const char* name : {"fp32", "scalify-fp16-1"}) {
        const auto [largest, rms] = values(
            find_recipe(name), {.standard = nn::InitialScale::glorot, .distribution = InitialDistribution::uniform});
        CHECK(largest <= std::sqrt(6.0 / 500.0) * (1.0 + 1e-6));
        CHECK(rms == Approx(std::sqrt(2.0 / 500.0)).epsilon(0.01));
    }
}

TEST_CASE("initialise: rules for single parameters; the last one that matches holds") {
    Parameter<float> a("net/a/weight", {50, 80}, {}), b("net/b/weight", {50, 80}, {}), c("net/c/weight", {50, 80}, {});
    Parameter<float> gain("net/gain", {400}, {.role = ParameterRole::norm});
    nn::initialise<float>({&a, &b, &c, &gain}, find_recipe("unit-fp32"), 4,
                          {.rules = {{.pattern = "net/*/weight", .stddev = 0.5},
                                     {.pattern = "net/b/*", .stddev = 0.0},
                                     {.pattern = "*gain", .stddev = 2.0}}});
    CHECK(analysis::moments(a.value()).std == Approx(0.5).epsilon(0.05));
    CHECK(analysis::moments(c.value()).std == Approx(0.5).epsilon(0.05));
    CHECK(test::elements(b.value()) == std::vector<float>(4000, 0.0f));
    CHECK(analysis::moments(gain.value()).std == Approx(2.0).epsilon(0.1));
    const std::uint64_t version = a.version();
    const auto with = [&](nn::InitialRule rule) {
        nn::initialise<float>({&a, &gain}, find_recipe("fp32"), 4, {.rules = {std::move(rule)}});
    };
    CHECK_THROWS_WITH(with({.pattern = "q*"}), "initialise: pattern 'q*' matches none of the 2 parameters");
    CHECK_THROWS_WITH(with({.pattern = "*", .stddev = -1.0}),
                      "initialise: pattern '*': stddev is -1; expected a finite number, not negative");
    CHECK_THROWS_WITH(with({.pattern = "*", .orthogonal = true}),
                      "initialise: net/gain [400] is no matrix, and cannot be orthogonal");
    CHECK(a.version() == version);
}

TEST_CASE("initialise: orthogonal rows, or columns of a tall matrix, with the rms that is asked for") {
    for (const Shape& shape : {Shape{20, 30}, Shape{30, 20}, Shape{16, 16}, Shape{6, 4, 3}})
        for (const double rms : {1.0, 0.25}) {
            Parameter<double> weight("w", shape, {});
            nn::initialise<double>({&weight}, find_recipe("unit-fp32"), 4,
                                   {.rules = {{.pattern = "w", .stddev = rms, .orthogonal = true}}});
            const std::size_t rows = shape[0], columns = weight.size() / rows;
            const bool wide = rows <= columns;
            const std::size_t count = wide ? rows : columns, length = wide ? columns : rows;
            const auto at = [&](std::size_t i, std::size_t k) {
                return weight.value().data()[wide ? i * columns + k : k * columns + i];
            };
            for (std::size_t i = 0; i < count; ++i)
                for (std::size_t j = 0; j <= i; ++j) {
                    double dot = 0.0;
                    for (std::size_t k = 0; k < length; ++k) dot += at(i, k) * at(j, k);
                    CHECK(dot == Approx(i == j ? rms * rms * static_cast<double>(length) : 0.0).margin(1e-12));
                }
        }
}
