// SPDX-License-Identifier: MIT
#include <unitscale/ops/log.hpp>

#include "support/op_checks.hpp"

#include <cmath>
#include <limits>

using namespace unitscale;

namespace {
const auto rule = ops::UnitRule{.alpha = 3.0, .beta_x = 0.5};
const auto unjoined = [](auto&, auto& v) { return ops::log(v[0], {.unit = rule, .constraint = Constraint::none}); };
const auto joined = [](auto&, auto& v) { return ops::log(v[0], {.unit = rule}); };
}  // namespace

TEST_CASE("log: gradient and value, with stated factors") {
    test::check_gradient_and_factors_at(test::positive_inputs({{3, 7}}), unjoined, 3.0, {0.5});
    test::check_gradient_and_factors_at(test::positive_inputs({{1}}), joined, 3.0, {3.0});
}

TEST_CASE("log: values and the edges of its domain") {
    test::OpTape<float> t(Scaling::none);
    const float infinity = std::numeric_limits<float>::infinity();
    const auto x = t.tape.input(Tensor<float>({4}, {1.0f, 0.0f, -1.0f, infinity}), true);
    const auto y = ops::log(x);
    CHECK(y.value()(0) == 0.0f);
    CHECK(y.value()(1) == -infinity);
    CHECK(std::isnan(y.value()(2)));
    CHECK(y.value()(3) == infinity);
    t.tape.backward(analysis::project(y, full<float>({4}, 2.0f)));
    CHECK(x.gradient()(0) == 2.0f);
    CHECK(x.gradient()(1) == infinity);
}

TEST_CASE("log: without factors an error under scaling 'unit', not under 'none'") {
    test::OpTape<float> unit, none(Scaling::none);
    REQUIRE_THROWS_WITH(ops::log(unit.input({2})),
                        "log: no rule for scaling 'unit'; state its factors with {.unit = UnitRule{.alpha = a, .beta_x = b}}");
    REQUIRE_THROWS_WITH(ops::log(unit.input({2}), {.unit = ops::UnitRule{.alpha = 0.0}}),
                        "log: unit rule {0, 1}; expected positive factors");
    CHECK(ops::log(none.input({0, 3})).value().shape() == Shape{0, 3});
    CHECK(ops::log(none.input({})).value().size() == 1);
}
