// SPDX-License-Identifier: MIT
#include <unitscale/analysis/bootstrap.hpp>

#include "support/catch.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

using namespace unitscale;
using analysis::bootstrap_interval;

TEST_CASE("bootstrap: the interval of an accuracy is the binomial one") {
    // 400 answers, 30 % of them right: the mean has the deviation (0.3 x 0.7 / 400)^1/2.
    std::vector<double> right(400, 0.0);
    for (std::size_t i = 0; i < 120; ++i) right[i] = 1.0;
    const double deviation = std::sqrt(0.3 * 0.7 / 400.0);
    const auto interval = bootstrap_interval(right, {.resamples = 20'000});
    CHECK(interval.low == Approx(0.3 - 1.96 * deviation).margin(0.003));
    CHECK(interval.high == Approx(0.3 + 1.96 * deviation).margin(0.003));
    const auto narrow = bootstrap_interval(right, {.level = 0.5, .resamples = 20'000});
    CHECK(narrow.low == Approx(0.3 - 0.6745 * deviation).margin(0.003));
    CHECK(narrow.high == Approx(0.3 + 0.6745 * deviation).margin(0.003));
}

TEST_CASE("bootstrap: an interval of 90 % holds the true mean in about 90 of 100 samples") {
    std::size_t held = 0;
    constexpr std::uint64_t samples = 1000;
    for (std::uint64_t sample = 0; sample < samples; ++sample) {
        std::vector<double> values(60);
        for (std::size_t i = 0; i < values.size(); ++i) values[i] = 2.0 + random_normal({11, sample}, i);
        const auto interval = bootstrap_interval(values, {.level = 0.9, .resamples = 200, .seed = sample});
        held += interval.low <= 2.0 && 2.0 <= interval.high ? std::size_t{1} : std::size_t{0};
    }
    CHECK(held > 860);  // the percentile interval of 60 values is a little narrow; the deviation of the count is 10
    CHECK(held < 930);
}

TEST_CASE("bootstrap: equal values have no spread; equal seeds give equal bounds") {
    CHECK(bootstrap_interval(std::vector<double>(7, 0.5)) == analysis::Interval{0.5, 0.5});
    CHECK(bootstrap_interval(std::vector<double>{3.0}) == analysis::Interval{3.0, 3.0});
    const std::vector<double> values{0.0, 1.0, 0.25, 0.75, 2.0};
    CHECK(bootstrap_interval(values, {.seed = 3}) == bootstrap_interval(values, {.seed = 3}));
    CHECK_FALSE(bootstrap_interval(values, {.seed = 3}) == bootstrap_interval(values, {.seed = 4}));
    const auto one = bootstrap_interval(values, {.resamples = 1});
    CHECK(one.low == one.high);
}

TEST_CASE("bootstrap: no values, values that are not finite and bad options are errors") {
    const std::vector<double> good{1.0, 2.0}, bad{1.0, std::numeric_limits<double>::quiet_NaN()};
    CHECK_THROWS_WITH(bootstrap_interval({}), "bootstrap_interval: no values");
    CHECK_THROWS_WITH(bootstrap_interval(bad), "bootstrap_interval: values[1] is nan; expected a finite number");
    for (const double level : {0.0, 1.0})
        CHECK_THROWS_WITH(bootstrap_interval(good, {.level = level}),
                          Catch::StartsWith("bootstrap_interval: level is ") &&
                              Catch::EndsWith("; expected a number between 0 and 1"));
    CHECK_THROWS_WITH(bootstrap_interval(good, {.resamples = 0}),
                      "bootstrap_interval: resamples is 0; expected at least 1");
}
