// SPDX-License-Identifier: MIT
#include <unitscale/autograd/carried_scales.hpp>
#include <unitscale/tensor/fill.hpp>

#include "support/catch.hpp"

#include <cmath>
#include <limits>
#include <map>
#include <string>

using namespace unitscale;

namespace {
struct Carried {
    ScalingState state{1};
    Site op = state.site(0, "op", 0), other = state.site(0, "other", 0);
    CarriedScales scales{PropagateRule{.rounding = ScaleRounding::down}, state};
    RecordedGraph<double> graph{};
};
}  // namespace

TEST_CASE_METHOD(Carried, "a scale is the rule's until one is planned, which is rounded; data keeps its value") {
    CHECK(scales.value(op, 6.0, 4.0, 0).scale == 4.0);
    CHECK(scales.value(op, 6.0, 4.0, 0).factor == 1.5);
    state.set_planned_scale(op, 3.0);
    CHECK(scales.value(op, 6.0, 4.0, 0).scale == 2.0);
    CHECK(scales.value(op, 6.0, 4.0, 0).factor == 3.0);
    CHECK(scales.value(other, 6.0, 4.0, 0).scale == 4.0);
    CHECK(scales.gradient(op, 0, 6.0, 4.0, 0).scale == 4.0);
}

TEST_CASE("a planned scale of a gradient is for the loss gradient 1") {
    Carried carried;
    carried.state.set_planned_gradient_scale(carried.op, 1, 0.3);
    CHECK(carried.scales.gradient(carried.op, 0, 1.0, 1.0, 0).scale == 1.0);
    CHECK(carried.scales.gradient(carried.op, 1, 1.0, 1.0, 0).scale == 0.25);
    carried.scales.set_seed(-1024.0);
    CHECK(carried.scales.gradient(carried.op, 1, 1.0, 1.0, 0).scale == 256.0);
    for (const double seed : {0.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
        carried.scales.set_seed(seed);
        CHECK(carried.scales.gradient(carried.op, 1, 1.0, 1.0, 0).scale == 0.25);
    }
}

TEST_CASE_METHOD(Carried, "a dry pass plans what was asked for and measured") {
    Tensor<double> x({2}, {3.0, -4.0});
    x.set_scale(2.0);
    scales.measure(op, x);  // no dry pass
    scales.begin_measuring();
    CHECK(scales.measuring());
    static_cast<void>(scales.value(op, 1.0, 1.0, 0));
    scales.measure(op, x);
    scales.measure(other, x);  // did not ask
    static_cast<void>(scales.gradient(op, 3, 1.0, 1.0, 0));
    scales.measure_gradient(op, 2, x);  // asked for another input
    scales.measure_gradient(op, 3, x);
    static_cast<void>(scales.gradient(other, 0, 1.0, 1.0, 0));
    scales.measure_gradient(other, 3, x);
    CHECK(state.plan().empty());  // the scales of a dry pass do not change under way
    scales.plan(graph);
    scales.end_measuring();
    CHECK_FALSE(scales.measuring());
    const double size = 2.0 * std::sqrt(12.5);
    CHECK(state.plan() == std::map<std::string, double>{{"op", size}, {"op|d3", size}});
}

TEST_CASE_METHOD(Carried, "tensors without a size of their own leave the rule in place") {
    const auto measured = [&](const Tensor<double>& x) {
        scales.begin_measuring();
        static_cast<void>(scales.value(op, 1.0, 1.0, 0));
        scales.measure(op, x);
        scales.plan(graph);
        scales.end_measuring();
        const bool planned = state.has_plan();
        state.set_plan({});
        return planned;
    };
    CHECK(measured(full<double>({2}, 1.0)));
    CHECK(measured(full<double>({2}, 0x1p-12)));
    CHECK_FALSE(measured(full<double>({1}, 1.0)));
    CHECK_FALSE(measured(full<double>({2}, 0.0)));
    CHECK_FALSE(measured(full<double>({2}, 0x1p-13)));  // rounding errors of a gradient that is 0
    CHECK_FALSE(measured(full<double>({2}, std::numeric_limits<double>::infinity())));
    CHECK_FALSE(measured(full<double>({2}, std::numeric_limits<double>::quiet_NaN())));
}

TEST_CASE_METHOD(Carried, "a measured size is the present one, or with delayed sizes the last training step's") {
    CarriedScales delayed{PropagateRule{.delayed_sizes = true}, state};
    state.set_step(1);
    for (CarriedScales* carried : {&scales, &delayed}) {
        carried->begin_step(true);
        CHECK(carried->data_size(op, 0, 4.0, 1.0) == 4.0);
    }
    state.set_step(2);
    CHECK(scales.data_size(op, 0, 8.0, 1.0) == 8.0);
    delayed.begin_step(true);
    CHECK(delayed.data_size(op, 0, 8.0, 1.0) == 4.0);
    CHECK(delayed.data_size(op, 1, 8.0, 1.0) == 8.0);
    delayed.begin_step(false);
    CHECK(delayed.data_size(op, 0, 16.0, 1.0) == 4.0);  // as training saw it; not remembered
    delayed.begin_step(true);
    state.set_step(3);
    CHECK(delayed.data_size(op, 0, 1.0, 1.0) == 8.0);

    // The value's size is remembered: 1 x 1 of step 3. Under another scale its data is another.
    state.set_step(4);
    CHECK(scales.data_size(op, 0, 8.0, 0.25) == 8.0);
    CHECK(delayed.data_size(op, 0, 8.0, 0.25) == 4.0);
    state.set_step(5);
    CHECK(delayed.data_size(op, 0, 8.0, 4.0) == 0.5);   // 8 x 0.25 over 4
    CHECK(delayed.data_size(op, 0, 8.0, 0.75) == 2.0);  // 2 / 0.75, rounded down
}
