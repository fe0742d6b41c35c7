// SPDX-License-Identifier: MIT
#include <unitscale/ops/sign.hpp>

#include "support/propagate_checks.hpp"

#include <cmath>
#include <vector>

using namespace unitscale;

namespace {
const auto f = [](auto&, auto& v) { return ops::sign(v[0]); };
}

TEST_CASE("sign: gradient, factors and value") {
    test::OpTape<double> t;
    const auto x = t.tape.input(Tensor<double>({4}, {-2.0, 0.0, 3.0, std::nan("")}), true);
    const auto y = ops::sign(x);
    CHECK(y.value()(0) == -1.0);
    CHECK(y.value()(1) == 0.0);
    CHECK(y.value()(2) == 1.0);
    CHECK(std::isnan(y.value()(3)));
    t.tape.backward(analysis::project(y, full<double>({4}, 4.0)));
    for (const double dx : x.gradient().span()) CHECK(dx == 0.0);
    // Below, a gradient that is 0 everywhere has no factor to compare, so value and gradient are checked by themselves.
    for (const Scaling scaling : {Scaling::none, Scaling::unit}) {
        const auto run =
            analysis::run_op<double>(analysis::plain_recipe(scaling), test::normal_inputs<double>({{3, 7}}), f);
        for (const double v : run.value.span()) CHECK(std::abs(v) == 1.0);
        for (const double v : run.gradients[0].span()) CHECK(v == 0.0);
    }
}

TEST_CASE("sign: unit scale of the value, zero gradient") { test::check_unit_scale({{1000, 50}}, f, 1.0, {0.0}, 0.01); }

TEST_CASE("sign: empty inputs and errors") {
    test::check_nothing({{0, 3}}, f, {0, 3});
    REQUIRE_THROWS_WITH(ops::sign(Variable<float>()),
                        "sign: an empty Variable; make one with Tape::input, Tape::parameter or an op");
}

TEST_CASE("sign: propagates scales") {
    test::check_propagate({{3, 7}}, f);
    test::OpTape<double> t(Scaling::propagate);
    const auto x = test::scaled_input(t.tape, {3, 7}, 0x1p-60);
    const auto y = ops::sign(x);
    CHECK(y.scaled().scale() == 1.0);
    t.tape.backward(analysis::project(y, normal<double>({3, 7}, {1, 2})));
    CHECK(x.gradient().any_scale());
}
