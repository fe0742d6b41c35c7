// SPDX-License-Identifier: MIT
#include <unitscale/ops/gather.hpp>

#include "support/propagate_checks.hpp"

#include <cmath>
#include <vector>

using namespace unitscale;

namespace {
auto with(const Tensor<std::int32_t>& ids, ops::GatherOptions options = {}) {
    return [=](auto&, auto& v) { return ops::gather(v[0], ids, options); };
}
const Tensor<std::int32_t> four({4}, {2, 0, 2, 1});
}  // namespace

TEST_CASE("gather: gradient, factors and value") {
    test::check_gradient_and_factors({{5, 3}}, with(four), 1.0, {1.0});
    test::check_gradient_and_factors({{2, 4, 3}}, with(four, {.axis = 1}), 1.0, {1.0});
    // Three rows and four ids, so that a row repeats. The recipe's rule keeps beta = alpha = 1.
    test::check_gradient_and_factors({{2, 3}}, with(four, {.axis = -1}), 1.0, {1.0});
    test::check_gradient_and_factors({{2, 3}}, with(four, {.axis = 1, .constraint = Constraint::none}), 1.0,
                                     {std::sqrt(0.75)});
    test::check_gradient_and_factors({{3}}, with(four, {.constraint = Constraint::gmean}), std::pow(0.75, 0.25),
                                     {std::pow(0.75, 0.25)});
    test::check_gradient_and_factors({{2, 3, 2}}, with(Tensor<std::int32_t>({2, 2}, {2, 0, 2, 1}), {.axis = 1}), 1.0,
                                     {1.0});
    test::check_gradient_and_factors({{1}}, with(Tensor<std::int32_t>({1}, {0})), 1.0, {1.0});
}

TEST_CASE("gather: the value is the named rows, in the shape of the ids") {
    test::OpTape<double> t;
    const auto x = t.input({2, 3, 2});
    const auto y = ops::gather(x, Tensor<std::int32_t>({2, 2}, {2, 0, 2, 1}), {.axis = 1});
    CHECK(y.shape() == Shape{2, 2, 2, 2});
    CHECK(y.value()(1, 0, 0, 1) == x.value()(1, 2, 1));
    CHECK(y.value()(0, 1, 1, 0) == x.value()(0, 1, 0));
    CHECK(ops::gather(x, Tensor<std::int32_t>(Shape{}, {1})).shape() == Shape{3, 2});
}

TEST_CASE("gather: unit scale, of repeated rows with the free factor") {
    Tensor<std::int32_t> ids({4000});
    for (std::size_t i = 0; i < ids.size(); ++i)
        ids.data()[i] = static_cast<std::int32_t>(random_word({1, 2}, i) % 400);
    test::check_unit_scale({{400, 30}}, with(ids, {.constraint = Constraint::none}), 1.0, {1.0});
    Tensor<std::int32_t> all({400});
    for (std::size_t i = 0; i < all.size(); ++i) all.data()[i] = static_cast<std::int32_t>(399 - i);
    test::check_unit_scale({{400, 30}}, with(all), 1.0, {1.0});
}

TEST_CASE("gather: no ids, rows without elements") {
    test::check_nothing({{3, 2}}, with(Tensor<std::int32_t>({0})), {0, 2});
    test::check_nothing({{0, 2}}, with(Tensor<std::int32_t>({0})), {0, 2});
    test::check_nothing({{3, 0}}, with(four), {4, 0});
    test::check_nothing({{0, 3}}, with(four, {.axis = 1}), {0, 4});
}

TEST_CASE("gather: errors name axis and ids") {
    test::OpTape<float> t;
    REQUIRE_THROWS_WITH(ops::gather(t.input({3, 2}), four, {.axis = 2}), "gather: axis 2 is outside x [3,2]");
    REQUIRE_THROWS_WITH(ops::gather(t.input({3, 2}), four, {.axis = -3}), "gather: axis -3 is outside x [3,2]");
    REQUIRE_THROWS_WITH(ops::gather(t.input({3, 2}), four, {.axis = 1}),
                        "gather: ids[0] is 2; expected a number in [0,2)");
    REQUIRE_THROWS_WITH(ops::gather(t.input({3}), Tensor<std::int32_t>({2}, {0, -1})),
                        "gather: ids[1] is -1; expected a number in [0,3)");
    REQUIRE_THROWS_WITH(
        ops::gather(t.input({3}), four, {.constraint = Constraint::to_left_grad_scale}),
        "gather: constraint to_left_grad_scale needs an op with two constrained inputs, this one has 1");
}

TEST_CASE("gather: propagates scales") {
    test::check_propagate({{5, 3}}, with(four));
    test::check_propagate({{2, 3}}, with(four, {.axis = 1}));
    CHECK(test::propagated_scales({{5, 3}}, {8.0}, with(four), 0.25) == std::vector{8.0, 0.25});
    // Sixteen ids into three rows: (16/3)^1/2, rounded down to 2.
    const Tensor<std::int32_t> sixteen = full<std::int32_t>({16}, 1);
    CHECK(test::propagated_scales({{3, 2}}, {8.0}, with(sixteen), 0.25) == std::vector{8.0, 0.5});
}

TEST_CASE("gather: ids of 64 bits") {
    test::OpTape<float> t;
    const auto x = t.input({4, 3});
    CHECK(ops::gather(x, Tensor<std::int64_t>({2}, {3, 1})).value()(0, 2) == x.value()(3, 2));
    REQUIRE_THROWS_WITH(ops::gather(x, Tensor<std::int64_t>({1}, {-1})),
                        "gather: ids[0] is -1; expected a number in [0,4)");
}
