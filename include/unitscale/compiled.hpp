// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/parameter.hpp>
#include <unitscale/autograd/recorded_graph.hpp>
#include <unitscale/autograd/tape.hpp>
#include <unitscale/nn/attention.hpp>
#include <unitscale/nn/bert.hpp>
#include <unitscale/nn/channel_norm.hpp>
#include <unitscale/nn/context.hpp>
#include <unitscale/nn/convolution.hpp>
#include <unitscale/nn/decoder.hpp>
#include <unitscale/nn/embedding.hpp>
#include <unitscale/nn/feed_forward.hpp>
#include <unitscale/nn/initialise.hpp>
#include <unitscale/nn/key_value_cache.hpp>
#include <unitscale/nn/linear.hpp>
#include <unitscale/nn/norm.hpp>
#include <unitscale/nn/recurrent.hpp>
#include <unitscale/nn/relative_attention.hpp>
#include <unitscale/nn/sequential.hpp>
#include <unitscale/nn/transformer_block.hpp>
#include <unitscale/ops/abs.hpp>
#include <unitscale/ops/add.hpp>
#include <unitscale/ops/argmax.hpp>
#include <unitscale/ops/argmin.hpp>
#include <unitscale/ops/attention.hpp>
#include <unitscale/ops/cached_attention.hpp>
#include <unitscale/ops/cast.hpp>
#include <unitscale/ops/clamp.hpp>
#include <unitscale/ops/concatenate.hpp>
#include <unitscale/ops/constant.hpp>
#include <unitscale/ops/conv1d.hpp>
#include <unitscale/ops/conv2d.hpp>
#include <unitscale/ops/cos.hpp>
#include <unitscale/ops/cumsum.hpp>
#include <unitscale/ops/div.hpp>
#include <unitscale/ops/dropout.hpp>
#include <unitscale/ops/dynamic_rescale.hpp>
#include <unitscale/ops/embedding.hpp>
#include <unitscale/ops/erf.hpp>
#include <unitscale/ops/exp.hpp>
#include <unitscale/ops/gate.hpp>
#include <unitscale/ops/gated_silu.hpp>
#include <unitscale/ops/gather.hpp>
#include <unitscale/ops/gelu.hpp>
#include <unitscale/ops/layer_norm.hpp>
#include <unitscale/ops/lerp.hpp>
#include <unitscale/ops/linear.hpp>
#include <unitscale/ops/log.hpp>
#include <unitscale/ops/log_softmax.hpp>
#include <unitscale/ops/matmul.hpp>
#include <unitscale/ops/max.hpp>
#include <unitscale/ops/maximum.hpp>
#include <unitscale/ops/mean.hpp>
#include <unitscale/ops/min.hpp>
#include <unitscale/ops/minimum.hpp>
#include <unitscale/ops/mse_loss.hpp>
#include <unitscale/ops/mul.hpp>
#include <unitscale/ops/multiplier.hpp>
#include <unitscale/ops/pad.hpp>
#include <unitscale/ops/pool.hpp>
#include <unitscale/ops/pow.hpp>
#include <unitscale/ops/prod.hpp>
#include <unitscale/ops/readout.hpp>
#include <unitscale/ops/relu.hpp>
#include <unitscale/ops/rescale.hpp>
#include <unitscale/ops/reshape.hpp>
#include <unitscale/ops/residual.hpp>
#include <unitscale/ops/rms_norm.hpp>
#include <unitscale/ops/rotary.hpp>
#include <unitscale/ops/rsqrt.hpp>
#include <unitscale/ops/scale.hpp>
#include <unitscale/ops/scatter_add.hpp>
#include <unitscale/ops/select.hpp>
#include <unitscale/ops/sigmoid.hpp>
#include <unitscale/ops/sign.hpp>
#include <unitscale/ops/silu.hpp>
#include <unitscale/ops/sin.hpp>
#include <unitscale/ops/slice.hpp>
#include <unitscale/ops/softmax.hpp>
#include <unitscale/ops/softmax_cross_entropy.hpp>
#include <unitscale/ops/split.hpp>
#include <unitscale/ops/sqrt.hpp>
#include <unitscale/ops/sub.hpp>
#include <unitscale/ops/sum.hpp>
#include <unitscale/ops/tanh.hpp>
#include <unitscale/ops/transpose.hpp>
#include <unitscale/ops/unfold.hpp>
#include <unitscale/ops/weighted_add.hpp>
#include <unitscale/optim/adam.hpp>
#include <unitscale/optim/lamb.hpp>
#include <unitscale/optim/sgd.hpp>
#include <unitscale/tensor/fill.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

// The heavy templates, compiled once for each element type. The CMake target `unitscale::compiled` holds them; sources
// that link it do not compile them again. The target defines UNITSCALE_COMPILED, which makes unitscale/unitscale.hpp
// end with this header. It also defines UNITSCALE_COMPILED_FLOAT, _DOUBLE, _HALF and _BFLOAT16 for the types that it
// holds.
// Without CMake, define these for all sources, and let one source for each type say:
//   #define UNITSCALE_COMPILE float
//   #include <unitscale/compiled.hpp>
// A program computes equal bits with this target and with the headers alone. Test: tests/consumers/train.cpp

/// Every op as an explicit instantiation: `prefix` is `template` or `extern template`.
#define UNITSCALE_COMPILED_OPS(prefix, T)                                                                              \
    prefix Variable<T> abs<T>(Variable<T>);                                                                            \
    prefix Variable<T> add<T>(Variable<T>, Variable<T>, const AddOptions&);                                            \
    prefix Tensor<std::int32_t> argmax<T>(Variable<T>, const ArgmaxOptions&);                                          \
    prefix Tensor<std::int32_t> argmin<T>(Variable<T>, const ArgmaxOptions&);                                          \
    prefix Variable<T> attention<T>(Variable<T>, Variable<T>, Variable<T>, const AttentionOptions&);                   \
    prefix Variable<T> average_pool<T>(Variable<T>, const PoolOptions&);                                               \
    prefix Variable<T> cached_attention<T>(Variable<T>, Variable<T>, Variable<T>, const KeyValueRows<T>&,              \
                                           const AttentionOptions&);                                                   \
    prefix Variable<T> cast_on_forward<T>(Variable<T>, const Quantiser&);                                              \
    prefix Variable<T> cast_on_backward<T>(Variable<T>, const Quantiser&);                                             \
    prefix Variable<T> clamp<T>(Variable<T>, const ClampOptions&);                                                     \
    prefix Variable<T> concatenate<T>(std::span<const Variable<T>>, std::ptrdiff_t);                                   \
    prefix Variable<T> constant<T>(Tape<T>&, double, const Shape&);                                                    \
    prefix Variable<T> conv1d<T>(Variable<T>, Variable<T>, std::optional<Variable<T>>, const Conv1dOptions&);          \
    prefix Variable<T> conv2d<T>(Variable<T>, Variable<T>, std::optional<Variable<T>>, const Conv2dOptions&);          \
    prefix Variable<T> cos<T>(Variable<T>, const CosOptions&);                                                         \
    prefix Variable<T> cumsum<T>(Variable<T>, std::ptrdiff_t, const CumsumOptions&);                                   \
    prefix Variable<T> div<T>(Variable<T>, Variable<T>, const DivOptions&);                                            \
    prefix Variable<T> dropout<T>(Variable<T>, const DropoutOptions&);                                                 \
    prefix Variable<T> dynamic_rescale_max<T>(Variable<T>);                                                            \
    prefix Variable<T> dynamic_rescale_l1<T>(Variable<T>);                                                             \
    prefix Variable<T> dynamic_rescale_l2<T>(Variable<T>);                                                             \
    prefix Variable<T> dynamic_rescale_max_gradient<T>(Variable<T>);                                                   \
    prefix Variable<T> dynamic_rescale_l1_gradient<T>(Variable<T>);                                                    \
    prefix Variable<T> dynamic_rescale_l2_gradient<T>(Variable<T>);                                                    \
    prefix Variable<T> embedding<T>(Variable<T>, const Tensor<std::int32_t>&, const EmbeddingOptions&);                \
    prefix Variable<T> erf<T>(Variable<T>, const ErfOptions&);                                                         \
    prefix Variable<T> exp<T>(Variable<T>, const UnruledOptions&);                                                     \
    prefix Variable<T> gate<T>(Variable<T>, Variable<T>, const GateOptions&);                                          \
    prefix Variable<T> gated_silu<T>(Variable<T>, Variable<T>, const GatedSiluOptions&);                               \
    prefix Variable<T> gather<T>(Variable<T>, const Tensor<std::int32_t>&, const GatherOptions&);                      \
    prefix Variable<T> gelu<T>(Variable<T>, const GeluOptions&);                                                       \
    prefix Variable<T> layer_norm<T>(Variable<T>, std::optional<Variable<T>>, std::optional<Variable<T>>,              \
                                     const NormOptions&);                                                              \
    prefix Variable<T> lerp<T>(Variable<T>, Variable<T>, Variable<T>);                                                 \
    prefix Variable<T> linear<T>(Variable<T>, Variable<T>, std::optional<Variable<T>>, const LinearOptions&);          \
    prefix Variable<T> log<T>(Variable<T>, const UnruledOptions&);                                                     \
    prefix Variable<T> log_softmax<T>(Variable<T>, const LogSoftmaxOptions&);                                          \
    prefix Variable<T> matmul<T>(Variable<T>, Variable<T>, const MatmulOptions&);                                      \
    prefix Variable<T> max<T>(Variable<T>, const UnruledReductionOptions&);                                            \
    prefix Variable<T> max_pool<T>(Variable<T>, const PoolOptions&);                                                   \
    prefix Variable<T> maximum<T>(Variable<T>, Variable<T>, const MaximumOptions&);                                    \
    prefix Variable<T> mean<T>(Variable<T>, const ReductionOptions&);                                                  \
    prefix Variable<T> min<T>(Variable<T>, const UnruledReductionOptions&);                                            \
    prefix Variable<T> minimum<T>(Variable<T>, Variable<T>, const MaximumOptions&);                                    \
    prefix Variable<T> mse_loss<T>(Variable<T>, Variable<T>, const MseLossOptions&);                                   \
    prefix Variable<T> mul<T>(Variable<T>, Variable<T>, const MulOptions&);                                            \
    prefix Variable<T> multiplier<T>(Variable<T>, double);                                                             \
    prefix Variable<T> pad<T>(Variable<T>, const Shape&, const Shape&, const PadOptions&);                             \
    prefix Variable<T> pow<T>(Variable<T>, double, const UnruledOptions&);                                             \
    prefix Variable<T> prod<T>(Variable<T>, const UnruledReductionOptions&);                                           \
    prefix Variable<T> readout<T>(Variable<T>, Variable<T>, const ReadoutOptions&);                                    \
    prefix Variable<T> relu<T>(Variable<T>, const ReluOptions&);                                                       \
    prefix Variable<T> set_scaling<T>(Variable<T>, double);                                                            \
    prefix Variable<T> rebalance<T>(Variable<T>, double);                                                              \
    prefix Variable<T> stop_scaling<T>(Variable<T>);                                                                   \
    prefix std::pair<Variable<T>, double> get_data_and_scale<T>(Variable<T>);                                          \
    prefix Variable<T> reshape<T>(Variable<T>, const Shape&);                                                          \
    prefix std::array<Variable<T>, 2> residual_split<T>(Variable<T>, std::optional<double>);                           \
    prefix Variable<T> residual_add<T>(Variable<T>, Variable<T>, std::optional<double>);                               \
    prefix Variable<T> rms_norm<T>(Variable<T>, std::optional<Variable<T>>, const NormOptions&);                       \
    prefix Variable<T> rotary<T>(Variable<T>, const RotaryOptions&);                                                   \
    prefix Variable<T> rsqrt<T>(Variable<T>, const UnruledOptions&);                                                   \
    prefix Variable<T> scale_forward<T>(Variable<T>, double);                                                          \
    prefix Variable<T> scale_backward<T>(Variable<T>, double);                                                         \
    prefix Variable<T> scatter_add<T>(Variable<T>, const Tensor<std::int32_t>&, std::size_t,                           \
                                      const ScatterAddOptions&);                                                       \
    prefix Variable<T> select<T, std::uint8_t>(const Tensor<std::uint8_t>&, Variable<T>, Variable<T>,                  \
                                               const SelectOptions&);                                                  \
    prefix Variable<T> select<T, std::int32_t>(const Tensor<std::int32_t>&, Variable<T>, Variable<T>,                  \
                                               const SelectOptions&);                                                  \
    prefix Variable<T> sigmoid<T>(Variable<T>, const SigmoidOptions&);                                                 \
    prefix Variable<T> sign<T>(Variable<T>);                                                                           \
    prefix Variable<T> silu<T>(Variable<T>, const SiluOptions&);                                                       \
    prefix Variable<T> sin<T>(Variable<T>, const SinOptions&);                                                         \
    prefix Variable<T> slice<T>(Variable<T>, const Shape&, const Shape&);                                              \
    prefix Variable<T> softmax<T>(Variable<T>, const SoftmaxOptions&);                                                 \
    prefix Variable<T> softmax_cross_entropy<T>(Variable<T>, const Tensor<std::int32_t>&, const CrossEntropyOptions&); \
    prefix std::vector<Variable<T>> split<T>(Variable<T>, std::size_t, std::ptrdiff_t);                                \
    prefix Variable<T> sqrt<T>(Variable<T>, const UnruledOptions&);                                                    \
    prefix Variable<T> sub<T>(Variable<T>, Variable<T>, const AddOptions&);                                            \
    prefix Variable<T> sum<T>(Variable<T>, const ReductionOptions&);                                                   \
    prefix Variable<T> tanh<T>(Variable<T>, const TanhOptions&);                                                       \
    prefix Variable<T> transpose<T>(Variable<T>, const Shape&);                                                        \
    prefix Variable<T> unfold<T>(Variable<T>, const WindowPair&, const WindowOptions&);                                \
    prefix Variable<T> weighted_add<T>(std::span<const Variable<T>>, std::span<const double>,                          \
                                       const WeightedAddOptions&);

/// Explicit instantiations of a model's classes, its training step and the functions that fill its tensors; `prefix` as
/// above.
#define UNITSCALE_COMPILED_MODEL(prefix, T)                                                        \
    prefix class Tensor<T>;                                                                        \
    prefix void fill_normal<T>(Tensor<T>&, RandomKey, double);                                     \
    prefix void fill_truncated_normal<T>(Tensor<T>&, RandomKey, double, double);                   \
    prefix void fill_uniform<T>(Tensor<T>&, RandomKey, double, double);                            \
    prefix class Parameter<T>;                                                                     \
    prefix class RecordedGraph<T>;                                                                 \
    prefix class Tape<T>;                                                                          \
    prefix void nn::initialise<T>(const std::vector<Parameter<T>*>&, const Recipe&, std::uint64_t, \
                                  const nn::InitialOptions&);                                      \
    prefix class nn::Attention<T>;                                                                 \
    prefix class nn::AttentionLayers<T>;                                                           \
    prefix class nn::BatchNorm<T>;                                                                 \
    prefix class nn::Bert<T>;                                                                      \
    prefix class nn::CausalConvolution<T>;                                                         \
    prefix class nn::ChannelGains<T>;                                                              \
    prefix class nn::Context<T>;                                                                   \
    prefix class nn::Conv1d<T>;                                                                    \
    prefix class nn::Conv2d<T>;                                                                    \
    prefix class nn::Convolution<T>;                                                               \
    prefix class nn::CrossAttention<T>;                                                            \
    prefix class nn::Decoder<T>;                                                                   \
    prefix class nn::Embedding<T>;                                                                 \
    prefix class nn::EncoderDecoderBlock<T>;                                                       \
    prefix class nn::FeedForward<T>;                                                               \
    prefix class nn::GroupNorm<T>;                                                                 \
    prefix class nn::Gru<T>;                                                                       \
    prefix class nn::Highway<T>;                                                                   \
    prefix class nn::JointHighway<T>;                                                              \
    prefix class nn::KeyValueCache<T>;                                                             \
    prefix class nn::Linear<T>;                                                                    \
    prefix class nn::Lstm<T>;                                                                      \
    prefix class nn::Norm<T>;                                                                      \
    prefix class nn::Recurrent<T>;                                                                 \
    prefix class nn::RelativeAttention<T>;                                                         \
    prefix class nn::Sequential<T>;                                                                \
    prefix class nn::ResidualLayer<T>;                                                             \
    prefix class nn::TransformerBlock<T>;                                                          \
    prefix class optim::Adam<T>;                                                                   \
    prefix class optim::Lamb<T>;                                                                   \
    prefix class optim::Sgd<T>;

// Each type: declared here, made elsewhere. A source of the compiled library has UNITSCALE_COMPILE, and makes one.
#ifdef UNITSCALE_COMPILED_FLOAT
namespace unitscale::ops {
UNITSCALE_COMPILED_OPS(extern template, float)
}  // namespace unitscale::ops
namespace unitscale {
UNITSCALE_COMPILED_MODEL(extern template, float)
}  // namespace unitscale
#endif
#ifdef UNITSCALE_COMPILED_DOUBLE
namespace unitscale::ops {
UNITSCALE_COMPILED_OPS(extern template, double)
}  // namespace unitscale::ops
namespace unitscale {
UNITSCALE_COMPILED_MODEL(extern template, double)
}  // namespace unitscale
#endif
#ifdef UNITSCALE_COMPILED_HALF
namespace unitscale::ops {
UNITSCALE_COMPILED_OPS(extern template, Half)
}  // namespace unitscale::ops
namespace unitscale {
UNITSCALE_COMPILED_MODEL(extern template, Half)
}  // namespace unitscale
#endif
#ifdef UNITSCALE_COMPILED_BFLOAT16
namespace unitscale::ops {
UNITSCALE_COMPILED_OPS(extern template, BFloat16)
}  // namespace unitscale::ops
namespace unitscale {
UNITSCALE_COMPILED_MODEL(extern template, BFloat16)
}  // namespace unitscale
#endif
#ifdef UNITSCALE_COMPILE
namespace unitscale::ops {
UNITSCALE_COMPILED_OPS(template, UNITSCALE_COMPILE)
}  // namespace unitscale::ops
namespace unitscale {
UNITSCALE_COMPILED_MODEL(template, UNITSCALE_COMPILE)
}  // namespace unitscale
#endif

#undef UNITSCALE_COMPILED_OPS
#undef UNITSCALE_COMPILED_MODEL
