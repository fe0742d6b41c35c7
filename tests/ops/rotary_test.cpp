// SPDX-License-Identifier: MIT
#include <unitscale/ops/rotary.hpp>
#include <unitscale/ops/slice.hpp>

#include "support/propagate_checks.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

using namespace unitscale;

TEST_CASE("rotary: gradient, factors and value") {
    test::check_gradient_and_factors({{2, 3, 8}}, [](auto&, auto& v) { return ops::rotary(v[0], {.heads = 2}); }, 1.0,
                                     {1.0});
    test::check_gradient_and_factors(
        {{1, 2, 4}}, [](auto&, auto& v) { return ops::rotary(v[0], {.base = 100.0, .first_position = 5}); }, 1.0,
        {1.0});
}

TEST_CASE("rotary: unit scale") {
    test::check_unit_scale({{8, 32, 64}}, [](auto&, auto& v) { return ops::rotary(v[0], {.heads = 2}); }, 1.0, {1.0});
}

TEST_CASE("rotary: pairs are rotated by position times frequency") {
    test::OpTape<double> t;
    const auto x = t.input({1, 3, 4});
    const Tensor<double>& y = ops::rotary(x, {.base = 100.0, .first_position = 1}).value();
    const double angle = 3.0 * std::pow(100.0, -0.5);  // third row is position 3, pair 1 of 2
    CHECK(y(0, 2, 1) == Approx(x.value()(0, 2, 1) * std::cos(angle) - x.value()(0, 2, 3) * std::sin(angle)));
    CHECK(y(0, 2, 3) == Approx(x.value()(0, 2, 3) * std::cos(angle) + x.value()(0, 2, 1) * std::sin(angle)));
}

TEST_CASE("rotary: products of queries and keys depend on the distance of their positions only") {
    const auto product = [](std::size_t query_position, std::size_t key_position) {
        test::OpTape<double> t;
        const auto q = ops::rotary(t.input({1, 1, 8}, 1), {.first_position = query_position});
        const auto k = ops::rotary(t.input({1, 1, 8}, 2), {.first_position = key_position});
        double sum = 0.0;
        for (std::size_t i = 0; i < 8; ++i) sum += q.value().data()[i] * k.value().data()[i];
        return sum;
    };
    CHECK(product(7, 3) == Approx(product(104, 100)).epsilon(1e-10));
    CHECK(product(7, 3) != Approx(product(7, 4)).epsilon(1e-3));
}

TEST_CASE("rotary: batch items with first positions of their own have the bits of the items alone") {
    test::OpTape<float> t;
    const auto x = t.input({3, 4, 16}, 1);
    const std::vector<std::size_t> firsts = {7, 0, 130};
    const auto y = ops::rotary(x, {.heads = 2, .first_positions = firsts});
    for (std::size_t b = 0; b < 3; ++b) {
        const auto alone =
            ops::rotary(ops::slice(x, {b, 0, 0}, {b + 1, 4, 16}), {.heads = 2, .first_position = firsts[b]});
        CHECK(std::equal(alone.value().data(), alone.value().data() + 64, y.value().data() + b * 64));
    }
    const auto f = [](auto&, auto& v) { return ops::rotary(v[0], {.heads = 2, .first_positions = {3, 9}}); };
    test::check_gradient_and_factors({{2, 3, 8}}, f, 1.0, {1.0});
    REQUIRE_THROWS_WITH(ops::rotary(x, {.heads = 2, .first_positions = {1, 2}}),
                        "rotary: 2 first positions; expected one for each of 3 batch items");
}

TEST_CASE("rotary: one pair; no batch, positions or columns") {
    const auto f = [](auto&, auto& v) { return ops::rotary(v[0], {.first_position = 3}); };
    test::check_gradient_and_factors({{1, 1, 2}}, f, 1.0, {1.0});
    for (const Shape& shape : {Shape{0, 3, 4}, Shape{2, 0, 4}, Shape{2, 3, 0}}) test::check_nothing({shape}, f, shape);
}

TEST_CASE("rotary: errors name the sizes") {
    test::OpTape<float> t;
    REQUIRE_THROWS_WITH(ops::rotary(t.input({2, 3, 8}), {.heads = 3}), "rotary: x [2,3,8] is not divisible by 3 heads");
    REQUIRE_THROWS_WITH(ops::rotary(t.input({2, 3, 6}), {.heads = 2}),
                        "rotary: heads of size 3; expected an even size");
    REQUIRE_THROWS_WITH(ops::rotary(t.input({3, 8}), {}), "rotary: x [3,8]; expected [B,T,H d]");
    REQUIRE_THROWS_WITH(ops::rotary(t.input({2, 3, 8}), {.heads = 0}), "rotary: x [2,3,8] is not divisible by 0 heads");
    REQUIRE_THROWS_WITH(ops::rotary(t.input({2, 3, 8}), {.base = 0.0}),
                        "rotary: base is 0; expected a positive number");
    const auto scaled = [&](const ops::RotaryScaling& scaling, const char* message) {
        REQUIRE_THROWS_WITH(ops::rotary(t.input({2, 3, 8}), {.scaling = scaling}), message);
    };
    using ops::RotaryScalingKind;
    scaled({.kind = RotaryScalingKind::linear, .factor = 0.0},
           "rotary: scaling.factor is 0; expected a positive number");
    scaled({.kind = RotaryScalingKind::llama3, .factor = 8.0, .low_frequency_factor = -1.0},
           "rotary: scaling.low_frequency_factor is -1; expected a positive number");
    scaled({.kind = RotaryScalingKind::llama3, .factor = 8.0, .high_frequency_factor = 1.0},
           "rotary: scaling.high_frequency_factor is 1; expected more than 1");
    scaled({.kind = RotaryScalingKind::llama3, .factor = 8.0, .original_length = 0.0},
           "rotary: scaling.original_length is 0; expected a positive number");
}

TEST_CASE("rotary: a linear scaling divides positions, in the gradient too") {
    test::OpTape<double> t;
    const ops::RotaryScaling scaling{.kind = ops::RotaryScalingKind::linear, .factor = 4.0};
    const auto x = t.input({1, 1, 8}, 1);
    const auto scaled = ops::rotary(x, {.first_position = 12, .scaling = scaling});
    const auto plain = ops::rotary(x, {.first_position = 3});
    for (std::size_t i = 0; i < 8; ++i)
        CHECK(scaled.value().data()[i] == Approx(plain.value().data()[i]).epsilon(1e-12));
    test::check_gradient_and_factors(
        {{1, 3, 8}}, [=](auto&, auto& v) { return ops::rotary(v[0], {.heads = 2, .scaling = scaling}); }, 1.0, {1.0});
}

TEST_CASE("rotary: propagates scales") {
    const auto f = [](auto&, auto& v) { return ops::rotary(v[0], {.heads = 2}); };
    test::check_propagate({{2, 3, 8}}, f);
    CHECK(test::propagated_scales({{2, 3, 8}}, {8.0}, f, 0.25) == std::vector{8.0, 0.25});
    test::OpTape<double> t(Scaling::propagate);
    std::vector<Variable<double>> zero{test::zeros_of_any_scale(t.tape, {2, 3, 8})};
    CHECK(f(t.tape, zero).scaled().any_scale());
}
