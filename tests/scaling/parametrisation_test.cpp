// SPDX-License-Identifier: MIT
#include <unitscale/scaling/parametrisation.hpp>

#include "support/catch.hpp"

#include <cmath>
#include <limits>

using namespace unitscale;

namespace {

// A model of width 512 and 16 blocks: a feed-forward layer's last weight and bias, a gain outside branches, both
// tables.
constexpr ParameterFacts down{.role = ParameterRole::weight, .fan_in = 2048, .fan_out = 512, .depth = 16, .width = 512};
constexpr ParameterFacts bias{.role = ParameterRole::bias, .fan_in = 1, .fan_out = 512, .depth = 16, .width = 512};
constexpr ParameterFacts gain{.role = ParameterRole::norm, .fan_in = 1, .fan_out = 512};
constexpr ParameterFacts table{.role = ParameterRole::embedding, .fan_in = 100, .fan_out = 512};
constexpr ParameterFacts readout{.role = ParameterRole::readout, .fan_in = 512, .fan_out = 100};

void check_scaling(const ParameterScaling& scaling, double stddev, double multiplier, double factor,
                   bool decays = true) {
    CHECK(scaling.initial_stddev == Approx(stddev).epsilon(1e-14));
    CHECK(scaling.multiplier == Approx(multiplier).epsilon(1e-14));
    CHECK(scaling.learning_rate_factor == Approx(factor).epsilon(1e-14));
    CHECK(scaling.decays == decays);
}

}  // namespace

TEST_CASE("parametrisation: standard and unit have one learning rate") {
    for (const OptimiserKind optimiser : {OptimiserKind::adam, OptimiserKind::sgd, OptimiserKind::lamb}) {
        const ParametrisationRule standard{Parametrisation::standard}, unit{Parametrisation::unit};
        check_scaling(parameter_scaling(standard, down, optimiser), 0.02, 1.0, 1.0);
        check_scaling(parameter_scaling(standard, bias, optimiser), 0.0, 1.0, 1.0, false);
        check_scaling(parameter_scaling(standard, readout, optimiser), 0.02, 1.0, 1.0);
        check_scaling(parameter_scaling(unit, down, optimiser), 1.0, 1.0 / std::sqrt(2048.0), 1.0);
        check_scaling(parameter_scaling(unit, gain, optimiser), 0.0, 1.0, 1.0, false);
        check_scaling(parameter_scaling(unit, table, optimiser), 1.0, 1.0, 1.0);
        check_scaling(parameter_scaling(unit, readout, optimiser, 0.5), 1.0, 1.0 / std::sqrt(512.0), 1.0);
    }
}

TEST_CASE("parametrisation: unit with a rate of its own for vectors") {
    const ParametrisationRule rule{.kind = Parametrisation::unit, .vector_learning_rate = true};
    constexpr ParameterFacts of_up{.role = ParameterRole::bias, .fan_out = 2048, .depth = 16, .width = 512},
        of_logits{.role = ParameterRole::bias, .fan_out = 100, .width = 512};
    for (const OptimiserKind optimiser : {OptimiserKind::adam, OptimiserKind::sgd, OptimiserKind::lamb}) {
        const double factor = optimiser == OptimiserKind::lamb ? 1.0 : 1.0 / std::sqrt(512.0);
        for (const ParameterFacts& facts : {bias, gain, of_up, of_logits})
            check_scaling(parameter_scaling(rule, facts, optimiser), 0.0, 1.0, factor, false);
        for (const ParameterFacts& facts : {down, table, readout})
            CHECK(parameter_scaling(rule, facts, optimiser).learning_rate_factor == 1.0);
    }
}

TEST_CASE("parametrisation: u-µP, Adam and LAMB: table 2 of the paper") {
    const ParametrisationRule umup{Parametrisation::umup};
    for (const OptimiserKind optimiser : {OptimiserKind::adam, OptimiserKind::lamb, OptimiserKind::sgd}) {
        check_scaling(parameter_scaling(umup, table, optimiser), 1.0, 1.0, 1.0 / std::sqrt(512.0));
        check_scaling(parameter_scaling(umup, down, optimiser), 1.0, 1.0 / std::sqrt(2048.0),
                      1.0 / std::sqrt(2048.0 * 16.0));
        check_scaling(parameter_scaling(umup, readout, optimiser), 1.0, 1.0 / 512.0, 1.0);
        check_scaling(parameter_scaling(umup, bias, optimiser), 0.0, 1.0, 0.25, false);
        check_scaling(parameter_scaling(umup, gain, optimiser), 0.0, 1.0, 1.0, false);
    }
}

TEST_CASE("parametrisation: u-µP, SGD with a readout of joined factors") {
    const ParametrisationRule constant{.kind = Parametrisation::umup, .embedding = EmbeddingRate::constant};
    for (const OptimiserKind optimiser : {OptimiserKind::adam, OptimiserKind::lamb, OptimiserKind::sgd}) {
        CHECK(parameter_scaling(constant, table, optimiser).learning_rate_factor == 1.0);
        CHECK(parameter_scaling(constant, down, optimiser).learning_rate_factor ==
              parameter_scaling({.kind = Parametrisation::umup}, down, optimiser).learning_rate_factor);
    }
    ParametrisationRule mup{.kind = Parametrisation::mup}, faster = mup;
    faster.hyperparameters.embedding_rate = 8.0;
    for (const OptimiserKind optimiser : {OptimiserKind::adam, OptimiserKind::lamb, OptimiserKind::sgd})
        for (const ParameterFacts& facts : {table, down, readout, bias})
            CHECK(parameter_scaling(faster, facts, optimiser).learning_rate_factor ==
                  (facts.role == ParameterRole::embedding ? 8.0 : 1.0) *
                      parameter_scaling(mup, facts, optimiser).learning_rate_factor);
    const ParametrisationRule umup{.kind = Parametrisation::umup, .constrained_readout = true};
    CHECK(parameter_scaling(umup, table, OptimiserKind::sgd).learning_rate_factor == Approx(std::sqrt(512.0)));
    CHECK(parameter_scaling(umup, down, OptimiserKind::sgd).learning_rate_factor == Approx(std::sqrt(2048.0) / 4.0));
    CHECK(parameter_scaling(umup, bias, OptimiserKind::sgd).learning_rate_factor == Approx(512.0 / 4.0));
    CHECK(parameter_scaling(umup, gain, OptimiserKind::sgd).learning_rate_factor == Approx(512.0));
    CHECK(parameter_scaling(umup, readout, OptimiserKind::sgd).learning_rate_factor == 1.0);
    CHECK(parameter_scaling(umup, down, OptimiserKind::adam).learning_rate_factor ==
          Approx(1.0 / std::sqrt(2048.0 * 16.0)));
}

TEST_CASE("parametrisation: µP at four times its base width and depth") {
    const ParametrisationRule mup{
        Parametrisation::mup,
        {.init_sigma = 2.0, .alpha_emb = 3.0, .alpha_out = 5.0, .base_width = 128, .base_depth = 4}};
    check_scaling(parameter_scaling(mup, down), 0.02, 1.0, 0.5 * 0.25);  // 0.02 sigma (1/4)^1/2
    check_scaling(parameter_scaling(mup, table), 0.04, 3.0, 1.0);
    check_scaling(parameter_scaling(mup, readout), 0.04, 5.0 / 4.0, 1.0);
    check_scaling(parameter_scaling(mup, bias), 0.0, 1.0, 0.5, false);
    CHECK(parameter_scaling(mup, down, OptimiserKind::sgd).learning_rate_factor == 1.0);
    CHECK(parameter_scaling(mup, table, OptimiserKind::sgd).learning_rate_factor == 4.0);
    CHECK(parameter_scaling(mup, readout, OptimiserKind::sgd).learning_rate_factor == 4.0);
    CHECK(parameter_scaling(mup, down, OptimiserKind::lamb).learning_rate_factor == Approx(0.5 * 0.5));
    CHECK(branch_multiplier(mup, 16) == 0.5);
    CHECK(model_multiplier(mup, down) == 1.0);
}

TEST_CASE("parametrisation: µP at its base is the standard model") {
    const ParametrisationRule mup{.kind = Parametrisation::mup,
                                  .hyperparameters = {.base_width = 512, .base_depth = 16}};
    const ParametrisationRule standard{};
    for (const ParameterFacts& facts : {down, bias, gain, table, readout})
        for (const OptimiserKind optimiser : {OptimiserKind::adam, OptimiserKind::sgd, OptimiserKind::lamb}) {
            const ParameterScaling expected = parameter_scaling(standard, facts, optimiser);
            check_scaling(parameter_scaling(mup, facts, optimiser), expected.initial_stddev, 1.0, 1.0, expected.decays);
        }
    CHECK(branch_multiplier(mup, 16) == 1.0);
}

TEST_CASE("parametrisation: distributions and rules of embeddings have names") {
    CHECK(name(EmbeddingRate::fan_out) == "fan_out");
    CHECK(name(EmbeddingRate::constant) == "constant");
    CHECK(name(InitialDistribution::normal) == "normal");
    CHECK(name(InitialDistribution::uniform) == "uniform");
}

TEST_CASE("parametrisation: attention's logits and the kind of weight decay") {
    const Hyperparameters twice{.alpha_attn = 2.0};
    CHECK(attention_multiplier({Parametrisation::standard, twice}, 64) == 16.0);
    CHECK(attention_multiplier({Parametrisation::unit, twice}, 64) == 16.0);
    CHECK(attention_multiplier({Parametrisation::mup, twice}, 64) == 2.0);
    CHECK(attention_multiplier({Parametrisation::umup, twice}, 64) == 2.0);
    CHECK(weight_decay_kind(Parametrisation::standard) == WeightDecay::coupled);
    CHECK(weight_decay_kind(Parametrisation::unit) == WeightDecay::coupled);
    CHECK(weight_decay_kind(Parametrisation::mup) == WeightDecay::independent);
    CHECK(weight_decay_kind(Parametrisation::umup) == WeightDecay::independent);
}

TEST_CASE("parametrisation: hyperparameters out of range are errors") {
    REQUIRE_THROWS_WITH(check_hyperparameters({.alpha_attn = 0.0}),
                        "hyperparameters: alpha_attn is 0; expected a positive number");
    REQUIRE_THROWS_WITH(check_hyperparameters({.alpha_out = std::numeric_limits<double>::infinity()}),
                        "hyperparameters: alpha_out is inf; expected a positive number");
    REQUIRE_THROWS_WITH(check_hyperparameters({.base_width = 0}),
                        "hyperparameters: base_width is 0; expected at least 1");
    REQUIRE_THROWS_WITH(parameter_scaling({.hyperparameters = {.init_sigma = -1.0}}, down),
                        "hyperparameters: init_sigma is -1; expected a positive number");
}
