// SPDX-License-Identifier: MIT
// Tape::plan under scaling `propagate` with measured scales.
#include <unitscale/ops/mul.hpp>
#include <unitscale/ops/sum.hpp>
#include <unitscale/tensor/fill.hpp>
#include <unitscale/tensor/rescale.hpp>

#include "support/catch.hpp"

#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <string>

using namespace unitscale;

namespace {
/// sum (w x)^2 with a weight of scale 1/4 and x = 3, 4, ... of 16 elements; its plan is measured.
struct Measured {
    Measured() {
        fill_constant(weight.write(), 2.0);
        weight.write().set_scale(0.25);
    }
    Variable<double> loss(Tape<double>& on) {
        Tensor<double> x(Shape{16});
        for (std::size_t i = 0; i < 16; ++i) x.data()[i] = static_cast<double>(i + 3);
        const auto y = ops::mul(on.input(std::move(x), true), on.parameter(weight));
        return ops::sum(ops::mul(y, y));
    }
    Recipe recipe{.name = "test",
                  .description = "",
                  .scaling = Scaling::propagate,
                  .propagate = {.rounding = ScaleRounding::none, .measured = true}};
    ScalingState state{11};
    Parameter<double> weight{"weight", {16}, {}};
    Tape<double> measuring{recipe, state};
};
}  // namespace

TEST_CASE_METHOD(Measured, "plan measures the sizes of values and gradients, which become their scales") {
    Tape<double> tape_of_rules({.scaling = Scaling::propagate}, state);
    tape_of_rules.plan([&] { return loss(tape_of_rules); });
    CHECK_FALSE(state.has_plan());  // measured only where the recipe says so

    measuring.plan([&] { return loss(measuring); });
    CHECK_FALSE(weight.has_gradient());
    double squares = 0.0, fourths = 0.0, weights = 0.0;
    for (int i = 3; i < 19; ++i) {
        const double y = 0.5 * i;
        squares += y * y / 16.0;
        fourths += y * y * y * y / 16.0;
        weights += 4.0 * y * y * i * i / 16.0;  // of dw = 2 y x
    }
    const std::map<std::string, double>& plan = state.plan();
    CHECK(plan.at("mul") == Approx(std::sqrt(squares)).epsilon(1e-12));
    CHECK(plan.at("mul.1") == Approx(std::sqrt(fourths)).epsilon(1e-12));
    CHECK(plan.at("mul.1|d0") == Approx(std::sqrt(squares)).epsilon(1e-12));  // dy = y, twice
    CHECK(plan.at("mul|d1") == Approx(std::sqrt(weights)).epsilon(1e-12));
    CHECK(plan.at("sum|d0") == 1.0);
    CHECK(plan.count("sum") == 0);  // one element

    measuring.begin_step();
    const auto planned = loss(measuring);
    measuring.backward(planned, 1024.0);
    CHECK(planned.item() == Approx(16.0 * squares));
    CHECK(weight.gradient().scale() == Approx(1024.0 * std::sqrt(weights)).epsilon(1e-12));
    CHECK(root_mean_square(weight.gradient()) == Approx(1024.0 * std::sqrt(weights)).epsilon(1e-12));
    measuring.plan([&] { return loss(measuring); });  // a state that has a plan keeps it
    CHECK(weight.has_gradient());
}

TEST_CASE_METHOD(Measured,
                 "a measured scale is rounded as the recipe says, and sizes that are not numbers are not taken") {
    recipe.propagate.rounding = ScaleRounding::down;
    Tape<double> rounding(recipe, state);
    rounding.plan([&] { return loss(rounding); });
    rounding.begin_step();
    rounding.backward(loss(rounding));
    CHECK(weight.gradient().scale() == pow2_down(state.plan().at("mul|d1")));

    ScalingState other(1);
    Tape<double> infinite(recipe, other);
    fill_constant(weight.write(), std::numeric_limits<double>::infinity());
    weight.clear_gradient();
    infinite.plan([&] { return loss(infinite); });
    CHECK(other.plan().count("mul") == 0);
    CHECK(other.plan().count("mul|d1") == 0);
    CHECK(other.plan().at("sum|d0") == 1.0);
}

TEST_CASE_METHOD(Measured, "plan: a parameter with a gradient is an error, and an observer sees no dry step") {
    struct : Observer<double> {
        void observe(const TensorEvent<double>&) override { ++count; }
        std::size_t count = 0;
    } observer;
    measuring.set_observer(&observer);
    measuring.begin_step();
    measuring.backward(loss(measuring));
    const std::size_t seen = observer.count;
    CHECK(seen > 0);
    CHECK_THROWS_WITH(measuring.plan([&] { return loss(measuring); }),
                      "plan: parameter weight has a gradient; expected none before the first step");
    CHECK_FALSE(state.has_plan());
    weight.clear_gradient();
    measuring.plan([&] { return loss(measuring); });
    CHECK(observer.count == seen);
    measuring.begin_step();
    static_cast<void>(loss(measuring));
    CHECK(observer.count > seen);
}
