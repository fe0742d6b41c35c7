// SPDX-License-Identifier: MIT
#include <unitscale/kernels/activations.hpp>

#include "kernels/kernel_checks.hpp"

using namespace unitscale;
using namespace unitscale::kernels;

namespace {

double phi(double z) { return 0.5 * std::erfc(-z / std::sqrt(2.0)); }
double sigmoid(double z) { return 1.0 / (1.0 + std::exp(-z)); }

/// Largest errors of all activations in T against the formulas in double.
template <class T>
double worst_error(double m, double floor) {
    using A = Accum<T>;
    const Execution execution;
    const std::size_t size = 1000;
    const auto x = normal_data<T>(size, 1, 2.0), g = normal_data<T>(size, 2, 2.0), dy = normal_data<T>(size, 3);
    const Doubles xd = doubles(x), gd = doubles(g), dd = doubles(dy);
    const auto n = size_of(x);
    const A mult = static_cast<A>(m), alpha = 1.5, beta = 0.75;
    std::vector<T> y(size), z(size);
    Doubles expected(size), other(size);
    double worst = 0.0;
    const auto compare = [&](const auto& f) {
        for (std::size_t i = 0; i < size; ++i) expected[i] = f(xd[i], gd[i], dd[i]);
        worst = std::max(worst, largest_error(y, expected, floor));
    };
    gelu_forward(execution, x.data(), y.data(), n, mult, alpha);
    compare([&](double v, double, double) { return 1.5 * v * phi(m * v); });
    gelu_backward(execution, x.data(), dy.data(), y.data(), n, mult, beta);
    compare([&](double v, double, double d) {
        const double density = std::exp(-0.5 * m * v * m * v) / std::sqrt(2.0 * std::acos(-1.0));
        return 0.75 * d * (phi(m * v) + m * v * density);
    });
    const double root = std::sqrt(2.0 / std::acos(-1.0));
    const auto tanh_form_gate = [&](double v) {
        return sigmoid(2.0 * root * (m * v + 0.044715 * std::pow(m * v, 3)));
    };  // (1 + tanh) / 2
    gelu_tanh_forward(execution, x.data(), y.data(), n, mult, alpha);
    compare([&](double v, double, double) { return 1.5 * v * tanh_form_gate(v); });
    gelu_tanh_backward(execution, x.data(), dy.data(), y.data(), n, mult, beta);
    compare([&](double v, double, double d) {
        const double s = tanh_form_gate(v), slope = 2.0 * root * (1.0 + 3.0 * 0.044715 * m * v * m * v);
        return 0.75 * d * s * (1.0 + m * v * (1.0 - s) * slope);
    });
    silu_forward(execution, x.data(), y.data(), n, mult, alpha);
    compare([&](double v, double, double) { return 1.5 * v * sigmoid(m * v); });
    silu_backward(execution, x.data(), dy.data(), y.data(), n, mult, beta);
    const auto silu_slope = [&](double v) { return sigmoid(m * v) * (1.0 + m * v * (1.0 - sigmoid(m * v))); };
    compare([&](double v, double, double d) { return 0.75 * d * silu_slope(v); });
    relu_forward(execution, x.data(), y.data(), n, alpha);
    compare([&](double v, double, double) { return v > 0 ? 1.5 * v : 0.0; });
    relu_backward(execution, x.data(), dy.data(), y.data(), n, beta);
    compare([&](double v, double, double d) { return v > 0 ? 0.75 * d : 0.0; });
    gated_silu_forward(execution, x.data(), g.data(), y.data(), n, mult, alpha);
    compare([&](double v, double gate, double) { return 1.5 * v * gate * sigmoid(m * gate); });
    gated_silu_backward(execution, x.data(), g.data(), dy.data(), y.data(), z.data(), n, mult, beta);
    compare([&](double, double gate, double d) { return 0.75 * d * gate * sigmoid(m * gate); });
    y = z;
    compare([&](double v, double gate, double d) { return 0.75 * d * v * silu_slope(gate); });
    return worst;
}

}  // namespace

TEST_CASE("activations agree with their formulas in every element type", "[kernels]") {
    for (const double m : {1.0, 0.25, 3.0}) {
        CHECK(worst_error<double>(m, 1e-3) < 1e-12);
        CHECK(worst_error<float>(m, 0.1) < 2e-6);
    }
    CHECK(worst_error<Half>(1.0, 1e-2) < 6e-4);
    CHECK(worst_error<BFloat16>(1.0, 1e-2) < 5e-3);
}

TEST_CASE("gelu in float keeps its relative accuracy in the lower tail", "[kernels]") {
    std::vector<float> x, y;
    for (float v = -12.9f; v < 13.0f; v += 0.0013f) x.push_back(v);
    y.resize(x.size());
    gelu_forward(Execution{}, x.data(), y.data(), size_of(x), 1.0f, 1.0f);
    Doubles expected(x.size());
    for (std::size_t i = 0; i < x.size(); ++i) expected[i] = static_cast<double>(x[i]) * phi(static_cast<double>(x[i]));
    CHECK(largest_error(y, expected, 1e-36) < 7e-7);
}

TEST_CASE("backward of the activations is the derivative of forward", "[kernels]") {
    const Execution execution;
    const auto x = normal_data<double>(20, 4), g = normal_data<double>(20, 5), dy = normal_data<double>(20, 6);
    const auto n = size_of(x);
    std::vector<double> y(20), dx(20), dg(20);
    const double m = 1.7, alpha = 1.3;
    const auto check_against = [&](const auto& forward, const std::vector<double>& gradient, const Doubles& at) {
        const Doubles numeric = numeric_gradient(
            [&](const Doubles& v) {
                forward(v);
                return dot(y, dy);
            },
            at);
        CHECK(largest_error(gradient, numeric) < 1e-8);
    };
    gelu_backward(execution, x.data(), dy.data(), dx.data(), n, m, alpha);
    check_against([&](const Doubles& v) { gelu_forward(execution, v.data(), y.data(), n, m, alpha); }, dx, x);
    gelu_tanh_backward(execution, x.data(), dy.data(), dx.data(), n, m, alpha);
    check_against([&](const Doubles& v) { gelu_tanh_forward(execution, v.data(), y.data(), n, m, alpha); }, dx, x);
    silu_backward(execution, x.data(), dy.data(), dx.data(), n, m, alpha);
    check_against([&](const Doubles& v) { silu_forward(execution, v.data(), y.data(), n, m, alpha); }, dx, x);
    relu_backward(execution, x.data(), dy.data(), dx.data(), n, alpha);
    check_against([&](const Doubles& v) { relu_forward(execution, v.data(), y.data(), n, alpha); }, dx, x);
    gated_silu_backward(execution, x.data(), g.data(), dy.data(), dx.data(), dg.data(), n, m, alpha);
    check_against([&](const Doubles& v) { gated_silu_forward(execution, v.data(), g.data(), y.data(), n, m, alpha); },
                  dx, x);
    check_against([&](const Doubles& v) { gated_silu_forward(execution, x.data(), v.data(), y.data(), n, m, alpha); },
                  dg, g);
}

TEST_CASE("activations give the same bits for any thread count, in place too", "[kernels]") {
    const auto x = normal_data<float>(70001, 8), g = normal_data<float>(70001, 9);
    const auto n = size_of(x);
    std::vector<float> separate(x.size());
    gelu_forward(Execution{}, x.data(), separate.data(), n, 1.0f, 1.0f);
    CHECK(threads_agree([&](const Execution& execution) {
        auto y = x;
        gelu_forward(execution, y.data(), y.data(), n, 1.0f, 1.0f);
        CHECK(same_bits(y, separate));
        return y;
    }));
    CHECK(threads_agree([&](const Execution& execution) {
        std::vector<float> dx(2 * x.size());
        gated_silu_backward(execution, x.data(), g.data(), x.data(), dx.data(), dx.data() + n, n, 1.0f, 1.0f);
        return dx;
    }));
    gelu_forward<float>(Execution{}, nullptr, nullptr, 0, 1.0f, 1.0f);  // empty input
}

TEST_CASE("NaN passes through activations", "[kernels]") {
    const float x = std::nanf("");
    float y = 0.0f;
    gelu_forward(Execution{}, &x, &y, 1, 1.0f, 1.0f);
    CHECK(std::isnan(y));
    silu_forward(Execution{}, &x, &y, 1, 1.0f, 1.0f);
    CHECK(std::isnan(y));
    relu_forward(Execution{}, &x, &y, 1, 1.0f);
    CHECK(std::isnan(y));
}

TEST_CASE("the tanh form of gelu stays finite far out", "[kernels]") {
    const std::vector<float> x{-1e30f, -50.0f, 50.0f, 1e30f}, dy(4, 1.0f);
    std::vector<float> y(4);
    gelu_tanh_forward(Execution{}, x.data(), y.data(), 4, 1.0f, 1.0f);
    CHECK(std::abs(y[0]) < 1e-30f);
    CHECK(y[2] == 50.0f);
    CHECK(y[3] == 1e30f);
    gelu_tanh_backward(Execution{}, x.data(), dy.data(), y.data(), 4, 1.0f, 1.0f);
    CHECK(std::abs(y[0]) < 1e-30f);
    CHECK(std::abs(y[1]) < 1e-30f);
    CHECK(y[2] == 1.0f);
    CHECK(y[3] == 1.0f);
}

TEMPLATE_TEST_CASE("activations: gradients have the limits 0 and 1 where m x overflows, and NaN stays", "", float,
                   double) {
    using T = TestType;
    const T large = std::sqrt(std::numeric_limits<T>::max()) * T(4), m = large;
    const std::vector<T> x{large, -large, T(0), std::numeric_limits<T>::quiet_NaN()}, one(4, T(1));
    const Execution execution;
    const auto check_limits = [](const std::vector<T>& dx) {
        CHECK(std::abs(dx[0] - T(1)) < T(1e-6));
        CHECK(std::abs(dx[1]) < T(1e-6));
        CHECK(dx[2] == T(0.5));
        CHECK(std::isnan(dx[3]));
    };
    std::vector<T> dx(4), dg(4);
    silu_backward(execution, x.data(), one.data(), dx.data(), 4, m, T(1));
    check_limits(dx);
    gelu_backward(execution, x.data(), one.data(), dx.data(), 4, m, T(1));
    check_limits(dx);
    gelu_tanh_backward(execution, x.data(), one.data(), dx.data(), 4, m, T(1));
    check_limits(dx);
    gated_silu_backward(execution, one.data(), x.data(), one.data(), dx.data(), dg.data(), 4, m, T(1));
    check_limits(dg);
    CHECK(dx[0] == large);
    gelu_forward(execution, x.data(), dx.data(), 4, m, T(1));
    CHECK(dx[0] == large);
    CHECK(std::abs(dx[1]) < T(1e-6) * large);
}
