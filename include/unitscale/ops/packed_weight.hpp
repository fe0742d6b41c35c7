// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/kernels/matmul.hpp>

#include <memory>

namespace unitscale::ops {

/// The weight of a product rounded and packed, kept beside the parameter from one step to the next; null in steps with gradients,
/// after which the weight changes, and where nothing is rounded: then the product reads the weight as it is.
/// Test: tests/ops/packed_weight_test.cpp
template <class T>
[[nodiscard]] std::shared_ptr<const kernels::PackedRight<T>> packed_weight(const Tape<T>& tape, const Variable<T>& weight,
                                                                           const kernels::MatmulArguments<T>& product) {
    const Parameter<T>* const source = tape.source(weight);
    if (source == nullptr || tape.step_options().gradients || product.round_b == nullptr ||
        kernels::is_stochastic(product.round_b))
        return nullptr;
    struct Key {
        Isa isa;
        kernels::PairKernel pairs;
        Quantiser rounding;
        bool operator==(const Key&) const = default;
    };
    const auto pairs = kernels::usable_pairs<T>(kernels::active_pair_kernel(), kernels::format_of(product.round_a),
                                                kernels::format_of(product.round_b));
    return source->template cached<kernels::PackedRight<T>>(Key{active_isa(), pairs, *product.round_b},
                                                            [&](const Tensor<T>&) { return kernels::pack_weights(product); });
}

}  // namespace unitscale::ops
