// SPDX-License-Identifier: MIT
#include <unitscale/scaling/loss_scaling.hpp>

#include "support/catch.hpp"

#include <limits>

using namespace unitscale;

TEST_CASE("loss scaling: invalid settings are errors that name the field") {
    LossScaling{}.validate();
    LossScaling{.kind = LossScaleKind::automatic, .initial = 1.0, .growth = 1.0, .backoff = 0.9, .interval = 1}
        .validate();
    CHECK_THROWS_WITH((LossScaling{.initial = 0.0}.validate()),
                      "loss_scaling: initial is 0; expected a positive number");
    CHECK_THROWS_WITH((LossScaling{.initial = std::numeric_limits<double>::infinity()}.validate()),
                      "loss_scaling: initial is inf; expected a positive number");
    CHECK_THROWS_WITH((LossScaling{.growth = 0.5}.validate()), "loss_scaling: growth is 0.5; expected at least 1");
    CHECK_THROWS_WITH((LossScaling{.backoff = 1.0}.validate()), "loss_scaling: backoff is 1; expected less than 1");
    CHECK_THROWS_WITH((LossScaling{.interval = 0}.validate()), "loss_scaling: interval is 0; expected at least 1");
    CHECK_THROWS_WITH((LossScaling{.edge = 0.0}.validate()), "loss_scaling: edge is 0; expected a positive number");
    CHECK_THROWS_WITH((LossScaling{.edge = 2.0}.validate()), "loss_scaling: edge is 2; expected at most 1");
    CHECK_THROWS_WITH((LossScaling{.most = -1.0}.validate()), "loss_scaling: most is -1; expected a number in [0,1)");
    CHECK_THROWS_WITH((LossScaling{.most = 1.0}.validate()), "loss_scaling: most is 1; expected a number in [0,1)");
    CHECK_THROWS_WITH((LossScaling{.deviations = -1.0}.validate()),
                      "loss_scaling: deviations is -1; expected a number that is not negative");
    CHECK_THROWS_WITH((LossScaling{.mean_decay = 1.0}.validate()),
                      "loss_scaling: mean_decay is 1; expected a number in (0,1)");
    CHECK_THROWS_WITH((LossScaling{.variance_decay = std::numeric_limits<double>::quiet_NaN()}.validate()),
                      Catch::Contains("loss_scaling: variance_decay is") && Catch::Contains("in (0,1)"));
    LossScaling{.kind = LossScaleKind::histogram, .edge = 1.0, .most = 0.0}.validate();
    LossScaling{.kind = LossScaleKind::log_normal, .deviations = 0.0, .mean_decay = 0.5, .variance_decay = 0.5}
        .validate();
    CHECK(name(LossScaleKind::automatic) == "automatic");
    CHECK(name(LossScaleKind::histogram) == "histogram");
    CHECK(name(LossScaleKind::log_normal) == "log_normal");
}
