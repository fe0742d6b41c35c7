// SPDX-License-Identifier: MIT
// 3. A gradient: two ops on a tape, the backward pass, finite differences, and the changes by unit scaling.
// Run: g++ -std=c++20 -O2 -Iinclude -I/usr/include/eigen3 examples/3_gradient.cpp && ./a.out

#include <unitscale/analysis/grad_check.hpp>
#include <unitscale/analysis/scale_check.hpp>
#include <unitscale/ops/linear.hpp>
#include <unitscale/ops/mse_loss.hpp>
#include <unitscale/ops/tanh.hpp>
#include <unitscale/scaling/known_recipes.hpp>

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <vector>

using namespace unitscale;

struct Result {
    double loss = 0.0;
    Tensor<double> gradient{};  // d loss / d weight
};

/// loss = mean of (tanh(x weight^T) - target)^2 over a batch of 64, and its gradient. Double, as finite differences ask
/// for.
Result loss_and_gradient(const Recipe& recipe, const Tensor<double>& weight) {
    ScalingState state(1);             // what outlives a step: places of ops, random streams
    Tape<double> tape(recipe, state);  // records ops as they run
    tape.begin_step();                 // all handles of the step before end here
    const Variable<double> x = tape.input(normal<double>({64, 16}, {.seed = 1, .stream = 1}));
    const Variable<double> target = tape.input(normal<double>({64, 8}, {.seed = 1, .stream = 2}));
    const Variable<double> w = tape.input(weight, /*requires_gradient=*/true);
    const Variable<double> y = ops::tanh(ops::linear(x, w));
    const Variable<double> loss = ops::mse_loss(y, target);
    tape.backward(loss);  // walks the recorded ops back
    return {.loss = loss.item(), .gradient = w.gradient()};
}

int main() {
    const Tensor<double> weight = normal<double>({8, 16}, {.seed = 1, .stream = 3});

    // The textbook model: the gradient is the derivative.
    const Recipe plain = find_recipe("fp32");
    const Result result = loss_and_gradient(plain, weight);
    std::printf("loss %.4f\n\nd loss / d weight by the tape and by finite differences\n", result.loss);
    for (std::size_t column = 0; column < 3; ++column) {
        const double h = 1e-5;
        Tensor<double> above = weight, below = weight;
        above(0, column) += h;
        below(0, column) -= h;
        const double difference = loss_and_gradient(plain, above).loss - loss_and_gradient(plain, below).loss;
        std::printf("  weight[0,%zu]  %8.5f  %8.5f\n", column, result.gradient(0, column), difference / (2.0 * h));
    }

    // One call does that for every element of every input. The function gets the tape and its inputs as variables.
    const std::vector<double> errors =
        analysis::grad_check({normal<double>({3, 4}, {1, 4}), normal<double>({2, 4}, {1, 5})},
                             [](auto&, auto& v) { return ops::tanh(ops::linear(v[0], v[1])); });
    std::printf("\nlargest relative error: of x's gradient %s 1e-8, of the weight's %s 1e-8\n",
                errors[0] < 1e-8 ? "under" : "OVER", errors[1] < 1e-8 ? "under" : "OVER");

    // Under unit scaling every op multiplies its value by one constant and its gradients by others, so that all of them
    // start with a standard deviation near 1 whatever the width and the batch: numbers that 8 bits can hold. The same
    // weights then give a reparametrised model, and of each of its gradients the direction is right, the size a
    // constant multiple.
    const Result unit = loss_and_gradient(find_recipe("unit-fp32"), weight);
    std::printf("\nstandard deviation of the weight's gradient: %.4f without scaling, %.2f with unit scaling\n",
                analysis::moments(result.gradient).std, analysis::moments(unit.gradient).std);
}
