// SPDX-License-Identifier: MIT
#include "experiments/sweep_settings.hpp"

#include <unitscale/base/error.hpp>
#include <unitscale/io/text_table.hpp>

#include "experiments/sweep_page.hpp"
#include "experiments/sweep_search.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

namespace unitscale::experiments {

std::optional<RecipeSettings> recipe_settings(const SweepResults& results) {
    const SweepSpace& space = results.space;
    const auto recipe = space.find("recipe");
    if (!recipe) return std::nullopt;
    std::vector<std::size_t> others = space.places(true);
    std::erase(others, *recipe);
    std::vector<SweepPoint> settings;
    for (const SweepPoint& condition : sweep_conditions(space))
        if (std::none_of(settings.begin(), settings.end(),
                         [&](const SweepPoint& known) { return SweepResults::same(known, condition, others); }))
            settings.push_back(condition);
    const std::vector<std::string>& recipes = space.axes[*recipe].values;
    if (recipes.size() < 2 || settings.size() < 3) return std::nullopt;
    RecipeSettings table{.recipes = recipes};
    const std::vector<std::string>& groups = space.axes[others.front()].values;
    for (const SweepPoint& setting : settings) {
        table.settings.push_back(space.text(setting, &others));
        const auto place = std::find(groups.begin(), groups.end(), setting[others.front()]);
        table.groups.push_back(static_cast<std::size_t>(place - groups.begin()));
    }
    for (const std::string& name : recipes) {
        std::vector<double>& losses = table.losses.emplace_back();
        for (SweepPoint point : settings) {
            point[*recipe] = name;
            const PointResult* const best = results.best(point);
            const bool any = std::any_of(results.points.begin(), results.points.end(), [&](const PointResult& result) {
                return SweepResults::same(result.point, point, space.places(true));
            });
            losses.push_back(best != nullptr ? best->loss
                             : any           ? std::numeric_limits<double>::infinity()
                                             : std::numeric_limits<double>::quiet_NaN());
        }
    }
    return table;
}

std::vector<std::string> short_names(const std::vector<std::string>& recipes) {
    std::vector<std::string> names;
    for (const std::string& recipe : recipes) names.push_back(recipe.substr(0, recipe.find(':')));
    return std::set<std::string>(names.begin(), names.end()).size() == names.size() ? names : recipes;
}

RecipeAgainst against(const std::vector<double>& losses, const std::vector<double>& others) {
    RecipeAgainst result;
    std::vector<double> differences;
    for (std::size_t i = 0; i < losses.size(); ++i) {
        if (std::isnan(losses[i]) || std::isnan(others[i]) || (std::isinf(losses[i]) && std::isinf(others[i])))
            continue;
        ++result.known;
        if (losses[i] <= 1.01 * others[i]) ++result.as_good;
        differences.push_back(std::isinf(others[i]) ? -1.0 : losses[i] / others[i] - 1.0);
    }
    result.median = median(std::move(differences));
    return result;
}

SweepTable settings_table(const SweepResults& results) {
    SweepTable table{.title = "least loss of each recipe in each setting"};
    const auto found = recipe_settings(results);
    if (!found) return table;
    table.rows.push_back({""});
    for (const std::string& name : short_names(found->recipes)) table.rows[0].push_back(name);
    for (std::size_t i = 0; i < found->settings.size(); ++i) {
        std::vector<std::string>& row = table.rows.emplace_back();
        row.push_back(found->settings[i]);
        for (const std::vector<double>& losses : found->losses)
            row.push_back(std::isnan(losses[i]) ? "-" : loss_text(losses[i]));
    }
    return table;
}

SweepTable against_table(const SweepResults& results) {
    SweepTable table{
        .title = "each row's recipe against each column's: settings at most 1 % worse, median difference of losses"};
    const auto found = recipe_settings(results);
    if (!found) return table;
    const std::vector<std::string> names = short_names(found->recipes);
    table.rows.push_back({""});
    table.rows[0].insert(table.rows[0].end(), names.begin(), names.end());
    for (std::size_t i = 0; i < names.size(); ++i) {
        std::vector<std::string>& row = table.rows.emplace_back();
        row.push_back(names[i]);
        for (std::size_t j = 0; j < names.size(); ++j) {
            const RecipeAgainst beside = against(found->losses[i], found->losses[j]);
            row.push_back(
                i == j || beside.known == 0
                    ? "-"
                    : concatenate(beside.as_good, " of ", beside.known, ", ",
                                  std::isinf(beside.median) ? "failed" : io::cell("%+.2f %%", 100.0 * beside.median)));
        }
    }
    return table;
}

report::Plot settings_plot(const SweepResults& results) {
    report::Plot plot{.label = "least loss of each recipe in each setting"};
    const auto found = recipe_settings(results);
    if (!found) return plot;
    for (std::size_t i = 0; i < found->settings.size(); ++i) {
        // Settings of one group share a colour; three of them in turn have different dashes.
        const auto before = static_cast<std::size_t>(std::count(
            found->groups.begin(), found->groups.begin() + static_cast<std::ptrdiff_t>(i), found->groups[i]));
        report::PlotCurve curve{
            .name = found->settings[i], .look = 8 * (before % 3) + found->groups[i] % 8, .dots = true};
        for (std::size_t r = 0; r < found->recipes.size(); ++r) {
            const double loss = found->losses[r][i];
            curve.x.push_back(static_cast<double>(r));
            curve.y.push_back(std::isfinite(loss) ? loss : std::numeric_limits<double>::quiet_NaN());
        }
        if (std::any_of(curve.y.begin(), curve.y.end(), [](double loss) { return std::isfinite(loss); }))
            plot.curves.push_back(std::move(curve));
    }
    const std::vector<std::string> names = short_names(found->recipes);
    plot.x = {.low = -0.3, .high = static_cast<double>(names.size()) - 0.7, .label = "recipe"};
    for (std::size_t r = 0; r < names.size(); ++r)
        plot.x.ticks.push_back({static_cast<double>(r), report::escaped(names[r])});
    plot.y = sweep_loss_axis(plot.curves);
    plot.width = std::max(plot.width, 130.0 * static_cast<double>(names.size()));
    return plot;
}

std::string settings_svg(const SweepResults& results, const report::PageSource& source) {
    report::Plot plot = settings_plot(results);
    if (plot.curves.empty()) return "";
    plot.source = source;
    return report::svg_plot(plot);
}

}  // namespace unitscale::experiments
