// SPDX-License-Identifier: MIT
#include <unitscale/ops/pool.hpp>

#include "support/propagate_checks.hpp"
#include "support/test_ops.hpp"

#include <cmath>
#include <vector>

using namespace unitscale;

namespace {
auto average(const ops::PoolOptions& options) {
    return [=](auto&, auto& v) { return ops::average_pool(v[0], options); };
}
auto maximum(const ops::PoolOptions& options) {
    return [=](auto&, auto& v) { return ops::max_pool(v[0], options); };
}
const ops::PoolOptions overlapping{
    .kernel = {3, 3}, .stride = {{2, 2}}, .padding = {1, 1}, .constraint = Constraint::none};
}  // namespace

TEST_CASE("pools: means and largest elements of windows") {
    test::OpTape<float> t(Scaling::none);
    const auto x = t.tape.input(Tensor<float>({1, 1, 2, 4}, {1, 2, 3, 4, 5, 6, 7, -8}));
    CHECK(test::elements(ops::average_pool(x).value()) == std::vector<float>{3.5f, 1.5f});
    CHECK(test::elements(ops::max_pool(x).value()) == std::vector<float>{6.0f, 7.0f});
    // Padding counts as 0 for the mean and not at all for the largest.
    const auto negative = t.tape.input(Tensor<float>({1, 1, 1, 2}, {-2.0f, -4.0f}));
    const ops::PoolOptions padded{.kernel = {1, 2}, .stride = {{1, 2}}, .padding = {0, 1}};
    CHECK(test::elements(ops::average_pool(negative, padded).value()) == std::vector<float>{-1.0f, -2.0f});
    CHECK(test::elements(ops::max_pool(negative, padded).value()) == std::vector<float>{-2.0f, -4.0f});
}

TEST_CASE("average_pool: gradient and factors") {
    // n = 9 taps, stride 2: alpha 3, beta 3 2.
    test::check_gradient_and_factors({{2, 3, 7, 6}}, average(overlapping), 3.0, {6.0});
    test::check_gradient_and_factors({{2, 3, 4, 6}}, average({}), 2.0, {2.0});
    test::check_nothing({{0, 3, 4, 4}}, average({}), {0, 3, 2, 2});
    test::check_unit_scale({{4, 16, 40, 40}}, average({.constraint = Constraint::none}), 1.0, {1.0}, 0.02);
    test::check_unit_scale({{4, 16, 81, 81}},
                           average({.kernel = {3, 3}, .stride = {{2, 2}}, .constraint = Constraint::none}), 1.0, {1.0},
                           0.05);
}

TEST_CASE("max_pool: gradient and factors") {
    const double alpha = 1.0 / std::sqrt(2.562617418292493);
    test::check_gradient_and_factors({{2, 3, 7, 6}}, maximum(overlapping), alpha, {2.0});
    test::check_nothing({{0, 3, 4, 4}}, maximum({}), {0, 3, 2, 2});
    CHECK(ops::mean_square_of_largest(1) == Approx(1.0).epsilon(1e-9));
    CHECK(ops::mean_square_of_largest(2) == Approx(1.0).epsilon(1e-9));  // (x1 + x2)^2 / 4 + |x1 - x2|^2 / 4 + 0
    const auto report = analysis::scale_check<float>({{8, 16, 40, 40}}, maximum({.constraint = Constraint::none}));
    CHECK(std::hypot(report.value.std, report.value.mean) == Approx(1.0).epsilon(0.02));
    CHECK(report.value.mean == Approx(0.826).epsilon(0.02));
    CHECK(report.gradients[0].std == Approx(1.0).epsilon(0.02));
}

TEST_CASE("pools: propagate scales; errors") {
    test::check_propagate({{2, 3, 7, 6}}, average(overlapping));
    test::check_propagate({{2, 3, 7, 6}}, maximum(overlapping));
    test::OpTape<float> t;
    CHECK_THROWS_WITH(ops::max_pool(t.input({1, 1, 4, 4}), {.padding = {0, 2}}),
                      "max_pool: padding 2 along axis 3; expected less than the kernel, 2");
    CHECK_THROWS_WITH(ops::average_pool(t.input({1, 1, 1, 4})),
                      "average_pool: axis 2 of x [1,1,1,4] with padding is 1 long; the kernel reaches over 2");
}
