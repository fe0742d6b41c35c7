// SPDX-License-Identifier: MIT
// An op written outside the library with a scale rule of its own. Under every scaling it is one function.
// Under `propagate` its value and its gradient keep a scale, so that they fit 16 bits where plain numbers do not.
// docs/adding_an_op.md explains it.
// Run: g++ -std=c++20 -O2 -Iinclude -I/usr/include/eigen3 examples/own_scale_rule.cpp && ./a.out

#include <unitscale/analysis/grad_check.hpp>
#include <unitscale/ops/custom_scale.hpp>
#include <unitscale/tensor/cast.hpp>

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <utility>

template <class T>
unitscale::Variable<T> signed_square(unitscale::Variable<T> x) {
    using namespace unitscale;
    using A = Accum<T>;
    const Tensor<T>& a = x.scaled();  // data: x is a times a.scale(), which is 1 but under `propagate`
    return ops::custom_scale(
        "signed_square", {x},
        {.scale = a.scale() * a.scale(),  // f(s a) = s^2 f(a)
         .unit = ops::Factors<1>{.alpha = 0.5774, .betas = {0.5}}},
        [&](A factor) {
            Tensor<T> y = x.tape("signed_square").make(a.shape());
            for (std::size_t i = 0; i < y.size(); ++i) {
                const auto v = static_cast<A>(a.data()[i]);
                y.data()[i] = static_cast<T>(factor * v * std::abs(v));
            }
            return y;
        },
        [](auto& g) {
            Tensor<T> dx = g.take_output_gradient();
            for (std::size_t i = 0; i < dx.size(); ++i) {
                const auto v = static_cast<A>(g.input(0).data()[i]);
                dx.data()[i] = static_cast<T>(g.factor(0) * static_cast<A>(dx.data()[i]) * A(2) * std::abs(v));
            }
            g.add(0, std::move(dx));
        });
}

// Value and gradient of the op for 1,000 numbers near 2^-20, in 16 bits, against double.
void show(unitscale::Scaling scaling) {
    using namespace unitscale;
    const auto run = []<class T>(T, const Recipe& recipe) {
        ScalingState state(1);
        Tape<T> tape(recipe, state);
        tape.begin_step({.retain = true});
        Tensor<T> numbers = cast<T>(normal<Half>({1000}, {1, 1}));
        numbers.set_scale(0x1p-20);
        const auto x = tape.input(std::move(numbers), true);
        const auto y = signed_square(x);
        tape.backward(analysis::project(y, full<T>({1000}, T(1.0f))));
        return std::pair(y.scaled(), x.gradient());
    };
    const auto [y, dx] = run(Half(0.0f), recipe_in<Half>(analysis::plain_recipe(scaling)));
    const auto [want, gradient] = run(0.0, analysis::plain_recipe(Scaling::none));
    std::printf("%-9s  value: scale 2^%.0f, error %.2f   gradient: scale 2^%.0f, error %.2f\n", name(scaling).data(),
                std::log2(y.scale()), analysis::relative_error(value<double>(y), want), std::log2(dx.scale()),
                analysis::relative_error(value<double>(dx), gradient));
}

int main() {
    using namespace unitscale;
    const auto op = [](auto&, auto& v) { return signed_square(v[0]); };
    const auto x = normal<double>({4, 7}, {1, 1});
    const auto factors = analysis::factor_check({x}, op);
    std::printf("gradient against finite differences: %s\n",
                analysis::grad_check({x}, op)[0] < 1e-8 ? "agrees" : "DIFFERS");
    std::printf("under unit: alpha %.4f, beta %.4f\n", factors.alpha.factor, factors.betas[0].factor);
    show(Scaling::none);
    show(Scaling::propagate);
}
