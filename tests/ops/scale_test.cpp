// SPDX-License-Identifier: MIT
#include <unitscale/ops/scale.hpp>

#include "support/propagate_checks.hpp"

#include <vector>

using namespace unitscale;

TEST_CASE("scale: forward scales the value only, backward the gradient only") {
    test::check_gradient_and_factors({{3, 4}}, [](auto&, auto& v) { return ops::scale_forward(v[0], 3.0); }, 3.0,
                                     {1.0});
    test::check_gradient_and_factors({{3, 4}}, [](auto&, auto& v) { return ops::scale_backward(v[0], 3.0); }, 1.0,
                                     {3.0});
    test::check_gradient_and_factors({{1}}, [](auto&, auto& v) { return ops::scale_forward(v[0], 0.5); }, 0.5, {1.0});
    test::check_unit_scale({{100, 100}},
                           [](auto&, auto& v) { return ops::scale_backward(ops::scale_forward(v[0], 0.5), 2.0); }, 0.5,
                           {2.0});
}

TEST_CASE("scale: both are the identity without unit scaling") {
    test::OpTape<double> t(Scaling::none);
    const auto x = t.input({3});
    t.tape.backward(analysis::project(ops::scale_forward(ops::scale_backward(x, 5.0), 7.0), full<double>({3}, 1.0)));
    CHECK(x.gradient()(1) == 1.0);
    test::check_nothing({{0, 3}},
                        [](auto&, auto& v) { return ops::scale_backward(ops::scale_forward(v[0], 0.5), 2.0); }, {0, 3});
}

TEST_CASE("scale: a factor that is not positive is an error") {
    test::OpTape<float> t;
    REQUIRE_THROWS_WITH(ops::scale_forward(t.input({2}), 0.0),
                        "scale_forward: factor is 0; expected a positive number");
    REQUIRE_THROWS_WITH(ops::scale_backward(t.input({2}), -1.0),
                        "scale_backward: factor is -1; expected a positive number");
    REQUIRE_THROWS_WITH(ops::scale_backward(t.input({2}), std::nan("")),
                        "scale_backward: factor is nan; expected a positive number");
}

TEST_CASE("scale: factors become scales under propagate, and values stay") {
    const auto forward = [](auto&, auto& v) { return ops::scale_forward(v[0], 0.3); };
    const auto backward = [](auto&, auto& v) { return ops::scale_backward(v[0], 0.3); };
    test::check_propagate({{3, 7}}, forward);
    test::check_propagate({{3, 7}}, backward);
    CHECK(test::propagated_scales({{3, 7}}, {8.0}, forward, 0.25) == std::vector{16.0, 0.25});
    CHECK(test::propagated_scales({{3, 7}}, {8.0}, backward, 0.25) == std::vector{8.0, 0.5});
}
