// SPDX-License-Identifier: MIT
#pragma once

// The number formats on their own: descriptors, rounding, quantise, storage types, random words and power-of-two
// scales. Needs the standard library only: neither Eigen nor xtensor. `cmake --build <directory> --target
// unitscale_numerics` writes it as one file, numerics_single.hpp, that can be pasted into an online compiler.

#include <unitscale/base/error.hpp>
#include <unitscale/base/random.hpp>
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

#include <unitscale/scaling/power_of_two.hpp>
