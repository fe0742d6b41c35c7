// SPDX-License-Identifier: MIT
#pragma once

// Everything that needs only Eigen, xtensor and the standard library, in the order of the layers. Headers that also need
// nlohmann-json (unitscale/train/..., unitscale/io/json_log.hpp) are included on their own.

#include <unitscale/base/cpu.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/base/parallel.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/base/version.hpp>

#include <unitscale/formats/code.hpp>
#include <unitscale/formats/counts.hpp>
#include <unitscale/formats/format.hpp>
#include <unitscale/formats/int8.hpp>
#include <unitscale/formats/minifloat.hpp>
#include <unitscale/formats/quantise.hpp>
#include <unitscale/formats/quantise_kernels.hpp>
#include <unitscale/formats/quantiser.hpp>
#include <unitscale/formats/random_words.hpp>
#include <unitscale/formats/rounding.hpp>

#include <unitscale/tensor/backend.hpp>
#include <unitscale/tensor/cast.hpp>
#include <unitscale/tensor/fill.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <unitscale/kernels/activations.hpp>
#include <unitscale/kernels/attention.hpp>
#include <unitscale/kernels/attention_rows.hpp>
#include <unitscale/kernels/broadcast.hpp>
#include <unitscale/kernels/conv1d.hpp>
#include <unitscale/kernels/dropout.hpp>
#include <unitscale/kernels/elementwise.hpp>
#include <unitscale/kernels/embedding.hpp>
#include <unitscale/kernels/gather.hpp>
#include <unitscale/kernels/layout.hpp>
#include <unitscale/kernels/matmul.hpp>
#include <unitscale/kernels/matmul_block.hpp>
#include <unitscale/kernels/matmul_micro.hpp>
#include <unitscale/kernels/matmul_pack.hpp>
#include <unitscale/kernels/matmul_pairs.hpp>
#include <unitscale/kernels/maximum.hpp>
#include <unitscale/kernels/norms.hpp>
#include <unitscale/kernels/pointwise.hpp>
#include <unitscale/kernels/reduce.hpp>
#include <unitscale/kernels/rotary.hpp>
#include <unitscale/kernels/round.hpp>
#include <unitscale/kernels/softmax.hpp>
#include <unitscale/kernels/strides.hpp>
#include <unitscale/kernels/vector_math.hpp>

#include <unitscale/scaling/constraint.hpp>
#include <unitscale/scaling/factors.hpp>
#include <unitscale/scaling/power_of_two.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/scaling/residual.hpp>
#include <unitscale/scaling/state.hpp>

#include <unitscale/autograd/backward.hpp>
#include <unitscale/autograd/graph.hpp>
#include <unitscale/autograd/observer.hpp>
#include <unitscale/autograd/parameter.hpp>
#include <unitscale/autograd/tape.hpp>
#include <unitscale/autograd/variable.hpp>

#include <unitscale/ops/abs.hpp>
#include <unitscale/ops/add.hpp>
#include <unitscale/ops/attention.hpp>
#include <unitscale/ops/binary.hpp>
#include <unitscale/ops/cast.hpp>
#include <unitscale/ops/clamp.hpp>
#include <unitscale/ops/concatenate.hpp>
#include <unitscale/ops/conv1d.hpp>
#include <unitscale/ops/div.hpp>
#include <unitscale/ops/dropout.hpp>
#include <unitscale/ops/embedding.hpp>
#include <unitscale/ops/exp.hpp>
#include <unitscale/ops/gated_silu.hpp>
#include <unitscale/ops/gather.hpp>
#include <unitscale/ops/gelu.hpp>
#include <unitscale/ops/layer_norm.hpp>
#include <unitscale/ops/linear.hpp>
#include <unitscale/ops/log.hpp>
#include <unitscale/ops/log_softmax.hpp>
#include <unitscale/ops/matmul.hpp>
#include <unitscale/ops/max.hpp>
#include <unitscale/ops/mean.hpp>
#include <unitscale/ops/mse_loss.hpp>
#include <unitscale/ops/mul.hpp>
#include <unitscale/ops/operands.hpp>
#include <unitscale/ops/pad.hpp>
#include <unitscale/ops/pow.hpp>
#include <unitscale/ops/readout.hpp>
#include <unitscale/ops/reduced_axes.hpp>
#include <unitscale/ops/relu.hpp>
#include <unitscale/ops/reshape.hpp>
#include <unitscale/ops/residual.hpp>
#include <unitscale/ops/rms_norm.hpp>
#include <unitscale/ops/rotary.hpp>
#include <unitscale/ops/rsqrt.hpp>
#include <unitscale/ops/scale.hpp>
#include <unitscale/ops/scatter_add.hpp>
#include <unitscale/ops/select.hpp>
#include <unitscale/ops/sigmoid.hpp>
#include <unitscale/ops/silu.hpp>
#include <unitscale/ops/slice.hpp>
#include <unitscale/ops/softmax.hpp>
#include <unitscale/ops/softmax_cross_entropy.hpp>
#include <unitscale/ops/sqrt.hpp>
#include <unitscale/ops/sub.hpp>
#include <unitscale/ops/sum.hpp>
#include <unitscale/ops/tanh.hpp>
#include <unitscale/ops/transpose.hpp>
#include <unitscale/ops/unary.hpp>
#include <unitscale/ops/weighted_add.hpp>

#include <unitscale/nn/attention.hpp>
#include <unitscale/nn/decoder.hpp>
#include <unitscale/nn/embedding.hpp>
#include <unitscale/nn/feed_forward.hpp>
#include <unitscale/nn/initialise.hpp>
#include <unitscale/nn/linear.hpp>
#include <unitscale/nn/norm.hpp>
#include <unitscale/nn/transformer_block.hpp>

#include <unitscale/optim/adam.hpp>
#include <unitscale/optim/clip.hpp>
#include <unitscale/optim/groups.hpp>
#include <unitscale/optim/schedule.hpp>
#include <unitscale/optim/sgd.hpp>
#include <unitscale/optim/weight_decay.hpp>

#include <unitscale/io/npy.hpp>
#include <unitscale/io/text.hpp>
#include <unitscale/io/vocabulary.hpp>

#include <unitscale/analysis/grad_check.hpp>
#include <unitscale/analysis/scale_check.hpp>
