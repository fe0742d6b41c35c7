// SPDX-License-Identifier: MIT
// 4. A new unit-scaled op, written outside the library and put to the library's three checks: gradient, factors, scale.
// It is written twice, in full and with the short cut for element-wise ops. docs/adding_an_op.md explains it.
// Run: g++ -std=c++20 -O2 -Iinclude -I/usr/include/eigen3 examples/4_custom_op.cpp && ./a.out

#include <unitscale/analysis/scale_check.hpp>
#include <unitscale/record/op.hpp>
#include <unitscale/record/unary.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <utility>

template <class T>
unitscale::Variable<T> hardtanh(unitscale::Variable<T> x) {
    using namespace unitscale;
    auto op = ops::begin_op("hardtanh", x);                    // its tape, and its place in the model
    op.set_factors({.alpha = 1.3920, .betas = {1.2103}}, {});  // {}: joined by the recipe's rule
    const Tensor<T>& input = op.input(0);                      // data, and under `propagate` a scale
    const Scaled scaled = op.scaled_alpha(1.0);                // alpha, or 1 and a scale
    const auto alpha = static_cast<T>(scaled.factor), s = static_cast<T>(input.scale());
    Tensor<T> y = op.make(input.shape());  // from the tape's pool: no allocation in later steps
    for (std::size_t i = 0; i < y.size(); ++i) y.data()[i] = alpha * std::clamp(s * input.data()[i], T(-1), T(1));

    return op.record(std::move(y), scaled.scale, {.reads = reads_inputs}, [s](BackwardContext<T>& g) {
        const Scaled dx_scaled = g.scaled_beta(0);
        Tensor<T> dx = g.take_output_gradient();
        for (std::size_t i = 0; i < dx.size(); ++i)
            dx.data()[i] *= std::abs(s * g.input(0).data()[i]) < T(1) ? static_cast<T>(dx_scaled.factor) : T(0);
        g.add(0, std::move(dx), dx_scaled.scale);
    });
}

// A shorter way, as the library's own element-wise ops have it: the function, its derivative and the two ideal factors.
struct HardtanhFunction {
    template <class A>
    A value(A v) const noexcept {
        return std::clamp(v, A(-1), A(1));
    }
    template <class A>
    A slope(A v) const noexcept {
        return std::abs(v) < A(1) ? A(1) : A(0);
    }
};

template <class T>
unitscale::Variable<T> short_hardtanh(unitscale::Variable<T> x) {
    using namespace unitscale;
    auto op = ops::begin_op("hardtanh", x);
    op.set_factors({.alpha = 1.3920, .betas = {1.2103}}, {});
    return ops::record_pointwise(op, HardtanhFunction{});
}

// One call per check. Returns whether the op passes.
template <class F>
bool passes(const char* title, F f) {
    using namespace unitscale;
    const auto x = normal<double>({4, 7}, {1, 1});
    const auto gradient_errors = analysis::grad_check({x}, f);          // largest relative error per input
    const auto factors = analysis::factor_check({x}, f);                // alpha and betas: `unit` over `none`
    const auto scale = analysis::scale_check<float>({{1000, 100}}, f);  // mean, std, rms for unit normals

    const bool right = gradient_errors[0] < 1e-8;
    const bool constant = factors.alpha.error < 1e-12 && factors.betas[0].error < 1e-12;
    std::printf("%s\n  gradient against finite differences: %s\n", title, right ? "agrees" : "DIFFERS");
    std::printf("  alpha %.4f, beta %.4f, constant factors: %s\n", factors.alpha.factor, factors.betas[0].factor,
                constant ? "yes" : "NO");
    std::printf("  std of the value %.2f, of the gradient %.2f (alpha over beta by the constraint)\n", scale.value.std,
                scale.gradients[0].std);
    return right && constant && std::abs(scale.value.std - 1.0) < 0.01;
}

int main() {
    const bool first = passes("hardtanh", [](auto&, auto& v) { return hardtanh(v[0]); });
    const bool second = passes("hardtanh, the short way", [](auto&, auto& v) { return short_hardtanh(v[0]); });
    return first && second ? 0 : 1;
}
