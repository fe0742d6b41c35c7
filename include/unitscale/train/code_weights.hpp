// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/parameter.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/formats/block_codes.hpp>
#include <unitscale/scaling/code_rule.hpp>
#include <unitscale/scaling/operand_rule.hpp>
#include <unitscale/scaling/product_rule.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/scaling/tensor_scale.hpp>
#include <unitscale/tensor/cast.hpp>
#include <unitscale/tensor/coded_weight.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <vector>

namespace unitscale::train {

/// The format that parameters are kept in whose names match a pattern (`matches`), and whose role is the given one.
struct WeightCodeRule {
    std::string pattern = "*";
    std::optional<ParameterRole> role{};  ///< empty: weights of linear layers, tables of embeddings, readouts
    /// `rule.element` is the format: fp32, fp16, bf16, or at most 8 bits. `rule.scale` is none, a constant bias, the
    /// amax of the tensor, or blocks. Without an element the parameter keeps its elements.
    OperandRule rule{};
    bool exact_sums = true;  ///< the product that a recipe's rule comes from has no rotation, and sums in float

    /// Whether a parameter is a matrix that can be coded, and the rule is for it.
    template <class T>
    [[nodiscard]] bool applies(const Parameter<T>& parameter) const {
        const ParameterRole own = parameter.facts().role;
        const bool is_table = own == ParameterRole::embedding || own == ParameterRole::readout;
        return parameter.shape().size() == 2 && (own == ParameterRole::weight || is_table) && (!role || *role == own) &&
               matches(pattern, parameter.name());
    }
};

/// The rule of a format by its name: a block format as `find_block_format` knows it, or fp32, fp16, bf16 or a format of
/// at most 8 bits under one power of two, from the amax of the tensor. Error: an unknown name.
[[nodiscard]] inline OperandRule weight_code_rule(std::string_view format) {
    if (names_block_format(format)) return OperandRule::in_blocks(find_block_format(format));
    const FloatFormat element = find_format(format);
    static_cast<void>(weight_bits(element));
    OperandRule rule{Quantiser{.format = element}, {}};
    if (element.code_bits() <= 8) rule.scale.source = ScaleSource::amax;
    return rule;
}

/// The rules of a recipe for the weights of linear layers and readouts: codes that its forward products would make of
/// them. The module of a parameter is its name without the last part; block i of n is `block-` and n - i, too.
/// Weights that the recipe does not round have no rule here.
template <class T>
[[nodiscard]] std::vector<WeightCodeRule> recipe_code_rules(const Recipe& recipe,
                                                            const std::vector<Parameter<T>*>& parameters) {
    constexpr std::string_view mark = "/block";
    struct Block {
        std::size_t number = 0, begin = 0, end = 0;  ///< the place of the number in the path; no number: 0 to 0
    };
    const auto block_of = [mark](std::string_view path) {
        Block block;
        const std::size_t at = path.find(mark);
        if (at == std::string_view::npos) return block;
        const char* const first = path.data() + at + mark.size();
        const auto [last, error] = std::from_chars(first, path.data() + path.size(), block.number);
        if (error == std::errc{})
            block.begin = at + mark.size(), block.end = static_cast<std::size_t>(last - path.data());
        return block;
    };
    std::size_t blocks = 0;
    for (const Parameter<T>* parameter : parameters)
        if (const Block block = block_of(parameter->name()); block.end > 0) blocks = std::max(blocks, block.number + 1);
    std::vector<WeightCodeRule> rules;
    for (const Parameter<T>* parameter : parameters) {
        const ParameterRole role = parameter->facts().role;
        if (parameter->shape().size() != 2 || (role != ParameterRole::weight && role != ParameterRole::readout))
            continue;
        const std::string path = parameter->name().substr(0, parameter->name().rfind('/'));
        std::string alias;
        if (const Block block = block_of(path); block.end > 0)
            alias = concatenate(path.substr(0, block.begin), '-', blocks - block.number, path.substr(block.end));
        const auto kind = role == ParameterRole::readout ? ProductKind::readout : ProductKind::linear;
        const ProductFormats formats = recipe.formats(kind, path, alias);
        const OperandRule rule = formats.rule(OperandSlot::forward_w);
        if (!rule.element) continue;
        rules.push_back({.pattern = parameter->name(), .rule = rule});
        rules.back().exact_sums = !formats.rotation(OperandSlot::forward_w) && !formats.sums(OperandSlot::forward_w);
    }
    return rules;
}

/// The codes of a matrix under a rule, its scale multiplied out. Numbers are rounded as the products of a recipe with
/// this rule round them, to the bit.
/// Errors: a rule that rounds stochastically, by rows or columns, or by past magnitudes; the errors of
/// `CodedWeight`.
template <class T>
[[nodiscard]] CodedWeight encode_weight(const Tensor<T>& value, const OperandRule& rule) {
    check(rule.element.has_value(), "encode_weight: the rule has no element format");
    const Quantiser& element = *rule.element;
    check(element.rounding == Rounding::nearest_even, "encode_weight: rounding is ", name(element.rounding),
          "; expected nearest_even");
    check(value.rank() == 2, "encode_weight: shape ", shape_text(value.shape()), "; expected a matrix [out,in]");
    Tensor<float> floats(value.shape());
    for (std::size_t i = 0; i < value.size(); ++i)
        floats.data()[i] = static_cast<float>(static_cast<double>(value.data()[i]) * value.scale());
    if (rule.scale.blocks) {
        BlockCodes codes;
        encode_blocks(*rule.scale.blocks, {floats.data(), value.dim(0), value.dim(1), value.dim(1)}, codes,
                      block_options(*rule.scale.blocks, element, {}));
        return CodedWeight(codes);
    }
    check(rule.scale.by_tensor() && rule.scale.source != ScaleSource::delayed,
          "encode_weight: the scale is measured by rows, columns or past steps; expected one of the tensor, or blocks");
    int bias = rule.scale.source == ScaleSource::constant ? rule.scale.bias : 0;
    if (rule.scale.source == ScaleSource::amax) {
        float amax = 0;
        for (const float number : floats.span()) amax = std::max(amax, std::abs(number));
        bias = amax_bias(element.format, amax, rule.scale.margin);
    }
    return coded_weight(floats, bias == 0 ? element.format : shifted(element.format, bias));
}

/// Keeps the matrices among the parameters as codes (Parameter::keep_coded): weights of linear layers, tables of
/// embeddings and readouts. Of several rules that match a name the last one counts. Returns the bytes of all codes and
/// scales. The parameters can then be used without gradients only.
/// Codes stay as they are, under a rule of their form or of 16 and 32 bits.
/// Errors: codes of another form; a pattern that matches no matrix; the errors of `encode_weight`, with the name of the
/// parameter in front.
/// Test: tests/train/code_weights_test.cpp
template <class T>
std::size_t code_weights(const std::vector<Parameter<T>*>& parameters, const std::vector<WeightCodeRule>& rules) {
    for (const WeightCodeRule& rule : rules)
        check(std::any_of(parameters.begin(), parameters.end(),
                          [&](const Parameter<T>* parameter) { return rule.applies(*parameter); }),
              "code_weights: pattern '", rule.pattern, "' matches no matrix of the ", parameters.size(), " parameters");
    std::size_t bytes = 0;
    for (Parameter<T>* parameter : parameters) {
        const WeightCodeRule* found = nullptr;
        for (const WeightCodeRule& rule : rules)
            if (rule.applies(*parameter)) found = &rule;
        if (found == nullptr || !found->rule.element) continue;
        if (const CodedWeight* const codes = parameter->coded_value(); codes != nullptr) {
            check(has_form(*codes, found->rule) || found->rule.element->format.code_bits() > 8,
                  "code_weights: parameter ", parameter->name(),
                  ": is kept as codes of another form; expected elements");
            bytes += codes->bytes();
            continue;
        }
        try {
            parameter->keep_coded(encode_weight(parameter->value(), found->rule));
        } catch (const Error& error) {
            fail("code_weights: parameter ", parameter->name(), ": ", error.what());
        }
        bytes += parameter->coded_value()->bytes();
    }
    return bytes;
}

/// The rules under which a model's matrices can be kept as codes without a change of any bit of its results. A weight
/// that the recipe rounds becomes the codes that its forward product makes of it. Another keeps elements of T, in the
/// order in which single rows read them. Weights keep their elements where this is not possible: under `propagate`, for
/// T = double, with sums of fewer bits, rotated operands, stochastic rounding, and scales by rows or past magnitudes.
/// Generation with such codes reads less memory, and each part of it once.
template <class T>
[[nodiscard]] std::vector<WeightCodeRule> equal_code_rules(const Recipe& recipe,
                                                           const std::vector<Parameter<T>*>& parameters) {
    if (std::is_same_v<T, double> || recipe.scaling == Scaling::propagate) return {};
    const FloatFormat element = std::is_same_v<T, Half> ? fp16 : std::is_same_v<T, BFloat16> ? bf16 : fp32;
    std::vector<WeightCodeRule> rules{{.rule = {Quantiser{.format = element}, {}}}};
    bool rounds_readouts = false;
    for (const ProductRule& product : recipe.products)
        rounds_readouts = rounds_readouts || (product.kind == ProductKind::readout &&
                                              product.formats.rule(OperandSlot::forward_w).element.has_value());
    if (rounds_readouts) rules.push_back({.role = ParameterRole::embedding, .rule = {}});  // perhaps a readout, too
    for (WeightCodeRule& rule : recipe_code_rules(recipe, parameters)) {
        const ScaleRule& scale = rule.rule.scale;
        const bool whole = scale.by_tensor() && scale.source != ScaleSource::delayed;
        const bool blocks =
            scale.blocks && (scale.blocks->form == ScaleForm::code || scale.blocks->rule != BlockRule::torchao_float8);
        if (rule.exact_sums && (whole || blocks) && rule.rule.element->rounding == Rounding::nearest_even &&
            rule.rule.element->format.code_bits() <= 8)
            rules.push_back(rule);
        else rules.push_back({.pattern = rule.pattern, .rule = {}});
    }
    std::erase_if(rules, [&](const WeightCodeRule& rule) {
        return std::none_of(parameters.begin(), parameters.end(),
                            [&](const Parameter<T>* parameter) { return rule.applies(*parameter); });
    });
    return rules;
}

/// Makes elements of coded parameters whose codes have another form than the recipe's rule for them, so that the recipe
/// can round them. Test: tests/train/code_weights_test.cpp
template <class T>
void decode_other_forms(const std::vector<Parameter<T>*>& parameters, const Recipe& recipe) {
    for (const WeightCodeRule& rule : recipe_code_rules(recipe, parameters))
        for (Parameter<T>* parameter : parameters)
            if (const CodedWeight* const codes = parameter->coded_value();
                codes != nullptr && parameter->name() == rule.pattern && !has_form(*codes, rule.rule))
                static_cast<void>(parameter->write());
}

}  // namespace unitscale::train
