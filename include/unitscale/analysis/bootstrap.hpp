// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/base/random.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace unitscale::analysis {

struct BootstrapOptions {
    double level = 0.95;           ///< the share of resampled means inside the interval
    std::size_t resamples = 1000;  ///< more give a steadier interval
    std::uint64_t seed = 1;
};

/// Bounds of a number.
struct Interval {
    double low = 0.0, high = 0.0;

    friend bool operator==(const Interval&, const Interval&) = default;
};

/// A confidence interval of the mean of independent values, by the percentile bootstrap:
///   resample r: the mean of n values, each drawn among the n given ones       r = 0 .. resamples - 1
///   low, high:  the quantiles (1 - level) / 2 and (1 + level) / 2 of these means, interpolated linearly
/// The values may be 1 and 0 for right and wrong answers: their mean is an accuracy. Differences of two models on equal
/// questions give the interval of a difference, which is narrower than two intervals suggest.
/// Equal values and options give equal bounds. A draw is a function of (seed, resample, place) alone.
/// Errors: no values; a value that is not finite; a level outside (0,1); no resamples.
/// Reference: Efron 1979, Bootstrap methods: another look at the jackknife, Annals of Statistics 7.
/// Test: tests/analysis/bootstrap_test.cpp
[[nodiscard]] inline Interval bootstrap_interval(std::span<const double> values, const BootstrapOptions& options = {}) {
    check(!values.empty(), "bootstrap_interval: no values");
    for (std::size_t i = 0; i < values.size(); ++i)
        check(std::isfinite(values[i]), "bootstrap_interval: values[", i, "] is ", values[i],
              "; expected a finite number");
    check(options.level > 0.0 && options.level < 1.0, "bootstrap_interval: level is ", options.level,
          "; expected a number between 0 and 1");
    check(options.resamples >= 1, "bootstrap_interval: resamples is 0; expected at least 1");
    std::vector<double> means(options.resamples);
    std::vector<std::uint32_t> words(values.size());
    for (std::size_t r = 0; r < means.size(); ++r) {
        fill_random_words({options.seed, mix(hash_name("bootstrap"), r)}, 0, words);
        double sum = 0.0;
        for (const std::uint32_t word : words) sum += values[word % values.size()];
        means[r] = sum / static_cast<double>(values.size());
    }
    std::sort(means.begin(), means.end());
    const auto quantile = [&](double share) {
        const double place = share * static_cast<double>(means.size() - 1);
        const auto below = static_cast<std::size_t>(place);
        const std::size_t above = std::min(below + 1, means.size() - 1);
        return means[below] + (place - static_cast<double>(below)) * (means[above] - means[below]);
    };
    return {quantile(0.5 - options.level / 2.0), quantile(0.5 + options.level / 2.0)};
}

}  // namespace unitscale::analysis
