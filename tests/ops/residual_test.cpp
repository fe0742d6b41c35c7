// SPDX-License-Identifier: MIT
#include <unitscale/ops/linear.hpp>
#include <unitscale/ops/residual.hpp>

#include "support/op_checks.hpp"
#include "support/test_ops.hpp"

#include <cmath>
#include <limits>

using namespace unitscale;

namespace {
/// A residual layer around a linear branch.
auto layer(std::optional<double> tau) {
    return [=](auto&, auto& v) {
        const auto [branch, stream] = ops::residual_split(v[0], tau);
        return ops::residual_add(ops::linear(branch, v[1]), stream, tau);
    };
}
constexpr double infinite = std::numeric_limits<double>::infinity();
const std::vector<Shape> layer_shapes = {{6, 5}, {5, 5}};
}  // namespace

TEST_CASE("residual: gradients agree with finite differences") {
    for (const std::optional<double> tau :
         {std::optional<double>(), std::optional<double>(0.5), std::optional<double>(2.0), std::optional(infinite)})
        for (const double error : analysis::grad_check(test::normal_inputs<double>(layer_shapes), layer(tau)))
            CHECK(error < 1e-8);
}

TEST_CASE("residual: under unit the stream's gradient is the true one, the weight's gets the branch factor back") {
    // The branch's linear layer has alpha = beta_x = 5^-1/2. So both scalings compute one function of x if the weight
    // of the plain model carries this factor.
    const double tau = 0.5, alpha = std::sqrt(1.0 / 5), branch = tau / std::sqrt(tau * tau + 1.0);
    std::vector<Tensor<double>> inputs = test::normal_inputs<double>(layer_shapes);
    const auto unit = analysis::run_op<double>(analysis::plain_recipe(Scaling::unit), inputs, layer(tau));
    for (double& w : inputs[1].span()) w *= alpha;
    const auto plain = analysis::run_op<double>(analysis::plain_recipe(Scaling::none), inputs, layer(tau));
    CHECK(analysis::relative_error(unit.value, plain.value) < 1e-14);
    CHECK(analysis::relative_error(unit.gradients[0], plain.gradients[0]) < 1e-14);
    CHECK(analysis::relative_error(unit.gradients[1], plain.gradients[1], std::sqrt(1.0 / 6) / branch) < 1e-14);
}

TEST_CASE("residual: unit scale of the value, the stream's gradient and the branch's weight") {
    for (const double tau : {0.25, 1.0})
        test::check_unit_scale({{300, 200}, {200, 200}}, layer(tau), 1.0, {1.0, 1.0}, 0.03);
}

TEST_CASE("residual: without tau the layer is x + f(x)") {
    test::OpTape<double> t(Scaling::none);
    const auto x = t.input({4});
    const auto [branch, stream] = ops::residual_split(x);
    const auto y = ops::residual_add(branch, stream);
    t.tape.backward(analysis::project(y, full<double>({4}, 1.0)));
    CHECK(y.value()(2) == 2.0 * x.value()(2));
    CHECK(x.gradient()(2) == 2.0);
}

TEST_CASE("residual: with an infinite tau the branch replaces the stream, which gets zeros as its gradient") {
    for (const Scaling scaling : {Scaling::none, Scaling::unit, Scaling::propagate}) {
        test::OpTape<double> t(scaling);
        const auto x = t.input({4}), z = t.input({4}, 2);
        const auto y = ops::residual_add(x, z, infinite);
        CHECK(test::elements(y.value()) == test::elements(x.value()));
        t.tape.backward(analysis::project(y, full<double>({4}, 1.0)));
        CHECK(test::elements(z.gradient()) == std::vector<double>(4, 0.0));
        CHECK(test::elements(x.gradient()) == std::vector<double>(4, 1.0));
    }
    test::check_unit_scale({{300, 200}, {200, 200}}, layer(infinite), 1.0, {1.0, 1.0}, 0.03);
}

TEST_CASE("residual: one element, and no rows") {
    for (const double error : analysis::grad_check(test::normal_inputs<double>({{1, 1}, {1, 1}}), layer(0.5)))
        CHECK(error < 1e-8);
    test::check_nothing({{0, 5}, {5, 5}}, layer(0.5), {0, 5});
    test::check_nothing({{0, 5}, {5, 5}}, layer({}), {0, 5});
}

TEST_CASE("residual: errors name branch, stream and tau") {
    test::OpTape<float> t;
    REQUIRE_THROWS_WITH(ops::residual_add(t.input({2}), t.input({3})),
                        "residual_add: branch [2] and stream [3] differ in shape");
    REQUIRE_THROWS_WITH(ops::residual_split(t.input({2}), 0.0), "residual: tau is 0; expected a positive number");
    REQUIRE_THROWS_WITH(ops::residual_add(t.input({2}), t.input({2}), -1.0),
                        "residual: tau is -1; expected a positive number");
    REQUIRE_THROWS_WITH(ops::residual_add(t.input({2}), t.input({2}), std::numeric_limits<double>::quiet_NaN()),
                        Catch::Contains("expected a positive number"));
}

TEST_CASE("residual: propagates scales, with the standard weights") {
    for (const std::optional<double> tau :
         {std::optional<double>(), std::optional<double>(0.5), std::optional<double>(3.0), std::optional(infinite)})
        test::check_propagate(layer_shapes, layer(tau));
    for (const double tau : {0.25, 1.0})  // both ends alone: the scales of the inputs are unrelated
        test::check_propagate({{5}, {5}}, [=](auto&, auto& v) { return ops::residual_add(v[0], v[1], tau); });
    // A split with one part unused.
    test::check_propagate({{5}}, [](auto&, auto& v) { return ops::residual_split(v[0])[0]; });
    test::check_propagate({{5}}, [](auto&, auto& v) { return ops::residual_split(v[0])[1]; });
}

TEST_CASE("residual: the sum has the root of the sum of squares for scale; zeros go with any") {
    test::OpTape<double> t(Scaling::propagate);
    const auto at = [&](double scale) { return t.tape.input(set_scaling(normal<double>({5}, {1, 1}), scale), true); };
    CHECK(ops::residual_add(at(8.0), at(8.0)).scaled().scale() == 8.0);
    CHECK(ops::residual_add(at(8.0), at(0.25)).scaled().scale() == 8.0);
    CHECK(ops::residual_add(at(8.0), at(8.0), 3.0).scaled().scale() == 8.0);
    CHECK(ops::residual_add(at(0.25), at(8.0), 3.0).scaled().scale() == 2.0);  // 8 / 10^1/2 = 2.5
    const auto nothing = t.tape.input(zeros<double>({5}));
    CHECK(ops::residual_add(nothing, at(0.125)).scaled().scale() == 0.125);
    CHECK(ops::residual_add(at(0.125), nothing).scaled().scale() == 0.125);
    CHECK(ops::residual_add(nothing, nothing).scaled().any_scale());
    CHECK(ops::residual_add(nothing, at(0.125), infinite).scaled().any_scale());
    CHECK(ops::residual_add(nothing, at(0.125), infinite).scaled().scale() == 1.0);
    CHECK(ops::residual_add(at(0.125), nothing, infinite).scaled().scale() == 0.125);
}

TEST_CASE("residual: a stream that is replaced may overflow") {
    for (const Scaling scaling : {Scaling::none, Scaling::unit, Scaling::propagate}) {
        test::OpTape<double> t(scaling);
        const auto x = t.input({1}), z = t.tape.input(Tensor<double>({1}, {infinite}), true);
        const auto y = ops::residual_add(x, z, infinite);
        CHECK(y.value()(0) == x.value()(0));
        t.tape.backward(analysis::project(y, Tensor<double>({1}, {infinite})));
        CHECK(z.gradient()(0) == 0.0);
        CHECK(z.gradient().any_scale());
    }
    for (const Scaling scaling : {Scaling::none, Scaling::unit, Scaling::propagate}) {
        test::OpTape<double> t(scaling);
        const auto x = t.input({4});
        const auto [branch, stream] = ops::residual_split(x, infinite);
        t.tape.backward(analysis::project(ops::residual_add(branch, stream, infinite), full<double>({4}, 1.0)));
        CHECK(test::elements(x.gradient()) == std::vector<double>(4, 1.0));
        CHECK_FALSE(x.gradient().any_scale());
    }
}

TEST_CASE("residual: propagates scales by every rounding") {
    for (const ScaleRounding rounding : {ScaleRounding::up, ScaleRounding::nearest, ScaleRounding::stochastic})
        test::check_propagate(layer_shapes, layer(0.5), 1e-12, {.rounding = rounding});
}
