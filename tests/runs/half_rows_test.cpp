// SPDX-License-Identifier: MIT
// Reductions, ops on rows, losses and lookups in the 16-bit types.
// Sums have hundreds of terms. In 16 bits they would make errors above the tolerance.
#include <unitscale/ops/argmax.hpp>
#include <unitscale/ops/argmin.hpp>
#include <unitscale/ops/compare.hpp>
#include <unitscale/ops/constant.hpp>
#include <unitscale/ops/cumsum.hpp>
#include <unitscale/ops/embedding.hpp>
#include <unitscale/ops/gather.hpp>
#include <unitscale/ops/layer_norm.hpp>
#include <unitscale/ops/log_softmax.hpp>
#include <unitscale/ops/max.hpp>
#include <unitscale/ops/mean.hpp>
#include <unitscale/ops/min.hpp>
#include <unitscale/ops/mse_loss.hpp>
#include <unitscale/ops/prod.hpp>
#include <unitscale/ops/rms_norm.hpp>
#include <unitscale/ops/scatter_add.hpp>
#include <unitscale/ops/softmax.hpp>
#include <unitscale/ops/softmax_cross_entropy.hpp>
#include <unitscale/ops/sum.hpp>
#include <unitscale/record/reduced_axes.hpp>

#include "support/half_checks.hpp"
#include "support/op_checks.hpp"

using namespace unitscale;
using test::check_sixteen_bits;

namespace {
const std::vector<Shape> one = {{700, 6}};
const ops::Factors<1> rule{.alpha = 1.5, .betas = {0.75}};
}  // namespace

TEMPLATE_TEST_CASE("runs: the check of 16-bit ops notices a sum in 16 bits", "", Half, BFloat16) {
    const Tensor<TestType> x = cast<TestType>(test::positive_inputs(one)[0]);
    Tensor<TestType> in_type = full<TestType>({6}, TestType(0.0F));
    Tensor<float> in_float = zeros<float>({6});
    for (std::size_t i = 0; i < x.size(); ++i) {
        TestType& sum = in_type.data()[i % 6];
        sum = static_cast<TestType>(static_cast<float>(sum) + static_cast<float>(x.data()[i]));
        in_float.data()[i % 6] += static_cast<float>(x.data()[i]);
    }
    CHECK(test::rounding_error(in_type, in_float, 1) > 2.0);
    CHECK(test::rounding_error(cast<TestType>(in_float), in_float, 1) <= 1.0);
}

TEST_CASE("runs: reductions sum in Accum in 16 bits") {
    // The terms have one sign, because a sum of such terms in 16 bits stops growing.
    const auto positive = test::positive_inputs(one);
    check_sixteen_bits("sum", positive, [](auto&, auto& v) { return ops::sum(v[0]); });
    check_sixteen_bits("sum, rows", positive, [](auto&, auto& v) { return ops::sum(v[0], {.axes = {0}}); });
    check_sixteen_bits("mean", positive, [](auto&, auto& v) { return ops::mean(v[0]); });
    check_sixteen_bits("mean, rows", positive,
                       [](auto&, auto& v) { return ops::mean(v[0], {.axes = {0}, .keep_axes = true}); });
    check_sixteen_bits("max", one, [](auto&, auto& v) { return ops::max(v[0], {.axes = {1}, .unit = rule}); });
    check_sixteen_bits("min", one, [](auto&, auto& v) { return ops::min(v[0], {.axes = {1}, .unit = rule}); });
    check_sixteen_bits("cumsum", positive, [](auto&, auto& v) { return ops::cumsum(v[0], 0); });
    check_sixteen_bits("cumsum, rows", one, [](auto&, auto& v) { return ops::cumsum(v[0], 1); });
    check_sixteen_bits("prod", one, [](auto&, auto& v) { return ops::prod(v[0], {.axes = {1}, .unit = rule}); });
}

TEST_CASE("runs: norms and softmax round once in 16 bits, and once more where the gradient is made from the value") {
    check_sixteen_bits("layer_norm", {{600, 40}, {40}, {40}},
                       [](auto&, auto& v) { return ops::layer_norm(v[0], std::optional(v[1]), std::optional(v[2])); });
    check_sixteen_bits("rms_norm", {{600, 40}, {40}},
                       [](auto&, auto& v) { return ops::rms_norm(v[0], std::optional(v[1])); });
    check_sixteen_bits("rms_norm, long rows", {{3, 900}}, [](auto&, auto& v) { return ops::rms_norm(v[0]); });
    check_sixteen_bits(
        "softmax", {{5, 600}}, [](auto&, auto& v) { return ops::softmax(v[0]); }, 1, 3);
    check_sixteen_bits(
        "log_softmax", {{5, 600}}, [](auto&, auto& v) { return ops::log_softmax(v[0], {.unit = rule}); }, 1, 3);
}

TEST_CASE("runs: losses sum in Accum in 16 bits") {
    const Tensor<std::int32_t> labels = full<std::int32_t>({600}, 3);
    for (const ops::Reduction reduction : {ops::Reduction::mean, ops::Reduction::sum}) {
        check_sixteen_bits("softmax_cross_entropy", {{600, 9}}, [&](auto&, auto& v) {
            return ops::softmax_cross_entropy(v[0], labels, {.mult = 1.5, .reduction = reduction});
        });
        check_sixteen_bits("mse_loss", {{700}, {700}},
                           [&](auto&, auto& v) { return ops::mse_loss(v[0], v[1], {.reduction = reduction}); });
    }
}

TEST_CASE("runs: lookups sum repeated rows in Accum in 16 bits") {
    Tensor<std::int32_t> ids({700});
    for (std::size_t i = 0; i < ids.size(); ++i) ids.data()[i] = i % 5 == 0 ? 2 : 1;
    check_sixteen_bits("embedding", {{4, 5}}, [&](auto&, auto& v) { return ops::embedding(v[0], ids); });
    check_sixteen_bits("gather", {{2, 4, 3}}, [&](auto&, auto& v) { return ops::gather(v[0], ids, {.axis = 1}); });
    check_sixteen_bits("scatter_add", test::positive_inputs({{700, 3}}),
                       [&](auto&, auto& v) { return ops::scatter_add(v[0], ids, 4); });
}

TEMPLATE_TEST_CASE("runs: the value and the seed of a loss are not rounded to 16 bits", "", Half, BFloat16) {
    using T = TestType;
    ScalingState state(1);
    const Tensor<std::int32_t> labels({2}, {2, 0});
    for (const Scaling scaling : {Scaling::none, Scaling::propagate}) {
        const Recipe recipe = recipe_in<T>(analysis::plain_recipe(scaling));
        Tape<T> tape(recipe, state);
        for (const double seed : {0x1p17, 1000.3}) {
            INFO(name(scaling) << ", seed " << seed);
            tape.begin_step();
            const auto x =
                tape.input(Tensor<T>({2, 3}, {T(0.5f), T(-1.25f), T(2.0f), T(0.0f), T(0.75f), T(-0.5f)}), true);
            const auto loss = ops::softmax_cross_entropy(x, labels);
            const double sums[] = {std::exp(0.5) + std::exp(-1.25) + std::exp(2.0),
                                   1.0 + std::exp(0.75) + std::exp(-0.5)};
            CHECK(loss.item() == Approx((std::log(sums[0]) - 2.0 + std::log(sums[1])) / 2.0).epsilon(1e-6));
            tape.backward(loss, static_cast<float>(seed));
            const double want = seed * std::exp(0.5) / sums[0] / 2.0;
            CHECK(static_cast<double>(x.gradient().data()[0]) * x.gradient().scale() ==
                  Approx(want).epsilon(std::is_same_v<T, Half> ? 0x1p-11 : 0x1p-8));

            tape.begin_step();
            const auto y = tape.input(Tensor<T>({3}, {T(100.0f), T(-200.0f), T(60.0f)}), true);
            const auto zero = tape.input(Tensor<T>({3}, {T(0.0f), T(0.0f), T(0.0f)}));
            const auto squares = ops::mse_loss(y, zero, {.reduction = ops::Reduction::sum});
            CHECK(squares.item() == Approx(53600.0).epsilon(1e-6));
            tape.backward(squares, static_cast<float>(seed * 0x1p-14));
            CHECK(static_cast<double>(y.gradient().data()[0]) * y.gradient().scale() ==
                  Approx(200.0 * seed * 0x1p-14).epsilon(std::is_same_v<T, Half> ? 0x1p-11 : 0x1p-8));
        }
    }
}

TEMPLATE_TEST_CASE("runs: places, comparisons and constants in 16 bits are right for the rounded elements", "", Half,
                   BFloat16) {
    using T = TestType;
    const Recipe recipe = recipe_in<T>(analysis::plain_recipe(Scaling::none));
    ScalingState state(1);
    Tape<T> tape(recipe, state);
    tape.begin_step();
    const Tensor<T> data = cast<T>(normal<float>({40, 9}, {1, 2}));
    const auto x = tape.input(data);
    const auto top = ops::argmax(x, {.axis = 1}), bottom = ops::argmin(x, {.axis = 1});
    const auto positive = ops::greater(x, 0.0);
    for (std::size_t row = 0; row < 40; ++row)
        for (std::size_t j = 0; j < 9; ++j) {
            CHECK(data(row, j) <= data(row, static_cast<std::size_t>(top(row))));
            CHECK(data(row, j) >= data(row, static_cast<std::size_t>(bottom(row))));
            CHECK((positive(row, j) == 1) == (static_cast<float>(data(row, j)) > 0.0f));
        }
    CHECK(static_cast<float>(ops::constant(tape, 0.1).value()(0)) == static_cast<float>(T(0.1f)));
}
