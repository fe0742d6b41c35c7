// SPDX-License-Identifier: MIT
#include <unitscale/ops/relu.hpp>

#include "support/propagate_checks.hpp"

#include <cmath>
#include <numbers>
#include <vector>

using namespace unitscale;

namespace {
auto with(Constraint constraint) {
    return [=](auto&, auto& v) { return ops::relu(v[0], {.constraint = constraint}); };
}
const auto joined_op = [](auto&, auto& v) { return ops::relu(v[0]); };
const double alpha = std::sqrt(2.0 / (1.0 - 1.0 / std::numbers::pi)), beta = std::numbers::sqrt2;
}  // namespace

TEST_CASE("relu: gradient, factors and value") {
    test::check_gradient_and_factors({{3, 7}}, with(Constraint::none), alpha, {beta});
    test::check_gradient_and_factors({{3, 7}}, joined_op, alpha, {alpha});
    test::check_gradient_and_factors_at(test::positive_inputs({{1}}), with(Constraint::to_grad_input_scale), beta,
                                        {beta});
    test::check_gradient_and_factors({{5}}, with(Constraint::gmean), std::sqrt(alpha * beta),
                                     {std::sqrt(alpha * beta)});
}

TEST_CASE("relu: unit scale; the root mean square of the value is 1.21, as is the joined gradient's") {
    test::check_unit_scale({{1000, 50}}, with(Constraint::none), 1.0, {1.0}, 0.02);
    test::check_unit_scale({{1000, 50}}, joined_op, 1.0, {1.21}, 0.02);
    CHECK(analysis::scale_check<double>({{1000, 50}}, with(Constraint::none)).value.rms == Approx(1.21).epsilon(0.02));
}

TEST_CASE("relu: negative values and 0 become 0 and pass no gradient, NaN stays") {
    test::OpTape<double> t(Scaling::none);
    const auto x = t.tape.input(Tensor<double>({4}, {-1.0, 0.0, 2.0, std::nan("")}), true);
    const auto y = ops::relu(x);
    CHECK(y.value()(0) == 0.0);
    CHECK(y.value()(1) == 0.0);
    CHECK(y.value()(2) == 2.0);
    CHECK(std::isnan(y.value()(3)));
    t.tape.backward(analysis::project(y, full<double>({4}, 1.0)));
    CHECK(x.gradient()(0) == 0.0);
    CHECK(x.gradient()(1) == 0.0);
    CHECK(x.gradient()(2) == 1.0);
}

TEST_CASE("relu: empty inputs and errors") {
    test::OpTape<float> t;
    test::check_nothing({{0, 3}}, joined_op, {0, 3});
    REQUIRE_THROWS_WITH(ops::relu(t.input({2}), {.constraint = Constraint::to_left_grad_scale}),
                        "relu: constraint to_left_grad_scale needs an op with two constrained inputs, this one has 1");
    REQUIRE_THROWS_WITH(ops::relu(Variable<float>()),
                        "relu: an empty Variable; make one with Tape::input, Tape::parameter or an op");
}

TEST_CASE("relu: propagates scales") {
    const auto f = [](auto&, auto& v) { return ops::relu(v[0]); };
    test::check_propagate({{3, 7}}, f);
    CHECK(test::propagated_scales({{3, 7}}, {8.0}, f, 0.25) == std::vector{8.0, 0.25});
}
