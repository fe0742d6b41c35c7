// SPDX-License-Identifier: MIT
// Element-wise ops in the 16-bit types.
// Broadcast inputs are repeated 600 times. Sums in 16 bits would then make errors above the tolerance.
#include <unitscale/ops/abs.hpp>
#include <unitscale/ops/add.hpp>
#include <unitscale/ops/cast.hpp>
#include <unitscale/ops/clamp.hpp>
#include <unitscale/ops/cos.hpp>
#include <unitscale/ops/custom_scale.hpp>
#include <unitscale/ops/div.hpp>
#include <unitscale/ops/dropout.hpp>
#include <unitscale/ops/dynamic_rescale.hpp>
#include <unitscale/ops/erf.hpp>
#include <unitscale/ops/exp.hpp>
#include <unitscale/ops/gate.hpp>
#include <unitscale/ops/gated_silu.hpp>
#include <unitscale/ops/gelu.hpp>
#include <unitscale/ops/lerp.hpp>
#include <unitscale/ops/log.hpp>
#include <unitscale/ops/maximum.hpp>
#include <unitscale/ops/minimum.hpp>
#include <unitscale/ops/mul.hpp>
#include <unitscale/ops/multiplier.hpp>
#include <unitscale/ops/pow.hpp>
#include <unitscale/ops/relu.hpp>
#include <unitscale/ops/rescale.hpp>
#include <unitscale/ops/rsqrt.hpp>
#include <unitscale/ops/scale.hpp>
#include <unitscale/ops/select.hpp>
#include <unitscale/ops/sigmoid.hpp>
#include <unitscale/ops/sign.hpp>
#include <unitscale/ops/silu.hpp>
#include <unitscale/ops/sin.hpp>
#include <unitscale/ops/sqrt.hpp>
#include <unitscale/ops/sub.hpp>
#include <unitscale/ops/tanh.hpp>
#include <unitscale/ops/weighted_add.hpp>
#include <unitscale/record/binary.hpp>
#include <unitscale/record/unary.hpp>

#include "support/half_checks.hpp"
#include "support/op_checks.hpp"

using namespace unitscale;
using test::check_sixteen_bits;

namespace {
const std::vector<Shape> one = {{7, 30}}, repeated = {{600, 5}, {5}};
const ops::UnruledOptions stated{.unit = ops::Factors<1>{.alpha = 1.5, .betas = {0.75}}};
}  // namespace

TEST_CASE("runs: ops of one input round once in 16 bits") {
    check_sixteen_bits("abs", one, [](auto&, auto& v) { return ops::abs(v[0]); });
    check_sixteen_bits("clamp", one, [](auto&, auto& v) { return ops::clamp(v[0], {.low = -1.0, .high = 1.5}); });
    check_sixteen_bits("dropout", one, [](auto&, auto& v) { return ops::dropout(v[0], {.p = 0.25}); });
    check_sixteen_bits("cos", one, [](auto&, auto& v) { return ops::cos(v[0]); });
    check_sixteen_bits("erf", one, [](auto&, auto& v) { return ops::erf(v[0]); });
    check_sixteen_bits("sign", one, [](auto&, auto& v) { return ops::sign(v[0]); });
    check_sixteen_bits("sin", one, [](auto&, auto& v) { return ops::sin(v[0]); });
    check_sixteen_bits("exp", one, [](auto&, auto& v) { return ops::exp(v[0], stated); });
    check_sixteen_bits("gelu", one, [](auto&, auto& v) { return ops::gelu(v[0], {.mult = 1.5}); });
    check_sixteen_bits("gelu, tanh", one,
                       [](auto&, auto& v) { return ops::gelu(v[0], {.form = ops::GeluForm::tanh}); });
    check_sixteen_bits("relu", one, [](auto&, auto& v) { return ops::relu(v[0]); });
    check_sixteen_bits("multiplier", one, [](auto&, auto& v) { return ops::multiplier(v[0], 0.3); });
    check_sixteen_bits("scale", one, [](auto&, auto& v) { return ops::scale_forward(v[0], 0.3); });
    check_sixteen_bits("scale", one, [](auto&, auto& v) { return ops::scale_backward(v[0], 0.3); });
    check_sixteen_bits("sigmoid", one, [](auto&, auto& v) { return ops::sigmoid(v[0]); });
    check_sixteen_bits("silu", one, [](auto&, auto& v) { return ops::silu(v[0], {.mult = 1.5}); });
    check_sixteen_bits("tanh", one, [](auto&, auto& v) { return ops::tanh(v[0]); });
    const auto positive = test::positive_inputs(one);
    check_sixteen_bits("log", positive, [](auto&, auto& v) { return ops::log(v[0], stated); });
    check_sixteen_bits("pow", positive, [](auto&, auto& v) { return ops::pow(v[0], 1.5, stated); });
    check_sixteen_bits("rsqrt", positive, [](auto&, auto& v) { return ops::rsqrt(v[0], stated); });
    check_sixteen_bits("sqrt", positive, [](auto&, auto& v) { return ops::sqrt(v[0], stated); });
}

TEST_CASE("runs: ops of several inputs round once in 16 bits, and sum broadcast gradients in Accum") {
    check_sixteen_bits("add", repeated, [](auto&, auto& v) { return ops::add(v[0], v[1]); });
    check_sixteen_bits("sub", repeated, [](auto&, auto& v) { return ops::sub(v[0], v[1]); });
    check_sixteen_bits("mul", repeated, [](auto&, auto& v) { return ops::mul(v[0], v[1]); });
    check_sixteen_bits("select", repeated, [](auto&, auto& v) {
        return ops::select(Tensor<std::int32_t>({5}, {1, 0, 0, 1, 0}), v[0], v[1]);
    });
    check_sixteen_bits("div", test::positive_inputs(repeated),
                       [](auto&, auto& v) { return ops::div(v[0], v[1], {.unit = ops::Factors<2>{.alpha = 0.5}}); });
    check_sixteen_bits("maximum", repeated, [](auto&, auto& v) { return ops::maximum(v[0], v[1]); });
    check_sixteen_bits("minimum", repeated, [](auto&, auto& v) { return ops::minimum(v[0], v[1]); });
    check_sixteen_bits("gate", repeated, [](auto&, auto& v) { return ops::gate(v[0], v[1]); });
    check_sixteen_bits("lerp", {{7, 30}, {7, 30}, {7, 30}}, [](auto&, auto& v) { return ops::lerp(v[0], v[1], v[2]); });
    check_sixteen_bits("gated_silu", {{7, 30}, {7, 30}}, [](auto&, auto& v) { return ops::gated_silu(v[0], v[1]); });
    check_sixteen_bits("weighted_add", {{7, 30}, {7, 30}, {7, 30}}, [](auto&, auto& v) {
        return ops::weighted_add({v[0], v[1], v[2]}, {1.0, -2.0, 0.3});
    });
}

TEST_CASE("runs: casts to 8 bits of 16-bit and float tensors are equal, with stochastic rounding too") {
    for (const Rounding rounding : {Rounding::nearest_even, Rounding::stochastic}) {
        const Quantiser quantiser{.format = e4m3, .rounding = rounding};
        check_sixteen_bits("cast_on_forward", one,
                           [=](auto&, auto& v) { return ops::cast_on_forward(v[0], quantiser); });
        check_sixteen_bits("cast_on_backward", one,
                           [=](auto&, auto& v) { return ops::cast_on_backward(v[0], quantiser); });
    }
}

TEST_CASE("runs: an op with a scale rule of its own rounds once in 16 bits") {
    const auto square = [](auto& tape, auto& v) {
        using T = std::decay_t<decltype(v[0].scaled()(0))>;
        const Tensor<T>& a = v[0].scaled();
        return ops::custom_scale(
            "square", {v[0]},
            {.scale = a.scale() * a.scale(), .unit = ops::Factors<1>{.alpha = 0.5774, .betas = {0.5}}},
            [&](Accum<T> factor) {
                Tensor<T> y = tape.make(a.shape());
                kernels::map_elements(
                    tape.execution(), static_cast<std::ptrdiff_t>(a.size()), y.data(),
                    [factor](Accum<T> u) { return factor * u * u; }, a.data());
                return y;
            },
            [](auto& g) {
                Tensor<T> dx = g.make(g.input_shape(0));
                kernels::map_elements(
                    g.execution(), static_cast<std::ptrdiff_t>(dx.size()), dx.data(),
                    [factor = 2 * g.factor(0)](Accum<T> dy, Accum<T> u) { return factor * dy * u; },
                    g.output_gradient().data(), g.input(0).data());
                g.add(0, std::move(dx));
            });
    };
    check_sixteen_bits("custom_scale", one, square);
}

// The products of these numbers and these powers of two are exact in Half and BFloat16, so rescaling rounds nothing.
TEMPLATE_TEST_CASE("runs: in 16 bits rescaling moves powers of two between data and scale without a change of value",
                   "", Half, BFloat16) {
    using T = TestType;
    const Recipe recipe = recipe_in<T>(analysis::plain_recipe(Scaling::propagate));
    ScalingState state(1);
    Tape<T> tape(recipe, state);
    tape.begin_step({.retain = true});
    Tensor<T> data = normal<T>({500}, {1, 2}, 1.2 * 0x1p-6), dy = normal<T>({500}, {3, 4}, 0x1p-5);
    for (Tensor<T>* tensor : {&data, &dy})
        for (T& v : tensor->span())
            if (std::abs(static_cast<float>(v)) < 0x1p-9f) v = T(0x1p-9f);
    data.set_scale(0x1p-30);
    const auto x = tape.input(data, true);
    auto y = ops::dynamic_rescale_l1(ops::dynamic_rescale_max(ops::rebalance(x, 0x1p-3)));
    y = ops::dynamic_rescale_l2(ops::set_scaling(y, 0x1p-32));
    CHECK(y.scaled().scale() == 0x1p-36);  // the root mean square of the value is a little above 2^-36
    y = ops::dynamic_rescale_max_gradient(ops::dynamic_rescale_l1_gradient(ops::dynamic_rescale_l2_gradient(y)));
    const auto [plain, scale] = ops::get_data_and_scale(y);
    CHECK(scale == 0x1p-36);
    CHECK(analysis::relative_error(cast<float>(plain.scaled()), cast<float>(x.scaled()), 0x1p6) == 0.0);
    tape.backward(analysis::project(plain, dy, 0x1p-10));
    // The gradient's scale 2^-10 over the value's scale 2^-36 is 2^26.
    // Its data, 2^10 times dy, is brought to unit size, which raises the scale.
    CHECK(x.gradient().scale() > 0x1p26);
    CHECK(analysis::relative_error(cast<float>(x.gradient()), cast<float>(dy), 0x1p36 / x.gradient().scale()) == 0.0);
    CHECK(analysis::relative_error(cast<float>(ops::stop_scaling(ops::rebalance(plain, 0x1p5)).scaled()),
                                   cast<float>(plain.scaled())) == 0.0);
    CHECK(state.wide_ops().size() == 1);  // only the projection has no rule
}
