// SPDX-License-Identifier: MIT
#include <unitscale/ops/cumsum.hpp>

#include "support/propagate_checks.hpp"

#include <cmath>
#include <vector>

using namespace unitscale;

namespace {
auto along(std::ptrdiff_t axis, const ops::CumsumOptions& options = {.constraint = Constraint::none}) {
    return [=](auto&, auto& v) { return ops::cumsum(v[0], axis, options); };
}
}  // namespace

TEST_CASE("cumsum: gradient, factors and value") {
    const auto factor = [](double n) { return std::sqrt(2.0 / (n + 1.0)); };
    test::check_gradient_and_factors({{3, 7}}, along(1), factor(7), {factor(7)});
    test::check_gradient_and_factors({{3, 7}}, along(-2), factor(3), {factor(3)});
    test::check_gradient_and_factors({{2, 5, 4}}, along(1, {}), factor(5), {factor(5)});
    test::check_gradient_and_factors({{1}}, along(0), 1.0, {1.0});
    test::check_gradient_and_factors({{3, 7}}, along(1, {.factor_length = 31}), 0.25, {0.25});
    test::OpTape<float> t(Scaling::none);
    const auto y = ops::cumsum(t.tape.input(Tensor<float>({2, 3}, {1, 2, 3, 10, 20, 30})), -1);
    const float expected[] = {1, 3, 6, 10, 30, 60};
    for (std::size_t i = 0; i < 6; ++i) CHECK(y.value().data()[i] == expected[i]);
}

TEST_CASE("cumsum: unit scale") {
    test::check_unit_scale({{5000, 16}}, along(1), 1.0, {1.0}, 0.02);
    test::check_unit_scale({{9, 9000}}, along(0), 1.0, {1.0}, 0.02);
}

TEST_CASE("cumsum: empty inputs and errors") {
    test::OpTape<float> t;
    test::check_nothing({{0, 3}}, along(1), {0, 3});
    test::check_nothing({{0, 3}}, along(0), {0, 3});
    REQUIRE_THROWS_WITH(ops::cumsum(t.input({2, 3}), 2), "cumsum: axis 2 is outside x [2,3]");
    REQUIRE_THROWS_WITH(
        ops::cumsum(t.input({2}), 0, {.constraint = Constraint::to_right_grad_scale}),
        "cumsum: constraint to_right_grad_scale needs an op with two constrained inputs, this one has 1");
}

TEST_CASE("cumsum: propagates scales") {
    test::check_propagate({{3, 7}}, along(1));
    test::check_propagate({{4, 5}}, along(0));
    CHECK(test::propagated_scales({{3, 31}}, {8.0}, along(1), 0.25) == std::vector{32.0, 1.0});
}
