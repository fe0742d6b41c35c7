// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/analysis/grad_check.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace unitscale::analysis {

/// Mean, standard deviation and root mean square of a tensor's elements, in double.
struct Moments {
    double mean = 0.0, std = 0.0, rms = 0.0;
};

template <class T>
[[nodiscard]] Moments moments(const Tensor<T>& tensor) {
    if (tensor.empty()) return {};
    const auto n = static_cast<double>(tensor.size());
    double sum = 0.0, squares = 0.0;
    for (const T& element : tensor.span()) {
        const double x = static_cast<double>(element) * tensor.scale();
        sum += x;
        squares += x * x;
    }
    const double mean = sum / n;
    double spread = 0.0;
    for (const T& element : tensor.span()) {
        const double x = static_cast<double>(element) * tensor.scale() - mean;
        spread += x * x;
    }
    return {.mean = mean, .std = std::sqrt(spread / n), .rms = std::sqrt(squares / n)};
}

/// The scale of an op's results: its value, and the gradient of each input.
struct ScaleReport {
    Moments value{};
    std::vector<Moments> gradients{};
};

/// Runs an op under `unit` with unit-normal inputs of the given shapes and a unit-normal output gradient. Every
/// standard deviation of a unit-scaled op is then near 1 (the rms, where the op's reference says so). The statistical
/// error of a standard deviation over n independent elements is (2n)^-1/2. T: float or double.
/// Test: tests/analysis/scale_check_test.cpp
template <class T, class F>
[[nodiscard]] ScaleReport scale_check(const std::vector<Shape>& shapes, F&& f, std::uint64_t seed = 1) {
    std::vector<Tensor<T>> inputs;
    for (const Shape& shape : shapes)
        inputs.push_back(normal<T>(shape, {seed, mix(hash_name("input"), inputs.size())}));
    const OpRun<T> run = run_op<T>(recipe_in<T>(plain_recipe(Scaling::unit)), inputs, f, {}, seed);
    ScaleReport report{.value = moments(run.value)};
    for (const Tensor<T>& gradient : run.gradients) report.gradients.push_back(moments(gradient));
    return report;
}

}  // namespace unitscale::analysis
