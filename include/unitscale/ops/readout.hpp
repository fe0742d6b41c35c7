// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/ops/linear.hpp>
#include <unitscale/ops/operands.hpp>

#include <cstddef>
#include <optional>

namespace unitscale::ops {

struct ReadoutOptions {
    Constraint constraint = Constraint::none;  ///< joins {alpha, beta_x}; with tied embeddings: to_output_scale
};

/// Ideal factors of the readout under `unit`: see `readout`.
[[nodiscard]] inline LinearFactors readout_unit_factors(std::size_t in, std::size_t out, std::size_t rows) noexcept {
    return {.alpha = in == 0 ? 1.0 : 1.0 / static_cast<double>(in), .beta_x = rsqrt_count(out), .beta_weight = rsqrt_count(rows)};
}

/// The last linear layer, onto the vocabulary.
///   y = alpha x weight^T     x [...,in]   weight [out,in]   y [...,out]
/// Factors under `unit`: alpha = 1/in, so that the logits' standard deviation is in^-1/2 at first and does not grow with
/// the width during training, where x and weight become correlated (u-µP); beta_x = out^-1/2, beta_w = N^-1/2 as in
/// `linear`. Its input is a cut-edge unless the weight is shared with the embedding, hence no constraint by default.
/// Rounding: by the recipe, kind `readout`. Errors: as `linear`.
/// Reference: Blake et al. 2024, arXiv:2407.17465, table 2. Test: tests/ops/readout_test.cpp
template <class T>
[[nodiscard]] Variable<T> readout(Variable<T> x, Variable<T> weight, const ReadoutOptions& options = {}) {
    return record_linear("readout", ProductKind::readout, x, weight, {}, [&](std::size_t in, std::size_t out, std::size_t rows) {
        LinearFactors factors = readout_unit_factors(in, out, rows);
        constrain("readout", options.constraint, factors.alpha, factors.beta_x);
        return factors;
    });
}

}  // namespace unitscale::ops
