// SPDX-License-Identifier: MIT
#include <unitscale/ops/split.hpp>

#include "support/propagate_checks.hpp"
#include "support/test_ops.hpp"

#include <unitscale/ops/concatenate.hpp>

#include <vector>

using namespace unitscale;

namespace {

/// The parts in another order: its gradient tells them apart.
auto swapped(std::ptrdiff_t axis) {
    return [=](auto&, auto& v) {
        const auto parts = ops::split(v[0], 3, axis);
        return ops::concatenate({parts[2], parts[0], parts[1]}, axis);
    };
}

}  // namespace

TEST_CASE("split: equal parts along an axis") {
    test::OpTape<float> t(Scaling::none);
    const auto x = t.tape.input(Tensor<float>({2, 4}, {1, 2, 3, 4, 5, 6, 7, 8}), true);
    const auto columns = ops::split(x, 2, -1);
    REQUIRE(columns.size() == 2);
    CHECK(columns[1].shape() == Shape{2, 2});
    CHECK(test::elements(columns[0].value()) == std::vector<float>{1, 2, 5, 6});
    CHECK(test::elements(columns[1].value()) == std::vector<float>{3, 4, 7, 8});
    const auto rows = ops::split(x, 2, 0);
    CHECK(test::elements(rows[1].value()) == std::vector<float>{5, 6, 7, 8});
    CHECK(test::elements(ops::split(x, 1, 0)[0].value()) == test::elements(x.value()));
    // Parts that nothing reads have the gradient 0.
    t.tape.backward(test::sum(columns[1]));
    CHECK(test::elements(x.gradient()) == std::vector<float>{0, 0, 1, 1, 0, 0, 1, 1});
}

TEST_CASE("split: gradient and factors") {
    test::check_gradient_and_factors({{3, 6, 2}}, swapped(1), 1.0, {1.0});
    test::check_gradient_and_factors({{4, 9}}, swapped(-1), 1.0, {1.0});
    test::check_gradient_and_factors({{3}}, swapped(0), 1.0, {1.0});
    test::check_nothing({{0, 3}}, swapped(1), {0, 3});
}

TEST_CASE("split: errors") {
    test::OpTape<float> t;
    const auto x = t.input({2, 3});
    CHECK_THROWS_WITH(ops::split(x, 2, 1), "split: axis 1 of x [2,3] is not divisible by 2 parts");
    CHECK_THROWS_WITH(ops::split(x, 0, 1), "split: 0 parts; expected at least 1");
    CHECK_THROWS_WITH(ops::split(x, 1, 2), Catch::StartsWith("split: "));
}

TEST_CASE("split: propagates scales") {
    test::check_propagate({{3, 6}}, swapped(1));
    CHECK(test::propagated_scales({{3, 6}}, {8.0}, swapped(1), 0.25) == std::vector{8.0, 0.25});
    // Gradients of several scales: the largest is dx's.
    test::OpTape<double> t(Scaling::propagate);
    const auto x = test::scaled_input(t.tape, {2, 2}, 1.0);
    const auto parts = ops::split(x, 2, 1);
    const Tensor<double> direction({2, 1}, {3.0, 5.0});
    t.tape.backward(
        {analysis::project(parts[0], direction, 4.0), analysis::project(parts[1], direction, 0.5)}, {1.0, 1.0});
    CHECK(x.gradient().scale() == 4.0);
    CHECK(test::elements(x.gradient()) == std::vector<double>{0.75, 0.75, 1.25, 1.25});  // times 4
}
