// SPDX-License-Identifier: MIT
#include <unitscale/ops/log_softmax.hpp>

#include "support/op_checks.hpp"

#include <cmath>

using namespace unitscale;

namespace {
auto with(ops::LogSoftmaxOptions options) {
    return [=](auto&, auto& v) { return ops::log_softmax(v[0], options); };
}
}  // namespace

TEST_CASE("log_softmax: gradient, the factors that were given, and value") {
    test::check_gradient_and_factors(
        {{2, 3, 5}},
        with({.mult = 1.5, .unit = ops::Factors<1>{.alpha = 0.5, .betas = {3.0}}, .constraint = Constraint::none}), 0.5,
        {3.0});
    test::check_gradient_and_factors({{5}}, with({.unit = ops::Factors<1>{.alpha = 0.5, .betas = {3.0}}}), 0.5,
                                     {0.5});  // joined by the recipe's rule
    test::check_gradient_and_factors({{5}}, with({.unit = ops::Factors<1>{2.0, {2.0}}}), 2.0, {2.0});
    test::OpTape<double> t(Scaling::none);
    const auto x = t.tape.input(Tensor<double>({2, 2}, {0.0, 0.5 * std::log(3.0), -1e6, 1e6}));
    const Tensor<double>& y = ops::log_softmax(x, {.mult = 2.0}).value();
    CHECK(y(0, 0) == Approx(std::log(0.25)));
    CHECK(y(0, 1) == Approx(std::log(0.75)));
    CHECK(y(1, 0) == -4e6);
    CHECK(y(1, 1) == 0.0);
}

TEST_CASE("log_softmax: under none the given factors have no effect") {
    const auto at = [](const ops::LogSoftmaxOptions& options) {
        return analysis::run_op<double>(analysis::plain_recipe(Scaling::none), test::normal_inputs<double>({{2, 3}}),
                                        with(options));
    };
    const auto with_factors = at({.unit = ops::Factors<1>{8.0, {8.0}}}), without = at({});
    CHECK(analysis::relative_error(with_factors.value, without.value) == 0.0);
    CHECK(analysis::relative_error(with_factors.gradients[0], without.gradients[0]) == 0.0);
}

TEST_CASE("log_softmax: unit scale of the gradient with the consumer's factor") {
    // dx = dy - p sum of dy. For unit-normal dy and many classes the second term has variance about e/s.
    test::check_unit_scale({{200, 500}}, with({.unit = ops::Factors<1>{1.0, {1.0}}}), 1.0, {1.0});
}

TEST_CASE("log_softmax: one element per row is certain; no rows and no elements give empty tensors") {
    for (const Shape& shape : {Shape{0, 5}, Shape{3, 0}})
        test::check_nothing({shape}, with({.unit = ops::Factors<1>{1.0, {1.0}}}), shape);
    test::check_nothing({{3, 1}}, with({.unit = ops::Factors<1>{1.0, {1.0}}}), {3, 1});  // ln 1
}

TEST_CASE("log_softmax: without factors scaling unit is an error that names the remedy") {
    test::OpTape<float> t;
    REQUIRE_THROWS_WITH(ops::log_softmax(t.input({2, 3})),
                        "log_softmax: no rule for scaling 'unit'; state its factors with {.unit = Factors<1>{.alpha = "
                        "a, .betas = {b}}}");
    REQUIRE_THROWS_WITH(ops::log_softmax(t.input({2, 3}), {.unit = ops::Factors<1>{1.0, {0.0}}}),
                        "log_softmax: beta is 0; expected a positive number");
    REQUIRE_THROWS_WITH(ops::log_softmax(t.input({2, 3}), {.mult = -1.0}),
                        "log_softmax: mult is -1; expected a positive number");
    REQUIRE_THROWS_WITH(ops::log_softmax(t.input({})), "log_softmax: x has rank 0; expected at least one dimension");
    REQUIRE_THROWS_WITH(
        ops::log_softmax(t.input({2, 3}),
                         {.unit = ops::Factors<1>{1.0, {1.0}}, .constraint = Constraint::to_left_grad_scale}),
        "log_softmax: constraint to_left_grad_scale needs an op with two constrained inputs, this one has 1");
}

TEST_CASE("log_softmax: propagates scales") {
    test::check_propagate({{3, 7}}, [](auto&, auto& v) { return ops::log_softmax(v[0], {.mult = 1.5}); });
    test::check_propagate({{2, 3, 5}}, [](auto&, auto& v) { return ops::log_softmax(v[0]); });
}
