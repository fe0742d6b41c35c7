// SPDX-License-Identifier: MIT
#include <unitscale/record/prepared_operand.hpp>

#include "support/op_checks.hpp"

#include <unitscale/ops/linear.hpp>
#include <unitscale/ops/matmul.hpp>
#include <unitscale/ops/mul.hpp>
#include <unitscale/ops/scale.hpp>
#include <unitscale/ops/sum.hpp>
#include <unitscale/scaling/known_recipes.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

using namespace unitscale;

namespace {

/// The gradients of both operands of a batched product, and whether the tape kept each operand's value.
struct Outcome {
    std::vector<float> gradients;
    std::vector<bool> values;
};
Outcome run(const Recipe& recipe, bool held) {
    ScalingState state(1);
    Tape<float> tape(recipe, state);
    tape.begin_step();
    const auto first = tape.input(normal<float>({3, 20, 33}, {1, 1}), true),
               second = tape.input(normal<float>({3, 33, 17}, {2, 2}), true);
    auto x = ops::scale_forward(first, 0.5), w = ops::scale_forward(second, 2.0);  // slots 2 and 3
    const auto y = ops::matmul(x, w);
    std::vector<Variable<float>> keep;
    if (held) keep = {x, w};
    x = w = {};
    static_cast<void>(tape.make(Shape{1}));
    Outcome outcome{.gradients = {}, .values = {tape.slot(2).value != nullptr, tape.slot(3).value != nullptr}};
    tape.backward(ops::sum(ops::mul(y, tape.input(normal<float>({3, 20, 17}, {3, 3})))));
    for (const auto& input : {first, second})
        outcome.gradients.insert(outcome.gradients.end(), input.gradient().data(),
                                 input.gradient().data() + input.gradient().size());
    return outcome;
}
Recipe rounding(const Quantiser& activation) {
    Recipe recipe = analysis::plain_recipe(Scaling::unit);
    recipe.products.push_back(
        {.kind = ProductKind::matmul, .formats = {.activation = activation, .gradient = Quantiser{.format = e5m2}}});
    return recipe;
}

}  // namespace

TEST_CASE("prepared_operand: both operands of a product kept as codes give the bits of the operands themselves") {
    const Quantiser stochastic{.format = e4m3,
                               .rounding = Rounding::stochastic};  // each operand has its own random stream
    for (const Quantiser& activation : {Quantiser{.format = e4m3}, Quantiser{.format = e5m2fnuz}, stochastic}) {
        INFO(name(activation.format));
        const Outcome freed = run(rounding(activation), false), kept = run(rounding(activation), true);
        CHECK(freed.values == std::vector<bool>{false, false});
        CHECK(kept.values == std::vector<bool>{true, true});
        CHECK(freed.gradients == kept.gradients);
    }
}

TEST_CASE("prepared_operand: operands of more than 8 bits are kept as they are") {
    CHECK(run(rounding({.format = bf16}), false).values == std::vector<bool>{true, true});
    CHECK(run(analysis::plain_recipe(Scaling::unit), false).values == std::vector<bool>{true, true});
}

namespace {

/// x [rows,columns], quantised by hand for one product: blocks run along columns, or along rows.
Tensor<double> in_blocks(const Tensor<double>& x, const BlockFormat& format, bool along_rows) {
    const std::size_t rows = x.dim(0), columns = x.dim(1);
    const std::size_t lines = along_rows ? columns : rows, length = along_rows ? rows : columns;
    std::vector<float> flat(x.size());
    const auto place = [&](std::size_t i, std::size_t j) { return along_rows ? j * rows + i : i * columns + j; };
    for (std::size_t i = 0; i < rows; ++i)
        for (std::size_t j = 0; j < columns; ++j) flat[place(i, j)] = static_cast<float>(x(i, j));
    const MatrixLines<float> matrix{flat.data(), lines, length, length};
    quantise_blocks(format, matrix, matrix, {});
    Tensor<double> result(x.shape());
    for (std::size_t i = 0; i < rows; ++i)
        for (std::size_t j = 0; j < columns; ++j) result(i, j) = static_cast<double>(flat[place(i, j)]);
    return result;
}

const auto linear = [](auto&, auto& v) { return ops::linear(v[0], v[1]); };

/// Copies the table of past magnitudes from a state, or to it.
struct AmaxTable {
    std::map<std::string, double>& saved;
    bool load;
    void scalar(const char*, std::uint64_t&) const {}
    void table(const std::string& name, std::map<std::string, double>& table) const {
        if (name == "amax") (load ? table : saved) = load ? saved : table;
    }
};

Recipe recipe_with(const ProductFormats& formats) {
    Recipe recipe = analysis::plain_recipe(Scaling::none);
    recipe.products.push_back({.formats = formats});
    return recipe;
}

}  // namespace

TEST_CASE("prepared_operand: each operand of each product is rounded by its own rule, and no other") {
    const std::vector<Tensor<double>> inputs = {normal<double>({40, 48}, {1, 1}), normal<double>({36, 48}, {2, 2})};
    const Tensor<double>&x = inputs[0], &w = inputs[1], dy = normal<double>({40, 36}, {3, 3});
    const Recipe plain = analysis::plain_recipe(Scaling::none);
    const auto run = [&](const Recipe& recipe, const Tensor<double>& a, const Tensor<double>& b,
                         const Tensor<double>& g) {
        return analysis::run_op<double>(recipe, {a, b}, linear, g);
    };
    const auto exact = run(plain, x, w, dy);
    for (const BlockFormat& format : {mxfp4, nvfp4, nvfp4_square})
        for (std::size_t i = 0; i < linear_slot_count; ++i) {
            const auto slot = static_cast<OperandSlot>(i);
            INFO(name(format) << ' ' << name(slot));
            ProductFormats formats;
            formats.set(slot, OperandRule::in_blocks(format));
            const auto have = run(recipe_with(formats), x, w, dy);
            const bool rows = slot == OperandSlot::input_gradient_w || slot == OperandSlot::weight_gradient_dy ||
                              slot == OperandSlot::weight_gradient_x;
            const OperandRole role = role_of(slot);
            const auto rounded = run(plain, role == OperandRole::activation ? in_blocks(x, format, rows) : x,
                                     role == OperandRole::weight ? in_blocks(w, format, rows) : w,
                                     role == OperandRole::gradient ? in_blocks(dy, format, rows) : dy);
            const std::size_t product = i / 2;  // y, dx, dw
            const auto result = [](const auto& of, std::size_t which) {
                return which == 0 ? of.value : of.gradients[which - 1];
            };
            for (std::size_t which = 0; which < 3; ++which) {
                const auto& want = which == product ? rounded : exact;
                CHECK(analysis::relative_error(result(have, which), result(want, which)) == 0.0);
            }
            CHECK(analysis::relative_error(result(have, product), result(exact, product)) > 0.01);
        }
}

TEST_CASE("prepared_operand: a rotation of both operands changes no product but for rounding") {
    const std::vector<Tensor<double>> inputs = {normal<double>({48, 40}, {1, 1}), normal<double>({24, 40}, {2, 2})};
    const Tensor<double> dy = normal<double>({48, 24}, {3, 3});
    // Elements of 8 significant bits in blocks: the rounding is fine, so that a wrong rotation is visible.
    BlockFormat fine = mxfp8_e4m3;
    fine.element = make_format({.exponent_bits = 2, .mantissa_bits = 5, .bias = 1, .specials = Specials::none});
    ProductFormats formats;
    for (std::size_t i = 0; i < linear_slot_count; ++i)
        formats.set(static_cast<OperandSlot>(i), OperandRule::in_blocks(fine));
    for (auto& rotation : formats.rotations) rotation = transformer_engine_rotation;
    const auto have = analysis::run_op<double>(recipe_with(formats), inputs, linear, dy);
    const auto want = analysis::run_op<double>(analysis::plain_recipe(Scaling::none), inputs, linear, dy);
    CHECK(analysis::relative_error(have.value, want.value) < 0.02);
    CHECK(analysis::relative_error(have.gradients[0], want.gradients[0]) < 0.02);
    CHECK(analysis::relative_error(have.gradients[1], want.gradients[1]) < 0.02);
    CHECK(analysis::relative_error(have.value, want.value) > 1e-4);
}

TEST_CASE("prepared_operand: every product has the sums of the recipe") {
    // Tiles of 128 and runs of 128: runs are summed without scales. The naive sums take the same elements and scales.
    const Tensor<float> x = normal<float>({140, 300}, {1, 1}), w = normal<float>({130, 300}, {2, 2}),
                        dy = normal<float>({140, 130}, {3, 3});
    struct Lines {
        std::vector<float> elements, scales;
        std::ptrdiff_t length = 0, runs = 0;
    };
    const auto split = [](const Tensor<float>& t, const BlockFormat& format, kernels::Contracted contracted) {
        const auto rows = static_cast<std::ptrdiff_t>(t.dim(0)), columns = static_cast<std::ptrdiff_t>(t.dim(1));
        const bool turned = contracted == kernels::Contracted::rows;
        Lines lines;
        lines.length = turned ? rows : columns;
        lines.runs = (lines.length + 127) / 128;
        lines.elements.resize(t.size());
        lines.scales.resize(static_cast<std::size_t>((turned ? columns : rows) * lines.runs));
        const bool transposed =
            kernels::round_blocks<float>(Execution{}, format, {}, {}, t.data(), lines.elements.data(), rows, columns,
                                         contracted, lines.scales.data())
                .transposed;
        if (turned && !transposed) {
            const std::vector<float> in_rows = lines.elements;
            for (std::ptrdiff_t i = 0; i < rows; ++i)
                for (std::ptrdiff_t j = 0; j < columns; ++j)
                    lines.elements[static_cast<std::size_t>(j * rows + i)] =
                        in_rows[static_cast<std::size_t>(i * columns + j)];
        }
        return lines;
    };
    const auto product = [](const Lines& a, const Lines& b, std::size_t i, std::size_t j) {
        Accumulate one = hopper_sums_promoted;
        one.run_length = 0;
        float total = 0;
        for (std::ptrdiff_t r = 0; r < a.runs; ++r) {
            const std::ptrdiff_t first = 128 * r, count = std::min<std::ptrdiff_t>(128, a.length - first);
            const float* const left = a.elements.data() + static_cast<std::ptrdiff_t>(i) * a.length + first;
            const float* const right = b.elements.data() + static_cast<std::ptrdiff_t>(j) * a.length + first;
            const float sum = products::limited_sum_naive(one, {left, 1, e4m3}, {right, 1, e4m3}, count);
            const auto run = static_cast<std::size_t>(r), runs = static_cast<std::size_t>(a.runs);
            total += sum * (a.scales[i * runs + run] * b.scales[j * runs + run]);  // powers of two: one rounding
        }
        return total;
    };
    Recipe recipe = find_recipe("fp8-tiles-hopper");
    const auto have = analysis::run_op<float>(recipe, {x, w}, linear, dy);
    using kernels::Contracted;
    const Lines x_in = split(x, fp8_tile, Contracted::columns), w_in = split(w, fp8_square, Contracted::columns),
                dy_out = split(dy, fp8_tile, Contracted::columns), w_out = split(w, fp8_square, Contracted::rows),
                dy_rows = split(dy, fp8_tile, Contracted::rows), x_rows = split(x, fp8_tile, Contracted::rows);
    for (const auto& [i, j] : {std::pair<std::size_t, std::size_t>{0, 0}, {139, 129}, {77, 5}, {128, 128}}) {
        CHECK(have.value(i, j) == product(x_in, w_in, i, j));
        CHECK(have.gradients[0](i, j) == product(dy_out, w_out, i, j));
        CHECK(have.gradients[1](std::min<std::size_t>(i, 129), j) ==
              product(dy_rows, x_rows, std::min<std::size_t>(i, 129), j));
    }
    // One product alone; and runs that are no blocks take the decoded numbers.
    ProductFormats& formats = recipe.products.back().formats;
    formats.accumulate = {};
    const auto plain = analysis::run_op<float>(recipe, {x, w}, linear, dy);
    formats.accumulate[1] = mptorch_sums(bf16);
    const auto limited = analysis::run_op<float>(recipe, {x, w}, linear, dy);
    CHECK(analysis::relative_error(limited.value, plain.value) == 0.0);
    CHECK(analysis::relative_error(limited.gradients[0], plain.gradients[0]) > 1e-3);
    CHECK(analysis::relative_error(limited.gradients[0], plain.gradients[0]) < 0.1);
    CHECK(analysis::relative_error(limited.gradients[1], plain.gradients[1]) == 0.0);
}

TEST_CASE("prepared_operand: drawn signs are the site's own, equal in every step and for both operands") {
    ProductFormats formats;
    for (std::size_t i = 0; i < linear_slot_count; ++i)
        formats.set(static_cast<OperandSlot>(i), OperandRule::in_blocks(mxfp4));
    // The value and the weight's gradient of the second of two steps; and the site of the layer.
    const auto run = [&](const HadamardRotation& rotation, std::uint64_t seed) {
        for (auto& own : formats.rotations) own = rotation;
        const Recipe recipe = recipe_with(formats);
        ScalingState state(seed);
        Tape<float> tape(recipe, state);
        std::vector<float> out;
        for (int step = 0; step < 2; ++step) {
            tape.begin_step();
            const auto w = tape.input(normal<float>({8, 64}, {2, 2}), true);
            const auto y = ops::linear(tape.input(normal<float>({32, 64}, {1, 1})), w);
            out.assign(y.value().data(), y.value().data() + y.value().size());
            tape.backward(analysis::project(y, normal<float>({32, 8}, {3, 3})));
            out.insert(out.end(), w.gradient().data(), w.gradient().data() + w.gradient().size());
        }
        const auto signs = [&](std::uint64_t product) {
            return random_word(state.lasting_key(state.products().front().site, product), 0);
        };
        return std::tuple(out, signs(0), signs(2));
    };
    const HadamardRotation drawn{.size = 32, .drawn = true};
    const auto [have, forward, weight] = run(drawn, 1);
    CHECK(forward != weight);
    CHECK(std::get<0>(run(drawn, 1)) == have);
    CHECK(std::get<0>(run(drawn, 2)) != have);
    const std::size_t values = 32 * 8;
    const auto of_forward = std::get<0>(run({.size = 32, .signs = forward}, 1)),
               of_weight = std::get<0>(run({.size = 32, .signs = weight}, 1));
    CHECK(std::equal(have.begin(), have.begin() + values, of_forward.begin()));
    CHECK(std::equal(have.begin() + values, have.end(), of_weight.begin() + values));
    CHECK_FALSE(std::equal(have.begin(), have.begin() + values, of_weight.begin()));
}

TEST_CASE("prepared_operand: a delayed scale of one operand has a history of its own") {
    ProductFormats formats{.weight = Quantiser{.format = e4m3}, .weight_scale = {.source = ScaleSource::delayed}};
    formats.set(OperandSlot::input_gradient_w,
                {Quantiser{.format = e5m2}, {.source = ScaleSource::delayed, .history = 1}});
    const Recipe recipe = recipe_with(formats);
    ScalingState state(1);
    Tape<float> tape(recipe, state);
    for (const float size : {1.0f, 16.0f}) {
        tape.begin_step();
        const auto x = tape.input(full<float>({3, 4}, 1.0f), true);
        const auto y = ops::linear(x, tape.input(full<float>({2, 4}, size), true));
        tape.backward(analysis::project(y, full<float>({3, 2}, 1.0f)));
    }
    const Site site = state.products().front().site;
    CHECK(state.last_bias(site, OperandRole::weight) == 8);  // 448 / 1, of the step before
    CHECK(state.last_bias(site, 3 + static_cast<std::size_t>(OperandSlot::input_gradient_w)) == 15);  // 57344 / 1
    std::map<std::string, double> saved;
    state.visit_state(AmaxTable{saved, false});
    CHECK(saved.count(state.path(site) + "|weight|current") == 1);
    CHECK(saved.at(state.path(site) + "|input_gradient.w|current") == 16.0);
    ScalingState restored(1);
    restored.visit_state(AmaxTable{saved, true});
    std::map<std::string, double> again;
    restored.visit_state(AmaxTable{again, false});
    CHECK(again == saved);
}

TEST_CASE("prepared_operand: sums in FP16 overflow as the scaled sums do: at margin 0, not at FP8-AMAX's margin 3") {
    constexpr std::size_t k = 512, rows = 32, columns = 16;
    Recipe recipe = analysis::plain_recipe(Scaling::none);
    recipe.products.push_back({.kind = ProductKind::linear,
                               .formats = {.activation = Quantiser{.format = e4m3fnuz},
                                           .weight = Quantiser{.format = e4m3fnuz},
                                           .activation_scale = {.source = ScaleSource::amax},
                                           .weight_scale = {.source = ScaleSource::amax}}});
    ProductFormats& formats = recipe.products.back().formats;
    formats.accumulate.front() = Accumulate{.sums = fp16};
    Tensor<float> x({rows, k}), w({columns, k});  // 1 and -1 at random: sums have a deviation of 22.6
    for (Tensor<float>* tensor : {&x, &w})
        for (std::size_t i = 0; i < tensor->size(); ++i)
            tensor->data()[i] = random_word({5, tensor->size()}, i) % 2 == 0 ? 1.0f : -1.0f;
    const auto overflows = [&](int margin, float size) {
        formats.activation_scale.margin = formats.weight_scale.margin = margin;
        ScalingState state;
        Tape<float> tape(recipe, state);
        tape.begin_step({.gradients = false});
        Tensor<float> scaled = x;
        for (float& value : scaled.span()) value *= size;
        const auto y = ops::linear(tape.input(std::move(scaled)), tape.input(w));
        std::size_t count = 0;
        for (std::size_t i = 0; i < rows; ++i)
            for (std::size_t j = 0; j < columns; ++j) {
                float sum = 0.0f;
                for (std::size_t p = 0; p < k; ++p) sum += x(i, p) * w(j, p) * size;
                if (std::isinf(y.value()(i, j))) ++count;
                else CHECK(y.value()(i, j) == sum);
            }
        return count;
    };
    // At margin 0 a number 1 is 2^7 in the format. A sum beyond 4 = 65504 / 2^14 on the way is infinite.
    CHECK(overflows(0, 1.0f) > rows * columns * 9 / 10);
    CHECK(overflows(1, 1.0f) > 0);
    CHECK(overflows(1, 1.0f) < rows * columns);
    for (const int margin : {3, 4, 5}) CHECK(overflows(margin, 1.0f) == 0);
    // The magnitude of the operand itself does not matter: the scale follows it.
    for (const int margin : {0, 1, 3}) CHECK(overflows(margin, 0x1p-10f) == overflows(margin, 1.0f));
}
