// SPDX-License-Identifier: MIT
#include <unitscale/ops/constant.hpp>

#include "support/propagate_checks.hpp"

#include <unitscale/ops/mul.hpp>

#include <cmath>
#include <limits>

using namespace unitscale;

TEST_CASE("constant: value and shape; no gradient, no factors") {
    for (const Scaling scaling : {Scaling::none, Scaling::unit}) {
        test::OpTape<float> t(scaling);
        const auto y = ops::constant(t.tape, -2.5);
        CHECK(y.shape() == Shape{1});
        CHECK(y.value()(0) == -2.5f);
        CHECK_FALSE(y.requires_gradient());
        const auto many = ops::constant(t.tape, 0.75, {2, 3});
        CHECK(many.shape() == Shape{2, 3});
        for (const float v : many.value().span()) CHECK(v == 0.75f);
        CHECK(ops::constant(t.tape, 1.0, {0, 3}).shape() == Shape{0, 3});
    }
}

TEST_CASE("constant: a factor of 1 in a product") {
    test::check_gradient_and_factors({{3, 4}},
                                     [](auto& tape, auto& v) {
                                         return ops::mul(v[0], ops::constant(tape, 0.3, {3, 4}));
                                     },
                                     1.0, {1.0});
    test::check_unit_scale({{100, 100}}, [](auto& tape, auto& v) { return ops::mul(v[0], ops::constant(tape, 0.5)); },
                           0.5, {0.5});
}

TEST_CASE("constant: propagates scales") {
    test::check_propagate({{3, 4}}, [](auto& tape, auto& v) { return ops::mul(v[0], ops::constant(tape, 0.3, {4})); });
    test::OpTape<Half> t(Scaling::propagate);
    const auto tiny = ops::constant(t.tape, -3e-9, {2, 2});  // below the range of fp16
    CHECK(tiny.scaled().scale() == 0x1p-29);
    CHECK(static_cast<double>(tiny.scaled()(1, 1)) * 0x1p-29 == Approx(-3e-9).epsilon(0x1p-11));
    CHECK_FALSE(tiny.scaled().any_scale());
    for (const double c : {0.0, std::numeric_limits<double>::infinity(), std::nan("")})
        for (const Shape& shape : {Shape{1}, Shape{3}}) CHECK(ops::constant(t.tape, c, shape).scaled().any_scale());
}
