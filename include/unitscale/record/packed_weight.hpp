// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/products/product.hpp>
#include <unitscale/record/operand_rounding.hpp>
#include <unitscale/record/prepared_operand.hpp>

#include <memory>

namespace unitscale::ops {

/// The parameter that may keep a form of the variable's value from one step to the next. Null in steps with gradients,
/// because the value changes after them; null for a variable that is no parameter.
template <class T>
[[nodiscard]] const Parameter<T>* kept_parameter(const Tape<T>& tape, const Variable<T>& variable) {
    return tape.step_options().gradients ? nullptr : tape.source(variable);
}

/// The weight of a product, rounded and packed, kept beside the parameter (`kept_parameter`). Null if nothing is
/// rounded on its way into the product: then the product reads the weight, or its numbers in blocks, in place.
/// Test: tests/record/packed_weight_test.cpp
template <class T>
[[nodiscard]] std::shared_ptr<const products::PackedRight<T>> packed_weight(
    const Tape<T>& tape, const Variable<T>& weight, const products::MatmulArguments<T>& product) {
    const Parameter<T>* const source = kept_parameter(tape, weight);
    const products::Operand<T>& b = product.b;
    if (source == nullptr || !b.quantiser || b.is_stochastic()) return nullptr;
    struct Key {
        Isa isa;
        products::PairKernel pairs;
        Quantiser rounding;
        bool operator==(const Key&) const = default;
    };
    const auto pairs = products::usable_pairs<T>(products::active_pair_kernel(), product.a.is_exact_in_bf16(),
                                                 b.is_exact_in_bf16());
    return source->template cached<products::PackedRight<T>>(
        Key{active_isa(), pairs, *b.quantiser}, [&](const Tensor<T>&) { return products::pack_weights(product); });
}

/// The product y of a linear layer, by its packed weight if there is one.
template <class T>
void multiply_by_weight(const Tape<T>& tape, const OperandRounding& rounding, const Variable<T>& weight,
                        products::MatmulArguments<T> product) {
    const bool limited = rounding.formats().sums(OperandSlot::forward_w).has_value();
    const auto packed = limited ? nullptr : packed_weight(tape, weight, product);
    product.b.packed = packed.get();
    multiply_operands<T>(tape.execution(), rounding, OperandSlot::forward_w, product);
}

}  // namespace unitscale::ops
