// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/scaling/operand_rule.hpp>
#include <unitscale/scaling/tensor_scale.hpp>

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

// The rules of a recipe for the operands of products.   Test: tests/scaling/product_rule_test.cpp
namespace unitscale {

/// Kinds of matrix products that a recipe distinguishes. `linear`: activations times a weight. `readout`: the last
/// linear layer, onto the vocabulary. `matmul`: two activations. `attention`: the six products of attention.
enum class ProductKind { linear, readout, matmul, attention };

inline constexpr std::array<std::string_view, 4> product_kind_names = {"linear", "readout", "matmul", "attention"};
[[nodiscard]] constexpr std::string_view name(ProductKind kind) noexcept {
    return product_kind_names[static_cast<std::size_t>(kind)];
}

/// Whether `text` matches `pattern`, in which `*` stands for any run of characters, empty ones included.
[[nodiscard]] inline bool matches(std::string_view pattern, std::string_view text) noexcept {
    std::size_t p = 0, t = 0, star = std::string_view::npos, resume = 0;
    while (t < text.size()) {
        if (p < pattern.size() && pattern[p] == '*') {
            star = p++;
            resume = t;
        } else if (p < pattern.size() && pattern[p] == text[t]) {
            ++p;
            ++t;
        } else if (star != std::string_view::npos) {
            p = star + 1;
            t = ++resume;
        } else {
            return false;
        }
    }
    while (p < pattern.size() && pattern[p] == '*') ++p;
    return p == pattern.size();
}

/// One rule of a recipe: the formats of products of this kind in modules with a path that matches `pattern` (`*` stands
/// for any text). Of several matching rules the last one holds. Blocks have two paths, the second counted from the end:
/// `*block-1/*` is the last block of any model.
struct ProductRule {
    ProductKind kind = ProductKind::linear;
    std::string pattern = "*";
    ProductFormats formats{};

    /// Whether the rule holds for a product in the module at `path`. `alias`: the path counted from the end, or empty.
    [[nodiscard]] bool applies(ProductKind product, std::string_view path, std::string_view alias = {}) const noexcept {
        return kind == product && (matches(pattern, path) || (!alias.empty() && matches(pattern, alias)));
    }
};

/// Error, with `at` (the rule's place) in front, naming the field: a product's rules that contradict each other.
[[gnu::cold, gnu::noinline]] inline void check_product_rule(const std::string& at, const ProductRule& product) {
    const auto check_operand = [&](std::string_view place, const OperandRule& rule) {
        const std::string what = concatenate(at, place);
        check_rule(what, rule.scale);
        if (!rule.scale.blocks) return;
        check(product.kind != ProductKind::matmul, what, ": blocks are for linear layers, readouts and attention");
        check(rule.element && rule.element->format == rule.scale.blocks->element, what, ": blocks of ",
              name(rule.scale.blocks->element), " hold an operand that is rounded to ",
              rule.element ? name(rule.element->format) : "nothing");
        check(rule.element->overflow == Overflow::saturate, what, ": blocks saturate; overflow is to_infinity");
    };
    for (const OperandRole role : {OperandRole::activation, OperandRole::weight, OperandRole::gradient})
        check_operand(concatenate(name(role), "_scale"), {product.formats.of(role), product.formats.scale(role)});
    for (std::size_t slot = 0; slot < slot_count; ++slot)
        if (const auto& rule = product.formats.slots[slot]) check_operand(slot_names[slot], *rule);
    for (std::size_t slot = 0; slot < linear_slot_count; slot += 2) {
        const auto& sums = product.formats.accumulate[slot / 2];
        if (!sums) continue;
        const std::string what = concatenate(at, product_names[slot / 2]);
        check(product.kind == ProductKind::linear || product.kind == ProductKind::readout, what,
              ".accumulate: is for linear layers and readouts");
        check_accumulate(what, *sums);
        const OperandRule left = product.formats.rule(static_cast<OperandSlot>(slot)),
                          right = product.formats.rule(static_cast<OperandSlot>(slot + 1));
        // The margin of a measured bias says how far below the formats' largest numbers the operands stay.
        const bool measured = left.scale.has_measured_bias() || right.scale.has_measured_bias();
        if (left.element && right.element && !measured)
            check_products(what, *sums, left.element->format, right.element->format);
    }
    if (product.kind == ProductKind::attention) check_attention_formats(at, product.formats);
    else
        for (std::size_t slot = linear_slot_count; slot < slot_count; ++slot)
            check(!product.formats.slots[slot], at, slot_names[slot], ": is an operand of attention; the kind is ",
                  name(product.kind));
    for (std::size_t slot = 0; slot < linear_slot_count; ++slot) {
        const auto& rotation = product.formats.rotations[slot / 2];
        if (!rotation) continue;
        const std::string what = concatenate(at, slot_names[slot]);
        const auto& blocks = product.formats.rule(static_cast<OperandSlot>(slot)).scale.blocks;
        check(blocks.has_value(), what, ": is rotated; expected blocks that share a scale");
        check_rotation(what, *rotation);
        check(blocks->along == whole_dimension || blocks->along % rotation->size == 0 ||
                  rotation->size % blocks->along == 0,
              what, ": a rotation of ", rotation->size, " does not fit blocks of ", blocks->along);
    }
}

}  // namespace unitscale
