// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/scaling/recipe.hpp>
#include <unitscale/scaling/state.hpp>
#include <unitscale/tensor/fill.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace unitscale::analysis {

/// A recipe with the given scaling and nothing else, for checks of single ops. Ops then join the factors that they
/// name, as inside a residual branch. (A plan would find that every input of a lone op is a cut-edge.)
[[nodiscard]] inline Recipe plain_recipe(Scaling scaling) {
    return {.name = "check", .description = "", .scaling = scaling, .constraint = Constraint::to_output_scale};
}

/// sum over i of direction[i] y[i] as an op. As a loss, its gradient for y is `direction`, sent as data with the given
/// scale.
template <class T>
[[nodiscard]] Variable<T> project(Variable<T> y, const Tensor<T>& direction, double gradient_scale = 1.0) {
    Tape<T>& tape = y.tape("project");
    check(y.shape() == direction.shape(), "project: y ", shape_text(y.shape()), " and direction ",
          shape_text(direction.shape()), " differ in shape");
    Accum<T> sum = 0;
    for (std::size_t i = 0; i < direction.size(); ++i)
        sum += static_cast<Accum<T>>(y.value().data()[i]) * static_cast<Accum<T>>(direction.data()[i]);
    Tensor<T> loss = tape.make(Shape{1});
    loss.data()[0] = static_cast<T>(sum);
    return tape.record({"project", tape.next_site("project"), 1.0, {1.0}}, {y}, std::move(loss),
                       [direction, gradient_scale](BackwardContext<T>& g) {
                           const Accum<T> seed = static_cast<Accum<T>>(g.output_gradient().data()[0]) /
                                                 static_cast<Accum<T>>(gradient_scale);
                           Tensor<T> dy = g.make(direction.shape());
                           for (std::size_t i = 0; i < dy.size(); ++i)
                               dy.data()[i] = static_cast<T>(seed * static_cast<Accum<T>>(direction.data()[i]));
                           g.add(0, std::move(dy), gradient_scale);
                       });
}

/// The value of an op and the gradients of its inputs for one given output gradient.
template <class T>
struct OpRun {
    Tensor<T> value{};
    std::vector<Tensor<T>> gradients{};
};

/// Runs `f(tape, variables)` on the inputs. The gradient that arrives at its output is `output_gradient`. If that
/// tensor is empty, the gradient is unit normal from `seed`.
template <class T, class F>
[[nodiscard]] OpRun<T> run_op(const Recipe& recipe, const std::vector<Tensor<T>>& inputs, F&& f,
                              const Tensor<T>& output_gradient = {}, std::uint64_t seed = 1, int threads = 1) {
    ScalingState state(seed);
    Tape<T> tape(recipe, state, threads);
    tape.begin_step({.retain = true});
    std::vector<Variable<T>> variables;
    for (const Tensor<T>& input : inputs) variables.push_back(tape.input(input, true));
    const Variable<T> y = f(tape, variables);
    const Tensor<T> direction =
        output_gradient.empty() ? normal<T>(y.shape(), {seed, hash_name("output gradient")}) : output_gradient;
    tape.backward(project(y, direction));
    OpRun<T> run{.value = y.value()};
    for (const Variable<T>& variable : variables) run.gradients.push_back(variable.gradient());
    return run;
}

/// Largest distance of `actual` from factor * expected, relative to the largest magnitude of factor * expected, which
/// counts as at least `floor`.
template <class T>
[[nodiscard]] double relative_error(const Tensor<T>& actual, const Tensor<T>& expected, double factor = 1.0,
                                    double floor = 1e-30) {
    check(actual.shape() == expected.shape(), "relative_error: shapes ", shape_text(actual.shape()), " and ",
          shape_text(expected.shape()), " differ");
    double largest = floor, error = 0.0;
    for (std::size_t i = 0; i < actual.size(); ++i) {
        const double want = factor * static_cast<double>(expected.data()[i]);
        const double distance = std::abs(static_cast<double>(actual.data()[i]) - want);
        largest = std::max(largest, std::abs(want));
        error = std::isnan(distance) ? distance : std::max(error, distance);
        if (std::isnan(error)) return error;
    }
    return error / largest;
}

struct GradCheckOptions {
    double step = 1e-5;      ///< h of the central difference
    std::uint64_t seed = 1;  ///< of the output gradient
};

/// Largest relative error of an op's gradients against central differences, per input, in double and under `none`:
///   (L(x + h e_i) - L(x - h e_i)) / 2h,   L = sum of G f(x), G unit normal
/// `f(tape, variables)` takes the inputs as variables and returns one. Its random choices must come from the tape.
/// The check costs two evaluations per input element: keep the inputs small. The error of a correct gradient is about
/// 1e-9.
/// Test: tests/analysis/grad_check_test.cpp
template <class F>
[[nodiscard]] std::vector<double> grad_check(const std::vector<Tensor<double>>& inputs, F&& f,
                                             const GradCheckOptions& options = {}) {
    const Recipe recipe = plain_recipe(Scaling::none);
    const OpRun<double> run = run_op<double>(recipe, inputs, f, {}, options.seed);
    const Tensor<double> direction = normal<double>(run.value.shape(), {options.seed, hash_name("output gradient")});
    const auto loss = [&](const std::vector<Tensor<double>>& at) {
        ScalingState state(options.seed);
        Tape<double> tape(recipe, state);
        tape.begin_step();
        std::vector<Variable<double>> variables;
        for (const Tensor<double>& input : at) variables.push_back(tape.input(input, true));
        return project(f(tape, variables), direction).item();
    };
    std::vector<double> errors;
    std::vector<Tensor<double>> moved = inputs;
    for (std::size_t k = 0; k < inputs.size(); ++k) {
        Tensor<double> numeric(inputs[k].shape());
        for (std::size_t i = 0; i < inputs[k].size(); ++i) {
            const double x = inputs[k].data()[i];
            moved[k].data()[i] = x + options.step;
            const double above = loss(moved);
            moved[k].data()[i] = x - options.step;
            const double below = loss(moved);
            moved[k].data()[i] = x;
            numeric.data()[i] = (above - below) / (2.0 * options.step);
        }
        errors.push_back(relative_error(run.gradients[k], numeric, 1.0, 1e-6));
    }
    return errors;
}

/// The constant factor between two tensors that are expected to be multiples of each other, and the deviation from it.
struct FactorFit {
    double factor = 0.0;  ///< least squares of actual = factor * reference
    double error = 0.0;   ///< largest deviation, relative
};

/// An op's factors as it applies them: its value and gradients under `unit`, divided by its value and gradients under
/// `none`.
struct FactorReport {
    FactorFit alpha{};
    std::vector<FactorFit> betas{};
};

template <class T>
[[nodiscard]] FactorFit fit_factor(const Tensor<T>& actual, const Tensor<T>& reference) {
    double product = 0.0, square = 0.0;
    for (std::size_t i = 0; i < actual.size(); ++i) {
        product += static_cast<double>(actual.data()[i]) * static_cast<double>(reference.data()[i]);
        square += static_cast<double>(reference.data()[i]) * static_cast<double>(reference.data()[i]);
    }
    const double factor = square > 0.0 ? product / square : 1.0;
    return {.factor = factor, .error = relative_error(actual, reference, factor)};
}

/// Runs an op under `none` and under `unit` with the same inputs and output gradient, and compares the results.
/// Each `error` is about 1e-15 for an op that applies constant factors forward and backward, as a unit-scaled op must.
template <class F>
[[nodiscard]] FactorReport factor_check(const std::vector<Tensor<double>>& inputs, F&& f, std::uint64_t seed = 1) {
    const OpRun<double> plain = run_op<double>(plain_recipe(Scaling::none), inputs, f, {}, seed);
    const OpRun<double> unit = run_op<double>(plain_recipe(Scaling::unit), inputs, f, {}, seed);
    FactorReport report{.alpha = fit_factor(unit.value, plain.value)};
    for (std::size_t i = 0; i < inputs.size(); ++i)
        report.betas.push_back(fit_factor(unit.gradients[i], plain.gradients[i]));
    return report;
}

}  // namespace unitscale::analysis
