// SPDX-License-Identifier: MIT
#pragma once

#include "support/catch.hpp"

#include <unitscale/autograd/parameter.hpp>
#include <unitscale/tensor/fill.hpp>
#include <unitscale/tensor/rescale.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

namespace unitscale::test {

/// Ten updates of a value and of gradients that have scales are those of the same plain numbers; the value's scale stays.
/// `make(parameters)` gives the optimiser, `gradient(t)` the plain gradient of update t.
template <class Make, class Gradient>
void check_scaled_updates(std::size_t length, Make make, Gradient gradient) {
    for (const auto& [value_scale, gradient_scale] : {std::pair{0x1p-6, 0x1p-20}, {0x1p9, 0x1p3}, {0.75, 1.5}}) {
        INFO("scales " << value_scale << " and " << gradient_scale);
        Parameter<double> plain("p", Shape{length}, {}), scaled("p", Shape{length}, {});
        fill_normal(plain.write(), {1, 1});
        scaled.write() = set_scaling(plain.value(), value_scale);
        auto one = make(std::vector<Parameter<double>*>{&plain});
        auto other = make(std::vector<Parameter<double>*>{&scaled});
        for (int t = 1; t <= 10; ++t) {
            plain.add_gradient(gradient(t));
            scaled.add_gradient(set_scaling(gradient(t), gradient_scale));
            one.step({}, 0.05);
            other.step({}, 0.05);
            one.clear_gradients();
            other.clear_gradients();
        }
        REQUIRE(scaled.value().scale() == value_scale);
        const Tensor<double> result = value(scaled.value());
        double worst = 0.0;
        for (std::size_t i = 0; i < length; ++i) worst = std::max(worst, std::abs(result.data()[i] - plain.value().data()[i]));
        CHECK(worst < 1e-13);
    }
}

}  // namespace unitscale::test
