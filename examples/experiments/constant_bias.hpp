// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/scaling/recipe.hpp>

#include <string>
#include <vector>

// One constant bias for the operands of products (FP8-CSCALE), tried over a range.
namespace unitscale::experiments {

/// The biases of a text LOWEST..HIGHEST, such as -8..8. Error, with the option's name in front: any other text.
/// Test: tests/experiments/constant_bias_test.cpp
[[nodiscard]] std::vector<int> bias_range(const char* option, const std::string& text);

/// Rising biases as text, in ranges as far as they go: -3..-1,2,4..5.
[[nodiscard]] std::string bias_range_text(const std::vector<int>& biases);

/// The biases of all operands that are rounded with a constant scale, rising, each once.
[[nodiscard]] std::vector<int> constant_biases(const Recipe& recipe);

/// The recipe with this bias for every operand that is rounded with a constant scale: activations, weights and
/// gradients of all products, and operands with a rule of their own. Error: the recipe has no such operand.
[[nodiscard]] Recipe with_constant_bias(Recipe recipe, int bias);

}  // namespace unitscale::experiments
