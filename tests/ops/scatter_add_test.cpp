// SPDX-License-Identifier: MIT
#include <unitscale/ops/scatter_add.hpp>

#include "support/propagate_checks.hpp"

#include <cmath>
#include <vector>

using namespace unitscale;

namespace {
auto with(const Tensor<std::int32_t>& ids, std::size_t extent, ops::ScatterAddOptions options = {}) {
    return [=](auto&, auto& v) { return ops::scatter_add(v[0], ids, extent, options); };
}
const Tensor<std::int32_t> four({4}, {2, 0, 2, 1});
}  // namespace

TEST_CASE("scatter_add: gradient, factors and value") {
    test::check_gradient_and_factors({{4, 3}}, with(four, 5), 1.0, {1.0});
    test::check_gradient_and_factors({{2, 4, 3}}, with(four, 4, {.axis = 1}), 1.0, {1.0});
    // Four rows are added into three places. The recipe's rule sets beta = alpha.
    test::check_gradient_and_factors({{2, 4}}, with(four, 3, {.axis = -1}), std::sqrt(0.75), {std::sqrt(0.75)});
    test::check_gradient_and_factors({{2, 4}}, with(four, 3, {.axis = 1, .constraint = Constraint::none}),
                                     std::sqrt(0.75), {1.0});
    test::check_gradient_and_factors({{4}}, with(four, 3, {.factor_ids = 12}), 0.5, {0.5});
    test::check_gradient_and_factors({{3, 2, 2}}, with(Tensor<std::int32_t>({2, 2}, {2, 0, 2, 1}), 5, {.axis = 1}), 1.0,
                                     {1.0});
    test::check_gradient_and_factors({{1}}, with(Tensor<std::int32_t>({1}, {0}), 1), 1.0, {1.0});
}

TEST_CASE("scatter_add: rows with one id add up, places without id are 0") {
    test::OpTape<double> t(Scaling::none);
    const auto x = t.tape.input(Tensor<double>({4, 2}, {1, 2, 10, 20, 100, 200, 1000, 2000}));
    const Tensor<double>& y = ops::scatter_add(x, four, 4).value();
    CHECK(std::vector<double>(y.span().begin(), y.span().end()) ==
          std::vector<double>{10, 20, 1000, 2000, 101, 202, 0, 0});
    CHECK(ops::scatter_add(x, Tensor<std::int32_t>({4, 2}, {0, 1, 0, 1, 0, 1, 0, 1}), 2).value()(1) == 2222.0);
}

TEST_CASE("scatter_add: unit scale") {
    Tensor<std::int32_t> ids({4000});
    for (std::size_t i = 0; i < ids.size(); ++i)
        ids.data()[i] = static_cast<std::int32_t>(random_word({1, 2}, i) % 400);
    test::check_unit_scale({{4000, 30}}, with(ids, 400, {.constraint = Constraint::none}), 1.0, {1.0});
}

TEST_CASE("scatter_add: nothing to add and no places") {
    test::check_nothing({{0, 2}}, with(Tensor<std::int32_t>({0}), 3), {3, 2});
    test::check_nothing({{2, 0}}, with(Tensor<std::int32_t>({0}), 0, {.axis = 1}), {2, 0});
    test::check_nothing({{4, 0}}, with(four, 5), {5, 0});
    test::check_nothing({{0, 4}}, with(four, 5, {.axis = 1}), {0, 5});
}

TEST_CASE("scatter_add: errors name axis, ids and x") {
    test::OpTape<float> t;
    REQUIRE_THROWS_WITH(ops::scatter_add(t.input({4, 2}), four, 5, {.axis = 2}),
                        "scatter_add: axis 2 is outside x [4,2]");
    REQUIRE_THROWS_WITH(ops::scatter_add(t.input({3, 2}), four, 5),
                        "scatter_add: ids [4] do not fit x [3,2] from axis 0 on");
    REQUIRE_THROWS_WITH(ops::scatter_add(t.input({3, 4}), Tensor<std::int32_t>({4, 1}, {0, 0, 0, 0}), 5, {.axis = 1}),
                        "scatter_add: ids [4,1] do not fit x [3,4] from axis 1 on");
    REQUIRE_THROWS_WITH(ops::scatter_add(t.input({4, 2}), four, 2),
                        "scatter_add: ids[0] is 2; expected a number in [0,2)");
    REQUIRE_THROWS_WITH(
        ops::scatter_add(t.input({4, 2}), four, 3, {.constraint = Constraint::to_left_grad_scale}),
        "scatter_add: constraint to_left_grad_scale needs an op with two constrained inputs, this one has 1");
}

TEST_CASE("scatter_add: propagates scales") {
    test::check_propagate({{4, 3}}, with(four, 5));
    test::check_propagate({{2, 4}}, with(four, 3, {.axis = 1}));
    CHECK(test::propagated_scales({{4, 3}}, {8.0}, with(four, 5), 0.25) == std::vector{8.0, 0.25});
    CHECK(test::propagated_scales({{4, 3}}, {8.0}, with(four, 3, {.factor_ids = 15}), 0.25) == std::vector{16.0, 0.25});
}

TEST_CASE("scatter_add: ids of 64 bits") {
    test::OpTape<float> t(Scaling::none);
    const auto x = t.input({2, 3});
    CHECK(ops::scatter_add(x, Tensor<std::int64_t>({2}, {3, 1}), 4).value()(3, 2) == x.value()(0, 2));
}
