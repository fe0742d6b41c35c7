// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/scaling/operand_rule.hpp>
#include <unitscale/scaling/product_rule.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/scaling/state.hpp>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

// The recipe of a model whose weights have become codes after training.
namespace unitscale::train {

/// Rules for the operands of y = x w^T. Empty: the recipe's own.
struct ForwardRules {
    std::optional<OperandRule> activation{};  ///< of x; a rule without an element: x is not rounded
    std::optional<OperandRule> weight{};      ///< of w; where w is kept as codes, the rule that made them
};

/// The module of the op at a site: its path without the op's name.
[[nodiscard]] inline std::string module_path(const std::string& site_path) {
    const std::size_t end = site_path.rfind('/');
    return end == std::string::npos ? std::string() : site_path.substr(0, end);
}

/// Whether the op can read its weight as codes. Convolutions, whose products are linear ones too, cannot.
[[nodiscard]] inline bool reads_coded_weight(std::string_view op) noexcept { return op == "linear" || op == "readout"; }

/// The recipe with other rules for x and w in the forward products of a kind: linear layers or readouts. Products of
/// gradients keep their rules, and convolutions keep all of theirs.
/// `state`: of a tape that has run the model under the recipe, so that it knows the products.
/// Error: the recipe rotates the operands of such a product or limits its sums; weights as codes have neither.
/// Test: tests/train/quantised_recipe_test.cpp
[[nodiscard]] inline Recipe with_forward_rules(Recipe recipe, ProductKind kind, const ForwardRules& rules,
                                               const ScalingState& state) {
    const auto own_kind = [kind](const auto& product) { return product.kind == kind; };
    for (const ScalingState::Product& product : state.products()) {
        if (!own_kind(product) || !reads_coded_weight(state.op(product.site))) continue;
        constexpr OperandSlot w = OperandSlot::forward_w;
        check(!product.formats.rotation(w) && !product.formats.sums(w), "quantised recipe: ", state.path(product.site),
              ' ', product.formats.rotation(w) ? "rotates its operands" : "limits its sums", " under ", recipe.name,
              "; expected neither where weights are codes");
    }
    if (!rules.activation && !rules.weight) return recipe;
    recipe.products.insert(recipe.products.begin(), ProductRule{.kind = kind});  // where no rule of the recipe holds
    for (ProductRule& product : recipe.products) {
        if (!own_kind(product)) continue;
        if (rules.activation) product.formats.set(OperandSlot::forward_x, *rules.activation);
        if (rules.weight) product.formats.set(OperandSlot::forward_w, *rules.weight);
    }
    for (const ScalingState::Product& product : state.products())
        if (own_kind(product) && !reads_coded_weight(state.op(product.site)))
            recipe.products.push_back(
                {.kind = kind, .pattern = module_path(state.path(product.site)), .formats = product.formats});
    check_recipe(recipe);
    return recipe;
}

}  // namespace unitscale::train
