// SPDX-License-Identifier: MIT
#include <unitscale/ops/lerp.hpp>

#include "support/propagate_checks.hpp"

#include <cmath>
#include <vector>

using namespace unitscale;

namespace {
const auto choose = [](auto&, auto& v) { return ops::lerp(v[0], v[1], v[2]); };
}

TEST_CASE("lerp: a gate chooses between two values") {
    test::OpTape<double> t(Scaling::unit);
    const auto x = t.tape.input(Tensor<double>({3}, {3.0, 3.0, 3.0})),
               z = t.tape.input(Tensor<double>({3}, {-1.0, -1.0, 3.0})),
               g = t.tape.input(Tensor<double>({3}, {0.0, std::log(3.0), 0.7}));
    const auto y = ops::lerp(x, z, g);
    CHECK(y.value()(0) == Approx(1.0));
    CHECK(y.value()(1) == Approx(0.0).margin(1e-12));
    CHECK(y.value()(2) == Approx(3.0));  // equal ends are kept, whatever the gate
}

TEST_CASE("lerp: gradient and factors, all of them 1") {
    test::check_gradient_and_factors({{3, 7}, {3, 7}, {3, 7}}, choose, 1.0, {1.0, 1.0, 1.0});
    test::check_gradient_and_factors({{}, {}, {}}, choose, 1.0, {1.0, 1.0, 1.0});
    test::check_nothing({{0, 3}, {0, 3}, {0, 3}}, choose, {0, 3});
}

TEST_CASE("lerp: scales of value and gradients for unit-normal inputs") {
    // (2 m)^1/2, m^1/2 and (2 d)^1/2 with m = 0.2934 and d = 0.04483, the mean squares of sigmoid and its derivative.
    const std::vector<Shape> shapes(3, Shape{1000, 100});
    test::check_unit_scale(shapes, choose, 0.766, {0.542, 0.542, 0.2995}, 0.01);
}

TEST_CASE("lerp: errors") {
    test::OpTape<float> t;
    CHECK_THROWS_WITH(ops::lerp(t.input({2, 3}), t.input({2, 3}), t.input({3})),
                      "lerp: x [2,3], z [2,3] and gate [3] differ in shape");
}

TEST_CASE("lerp: propagates scales") {
    test::check_propagate({{3, 7}, {3, 7}, {3, 7}}, choose);
    CHECK(test::propagated_scales({{3, 7}, {3, 7}, {3, 7}}, {8.0, 0.25, 2.0}, choose, 4.0) ==
          std::vector{8.0, 4.0, 4.0, 32.0});
}
