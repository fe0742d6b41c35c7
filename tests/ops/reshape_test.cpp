// SPDX-License-Identifier: MIT
#include <unitscale/ops/reshape.hpp>

#include "support/propagate_checks.hpp"

#include <vector>

using namespace unitscale;

TEST_CASE("reshape: gradient, factors, value and unit scale") {
    const auto f = [](auto&, auto& v) { return ops::reshape(v[0], {4, 3}); };
    test::check_gradient_and_factors({{2, 6}}, f, 1.0, {1.0});
    test::check_gradient_and_factors({{1, 1}}, [](auto&, auto& v) { return ops::reshape(v[0], Shape{}); }, 1.0, {1.0});
    test::check_unit_scale({{100, 100}}, [](auto&, auto& v) { return ops::reshape(v[0], {10, 1000}); }, 1.0, {1.0});
    test::OpTape<double> t;
    const auto x = t.input({2, 6});
    const auto y = ops::reshape(x, {4, 3});
    CHECK(y.shape() == Shape{4, 3});
    CHECK(y.value()(3, 1) == x.value()(1, 4));
}

TEST_CASE("reshape: another number of elements is an error") {
    test::OpTape<float> t;
    REQUIRE_THROWS_WITH(ops::reshape(t.input({2, 6}), {5}), "reshape: x [2,6] has 12 elements and cannot become [5]");
    test::check_nothing({{0, 3}}, [](auto&, auto& v) { return ops::reshape(v[0], {3, 0}); }, {3, 0});
}

TEST_CASE("reshape: propagates scales") {
    const auto f = [](auto&, auto& v) { return ops::reshape(v[0], {4, 3}); };
    test::check_propagate({{3, 4}}, f);
    CHECK(test::propagated_scales({{3, 4}}, {8.0}, f, 0.25) == std::vector{8.0, 0.25});
    test::OpTape<double> t(Scaling::propagate);
    std::vector<Variable<double>> zero{test::zeros_of_any_scale(t.tape, {3, 4})};
    CHECK(f(t.tape, zero).scaled().any_scale());
}
