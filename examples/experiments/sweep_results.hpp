// SPDX-License-Identifier: MIT
#pragma once

#include "experiments/layer_rms.hpp"
#include "experiments/sweep_search.hpp"
#include "experiments/sweep_space.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

// Findings from the losses of a sweep: medians over seeds, the best values, the optimum of each axis, and transfer
// errors.
// A failed run counts as an infinite loss.
namespace unitscale::experiments {

/// One ended run of a sweep. Losses in bits per character.
struct SweepRun {
    SweepPoint point{};
    std::uint64_t seed = 1;
    std::string recipe_fingerprint{};
    bool failed = false;   ///< as in TrainedRun
    std::string reason{};  ///< of the failure
    double train_loss = 0.0, valid_loss = 0.0, tokens_per_s = 0.0, seconds = 0.0;
    std::optional<double> test_loss{};         ///< if the sweep has a test part and the run did not fail
    std::optional<double> zeros{}, skipped{};  ///< if a loss scale is searched: shares (`gradient_table`)
    std::vector<LayerRms> rms{};               ///< of the last step, if the sweep records them and the run ended
};

/// The median: the middle number, or the mean of the middle two. NaN for no numbers.
[[nodiscard]] double median(std::vector<double> numbers);

/// The runs of a point.
struct PointResult {
    SweepPoint point{};
    std::vector<SweepRun> runs{};        ///< ended runs
    std::vector<std::uint64_t> seeds{};  ///< requested seeds
    double loss = 0.0;                   ///< median over the ended runs; infinite: most failed

    [[nodiscard]] bool whole() const noexcept { return runs.size() == seeds.size(); }
    [[nodiscard]] std::size_t failed() const;
    /// The median of a measurement over the runs that hold it; NaN if none does.
    [[nodiscard]] double median_of(std::optional<double> SweepRun::*measured) const;
    /// The least and the largest loss of the runs that did not fail.
    [[nodiscard]] std::pair<double, double> range() const;
};

/// The results of a sweep so far: every point with an ended run, in the order of the search.
struct SweepResults {
    SweepSpace space{};
    SweepSearch search{};
    std::vector<PointResult> points{};

    [[nodiscard]] const PointResult* find(const SweepPoint& point) const;
    /// The loss as a search needs it: NaN until all seeds of the point have ended.
    [[nodiscard]] double loss(const SweepPoint& point) const;
    /// The best point with the names and sizes of `condition`, or null if none of them has a finite loss.
    [[nodiscard]] const PointResult* best(const SweepPoint& condition) const;
    /// One point of each combination of names and sizes.
    [[nodiscard]] std::vector<SweepPoint> conditions() const;
    [[nodiscard]] static bool same(const SweepPoint& a, const SweepPoint& b, const std::vector<std::size_t>& places);
};

/// Points that differ only on the free axes of the slice.
struct SweepSlice {
    std::vector<const PointResult*> points{};  ///< never empty

    [[nodiscard]] const SweepPoint& any() const { return points.front()->point; }
};

/// The slices along the axes `free`: one for each combination of the names and sizes outside `free`. Among slices that
/// differ in other hyperparameters, the one with the most points is taken, then the one with the least loss. On a grid
/// this slice contains the best point. In a line or independent search it is the searched line.
[[nodiscard]] std::vector<SweepSlice> sweep_slices(const SweepResults& results, const std::vector<std::size_t>& free);

/// The extremum of the parabola through three points with a < b < c. If they lie on a line: b.
[[nodiscard]] double parabola_vertex(double a, double fa, double b, double fb, double c, double fc);

/// The least loss along an axis, and its place in octaves (SweepParameter::octaves).
struct AxisOptimum {
    enum class Place { inside, low_edge, high_edge, beside_failed, nowhere } place = Place::inside;
    /// Of the vertex of the parabola through the best point and its neighbours, or of the best point.
    double octaves = 0.0;
    double loss = 0.0;  ///< the least one measured

    /// A remark about the place; empty for an optimum between two neighbours.
    [[nodiscard]] std::string note() const;
};

/// The optimum of a curve of (octaves of the value, loss); nothing if no loss is finite.
/// The vertex of the parabola is clamped to the neighbours. At the end of the curve, or beside an infinite loss, the
/// optimum is the best point itself. If all losses are equal, the place is `nowhere`: the recipe ignores the
/// hyperparameter.
[[nodiscard]] std::optional<AxisOptimum> axis_optimum(std::vector<std::pair<double, double>> curve);

/// The optimum along one axis of a slice.
[[nodiscard]] std::optional<AxisOptimum> axis_optimum(const SweepResults& results, const SweepSlice& slice,
                                                      std::size_t place);

/// Losses by the values of two axes. NaN: not known; infinite: failed.
struct LossMap {
    std::string row_name{}, column_name{};
    std::vector<std::string> rows{}, columns{};  ///< in order
    std::vector<std::vector<double>> losses{};   ///< by row

    [[nodiscard]] LossMap transposed() const;
};

/// The map of a slice along two axes.
/// Nothing if an axis has fewer than two values, or if the slice has no more points than a cross.
[[nodiscard]] std::optional<LossMap> loss_map(const SweepResults& results, const SweepSlice& slice,
                                              std::size_t row_axis, std::size_t column_axis);

/// The mean loss from tuning the columns' hyperparameter at another value of the rows' hyperparameter:
///   (f*, t*) = argmin L;   mean over f != f* of  L(f*, argmin_t L(f, t)) - L(f*, t*)
/// Omits rows f without a finite loss, and rows with a best t that is not known at f*. If that t fails at f*, the error
/// is infinite. NaN: no row is left. Reference: Blake et al. 2024, arXiv:2407.17465, algorithm 1.
[[nodiscard]] double transfer_error(const LossMap& map);

/// The least loss to expect from a random search of fewer points.
struct ShorterSearch {
    double loss = 0.0;  ///< mean over the searches that find a finite loss; NaN: none does
    double none = 0.0;  ///< the share of searches with failed points only
};

/// The least loss of `draws` of these losses, drawn without replacement, over all draws. With the N losses in ascending
/// order, loss i from 1 is the least with the probability C(N - i, draws - 1) / C(N, draws). Infinite losses have
/// failed.
/// Error: `draws` is not in 1..N.
[[nodiscard]] ShorterSearch shorter_search(std::vector<double> losses, std::size_t draws);

}  // namespace unitscale::experiments
