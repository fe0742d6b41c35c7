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

// The heavy templates of this layer, compiled once for each element type, as unitscale/compiled.hpp has those of the
// layers below. The CMake target `unitscale::compiled` holds them where nlohmann-json was found. It then defines
// UNITSCALE_COMPILED_TRAINING, which makes unitscale/train/trainer.hpp end with this header.
// Trainers with other optimisers than Adam, and of double, which no recipe stores, are compiled where they are used.
// Without CMake, one source for each type says:
//   #define UNITSCALE_COMPILE float
//   #include <unitscale/train/compiled.hpp>
// Test: tests/train/compiled_test.cpp

/// The classes as explicit instantiations: `prefix` is `template` or `extern template`.
#define UNITSCALE_COMPILED_TRAIN(prefix, T)                   \
    prefix class EarlyJoins<T>;                               \
    prefix class ElementJoin<T>;                              \
    prefix class JoinCodes<T>;                                \
    prefix class StepGradients<T>;                            \
    prefix class TreeReducer<T>;                              \
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
