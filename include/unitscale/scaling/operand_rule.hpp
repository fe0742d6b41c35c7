// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
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

// The operands of the products of linear ops and of attention, and what a recipe does to each of them.
namespace unitscale {

/// The roles of a product's operands.
enum class OperandRole : std::uint8_t { activation, weight, gradient };

inline constexpr std::array<std::string_view, 3> operand_role_names = {"activation", "weight", "gradient"};
[[nodiscard]] constexpr std::string_view name(OperandRole role) noexcept {
    return operand_role_names[static_cast<std::size_t>(role)];
}

/// The operands of products. The three products of y = x w^T are y itself, the input's gradient dx = dy w and the
/// weight's gradient dw = dy^T x. The six products of attention are the logits s = q k^T and their gradients dq = ds k
/// and dk = ds^T q, then y = p v for the probabilities p, dp = dy v^T and dv = p^T dy.
enum class OperandSlot : std::uint8_t {
    forward_x,
    forward_w,
    input_gradient_dy,
    input_gradient_w,
    weight_gradient_dy,
    weight_gradient_x,
    // of attention
    logits_q,
    logits_k,
    query_gradient_ds,
    query_gradient_k,
    key_gradient_ds,
    key_gradient_q,
    output_p,
    output_v,
    probability_gradient_dy,
    probability_gradient_v,
    value_gradient_p,
    value_gradient_dy
};

inline constexpr std::size_t linear_slot_count = 6, slot_count = 18;  // linear ops' slots come first
inline constexpr std::array<std::string_view, slot_count> slot_names = {"forward.x",
                                                                        "forward.w",
                                                                        "input_gradient.dy",
                                                                        "input_gradient.w",
                                                                        "weight_gradient.dy",
                                                                        "weight_gradient.x",
                                                                        "logits.q",
                                                                        "logits.k",
                                                                        "query_gradient.ds",
                                                                        "query_gradient.k",
                                                                        "key_gradient.ds",
                                                                        "key_gradient.q",
                                                                        "output.p",
                                                                        "output.v",
                                                                        "probability_gradient.dy",
                                                                        "probability_gradient.v",
                                                                        "value_gradient.p",
                                                                        "value_gradient.dy"};
[[nodiscard]] constexpr std::string_view name(OperandSlot slot) noexcept {
    return slot_names[static_cast<std::size_t>(slot)];
}
[[nodiscard]] constexpr bool is_of_attention(OperandSlot slot) noexcept {
    return static_cast<std::size_t>(slot) >= linear_slot_count;
}

/// The first of the two slots of this slot's tensor, in the order of the computation.
[[nodiscard]] constexpr OperandSlot first_use(OperandSlot slot) noexcept {
    using enum OperandSlot;
    constexpr std::array<OperandSlot, slot_count> first = {
        forward_x, forward_w, input_gradient_dy,       forward_w, input_gradient_dy, forward_x,
        logits_q,  logits_k,  query_gradient_ds,       logits_k,  query_gradient_ds, logits_q,
        output_p,  output_v,  probability_gradient_dy, output_v,  output_p,          probability_gradient_dy};
    return first[static_cast<std::size_t>(slot)];
}
/// q, k, v and p of attention are activations, ds and dy gradients. Attention has no weights.
[[nodiscard]] constexpr OperandRole role_of(OperandSlot slot) noexcept {
    using enum OperandSlot;
    const OperandSlot first = first_use(slot);
    if (first == forward_w) return OperandRole::weight;
    const bool gradient = first == input_gradient_dy || first == query_gradient_ds || first == probability_gradient_dy;
    return gradient ? OperandRole::gradient : OperandRole::activation;
}

/// The op's input that the operand is: 0 for x and q, 1 for w and k, 2 for v. Empty for dy, and for p and ds, which
/// attention makes itself.
[[nodiscard]] constexpr std::optional<std::size_t> input_of(OperandSlot slot) noexcept {
    switch (first_use(slot)) {
        case OperandSlot::forward_x:
        case OperandSlot::logits_q:
            return 0;
        case OperandSlot::forward_w:
        case OperandSlot::logits_k:
            return 1;
        case OperandSlot::output_v:
            return 2;
        default:
            return std::nullopt;
    }
}
/// Whether the operand is the gradient dy of the op's output.
[[nodiscard]] constexpr bool is_output_gradient(OperandSlot slot) noexcept {
    const OperandSlot first = first_use(slot);
    return first == OperandSlot::input_gradient_dy || first == OperandSlot::probability_gradient_dy;
}

/// The names of the three products of y = x w^T.
inline constexpr std::array<std::string_view, linear_slot_count / 2> product_names = {"forward", "input_gradient",
                                                                                      "weight_gradient"};

/// The names under which a product's site keeps the biases of its operands: roles, then slots.
inline constexpr std::array<std::string_view, operand_role_names.size() + slot_count> operand_names = [] {
    std::array<std::string_view, operand_role_names.size() + slot_count> names{};
    std::copy(operand_role_names.begin(), operand_role_names.end(), names.begin());
    std::copy(slot_names.begin(), slot_names.end(), names.begin() + operand_role_names.size());
    return names;
}();
/// The place of a role, or of a slot with a bias of its own, in `operand_names`.
[[nodiscard]] constexpr std::size_t operand_place(OperandRole role) noexcept { return static_cast<std::size_t>(role); }
[[nodiscard]] constexpr std::size_t operand_place(OperandSlot slot) noexcept {
    return operand_role_names.size() + static_cast<std::size_t>(slot);
}

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
/// twice. Attention uses it for q, k, v and p, and `gradient` for ds and dy. Each operand may be scaled before it is
/// rounded (ScaleRule). `result` rounds the results of the products. `slots` gives single operands another rule.
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
    std::array<std::optional<HadamardRotation>, linear_slot_count / 2> rotations{};
    /// How the sums of y, dx and dw are formed; empty: in float. If `run_length` is the length of both operands'
    /// blocks, runs are summed without the blocks' scales (products/limited_matmul.hpp).
    std::array<std::optional<Accumulate>, linear_slot_count / 2> accumulate{};

    /// The rule of its own that an operand has; empty: the rule of its role holds.
    [[nodiscard]] const std::optional<OperandRule>& own(OperandSlot slot) const noexcept {
        return slots[static_cast<std::size_t>(slot)];
    }
    [[nodiscard]] OperandRule rule(OperandSlot slot) const { return own(slot) ? *own(slot) : rule(role_of(slot)); }
    [[nodiscard]] OperandRule rule(OperandRole role) const { return {of(role), scale(role)}; }
    /// Of the product that the operand belongs to; empty for attention.
    [[nodiscard]] std::optional<HadamardRotation> rotation(OperandSlot slot) const {
        return is_of_attention(slot) ? std::nullopt : rotations[static_cast<std::size_t>(slot) / 2];
    }
    [[nodiscard]] std::optional<Accumulate> sums(OperandSlot slot) const {
        return is_of_attention(slot) ? std::nullopt : accumulate[static_cast<std::size_t>(slot) / 2];
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

/// Error, naming the field behind `place`: formats of attention with parts that attention has not.
[[gnu::cold, gnu::noinline]] inline void check_attention_formats(std::string_view place,
                                                                 const ProductFormats& formats) {
    check(!formats.weight, place, "weight: attention has no weights; expected activation and gradient");
    check(formats.weight_scale == ScaleRule{}, place,
          "weight_scale: attention has no weights; expected activation_scale and gradient_scale");
    check(!formats.result, place, "result: attention's results are not rounded; expected null");
    for (std::size_t slot = 0; slot < linear_slot_count; ++slot) {
        check(!formats.slots[slot], place, slot_names[slot], ": is an operand of linear layers; the kind is attention");
        check(!formats.rotations[slot / 2], place, slot_names[slot], ": is rotated; attention's operands are not");
    }
    const auto check_scale = [place](std::string_view field, const ScaleRule& rule) {
        check(rule.granularity == ScaleGranularity::tensor, place, field, ": scale by ", name(rule.granularity),
              "; expected a scale by tensor or by block");
    };
    check_scale("activation_scale", formats.activation_scale);
    check_scale("gradient_scale", formats.gradient_scale);
    for (std::size_t slot = linear_slot_count; slot < slot_count; ++slot)
        if (const auto& own = formats.slots[slot]) check_scale(slot_names[slot], own->scale);
}

}  // namespace unitscale
