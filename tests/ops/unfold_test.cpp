// SPDX-License-Identifier: MIT
#include <unitscale/ops/unfold.hpp>

#include "support/propagate_checks.hpp"
#include "support/test_ops.hpp"

#include <cmath>
#include <vector>

using namespace unitscale;

namespace {
constexpr ops::WindowOptions options{.stride = {1, 2}, .padding = {1, 0}, .constraint = Constraint::none};
const auto windows = [](auto&, auto& v) { return ops::unfold(v[0], {3, 2}, options); };
}  // namespace

TEST_CASE("unfold: rows are windows, columns channels and taps") {
    test::OpTape<float> t(Scaling::none);
    const auto x = t.tape.input(Tensor<float>({1, 2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8}));
    const auto y = ops::unfold(x, {1, 2});
    CHECK(y.shape() == Shape{1, 2, 4});
    CHECK(test::elements(y.value()) == std::vector<float>{1, 2, 5, 6, 3, 4, 7, 8});
}

TEST_CASE("unfold: gradient and factors") {
    test::check_gradient_and_factors({{2, 3, 4, 5}}, windows, 1.0, {1.0 / std::sqrt(3.0)});  // 6 taps, stride 2
    test::check_nothing({{0, 3, 4, 5}}, windows, {0, 8, 18});
    test::check_propagate({{2, 3, 4, 5}}, windows);
    CHECK(test::propagated_scales({{2, 3, 4, 5}}, {8.0}, windows, 0.25) == std::vector{8.0, 0.25});
}

TEST_CASE("unfold: gradients away from the border have unit variance") {
    const auto same = [](auto&, auto& v) { return ops::unfold(v[0], {3, 3}, {.constraint = Constraint::none}); };
    test::check_unit_scale({{4, 8, 64, 64}}, same, 1.0, {1.0}, 0.05);
}

TEST_CASE("unfold: errors") {
    test::OpTape<float> t;
    CHECK_THROWS_WITH(ops::unfold(t.input({2, 3}), {1, 1}), "unfold: x [2,3] is not [B,C,H,W]");
}
