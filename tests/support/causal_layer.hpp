// SPDX-License-Identifier: MIT
#pragma once

#include "support/language_model.hpp"
#include "support/op_checks.hpp"

#include <unitscale/analysis/audit.hpp>
#include <unitscale/nn/initialise.hpp>
#include <unitscale/nn/module.hpp>
#include <unitscale/ops/add.hpp>
#include <unitscale/scaling/known_recipes.hpp>

#include <algorithm>
#include <cstddef>
#include <map>
#include <string>

namespace unitscale::test {

/// y, and the gradients of x and of all parameters, as plain numbers by name.
using LayerRun = std::map<std::string, Tensor<double>>;

template <class T>
[[nodiscard]] Tensor<double> plain_numbers(const Tensor<T>& tensor) {
    Tensor<double> plain(tensor.shape());
    for (std::size_t i = 0; i < plain.size(); ++i)
        plain.data()[i] = static_cast<double>(static_cast<Accum<T>>(tensor.data()[i])) * tensor.scale();
    return plain;
}

/// The gradient of y is normal.
template <class Layer, class T>
[[nodiscard]] LayerRun run_layer(Layer& layer, const Recipe& recipe, const Tensor<T>& x, int threads = 1) {
    ScalingState state(1);
    Tape<T> tape(recipe_in<T>(recipe), state, threads);
    tape.begin_step();
    const Variable<T> input = tape.input(x, true), y = layer(input);
    LayerRun run{{"y", plain_numbers(y.value())}};
    for (Parameter<T>* parameter : nn::parameters_of<T>(layer)) parameter->clear_gradient();
    tape.backward(analysis::project(y, cast<T>(normal<double>(y.shape(), {1, 2}))));
    run["x"] = plain_numbers(input.gradient());
    for (const Parameter<T>* parameter : nn::parameters_of<T>(layer))
        run[parameter->name()] = plain_numbers(parameter->gradient());
    return run;
}

/// The largest error of a tensor of `run`, relative to its largest element.
[[nodiscard]] inline double largest_error(const LayerRun& run, const LayerRun& expected) {
    double largest = 0.0;
    for (const auto& [name, tensor] : expected)
        largest = std::max(largest, analysis::relative_error(run.at(name), tensor));
    return largest;
}

/// Checks a layer from x [B,T,in] to y [B,T,out] that sees no later position, as Layer<T>(path, config):
/// - gradients of x and all parameters agree with finite differences;
/// - 2 threads give the bits of 1;
/// - under `propagate`, with scales at x and all parameters, results equal those under `none`;
/// - in Half and BFloat16, results equal float's, from equal numbers, but for `roundings` times the unit roundoff;
/// - a change of x changes y from its position on, and not a bit before it.
template <template <class> class Layer, class Config>
void check_causal_layer(const Config& config, double roundings) {
    const Recipe none = analysis::plain_recipe(Scaling::none);
    Layer<double> wide("net", config);
    const auto parameters = nn::parameters_of<double>(wide);
    randomise(parameters, 0.5);
    const Shape shape{2, 5, config.in};
    Tensor<double> x = normal<double>(shape, {1, 1});
    const LayerRun run = run_layer(wide, none, x);

    const Tensor<double> direction = normal<double>(run.at("y").shape(), {1, 2});
    const auto slope = [&](double& element) {
        const double before = element, step = 1e-5;
        const auto loss = [&](double value) {
            element = value;
            const Tensor<double> y = run_layer(wide, none, x).at("y");
            double sum = 0.0;
            for (std::size_t i = 0; i < y.size(); ++i) sum += direction.data()[i] * y.data()[i];
            return sum;
        };
        const double difference = loss(before + step) - loss(before - step);
        element = before;
        return difference / (2.0 * step);
    };
    for (std::size_t i = 0; i < x.size(); i += 3)
        CHECK(run.at("x").data()[i] == Approx(slope(x.data()[i])).epsilon(1e-6).margin(1e-7));
    for (Parameter<double>* parameter : parameters)
        for (std::size_t i = 0; i < parameter->size(); i += 3) {
            INFO(parameter->name() << " " << i);
            CHECK(run.at(parameter->name()).data()[i] ==
                  Approx(slope(parameter->write().data()[i])).epsilon(1e-6).margin(1e-7));
        }

    CHECK(largest_error(run_layer(wide, none, x, 2), run) == 0.0);

    Layer<double> scaled("net", config);
    const auto with_scale = [](Tensor<double> tensor, double scale) {
        for (double& element : tensor.span()) element /= scale;
        tensor.set_scale(scale);
        return tensor;
    };
    const auto of_scaled = nn::parameters_of<double>(scaled);
    for (std::size_t i = 0; i < parameters.size(); ++i)
        of_scaled[i]->write() = with_scale(parameters[i]->value(), i == 0 ? 0.25 : 8.0);
    const Recipe propagate = analysis::plain_recipe(Scaling::propagate);
    CHECK(largest_error(run_layer(scaled, propagate, with_scale(x, 4.0)), run) < 1e-9);

    const auto check_narrow = [&]<class T>(T, double roundoff) {
        Layer<T> narrow("net", config);
        Layer<float> same("net", config);
        const auto of_narrow = nn::parameters_of<T>(narrow);
        const auto of_same = nn::parameters_of<float>(same);
        for (std::size_t i = 0; i < parameters.size(); ++i) {
            of_narrow[i]->write() = cast<T>(parameters[i]->value());
            of_same[i]->write() = cast<float>(of_narrow[i]->value());
        }
        const Tensor<T> rounded = cast<T>(x);
        for (const Scaling scaling : {Scaling::none, Scaling::unit}) {
            INFO(name(scaling) << ", unit roundoff " << roundoff);
            const Recipe recipe = analysis::plain_recipe(scaling);
            const double error =
                largest_error(run_layer(narrow, recipe, rounded), run_layer(same, recipe, cast<float>(rounded)));
            CHECK(error > 0.0);
            CHECK(error < roundings * roundoff);
        }
    };
    check_narrow(Half(0.0F), 0x1p-11);
    check_narrow(BFloat16(0.0F), 0x1p-8);

    const std::size_t changed = 3, columns = run.at("y").shape()[2];
    for (std::size_t i = 0; i < config.in; ++i) x(0, changed, i) += 1.0;
    const Tensor<double> y = run_layer(wide, none, x).at("y");
    bool differs = false;
    for (std::size_t b = 0; b < shape[0]; ++b)
        for (std::size_t t = 0; t < shape[1]; ++t)
            for (std::size_t i = 0; i < columns; ++i) {
                if (b == 1 || t < changed) CHECK(y(b, t, i) == run.at("y")(b, t, i));
                else differs = differs || y(b, t, i) != run.at("y")(b, t, i);
            }
    CHECK(differs);
}

/// Checks that a layer's factors are consistent in a residual layer x + f(x), for each rule of a recipe, and that the
/// plan which a rule needs is enough.
template <template <class> class Layer, class Config>
void check_audit(const Config& config) {
    for (const Constraint rule : {Constraint::to_output_scale, Constraint::gmean}) {
        INFO(name(rule));
        Recipe recipe = find_recipe("us-fp32");
        recipe.automatic_rule = rule;
        Layer<float> layer("net", config);
        nn::initialise(nn::parameters_of<float>(layer), recipe, 1);
        ScalingState state(1);
        Tape<float> tape(recipe, state);
        const auto loss = [&] {
            const Variable<float> x = tape.input(normal<float>({2, 5, config.in}, {1, 1}), true);
            return analysis::project(ops::add(x, layer(x)), normal<float>({2, 5, config.in}, {1, 2}));
        };
        tape.plan(loss);
        tape.begin_step();
        const Variable<float> end = loss();
        const analysis::Audit audit = analysis::audit(tape, end);
        CHECK(audit.faults.empty());
        CHECK(audit.leaves.size() == nn::parameters_of<float>(layer).size() + 1);  // and x
    }
}

}  // namespace unitscale::test
