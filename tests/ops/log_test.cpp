// SPDX-License-Identifier: MIT
#include <unitscale/ops/log.hpp>

#include "support/propagate_checks.hpp"

#include <cmath>
#include <limits>
#include <vector>

using namespace unitscale;

TEST_CASE("log: gradient and value with stated factors; without any an error under scaling 'unit'") {
    test::check_stated_factors("log", [](auto x, const ops::UnruledOptions& options) { return ops::log(x, options); });
}

TEST_CASE("log: values and the edges of its domain") {
    test::OpTape<float> t(Scaling::none);
    const float infinity = std::numeric_limits<float>::infinity();
    const auto x = t.tape.input(Tensor<float>({4}, {1.0f, 0.0f, -1.0f, infinity}), true);
    const auto y = ops::log(x);
    CHECK(y.value()(0) == 0.0f);
    CHECK(y.value()(1) == -infinity);
    CHECK(std::isnan(y.value()(2)));
    CHECK(y.value()(3) == infinity);
    t.tape.backward(analysis::project(y, full<float>({4}, 2.0f)));
    CHECK(x.gradient()(0) == 2.0f);
    CHECK(x.gradient()(1) == infinity);
}

TEST_CASE("log: propagates scales, also where the type cannot hold the plain number") {
    const auto f = [](auto&, auto& v) { return ops::log(v[0]); };
    test::check_propagate_at(test::positive_inputs({{3, 7}}), f);
    CHECK(test::propagated_scales({{3, 7}}, {8.0}, f, 0.25) == std::vector{1.0, 0.03125});
    test::OpTape<float> t(Scaling::propagate);
    Tensor<float> x({2}, {0x1p100f, 0x1p-140f});
    x.set_scale(0x1p100);
    const auto y = ops::log(t.tape.input(std::move(x)));
    CHECK(y.value()(0) == Approx(200.0 * std::log(2.0)));
    CHECK(y.value()(1) == Approx(-40.0 * std::log(2.0)));
}
