// SPDX-License-Identifier: MIT
#include <unitscale/ops/prod.hpp>

#include "support/reduction_checks.hpp"

#include <cmath>
#include <cstddef>
#include <type_traits>
#include <vector>

using namespace unitscale;

namespace {
const auto prod = [](const auto& x, const ops::UnruledReductionOptions& options) { return ops::prod(x, options); };
}  // namespace

TEST_CASE("prod: gradient and value, with stated factors") { test::check_reduction_factors(prod); }

TEST_CASE("prod: with factors of 1 a product of a few unit normals has unit scale") {
    const auto f = [](auto&, auto& v) { return ops::prod(v[0], {.axes = {1}, .unit = ops::Factors<1>{}}); };
    test::check_unit_scale({{200000, 2}}, f, 1.0, {1.0}, 0.02);
}

TEST_CASE("prod: zeros leave the gradient of a single zero") {
    test::OpTape<double> t(Scaling::none);
    const auto x = t.tape.input(Tensor<double>({2, 3}, {2, 0, 3, 0, 5, 0}), true);
    const auto y = ops::prod(x, {.axes = {1}});
    CHECK(y.value()(0) == 0.0);
    t.tape.backward(analysis::project(y, full<double>({2}, 1.0)));
    const double expected[] = {0, 6, 0, 0, 0, 0};
    for (std::size_t i = 0; i < 6; ++i) CHECK(x.gradient().data()[i] == expected[i]);
}

TEST_CASE("prod: empty inputs and errors") {
    test::check_reduction_errors("prod", prod);
    test::OpTape<float> none(Scaling::none);
    const auto one = ops::prod(none.input({2, 0}), {.axes = {1}});
    CHECK(one.shape() == Shape{2});
    CHECK(one.value()(1) == 1.0f);
}

TEST_CASE("prod: propagates scales") {
    const auto f = [](auto&, auto& v) { return ops::prod(v[0], {.axes = {1}}); };
    test::check_propagate({{3, 4}}, f);
    CHECK(test::propagated_scales({{3, 4}}, {8.0}, f, 0.25) == std::vector{4096.0, 128.0});
    // 2^(100 12) is no double: data takes the scales.
    test::OpTape<double> t(Scaling::propagate);
    Tensor<double> small({12});
    fill_constant(small, 0x1p-99);
    small.set_scale(0x1p100);
    const auto y = ops::prod(t.tape.input(small, true));
    CHECK(y.scaled().scale() == 1.0);
    CHECK(y.item() == 4096.0);
}

TEMPLATE_TEST_CASE("prod: a zero beside extreme scales gives 0, not NaN", "", float, Half) {
    using T = TestType;
    const double dy = std::is_same_v<T, Half> ? 1.0 : 0x1p90;
    for (const double scale : {0x1p-100, 0x1p60, 0x1p100})
        for (const std::size_t n : {3u, 9u, 11u, 12u}) {
            INFO(n << " elements of scale " << scale);
            test::OpTape<T> t(Scaling::propagate);
            Tensor<T> data = full<T>({n}, T(1.5f));
            data(n - 1) = T(0.0f);
            data.set_scale(scale);
            const auto x = t.tape.input(data, true), y = ops::prod(x);
            CHECK(static_cast<float>(y.scaled()(0)) == 0.0f);
            t.tape.backward(analysis::project(y, full<T>({1}, T(1.0f)), dy), static_cast<Accum<T>>(dy));
            for (std::size_t i = 0; i + 1 < n; ++i) CHECK(static_cast<float>(x.gradient()(i)) == 0.0f);
            CHECK_FALSE(std::isnan(static_cast<float>(x.gradient()(n - 1))));
        }
}
