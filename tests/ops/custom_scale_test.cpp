// SPDX-License-Identifier: MIT
#include <unitscale/ops/custom_scale.hpp>
#include <unitscale/ops/linear.hpp>
#include <unitscale/ops/rms_norm.hpp>
#include <unitscale/ops/softmax_cross_entropy.hpp>

#include "support/propagate_checks.hpp"

#include <cmath>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

using namespace unitscale;

namespace {

/// y = x |x|, with s^2 as a factor taken out. For a unit normal x: E[y^2] = 3, E[(2 x)^2] = 4.
template <class T>
Variable<T> signed_square(Variable<T> x, double scale_error = 1.0) {
    using A = Accum<T>;
    const Tensor<T>& a = x.scaled();
    const double s = a.scale();
    return ops::custom_scale(
        "signed_square", {x},
        {.scale = s * s * scale_error,
         .unit = ops::Factors<1>{.alpha = std::sqrt(1.0 / 3.0), .betas = {0.5}},
         .reads = reads_inputs},
        [&](A factor) {
            Tensor<T> y = x.tape("signed_square").make(a.shape());
            for (std::size_t i = 0; i < y.size(); ++i)
                y.data()[i] =
                    static_cast<T>(factor * static_cast<A>(a.data()[i]) * std::abs(static_cast<A>(a.data()[i])));
            return y;
        },
        [](auto& g) {
            Tensor<T> dx = g.take_output_gradient();
            for (std::size_t i = 0; i < dx.size(); ++i)
                dx.data()[i] = static_cast<T>(g.factor(0) * static_cast<A>(dx.data()[i]) * A(2) *
                                              std::abs(static_cast<A>(g.input(0).data()[i])));
            g.add(0, std::move(dx));
        });
}

/// y = 100 x z^2 in one loop over data. The constant is left to the rule, so that its scale is no power of two.
template <class T>
Variable<T> cubic(Variable<T> x, Variable<T> z, std::optional<ops::Factors<2>> unit = {}) {
    using A = Accum<T>;
    const Tensor<T>&a = x.scaled(), &b = z.scaled();
    return ops::custom_scale(
        "cubic", {x, z},
        {.scale = 100.0 * a.scale() * b.scale() * b.scale(), .unit = unit, .constraint = Constraint::none},
        [&](A factor) {
            Tensor<T> y = x.tape("cubic").make(a.shape());
            for (std::size_t i = 0; i < y.size(); ++i) y.data()[i] = factor * a.data()[i] * b.data()[i] * b.data()[i];
            return y;
        },
        [](auto& g) {
            const Tensor<T>&dy = g.output_gradient(), &left = g.input(0), &right = g.input(1);
            Tensor<T> dx = g.make(dy.shape()), dz = g.make(dy.shape());
            for (std::size_t i = 0; i < dy.size(); ++i) {
                dx.data()[i] = g.factor(0) * dy.data()[i] * right.data()[i] * right.data()[i];
                dz.data()[i] = g.factor(1) * dy.data()[i] * A(2) * left.data()[i] * right.data()[i];
            }
            g.add(0, std::move(dx));
            g.add(1, std::move(dz));
        });
}

/// y = sin(x), from which no scale can be taken out: g(a) = sin(s a), dg/da = s cos(s a).
template <class T>
Variable<T> sine(Variable<T> x) {
    const Tensor<T>& a = x.scaled();
    const T s = static_cast<T>(a.scale());
    return ops::custom_scale(
        "sine", {x}, {},
        [&](Accum<T> factor) {
            Tensor<T> y = x.tape("sine").make(a.shape());
            for (std::size_t i = 0; i < y.size(); ++i) y.data()[i] = factor * std::sin(s * a.data()[i]);
            return y;
        },
        [s](auto& g) {
            Tensor<T> dx = g.take_output_gradient();
            for (std::size_t i = 0; i < dx.size(); ++i)
                dx.data()[i] *= g.factor(0) * s * std::cos(s * g.input(0).data()[i]);
            g.add(0, std::move(dx));
        });
}

const auto square = [](auto&, auto& v) { return signed_square(v[0]); };
const ops::Factors<2> some{.alpha = 0.01, .betas = {0.3, 0.2}};

}  // namespace

TEST_CASE("custom_scale: gradient, factors and unit scale of an op with one input") {
    const double joined = std::sqrt(1.0 / 3.0);  // to_output_scale
    test::check_gradient_and_factors({{3, 7}}, square, joined, {joined});
    test::check_unit_scale({{300, 100}}, square, 1.0, {2.0 * joined});
    test::check_nothing({{0, 3}}, square, {0, 3});
}

TEST_CASE("custom_scale: factors of several inputs, unjoined, and a scale of its own") {
    test::check_gradient_and_factors({{3, 7}, {3, 7}}, [](auto&, auto& v) { return cubic(v[0], v[1], some); }, 0.01,
                                     {0.3, 0.2});
    const std::vector<double> errors =
        analysis::grad_check(test::normal_inputs<double>({{2, 3}}), [](auto&, auto& v) { return sine(v[0]); });
    CHECK(errors[0] < 1e-8);
}

TEST_CASE("custom_scale: under propagate the op means the same, and its scales are powers of two by its rule") {
    const auto product = [](auto&, auto& v) { return cubic(v[0], v[1]); };
    const auto with_factors = [](auto&, auto& v) { return cubic(v[0], v[1], some); };
    test::check_propagate({{3, 7}}, square);
    test::check_propagate({{3, 7}, {3, 7}}, product);
    test::check_propagate({{3, 7}, {3, 7}}, with_factors);
    test::check_propagate({{3, 7}}, [](auto&, auto& v) { return sine(v[0]); });
    // The value has the scale s^2 3^1/2, rounded down; the gradient has dy's scale times s / beta.
    CHECK(test::propagated_scales({{3, 7}}, {8.0}, square, 0.25) == std::vector{64.0, 0.25 * 8.0 * 2.0});
    // 100 is 64 times a factor. dx has dy's scale times 64 t^2, and dz has dy's scale times 64 s t.
    CHECK(test::propagated_scales({{3}, {3}}, {8.0, 4.0}, product, 0.25) == std::vector{8192.0, 256.0, 512.0});
    CHECK(test::propagated_scales({{3}, {3}}, {8.0, 4.0}, with_factors, 0.25) ==
          std::vector{8192.0 * 64.0, 256.0 * 2.0, 512.0 * 4.0});
    // The check above finds a wrong rule: twice the scale gives twice the value.
    test::OpTape<double> t(Scaling::propagate);
    const auto x = test::scaled_input<double>(t.tape, {4}, 8.0);
    CHECK(signed_square(x, 2.0).value()(1) == 2.0 * signed_square(x).value()(1));
}

TEST_CASE("custom_scale: a model with such an op has the loss and the gradients of none") {
    const auto run = [](Scaling scaling, double scale) {
        Recipe recipe = analysis::plain_recipe(scaling);
        recipe.propagate.exact_norms = true;
        ScalingState state(1);
        Tape<double> tape(recipe, state);
        std::deque<Parameter<double>> weights;
        for (int i = 0; i < 3; ++i) {
            weights.emplace_back("weight" + std::to_string(i), Shape{8, 8}, ParameterFacts{});
            fill_normal(weights.back().write(), {3, static_cast<std::uint64_t>(i)}, 0.3);
            weights.back().write() = set_scaling(weights.back().value(), scale);
        }
        tape.begin_step();
        auto x = tape.input(normal<double>({5, 8}, {1, 2}));
        x = signed_square(ops::linear(x, tape.parameter(weights[0])));
        x = cubic(ops::rms_norm(x), sine(ops::linear(x, tape.parameter(weights[1]))));
        const auto loss = ops::softmax_cross_entropy(ops::linear(signed_square(x), tape.parameter(weights[2])),
                                                     Tensor<std::int32_t>({5}, {1, 0, 7, 3, 3}));
        tape.backward(loss);
        CHECK(state.wide_ops().empty());
        std::vector<Tensor<double>> results{Tensor<double>({1}, {loss.item()})};
        for (const auto& weight : weights) results.push_back(value(weight.gradient()));
        return results;
    };
    const auto want = run(Scaling::none, 1.0), got = run(Scaling::propagate, 0.25);
    for (std::size_t i = 0; i < want.size(); ++i) CHECK(analysis::relative_error(got[i], want[i]) < 1e-9);
    CHECK(want[1].span()[0] != 0.0);
}

TEST_CASE("custom_scale: errors name the op") {
    test::OpTape<float> t;
    const auto x = t.input({2});
    REQUIRE_THROWS_WITH(sine(x),
                        "sine: no rule for scaling 'unit'; state its factors with {.unit = Factors<1>{.alpha = a, "
                        ".betas = {b}}}");
    REQUIRE_THROWS_WITH(signed_square(x, 0.0), "signed_square: scale is 0; expected a positive number");
    REQUIRE_THROWS_WITH(signed_square(x, std::nan("")), "signed_square: scale is nan; expected a positive number");
    REQUIRE_THROWS_WITH(cubic(x, x, ops::Factors<2>{.betas = {1.0}}), "cubic: beta is 0; expected a positive number");
    REQUIRE_THROWS_WITH(cubic(x, x, ops::Factors<2>{.alpha = -1.0}), "cubic: alpha is -1; expected a positive number");
    REQUIRE_THROWS_WITH(signed_square(Variable<float>()),
                        "value: an empty Variable; make one with Tape::input, Tape::parameter or an op");
}
