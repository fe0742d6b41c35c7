// SPDX-License-Identifier: MIT
#include <unitscale/scaling/operand_rule.hpp>

#include "support/catch.hpp"

#include <cstddef>
#include <set>
#include <string>
#include <string_view>

using namespace unitscale;

TEST_CASE("operand rule: every slot has a name and a role, and each role has two slots") {
    std::set<std::string> names;
    std::size_t of_role[3] = {};
    for (std::size_t i = 0; i < slot_count; ++i) {
        const auto slot = static_cast<OperandSlot>(i);
        names.emplace(name(slot));
        ++of_role[static_cast<std::size_t>(role_of(slot))];
        CHECK(operand_names[3 + i] == name(slot));
    }
    CHECK(names.size() == slot_count);
    for (const std::size_t count : of_role) CHECK(count == 2);
    CHECK(name(OperandSlot::weight_gradient_x) == "weight_gradient.x");
    CHECK(role_of(OperandSlot::forward_x) == OperandRole::activation);
    CHECK(role_of(OperandSlot::input_gradient_w) == OperandRole::weight);
    CHECK(role_of(OperandSlot::weight_gradient_dy) == OperandRole::gradient);
    CHECK(operand_names[0] == "activation");
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
}

TEST_CASE("operand rule: attention's twelve operands have names and roles, and each of six tensors has two of them") {
    std::set<std::string> names;
    std::size_t of_tensor[attention_slot_count] = {}, gradients = 0;
    for (std::size_t i = 0; i < attention_slot_count; ++i) {
        const auto slot = static_cast<AttentionSlot>(i);
        names.emplace(name(slot));
        ++of_tensor[static_cast<std::size_t>(first_use(slot))];
        CHECK(first_use(first_use(slot)) == first_use(slot));
        CHECK(name(first_use(slot)).substr(name(first_use(slot)).find('.')) == name(slot).substr(name(slot).find('.')));
        CHECK(role_of(slot) == role_of(first_use(slot)));
        gradients += role_of(slot) == OperandRole::gradient;
        CHECK(operand_names[first_attention_name + i] == name(slot));
    }
    CHECK(names.size() == attention_slot_count);
    for (const std::size_t count : of_tensor) CHECK((count == 0 || count == 2));
    CHECK(gradients == 4);
    CHECK(role_of(AttentionSlot::output_p) == OperandRole::activation);
    CHECK(role_of(AttentionSlot::key_gradient_ds) == OperandRole::gradient);
    CHECK(std::set<std::string_view>(operand_names.begin(), operand_names.end()).size() == operand_names.size());
}

TEST_CASE("operand rule: an operand of attention takes its role's rule until it has its own") {
    ProductFormats formats{.activation = Quantiser{.format = e4m3}};
    CHECK(formats.rule(AttentionSlot::output_p) == OperandRule{Quantiser{.format = e4m3}});
    CHECK(formats.rule(AttentionSlot::query_gradient_ds) == OperandRule{});
    const ProductFormats before = formats;
    formats.set(AttentionSlot::output_p, OperandRule::in_blocks(mxfp4));
    CHECK(formats != before);
    CHECK(formats.rule(AttentionSlot::output_p) == OperandRule::in_blocks(mxfp4));
    CHECK(formats.rule(AttentionSlot::value_gradient_p) == OperandRule{Quantiser{.format = e4m3}});
    formats.activation.reset();
    CHECK(formats.any());
    formats.set(AttentionSlot::output_p, {});
    CHECK_FALSE(formats.any());
}
