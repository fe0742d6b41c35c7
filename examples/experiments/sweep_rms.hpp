// SPDX-License-Identifier: MIT
#pragma once

#include "experiments/sweep_results.hpp"
#include "experiments/sweep_table.hpp"

// Tables of the root mean squares that the runs of a sweep recorded in their last step, as figure 20 of
// arXiv:2407.17465 shows them. Test: tests/experiments/sweep_rms_test.cpp
namespace unitscale::experiments {

/// The root mean squares of every layer at the best point of each condition: medians over blocks and seeds.
[[nodiscard]] SweepTable rms_table(const SweepResults& results);

/// How they grow along each size, from best point to best point, and along the learning rate, on its slice. The number
/// is the slope of log2(rms) per doubling.
[[nodiscard]] SweepTable rms_trend_table(const SweepResults& results);

}  // namespace unitscale::experiments
