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
// Without CMake, define UNITSCALE_COMPILED_TRAINING for all sources, and let one source say:
//   #define UNITSCALE_COMPILE_TRAINING
//   #include <unitscale/train/compiled.hpp>
// One source makes all types: most of its work does not depend on the type. Test: tests/train/compiled_test.cpp

#ifdef UNITSCALE_COMPILE_TRAINING
#define UNITSCALE_COMPILED_PREFIX template
#else
#define UNITSCALE_COMPILED_PREFIX extern template  // made by that one source
#endif

#define UNITSCALE_COMPILED_TRAIN(T)                    \
    UNITSCALE_COMPILED_PREFIX class EarlyJoins<T>;     \
    UNITSCALE_COMPILED_PREFIX class ElementJoin<T>;    \
    UNITSCALE_COMPILED_PREFIX class JoinCodes<T>;      \
    UNITSCALE_COMPILED_PREFIX struct StepGradients<T>; \
    UNITSCALE_COMPILED_PREFIX class TreeReducer<T>;    \
    UNITSCALE_COMPILED_PREFIX class Trainer<T, optim::Adam<T>>;

namespace unitscale::train {
#ifdef UNITSCALE_COMPILED_FLOAT
UNITSCALE_COMPILED_TRAIN(float)
#endif
#ifdef UNITSCALE_COMPILED_HALF
UNITSCALE_COMPILED_TRAIN(Half)
#endif
#ifdef UNITSCALE_COMPILED_BFLOAT16
UNITSCALE_COMPILED_TRAIN(BFloat16)
#endif
}  // namespace unitscale::train

#undef UNITSCALE_COMPILED_TRAIN
#undef UNITSCALE_COMPILED_PREFIX
