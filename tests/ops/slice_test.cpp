// SPDX-License-Identifier: MIT
#include <unitscale/ops/slice.hpp>

#include "support/propagate_checks.hpp"

#include <vector>

using namespace unitscale;

TEST_CASE("slice: gradient, factors and value") {
    const auto f = [](auto&, auto& v) { return ops::slice(v[0], {0, 1, 2}, {2, 2, 5}); };
    test::check_gradient_and_factors({{2, 3, 6}}, f, 1.0, {1.0});
    test::check_gradient_and_factors({{1}}, [](auto&, auto& v) { return ops::slice(v[0], {0}, {1}); }, 1.0, {1.0});
    test::OpTape<double> t;
    const auto x = t.input({2, 3, 6});
    const auto y = ops::slice(x, {0, 1, 2}, {2, 2, 5});
    CHECK(y.shape() == Shape{2, 1, 3});
    CHECK(y.value()(1, 0, 2) == x.value()(1, 1, 4));
}

TEST_CASE("slice: unit scale of the value; the gradient is 0 outside the box") {
    test::check_unit_scale({{100, 200}},
                           [](auto&, auto& v) {
                               return ops::slice(v[0], {0, 0}, {100, 200});
                           },
                           1.0, {1.0});
    test::OpTape<double> t;
    const auto x = t.input({4});
    t.tape.backward(analysis::project(ops::slice(x, {1}, {3}), full<double>({2}, 5.0)));
    CHECK(x.gradient()(0) == 0.0);
    CHECK(x.gradient()(1) == 5.0);
    CHECK(x.gradient()(3) == 0.0);
}

TEST_CASE("slice: an empty box is empty, a box outside is an error") {
    test::OpTape<float> t;
    test::check_nothing({{2, 3}}, [](auto&, auto& v) { return ops::slice(v[0], {0, 2}, {2, 2}); }, {2, 0});
    test::check_nothing({{0, 3}}, [](auto&, auto& v) { return ops::slice(v[0], {0, 1}, {0, 2}); }, {0, 1});
    REQUIRE_THROWS_WITH(ops::slice(t.input({2, 3}), {0, 2}, {2, 4}), "slice: axis 1 from 2 to 4 is outside x [2,3]");
    REQUIRE_THROWS_WITH(ops::slice(t.input({2, 3}), {2, 0}, {1, 3}), "slice: axis 0 from 2 to 1 is outside x [2,3]");
    REQUIRE_THROWS_WITH(ops::slice(t.input({2, 3}), {0}, {1}),
                        "slice: starts [0] and stops [1] for x [2,3]; expected one of each per axis");
}

TEST_CASE("slice: propagates scales") {
    const auto f = [](auto&, auto& v) { return ops::slice(v[0], {1, 0}, {3, 2}); };
    test::check_propagate({{3, 4}}, f);
    CHECK(test::propagated_scales({{3, 4}}, {8.0}, f, 0.25) == std::vector{8.0, 0.25});
    test::OpTape<double> t(Scaling::propagate);
    std::vector<Variable<double>> zero{test::zeros_of_any_scale(t.tape, {3, 4})};
    CHECK(f(t.tape, zero).scaled().any_scale());
}
