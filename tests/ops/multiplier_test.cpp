// SPDX-License-Identifier: MIT
#include <unitscale/ops/multiplier.hpp>

#include "support/propagate_checks.hpp"

#include <cmath>
#include <limits>
#include <vector>

using namespace unitscale;

TEST_CASE("multiplier: value and gradient are multiplied under every scaling") {
    for (const Scaling scaling : {Scaling::none, Scaling::unit, Scaling::propagate}) {
        test::OpTape<double> t(scaling);
        const auto x = t.input({3});
        const auto y = ops::multiplier(x, -0.3);
        t.tape.backward(analysis::project(y, full<double>({3}, 2.0)));
        for (std::size_t i = 0; i < 3; ++i) {
            CHECK(y.value()(i) * y.value().scale() == Approx(-0.3 * x.value()(i) * x.value().scale()).epsilon(1e-14));
            CHECK(x.gradient()(i) * x.gradient().scale() == Approx(-0.6).epsilon(1e-14));
        }
    }
    test::check_gradient_and_factors({{3, 4}}, [](auto&, auto& v) { return ops::multiplier(v[0], 2.5); }, 1.0, {1.0});
}

TEST_CASE("multiplier: 1 records nothing") {
    test::OpTape<float> t;
    const auto x = t.input({2});
    CHECK(ops::multiplier(x, 1.0).value().data() == x.value().data());
}

TEST_CASE("multiplier: the number becomes scale under propagate") {
    const auto third = [](auto&, auto& v) { return ops::multiplier(v[0], 0.3); };
    test::check_propagate({{3, 7}}, third);
    CHECK(test::propagated_scales({{3, 7}}, {8.0}, third, 0.5) == std::vector{2.0, 0.125});
}

TEST_CASE("multiplier: a number that is 0 or not finite is an error") {
    test::OpTape<float> t;
    const auto x = t.input({2});
    REQUIRE_THROWS_WITH(ops::multiplier(x, 0.0), "multiplier: c is 0; expected a finite number other than 0");
    REQUIRE_THROWS_WITH(ops::multiplier(x, std::numeric_limits<double>::infinity()),
                        "multiplier: c is inf; expected a finite number other than 0");
}
