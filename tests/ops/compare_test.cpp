// SPDX-License-Identifier: MIT
#include <unitscale/ops/compare.hpp>

#include "support/propagate_checks.hpp"

#include <unitscale/ops/select.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

using namespace unitscale;

namespace {
using Bits = std::vector<int>;
Bits bits(const Tensor<std::uint8_t>& x) { return {x.span().begin(), x.span().end()}; }
}  // namespace

TEST_CASE("compare: variables, tensors and numbers") {
    test::OpTape<float> t(Scaling::none);
    const Tensor<float> three({3}, {2.0f, 2.0f, 2.0f});
    const auto x = t.tape.input(Tensor<float>({3}, {1.0f, 2.0f, 3.0f}), true), z = t.tape.input(three);
    CHECK(bits(ops::greater(x, z)) == Bits{0, 0, 1});
    CHECK(bits(ops::greater_equal(x, z)) == Bits{0, 1, 1});
    CHECK(bits(ops::less(x, z)) == Bits{1, 0, 0});
    CHECK(bits(ops::less_equal(x, z)) == Bits{1, 1, 0});
    CHECK(bits(ops::equal(x, z)) == Bits{0, 1, 0});
    CHECK(bits(ops::not_equal(x, z)) == Bits{1, 0, 1});
    CHECK(bits(ops::greater(x, three)) == Bits{0, 0, 1});
    CHECK(bits(ops::less(x, 2)) == Bits{1, 0, 0});
    CHECK(bits(ops::equal(x, 2.0)) == Bits{0, 1, 0});
    CHECK(bits(ops::greater(t.tape.input(full<float>({1}, 0.1f)), 0.1)) == Bits{1});  // the number is not rounded
}

TEST_CASE("compare: broadcasting, NaN, infinity") {
    test::OpTape<double> t;
    const double nan = std::nan(""), infinity = std::numeric_limits<double>::infinity();
    const auto x = t.tape.input(Tensor<double>({2, 1}, {1.0, 2.0})), z = t.tape.input(Tensor<double>({2}, {1.0, 2.0}));
    CHECK(ops::less(x, z).shape() == Shape{2, 2});
    CHECK(bits(ops::less(x, z)) == Bits{0, 1, 0, 0});
    const auto v = t.tape.input(Tensor<double>({4}, {nan, infinity, -infinity, 0.0}));
    CHECK(bits(ops::greater_equal(v, 0.0)) == Bits{0, 1, 0, 1});
    CHECK(bits(ops::equal(v, v)) == Bits{0, 1, 1, 1});
    CHECK(bits(ops::not_equal(v, v)) == Bits{1, 0, 0, 0});
    CHECK(bits(ops::is_finite(v)) == Bits{0, 0, 0, 1});
    CHECK(ops::greater(t.input({0, 3}), 1.0).shape() == Shape{0, 3});
}

TEST_CASE("compare: values count, not data, under propagate") {
    test::OpTape<Half> t(Scaling::propagate);
    Tensor<Half> small({3}, {Half(1.0f), Half(2.0f), Half(3.0f)}), large({3}, {Half(2.0f), Half(2.0f), Half(2.0f)});
    small.set_scale(0x1p-40);
    large.set_scale(0x1p-41);
    const auto x = t.tape.input(small, true), z = t.tape.input(large, true);
    CHECK(bits(ops::equal(x, z)) == Bits{1, 0, 0});
    CHECK(bits(ops::greater(x, z)) == Bits{0, 1, 1});
    CHECK(bits(ops::greater(x, 0x1p-39)) == Bits{0, 0, 1});
    CHECK(bits(ops::greater(x, 0.5)) == Bits{0, 0, 0});
    small.set_scale(0x1p40);
    CHECK(bits(ops::is_finite(t.tape.input(small, true))) == Bits{1, 1, 1});
    test::OpTape<double> wide(Scaling::propagate);
    Tensor<double> beyond({2}, {0x1p1000, std::numeric_limits<double>::infinity()});  // 2^1100 is no double
    beyond.set_scale(0x1p100);
    CHECK(bits(ops::is_finite(wide.tape.input(beyond, true))) == Bits{1, 0});
    CHECK(t.state.wide_ops().empty());
}

TEST_CASE("compare: a condition for select") {
    test::OpTape<float> t(Scaling::none);
    const auto x = t.input({20});
    const auto y = ops::select(ops::greater(x, 0.0), x, 0.0);
    for (std::size_t i = 0; i < 20; ++i) CHECK(y.value()(i) == std::max(x.value()(i), 0.0f));
}

TEST_CASE("compare: errors") {
    test::OpTape<float> t;
    REQUIRE_THROWS_WITH(ops::less(t.input({3, 4}), t.input({3, 2})),
                        "less: shapes [3,4] and [3,2] do not broadcast: 4 != 2");
    REQUIRE_THROWS_WITH(ops::equal(Variable<float>(), 1.0),
                        "equal: an empty Variable; make one with Tape::input, Tape::parameter or an op");
    REQUIRE_THROWS_WITH(ops::equal(t.input({2}), Variable<float>()),
                        "equal: an empty Variable; make one with Tape::input, Tape::parameter or an op");
}
