// SPDX-License-Identifier: MIT
#pragma once

#include "support/propagate_checks.hpp"

#include <cstddef>
#include <string>

// Checks of the ops that reduce along axes and have no rule under `unit`: max, min, prod.
// Such an op is called as op(x, options).
namespace unitscale::test {

inline const ops::Factors<1> stated_factors{.alpha = 3.0, .betas = {0.5}};

/// The op along given axes, with the stated factors.
template <class Op>
[[nodiscard]] auto along_axes(Op op, SmallVector<std::ptrdiff_t> axes, Constraint constraint, bool keep = false) {
    return [=](auto&, auto& v) {
        return op(v[0], {.axes = axes, .keep_axes = keep, .unit = stated_factors, .constraint = constraint});
    };
}

template <class Op>
void check_reduction_factors(Op op) {
    check_gradient_and_factors({{3, 4}}, along_axes(op, {}, Constraint::none), 3.0, {0.5});
    check_gradient_and_factors({{3, 4}}, along_axes(op, {1}, Constraint::to_output_scale), 3.0, {3.0});
    check_gradient_and_factors({{2, 3, 4}}, along_axes(op, {0, -1}, Constraint::none), 3.0, {0.5});
    check_gradient_and_factors({{2, 3, 4}}, along_axes(op, {1}, Constraint::none, true), 3.0, {0.5});
    check_gradient_and_factors({{1}}, along_axes(op, {}, Constraint::none), 3.0, {0.5});
    check_gradient_and_factors({{}}, along_axes(op, {}, Constraint::none, true), 3.0, {0.5});
}

/// Inputs without elements that keep an empty axis, and the errors of axes, constraints and missing factors.
template <class Op>
void check_reduction_errors(const std::string& name, Op op) {
    OpTape<float> unit, none(Scaling::none);
    check_nothing({{0, 3}}, along_axes(op, {1}, Constraint::none), {0});
    check_nothing({{0, 3}}, along_axes(op, {-1}, Constraint::to_output_scale, true), {0, 1});
    REQUIRE_THROWS_WITH(op(none.input({2, 3}), {.axes = {0, -2}}), name + ": axis -2 of x [2,3] is named twice");
    REQUIRE_THROWS_WITH(op(none.input({2, 3}), {.axes = {2}}), name + ": axis 2 is outside x [2,3]");
    REQUIRE_THROWS_WITH(
        op(unit.input({2, 3}), {.unit = stated_factors, .constraint = Constraint::to_left_grad_scale}),
        name + ": constraint to_left_grad_scale needs an op with two constrained inputs, this one has 1");
    REQUIRE_THROWS_WITH(
        op(unit.input({2, 3}), {}),
        name + ": no rule for scaling 'unit'; state its factors with {.unit = Factors<1>{.alpha = a, .betas = {b}}}");
}

}  // namespace unitscale::test
