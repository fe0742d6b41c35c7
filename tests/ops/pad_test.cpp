// SPDX-License-Identifier: MIT
#include <unitscale/ops/pad.hpp>

#include "support/propagate_checks.hpp"

#include <limits>
#include <vector>

using namespace unitscale;

namespace {
auto with(const Shape& before, const Shape& after) {
    return [=](auto&, auto& v) { return ops::pad(v[0], before, after); };
}
}  // namespace

TEST_CASE("pad: gradient, factors and value") {
    test::check_gradient_and_factors({{2, 3}}, with({1, 0}, {0, 2}), 1.0, {1.0});
    test::check_gradient_and_factors({{1}}, with({2}, {1}), 1.0, {1.0});
    test::OpTape<double> t;
    const auto y = ops::pad(t.tape.input(Tensor<double>({2, 2}, {1, 2, 3, 4})), {1, 0}, {0, 2});
    CHECK(y.shape() == Shape{3, 4});
    CHECK(std::vector<double>(y.value().span().begin(), y.value().span().end()) ==
          std::vector<double>{0, 0, 0, 0, 1, 2, 0, 0, 3, 4, 0, 0});
}

TEST_CASE("pad: another value around x, which has no gradient") {
    const auto lowest = [](auto&, auto& v) { return ops::pad(v[0], {1}, {1}, {.value = -2.5}); };
    test::check_gradient_and_factors({{3}}, [](auto&, auto& v) { return ops::pad(v[0], {1}, {1}, {.value = 0.0}); },
                                     1.0, {1.0});
    const auto run = analysis::run_op<float>(analysis::plain_recipe(Scaling::unit), {Tensor<float>({2}, {3.0F, 4.0F})},
                                             lowest, Tensor<float>({4}, {10.0F, 20.0F, 30.0F, 40.0F}));
    CHECK(std::vector<float>(run.value.span().begin(), run.value.span().end()) ==
          std::vector<float>{-2.5F, 3.0F, 4.0F, -2.5F});
    CHECK(run.gradients[0](0) == 20.0F);
    CHECK(run.gradients[0](1) == 30.0F);
    const double infinity = std::numeric_limits<double>::infinity();
    test::OpTape<double> t;
    CHECK(ops::pad(t.input({1}), {0}, {1}, {.value = -infinity}).value()(1) == -infinity);
}

TEST_CASE("pad: unit scale without padding; the gradient is the inner part of the output's gradient") {
    test::check_unit_scale({{100, 200}}, with({0, 0}, {0, 0}), 1.0, {1.0});
    test::OpTape<double> t;
    const auto x = t.input({2});
    t.tape.backward(analysis::project(ops::pad(x, {1}, {1}), Tensor<double>({4}, {10, 20, 30, 40})));
    CHECK(x.gradient()(0) == 20.0);
    CHECK(x.gradient()(1) == 30.0);
}

TEST_CASE("pad: nothing padded is zeros; numbers that do not fit are an error") {
    test::check_nothing({{0, 2}}, with({1, 0}, {1, 0}), {2, 2});
    test::check_nothing({{0}}, with({0}, {0}), {0});
    test::OpTape<float> t;
    REQUIRE_THROWS_WITH(ops::pad(t.input({2, 3}), {1}, {1, 1}),
                        "pad: before [1] and after [1,1] for x [2,3]; expected one of each per axis");
    REQUIRE_THROWS_WITH(ops::pad(t.input({2}), {1}, {1, 1}),
                        "pad: before [1] and after [1,1] for x [2]; expected one of each per axis");
}

TEST_CASE("pad: propagates scales") {
    const auto with = [](double c) {
        return [c](auto&, auto& v) { return ops::pad(v[0], {1, 0}, {0, 2}, {.value = c}); };
    };
    test::check_propagate({{3, 4}}, with(0.0));
    test::check_propagate({{3, 4}}, with(-1.5));
    CHECK(test::propagated_scales({{3, 4}}, {8.0}, with(0.0), 0.25) == std::vector{8.0, 0.25});
    CHECK(test::propagated_scales({{3, 4}}, {8.0}, with(-1.5), 0.25) == std::vector{1.0, 0.25});
    test::OpTape<double> t(Scaling::propagate);
    const auto y =
        ops::pad(test::scaled_input(t.tape, {2}, 8.0), {1}, {0}, {.value = -std::numeric_limits<double>::infinity()});
    CHECK(y.scaled().scale() == 8.0);
    CHECK(std::isinf(y.value()(0)));
    CHECK(ops::pad(test::zeros_of_any_scale(t.tape, {2}), {1}, {0}).scaled().any_scale());
    CHECK_FALSE(ops::pad(test::zeros_of_any_scale(t.tape, {2}), {1}, {0}, {.value = 1.0}).scaled().any_scale());
}
