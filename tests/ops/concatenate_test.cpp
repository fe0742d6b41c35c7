// SPDX-License-Identifier: MIT
#include <unitscale/ops/concatenate.hpp>

#include "support/propagate_checks.hpp"

#include <vector>

using namespace unitscale;

namespace {
const auto middle = [](auto&, auto& v) { return ops::concatenate({v[0], v[1]}, 1); };
const auto last = [](auto&, auto& v) { return ops::concatenate({v[0], v[1]}, -1); };
}  // namespace

TEST_CASE("concatenate: gradient, factors, value and unit scale") {
    test::check_gradient_and_factors({{2, 3, 4}, {2, 1, 4}}, middle, 1.0, {1.0, 1.0});
    test::check_gradient_and_factors({{1}, {1}}, last, 1.0, {1.0, 1.0});
    test::check_gradient_and_factors({{2, 3}, {2, 0}}, last, 1.0, {1.0, 1.0});
    test::check_unit_scale({{20, 30, 40}, {20, 30, 40}}, middle, 1.0, {1.0, 1.0});
    test::OpTape<double> t;
    const auto x = t.input({2, 3, 4}, 1), z = t.input({2, 1, 4}, 2);
    const auto y = ops::concatenate({x, z}, 1);
    CHECK(y.shape() == Shape{2, 4, 4});
    CHECK(y.value()(1, 2, 3) == x.value()(1, 2, 3));
    CHECK(y.value()(1, 3, 3) == z.value()(1, 0, 3));
}

TEST_CASE("concatenate: one input, empty parts, errors") {
    test::OpTape<float> t;
    CHECK(ops::concatenate({t.input({2, 3})}, 0).shape() == Shape{2, 3});
    CHECK(ops::concatenate({t.input({2, 3}), t.input({0, 3})}, 0).shape() == Shape{2, 3});
    test::check_nothing({{0, 3}, {0, 2}}, last, {0, 5});
    REQUIRE_THROWS_WITH(ops::concatenate({t.input({2, 3}), t.input({2})}, 0),
                        "concatenate: input 1 [2] and input 0 [2,3] differ outside axis 0");
    REQUIRE_THROWS_WITH(ops::concatenate({t.input({2, 3})}, -3), "concatenate: axis -3 is outside input 0 [2,3]");
    REQUIRE_THROWS_WITH(ops::concatenate({t.input({2, 3}), t.input({2, 4})}, 0),
                        "concatenate: input 1 [2,4] and input 0 [2,3] differ outside axis 0");
    REQUIRE_THROWS_WITH(ops::concatenate({t.input({2, 3})}, 2), "concatenate: axis 2 is outside input 0 [2,3]");
    REQUIRE_THROWS_WITH(ops::concatenate<float>(std::span<const Variable<float>>(), 0), "concatenate: no inputs");
}

TEST_CASE("concatenate: propagates scales") {
    const auto f = [](auto&, auto& v) { return ops::concatenate({v[0], v[1]}, 1); };
    test::check_propagate({{3, 4}, {3, 2}}, f);
    CHECK(test::propagated_scales({{3, 4}, {3, 2}}, {0.5, 8.0}, f, 0.25) == std::vector{8.0, 0.25, 0.25});
    test::OpTape<double> t(Scaling::propagate);
    const auto x = test::scaled_input(t.tape, {3, 4}, 0x1p-60), zero = test::zeros_of_any_scale(t.tape, {3, 4});
    CHECK(ops::concatenate({zero, x}, 0).scaled().scale() == 0x1p-60);
    CHECK_FALSE(ops::concatenate({zero, x}, 0).scaled().any_scale());
    CHECK(ops::concatenate({zero, zero}, 0).scaled().any_scale());
}
