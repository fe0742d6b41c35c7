// SPDX-License-Identifier: MIT
#include <unitscale/record/same_scale.hpp>

#include "support/propagate_checks.hpp"

using namespace unitscale;

TEST_CASE("SameScale: a tensor's own data where the scales agree, else a copy of the same value") {
    test::OpTape<float> t(Scaling::propagate);
    const auto x = test::scaled_input(t.tape, {5}, 8.0);
    const ops::SameScale<float> own(t.tape, &x.scaled(), 8.0), other(t.tape, &x.scaled(), 0.5);
    CHECK(own.data() == x.scaled().data());
    CHECK(other.data() != x.scaled().data());
    for (std::size_t i = 0; i < 5; ++i) CHECK(other.data()[i] == 16.0f * x.scaled()(i));
    CHECK(x.scaled().scale() == 8.0);
}

TEST_CASE("SameScale: no tensor is null, and without scales nothing is copied") {
    test::OpTape<float> t(Scaling::propagate), none(Scaling::none);
    CHECK(ops::SameScale<float>(t.tape, nullptr, 2.0).data() == nullptr);
    const auto x = none.input({3});
    CHECK(ops::SameScale<float>(none.tape, &x.scaled(), 2.0).data() == x.value().data());
}

TEST_CASE("ScaledOperand: a factor that float holds, else a copy under the result's scale") {
    test::OpTape<float> t(Scaling::propagate);
    const auto near = test::scaled_input(t.tape, {5}, 8.0), far = test::scaled_input(t.tape, {5}, 0x1p-140);
    const ops::ScaledOperand<float> own(t.tape, near.scaled(), 0.5, 3.0), moved(t.tape, far.scaled(), 0x1p-2, 3.0),
        small(t.tape, far.scaled(), 0x1p-20, 3.0);
    CHECK(own.data() == near.scaled().data());
    CHECK(own.factor() == 48.0f);
    CHECK(small.data() == far.scaled().data());
    CHECK(small.factor() == 3.0f * 0x1p-120f);
    CHECK(moved.data() != far.scaled().data());
    CHECK(moved.factor() == 3.0f);
    for (std::size_t i = 0; i < 5; ++i) CHECK(moved.data()[i] == 0x1p-138f * far.scaled()(i));
}

TEST_CASE("ScaledOperand: zeros of any scale stay zeros where the ratio of scales is no float") {
    test::OpTape<float> t(Scaling::propagate);
    const auto zero = test::zeros_of_any_scale(t.tape, {3});
    const ops::ScaledOperand<float> operand(t.tape, zero.scaled(), 0x1p-200);
    CHECK(operand.factor() == 1.0f);
    for (std::size_t i = 0; i < 3; ++i) CHECK(operand.data()[i] == 0.0f);
}

TEST_CASE("LargestScale: tensors that go with any scale do not count unless there are no others") {
    test::OpTape<float> t(Scaling::propagate);
    const auto zero = test::zeros_of_any_scale(t.tape, {2});
    ops::LargestScale largest;
    largest.include(zero.scaled());
    CHECK(largest.value() == 0x1p-40);
    CHECK(largest.any_scale());
    for (const double scale : {0x1p-60, 0x1p-50, 0x1p-55})
        largest.include(test::scaled_input(t.tape, {2}, scale).scaled());
    CHECK(largest.value() == 0x1p-50);
    CHECK_FALSE(largest.any_scale());
}

TEST_CASE("a planned scale takes the place of the largest one, and of a sum's") {
    test::OpTape<double> t(Scaling::propagate);
    const auto x = test::scaled_input(t.tape, {2}, 4.0), zero = test::zeros_of_any_scale(t.tape, {2});
    ops::LargestScale largest;
    largest.include(x.scaled());
    const Site site = t.tape.next_site("joined");
    CHECK(largest.carried(t.tape, site) == 4.0);
    CHECK(ops::sum_of_scales(t.tape, site, x.scaled(), zero.scaled()) == 4.0);
    t.tape.state().set_planned_scale(site, 0.5);
    CHECK(largest.carried(t.tape, site) == 0.5);
    CHECK(ops::sum_of_scales(t.tape, site, x.scaled(), zero.scaled()) == 0.5);
    CHECK(ops::sum_of_scales(t.tape, site, x.scaled(), x.scaled()) == 0.5);
}
