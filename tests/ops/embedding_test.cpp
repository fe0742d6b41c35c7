// SPDX-License-Identifier: MIT
#include <unitscale/ops/embedding.hpp>

#include "support/propagate_checks.hpp"

#include <cmath>
#include <vector>

using namespace unitscale;

TEST_CASE("embedding: gradient, factors and value") {
    const Tensor<std::int32_t> ids({2, 3}, {1, 0, 1, 4, 1, 3});
    const auto f = [&](auto&, auto& v) { return ops::embedding(v[0], ids); };
    test::check_gradient_and_factors({{5, 3}}, f, 1.0, {std::sqrt(5.0 / 6)});
    test::OpTape<double> t;
    const auto table = t.input({5, 3});
    const Tensor<double>& y = ops::embedding(table, ids).value();
    CHECK(y.shape() == Shape{2, 3, 3});
    CHECK(y(1, 0, 2) == table.value()(4, 2));
}

TEST_CASE("embedding: unit scale for evenly drawn ids") {
    Tensor<std::int32_t> ids({4000});
    for (std::size_t i = 0; i < ids.size(); ++i) ids.data()[i] = static_cast<std::int32_t>(random_word({1, 2}, i) % 50);
    test::check_unit_scale({{50, 64}}, [&](auto&, auto& v) { return ops::embedding(v[0], ids); }, 1.0, {1.0});
}

TEST_CASE("embedding: lookups of the whole step enter the factor") {
    test::OpTape<double> t(Scaling::unit, {.micro_batches = 4});
    static_cast<void>(ops::embedding(t.input({5, 3}), Tensor<std::int32_t>({2}, {0, 1})));
    CHECK(t.tape.node(0).betas[0] == Approx(std::sqrt(5.0 / 8)));
    static_cast<void>(ops::embedding(t.input({5, 3}), Tensor<std::int32_t>({2}, {0, 1}), {.step_lookups = 2}));
    CHECK(t.tape.node(1).betas[0] == Approx(std::sqrt(5.0 / 2)));
}

TEST_CASE("embedding: no ids, and errors") {
    test::OpTape<float> t;
    const auto look_up = [](const Shape& ids) {
        return [=](auto&, auto& v) { return ops::embedding(v[0], full<std::int32_t>(ids, 0)); };
    };
    test::check_nothing({{5, 3}}, look_up({0}), {0, 3});
    test::check_nothing({{0, 3}}, look_up({2, 0}), {2, 0, 3});
    test::check_nothing({{5, 0}}, look_up({2}), {2, 0});
    test::check_gradient_and_factors({{1, 1}}, look_up({1}), 1.0, {1.0});
    test::check_gradient_and_factors({{1, 2}}, look_up({}), 1.0, {1.0});
    REQUIRE_THROWS_WITH(ops::embedding(t.input({5, 3}), Tensor<std::int32_t>({2}, {0, 5})),
                        "embedding: ids[1] is 5; expected a number in [0,5)");
    REQUIRE_THROWS_WITH(ops::embedding(t.input({5, 3}), Tensor<std::int32_t>({1}, {-1})),
                        "embedding: ids[0] is -1; expected a number in [0,5)");
    REQUIRE_THROWS_WITH(ops::embedding(t.input({5}), Tensor<std::int32_t>({1}, {0})),
                        "embedding: table [5] is not a matrix [V,d]");
}

TEST_CASE("embedding: propagates scales") {
    const auto f = [](auto&, auto& v) {
        return ops::embedding(v[0], Tensor<std::int32_t>({3, 4}, {1, 0, 2, 1, 1, 2, 0, 0, 1, 1, 2, 1}));
    };
    test::check_propagate({{4, 5}}, f);
    test::check_propagate({{3, 5}}, f);
    CHECK(test::propagated_scales({{12, 5}}, {8.0}, f, 0.25) == std::vector{8.0, 0.25});
    CHECK(test::propagated_scales({{3, 5}}, {8.0}, f, 0.25) == std::vector{8.0, 0.5});  // 4 look-ups of a row: 4^1/2
}

TEST_CASE("embedding: ids of 64 bits") {
    test::OpTape<float> t;
    const auto table = t.input({11, 3});
    const auto y = ops::embedding(table, Tensor<std::int64_t>({2}, {10, 0}));
    const auto z = ops::embedding(table, Tensor<std::int32_t>({2}, {10, 0}));
    for (std::size_t i = 0; i < 6; ++i) CHECK(y.value().data()[i] == z.value().data()[i]);
    REQUIRE_THROWS_WITH(ops::embedding(table, Tensor<std::int64_t>({2}, {0, 11})),
                        "embedding: ids[1] is 11; expected a number in [0,11)");
    REQUIRE_THROWS_WITH(ops::embedding(table, Tensor<std::int64_t>({2}, {0, 5000000000})),
                        "embedding: ids[1] is 5000000000; expected a number that int32 holds");
}

TEST_CASE("embedding: a table that is kept as codes gives its numbers") {
    Parameter<float> table("table", {5, 3}, {.role = ParameterRole::embedding});
    fill_normal(table.write(), {.seed = 1, .stream = 2});
    table.keep_coded(coded_weight(table.value(), e5m2));
    const Tensor<std::int32_t> ids({2}, {4, 1});
    test::OpTape<float> t;
    t.tape.begin_step({.training = false, .gradients = false});
    const auto rows = t.tape.parameter(table);
    const Tensor<float>& y = ops::embedding(rows, ids).value();
    CHECK(y(0, 2) == table.coded_value()->value(4, 2));
    CHECK(y(1, 0) == table.coded_value()->value(1, 0));
    CHECK_THROWS_WITH(rows.value(), "value: parameter table is kept as codes; expected elements");
}
