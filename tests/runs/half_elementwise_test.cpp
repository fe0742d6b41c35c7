// SPDX-License-Identifier: MIT
// Element-wise ops in the 16-bit types. Broadcast inputs are repeated 600 times, so that sums in 16 bits would show.
#include <unitscale/ops/abs.hpp>
#include <unitscale/ops/add.hpp>
#include <unitscale/ops/binary.hpp>
#include <unitscale/ops/cast.hpp>
#include <unitscale/ops/clamp.hpp>
#include <unitscale/ops/div.hpp>
#include <unitscale/ops/dropout.hpp>
#include <unitscale/ops/exp.hpp>
#include <unitscale/ops/gated_silu.hpp>
#include <unitscale/ops/gelu.hpp>
#include <unitscale/ops/log.hpp>
#include <unitscale/ops/mul.hpp>
#include <unitscale/ops/pow.hpp>
#include <unitscale/ops/relu.hpp>
#include <unitscale/ops/rsqrt.hpp>
#include <unitscale/ops/scale.hpp>
#include <unitscale/ops/select.hpp>
#include <unitscale/ops/sigmoid.hpp>
#include <unitscale/ops/silu.hpp>
#include <unitscale/ops/sqrt.hpp>
#include <unitscale/ops/sub.hpp>
#include <unitscale/ops/tanh.hpp>
#include <unitscale/ops/unary.hpp>
#include <unitscale/ops/weighted_add.hpp>

#include "support/half_checks.hpp"
#include "support/op_checks.hpp"

using namespace unitscale;
using test::check_sixteen_bits;

namespace {
const std::vector<Shape> one = {{7, 30}}, repeated = {{600, 5}, {5}};
const ops::UnruledOptions stated{.unit = ops::UnitRule{.alpha = 1.5, .beta_x = 0.75}};
}  // namespace

TEST_CASE("runs: ops of one input round once in 16 bits") {
    check_sixteen_bits("abs", one, [](auto&, auto& v) { return ops::abs(v[0]); });
    check_sixteen_bits("clamp", one, [](auto&, auto& v) { return ops::clamp(v[0], {.low = -1.0, .high = 1.5}); });
    check_sixteen_bits("dropout", one, [](auto&, auto& v) { return ops::dropout(v[0], {.p = 0.25}); });
    check_sixteen_bits("exp", one, [](auto&, auto& v) { return ops::exp(v[0], stated); });
    check_sixteen_bits("gelu", one, [](auto&, auto& v) { return ops::gelu(v[0], {.mult = 1.5}); });
    check_sixteen_bits("gelu, tanh", one, [](auto&, auto& v) { return ops::gelu(v[0], {.form = ops::GeluForm::tanh}); });
    check_sixteen_bits("relu", one, [](auto&, auto& v) { return ops::relu(v[0]); });
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
                       [](auto&, auto& v) { return ops::div(v[0], v[1], {.unit = ops::BinaryUnitRule{.alpha = 0.5}}); });
    check_sixteen_bits("gated_silu", {{7, 30}, {7, 30}}, [](auto&, auto& v) { return ops::gated_silu(v[0], v[1]); });
    check_sixteen_bits("weighted_add", {{7, 30}, {7, 30}, {7, 30}}, [](auto&, auto& v) {
        return ops::weighted_add({v[0], v[1], v[2]}, {1.0, -2.0, 0.3});
    });
}

TEST_CASE("runs: casts to 8 bits of 16-bit tensors are those of the float ones, stochastic rounding too") {
    for (const Rounding rounding : {Rounding::nearest_even, Rounding::stochastic}) {
        const Quantiser quantiser{.format = e4m3, .rounding = rounding};
        check_sixteen_bits("cast_on_forward", one, [=](auto&, auto& v) { return ops::cast_on_forward(v[0], quantiser); });
        check_sixteen_bits("cast_on_backward", one, [=](auto&, auto& v) { return ops::cast_on_backward(v[0], quantiser); });
    }
}
