// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/nn/decoder.hpp>
#include <unitscale/ops/softmax_cross_entropy.hpp>

#include <array>
#include <cstdint>
#include <optional>

// The ops of the decoder, compiled in one source of a program instead of in each: nine tenths of what compiling a model costs are
// its kernels. A source that includes this header leaves them out; one source of the program makes them, for each element type:
//   #define UNITSCALE_COMPILE_OPS float
//   #include <unitscale/train/compiled_ops.hpp>
// Include it wherever the model is used, or nowhere. Test: tests/train/compiled_ops_test.cpp

/// Every op that nn::Decoder and its training step call, as explicit instantiations: `prefix` is `template` or `extern template`.
#define UNITSCALE_DECODER_OPS(prefix, T)                                                                                       \
    prefix Variable<T> add<T>(Variable<T>, Variable<T>, const AddOptions&);                                                    \
    prefix Variable<T> attention<T>(Variable<T>, Variable<T>, Variable<T>, const AttentionOptions&);                           \
    prefix Variable<T> cached_attention<T>(Variable<T>, Variable<T>, Variable<T>, const KeyValueRows<T>&,                      \
                                           const AttentionOptions&);                                                           \
    prefix Variable<T> dropout<T>(Variable<T>, const DropoutOptions&);                                                         \
    prefix Variable<T> embedding<T>(Variable<T>, const Tensor<std::int32_t>&, const EmbeddingOptions&);                        \
    prefix Variable<T> gated_silu<T>(Variable<T>, Variable<T>, const GatedSiluOptions&);                                       \
    prefix Variable<T> gelu<T>(Variable<T>, const GeluOptions&);                                                               \
    prefix Variable<T> layer_norm<T>(Variable<T>, std::optional<Variable<T>>, std::optional<Variable<T>>, const NormOptions&); \
    prefix Variable<T> linear<T>(Variable<T>, Variable<T>, std::optional<Variable<T>>, const LinearOptions&);                  \
    prefix Variable<T> multiplier<T>(Variable<T>, double);                                                                     \
    prefix Variable<T> readout<T>(Variable<T>, Variable<T>, const ReadoutOptions&);                                            \
    prefix Variable<T> residual_add<T>(Variable<T>, Variable<T>, std::optional<double>);                                       \
    prefix std::array<Variable<T>, 2> residual_split<T>(Variable<T>, std::optional<double>);                                   \
    prefix Variable<T> rms_norm<T>(Variable<T>, std::optional<Variable<T>>, const NormOptions&);                               \
    prefix Variable<T> rotary<T>(Variable<T>, const RotaryOptions&);                                                           \
    prefix Variable<T> softmax_cross_entropy<T>(Variable<T>, const Tensor<std::int32_t>&, const CrossEntropyOptions&);

namespace unitscale::ops {

UNITSCALE_DECODER_OPS(extern template, float)
UNITSCALE_DECODER_OPS(extern template, double)
UNITSCALE_DECODER_OPS(extern template, Half)
UNITSCALE_DECODER_OPS(extern template, BFloat16)
#ifdef UNITSCALE_COMPILE_OPS
UNITSCALE_DECODER_OPS(template, UNITSCALE_COMPILE_OPS)
#endif

}  // namespace unitscale::ops

#undef UNITSCALE_DECODER_OPS
