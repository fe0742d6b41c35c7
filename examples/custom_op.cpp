// SPDX-License-Identifier: MIT
// A new unit-scaled op, written outside the library and checked with its tools. docs/adding_an_op.md explains it.

#include <unitscale/analysis/scale_check.hpp>
#include <unitscale/autograd/tape.hpp>
#include <unitscale/scaling/constraint.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <utility>

template <class T>
unitscale::Variable<T> hardtanh(unitscale::Variable<T> x) {
    using namespace unitscale;
    Tape<T>& tape = x.tape("hardtanh");
    double alpha = 1.0, beta = 1.0;
    if (tape.unit_scaled()) {
        alpha = 1.3920;
        beta = 1.2103;
        constrain("hardtanh", tape.recipe().constraint, alpha, beta);
    }
    const Tensor<T>& input = x.value();
    Tensor<T> y = tape.make(input.shape());  // from the tape's pool: no allocation in later steps
    for (std::size_t i = 0; i < y.size(); ++i) y.data()[i] = static_cast<T>(alpha) * std::clamp(input.data()[i], T(-1), T(1));

    return tape.record({"hardtanh", tape.next_site("hardtanh"), alpha, {beta}}, {x}, std::move(y), [](BackwardContext<T>& g) {
        Tensor<T> dx = g.take_output_gradient();
        for (std::size_t i = 0; i < dx.size(); ++i)
            dx.data()[i] *= std::abs(g.input(0).data()[i]) < T(1) ? static_cast<T>(g.beta(0)) : T(0);
        g.add(0, std::move(dx));
    });
}

int main() {
    using namespace unitscale;
    const auto f = [](auto&, auto& v) { return hardtanh(v[0]); };
    const auto x = normal<double>({4, 7}, {1, 1});

    const double error = analysis::grad_check({x}, f)[0];
    std::printf("gradient against finite differences: %s\n", error < 1e-8 ? "agrees" : "DIFFERS");

    const auto factors = analysis::factor_check({x}, f);
    std::printf("alpha %.4f, beta %.4f, constant factors: %s\n", factors.alpha.factor, factors.betas[0].factor,
                factors.alpha.error < 1e-12 && factors.betas[0].error < 1e-12 ? "yes" : "NO");

    const auto scale = analysis::scale_check<float>({{1000, 100}}, f);
    std::printf("std of the value %.2f, of the gradient %.2f (alpha over beta by the constraint)\n", scale.value.std,
                scale.gradients[0].std);
    return error < 1e-8 ? 0 : 1;
}
