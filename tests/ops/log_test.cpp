// SPDX-License-Identifier: MIT
#include <unitscale/ops/log.hpp>

#include "support/op_checks.hpp"

#include <cmath>
#include <limits>

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
