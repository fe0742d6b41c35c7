// SPDX-License-Identifier: MIT
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

// Trends over the width: how the layers' outputs, and their changes in training, grow with the width.
namespace unitscale::experiments {

/// A layer's root mean squares over all its elements: of its output, and of the output's change since the first pass.
struct LayerCoordinate {
    std::string layer{};
    double output = 0.0;
    double change = 0.0;
};

/// The measurements of one width.
struct WidthCoordinates {
    std::size_t width = 0;
    std::vector<std::vector<LayerCoordinate>> steps{};  ///< [step][layer]; step 0 is initialisation
    double first_loss = 0.0, last_loss = 0.0;           ///< training losses, bits per character
};

/// Pools several runs of one width: root mean squares over all their elements, and mean losses.
/// Error: no run; runs that differ in width, steps or layers.
[[nodiscard]] WidthCoordinates pooled(const std::vector<WidthCoordinates>& runs);

/// The trend of a positive quantity over widths.
struct WidthTrend {
    double slope = 0.0;   ///< of log2(quantity) over log2(width), least squares
    double spread = 1.0;  ///< largest over least
};

/// The trend of values at widths. NaN: a value has no logarithm. Error: fewer than two widths.
[[nodiscard]] WidthTrend width_trend(const std::vector<double>& widths, const std::vector<double>& values);

/// The trends of one layer over the widths, at one step.
struct LayerTrend {
    std::string layer{};
    std::vector<double> outputs{}, changes{};  ///< by width
    WidthTrend output{}, change{};
};

/// The layers' trends at a step. Error: fewer than two widths; widths that differ in layers or lack the step.
[[nodiscard]] std::vector<LayerTrend> layer_trends(const std::vector<WidthCoordinates>& measured, std::size_t step);

enum class CoordinateVerdict { flat, growing, shrinking };
[[nodiscard]] constexpr std::string_view name(CoordinateVerdict verdict) noexcept {
    return verdict == CoordinateVerdict::flat      ? "flat"
           : verdict == CoordinateVerdict::growing ? "growing"
                                                   : "shrinking";
}

/// Slopes beyond this one are not flat. In the limit of large widths every quantity of a step goes with a power of the
/// width that is a multiple of 1/2: a sum of `width` aligned terms gives width, a sum of independent terms its root.
/// 1/4 is the border between the power 0 and its nearest neighbour.
inline constexpr double flat_slope = 0.25;

/// A verdict, and the layer that decided it.
struct CoordinateJudgement {
    CoordinateVerdict verdict = CoordinateVerdict::flat;
    std::string layer{};
    double slope = 0.0;
};

/// Judges whether the changes of the layers' outputs depend on the width. The embedding is left out. The layer with the
/// slope farthest from 0 decides: flat within `flat_slope` of 0, growing above, shrinking below. One layer is enough,
/// because a model is trained at one learning rate. A layer with a growing change diverges at some width; a layer with
/// a shrinking change stops learning at some width. The change decides, not the output. Readout weights of u-µP and µP
/// are designed to give logits that fall with width^-1/2 at initialisation, and training compensates for it. The
/// embedding is left out because its output is a row of its table, not a sum over the width. Its change is the update
/// that its learning-rate factor demands; under u-µP this factor is width^-1/2 by design. Error: a change that is 0 or
/// not finite; no layer but the embedding. Test: tests/experiments/coordinate_trend_test.cpp
[[nodiscard]] CoordinateJudgement judge(const std::vector<LayerTrend>& trends);

/// The rule and its finding, in three lines of text.
[[nodiscard]] std::string explain(const CoordinateJudgement& judgement, std::size_t steps);

/// Rows of cells after a header: the layer, its values by width, the slope, and the largest value over the least.
/// `values` and `trend` select outputs or changes.
[[nodiscard]] std::vector<std::vector<std::string>> trend_rows(const std::vector<WidthCoordinates>& measured,
                                                               const std::vector<LayerTrend>& trends,
                                                               std::vector<double> LayerTrend::*values,
                                                               WidthTrend LayerTrend::*trend);

}  // namespace unitscale::experiments
