// SPDX-License-Identifier: MIT
#include <unitscale/ops/attention.hpp>
#include <unitscale/ops/mul.hpp>
#include <unitscale/ops/slice.hpp>
#include <unitscale/ops/sum.hpp>

#include "support/op_checks.hpp"
#include "support/test_ops.hpp"

#include <unitscale/analysis/scale_check.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
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

TEST_CASE("attention: gradient, factors and value with a window; unit scale over all positions") {
    for (const std::size_t window : {1u, 2u, 4u, 9u}) {
        const double factor = ops::attention_unit_factor(2.0, 4, 5, true, window);
        test::check_gradient_and_factors({{2, 5, 8}, {2, 5, 8}, {2, 5, 8}},
                                         with({.heads = 2, .mult = 2.0, .window = window}), factor,
                                         {factor, factor, factor});
    }
    const auto report = analysis::scale_check<float>(std::vector<Shape>(3, Shape{4, 256, 64}),
                                                     with({.heads = 1, .mult = 1.0, .window = 16}));
    CHECK(report.value.rms == Approx(1.0).epsilon(0.13));
    CHECK(report.gradients[2].rms == Approx(1.0).epsilon(0.15));
}

TEST_CASE("attention: with a window under rules of rounding, keys before it have no effect") {
    Recipe recipe = analysis::plain_recipe(Scaling::none);
    recipe.products.push_back(
        {.kind = ProductKind::attention,
         .formats = {.activation = Quantiser{.format = e4m3}, .gradient = Quantiser{.format = e5m2}}});
    ScalingState state(1);
    Tape<float> tape(recipe, state);
    const auto run = [&](float early) {
        tape.begin_step();
        Tensor<float> keys = normal<float>({1, 9, 8}, {1, 2}), values = normal<float>({1, 9, 8}, {1, 3});
        std::fill_n(keys.data(), 2 * 8, early);
        std::fill_n(values.data(), 2 * 8, early);
        const auto q = tape.input(normal<float>({1, 9, 8}, {1, 1}), true), k = tape.input(std::move(keys), true),
                   v = tape.input(std::move(values), true);
        const auto y = ops::attention(q, k, v, {.heads = 2, .window = 3});
        auto result = test::elements(y.value());
        const auto late = ops::slice(y, {0, 4, 0}, {1, 9, 8});  // these positions see none of the first two
        tape.backward(ops::sum(ops::mul(late, late)));
        for (const auto& input : {q, k, v}) {
            const auto gradient = test::elements(input.gradient());
            result.insert(result.end(), gradient.begin(), gradient.end());
        }
        result.erase(result.begin(), result.begin() + 4 * 8);
        return result;
    };
    CHECK(run(0.5f) == run(-3.0f));
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

namespace {

Tensor<float> relative_bias(const Shape& shape) {
    Tensor<float> numbers = normal<float>(shape, {1, 77});
    for (std::size_t i = 0; i < numbers.size(); i += 4) numbers.data()[i] = -std::numeric_limits<float>::infinity();
    return numbers;
}

/// Values and gradients of attention on rows of unit normals, with `padding` more positions that hold NaN in k and v.
struct Rows {
    Tensor<float> y, dq, dk, dv;
};
Rows rows_of(std::size_t b, std::size_t length, std::size_t padded, bool causal, const Recipe& recipe) {
    ScalingState state(1);
    Tape<float> tape(recipe, state);
    tape.begin_step({.retain = true});
    const std::size_t batch = padded == 0 ? 1 : 2, positions = padded == 0 ? length : padded;
    const auto input = [&](std::uint64_t stream, float fill) {
        Tensor<float> x({batch, positions, 8});
        fill_constant(x, fill);
        for (std::size_t i = 0; i < batch; ++i) {
            const std::size_t item = padded == 0 ? b : i, own = item == 0 ? length : positions;
            const Tensor<float> row = normal<float>({own, 8}, {1 + item, stream});
            std::copy_n(row.data(), row.size(), x.data() + i * positions * 8);
        }
        return x;
    };
    const float nan = std::numeric_limits<float>::quiet_NaN();
    const auto q = tape.input(input(1, 1.0f), true), k = tape.input(input(2, nan), true),
               v = tape.input(input(3, nan), true);
    ops::AttentionOptions options{.heads = 2, .mult = 2.0, .causal = causal, .factor_length = 60};
    if (padded != 0) options.mask.lengths = {length, padded};
    const auto y = ops::attention(q, k, v, options);
    tape.backward(analysis::project(y, input(4, 0.0f)));
    return {y.value(), q.gradient(), k.gradient(), v.gradient()};
}

}  // namespace

TEST_CASE("attention: gradient, factors and value with a mask") {
    const std::vector<Shape> shapes = {{2, 3, 8}, {2, 5, 8}, {2, 5, 8}};
    const auto check = [&](const ops::AttentionMask& mask, double length) {
        const double factor = ops::attention_unit_factor(1.5, 4, length, false);
        test::check_gradient_and_factors(shapes, with({.heads = 2, .mult = 1.5, .causal = false, .mask = mask}), factor,
                                         {factor, factor, factor});
    };
    check({.lengths = {5, 2}}, 3.5);
    for (const Shape& shape : {Shape{3, 5}, Shape{2, 1, 5}, Shape{2, 2, 3, 5}}) {
        const auto bias = ops::attention_bias(relative_bias(shape));
        check({.bias = bias}, 5.0 * bias->seen);
        check({.lengths = {5, 3}, .bias = bias}, 4.0 * bias->seen);
    }
    const double factor = ops::attention_unit_factor(1.0, 4, 3.0, true);
    test::check_gradient_and_factors({{2, 4, 4}, {2, 4, 4}, {2, 4, 4}}, with({.mask = {.lengths = {4, 2}}}), factor,
                                     {factor, factor, factor});
    test::check_propagate(shapes, with({.heads = 2, .mult = 0.01, .causal = false, .mask = {.lengths = {5, 2}}}));
    test::check_propagate(
        shapes,
        with(
            {.heads = 2, .mult = 0.01, .causal = false, .mask = {.bias = ops::attention_bias(relative_bias({3, 5}))}}));
}

TEST_CASE("attention: additive numbers shift the logits, booleans hide keys") {
    test::OpTape<double> t(Scaling::none);
    const auto q = t.input({1, 1, 2}, 1), k = t.input({1, 3, 2}, 2), v = t.input({1, 3, 2}, 3);
    const auto logit = [&](std::size_t j) {
        return (q.value()(0, 0, 0) * k.value()(0, j, 0) + q.value()(0, 0, 1) * k.value()(0, j, 1)) / 2.0;
    };
    const auto added = ops::attention_bias(Tensor<float>({1, 3}, {0.5f, -2.0f, 1.0f}));
    const auto y = ops::attention(q, k, v, {.causal = false, .mask = {.bias = added}}).value();
    const double a = std::exp(logit(0) + 0.5), b = std::exp(logit(1) - 2.0), c = std::exp(logit(2) + 1.0);
    for (std::size_t l = 0; l < 2; ++l)
        CHECK(y(0, 0, l) ==
              Approx((a * v.value()(0, 0, l) + b * v.value()(0, 1, l) + c * v.value()(0, 2, l)) / (a + b + c)));
    const auto hidden = ops::attention_bias(Tensor<std::uint8_t>({1, 3}, {0, 1, 0}));
    const auto one = ops::attention(q, k, v, {.causal = false, .mask = {.bias = hidden}}).value();
    CHECK(one(0, 0, 1) == v.value()(0, 1, 1));
}

TEST_CASE("attention: the rows of a padded batch have the bits of the rows alone, under every recipe of attention") {
    Recipe plain = analysis::plain_recipe(Scaling::none), unit = analysis::plain_recipe(Scaling::unit), eight = plain;
    const ProductFormats formats{.activation = Quantiser{.format = e4m3}, .gradient = Quantiser{.format = e5m2}};
    eight.products = {{.kind = ProductKind::attention, .pattern = "*", .formats = formats}};
    for (const Recipe& recipe : {plain, unit, eight})
        for (const bool causal : {true, false})
            for (const auto& [length, padded] : {std::pair{std::size_t{37}, std::size_t{70}}, {5, 6}, {500, 530}}) {
                INFO(length << " of " << padded << ", causal " << causal);
                const Rows together = rows_of(0, length, padded, causal, recipe);
                for (const std::size_t b : {std::size_t{0}, std::size_t{1}}) {
                    const std::size_t own = b == 0 ? length : padded;
                    const Rows alone = rows_of(b, own, 0, causal, recipe);
                    for (const auto& [have, want] : {std::pair{&together.y, &alone.y},
                                                     {&together.dq, &alone.dq},
                                                     {&together.dk, &alone.dk},
                                                     {&together.dv, &alone.dv}}) {
                        CHECK(std::equal(want->data(), want->data() + want->size(), have->data() + b * padded * 8));
                        const bool of_keys = have == &together.dk || have == &together.dv;
                        if (of_keys && b == 0)
                            CHECK(std::all_of(have->data() + own * 8, have->data() + padded * 8,
                                              [](float x) { return x == 0.0f; }));
                    }
                }
            }
}

TEST_CASE("attention: a query that sees no key has the value 0 and passes no gradient") {
    Recipe eight = analysis::plain_recipe(Scaling::none);
    eight.products = {{.kind = ProductKind::attention,
                       .pattern = "*",
                       .formats = {.activation = Quantiser{.format = e4m3}, .gradient = Quantiser{.format = e5m2}}}};
    const auto nothing = ops::attention_bias(Tensor<std::uint8_t>({2, 3}, {0, 0, 0, 1, 1, 0}));
    for (const Recipe& recipe : {analysis::plain_recipe(Scaling::none), eight})
        for (const ops::AttentionMask& mask :
             {ops::AttentionMask{.lengths = {0}}, ops::AttentionMask{.bias = nothing}}) {
            ScalingState state(1);
            Tape<float> tape(recipe, state);
            tape.begin_step({.retain = true});
            const auto input = [&](const Shape& shape, std::uint64_t stream) {
                return tape.input(normal<float>(shape, {1, stream}), true);
            };
            const auto q = input({1, 2, 4}, 1), k = input({1, 3, 4}, 2), v = input({1, 3, 4}, 3);
            const auto y = ops::attention(q, k, v, {.causal = false, .mask = mask});
            tape.backward(analysis::project(y, full<float>({1, 2, 4}, 1.0)));
            const std::size_t empty_rows = mask.bias ? 1 : 2;
            for (std::size_t i = 0; i < empty_rows * 4; ++i) {
                CHECK(y.value().data()[i] == 0.0f);
                CHECK(q.gradient().data()[i] == 0.0f);
            }
            for (const auto& x : {y.value(), q.gradient(), k.gradient(), v.gradient()})
                for (const float element : x.span()) CHECK(std::isfinite(element));
            if (!mask.bias)
                for (const float element : v.gradient().span()) CHECK(element == 0.0f);
        }
}

TEST_CASE("attention: dropout of weights") {
    // Values are unit vectors, so that y holds the weights themselves.
    constexpr std::size_t size = 64;
    const auto weights = [](double dropout, bool training, const ProductFormats& formats, Scaling scaling) {
        Recipe recipe = analysis::plain_recipe(scaling);
        recipe.products = {{.kind = ProductKind::attention, .pattern = "*", .formats = formats}};
        ScalingState state(1);
        Tape<float> tape(recipe, state);
        tape.begin_step({.training = training, .retain = true});
        Tensor<float> identity({2, size, size});
        fill_zero(identity);
        for (std::size_t b = 0; b < 2; ++b)
            for (std::size_t i = 0; i < size; ++i) identity(b, i, i) = 1.0f;
        const auto q = tape.input(normal<float>({2, size, size}, {1, 1})),
                   k = tape.input(normal<float>({2, size, size}, {1, 2})), v = tape.input(std::move(identity), true);
        const auto y = ops::attention(q, k, v, {.causal = false, .dropout = dropout});
        tape.backward(analysis::project(y, full<float>({2, size, size}, 1.0)));
        // dv sums the same weights over queries.
        for (std::size_t j = 0; j < size; ++j) {
            double sum = 0.0;
            for (std::size_t i = 0; i < size; ++i) sum += static_cast<double>(y.value()(1, i, j));
            CHECK(v.gradient()(1, j, 0) == Approx(sum).epsilon(formats.any() ? 0.05 : 1e-5));
        }
        return y.value();
    };
    for (const Scaling scaling : {Scaling::none, Scaling::unit}) {
        const double root = scaling == Scaling::unit ? std::sqrt(0.75) : 1.0;
        const Tensor<float> all = weights(0.0, true, {}, scaling), some = weights(0.25, true, {}, scaling),
                            in_use = weights(0.25, false, {}, scaling),
                            rounded = weights(0.25, true, {.activation = Quantiser{.format = bf16}}, scaling);
        std::size_t dropped = 0;
        for (std::size_t i = 0; i < all.size(); ++i) {
            const double weight = static_cast<double>(all.data()[i]) * root;
            CHECK(in_use.data()[i] == Approx(weight));
            dropped += some.data()[i] == 0.0f;
            if (some.data()[i] != 0.0f) CHECK(some.data()[i] == Approx(weight / 0.75));
            CHECK((rounded.data()[i] == 0.0f) == (some.data()[i] == 0.0f));
        }
        const auto count = static_cast<double>(all.size());
        CHECK(static_cast<double>(dropped) == Approx(0.25 * count).margin(5.0 * std::sqrt(count * 0.25 * 0.75)));
    }
    const double factor = ops::attention_unit_factor(2.0, 8, 6, true) * std::sqrt(0.5);
    test::check_gradient_and_factors({{2, 6, 8}, {2, 6, 8}, {2, 6, 8}}, with({.mult = 2.0, .dropout = 0.5}), factor,
                                     {factor, factor, factor});
    const auto report = analysis::scale_check<float>({{4, 128, 64}, {4, 128, 64}, {4, 128, 64}},
                                                     with({.mult = 4.0, .causal = false, .dropout = 0.5}));
    CHECK(report.value.rms == Approx(1.0).epsilon(0.13));
    CHECK(report.gradients[2].rms == Approx(1.0).epsilon(0.15));
    test::OpTape<float> t;
    const auto x = t.input({1, 2, 4});
    CHECK_THROWS_WITH(ops::attention(x, x, x, {.dropout = 1.0}), "attention: dropout is 1; expected a number in [0,1)");
    CHECK_THROWS_WITH(ops::attention(x, x, x, {.mask = {.lengths = {3}}}),
                      "attention: length 3; expected at most 2 keys");
}
