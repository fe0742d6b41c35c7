// SPDX-License-Identifier: MIT
// Products, attention and ops that move values in the 16-bit types.
// Sums have hundreds of terms. In 16 bits they would make errors above the tolerance.
#include <unitscale/ops/attention.hpp>
#include <unitscale/ops/cached_attention.hpp>
#include <unitscale/ops/concatenate.hpp>
#include <unitscale/ops/conv1d.hpp>
#include <unitscale/ops/conv2d.hpp>
#include <unitscale/ops/linear.hpp>
#include <unitscale/ops/matmul.hpp>
#include <unitscale/ops/pad.hpp>
#include <unitscale/ops/pool.hpp>
#include <unitscale/ops/readout.hpp>
#include <unitscale/ops/reshape.hpp>
#include <unitscale/ops/residual.hpp>
#include <unitscale/ops/rotary.hpp>
#include <unitscale/ops/slice.hpp>
#include <unitscale/ops/split.hpp>
#include <unitscale/ops/transpose.hpp>
#include <unitscale/ops/unfold.hpp>
#include <unitscale/record/conv1d_shape.hpp>
#include <unitscale/record/operand_rounding.hpp>
#include <unitscale/record/packed_weight.hpp>
#include <unitscale/record/prepared_operand.hpp>
#include <unitscale/record/same_scale.hpp>

#include "support/half_checks.hpp"
#include "support/op_checks.hpp"

using namespace unitscale;
using test::check_sixteen_bits;

TEST_CASE("runs: products sum in Accum and round once in 16 bits") {
    const auto linear = [](auto&, auto& v) { return ops::linear(v[0], v[1], std::optional(v[2])); };
    check_sixteen_bits("linear", {{5, 400}, {7, 400}, {7}}, linear);
    check_sixteen_bits("linear", {{500, 6}, {7, 6}, {7}}, linear);
    check_sixteen_bits("readout", {{5, 400}, {7, 400}}, [](auto&, auto& v) { return ops::readout(v[0], v[1]); });
    check_sixteen_bits("matmul", {{3, 4, 300}, {300, 5}}, [](auto&, auto& v) { return ops::matmul(v[0], v[1]); });
    check_sixteen_bits("conv1d", {{2, 64, 30}, {6, 32, 5}, {6}}, [](auto&, auto& v) {
        return ops::conv1d(v[0], v[1], std::optional(v[2]), {.groups = 2, .causal = true});
    });
    // The gradient of an image is a sum of rows that `linear` has rounded, one for each window that holds a pixel.
    check_sixteen_bits("conv2d", {{2, 32, 6, 5}, {6, 32, 1, 1}, {6}},
                       [](auto&, auto& v) { return ops::conv2d(v[0], v[1], v[2]); });
}

TEST_CASE("runs: windows of images in 16 bits") {
    const std::vector<Shape> images = {{2, 3, 20, 20}};
    const ops::PoolOptions large{.kernel = {18, 18}, .stride = {{1, 1}}};
    check_sixteen_bits("unfold", images, [](auto&, auto& v) { return ops::unfold(v[0], {15, 15}); });
    check_sixteen_bits("average_pool", images, [=](auto&, auto& v) { return ops::average_pool(v[0], large); });
    check_sixteen_bits("max_pool", images, [=](auto&, auto& v) { return ops::max_pool(v[0], large); });
}

TEST_CASE("runs: attention and rotary in 16 bits") {
    check_sixteen_bits("attention", {{2, 200, 8}, {2, 200, 4}, {2, 200, 4}}, [](auto&, auto& v) {
        return ops::attention(v[0], v[1], v[2], {.heads = 4, .groups = 2, .mult = 2.0});
    });
    check_sixteen_bits("rotary", {{2, 9, 8}}, [](auto&, auto& v) { return ops::rotary(v[0], {.heads = 2}); });
}

TEST_CASE("runs: ops that move values are exact in 16 bits; a residual layer rounds branch and sum") {
    check_sixteen_bits(
        "concatenate", {{2, 3}, {2, 4}},
        [](auto&, auto& v) {
            return ops::concatenate({v[0], v[1]}, 1);
        },
        0, 0);
    check_sixteen_bits(
        "pad", {{2, 3}},
        [](auto&, auto& v) {
            return ops::pad(v[0], {1, 0}, {0, 2}, {.value = 0.25});
        },
        0, 0);
    check_sixteen_bits(
        "reshape", {{2, 3}},
        [](auto&, auto& v) {
            return ops::reshape(v[0], {3, 2});
        },
        0, 0);
    check_sixteen_bits("split", {{6, 5}}, [](auto&, auto& v) {
        const auto parts = ops::split(v[0], 3, 0);
        return ops::concatenate({parts[2], parts[0], parts[1]}, 0);
    });
    check_sixteen_bits(
        "slice", {{2, 3}},
        [](auto&, auto& v) {
            return ops::slice(v[0], {0, 1}, {2, 3});
        },
        0, 0);
    check_sixteen_bits(
        "transpose", {{2, 3}},
        [](auto&, auto& v) {
            return ops::transpose(v[0], {1, 0});
        },
        0, 0);
    check_sixteen_bits(
        "residual", {{7, 30}},
        [](auto&, auto& v) {
            const auto [branch, stream] = ops::residual_split(v[0], 0.5);
            return ops::residual_add(branch, stream, 0.5);
        },
        1, 3);
}

TEMPLATE_TEST_CASE("runs: in 16 bits too, codes in place of an input and packed weights change no bit", "", Half,
                   BFloat16) {
    using T = TestType;
    Recipe recipe = recipe_in<T>(analysis::plain_recipe(Scaling::unit));
    const Quantiser e4{.format = e4m3}, e5{.format = e5m2};
    recipe.products.push_back({.formats = {.activation = e4, .weight = e4, .gradient = e5}});
    ScalingState state(1);
    Tape<T> tape(recipe, state);
    Parameter<T> weight("weight", {24, 40}, {});
    fill_normal(weight.write(), {1, 1});
    const auto bits = [](const Tensor<T>& t) { return std::vector<float>(t.data(), t.data() + t.size()); };
    std::vector<std::vector<float>> gradients, values;
    for (const bool held : {false, true}) {
        tape.begin_step();
        weight.clear_gradient();
        const auto source = tape.input(normal<T>({18, 40}, {3, 3}), true);
        auto x = ops::transpose(source, {1, 0});
        x = ops::transpose(x, {1, 0});
        const auto y = ops::linear(x, tape.parameter(weight));
        if (!held) x = {};
        static_cast<void>(tape.make(Shape{1}));
        CHECK((tape.slot(2).value != nullptr) == held);
        tape.backward(analysis::project(y, normal<T>({18, 24}, {4, 4})));
        gradients.push_back(bits(weight.gradient()));
        tape.begin_step({.training = false, .gradients = held});
        values.push_back(bits(ops::linear(tape.input(normal<T>({18, 40}, {3, 3})), tape.parameter(weight)).value()));
    }
    CHECK(gradients[0] == gradients[1]);
    CHECK(values[0] == values[1]);
}

TEMPLATE_TEST_CASE("runs: in 16 bits too, attention with a cache has the bits of attention", "", Half, BFloat16) {
    using T = TestType;
    const Recipe recipe = recipe_in<T>(analysis::plain_recipe(Scaling::unit));
    ScalingState state(1);
    Tape<T> tape(recipe, state);
    tape.begin_step({.training = false, .gradients = false});
    const auto q = tape.input(normal<T>({1, 5, 16}, {1, 1})), k = tape.input(normal<T>({1, 5, 16}, {2, 2})),
               v = tape.input(normal<T>({1, 5, 16}, {3, 3}));
    const ops::AttentionOptions options{.heads = 2, .mult = 2.0, .factor_length = 5};
    const auto whole = ops::attention(q, k, v, options);
    Tensor<T> keys({1, 2, 8, 8}), values({1, 2, 8, 8});
    std::vector<float> want, have;
    for (std::size_t begin = 0; begin < 5; ++begin) {
        const auto row = [&](const Variable<T>& x) { return ops::slice(x, {0, begin, 0}, {1, begin + 1, 16}); };
        const ops::KeyValueRows<T> past{keys.data(), values.data(), 1, 8, 16, begin};
        const auto y = ops::cached_attention(row(q), row(k), row(v), past, options);
        for (std::size_t i = 0; i < 16; ++i) {
            have.push_back(static_cast<float>(y.value().data()[i]));
            want.push_back(static_cast<float>(whole.value().data()[begin * 16 + i]));
        }
    }
    CHECK(have == want);
}
