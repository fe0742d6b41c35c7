// SPDX-License-Identifier: MIT
#include <unitscale/ops/pad.hpp>

#include "support/op_checks.hpp"

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

TEST_CASE("pad: unit scale where there is no padding; the gradient is that of the inside") {
    test::check_unit_scale({{100, 200}}, with({0, 0}, {0, 0}), 1.0, {1.0});
    test::OpTape<double> t;
    const auto x = t.input({2});
    t.tape.backward(analysis::project(ops::pad(x, {1}, {1}), Tensor<double>({4}, {10, 20, 30, 40})));
    CHECK(x.gradient()(0) == 20.0);
    CHECK(x.gradient()(1) == 30.0);
}

TEST_CASE("pad: nothing padded is zeros; numbers that do not fit are an error") {
    const auto run =
        analysis::run_op<float>(analysis::plain_recipe(Scaling::unit), {Tensor<float>({0, 2})}, with({1, 0}, {1, 0}));
    CHECK(run.value.shape() == Shape{2, 2});
    for (const float element : run.value.span()) CHECK(element == 0.0F);
    CHECK(run.gradients[0].shape() == Shape{0, 2});
    test::OpTape<float> t;
    CHECK(ops::pad(t.input({0}), {0}, {0}).shape() == Shape{0});
    REQUIRE_THROWS_WITH(ops::pad(t.input({2, 3}), {1}, {1, 1}),
                        "pad: before [1] and after [1,1] for x [2,3]; expected one of each per axis");
}
