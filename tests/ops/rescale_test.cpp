// SPDX-License-Identifier: MIT
#include <unitscale/ops/rescale.hpp>

#include "support/propagate_checks.hpp"

#include <cmath>
#include <limits>
#include <vector>

using namespace unitscale;

namespace {

const auto setting = [](auto&, auto& v) { return ops::set_scaling(v[0], 0x1p-20); };
const auto balancing = [](auto&, auto& v) { return ops::rebalance(v[0], 8.0); };
const auto stopping = [](auto&, auto& v) { return ops::stop_scaling(v[0]); };

/// Equal numbers of one type: no bit of data times scale differs.
template <class T>
bool same_values(const Tensor<T>& a, const Tensor<T>& b) {
    bool same = a.shape() == b.shape();
    for (std::size_t i = 0; same && i < a.size(); ++i)
        same = widest(a.data()[i]) * a.scale() == widest(b.data()[i]) * b.scale();
    return same;
}

}  // namespace

TEST_CASE("rescale: changes the scale, but neither the value nor the gradient") {
    test::check_propagate({{3, 7}}, setting);
    test::check_propagate({{3, 7}}, balancing);
    test::check_propagate({{3, 7}}, stopping);
    test::check_propagate({{3, 7}}, [](auto&, auto& v) { return ops::set_scaling(v[0], 8.0); });  // an unchanged scale
    CHECK(test::propagated_scales({{3, 7}}, {0.5}, setting, 0.25) == std::vector{0x1p-20, 0.25});
    CHECK(test::propagated_scales({{3, 7}}, {0.5}, balancing, 0.25) == std::vector{4.0, 0.25});
    CHECK(test::propagated_scales({{3, 7}}, {0.5}, stopping, 0.25) == std::vector{1.0, 0.25});
}

TEMPLATE_TEST_CASE("rescale: powers of two change no bit of the value or the gradient", "", double, float) {
    test::OpTape<TestType> t(Scaling::propagate);
    const auto x = test::scaled_input<TestType>(t.tape, {1000}, 0x1p-9);
    const auto y = ops::set_scaling(ops::rebalance(x, 0x1p-30), 0x1p17), z = ops::stop_scaling(y);
    CHECK(y.scaled().scale() == 0x1p17);
    CHECK(y.scaled()(5) == x.scaled()(5) * TestType(0x1p-26));
    CHECK(same_values(y.scaled(), x.scaled()));
    CHECK(z.scaled().scale() == 1.0);
    CHECK(same_values(z.scaled(), x.scaled()));
    const Tensor<TestType> dy = normal<TestType>({1000}, {3, 4});
    t.tape.backward(analysis::project(z, dy, 0x1p-5));
    CHECK(x.gradient().scale() == 0x1p-5);
    CHECK(same_values(x.gradient(), dy));
}

TEST_CASE("rescale: data and scale apart, and together again") {
    test::OpTape<double> t(Scaling::propagate);
    const auto x = test::scaled_input<double>(t.tape, {40}, 0x1p-9);
    const auto [data, scale] = ops::get_data_and_scale(x);
    CHECK(scale == 0x1p-9);
    CHECK(data.scaled().scale() == 1.0);
    CHECK(data.scaled()(7) == x.scaled()(7));
    CHECK(data.value()(7) == x.value()(7) * 0x1p9);
    const Tensor<double> dy = normal<double>({40}, {3, 4});
    t.tape.backward(analysis::project(data, dy, 4.0));
    CHECK(x.gradient().scale() == 0x1p11);  // d data / dx = 1 / scale
    CHECK(x.gradient()(7) * 0x1p11 == Approx(dy(7) * 0x1p9).epsilon(1e-15));
    CHECK(test::propagated_scales({{3}}, {1.0}, [](auto&, auto& v) { return ops::get_data_and_scale(v[0]).first; }) ==
          std::vector{1.0, 1.0});
}

TEST_CASE("rescale: nothing is recorded under another scaling") {
    for (const Scaling scaling : {Scaling::none, Scaling::unit}) {
        test::OpTape<float> t(scaling);
        const auto x = t.input({3});
        const auto [data, scale] = ops::get_data_and_scale(x);
        CHECK(scale == 1.0);
        for (const auto& y : {data, ops::set_scaling(x, 4.0), ops::rebalance(x, 4.0), ops::stop_scaling(x)})
            CHECK(&y.scaled() == &x.scaled());
        CHECK(t.tape.node_count() == 0);
    }
}

TEST_CASE("rescale: powers of two out of a scale's range stay in the data") {
    test::OpTape<double> t(Scaling::propagate);
    const auto x = test::scaled_input<double>(t.tape, {10}, 0x1p-100);
    const auto small = ops::rebalance(x, 0x1p-100), large = ops::rebalance(x, 1e308);
    CHECK(small.scaled().scale() == 0x1p-126);
    CHECK(large.scaled().scale() == 0x1p127);
    CHECK(same_values(small.scaled(), x.scaled()));
    CHECK(same_values(large.scaled(), x.scaled()));
    // The gradient of data split from its scale: dy's scale over x's scale would be 2^200.
    t.tape.backward(analysis::project(ops::get_data_and_scale(x).first, full<double>({10}, 0x1p100), 0x1p100));
    CHECK(x.gradient().scale() == 0x1p127);
    CHECK(x.gradient()(2) == 0x1p73);
}

TEST_CASE("rescale: plain numbers are rounded once, and leave their type's range by its rules") {
    test::OpTape<Half> t(Scaling::propagate);
    Tensor<Half> data({3}, {Half(1.5f), Half(60000.0f), Half(0x1p-14f)});
    data.set_scale(4.0);
    const auto y = ops::stop_scaling(t.tape.input(data, true));
    CHECK(static_cast<float>(y.scaled()(0)) == 6.0f);
    CHECK(std::isinf(static_cast<float>(y.scaled()(1))));
    data.set_scale(0x1p-20);
    CHECK(static_cast<float>(ops::stop_scaling(t.tape.input(data, true)).scaled()(2)) == 0.0f);
    data.set_scale(3.0);  // not a power of two
    CHECK(static_cast<float>(ops::set_scaling(t.tape.input(data, true), 7.0).scaled()(0)) ==
          static_cast<float>(element_cast<Half>(1.5 * 3.0 / 7.0)));
}

TEST_CASE("rescale: any scale stays any, and nothing stays nothing") {
    test::OpTape<float> t(Scaling::propagate);
    const auto zeros = ops::set_scaling(test::zeros_of_any_scale(t.tape, {3}), 2.0);
    CHECK(zeros.scaled().any_scale());
    CHECK(zeros.scaled().scale() == 2.0);
    const auto none = ops::rebalance(t.input({0, 3}), 4.0);
    CHECK(none.scaled().scale() == 4.0);
    CHECK(none.shape() == Shape{0, 3});
}

TEST_CASE("rescale: a scale or factor that cannot be is an error under every scaling") {
    for (const Scaling scaling : {Scaling::none, Scaling::propagate}) {
        test::OpTape<float> t(scaling);
        const auto x = t.input({2});
        REQUIRE_THROWS_WITH(ops::set_scaling(x, 0.0), "set_scaling: scale is 0; expected a number in [2^-126, 2^127]");
        REQUIRE_THROWS_WITH(ops::set_scaling(x, -1.0),
                            "set_scaling: scale is -1; expected a number in [2^-126, 2^127]");
        REQUIRE_THROWS_WITH(ops::set_scaling(x, std::nan("")),
                            "set_scaling: scale is nan; expected a number in [2^-126, 2^127]");
        REQUIRE_THROWS_WITH(ops::set_scaling(x, 0x1p128),
                            "set_scaling: scale is 3.40282e+38; expected a number in [2^-126, 2^127]");
        REQUIRE_THROWS_WITH(ops::rebalance(x, 0.0), "rebalance: factor is 0; expected a positive number");
        REQUIRE_THROWS_WITH(ops::rebalance(x, std::numeric_limits<double>::infinity()),
                            "rebalance: factor is inf; expected a positive number");
    }
    REQUIRE_THROWS_WITH(ops::stop_scaling(Variable<float>()),
                        "stop_scaling: an empty Variable; make one with Tape::input, Tape::parameter or an op");
}
