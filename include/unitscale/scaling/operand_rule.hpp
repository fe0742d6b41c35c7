// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/formats/accumulate.hpp>
#include <unitscale/formats/quantiser.hpp>
#include <unitscale/formats/rotation.hpp>
#include <unitscale/scaling/tensor_scale.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

// The operands of a linear op's products, and what a recipe does to each of them.
namespace unitscale {

/// The roles of a product's operands.
enum class OperandRole : std::uint8_t { activation, weight, gradient };

inline constexpr std::array<std::string_view, 3> operand_role_names = {"activation", "weight", "gradient"};
[[nodiscard]] constexpr std::string_view name(OperandRole role) noexcept {
    return operand_role_names[static_cast<std::size_t>(role)];
}

/// The operands of the three products of y = x w^T: y itself, the input's gradient dx = dy w, the weight's gradient
/// dw = dy^T x.
enum class OperandSlot : std::uint8_t {
    forward_x,
    forward_w,
    input_gradient_dy,
    input_gradient_w,
    weight_gradient_dy,
    weight_gradient_x
};

inline constexpr std::size_t slot_count = 6;
inline constexpr std::array<std::string_view, slot_count> slot_names = {
    "forward.x", "forward.w", "input_gradient.dy", "input_gradient.w", "weight_gradient.dy", "weight_gradient.x"};
[[nodiscard]] constexpr std::string_view name(OperandSlot slot) noexcept {
    return slot_names[static_cast<std::size_t>(slot)];
}
[[nodiscard]] constexpr OperandRole role_of(OperandSlot slot) noexcept {
    constexpr std::array<OperandRole, slot_count> roles = {OperandRole::activation, OperandRole::weight,
                                                           OperandRole::gradient,   OperandRole::weight,
                                                           OperandRole::gradient,   OperandRole::activation};
    return roles[static_cast<std::size_t>(slot)];
}

/// The names of the three products.
inline constexpr std::array<std::string_view, slot_count / 2> product_names = {"forward", "input_gradient",
                                                                               "weight_gradient"};

/// The names under which a product's site keeps the biases of its operands: roles, then slots with a rule of their own.
inline constexpr std::array<std::string_view, 3 + slot_count> operand_names = [] {
    std::array<std::string_view, 3 + slot_count> names{};
    for (std::size_t i = 0; i < names.size(); ++i) names[i] = i < 3 ? operand_role_names[i] : slot_names[i - 3];
    return names;
}();

/// What is done to one operand of one product: it is scaled, then rounded. Elements in E2M1 with 8 random bits are
/// rounded stochastically by TransformerEngine's formula if their blocks follow its arithmetic.
struct OperandRule {
    std::optional<Quantiser> element{};  ///< empty: not rounded
    ScaleRule scale{};

    /// Elements in blocks that share a scale.
    [[nodiscard]] static OperandRule in_blocks(const BlockFormat& blocks, Rounding rounding = Rounding::nearest_even) {
        return {Quantiser{.format = blocks.element, .rounding = rounding},
                {.source = ScaleSource::amax, .blocks = blocks}};
    }

    friend bool operator==(const OperandRule&, const OperandRule&) = default;
};

/// The formats that a product's operands are rounded to, by role; empty: not rounded. For y = x w the three products
/// are Q_a(x) Q_w(w), dx = Q_g(dy) Q_w(w)^T and dw = Q_a(x)^T Q_g(dy). A matmul of two activations uses `activation`
/// twice. Each operand may be scaled before it is rounded (ScaleRule). `result` rounds the results of the products.
/// `slots` gives single operands another rule.
struct ProductFormats {
    std::optional<Quantiser> activation{};
    std::optional<Quantiser> weight{};
    std::optional<Quantiser> gradient{};
    ScaleRule activation_scale{};
    ScaleRule weight_scale{};
    ScaleRule gradient_scale{};
    std::optional<Quantiser> result{};
    /// Operands with a rule of their own, in place of the rule of their role, which holds in two products.
    std::array<std::optional<OperandRule>, slot_count> slots{};
    /// Rotations of both operands of y, dx and dw along the contracted dimension, before they are scaled. The result
    /// does not change but for rounding. The operands must be in blocks.
    std::array<std::optional<HadamardRotation>, slot_count / 2> rotations{};
    /// How the sums of y, dx and dw are formed; empty: in float. If `run_length` is the length of both operands' blocks,
    /// runs are summed without the blocks' scales (products/limited_matmul.hpp).
    std::array<std::optional<Accumulate>, slot_count / 2> accumulate{};

    [[nodiscard]] OperandRule rule(OperandSlot slot) const {
        const auto& own = slots[static_cast<std::size_t>(slot)];
        return own ? *own : rule(role_of(slot));
    }
    [[nodiscard]] OperandRule rule(OperandRole role) const { return {of(role), scale(role)}; }
    [[nodiscard]] const std::optional<HadamardRotation>& rotation(OperandSlot slot) const noexcept {
        return rotations[static_cast<std::size_t>(slot) / 2];
    }
    [[nodiscard]] const std::optional<Accumulate>& sums(OperandSlot slot) const noexcept {
        return accumulate[static_cast<std::size_t>(slot) / 2];
    }
    void set(OperandSlot slot, const OperandRule& rule) { slots[static_cast<std::size_t>(slot)] = rule; }
    /// Whether any operand of any product is rounded.
    [[nodiscard]] bool any() const {
        return activation || weight || gradient ||
               std::any_of(slots.begin(), slots.end(), [](const auto& rule) { return rule && rule->element; });
    }
    [[nodiscard]] const std::optional<Quantiser>& of(OperandRole role) const noexcept {
        return role == OperandRole::activation ? activation : role == OperandRole::weight ? weight : gradient;
    }
    [[nodiscard]] const ScaleRule& scale(OperandRole role) const noexcept {
        return role == OperandRole::activation ? activation_scale
               : role == OperandRole::weight   ? weight_scale
                                               : gradient_scale;
    }

    friend bool operator==(const ProductFormats&, const ProductFormats&) = default;
};

}  // namespace unitscale
