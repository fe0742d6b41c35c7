// SPDX-License-Identifier: MIT
#include <unitscale/optim/weight_decay.hpp>

#include "support/catch.hpp"

using namespace unitscale::optim;

TEST_CASE("coupled decay takes lr wd, independent decay wd times the schedule's share, a penalty nothing") {
    REQUIRE(decay_share(WeightDecay::coupled, 0.1, 0.02, 0.5) == Approx(0.002).epsilon(1e-15));
    REQUIRE(decay_share(WeightDecay::independent, 0.1, 0.02, 0.5) == Approx(0.05).epsilon(1e-15));
    REQUIRE(decay_share(WeightDecay::gradient, 0.1, 0.02, 0.5) == 0.0);
}

TEST_CASE("only independent decay needs the peak of the learning rate") {
    REQUIRE(schedule_share("Adam", WeightDecay::independent, 0.25, 0.5) == 0.5);
    REQUIRE(schedule_share("Adam", WeightDecay::independent, 0.5, 0.5) == 1.0);
    REQUIRE(schedule_share("Adam", WeightDecay::coupled, 0.25, 0.0) == 1.0);
    REQUIRE_THROWS_WITH(
        schedule_share("Adam", WeightDecay::independent, 0.5, 0.25),
        "Adam: learning rate 0.5 is above peak_learning_rate 0.25, which independent weight decay divides by");
}
