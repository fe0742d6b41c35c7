// SPDX-License-Identifier: MIT
#include <unitscale/optim/any_optimiser.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/scaling/recipe.hpp>

#include "support/any_state.hpp"
#include "support/catch.hpp"
#include "support/optimiser_checks.hpp"

#include <cstddef>
#include <utility>
#include <vector>

using namespace unitscale;
using namespace unitscale::optim;

namespace {

constexpr std::size_t length = 1300;

/// Four steps of an optimiser made with these options; the parameter and the optimiser's state.
template <class Optimiser, class Options>
std::pair<Tensor<float>, test::AnyState> after_steps(const Options& options) {
    Parameter<float> p("p", Shape{length}, {});
    fill_normal(p.write(), {1, 1});
    Optimiser optimiser({&p}, options);
    test::take_steps(optimiser, p, 1, 4);
    test::AnyState state;
    optimiser.visit_state(state);
    REQUIRE(optimiser.parameters() == std::vector<Parameter<float>*>{&p});
    REQUIRE(optimiser.settings().size() == 1);
    optimiser.clear_gradients();
    REQUIRE_FALSE(p.has_gradient());
    return {p.value(), std::move(state)};
}

template <class Optimiser, class Options>
void check_same(const AnyOptimiserOptions& any, const Options& own) {
    const auto [value, state] = after_steps<AnyOptimiser<float>>(any);
    const auto [wanted, wanted_state] = after_steps<Optimiser>(own);
    for (std::size_t i = 0; i < length; ++i) REQUIRE(value.data()[i] == wanted.data()[i]);
    REQUIRE_FALSE(state.bytes.empty());
    REQUIRE(state.bytes == wanted_state.bytes);
    REQUIRE(state.scalars == wanted_state.scalars);
}

}  // namespace

TEST_CASE("an optimiser chosen at run time has the bits of the optimiser itself") {
    const Storage storage = test::coded_storage();
    check_same<Adam<float>>({.kind = OptimiserKind::adam, .beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.1},
                            AdamOptions{.beta1 = 0.8, .beta2 = 0.95, .weight_decay = 0.1});
    check_same<Adam<float>>({.epsilon = 1e-3, .storage = storage}, AdamOptions{.epsilon = 1e-3, .storage = storage});
    check_same<Sgd<float>>({.kind = OptimiserKind::sgd, .momentum = 0.7, .weight_decay = 0.1, .storage = storage},
                           SgdOptions{.momentum = 0.7, .weight_decay = 0.1, .storage = storage});
    check_same<Lamb<float>>({.kind = OptimiserKind::lamb, .beta1 = 0.8, .beta2 = 0.99},
                            LambOptions{.beta1 = 0.8, .beta2 = 0.99, .weight_decay = 0.0});
}

TEST_CASE("an optimiser chosen at run time takes groups, and a recipe's learning rates for its kind") {
    const ParameterFacts hidden{.role = ParameterRole::weight, .fan_in = 64, .fan_out = 64};
    const Recipe recipe = find_recipe("umup-fp32");
    for (const OptimiserKind kind : {OptimiserKind::adam, OptimiserKind::sgd, OptimiserKind::lamb}) {
        Parameter<float> p("p", Shape{64, 64}, hidden), frozen("frozen", Shape{4}, {});
        fill_normal(p.write(), {1, 1});
        fill_zero(frozen.write());
        const AnyOptimiser<float> optimiser({&p, &frozen}, recipe,
                                            {.kind = kind, .groups = {{.pattern = "frozen", .trained = false}}});
        REQUIRE_FALSE(frozen.requires_gradient());
        REQUIRE(optimiser.options().kind == kind);
        REQUIRE(optimiser.settings()[0].learning_rate_factor ==
                parameter_scaling(recipe.parametrisation_rule(), hidden, kind).learning_rate_factor);
    }
}

TEST_CASE("optimisers are found by their names, and errors are of the chosen kind") {
    for (const OptimiserKind kind : {OptimiserKind::adam, OptimiserKind::sgd, OptimiserKind::lamb})
        REQUIRE(parse_optimiser_kind(name(kind)) == kind);
    REQUIRE_THROWS_WITH(parse_optimiser_kind("adagrad"),
                        "optimiser: unknown kind 'adagrad'; expected one of adam, sgd, lamb");
    Parameter<float> p("p", Shape{2}, {});
    REQUIRE_THROWS_WITH((AnyOptimiser<float>({&p}, {.kind = OptimiserKind::sgd, .momentum = 1.0})),
                        "Sgd: momentum is 1; expected a number from 0 to below 1");
}
