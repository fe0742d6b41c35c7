// SPDX-License-Identifier: MIT
#include <unitscale/ops/abs.hpp>

#include "support/propagate_checks.hpp"

#include <cmath>
#include <numbers>
#include <vector>

using namespace unitscale;

namespace {
const auto f = [](auto&, auto& v) { return ops::abs(v[0]); };
}

TEST_CASE("abs: gradient, factors and value") {
    test::check_gradient_and_factors({{3, 7}}, f, 1.0, {1.0});
    test::check_gradient_and_factors({{1}}, f, 1.0, {1.0});
    test::check_gradient_and_factors({{}}, f, 1.0, {1.0});
}

TEST_CASE("abs: unit root mean square; the standard deviation of the value is 0.60") {
    test::check_unit_scale({{1000, 50}}, f, std::sqrt(1.0 - 2.0 / std::numbers::pi), {1.0}, 0.02);
    CHECK(analysis::scale_check<double>({{1000, 50}}, f).value.rms == Approx(1.0).epsilon(0.02));
}

TEST_CASE("abs: value and slope at 0") {
    test::OpTape<double> t;
    const auto x = t.tape.input(Tensor<double>({3}, {-2.0, 0.0, 3.0}), true);
    const auto y = ops::abs(x);
    CHECK(y.value()(0) == 2.0);
    CHECK(y.value()(2) == 3.0);
    t.tape.backward(analysis::project(y, full<double>({3}, 4.0)));
    CHECK(x.gradient()(0) == -4.0);
    CHECK(x.gradient()(1) == 0.0);
    CHECK(x.gradient()(2) == 4.0);
}

TEST_CASE("abs: empty inputs and errors") {
    test::OpTape<float> t;
    test::check_nothing({{0, 3}}, f, {0, 3});
    REQUIRE_THROWS_WITH(ops::abs(Variable<float>()),
                        "abs: an empty Variable; make one with Tape::input, Tape::parameter or an op");
}

TEST_CASE("abs: propagates scales") {
    test::check_propagate({{3, 7}}, f);
    CHECK(test::propagated_scales({{3, 7}}, {8.0}, f, 0.25) == std::vector{8.0, 0.25});
}
