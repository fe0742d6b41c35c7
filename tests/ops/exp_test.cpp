// SPDX-License-Identifier: MIT
#include <unitscale/ops/exp.hpp>

#include "support/propagate_checks.hpp"

#include <cmath>
#include <limits>
#include <vector>

using namespace unitscale;

TEST_CASE("exp: gradient and value with stated factors; without any an error under scaling 'unit'") {
    test::check_stated_factors("exp", [](auto x, const ops::UnruledOptions& options) { return ops::exp(x, options); });
}

TEST_CASE("exp: values and the edges of its domain") {
    test::OpTape<float> t(Scaling::none);
    const float infinity = std::numeric_limits<float>::infinity();
    const auto x = t.tape.input(Tensor<float>({4}, {0.0f, 1.0f, 1000.0f, -infinity}), true);
    const auto y = ops::exp(x);
    CHECK(y.value()(0) == 1.0f);
    CHECK(y.value()(1) == Approx(2.7182818f));
    CHECK(y.value()(2) == infinity);
    CHECK(y.value()(3) == 0.0f);
    t.tape.backward(analysis::project(y, full<float>({4}, 2.0f)));
    CHECK(x.gradient()(1) == Approx(5.4365637f));
    CHECK(x.gradient()(3) == 0.0f);
}

TEST_CASE("exp: propagates scales") {
    const auto f = [](auto&, auto& v) { return ops::exp(v[0]); };
    test::check_propagate({{3, 7}}, f);
    CHECK(test::propagated_scales({{3, 7}}, {8.0}, f, 0.25) == std::vector{1.0, 0.25});
}
