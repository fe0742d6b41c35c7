// SPDX-License-Identifier: MIT
#include <unitscale/ops/sqrt.hpp>

#include "support/propagate_checks.hpp"

#include <cmath>
#include <limits>
#include <vector>

using namespace unitscale;

TEST_CASE("sqrt: gradient and value with stated factors; without any an error under scaling 'unit'") {
    test::check_stated_factors("sqrt",
                               [](auto x, const ops::UnruledOptions& options) { return ops::sqrt(x, options); });
}

TEST_CASE("sqrt: values and the edges of its domain") {
    test::OpTape<float> t(Scaling::none);
    const float infinity = std::numeric_limits<float>::infinity();
    const auto x = t.tape.input(Tensor<float>({4}, {4.0f, 0.0f, -1.0f, infinity}), true);
    const auto y = ops::sqrt(x);
    CHECK(y.value()(0) == 2.0f);
    CHECK(y.value()(1) == 0.0f);
    CHECK(std::isnan(y.value()(2)));
    CHECK(y.value()(3) == infinity);
    t.tape.backward(analysis::project(y, full<float>({4}, 2.0f)));
    CHECK(x.gradient()(0) == 0.5f);
    CHECK(x.gradient()(1) == infinity);
}

TEST_CASE("sqrt: propagates scales, even and odd powers of two, to the bit") {
    const auto f = [](auto&, auto& v) { return ops::sqrt(v[0]); };
    test::check_propagate_at(test::positive_inputs({{3, 7}}), f);
    CHECK(test::propagated_scales({{3, 7}}, {16.0}, f, 0.25) == std::vector{4.0, 0.0625});
    CHECK(test::propagated_scales({{3, 7}}, {8.0}, f, 0.25) == std::vector{2.0, 0.125});
    CHECK(test::propagated_scales({{3, 7}}, {0.125}, f, 0.25) == std::vector{0.25, 1.0});
    CHECK(ops::root_of_scale(6.0).rest == 1.5);
    test::OpTape<float> t(Scaling::propagate);
    Tensor<float> x({3}, {1.0f, 1.7f, 3.3f});
    x.set_scale(0.125);
    const auto y = ops::sqrt(t.tape.input(x));
    for (std::size_t i = 0; i < 3; ++i) CHECK(y.scaled()(i) == std::sqrt(2.0f * x(i)));
}
