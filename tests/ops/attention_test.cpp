// SPDX-License-Identifier: MIT
#include <unitscale/ops/attention.hpp>
#include <unitscale/ops/slice.hpp>

#include "support/op_checks.hpp"

#include <cmath>
#include <vector>

using namespace unitscale;

namespace {
auto with(ops::AttentionOptions options) {
    return [=](auto&, auto& v) { return ops::attention(v[0], v[1], v[2], options); };
}
}  // namespace

TEST_CASE("attention: gradient, factors and value") {
    for (const bool causal : {true, false})
        for (const double m : {1.0, 2.0}) {
            const double factor = ops::attention_unit_factor(m, 4, 5, causal);
            test::check_gradient_and_factors({{2, 3, 8}, {2, 5, 8}, {2, 5, 8}},
                                             with({.heads = 2, .mult = m, .causal = causal}), factor,
                                             {factor, factor, factor});
        }
    const double grouped = ops::attention_unit_factor(1.0, 2, 3, true);
    test::check_gradient_and_factors({{1, 3, 8}, {1, 3, 4}, {1, 3, 4}}, with({.heads = 4, .groups = 2}), grouped,
                                     {grouped, grouped, grouped});
    const double fixed = ops::attention_unit_factor(1.0, 4, 64, true);
    test::check_gradient_and_factors({{1, 3, 4}, {1, 3, 4}, {1, 3, 4}}, with({.factor_length = 64}), fixed,
                                     {fixed, fixed, fixed});
}

TEST_CASE("attention: the factor's formula and its limits") {
    const double a = 1.0 / (1.0 + 4.0 * 64.0 / 4.0), s = 128.0;
    CHECK(ops::attention_unit_factor(2.0, 64, 128, false) ==
          Approx(1.0 / std::exp((1.0 - a) * std::log(std::sqrt(1.0 / s)))));
    CHECK(ops::attention_unit_factor(2.0, 64, 128, true) ==
          Approx(1.0 / std::exp((1.0 - a) * std::log(std::sqrt(std::log(s) / s)))));
    CHECK(ops::attention_unit_factor(2.0, 64, 1, true) == 1.0);
    CHECK(ops::attention_unit_factor(1e9, 64, 128, true) == Approx(1.0));
}

TEST_CASE("attention: unit scale, and gradients of q and k at m d^-1/2") {
    // Causal attention's output shrinks along the sequence; over all positions its standard deviation is near 1.
    for (const bool causal : {true, false})
        for (const double m : {1.0, 4.0}) {
            const std::vector<Shape> shapes(3, Shape{4, 256, 64});
            const auto f = with({.heads = 1, .mult = m, .causal = causal});
            for (const auto& report :
                 {analysis::scale_check<float>(shapes, f), analysis::scale_check<double>(shapes, f)}) {
                CHECK(report.value.rms == Approx(1.0).epsilon(0.13));
                CHECK(report.gradients[2].rms == Approx(1.0).epsilon(0.15));
                CHECK(report.gradients[0].rms == Approx(m / 8.0).epsilon(0.25));
                CHECK(report.gradients[1].rms == Approx(m / 8.0).epsilon(0.25));
            }
        }
}

TEST_CASE("attention: the value is given by the textbook formula") {
    test::OpTape<double> t(Scaling::none);
    const auto q = t.input({1, 2, 2}, 1), k = t.input({1, 2, 2}, 2), v = t.input({1, 2, 2}, 3);
    const Tensor<double>& y = ops::attention(q, k, v, {.mult = 3.0}).value();
    const auto dot = [&](int i, int j) {
        return q.value()(0, i, 0) * k.value()(0, j, 0) + q.value()(0, i, 1) * k.value()(0, j, 1);
    };
    CHECK(y(0, 0, 1) == Approx(v.value()(0, 0, 1)));  // the first query sees only the first key
    const double p = 1.0 / (1.0 + std::exp(1.5 * (dot(1, 0) - dot(1, 1))));
    CHECK(y(0, 1, 0) == Approx((1.0 - p) * v.value()(0, 0, 0) + p * v.value()(0, 1, 0)));
}

TEST_CASE("attention: a prefix gives the values of the full sequence when the factor's length is fixed") {
    for (const Scaling scaling : {Scaling::none, Scaling::unit}) {
        test::OpTape<float> t(scaling);
        const auto q = t.input({1, 9, 8}, 1), k = t.input({1, 9, 8}, 2), v = t.input({1, 9, 8}, 3);
        const ops::AttentionOptions options{.heads = 2, .mult = 2.0, .factor_length = 9};
        const Tensor<float>& full = ops::attention(q, k, v, options).value();
        const auto head = [](Variable<float> x) { return ops::slice(x, {0, 0, 0}, {1, 4, 8}); };
        const Tensor<float>& prefix = ops::attention(head(q), head(k), head(v), options).value();
        for (std::size_t i = 0; i < prefix.size(); ++i) CHECK(prefix.data()[i] == Approx(full.data()[i]).epsilon(1e-5));
    }
}

TEST_CASE(
    "attention: one position is copied; no batch, no queries, no heads' columns give empty tensors, no keys zeros") {
    test::check_gradient_and_factors({{1, 1, 1}, {1, 1, 1}, {1, 1, 1}}, with({}), 1.0, {1.0, 1.0, 1.0});
    test::check_nothing({{0, 3, 4}, {0, 3, 4}, {0, 3, 4}}, with({.heads = 2}), {0, 3, 4});
    test::check_nothing({{2, 0, 4}, {2, 3, 4}, {2, 3, 4}}, with({.heads = 2}), {2, 0, 4});
    test::check_nothing({{2, 3, 0}, {2, 3, 0}, {2, 3, 0}}, with({.heads = 2}), {2, 3, 0});
    test::check_nothing({{2, 3, 4}, {2, 0, 4}, {2, 0, 4}}, with({.heads = 2, .causal = false}), {2, 3, 4});
}

TEST_CASE("attention: errors name the shape or option that does not fit") {
    test::OpTape<float> t;
    const auto x = t.input({2, 3, 8});
    REQUIRE_THROWS_WITH(ops::attention(x, x, x, {.heads = 3}), "attention: q [2,3,8] is not divisible by 3 heads");
    REQUIRE_THROWS_WITH(ops::attention(x, x, x, {.heads = 0}),
                        "attention: 0 heads and 0 groups; expected groups to divide heads");
    REQUIRE_THROWS_WITH(ops::attention(x, x, x, {.heads = 4, .groups = 3}),
                        "attention: 4 heads and 3 groups; expected groups to divide heads");
    REQUIRE_THROWS_WITH(ops::attention(x, t.input({2, 3, 4}), x, {.heads = 2}),
                        "attention: q [2,3,8], k [2,3,4] and v [2,3,8] do not fit; expected k and v [2,S,8]");
    REQUIRE_THROWS_WITH(ops::attention(x, t.input({2, 2, 8}), t.input({2, 2, 8}), {.heads = 2}),
                        "attention: 3 queries and 2 keys; causal attention needs at least as many keys as queries");
    REQUIRE_THROWS_WITH(ops::attention(t.input({3, 8}), x, x, {}),
                        "attention: q [3,8], k [2,3,8] and v [2,3,8]; expected [B,T,H d], [B,S,G d] and [B,S,G d]");
    REQUIRE_THROWS_WITH(ops::attention(x, x, x, {.mult = 0.0}), "attention: mult is 0; expected a positive number");
}

TEST_CASE("attention: propagates scales") {
    for (const bool causal : {true, false}) {
        test::check_propagate({{2, 4, 8}, {2, 4, 8}, {2, 4, 8}}, [=](auto&, auto& v) {
            return ops::attention(v[0], v[1], v[2], {.heads = 2, .mult = 0.01, .causal = causal});
        });
        test::check_propagate({{2, 3, 8}, {2, 5, 4}, {2, 5, 4}}, [=](auto&, auto& v) {
            return ops::attention(v[0], v[1], v[2], {.heads = 2, .groups = 1, .mult = 0.003, .causal = causal});
        });
    }
}

TEST_CASE("attention: under propagate the data of value and gradients is near unit scale") {
    for (const double mult : {0.1, 1.0, 8.0})  // logits of standard deviation 0.025, 0.25 and 2
        for (const double scale : {0x1p-3, 1.0}) {
            INFO("mult " << mult << ", scale of the inputs " << scale);
            test::OpTape<float> t(Scaling::propagate);
            std::vector<Variable<float>> v;
            for (const std::uint64_t stream : {1u, 2u, 3u}) {
                Tensor<float> data = normal<float>({2, 128, 64}, {1, stream});
                data.set_scale(scale);
                v.push_back(t.tape.input(std::move(data), true));
            }
            const auto y = ops::attention(v[0], v[1], v[2], {.heads = 4, .mult = mult / (scale * scale)});
            const auto rms = [](const Tensor<float>& tensor) {
                double sum = 0.0;
                for (const float x : tensor.span()) sum += static_cast<double>(x) * static_cast<double>(x);
                return std::sqrt(sum / static_cast<double>(tensor.size()));
            };
            t.tape.backward(analysis::project(y, normal<float>(y.shape(), {1, 4})));
            CHECK(rms(y.scaled()) > 0.9);
            CHECK(rms(y.scaled()) < 2.2);
            for (const auto& input : v) {
                CHECK(rms(input.gradient()) > 0.6);
                CHECK(rms(input.gradient()) < 2.2);
            }
        }
}

TEST_CASE("attention: propagates scales by every rounding") {
    for (const ScaleRounding rounding : {ScaleRounding::up, ScaleRounding::nearest, ScaleRounding::stochastic})
        test::check_propagate(
            {{2, 4, 8}, {2, 4, 8}, {2, 4, 8}},
            [](auto&, auto& v) { return ops::attention(v[0], v[1], v[2], {.heads = 2, .mult = 0.01}); }, 1e-12,
            {.rounding = rounding});
}
