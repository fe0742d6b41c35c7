// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/analysis/tracker.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/io/text_table.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/scaling/state.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace unitscale::train {

/// The course of a tensor's rms over the tracked steps.
struct RmsCourse {
    double first = 0.0, largest = 0.0, last = 0.0;

    explicit RmsCourse(const std::vector<analysis::TrackedStep>& steps)
        : first(steps.front().summary.rms), last(steps.back().summary.rms) {
        for (const analysis::TrackedStep& step : steps) largest = std::max(largest, step.summary.rms);
    }
};

/// A layer's product that the recipe leaves in high precision while it rounds others, with the product's operands.
struct CriticalProduct {
    std::string path{};  ///< the product's path
    std::string input{}, weight{};
    RmsCourse input_rms, weight_rms;
    std::uint64_t first_step = 0, last_step = 0;
};

/// The critical products that were tracked, in model order.
/// In u-µP's FP8 scheme they have operands that grow in training (attention's `out`, the feed-forward's `down`)
/// or decide the loss (the readout). In other recipes they are the products that the recipe's own rules leave out.
/// A recipe that rounds every product, or none, has no critical products.
/// `state` is the state that the run's tape used. Test: tests/train/critical_tensors_test.cpp
[[nodiscard]] inline std::vector<CriticalProduct> critical_products(const analysis::Track& track,
                                                                    const ScalingState& state) {
    std::set<std::string> unrounded;
    bool any_rounded = false;
    for (const ScalingState::Product& product : state.products()) {
        const ProductFormats& formats = product.formats;
        if (formats.any()) any_rounded = true;
        else unrounded.insert(state.path(product.site));
    }
    std::vector<CriticalProduct> result;
    if (!any_rounded) return result;
    for (const analysis::TrackedTensor& product : track.tensors) {
        if (product.is_parameter() || product.index != 0 || product.inputs.size() < 2 ||
            !unrounded.contains(product.path))
            continue;
        const analysis::TrackedTensor &input = track.tensors[product.inputs[0]],
                                      &weight = track.tensors[product.inputs[1]];
        if (!weight.is_parameter() || input.value.steps.empty() || weight.value.steps.empty()) continue;
        result.push_back({.path = product.path,
                          .input = input.label(),
                          .weight = weight.label(),
                          .input_rms = RmsCourse(input.value.steps),
                          .weight_rms = RmsCourse(weight.value.steps),
                          .first_step = input.value.steps.front().step,
                          .last_step = input.value.steps.back().step});
    }
    return result;
}

/// A table of critical products, a line each. For input and weight it gives the rms in the first tracked step,
/// the largest rms, and the rms in the last step. Without products the table is empty.
[[nodiscard]] inline std::string critical_table(const std::vector<CriticalProduct>& products) {
    if (products.empty()) return {};
    const std::string first = concatenate("step ", products.front().first_step),
                      last = concatenate("step ", products.front().last_step);
    std::vector<std::vector<std::string>> rows = {{"product left in high precision", "input's rms: " + first, "largest",
                                                   last, "weight's rms: " + first, "largest", last}};
    for (const CriticalProduct& one : products) {
        std::vector<std::string> row{one.path};
        for (const RmsCourse* course : {&one.input_rms, &one.weight_rms})
            for (const double rms : {course->first, course->largest, course->last})
                row.push_back(io::cell("%.3g", rms));
        rows.push_back(std::move(row));
    }
    return io::text_table(rows);
}

}  // namespace unitscale::train
