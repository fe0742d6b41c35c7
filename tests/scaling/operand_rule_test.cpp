// SPDX-License-Identifier: MIT
#include <unitscale/scaling/operand_rule.hpp>

#include "support/catch.hpp"

#include <array>
#include <cstddef>
#include <set>
#include <string_view>

using namespace unitscale;

TEST_CASE("operand rule: every slot has a name, a role and a tensor with one other slot") {
    std::set<std::string_view> names;
    std::array<std::size_t, 3> of_linear{}, of_attention{};
    std::array<std::size_t, slot_count> of_tensor{};
    for (std::size_t i = 0; i < slot_count; ++i) {
        const auto slot = static_cast<OperandSlot>(i), first = first_use(slot);
        names.emplace(name(slot));
        CHECK(is_of_attention(slot) == (i >= linear_slot_count));
        CHECK(is_of_attention(slot) == is_of_attention(first));
        ++of_tensor[static_cast<std::size_t>(first)];
        CHECK(first <= slot);
        CHECK(first_use(first) == first);
        CHECK(name(first).substr(name(first).find('.')) == name(slot).substr(name(slot).find('.')));
        CHECK(role_of(slot) == role_of(first));
        ++(is_of_attention(slot) ? of_attention : of_linear)[static_cast<std::size_t>(role_of(slot))];
        CHECK(operand_names[operand_place(slot)] == name(slot));
    }
    CHECK(names.size() == slot_count);
    CHECK(of_linear == std::array<std::size_t, 3>{2, 2, 2});
    CHECK(of_attention == std::array<std::size_t, 3>{8, 0, 4});
    for (const std::size_t count : of_tensor) CHECK((count == 0 || count == 2));
    CHECK(name(OperandSlot::weight_gradient_x) == "weight_gradient.x");
    CHECK(role_of(OperandSlot::forward_x) == OperandRole::activation);
    CHECK(role_of(OperandSlot::input_gradient_w) == OperandRole::weight);
    CHECK(role_of(OperandSlot::weight_gradient_dy) == OperandRole::gradient);
    CHECK(role_of(OperandSlot::output_p) == OperandRole::activation);
    CHECK(role_of(OperandSlot::key_gradient_ds) == OperandRole::gradient);
    CHECK(operand_names[operand_place(OperandRole::gradient)] == "gradient");
    CHECK(std::set<std::string_view>(operand_names.begin(), operand_names.end()).size() == operand_names.size());
}

TEST_CASE("operand rule: a slot takes its role's rule until it has its own") {
    ProductFormats formats{.activation = Quantiser{.format = e4m3},
                           .activation_scale = {.source = ScaleSource::constant, .bias = 3}};
    const OperandRule role{Quantiser{.format = e4m3}, {.source = ScaleSource::constant, .bias = 3}};
    CHECK(formats.rule(OperandSlot::forward_x) == role);
    CHECK(formats.rule(OperandSlot::weight_gradient_x) == role);
    CHECK(formats.rule(OperandSlot::forward_w) == OperandRule{});
    const OperandRule own = OperandRule::in_blocks(mxfp4);
    formats.set(OperandSlot::weight_gradient_x, own);
    CHECK(formats.rule(OperandSlot::forward_x) == role);
    CHECK(formats.rule(OperandSlot::weight_gradient_x) == own);
    CHECK(formats.any());
    formats.activation.reset();
    CHECK(formats.any());
    formats.set(OperandSlot::weight_gradient_x, {});
    CHECK_FALSE(formats.any());
}

TEST_CASE("operand rule: elements in blocks take their format from the blocks") {
    const OperandRule rule = OperandRule::in_blocks(nvfp4, Rounding::stochastic);
    CHECK(rule.element->format == e2m1);
    CHECK(rule.element->rounding == Rounding::stochastic);
    CHECK(rule.scale.source == ScaleSource::amax);
    CHECK(rule.scale.blocks == nvfp4);
    CHECK_FALSE(rule.scale.by_tensor());
}

TEST_CASE("operand rule: both operands of a product are rotated") {
    ProductFormats formats;
    formats.rotations.back() = transformer_engine_rotation;
    CHECK(formats.rotation(OperandSlot::weight_gradient_dy) == transformer_engine_rotation);
    CHECK(formats.rotation(OperandSlot::weight_gradient_x) == transformer_engine_rotation);
    for (const OperandSlot slot : {OperandSlot::forward_x, OperandSlot::forward_w, OperandSlot::input_gradient_dy,
                                   OperandSlot::input_gradient_w})
        CHECK_FALSE(formats.rotation(slot).has_value());
    for (std::size_t i = linear_slot_count; i < slot_count; ++i) {
        CHECK_FALSE(formats.rotation(static_cast<OperandSlot>(i)).has_value());
        CHECK_FALSE(formats.sums(static_cast<OperandSlot>(i)).has_value());
    }
}

TEST_CASE("operand rule: an operand of attention takes its role's rule until it has its own") {
    ProductFormats formats{.activation = Quantiser{.format = e4m3}};
    CHECK(formats.rule(OperandSlot::output_p) == OperandRule{Quantiser{.format = e4m3}});
    CHECK(formats.rule(OperandSlot::query_gradient_ds) == OperandRule{});
    const ProductFormats before = formats;
    formats.set(OperandSlot::output_p, OperandRule::in_blocks(mxfp4));
    CHECK(formats != before);
    CHECK(formats.rule(OperandSlot::output_p) == OperandRule::in_blocks(mxfp4));
    CHECK(formats.rule(OperandSlot::value_gradient_p) == OperandRule{Quantiser{.format = e4m3}});
    formats.activation.reset();
    CHECK(formats.any());
    formats.set(OperandSlot::output_p, {});
    CHECK_FALSE(formats.any());
}
