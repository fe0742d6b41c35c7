// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/report/markup.hpp>

#include "experiments/coordinate_trend.hpp"
#include "experiments/language_run_options.hpp"

#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

namespace unitscale::experiments {

/// The options of `coord_check`: a few steps of training, repeated at several widths.
struct CoordinateCheckOptions {
    /// Shared by all widths. Its recipe, where named, replaces the recipe of the parametrisation. Heads have one size
    /// at every width. The learning rate is constant; empty: a quarter of the recipe's. Its warm-up, evaluations, log,
    /// checkpoints and sample are not used.
    LanguageRunOptions run{
        .recipe = "", .model = "llama", .depth = 2, .seq = 64, .batch = 8, .steps = 8, .head_size = 32};
    std::string parametrisation = "umup";  ///< standard, unit, mup or umup, in 32-bit floating point
    std::vector<std::size_t> widths = {64, 128, 256, 512};
    std::size_t seeds = 3;  ///< `run.seed` and the seeds after it
    std::string out = "coordinates.html";
    report::PageSource source{};  ///< of the page

    /// The options of the run at a width, with its recipe named. Error: an unknown parametrisation.
    [[nodiscard]] LanguageRunOptions at(std::size_t width) const;

    /// Checks all options but the recipe and the data; their readers check them. Error: it names the option.
    void validate() const;
};

/// Trains one width with one seed for the options' steps: a LanguageRun at a constant rate, without evaluation.
/// Every layer is measured before the first step and after each. Each step has its own batch, equal at every width.
/// The measured batch is none of them: it holds windows of the validation text.
/// RunFailed: a loss or a gradient norm is not finite.
[[nodiscard]] WidthCoordinates measure_width(LanguageRunOptions options);

/// Trains every width for a few steps and reports how the layers' outputs and their changes depend on the width. Tables
/// go to `text` and a page to `out`. The last line is `verdict: flat`, `verdict: growing` or `verdict: shrinking` (see
/// `judge`). The criterion of µP: if the best learning rate is equal at every width, each step changes every layer by
/// an amount that does not depend on the width. Errors: the errors of the options, the recipe and the data, before any
/// training. RunFailed: a loss is not finite. Reference: Yang et al. 2022, arXiv:2203.03466, appendix D.1. Test:
/// tests/experiments/coordinate_check_test.cpp
void coordinate_check(CoordinateCheckOptions options, std::FILE* text);

}  // namespace unitscale::experiments
