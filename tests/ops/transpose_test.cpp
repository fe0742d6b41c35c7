// SPDX-License-Identifier: MIT
#include <unitscale/ops/transpose.hpp>

#include "support/propagate_checks.hpp"

#include <vector>

using namespace unitscale;

TEST_CASE("transpose: gradient, factors, value and unit scale") {
    const auto f = [](auto&, auto& v) { return ops::transpose(v[0], {2, 0, 1}); };
    test::check_gradient_and_factors({{2, 3, 4}}, f, 1.0, {1.0});
    test::check_gradient_and_factors({{1, 1, 1}}, f, 1.0, {1.0});
    test::check_unit_scale({{20, 30, 40}}, f, 1.0, {1.0});
    test::OpTape<double> t;
    const auto x = t.input({2, 3, 4});
    const auto y = ops::transpose(x, {2, 0, 1});
    CHECK(y.shape() == Shape{4, 2, 3});
    CHECK(y.value()(3, 1, 2) == x.value()(1, 2, 3));
}

TEST_CASE("transpose: axes that are no permutation are an error") {
    test::OpTape<float> t;
    REQUIRE_THROWS_WITH(ops::transpose(t.input({2, 3}), {0, 0}),
                        "transpose: axes [0,0] are not a permutation of the axes of x [2,3]");
    REQUIRE_THROWS_WITH(ops::transpose(t.input({2, 3}), {0, 2}),
                        "transpose: axes [0,2] are not a permutation of the axes of x [2,3]");
    REQUIRE_THROWS_WITH(ops::transpose(t.input({2, 3}), {0}),
                        "transpose: axes [0] are not a permutation of the axes of x [2,3]");
    test::check_nothing({{0, 3}}, [](auto&, auto& v) { return ops::transpose(v[0], {1, 0}); }, {3, 0});
}

TEST_CASE("transpose: propagates scales") {
    const auto f = [](auto&, auto& v) { return ops::transpose(v[0], {2, 0, 1}); };
    test::check_propagate({{2, 3, 4}}, f);
    CHECK(test::propagated_scales({{2, 3, 4}}, {8.0}, f, 0.25) == std::vector{8.0, 0.25});
    test::OpTape<double> t(Scaling::propagate);
    std::vector<Variable<double>> zero{test::zeros_of_any_scale(t.tape, {2, 3, 4})};
    CHECK(f(t.tape, zero).scaled().any_scale());
}
