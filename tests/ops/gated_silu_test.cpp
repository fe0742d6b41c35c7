// SPDX-License-Identifier: MIT
#include <unitscale/ops/gated_silu.hpp>

#include "support/propagate_checks.hpp"

#include <cmath>
#include <numbers>
#include <vector>

using namespace unitscale;

namespace {
auto with(double mult) {
    return [=](auto&, auto& v) { return ops::gated_silu(v[0], v[1], {.mult = mult}); };
}
}  // namespace

TEST_CASE("gated_silu: gradient, factors and value") {
    for (const double m : {0.25, 1.0, 4.0}) {
        const double factor = ops::gated_silu_unit_factor(m);
        test::check_gradient_and_factors({{3, 7}, {3, 7}}, with(m), factor, {factor, factor});
        test::check_gradient_and_factors({{1}, {1}}, with(m), factor, {factor, factor});
    }
    CHECK(ops::gated_silu_unit_factor(1e-6) == Approx(2.0));
    CHECK(ops::gated_silu_unit_factor(1e6) == Approx(std::numbers::sqrt2));
}

TEST_CASE("gated_silu: unit scale of value and gradient of x within 4 %") {
    for (const double m : {0.25, 1.0, 4.0}) {
        const std::vector<Shape> shapes(2, Shape{1000, 100});
        for (const auto& report :
             {analysis::scale_check<float>(shapes, with(m)), analysis::scale_check<double>(shapes, with(m))}) {
            CHECK(report.value.std == Approx(1.0).epsilon(0.05));
            CHECK(report.gradients[0].std == Approx(1.0).epsilon(0.05));
            CHECK(report.gradients[1].std == Approx(1.0).epsilon(0.10));
        }
    }
}

TEST_CASE("gated_silu: the value is x g sigmoid(m g)") {
    test::OpTape<double> t(Scaling::none);
    const auto x = t.tape.input(Tensor<double>({2}, {3.0, 3.0})), g = t.tape.input(Tensor<double>({2}, {-0.5, 2.0}));
    const auto y = ops::gated_silu(x, g, {.mult = 2.0});
    CHECK(y.value()(0) == Approx(-1.5 / (1.0 + std::exp(1.0))));
    CHECK(y.value()(1) == Approx(6.0 / (1.0 + std::exp(-4.0))));
}

TEST_CASE("gated_silu: empty inputs and errors") {
    test::OpTape<float> t;
    test::check_nothing({{0, 3}, {0, 3}}, with(1.0), {0, 3});
    REQUIRE_THROWS_WITH(ops::gated_silu(t.input({2, 3}), t.input({3, 2})),
                        "gated_silu: x [2,3] and gate [3,2] differ in shape");
    REQUIRE_THROWS_WITH(ops::gated_silu(t.input({2}), t.input({2}), {.mult = -1.0}),
                        "gated_silu: mult is -1; expected a positive number");
}

TEST_CASE("gated_silu: propagates scales") {
    const auto f = [](auto&, auto& v) { return ops::gated_silu(v[0], v[1], {.mult = 1.5}); };
    test::check_propagate({{3, 7}, {3, 7}}, f);
    CHECK(test::propagated_scales({{3, 7}, {3, 7}}, {8.0, 0.25}, f, 4.0) == std::vector{2.0, 1.0, 32.0});
    CHECK(test::propagated_scales({{3, 7}, {3, 7}}, {0x1p-100, 0x1p-100}, f) ==
          std::vector{0x1p-126, 0x1p-100, 0x1p-100});
    CHECK(test::propagated_scales({{3, 7}, {3, 7}}, {0x1p-100, 1.0}, f, 0x1p-100) ==
          std::vector{0x1p-100, 0x1p-100, 0x1p-126});
}
