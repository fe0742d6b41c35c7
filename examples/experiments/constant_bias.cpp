// SPDX-License-Identifier: MIT
#include "experiments/constant_bias.hpp"

#include <unitscale/base/error.hpp>

#include <charconv>
#include <cstddef>
#include <string_view>
#include <system_error>

namespace unitscale::experiments {

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

Recipe with_constant_bias(Recipe recipe, int bias) {
    for (ProductRule& rule : recipe.products)
        for (ScaleRule* scale :
             {&rule.formats.activation_scale, &rule.formats.weight_scale, &rule.formats.gradient_scale})
            scale->bias = bias;
    return recipe;
}

}  // namespace unitscale::experiments
