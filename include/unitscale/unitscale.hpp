// SPDX-License-Identifier: MIT
#pragma once

// Everything for training that needs only Eigen, xtensor and the standard library, in the order of the layers.
// Some headers need more and are included on their own:
//   - nlohmann-json: unitscale/report/..., unitscale/train/..., unitscale/io/json_choice_questions.hpp,
//     unitscale/io/json_log.hpp, unitscale/io/json_recipe.hpp, unitscale/io/safetensors.hpp, unitscale/io/squad.hpp
//   - nlohmann-json, ICU and PCRE2: unitscale/io/json_tokeniser.hpp
//   - PCRE2: unitscale/io/byte_pair.hpp, unitscale/io/byte_pair_training.hpp, unitscale/io/split_pattern.hpp
//   - SentencePiece: unitscale/io/sentencepiece.hpp
//   - libzip: unitscale/io/npz.hpp
//   - ICU: unitscale/io/unicode_words.hpp, unitscale/io/wordpiece.hpp, unitscale/io/answer_scores.hpp,
//     unitscale/io/answer_baseline.hpp
//   - MPI and nlohmann-json: unitscale/distributed/...
//   - POSIX files: unitscale/io/atomic_file.hpp, unitscale/io/atomic_folder.hpp, unitscale/io/mapped_file.hpp,
//     unitscale/io/npy.hpp
// These headers are also left out, because few programs need them and they take long to compile:
//   io/text.hpp, io/text_stream.hpp, io/vocabulary.hpp: files, by std::filesystem and streams
//   io/tokeniser.hpp, io/bert_tokens.hpp, io/piece_training.hpp, io/sentences.hpp: parts of tokenisers
//   io/question.hpp, io/cloze_questions.hpp, io/choice_question.hpp, io/continuation_questions.hpp: questions
//   analysis/alignment.hpp, analysis/audit.hpp: the constants and factors of a whole graph
//   analysis/scale_warnings.hpp: the ops at which scale leaves its bounds
//   analysis/grad_check.hpp, analysis/scale_check.hpp: checks of an op, with a tape in double
//   analysis/statistics.hpp, analysis/statistics_kernels.hpp, analysis/operand_statistics.hpp, analysis/track.hpp,
//   analysis/tracker.hpp, analysis/row_groups.hpp, analysis/gradient_zeros.hpp, analysis/overflows.hpp: measurements
//   by an observer
//   analysis/snr.hpp: formats compared
//   analysis/bootstrap.hpp: intervals of means

#include <unitscale/base/caches.hpp>
#include <unitscale/base/cpu.hpp>
#include <unitscale/base/crc32.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/base/huge_pages.hpp>
#include <unitscale/base/machine_memory.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/base/multiply_add.hpp>
#include <unitscale/base/parallel.hpp>
#include <unitscale/base/parse_number.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/base/select.hpp>
#include <unitscale/base/vectors.hpp>
#include <unitscale/base/version.hpp>

#include <unitscale/formats/accumulate.hpp>
#include <unitscale/formats/block_codes.hpp>
#include <unitscale/formats/block_format.hpp>
#include <unitscale/formats/block_scale.hpp>
#include <unitscale/formats/code.hpp>
#include <unitscale/formats/counts.hpp>
#include <unitscale/formats/float_arithmetic.hpp>
#include <unitscale/formats/format.hpp>
#include <unitscale/formats/four_over_six.hpp>
#include <unitscale/formats/int8.hpp>
#include <unitscale/formats/minifloat.hpp>
#include <unitscale/formats/nibbles.hpp>
#include <unitscale/formats/quantise.hpp>
#include <unitscale/formats/quantise_kernels.hpp>
#include <unitscale/formats/quantise_loops.hpp>
#include <unitscale/formats/quantiser.hpp>
#include <unitscale/formats/random_words.hpp>
#include <unitscale/formats/rotation.hpp>
#include <unitscale/formats/rounding.hpp>

#include <unitscale/tensor/backend.hpp>
#include <unitscale/tensor/broadcast.hpp>
#include <unitscale/tensor/cast.hpp>
#include <unitscale/tensor/code_table.hpp>
#include <unitscale/tensor/coded_tensor.hpp>
#include <unitscale/tensor/coded_weight.hpp>
#include <unitscale/tensor/fill.hpp>
#include <unitscale/tensor/half_lanes.hpp>
#include <unitscale/tensor/minifloat_traits.hpp>
#include <unitscale/tensor/print.hpp>
#include <unitscale/tensor/rescale.hpp>
#include <unitscale/tensor/strided_loop.hpp>
#include <unitscale/tensor/tensor.hpp>
#include <unitscale/tensor/view.hpp>

#include <unitscale/products/aligned_sums.hpp>
#include <unitscale/products/blas.hpp>
#include <unitscale/products/block.hpp>
#include <unitscale/products/block_sizes.hpp>
#include <unitscale/products/blocked_product.hpp>
#include <unitscale/products/coded_elements.hpp>
#include <unitscale/products/coded_elements_avx2.hpp>
#include <unitscale/products/coded_matrix.hpp>
#include <unitscale/products/coded_panels.hpp>
#include <unitscale/products/coded_rows.hpp>
#include <unitscale/products/few_rows.hpp>
#include <unitscale/products/half_codes.hpp>
#include <unitscale/products/limited_kernels.hpp>
#include <unitscale/products/limited_matmul.hpp>
#include <unitscale/products/limited_rounding.hpp>
#include <unitscale/products/limited_sums.hpp>
#include <unitscale/products/micro_kernel.hpp>
#include <unitscale/products/operand.hpp>
#include <unitscale/products/pack.hpp>
#include <unitscale/products/pack_pairs.hpp>
#include <unitscale/products/pack_source.hpp>
#include <unitscale/products/packed_right.hpp>
#include <unitscale/products/pair_kernels.hpp>
#include <unitscale/products/product.hpp>
#include <unitscale/products/product_jobs.hpp>
#include <unitscale/products/quantise_lines.hpp>
#include <unitscale/products/register_quantiser.hpp>

#include <unitscale/kernels/activations.hpp>
#include <unitscale/kernels/amax.hpp>
#include <unitscale/kernels/attention.hpp>
#include <unitscale/kernels/attention_arguments.hpp>
#include <unitscale/kernels/attention_mask.hpp>
#include <unitscale/kernels/attention_operand.hpp>
#include <unitscale/kernels/attention_products.hpp>
#include <unitscale/kernels/attention_rows.hpp>
#include <unitscale/kernels/attention_scores.hpp>
#include <unitscale/kernels/block_lines.hpp>
#include <unitscale/kernels/block_scales.hpp>
#include <unitscale/kernels/block_strips.hpp>
#include <unitscale/kernels/broadcast.hpp>
#include <unitscale/kernels/cached_attention.hpp>
#include <unitscale/kernels/cached_lines.hpp>
#include <unitscale/kernels/coding.hpp>
#include <unitscale/kernels/conv1d.hpp>
#include <unitscale/kernels/cumulate.hpp>
#include <unitscale/kernels/dropout.hpp>
#include <unitscale/kernels/elementwise.hpp>
#include <unitscale/kernels/embedding.hpp>
#include <unitscale/kernels/exponential.hpp>
#include <unitscale/kernels/gather.hpp>
#include <unitscale/kernels/hadamard.hpp>
#include <unitscale/kernels/layout.hpp>
#include <unitscale/kernels/maximum.hpp>
#include <unitscale/kernels/norms.hpp>
#include <unitscale/kernels/pointwise.hpp>
#include <unitscale/kernels/product_along.hpp>
#include <unitscale/kernels/reduce.hpp>
#include <unitscale/kernels/rescale.hpp>
#include <unitscale/kernels/rotary.hpp>
#include <unitscale/kernels/round.hpp>
#include <unitscale/kernels/round_blocks.hpp>
#include <unitscale/kernels/softmax.hpp>
#include <unitscale/kernels/softmax_rows.hpp>
#include <unitscale/kernels/strides.hpp>
#include <unitscale/kernels/trigonometry.hpp>
#include <unitscale/kernels/vector_math.hpp>
#include <unitscale/kernels/windows.hpp>

#include <unitscale/scaling/code_rule.hpp>
#include <unitscale/scaling/communication.hpp>
#include <unitscale/scaling/constraint.hpp>
#include <unitscale/scaling/element.hpp>
#include <unitscale/scaling/factors.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/scaling/loss_scaling.hpp>
#include <unitscale/scaling/magnitudes.hpp>
#include <unitscale/scaling/operand_rule.hpp>
#include <unitscale/scaling/parameter_facts.hpp>
#include <unitscale/scaling/parametrisation.hpp>
#include <unitscale/scaling/power_of_two.hpp>
#include <unitscale/scaling/product_rule.hpp>
#include <unitscale/scaling/propagate.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/scaling/residual.hpp>
#include <unitscale/scaling/state.hpp>
#include <unitscale/scaling/storage.hpp>
#include <unitscale/scaling/tensor_scale.hpp>

#include <unitscale/autograd/backward.hpp>
#include <unitscale/autograd/carried_scales.hpp>
#include <unitscale/autograd/cut_edges.hpp>
#include <unitscale/autograd/graph.hpp>
#include <unitscale/autograd/handles.hpp>
#include <unitscale/autograd/observer.hpp>
#include <unitscale/autograd/op_info.hpp>
#include <unitscale/autograd/parameter.hpp>
#include <unitscale/autograd/planner.hpp>
#include <unitscale/autograd/recompute.hpp>
#include <unitscale/autograd/recorded_graph.hpp>
#include <unitscale/autograd/site_counter.hpp>
#include <unitscale/autograd/tape.hpp>
#include <unitscale/autograd/variable.hpp>

#include <unitscale/record/arguments.hpp>
#include <unitscale/record/attention_formats.hpp>
#include <unitscale/record/attention_rounding.hpp>
#include <unitscale/record/attention_sizes.hpp>
#include <unitscale/record/bias.hpp>
#include <unitscale/record/binary.hpp>
#include <unitscale/record/conv1d_shape.hpp>
#include <unitscale/record/factors.hpp>
#include <unitscale/record/ids.hpp>
#include <unitscale/record/key_value_rows.hpp>
#include <unitscale/record/linear_products.hpp>
#include <unitscale/record/op.hpp>
#include <unitscale/record/operand_rounding.hpp>
#include <unitscale/record/packed_weight.hpp>
#include <unitscale/record/prepared_operand.hpp>
#include <unitscale/record/reduced_axes.hpp>
#include <unitscale/record/same_scale.hpp>
#include <unitscale/record/softmax_factors.hpp>
#include <unitscale/record/unary.hpp>
#include <unitscale/record/windows.hpp>

#include <unitscale/ops/abs.hpp>
#include <unitscale/ops/add.hpp>
#include <unitscale/ops/argmax.hpp>
#include <unitscale/ops/argmin.hpp>
#include <unitscale/ops/attention.hpp>
#include <unitscale/ops/cached_attention.hpp>
#include <unitscale/ops/cast.hpp>
#include <unitscale/ops/clamp.hpp>
#include <unitscale/ops/compare.hpp>
#include <unitscale/ops/concatenate.hpp>
#include <unitscale/ops/constant.hpp>
#include <unitscale/ops/conv1d.hpp>
#include <unitscale/ops/conv2d.hpp>
#include <unitscale/ops/cos.hpp>
#include <unitscale/ops/cumsum.hpp>
#include <unitscale/ops/custom_scale.hpp>
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
#include <unitscale/nn/llama.hpp>
#include <unitscale/nn/module.hpp>
#include <unitscale/nn/norm.hpp>
#include <unitscale/nn/operators.hpp>
#include <unitscale/nn/published_shapes.hpp>
#include <unitscale/nn/recurrent.hpp>
#include <unitscale/nn/relative_attention.hpp>
#include <unitscale/nn/residual_layer.hpp>
#include <unitscale/nn/sequential.hpp>
#include <unitscale/nn/transformer_block.hpp>
#include <unitscale/nn/unit_scaling_model.hpp>

#include <unitscale/optim/adam.hpp>
#include <unitscale/optim/any_optimiser.hpp>
#include <unitscale/optim/clip.hpp>
#include <unitscale/optim/groups.hpp>
#include <unitscale/optim/lamb.hpp>
#include <unitscale/optim/loss_scaler.hpp>
#include <unitscale/optim/optimiser.hpp>
#include <unitscale/optim/quantise_gradients.hpp>
#include <unitscale/optim/rescale_state.hpp>
#include <unitscale/optim/schedule.hpp>
#include <unitscale/optim/sgd.hpp>
#include <unitscale/optim/stored_tensor.hpp>
#include <unitscale/optim/stored_update.hpp>
#include <unitscale/optim/weight_decay.hpp>
#include <unitscale/optim/whole_recipe.hpp>

#include <unitscale/io/format_fields.hpp>
#include <unitscale/io/text_table.hpp>

#ifdef UNITSCALE_COMPILED  // defined by the CMake target unitscale::compiled
#include <unitscale/compiled.hpp>
#endif
