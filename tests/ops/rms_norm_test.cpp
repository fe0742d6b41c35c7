// SPDX-License-Identifier: MIT
#include <unitscale/ops/rms_norm.hpp>

#include "support/op_checks.hpp"

#include <cmath>
#include <limits>

using namespace unitscale;

namespace {
const auto plain = [](auto&, auto& v) { return ops::rms_norm(v[0]); };
const auto with_gain = [](auto&, auto& v) { return ops::rms_norm(v[0], v[1]); };
}  // namespace

TEST_CASE("rms_norm: gradient, factors and value") {
    test::check_gradient_and_factors({{2, 3, 7}}, plain, 1.0, {1.0});
    test::check_gradient_and_factors({{2, 3, 7}, {7}}, with_gain, 1.0, {1.0, std::sqrt(1.0 / 6)});
    test::check_gradient_and_factors({{1, 2}, {2}}, with_gain, 1.0, {1.0, 1.0});
}

TEST_CASE("rms_norm: where few rows carry a gradient, they alone count in the factors of the vectors") {
    const double root = std::sqrt(0.5);
    const auto sparse = [](auto&, auto& v) { return ops::rms_norm(v[0], v[1], {.step_rows = 2}); };
    test::check_gradient_and_factors({{2, 3, 7}, {7}}, sparse, 1.0, {1.0, root});
}

TEST_CASE("rms_norm: unit scale") {
    test::check_unit_scale({{300, 200}}, plain, 1.0, {1.0}, 0.02);
    const auto check_gains = []<class T>(T one) {
        const std::vector<Tensor<T>> inputs = {normal<T>({300, 200}, {1, 1}), full<T>({200}, one)};
        const auto run = analysis::run_op<T>(recipe_in<T>(analysis::plain_recipe(Scaling::unit)), inputs, with_gain);
        CHECK(analysis::moments(run.gradients[1]).std == Approx(1.0).epsilon(0.12));
    };
    check_gains(1.0);
    check_gains(1.0F);
}

TEST_CASE("rms_norm: rows have a root mean square of 1, epsilon inside the root") {
    test::OpTape<double> t(Scaling::none);
    const auto x = t.tape.input(Tensor<double>({1, 2}, {3.0, 4.0}));
    CHECK(ops::rms_norm(x, {}, {.epsilon = 0.0}).value()(0, 0) == Approx(3.0 / std::sqrt(12.5)));
    CHECK(ops::rms_norm(x, {}, {.epsilon = 12.5}).value()(0, 1) == Approx(0.8));
}

TEST_CASE(
    "rms_norm: one element per row is its sign; numbers whose squares overflow float keep their norm; infinities give "
    "NaN") {
    test::OpTape<float> t(Scaling::none);
    const auto x = t.tape.input(Tensor<float>({3, 1}, {-3.0F, 2e30F, std::numeric_limits<float>::infinity()}));
    const Tensor<float>& y = ops::rms_norm(x).value();
    CHECK(y(0, 0) == Approx(-1.0F));
    CHECK(y(1, 0) == Approx(1.0F));
    CHECK(std::isnan(y(2, 0)));
}

TEST_CASE("rms_norm: no rows, and errors") {
    test::OpTape<float> t;
    test::check_nothing({{0, 3}, {3}}, with_gain, {0, 3});
    test::check_nothing({{2, 0, 3}}, plain, {2, 0, 3});
    REQUIRE_THROWS_WITH(ops::rms_norm(t.input({})), "rms_norm: x has rank 0; expected at least one dimension");
    REQUIRE_THROWS_WITH(ops::rms_norm(t.input({2, 0})), "rms_norm: x [2,0] has no columns");
    REQUIRE_THROWS_WITH(ops::rms_norm(t.input({2, 3}), {}, {.epsilon = std::nan("")}),
                        "rms_norm: epsilon is nan; expected a finite number of at least 0");
    REQUIRE_THROWS_WITH(ops::rms_norm(t.input({2, 3}), std::optional(t.input({2}))),
                        "rms_norm: gain [2] does not fit x [2,3]; expected [3]");
}

TEST_CASE("rms_norm: propagates scales") {
    test::check_propagate({{2, 4, 6}}, [](auto&, auto& v) { return ops::rms_norm(v[0]); });
    test::check_propagate({{4, 6}, {6}}, [](auto&, auto& v) { return ops::rms_norm(v[0], v[1]); });
    test::OpTape<double> t(Scaling::propagate);  // epsilon acts on data, so the norm does not depend on the scale
    const Tensor<double> x = normal<double>({3, 6}, {1, 1});
    Tensor<double> small = x;
    small.set_scale(0x1p-20);
    const auto y = ops::rms_norm(t.tape.input(x), {}, {.epsilon = 0.25});
    const auto z = ops::rms_norm(t.tape.input(small), {}, {.epsilon = 0.25});
    CHECK(analysis::relative_error(z.value(), y.value()) == 0.0);
}
