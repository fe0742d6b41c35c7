// SPDX-License-Identifier: MIT
#pragma once

#include <cmath>

// The sizes of the numbers inside nn::JointHighway at initialisation, from theory.
namespace unitscale::test {

/// Root mean squares in a JointHighway of unit weights and equal widths, with an output gradient of unit size, after
/// many positions. Inputs of a step's functions are independent normals of the variance v. A state's mean square is q.
/// A product's factors keep the mean square of the numbers in [x, h], hence v = (input^2 + q) / 2.
struct HighwaySizes {
    double first = 0.0;      ///< of the state after the first position, which begins at 0
    double state = 0.0;      ///< of y: a mixture of a smaller state and a number in (-1, 1)
    double candidate = 0.0;  ///< of tanh(t)
    double gates = 0.0;      ///< of the gradient of the gates' inputs, which the product passes on to x
    double of_state = 0.0, of_candidate = 0.0;  ///< of the gradients of a state and of tanh(t)
    double of_t = 0.0, of_u = 0.0;              ///< of the gradients of both gates' inputs
    double before = 0.0;                        ///< of the gradient that a state gets from the position after it
    double bias = 0.0;  ///< of the bias' gradient: the gradients of t at two positions are correlated
};

[[nodiscard]] inline HighwaySizes highway_sizes(double shift, double input = 1.0) {
    double v = 0.0, q = 0.0;
    const auto mean = [&](auto f) {  // of f over a normal number of the variance v
        double sum = 0.0, weights = 0.0;
        for (int i = -400; i <= 400; ++i) {
            const double z = 0.02 * i, weight = std::exp(-0.5 * z * z);
            sum += weight * f(std::sqrt(v) * z);
            weights += weight;
        }
        return sum / weights;
    };
    const auto sigmoid = [](double x) { return 1.0 / (1.0 + std::exp(-x)); };
    const auto open = [&](double u) { return sigmoid(u - shift); };
    const auto shut = [&](double u) { return sigmoid(shift - u); };
    const auto flat = [](double t) { return 1.0 - std::tanh(t) * std::tanh(t); };  // tanh's slope
    double kept = 0.0, opened = 0.0, candidate = 0.0, first = 0.0;                 // mean squares
    for (int i = 0; i < 100; ++i) {
        v = (input * input + q) / 2.0;
        kept = mean([&](double u) { return shut(u) * shut(u); });
        opened = mean([&](double u) { return open(u) * open(u); });
        candidate = mean([](double t) { return std::tanh(t) * std::tanh(t); });
        if (i == 0) first = opened * candidate;
        q = kept * q + opened * candidate;
    }
    // Mean squares of the slopes of h for t and u. A state's gradient has the mean square g: 1 from y, and what the
    // next position sends back past its gate and through its product.
    const double slope_t = opened * mean([&](double t) { return flat(t) * flat(t); }),
                 slope_u = (candidate + q) * mean([&](double u) { return std::pow(open(u) * shut(u), 2); }),
                 d_per_g = (slope_t + slope_u) / 2.0, g = 1.0 / (1.0 - kept - d_per_g);
    // The gradient of a state k positions ahead stands in this one's with the mean factor (1 - s)^k.
    const double passed = mean(shut), slope = mean(flat),
                 together = 2.0 * (mean(open) * slope) * (mean([&](double u) { return open(u) * shut(u); }) * slope) /
                            (1.0 - passed);
    return {.first = std::sqrt(first),
            .state = std::sqrt(q),
            .candidate = std::sqrt(candidate),
            .gates = std::sqrt(g * d_per_g),
            .of_state = std::sqrt(g),
            .of_candidate = std::sqrt(g * opened),
            .of_t = std::sqrt(g * slope_t),
            .of_u = std::sqrt(g * slope_u),
            .before = std::sqrt(g - 1.0),
            .bias = std::sqrt(g * (d_per_g + together / 2.0))};
}

}  // namespace unitscale::test
