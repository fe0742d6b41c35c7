// SPDX-License-Identifier: MIT
#include <unitscale/ops/dynamic_rescale.hpp>

#include <unitscale/ops/gated_silu.hpp>
#include <unitscale/ops/gelu.hpp>
#include <unitscale/ops/mul.hpp>
#include <unitscale/ops/relu.hpp>
#include <unitscale/ops/scale.hpp>
#include <unitscale/ops/silu.hpp>
#include <unitscale/ops/sum.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/scaling/recipe.hpp>

#include "support/allocation_count.hpp"
#include "support/propagate_checks.hpp"

#include <array>
#include <cmath>
#include <limits>
#include <vector>

using namespace unitscale;

namespace {

/// The three norms of an op, by number.
template <class T>
Variable<T> rescaled(Variable<T> x, std::size_t norm) {
    return norm == 0   ? ops::dynamic_rescale_max(x)
           : norm == 1 ? ops::dynamic_rescale_l1(x)
                       : ops::dynamic_rescale_l2(x);
}
template <class T>
Variable<T> gradient_rescaled(Variable<T> x, std::size_t norm) {
    return norm == 0   ? ops::dynamic_rescale_max_gradient(x)
           : norm == 1 ? ops::dynamic_rescale_l1_gradient(x)
                       : ops::dynamic_rescale_l2_gradient(x);
}
template <class T>
bool same_values(const Tensor<T>& a, const Tensor<T>& b) {
    bool same = a.shape() == b.shape();
    for (std::size_t i = 0; same && i < a.size(); ++i)
        same = widest(a.data()[i]) * a.scale() == widest(b.data()[i]) * b.scale();
    return same;
}
/// Data of largest magnitude 12, mean magnitude 3.5 and root mean square 6.04.
template <class T>
Tensor<T> uneven(double scale, double factor = 1.0) {
    Tensor<T> x({4}, {T(factor), T(-12.0 * factor), T(factor), T(0.0)});
    x.set_scale(scale);
    return x;
}
constexpr std::array<double, 3> powers = {8.0, 2.0, 4.0};  // these norms, rounded down

}  // namespace

TEST_CASE("dynamic_rescale: the value and the gradient equal the identity's") {
    for (const std::size_t norm : {0u, 1u, 2u}) {
        test::check_propagate({{3, 7}}, [=](auto&, auto& v) { return rescaled(v[0], norm); });
        test::check_propagate({{3, 7}}, [=](auto&, auto& v) { return gradient_rescaled(v[0], norm); });
    }
}

TEMPLATE_TEST_CASE("dynamic_rescale: the norm rounded down moves from data to scale, and no bit of the value changes",
                   "", double, float) {
    using T = TestType;
    for (const std::size_t norm : {0u, 1u, 2u})
        for (const double factor : {1.0, 0x1p-8, 0x1p20}) {
            INFO("norm " << norm << ", data times " << factor);
            test::OpTape<T> t(Scaling::propagate);
            const auto x = t.tape.input(uneven<T>(0x1p-30, factor), true);
            const auto y = rescaled(x, norm);
            CHECK(y.scaled().scale() == 0x1p-30 * factor * powers[norm]);
            CHECK(y.scaled()(1) == T(-12.0 / powers[norm]));
            CHECK(same_values(y.scaled(), x.scaled()));
            t.tape.backward(analysis::project(gradient_rescaled(y, norm), uneven<T>(1.0, factor), 0x1p-50));
            CHECK(x.gradient().scale() == factor * powers[norm]);
            CHECK(x.gradient()(1) == T(-12.0 / powers[norm]));
            CHECK(same_values(x.gradient(), uneven<T>(1.0, factor)));
        }
}

TEST_CASE("dynamic_rescale: 2^-14 bounds it below, and data of norm 0, infinity or NaN stays as it is") {
    test::OpTape<float> t(Scaling::propagate);
    for (const std::size_t norm : {0u, 1u, 2u}) {
        const auto scale = [&](float a, float b) {
            const auto y = rescaled(t.tape.input(Tensor<float>({2}, {a, b}), true), norm);
            return y.scaled().scale();
        };
        CHECK(scale(1e-9f, 1e-9f) == 0x1p-14);
        CHECK(scale(1e-30f, 1e-30f) == 0x1p-14);  // its square is 0 in float
        CHECK(scale(1e30f, 1e30f) == 0x1p99);     // its square is infinite in float
        CHECK(scale(0.0f, -0.0f) == 1.0);
        CHECK(scale(std::numeric_limits<float>::infinity(), 1e-9f) == 1.0);
        CHECK(scale(std::nanf(""), 1e-9f) == 1.0);
    }
    CHECK(rescaled(t.input({0, 3}), 2).scaled().scale() == 1.0);
    // The largest scale is 2^127: the rest of the norm stays in the data.
    const auto x = ops::rebalance(test::scaled_input<float>(t.tape, {100}, 0x1p127), 0x1p-20);
    const auto y = ops::dynamic_rescale_max(x);  // the norm is above 2
    CHECK(y.scaled().scale() == 0x1p127);
    CHECK(same_values(y.scaled(), x.scaled()));
}

TEST_CASE("dynamic_rescale: an already rescaled tensor is not copied, and nothing is recorded under another scaling") {
    test::OpTape<float> t(Scaling::propagate);
    const auto x = t.input({1000});  // its root mean square is near 1
    const auto y = ops::dynamic_rescale_l2(ops::rebalance(x, 0.5));
    CHECK(&ops::dynamic_rescale_l2(y).scaled() == &y.scaled());
    CHECK(&ops::dynamic_rescale_l2_gradient(x).scaled() == &x.scaled());
    CHECK(t.tape.node_count() == 4);
    for (const Scaling scaling : {Scaling::none, Scaling::unit}) {
        test::OpTape<float> other(scaling);
        const auto z = other.input({3});
        for (const std::size_t norm : {0u, 1u, 2u}) {
            CHECK(&rescaled(z, norm).scaled() == &z.scaled());
            CHECK(&gradient_rescaled(z, norm).scaled() == &z.scaled());
        }
        CHECK(other.tape.node_count() == 0);
    }
}

TEST_CASE("dynamic_rescale: always rounded down, whatever the recipe's rounding; the same bits with 2 threads") {
    for (const std::size_t norm : {0u, 1u, 2u}) {
        const auto scales = test::propagated_scales(
            {{3, 7}}, {1.0}, [=](auto&, auto& v) { return rescaled(v[0], norm); }, 1.0, ScaleRounding::up);
        CHECK(scales[0] ==
              test::propagated_scales({{3, 7}}, {1.0}, [=](auto&, auto& v) { return rescaled(v[0], norm); })[0]);
    }
    Recipe recipe = analysis::plain_recipe(Scaling::propagate);
    const auto run = [&](int threads) {
        return analysis::run_op<float>(
            recipe, {normal<float>({300, 300}, {1, 1}, 1e-3)},
            [](auto&, auto& v) { return ops::dynamic_rescale_l1_gradient(ops::dynamic_rescale_l2(v[0])); },
            normal<float>({300, 300}, {1, 2}, 1e-4), 1, threads);
    };
    const auto one = run(1), two = run(2);
    CHECK(one.gradients[0].scale() == two.gradients[0].scale());
    CHECK(one.gradients[0].scale() < 0x1p-10);
    CHECK(std::equal(one.value.span().begin(), one.value.span().end(), two.value.span().begin()));
    CHECK(std::equal(one.gradients[0].span().begin(), one.gradients[0].span().end(), two.gradients[0].span().begin()));
}

TEST_CASE("dynamic_rescale: a step after the first allocates nothing") {
    if (!test::can_count_allocations()) return;
    const Recipe recipe = analysis::plain_recipe(Scaling::propagate);
    ScalingState state(1);
    Tape<float> tape(recipe, state);
    Parameter<float> x("x", {200, 200}, {});
    fill_normal(x.write(), {1, 2}, 1e-3);
    const auto step = [&] {
        tape.begin_step();
        auto y = ops::stop_scaling(ops::dynamic_rescale_l2(ops::dynamic_rescale_l1_gradient(tape.parameter(x))));
        for (int i = 0; i < 6; ++i) y = ops::dynamic_rescale_max_gradient(ops::rebalance(y, 0.5));
        const auto [data, scale] = ops::get_data_and_scale(y);
        Tensor<float> loss = tape.make(Shape{1});
        loss.data()[0] = static_cast<float>(scale);
        tape.backward(
            tape.record({.name = "first", .site = tape.next_site("first"), .betas = {1.0}, .propagates = true}, {data},
                        std::move(loss), [](BackwardContext<float>& g) {
                            Tensor<float> dx = g.make(g.input_shape(0));
                            for (float& v : dx.span()) v = g.output_gradient()(0) * 0x1p-20f;
                            g.add(0, std::move(dx));
                        }));
    };
    for (int i = 0; i < 3; ++i) step();
    test::AllocationCount count;
    step();
    CHECK(count.stop() == 0);
    CHECK(x.gradient()(0, 3) != 0.0f);
}

namespace {

/// The data's rms of the gradient that reaches x through `op`, for an output gradient of this size.
template <class Op>
double gradient_size(const Recipe& recipe, const Op& op, double size, ScalingState& state) {
    Tape<double> tape(recipe, state);
    tape.begin_step({.retain = true});
    const auto x = tape.input(normal<double>({64}, {1, 1}), true);
    const auto dy = tape.input(normal<double>({64}, {1, 2}, size));
    tape.backward(ops::sum(ops::mul(op(x), dy)));
    const Tensor<double>& gradient = x.gradient();
    double squares = 0.0;
    for (const double g : gradient.span()) squares += g * g;
    return std::sqrt(squares / 64.0);
}

}  // namespace

TEST_CASE("dynamic_rescale: a recipe brings the gradients of feed-forward non-linearities to unit data") {
    const auto gated = [](Variable<double> x) { return ops::gated_silu(x, ops::scale_forward(x, 0.5)); };
    const auto check_op = [&](const auto& op) {
        Recipe off = find_recipe("scalify-fp16-1"), on = off;
        off.storage = on.storage = Storage{};
        on.propagate.rescale_activation_gradients = true;
        ScalingState a, b;
        CHECK(gradient_size(off, op, 1000.0, a) > 100.0);
        const double size = gradient_size(on, op, 1000.0, b);
        CHECK(size >= 1.0);
        CHECK(size < 4.0);  // of the gated silu: two gradients of unit data
    };
    check_op([](Variable<double> x) { return ops::gelu(x); });
    check_op([](Variable<double> x) { return ops::relu(x); });
    check_op([](Variable<double> x) { return ops::silu(x); });
    check_op(gated);
}

TEST_CASE("dynamic_rescale: a recipe with delayed sizes rescales by the size of the last training step") {
    Recipe recipe = find_recipe("scalify-fp16-1");
    recipe.storage = Storage{};
    recipe.propagate.rescale_activation_gradients = recipe.propagate.delayed_sizes = true;
    ScalingState state;
    const auto op = [](Variable<double> x) { return ops::relu(x); };
    const double first = gradient_size(recipe, op, 1000.0, state);
    CHECK(first >= 1.0);
    CHECK(first < 2.0);  // no step before: its own size
    CHECK(gradient_size(recipe, op, 8000.0, state) == Approx(8.0 * first));
    CHECK(gradient_size(recipe, op, 1000.0, state) == Approx(first / 8.0));
    CHECK(gradient_size(recipe, op, 1000.0, state) == Approx(first));
}
