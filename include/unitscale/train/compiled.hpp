// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/optim/adam.hpp>
#include <unitscale/tensor/tensor.hpp>
#include <unitscale/train/early_joins.hpp>
#include <unitscale/train/join_codes.hpp>
#include <unitscale/train/join_elements.hpp>
#include <unitscale/train/step_gradients.hpp>
#include <unitscale/train/trainer.hpp>
#include <unitscale/train/tree_reducer.hpp>

// This header instantiates the heavy templates of the layer `train` for each element type. For the layers below it,
// unitscale/compiled.hpp does. The CMake target `unitscale::compiled` holds both, if CMake has found nlohmann-json. The
// target then defines UNITSCALE_COMPILED_TRAINING, and unitscale/train/trainer.hpp ends with this header.
// A source compiles a trainer itself if its optimiser is not Adam, or its element type is double.
// Without CMake, define UNITSCALE_COMPILED_TRAINING for all sources, and let one source for each type say:
//   #define UNITSCALE_COMPILE float
//   #include <unitscale/train/compiled.hpp>
// Test: tests/train/compiled_test.cpp

/// The classes as explicit instantiations: `prefix` is `template` or `extern template`.
#define UNITSCALE_COMPILED_TRAIN(prefix, T) \
    prefix class EarlyJoins<T>;             \
    prefix class ElementJoin<T>;            \
    prefix class JoinCodes<T>;              \
    prefix struct StepGradients<T>;         \
    prefix class TreeReducer<T>;            \
    prefix class Trainer<T, optim::Adam<T>>;

// Each type: declared here, made elsewhere. A source of the compiled library has UNITSCALE_COMPILE, and makes one.
namespace unitscale::train {
#ifdef UNITSCALE_COMPILED_FLOAT
UNITSCALE_COMPILED_TRAIN(extern template, float)
#endif
#ifdef UNITSCALE_COMPILED_HALF
UNITSCALE_COMPILED_TRAIN(extern template, Half)
#endif
#ifdef UNITSCALE_COMPILED_BFLOAT16
UNITSCALE_COMPILED_TRAIN(extern template, BFloat16)
#endif
#ifdef UNITSCALE_COMPILE
UNITSCALE_COMPILED_TRAIN(template, UNITSCALE_COMPILE)
#endif
}  // namespace unitscale::train

#undef UNITSCALE_COMPILED_TRAIN
