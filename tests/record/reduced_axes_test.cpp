// SPDX-License-Identifier: MIT
#include <unitscale/record/reduced_axes.hpp>

#include "support/op_checks.hpp"

#include <vector>

using namespace unitscale;

TEST_CASE("reduced axes: shapes and counts") {
    const ops::ReducedAxes all = ops::reduced_axes("f", {2, 3, 4}, {}, false);
    CHECK(all.kept == Shape{1, 1, 1});
    CHECK(all.result == Shape{1});
    CHECK(all.count == 24);
    CHECK(all.over_rows);
    const ops::ReducedAxes last = ops::reduced_axes("f", {2, 3, 4}, {-1}, false);
    CHECK(last.kept == Shape{2, 3, 1});
    CHECK(last.result == Shape{2, 3});
    CHECK(last.count == 4);
    CHECK(!last.over_rows);
    const ops::ReducedAxes outer = ops::reduced_axes("f", {2, 3, 4}, {2, 0}, true);
    CHECK(outer.kept == Shape{1, 3, 1});
    CHECK(outer.result == Shape{1, 3, 1});
    CHECK(outer.count == 8);
    CHECK(outer.over_rows);
    CHECK(ops::reduced_axes("f", {}, {}, false).result == Shape{1});
    CHECK(ops::reduced_axes("f", {0, 3}, {0}, false).count == 0);
    CHECK(ops::reduced_axes("f", {5}, {0}, true).result == Shape{1});
}

TEST_CASE("reduced axes: errors") {
    REQUIRE_THROWS_WITH(ops::reduced_axes("f", {2, 3}, {2}, false), "f: axis 2 is outside x [2,3]");
    REQUIRE_THROWS_WITH(ops::reduced_axes("f", {2, 3}, {1, -1}, false), "f: axis -1 of x [2,3] is named twice");
    REQUIRE_THROWS_WITH(ops::check_elements("f", {0, 3}, ops::reduced_axes("f", {0, 3}, {0}, false)),
                        "f: x [0,3] has no elements along the axes");
    REQUIRE_NOTHROW(ops::check_elements("f", {0, 3}, ops::reduced_axes("f", {0, 3}, {1}, false)));
}

TEST_CASE("record_reduced_sum: a weighted sum and its gradient, with the given factors") {
    const auto f = [](auto&, auto& v) {
        auto op = ops::begin_op("f", v[0]);
        op.set_factors({.alpha = 3.0, .betas = {0.5}}, Constraint::none);
        return ops::record_reduced_sum(op, ops::reduced_axes("f", v[0].shape(), {1}, false), 0.25);
    };
    test::check_gradient_and_factors({{2, 3, 4}}, f, 3.0, {0.5});
    test::OpTape<double> t(Scaling::none);
    std::vector<Variable<double>> inputs{t.tape.input(Tensor<double>({1, 3}, {1.0, 2.0, 9.0}))};
    CHECK(f(t.tape, inputs).item() == 3.0);
}
