// SPDX-License-Identifier: MIT
#include <unitscale/ops/argmax.hpp>

#include "support/propagate_checks.hpp"

#include <cmath>
#include <cstdint>
#include <vector>

using namespace unitscale;

namespace {
std::vector<std::int32_t> list(const Tensor<std::int32_t>& x) { return {x.span().begin(), x.span().end()}; }
using Places = std::vector<std::int32_t>;
}  // namespace

TEST_CASE("argmax: along each axis, and over all elements") {
    test::OpTape<double> t(Scaling::none);
    const auto x = t.tape.input(Tensor<double>({2, 3}, {1, 7, 7, -4, -5, -5}), true);
    CHECK(list(ops::argmax(x, {.axis = 1})) == Places{1, 0});
    CHECK(list(ops::argmax(x, {.axis = -2})) == Places{0, 0, 0});
    CHECK(ops::argmax(x, {.axis = 1}).shape() == Shape{2});
    CHECK(ops::argmax(x, {.axis = 1, .keep_axis = true}).shape() == Shape{2, 1});
    CHECK(list(ops::argmax(x)) == Places{1});
    CHECK(ops::argmax(x).shape() == Shape{1});
    const auto y = t.input({2, 5, 3, 4}), z = t.input({70});
    const auto places = ops::argmax(y, {.axis = 1});
    CHECK(places.shape() == Shape{2, 3, 4});
    for (std::size_t b = 0; b < 2; ++b)
        for (std::size_t i = 0; i < 12; ++i) {
            std::int32_t best = 0;
            const auto at = [&](std::int32_t k) {
                return y.value().data()[(b * 5 + static_cast<std::size_t>(k)) * 12 + i];
            };
            for (std::int32_t k = 1; k < 5; ++k) best = at(k) > at(best) ? k : best;
            CHECK(places.data()[b * 12 + i] == best);
        }
    CHECK(list(ops::argmax(z, {.axis = 0})) == list(ops::argmax(z)));
}

TEST_CASE("argmax: the first NaN is the largest; nothing is recorded") {
    test::OpTape<Half> t(Scaling::propagate);
    const Half nan(std::nanf(""));
    Tensor<Half> data({4}, {Half(1.0f), nan, Half(5.0f), nan});
    data.set_scale(0x1p-30);
    CHECK(list(ops::argmax(t.tape.input(data, true))) == Places{1});
    CHECK(t.state.wide_ops().empty());
}

TEST_CASE("argmax: errors") {
    test::OpTape<float> t;
    CHECK(ops::argmax(t.input({0, 3}), {.axis = 1}).shape() == Shape{0});
    REQUIRE_THROWS_WITH(ops::argmax(t.input({2, 3}), {.axis = 2}), "argmax: axis 2 is outside x [2,3]");
    REQUIRE_THROWS_WITH(ops::argmax(t.input({0, 3}), {.axis = 0}), "argmax: x [0,3] has no elements along the axes");
    REQUIRE_THROWS_WITH(ops::argmax(t.input({0})), "argmax: x [0] has no elements along the axes");
    REQUIRE_THROWS_WITH(ops::argmax(Variable<float>()),
                        "argmax: an empty Variable; make one with Tape::input, Tape::parameter or an op");
}
