// SPDX-License-Identifier: MIT
#include <unitscale/kernels/pointwise.hpp>

#include "kernels/kernel_checks.hpp"

#include <algorithm>
#include <limits>
#include <numbers>

using namespace unitscale;
using namespace unitscale::kernels;

namespace {

/// The largest errors of value and slope of f in T, relative (below `floor` in units of floor), over x.
template <class T, class F, class Value, class Slope>
void check_function(const char* name, const std::vector<T>& x, F f, Value value, Slope slope, double tolerance,
                    double floor) {
    const auto dy = normal_data<T>(x.size(), 9);
    std::vector<T> y(x.size());
    Doubles expected(x.size());
    INFO(name);
    pointwise_forward(Execution{}, x.data(), y.data(), size_of(x), f, Accum<T>(1.5));
    for (std::size_t i = 0; i < x.size(); ++i) expected[i] = 1.5 * value(static_cast<double>(x[i]));
    CHECK(largest_error(y, expected, floor) < tolerance);
    y = dy;
    pointwise_backward(Execution{}, x.data(), y.data(), y.data(), size_of(x), f, Accum<T>(0.75));
    for (std::size_t i = 0; i < x.size(); ++i)
        expected[i] = 0.75 * static_cast<double>(dy[i]) * slope(static_cast<double>(x[i]));
    CHECK(largest_error(y, expected, floor) < tolerance);
}

template <class T>
void check_all(double tolerance, double floor) {
    const auto x = normal_data<T>(1000, 1, 2.0);
    std::vector<T> positive = x;
    for (T& v : positive) v = static_cast<T>(std::abs(static_cast<Accum<T>>(v)) + Accum<T>(0.25));
    const auto sigmoid = [](double v) { return 1.0 / (1.0 + std::exp(-v)); };
    const auto exponential = [](double v) { return std::exp(v); };
    check_function(
        "tanh", x, TanhFunction{}, [](double v) { return std::tanh(v); },
        [](double v) { return 1.0 / (std::cosh(v) * std::cosh(v)); }, tolerance, floor);
    check_function(
        "sigmoid", x, SigmoidFunction{}, sigmoid, [=](double v) { return sigmoid(v) * sigmoid(-v); }, tolerance, floor);
    check_function(
        "erf", x, ErfFunction{}, [](double v) { return std::erf(v); },
        [](double v) { return 2.0 * std::numbers::inv_sqrtpi * std::exp(-v * v); }, tolerance, floor);
    check_function(
        "sin", x, SinFunction{}, [](double v) { return std::sin(v); }, [](double v) { return std::cos(v); }, tolerance,
        floor);
    check_function(
        "cos", x, CosFunction{}, [](double v) { return std::cos(v); }, [](double v) { return -std::sin(v); }, tolerance,
        floor);
    check_function(
        "sign", x, SignFunction{}, [](double v) { return v > 0 ? 1.0 : -1.0; }, [](double) { return 0.0; }, tolerance,
        floor);
    check_function("exp", x, ExpFunction{}, exponential, exponential, tolerance, floor);
    check_function(
        "log", positive, LogFunction{}, [](double v) { return std::log(v); }, [](double v) { return 1.0 / v; },
        tolerance, floor);
    check_function(
        "sqrt", positive, SqrtFunction{}, [](double v) { return std::sqrt(v); },
        [](double v) { return 0.5 / std::sqrt(v); }, tolerance, floor);
    check_function(
        "rsqrt", positive, RsqrtFunction{}, [](double v) { return 1.0 / std::sqrt(v); },
        [](double v) { return -0.5 * std::pow(v, -1.5); }, tolerance, floor);
    check_function(
        "abs", x, AbsFunction{}, [](double v) { return std::abs(v); }, [](double v) { return v > 0 ? 1.0 : -1.0; },
        tolerance, floor);
    check_function(
        "square", x, SquareFunction{}, [](double v) { return v * v; }, [](double v) { return 2.0 * v; }, tolerance,
        floor);
    check_function(
        "pow", positive, PowFunction<double>{-1.5}, [](double v) { return std::pow(v, -1.5); },
        [](double v) { return -1.5 * std::pow(v, -2.5); }, tolerance, floor);
    check_function(
        "clamp", x, ClampFunction<double>{-1.0, 2.5}, [](double v) { return std::clamp(v, -1.0, 2.5); },
        [](double v) { return v >= -1.0 && v <= 2.5 ? 1.0 : 0.0; }, tolerance, floor);
}

}  // namespace

TEST_CASE("element-wise functions agree with their formulas in every element type", "[kernels]") {
    check_all<double>(1e-13, 1e-3);
    check_all<float>(1e-6, 1e-3);
    check_all<Half>(1e-3, 1e-2);
    check_all<BFloat16>(6e-3, 1e-2);
}

TEST_CASE("tanh in float keeps its relative accuracy from 1e-30 to 20 and its sign", "[kernels]") {
    for (float v = 1e-30f; v < 20.0f; v *= 1.003f) {
        const double expected = std::tanh(static_cast<double>(v));
        CHECK(std::abs(static_cast<double>(hyperbolic_tangent(v)) / expected - 1.0) < 3e-7);
        CHECK(hyperbolic_tangent(-v) == -hyperbolic_tangent(v));
    }
    CHECK(hyperbolic_tangent(std::numeric_limits<float>::infinity()) == 1.0f);
    CHECK(std::isnan(hyperbolic_tangent(std::numeric_limits<float>::quiet_NaN())));
    CHECK(std::signbit(hyperbolic_tangent(-0.0f)));
}

TEST_CASE("slopes of tanh and sigmoid do not cancel far out", "[kernels]") {
    CHECK(static_cast<double>(TanhFunction{}.slope(12.0f)) == Approx(4.0 * std::exp(-24.0)).epsilon(1e-5));
    CHECK(static_cast<double>(SigmoidFunction{}.slope(20.0f)) == Approx(std::exp(-20.0)).epsilon(1e-5));
}

TEST_CASE("element-wise functions give the same bits for any thread count", "[kernels]") {
    const auto x = normal_data<float>(50001, 6);
    CHECK(threads_agree([&](const Execution& execution) {
        std::vector<float> out(2 * x.size());
        pointwise_forward(execution, x.data(), out.data(), size_of(x), TanhFunction{}, 1.0f);
        pointwise_backward(execution, x.data(), x.data(), out.data() + x.size(), size_of(x), TanhFunction{}, 1.0f);
        return out;
    }));
}
