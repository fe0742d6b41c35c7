// SPDX-License-Identifier: MIT
#include <unitscale/optim/schedule.hpp>

#include "support/catch.hpp"

#include <cmath>
#include <cstdint>
#include <limits>

using namespace unitscale::optim;

TEST_CASE("the warm-up rises linearly from the first update and has the peak at its last") {
    for (const ScheduleKind kind :
         {ScheduleKind::constant, ScheduleKind::cosine, ScheduleKind::half_life, ScheduleKind::linear}) {
        const Schedule schedule{.kind = kind, .peak = 0.06, .steps = 500, .warmup = 50};
        REQUIRE(schedule.at(1) == Approx(0.06 / 50.0).epsilon(1e-14));
        REQUIRE(schedule.at(25) == Approx(0.03).epsilon(1e-14));
        REQUIRE(schedule.at(50) == 0.06);
        REQUIRE((kind == ScheduleKind::constant ? schedule.at(51) == 0.06 : schedule.at(51) < 0.06));
    }
}

TEST_CASE("without warm-up the first update has the peak") {
    for (const ScheduleKind kind :
         {ScheduleKind::constant, ScheduleKind::cosine, ScheduleKind::half_life, ScheduleKind::linear})
        REQUIRE(Schedule{.kind = kind, .peak = 0.5, .steps = 3}.at(1) == 0.5);
    REQUIRE(Schedule{.kind = ScheduleKind::cosine, .peak = 0.5, .steps = 1}.at(1) == 0.5);
}

TEST_CASE("the cosine falls through the middle to its final share at the last update") {
    const Schedule schedule{.kind = ScheduleKind::cosine, .peak = 2.0, .steps = 110, .warmup = 10};
    REQUIRE(schedule.at(60) == Approx(2.0 * 0.55).epsilon(1e-14));
    REQUIRE(schedule.at(35) == Approx(2.0 * (0.1 + 0.9 * 0.5 * (1.0 + std::sqrt(0.5)))).epsilon(1e-14));
    REQUIRE(schedule.at(110) == Approx(0.2).epsilon(1e-14));
    REQUIRE(Schedule{.kind = ScheduleKind::cosine, .peak = 2.0, .steps = 110, .warmup = 10, .final_share = 0.0}.at(
                110) == Approx(0.0).margin(1e-15));
    for (std::uint64_t t = 11; t <= 110; ++t) REQUIRE(schedule.at(t) < schedule.at(t - 1));
}

TEST_CASE("the linear schedule falls by equal steps to its final share at the last update") {
    const Schedule schedule{.kind = ScheduleKind::linear, .peak = 2.0, .steps = 110, .warmup = 10, .final_share = 0.25};
    REQUIRE(schedule.at(5) == 1.0);
    REQUIRE(schedule.at(10) == 2.0);
    REQUIRE(schedule.at(60) == 1.25);
    REQUIRE(schedule.at(110) == 0.5);
    for (std::uint64_t step = 11; step < 110; ++step)
        REQUIRE(std::abs(schedule.at(step) - schedule.at(step + 1) - 0.015) < 1e-12);
    REQUIRE(Schedule{.kind = ScheduleKind::linear, .peak = 2.0, .steps = 9, .final_share = 0.0}.at(9) == 0.0);
    REQUIRE_THROWS_WITH((Schedule{.kind = ScheduleKind::linear, .final_share = -0.1}.validate()),
                        "schedule: final share is -0.1; expected a number from 0 to 1");
}

TEST_CASE("the half-life halves every so many updates after the peak") {
    const Schedule schedule{
        .kind = ScheduleKind::half_life, .peak = 1.0, .steps = 1000, .warmup = 4, .half_life = 32.0};
    REQUIRE(schedule.at(36) == 0.5);
    REQUIRE(schedule.at(68) == 0.25);
    REQUIRE(schedule.at(20) == Approx(std::sqrt(0.5)).epsilon(1e-14));
}

TEST_CASE("a run may be all warm-up, and a constant stays") {
    const Schedule schedule{.kind = ScheduleKind::cosine, .peak = 1.0, .steps = 4, .warmup = 4};
    REQUIRE(schedule.at(3) == 0.75);
    REQUIRE(schedule.at(4) == 1.0);
    REQUIRE(Schedule{.peak = 0.25, .steps = 1000}.at(1000) == 0.25);
}

TEST_CASE("an invalid schedule is an error of one line") {
    REQUIRE_THROWS_WITH((Schedule{.steps = 10, .warmup = 11}.at(1)),
                        "schedule: warm-up of 11 steps is longer than the run of 10");
    REQUIRE_THROWS_WITH((Schedule{.steps = 0}.validate()), "schedule: steps is 0; expected at least 1");
    REQUIRE_THROWS_WITH((Schedule{.steps = 10}.at(0)), "schedule: step 0 of 10; updates count from 1");
    REQUIRE_THROWS_WITH((Schedule{.steps = 10}.at(11)), "schedule: step 11 of 10; updates count from 1");
    REQUIRE_THROWS_WITH((Schedule{.peak = -0.5}.validate()),
                        "schedule: peak is -0.5; expected a finite number, not negative");
    REQUIRE_THROWS((Schedule{.peak = std::numeric_limits<double>::quiet_NaN()}.validate()));
    REQUIRE_THROWS_WITH((Schedule{.kind = ScheduleKind::cosine, .final_share = 1.5}.validate()),
                        "schedule: final share is 1.5; expected a number from 0 to 1");
    REQUIRE_THROWS_WITH((Schedule{.kind = ScheduleKind::half_life, .half_life = 0.0}.validate()),
                        "schedule: half-life is 0 steps; expected a positive number");
}

TEST_CASE("schedule kinds are found by their names") {
    for (const ScheduleKind kind :
         {ScheduleKind::constant, ScheduleKind::cosine, ScheduleKind::half_life, ScheduleKind::linear})
        REQUIRE(parse_schedule_kind(name(kind)) == kind);
    REQUIRE(name(ScheduleKind::half_life) == "half-life");
    REQUIRE_THROWS_WITH(parse_schedule_kind("step"),
                        "schedule: unknown kind 'step'; expected one of constant, cosine, half-life, linear");
}
