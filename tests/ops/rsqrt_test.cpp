// SPDX-License-Identifier: MIT
#include <unitscale/ops/rsqrt.hpp>

#include "support/propagate_checks.hpp"

#include <cmath>
#include <limits>
#include <vector>

using namespace unitscale;

TEST_CASE("rsqrt: gradient and value with stated factors; without any an error under scaling 'unit'") {
    test::check_stated_factors("rsqrt",
                               [](auto x, const ops::UnruledOptions& options) { return ops::rsqrt(x, options); });
}

TEST_CASE("rsqrt: values and the edges of its domain") {
    test::OpTape<float> t(Scaling::none);
    const float infinity = std::numeric_limits<float>::infinity();
    const auto x = t.tape.input(Tensor<float>({4}, {4.0f, 0.0f, -1.0f, infinity}), true);
    const auto y = ops::rsqrt(x);
    CHECK(y.value()(0) == 0.5f);
    CHECK(y.value()(1) == infinity);
    CHECK(std::isnan(y.value()(2)));
    CHECK(y.value()(3) == 0.0f);
    t.tape.backward(analysis::project(y, full<float>({4}, 2.0f)));
    CHECK(x.gradient()(0) == -0.125f);
    CHECK(x.gradient()(1) == -infinity);
}

TEST_CASE("rsqrt: propagates scales") {
    const auto f = [](auto&, auto& v) { return ops::rsqrt(v[0]); };
    test::check_propagate_at(test::positive_inputs({{3, 7}}), f);
    CHECK(test::propagated_scales({{3, 7}}, {16.0}, f, 0.25) == std::vector{0.25, 0x1p-8});
    CHECK(test::propagated_scales({{3, 7}}, {0.125}, f, 0.25) == std::vector{4.0, 16.0});
    CHECK(test::propagated_scales({{3, 7}}, {0x1p-120}, f) == std::vector{0x1p60, 0x1p127});
}
