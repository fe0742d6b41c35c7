// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/formats/format.hpp>
#include <unitscale/scaling/operand_rule.hpp>
#include <unitscale/tensor/coded_weight.hpp>

namespace unitscale {

/// The format of a weight's elements. The shift of the tensor's scale is not in it: codes without blocks have the
/// exponent bias of the rule's format, if the rule has one.
[[nodiscard]] inline FloatFormat element_format(const CodedWeight& codes, const OperandRule& rule) {
    FloatFormat format = codes.format();
    if (!codes.blocks() && rule.element) format.bias = rule.element->format.bias;
    return format;
}

/// Whether codes have the form that a rule makes of a weight: the format of its elements, under any shift of the
/// tensor's scale, and its blocks. A rule without an element leaves every form as it is.
/// Test: tests/scaling/code_rule_test.cpp
[[nodiscard]] inline bool has_form(const CodedWeight& codes, const OperandRule& rule) {
    if (!rule.element) return true;
    return element_format(codes, rule) == rule.element->format && codes.blocks() == rule.scale.blocks &&
           (rule.scale.blocks || rule.scale.by_tensor());
}

}  // namespace unitscale
