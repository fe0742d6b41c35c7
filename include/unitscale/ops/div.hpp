// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/ops/binary.hpp>

#include <optional>

namespace unitscale::ops {

struct DivOptions {
    std::optional<BinaryUnitRule> unit{};    ///< its factors under `unit`, where the caller knows the scales; required there
    std::optional<Constraint> constraint{};  ///< joins {alpha, beta_x, beta_z}; empty: the recipe's rule
};

/// Element-wise quotient, with broadcasting.
///   y = alpha x / z          x, z broadcast to y: aligned at the last axis, extents equal or 1
///   dx = beta_x sum over copies of dy / z          dz = beta_z sum over copies of -dy x / z^2
/// No rule under `unit`: the quotient by a unit normal has no variance. State the factors with `.unit`, for a z away from 0.
/// Division by 0 gives infinity, 0/0 NaN. Errors: shapes that do not broadcast; scaling `unit` without `.unit`.
/// Test: tests/ops/div_test.cpp
template <class T>
[[nodiscard]] Variable<T> div(Variable<T> x, Variable<T> z, const DivOptions& options = {}) {
    using A = Accum<T>;
    Tape<T>& tape = x.tape("div");
    check(
        !tape.unit_scaled() || options.unit.has_value(),
        "div: no rule for scaling 'unit'; state its factors with {.unit = BinaryUnitRule{.alpha = a, .beta_x = b, .beta_z = c}}");
    const BinaryUnitRule factors = effective_factors("div", tape, options.unit.value_or(BinaryUnitRule{}), options.constraint);
    return record_binary(
        "div", x, z, factors, [](A u, A v) { return u / v; }, [](A, A v) { return A(1) / v; },
        [](A u, A v) { return -u / (v * v); });
}

}  // namespace unitscale::ops
