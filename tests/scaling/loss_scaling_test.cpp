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
    CHECK(name(LossScaleKind::automatic) == "automatic");
}
