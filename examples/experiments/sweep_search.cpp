// SPDX-License-Identifier: MIT
#include "experiments/sweep_search.hpp"

#include <unitscale/base/error.hpp>
#include <unitscale/base/random.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <string>
#include <utility>

namespace unitscale::experiments {

namespace {

/// Every combination of the values of the axes at `places`, the last varied fastest, in copies of `base`.
std::vector<SweepPoint> combinations(const SweepSpace& space, const SweepPoint& base,
                                     const std::vector<std::size_t>& places) {
    std::vector<SweepPoint> points = {base};
    for (const std::size_t place : places) {
        std::vector<SweepPoint> next;
        for (const SweepPoint& point : points)
            for (const std::string& value : space.axes[place].values) {
                next.push_back(point);
                next.back()[place] = value;
            }
        points = std::move(next);
    }
    return points;
}

/// The points that differ from `base` on one axis.
std::vector<SweepPoint> line_through(const SweepSpace& space, const SweepPoint& base, std::size_t place) {
    return combinations(space, base, {place});
}

/// The names and sizes of every condition; hyperparameters are left empty.
std::vector<SweepPoint> conditions_of(const SweepSpace& space) {
    SweepPoint base(space.axes.size());
    if (!space.sizes_alone) return combinations(space, base, space.places(true));
    std::vector<std::size_t> names, sizes;
    for (const std::size_t place : space.places(true)) {
        const SweepParameter& parameter = space.axes[place].parameter;
        (parameter.has_names() ? names : sizes).push_back(place);
        if (!parameter.has_names()) base[place] = number_text(static_cast<double>(space.run.*parameter.size));
    }
    std::vector<SweepPoint> points;
    for (const SweepPoint& point : combinations(space, base, names)) {
        points.push_back(point);
        for (const std::size_t place : sizes)
            for (SweepPoint& other : line_through(space, point, place))
                if (other != point) points.push_back(std::move(other));
    }
    return points;
}

/// One of the axis' values, or a draw from its interval in four digits. The logarithm of the draw is uniform.
std::string random_value(const SweepAxis& axis, std::uint64_t seed, std::uint64_t draw) {
    const double share = uniform(random_word({seed, hash_name(axis.name())}, draw));
    if (!axis.is_interval())
        return axis.values[static_cast<std::size_t>(share * static_cast<double>(axis.values.size()))];
    char digits[32];
    std::snprintf(digits, sizeof digits, "%.4g", axis.low * std::pow(axis.high / axis.low, share));
    return number_text(std::strtod(digits, nullptr));
}

}  // namespace

std::optional<std::size_t> best_point(const std::vector<SweepPoint>& points, const PointLoss& loss) {
    std::optional<std::size_t> best;
    double least = 0.0;
    for (std::size_t i = 0; i < points.size(); ++i) {
        const double value = loss(points[i]);
        if (std::isnan(value)) return std::nullopt;
        if (!std::isfinite(value) || (best && value >= least)) continue;
        best = i;
        least = value;
    }
    return best;
}

std::vector<SweepPoint> sweep_conditions(const SweepSpace& space) {
    std::vector<SweepPoint> points = conditions_of(space);
    for (SweepPoint& point : points) {
        LanguageRunOptions options = space.run;
        for (const std::size_t place : space.places(true))
            if (space.axes[place].parameter.has_names()) space.axes[place].parameter.set_name(options, point[place]);
        for (const std::size_t place : space.places(false))
            point[place] = SweepSpace::default_value(space.axes[place].parameter, options);
    }
    return points;
}

IndependentSearch independent_search(const SweepSpace& space, const SweepPoint& base, const PointLoss& loss) {
    const std::size_t rate = *space.rate();
    IndependentSearch search{.rates = line_through(space, base, rate)};
    const auto best = best_point(search.rates, loss);
    if (!best) return search;
    search.best_rate = search.rates[*best];
    SweepPoint combined = *search.best_rate;
    bool known = true;
    for (const std::size_t place : space.places(false)) {
        if (place == rate) continue;
        std::vector<SweepPoint> line = line_through(space, *search.best_rate, place);
        search.multipliers.insert(search.multipliers.end(), line.begin(), line.end());
        line.insert(line.begin(), *search.best_rate);
        const auto of_line = best_point(line, loss);
        known = known && of_line;
        if (of_line) combined[place] = line[*of_line][place];
    }
    if (known) search.combined = combined;
    return search;
}

std::vector<SweepPoint> upward_search(const SweepSpace& space, const SweepPoint& base, double worse_by,
                                      const PointLoss& loss) {
    const std::size_t place = *space.rate();
    std::vector<SweepPoint> rates = line_through(space, base, place);
    const auto rate = [&](const SweepPoint& point) { return std::strtod(point[place].c_str(), nullptr); };
    std::sort(rates.begin(), rates.end(), [&](const SweepPoint& a, const SweepPoint& b) { return rate(a) < rate(b); });
    double best = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < rates.size(); ++i) {
        const double value = loss(rates[i]);
        const bool goes_on = std::isfinite(value) && value <= best + worse_by;
        if (!goes_on) rates.resize(i + 1);
        best = std::min(best, value);
    }
    return rates;
}

std::vector<SweepPoint> sweep_points(const SweepSpace& space, const SweepSearch& search, const PointLoss& loss) {
    const bool draws = search.strategy == SweepStrategy::random;
    check(!draws || (search.points >= 1 && search.points <= 100000), "--points: is ", search.points,
          "; expected a number from 1 to 100000");
    for (const SweepAxis& axis : space.axes)
        if (axis.is_interval() && !draws)
            fail("--axis ", axis.name(), ": is an interval, which random search draws from; expected values, such as ",
                 number_text(axis.low), ':', number_text(axis.high), ":x2");
    if (search.strategy == SweepStrategy::independent)
        check(space.rate().has_value(),
              "--strategy: an independent search begins with the learning rate; expected --axis lr=...");
    const std::vector<std::size_t> searched = space.places(false);
    if (search.strategy == SweepStrategy::upwards) {
        check(std::isfinite(search.worse_by) && search.worse_by >= 0.0, "--worse-by: is ", search.worse_by,
              "; expected 0 or more");
        check(space.rate().has_value(), "--strategy: an upward search tries learning rates; expected --axis lr=...");
        for (const std::size_t place : searched)
            check(place == space.rate(), "--strategy: an upward search tries learning rates only; --axis ",
                  space.axes[place].name(), " is neither one nor a condition: ", sweep_parameter_names(true));
    }
    std::vector<SweepPoint> points;
    const auto add = [&](const std::vector<SweepPoint>& more) {
        for (const SweepPoint& point : more)
            if (std::find(points.begin(), points.end(), point) == points.end()) points.push_back(point);
    };
    for (const SweepPoint& base : sweep_conditions(space)) {
        switch (search.strategy) {
            case SweepStrategy::grid:
                add(combinations(space, base, searched));
                break;
            case SweepStrategy::line:
                add({base});
                for (const std::size_t place : searched) add(line_through(space, base, place));
                break;
            case SweepStrategy::random: {
                // Further draws replace repeated values, as long as other points remain.
                const std::size_t wanted = points.size() + search.points;
                for (std::uint64_t draw = 0; points.size() < wanted && draw < 20 * search.points; ++draw) {
                    SweepPoint point = base;
                    for (const std::size_t place : searched)
                        point[place] = random_value(space.axes[place], search.seed, draw);
                    add({point});
                }
                break;
            }
            case SweepStrategy::upwards:
                add(upward_search(space, base, search.worse_by, loss));
                break;
            case SweepStrategy::independent: {
                const IndependentSearch stages = independent_search(space, base, loss);
                add(stages.rates);
                add(stages.multipliers);
                if (stages.combined) add({*stages.combined});
                break;
            }
        }
    }
    return points;
}

}  // namespace unitscale::experiments
