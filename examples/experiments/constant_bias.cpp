// SPDX-License-Identifier: MIT
#include "experiments/constant_bias.hpp"

#include <unitscale/base/error.hpp>
#include <unitscale/scaling/operand_rule.hpp>
#include <unitscale/scaling/tensor_scale.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <optional>
#include <string_view>
#include <system_error>

namespace unitscale::experiments {

namespace {

/// Calls use(scale) for the scale of every operand that is rounded with a constant one.
template <class AnyRecipe, class Use>
void for_constant_scales(AnyRecipe& recipe, const Use& use) {
    for (auto& rule : recipe.products) {
        auto& formats = rule.formats;
        const auto visit = [&](const std::optional<Quantiser>& element, auto& scale) {
            if (element && scale.source == ScaleSource::constant) use(scale);
        };
        visit(formats.activation, formats.activation_scale);
        visit(formats.weight, formats.weight_scale);
        visit(formats.gradient, formats.gradient_scale);
        for (auto& own : formats.slots)
            if (own) visit(own->element, own->scale);
    }
}

}  // namespace

std::vector<int> bias_range(const char* option, const std::string& text) {
    const std::string_view whole = text;
    const auto dots = whole.find("..");
    int low = 0, high = -1;
    const auto read = [](std::string_view part, int& number) {
        const auto end = std::from_chars(part.data(), part.data() + part.size(), number);
        return end.ec == std::errc() && end.ptr == part.data() + part.size();
    };
    check(dots != whole.npos && read(whole.substr(0, dots), low) && read(whole.substr(dots + 2), high) && low <= high &&
              low >= -64 && high <= 64,
          option, ": is '", text, "'; expected LOWEST..HIGHEST within -64..64, such as -8..8");
    std::vector<int> result;
    for (int bias = low; bias <= high; ++bias) result.push_back(bias);
    return result;
}

std::string bias_range_text(const std::vector<int>& biases) {
    std::string text;
    for (std::size_t first = 0, last = 0; first < biases.size(); first = last + 1) {
        for (last = first; last + 1 < biases.size() && biases[last + 1] == biases[last] + 1;) ++last;
        text += concatenate(first == 0 ? "" : ",", biases[first]);
        if (last > first) text += concatenate("..", biases[last]);
    }
    return text;
}

std::vector<int> constant_biases(const Recipe& recipe) {
    std::vector<int> biases;
    for_constant_scales(recipe, [&](const ScaleRule& scale) { biases.push_back(scale.bias); });
    std::sort(biases.begin(), biases.end());
    biases.erase(std::unique(biases.begin(), biases.end()), biases.end());
    return biases;
}

Recipe with_constant_bias(Recipe recipe, int bias) {
    check(!constant_biases(recipe).empty(), "constant bias: no operand of the recipe ", recipe.name,
          " has a constant scale; expected one, as fp8-cscale has");
    for_constant_scales(recipe, [&](ScaleRule& scale) { scale.bias = bias; });
    return recipe;
}

}  // namespace unitscale::experiments
