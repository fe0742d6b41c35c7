// SPDX-License-Identifier: MIT
#include <unitscale/record/attention_formats.hpp>

#include "support/op_checks.hpp"
#include "support/test_ops.hpp"

#include <unitscale/analysis/operand_statistics.hpp>
#include <unitscale/ops/attention.hpp>
#include <unitscale/ops/cached_attention.hpp>
#include <unitscale/ops/matmul.hpp>
#include <unitscale/ops/reshape.hpp>
#include <unitscale/ops/select.hpp>
#include <unitscale/ops/slice.hpp>
#include <unitscale/ops/softmax.hpp>
#include <unitscale/ops/transpose.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

using namespace unitscale;
using enum OperandSlot;

namespace {

const Quantiser e4{.format = e4m3}, e5{.format = e5m2};

ProductFormats fp8(const ScaleRule& rule = {}) {
    return {.activation = e4, .gradient = e5, .activation_scale = rule, .gradient_scale = rule};
}
ProductFormats with(ProductFormats formats, OperandSlot slot, const OperandRule& rule) {
    formats.set(slot, rule);
    return formats;
}

/// Whether some operand has a rule of its own.
bool has_own(const ProductFormats& formats) {
    return std::any_of(formats.slots.begin(), formats.slots.end(), [](const auto& own) { return own.has_value(); });
}

Recipe attention_recipe(const ProductFormats& formats, Scaling scaling = Scaling::none) {
    Recipe recipe = analysis::plain_recipe(scaling);
    recipe.constraint = Constraint::automatic;
    recipe.products.push_back({.kind = ProductKind::attention, .formats = formats});
    return recipe;
}

/// Attention's operands by product (s and y) and OperandSlot of a matmul: x, w, dy, w, dy, x.
constexpr std::array<std::array<OperandSlot, linear_slot_count>, 2> attention_slots = {
    {{logits_q, logits_k, query_gradient_ds, query_gradient_k, key_gradient_ds, key_gradient_q},
     {output_p, output_v, probability_gradient_dy, probability_gradient_v, value_gradient_dy, value_gradient_p}}};

/// The same formats for the matmuls of `composed`, which stand in the modules "logits" and "output".
Recipe matmul_recipe(const ProductFormats& formats, Scaling scaling) {
    Recipe recipe = attention_recipe(formats, scaling);
    recipe.products.clear();
    for (std::size_t half = 0; half < 2; ++half) {
        ProductFormats own = formats;
        own.slots.fill({});
        const auto& slots = attention_slots[half];
        for (std::size_t i = 0; i < slots.size(); ++i)
            if (formats.own(slots[i])) own.set(static_cast<OperandSlot>(i), formats.rule(slots[i]));
        recipe.products.push_back(
            {.kind = ProductKind::matmul, .pattern = half == 0 ? "logits" : "output", .formats = own});
    }
    return recipe;
}

/// Attention as a user would compose it from ops.
template <class T>
Variable<T> composed(Tape<T>& tape, Variable<T> q, Variable<T> k, Variable<T> v, const ops::AttentionOptions& options) {
    const std::size_t batch = q.shape()[0], queries = q.shape()[1], keys = k.shape()[1], heads = options.heads,
                      groups = options.groups == 0 ? heads : options.groups, depth = q.shape()[2] / heads,
                      rows = heads / groups * queries;
    q = ops::transpose(ops::reshape(q, {batch, queries, heads, depth}), {0, 2, 1, 3});
    k = ops::transpose(ops::reshape(k, {batch, keys, groups, depth}), {0, 2, 3, 1});
    v = ops::transpose(ops::reshape(v, {batch, keys, groups, depth}), {0, 2, 1, 3});
    const auto product = [&tape](const char* name, const Variable<T>& a, const Variable<T>& b) {
        const auto scope = tape.scope(name);
        return ops::matmul(a, b);
    };
    Variable<T> s = product("logits", ops::reshape(q, {batch, groups, rows, depth}), k);
    s = ops::reshape(s, {batch, heads, queries, keys});
    if (options.causal || options.mask.hides()) {
        Tensor<std::uint8_t> seen({batch, heads, queries, keys});
        const ops::AttentionSizes sizes{.mask = options.mask};
        const kernels::AttentionMask mask = view_mask(sizes);
        for (std::size_t b = 0; b < batch; ++b)
            for (std::size_t h = 0; h < heads; ++h)
                for (std::size_t i = 0; i < queries; ++i)
                    for (std::size_t j = 0; j < keys; ++j)
                        seen(b, h, i, j) = (!options.causal || j <= i + keys - queries) &&
                                           (mask.lengths == nullptr || j < mask.lengths[b]) &&
                                           (mask.bias == nullptr ||
                                            mask.row(static_cast<std::ptrdiff_t>(b), static_cast<std::ptrdiff_t>(h),
                                                     static_cast<std::ptrdiff_t>(i))[j] == 0.0f);
        Tensor<T> hidden({1}, {element_cast<T>(-std::numeric_limits<float>::infinity())});
        hidden.set_any_scale(true);
        s = ops::select(seen, s, tape.input(std::move(hidden)));
    }
    const double root = tape.unit_scaled() ? rsqrt_count(depth) : 1.0;
    const Variable<T> p = ops::softmax(
        s, {.mult = options.mult / (static_cast<double>(depth) * root), .factor_length = options.factor_length});
    const Variable<T> y = product("output", ops::reshape(p, {batch, groups, rows, keys}), v);
    return ops::reshape(ops::transpose(ops::reshape(y, {batch, heads, queries, depth}), {0, 2, 1, 3}),
                        {batch, queries, heads * depth});
}

struct Setting {
    std::size_t batch, heads, groups, queries, keys, depth;
    bool causal;
};
// T != S, grouped heads, batches, few rows, one head, keys beyond one depth of a product.
const std::vector<Setting> settings = {
    {2, 4, 2, 5, 7, 8, true},  {2, 4, 2, 5, 7, 8, false},   {1, 2, 2, 33, 33, 16, true}, {3, 2, 1, 40, 64, 4, false},
    {1, 1, 1, 1, 9, 16, true}, {2, 6, 2, 20, 20, 32, true}, {1, 1, 1, 3, 600, 4, true}};

/// y, dq, dk, dv as plain numbers.
template <class T, class F>
std::vector<Tensor<T>> run(const Recipe& recipe, const Setting& s, F&& f,
                           const std::map<std::string, double>& plan = {},
                           const std::array<double, 3>& input_scales = {1.0, 1.0, 1.0}, int threads = 1,
                           Observer<T>* observer = nullptr) {
    ScalingState state(1);
    state.set_plan(plan);
    Tape<T> tape(recipe_in<T>(recipe), state, threads);
    tape.set_observer(observer);
    tape.begin_step({.retain = true, .true_gradients = recipe.scaling == Scaling::unit});
    const std::array<Shape, 3> shapes = {Shape{s.batch, s.queries, s.heads * s.depth},
                                         Shape{s.batch, s.keys, s.groups * s.depth},
                                         Shape{s.batch, s.keys, s.groups * s.depth}};
    std::vector<Variable<T>> inputs;
    for (std::size_t i = 0; i < shapes.size(); ++i)
        inputs.push_back(tape.input(set_scaling(normal<T>(shapes[i], {1, i}), input_scales[i]), true));
    const Variable<T> y = f(tape, inputs);
    tape.backward(analysis::project(y, normal<T>(y.shape(), {1, 9})));
    std::vector<Tensor<T>> results = {y.value()};
    for (const Variable<T>& input : inputs) results.push_back(value(input.gradient()));
    return results;
}

/// What rounding does to the operands of a run, by the op's path and the slot.
using Rounded = std::map<std::pair<std::string, OperandSlot>, analysis::OperandStatistics>;

class Watch : public Observer<float> {
public:
    void observe(const TensorEvent<float>&) override {}
    void observe_operand(const OperandEvent<float>& operand) override {
        // Codes are those of a tensor that the forward pass has shown.
        if (operand.tensor != nullptr)
            rounded[{std::string(operand.path), operand.slot}] = analysis::operand_statistics(operand);
    }
    Rounded rounded{};
};

template <class T>
bool same_bits(const std::vector<Tensor<T>>& a, const std::vector<Tensor<T>>& b) {
    bool same = a.size() == b.size();
    for (std::size_t i = 0; same && i < a.size(); ++i)
        same = a[i].shape() == b[i].shape() && test::elements(a[i]) == test::elements(b[i]);
    return same;
}

ops::AttentionOptions options_of(const Setting& s) {
    return {.heads = s.heads, .groups = s.groups, .mult = 3.0, .causal = s.causal};
}
const auto attention_of = [](const Setting& s) {
    return [options = options_of(s)](auto&, auto& v) { return ops::attention(v[0], v[1], v[2], options); };
};
const auto composed_of = [](const Setting& s) {
    return [options = options_of(s)](auto& tape, auto& v) { return composed(tape, v[0], v[1], v[2], options); };
};

/// The recipes' rules that the tests compare.
std::vector<ProductFormats> rules() {
    const ScaleRule amax{.source = ScaleSource::amax, .margin = 1},
        constant{.source = ScaleSource::constant, .bias = 3};
    std::vector<ProductFormats> result = {fp8(), fp8(amax), fp8(constant),
                                          fp8({.source = ScaleSource::delayed, .history = 2})};
    result.push_back({.activation = e4});
    result.push_back({.gradient = e5});
    // One operand of one product at a time, with a rule of its own.
    for (std::size_t slot = linear_slot_count; slot < slot_count; ++slot)
        result.push_back(with(slot % 2 == 0 ? fp8(amax) : ProductFormats{}, static_cast<OperandSlot>(slot),
                              {Quantiser{.format = e2m3}, constant}));
    result.push_back({.activation = Quantiser{.format = e2m1, .rounding = Rounding::toward_zero}, .gradient = e4});
    result.push_back({.activation = Quantiser{.format = bf16}, .gradient = Quantiser{.format = fp16}});
    return result;
}

}  // namespace

TEMPLATE_TEST_CASE("attention in formats has the bits of matmul, softmax and matmul", "[record]", float, double, Half,
                   BFloat16) {
    using T = TestType;
    for (const Setting& s : settings)
        for (const ProductFormats& formats : rules()) {
            if ((!std::is_same_v<T, float> || s.keys > 500) && has_own(formats)) continue;  // enough in float
            INFO(s.queries << " x " << s.keys << ", causal " << s.causal);
            const auto want = run<T>(matmul_recipe(formats, Scaling::none), s, composed_of(s));
            CHECK(same_bits(run<T>(attention_recipe(formats), s, attention_of(s)), want));
            CHECK_FALSE(same_bits(run<T>(attention_recipe({}), s, attention_of(s)), want));
        }
}

TEST_CASE("attention in formats has the bits of separate ops with a mask, too", "[record]") {
    for (const Setting& s : {Setting{2, 4, 2, 5, 7, 8, false}, Setting{2, 4, 2, 7, 7, 8, true}}) {
        Tensor<std::uint8_t> seen({s.batch, s.heads, s.queries, s.keys});
        for (std::size_t i = 0; i < seen.size(); ++i) seen.data()[i] = i % s.keys == 0 || i % 3 != 0;
        for (const ops::AttentionMask& mask :
             {ops::AttentionMask{.lengths = {7, 3}}, ops::AttentionMask{.bias = ops::attention_bias(seen)},
              ops::AttentionMask{.lengths = {2, 6}, .bias = ops::attention_bias(seen)}}) {
            ops::AttentionOptions options = options_of(s);
            options.mask = mask;
            const auto want = run<float>(matmul_recipe(fp8(), Scaling::none), s, [&](auto& tape, auto& v) {
                return composed(tape, v[0], v[1], v[2], options);
            });
            CHECK(same_bits(run<float>(attention_recipe(fp8()), s,
                                       [&](auto&, auto& v) { return ops::attention(v[0], v[1], v[2], options); }),
                            want));
        }
    }
}

TEST_CASE("attention in formats shows its operands in memory as the products of separate ops show theirs") {
    const Setting s = settings.front();
    for (const ScaleRule& rule : {ScaleRule{}, ScaleRule{.source = ScaleSource::amax}})
        for (const Scaling scaling : {Scaling::none, Scaling::propagate}) {
            const ProductFormats formats = fp8(rule);
            Watch of_attention, of_matmuls;
            static_cast<void>(run<float>(attention_recipe(formats, scaling), s, attention_of(s), {}, {0.5, 2.0, 4.0}, 1,
                                         &of_attention));
            static_cast<void>(
                run<float>(matmul_recipe(formats, scaling), s, composed_of(s), {}, {0.5, 2.0, 4.0}, 1, &of_matmuls));
            CHECK(of_attention.rounded.size() == 8);
            for (const auto& [place, have] : of_attention.rounded) {
                const auto& [path, slot] = place;
                INFO(name(slot));
                CHECK(path == "attention");
                REQUIRE(is_of_attention(slot));
                std::size_t half = 0, i = 0;
                while (attention_slots[half][i] != slot)
                    if (++i == linear_slot_count) i = 0, ++half;
                // A tensor that both products round alike may be kept as codes: its first product has shown it.
                auto found = of_matmuls.rounded.find(
                    {half == 0 ? "logits/matmul" : "output/matmul", static_cast<OperandSlot>(i)});
                if (found == of_matmuls.rounded.end())
                    found = of_matmuls.rounded.find(
                        {half == 0 ? "logits/matmul" : "output/matmul", first_use(static_cast<OperandSlot>(i))});
                REQUIRE(found != of_matmuls.rounded.end());
                const analysis::OperandStatistics& want = found->second;
                CHECK(have.count == want.count);
                CHECK(have.flushed == want.flushed);
                CHECK(have.error > 0.0);
                CHECK(have.error == Approx(want.error).epsilon(1e-12));
                CHECK(have.signal == Approx(want.signal).epsilon(1e-12));
                CHECK(have.lowest_scale == want.lowest_scale);
                CHECK(have.tensor_scale == want.tensor_scale);
            }
        }
    // Blocks: the rule of the slot is shown, and every matrix has blocks of its own.
    Watch blocks;
    ProductFormats fours;
    fours.set(output_v, OperandRule::in_blocks(mxfp4));
    static_cast<void>(run<float>(attention_recipe(fours), s, attention_of(s), {}, {1.0, 1.0, 1.0}, 1, &blocks));
    REQUIRE(blocks.rounded.size() == 1);
    CHECK(blocks.rounded.begin()->first.second == output_v);
    CHECK(blocks.rounded.begin()->second.scales == s.batch * s.groups * s.depth);  // 7 keys: one block each
}

TEMPLATE_TEST_CASE("attention in formats has the bits of unit-scaled ops", "[record]", float, double, Half) {
    using T = TestType;
    for (const Setting& s : settings)
        for (const ProductFormats& formats : {fp8(), fp8({.source = ScaleSource::amax})}) {
            INFO(s.queries << " x " << s.keys << ", causal " << s.causal);
            const double m = options_of(s).mult, root = rsqrt_count(s.depth);
            const double alpha = ops::attention_unit_factor(m, s.depth, static_cast<double>(s.keys), s.causal);
            const double of_p = ops::softmax_unit_factors(m / (static_cast<double>(s.depth) * root),
                                                          static_cast<double>(s.keys), ops::SoftmaxRule::fitted)
                                    .alpha;
            // Without a mask the product of the ops' own factors is attention's.
            if (!s.causal) CHECK(alpha / of_p == Approx(rsqrt_count(s.keys)));
            const auto want =
                run<T>(matmul_recipe(formats, Scaling::unit), s, composed_of(s), {{"output/matmul", alpha / of_p}});
            CHECK(same_bits(run<T>(attention_recipe(formats, Scaling::unit), s, attention_of(s)), want));
        }
}

TEMPLATE_TEST_CASE("attention in formats has the values of ops that propagate scales", "[record]", float, double) {
    using T = TestType;
    for (const Setting& s : settings)
        for (const ProductFormats& formats : {fp8(), fp8({.source = ScaleSource::amax})})
            for (const std::array<double, 3>& scales :
                 {std::array{1.0, 1.0, 1.0}, std::array{0.25, 8.0, 0x1p-6}, std::array{2.0, 4.0, 32.0}}) {
                INFO(s.queries << " x " << s.keys << ", causal " << s.causal);
                const auto want = run<T>(matmul_recipe(formats, Scaling::propagate), s, composed_of(s), {}, scales);
                CHECK(same_bits(run<T>(attention_recipe(formats, Scaling::propagate), s, attention_of(s), {}, scales),
                                want));
            }
}

TEST_CASE("attention in formats: without a rule for it, attention has the bits of the fused kernels") {
    const Setting& s = settings[0];
    const auto plain = run<float>(analysis::plain_recipe(Scaling::none), s, attention_of(s));
    Recipe others = analysis::plain_recipe(Scaling::none);
    others.products.push_back({.kind = ProductKind::linear, .formats = fp8()});
    others.products.push_back({.kind = ProductKind::matmul, .formats = fp8()});
    CHECK(same_bits(run<float>(others, s, attention_of(s)), plain));
    others.products.push_back({.kind = ProductKind::attention, .formats = {}});
    CHECK(same_bits(run<float>(others, s, attention_of(s)), plain));

    const auto d = static_cast<std::ptrdiff_t>(s.depth);
    const std::ptrdiff_t wide = 4 * d, narrow = 2 * d;
    const auto q = normal<float>({2, 5, 32}, {1, 0}), k = normal<float>({2, 7, 16}, {1, 1}),
               v = normal<float>({2, 7, 16}, {1, 2});
    Tensor<float> y({2, 5, 32}), log_sum({2, 4, 5});
    kernels::attention_forward<float>({}, {.batch = 2,
                                           .heads = 4,
                                           .groups = 2,
                                           .queries = 5,
                                           .keys = 7,
                                           .depth = d,
                                           .q = {q.data(), 5 * wide, wide, d},
                                           .k = {k.data(), 7 * narrow, narrow, d},
                                           .v = {v.data(), 7 * narrow, narrow, d},
                                           .out = {y.data(), 5 * wide, wide, d},
                                           .log_sum = log_sum.data(),
                                           .logit_scale = 3.0f / 8.0f,
                                           .causal = true});
    CHECK(test::elements(plain[0]) == test::elements(y));
}

TEST_CASE("attention in formats: formats that lose little give the values and gradients of the fused kernels") {
    const Quantiser fine{.format = fp32};
    const ProductFormats formats{.activation = fine, .gradient = fine};
    for (const Scaling scaling : {Scaling::none, Scaling::unit, Scaling::propagate})
        for (const Setting& s : settings) {
            Recipe off = attention_recipe({}, scaling), on = attention_recipe(formats, scaling);
            off.propagate.rescale_gradients = on.propagate.rescale_gradients = s.causal;
            const std::array<double, 3> scales =
                scaling == Scaling::propagate ? std::array{0.25, 8.0, 0x1p-6} : std::array{1.0, 1.0, 1.0};
            const auto want = run<float>(off, s, attention_of(s), {}, scales),
                       have = run<float>(on, s, attention_of(s), {}, scales);
            for (std::size_t i = 0; i < want.size(); ++i) CHECK(analysis::relative_error(have[i], want[i]) < 2e-5);
        }
}

TEST_CASE("attention in formats: blocks follow the contracted dimension, in every scaling") {
    // Each operand is one block along it: a power of two for each row or column, as from the largest of that line.
    for (const Scaling scaling : {Scaling::none, Scaling::unit, Scaling::propagate})
        for (const Setting& s : settings) {
            if (s.keys > 500) continue;
            ProductFormats formats{.activation = Quantiser{.format = e2m3}, .gradient = Quantiser{.format = e3m2}};
            formats.activation_scale = {.source = ScaleSource::amax, .blocks = mxfp6_e2m3};
            formats.gradient_scale = {.source = ScaleSource::amax, .blocks = mxfp6_e3m2};
            const auto want = run<float>(attention_recipe({}, scaling), s, attention_of(s)),
                       have = run<float>(attention_recipe(formats, scaling), s, attention_of(s));
            for (std::size_t i = 0; i < want.size(); ++i) {
                const double error = analysis::relative_error(have[i], want[i], 1.0, 1e-2);
                CHECK(error < 0.3);
                CHECK((error > 1e-3 || s.queries == 1));
            }
            CHECK(
                same_bits(run<float>(attention_recipe(formats, scaling), s, attention_of(s), {}, {1, 1, 1}, 3), have));
        }
}

TEST_CASE("attention in formats: recomputed in the backward pass it has equal bits, stochastic and delayed too") {
    ProductFormats formats = fp8({.source = ScaleSource::delayed, .history = 2});
    formats.activation->rounding = formats.gradient->rounding = Rounding::stochastic;
    formats.set(value_gradient_p, OperandRule::in_blocks(nvfp4, Rounding::stochastic));
    const Recipe recipe = attention_recipe(formats);
    const auto results = [&](bool again) {
        ScalingState state(1);
        Tape<float> tape(recipe, state);
        std::vector<std::vector<float>> all;
        for (std::uint64_t step = 0; step < 6; ++step) {  // three steps of two micro-batches
            tape.begin_step({.micro_batches = 2, .micro_batch = step % 2});
            const auto x = tape.input(normal<float>({2, 9, 16}, {1, step / 4}), true);
            const auto layer = [](Variable<float> z) {
                const auto inner = ops::attention(z, z, z, {.heads = 2, .mult = 2.0});
                return ops::attention(inner, z, inner, {.heads = 4, .mult = 2.0});
            };
            const auto y = again ? tape.recompute(x, layer) : layer(x);
            all.push_back(test::elements(y.value()));
            tape.backward(analysis::project(y, normal<float>({2, 9, 16}, {1, 9})));
            all.push_back(test::elements(x.gradient()));
        }
        return all;
    };
    const auto want = results(false);
    CHECK(results(true) == want);
    CHECK(want[0] != want[2]);  // equal inputs in another micro-batch, and in another step
    CHECK(want[0] != want[4]);
}

TEST_CASE("attention in formats: the cache rounds by the same rules") {
    constexpr StepOptions inference{.training = false, .gradients = false};
    const ScaleRule amax{.source = ScaleSource::amax}, constant{.source = ScaleSource::constant, .bias = 2};
    ProductFormats blocks{.activation = Quantiser{.format = e2m1}};
    blocks.activation_scale = {.source = ScaleSource::amax, .blocks = nvfp4};
    for (const Scaling scaling : {Scaling::none, Scaling::unit, Scaling::propagate})
        for (const ProductFormats& formats : {fp8(), fp8(constant), fp8(amax), blocks}) {
            const Recipe recipe = attention_recipe(formats, scaling), plain = attention_recipe({}, scaling);
            ScalingState state(1), plain_state(1);
            Tape<float> tape(recipe, state), plain_tape(plain, plain_state);
            tape.begin_step(inference);
            plain_tape.begin_step(inference);
            const ops::AttentionOptions options{.heads = 4, .groups = 2, .mult = 2.0, .factor_length = 9};
            const auto at = [&](Tape<float>& on, std::size_t width, std::uint64_t stream, double scale) {
                Tensor<float> x = normal<float>({2, 9, width}, {1, stream});
                return on.input(scaling == Scaling::propagate ? set_scaling(std::move(x), scale) : x);
            };
            const auto q = at(tape, 32, 1, 0.25), k = at(tape, 16, 2, 8.0), v = at(tape, 16, 3, 0x1p-6);
            const std::vector<float> exact =
                test::elements(ops::attention(at(plain_tape, 32, 1, 0.25), at(plain_tape, 16, 2, 8.0),
                                              at(plain_tape, 16, 3, 0x1p-6), options)
                                   .value());
            const std::vector<float> whole = test::elements(ops::attention(q, k, v, options).value());
            const auto in_parts = [&](const std::vector<std::size_t>& starts) {
                Tensor<float> keys({2, 2, 12, 8}), values({2, 2, 12, 8});
                std::vector<float> result(whole.size());
                for (std::size_t part = 0; part + 1 < starts.size(); ++part) {
                    const std::size_t begin = starts[part], end = starts[part + 1];
                    const auto rows = [&](const Variable<float>& x) {
                        return ops::slice(x, {0, begin, 0}, {2, end, x.shape()[2]});
                    };
                    const auto y = ops::cached_attention(rows(q), rows(k), rows(v),
                                                         {keys.data(), values.data(), 2, 12, 16, begin}, options);
                    for (std::size_t b = 0; b < 2; ++b)
                        std::copy_n(y.value().data() + b * (end - begin) * 32, (end - begin) * 32,
                                    result.data() + (b * 9 + begin) * 32);
                }
                return result;
            };
            CHECK(in_parts({0, 9}) == whole);
            const auto distance = [&](const std::vector<float>& y) {  // from attention without rounding
                double sum = 0.0;
                for (std::size_t i = 0; i < y.size(); ++i)
                    sum += (static_cast<double>(y[i]) - static_cast<double>(exact[i])) *
                           (static_cast<double>(y[i]) - static_cast<double>(exact[i]));
                return std::sqrt(sum / static_cast<double>(y.size()));
            };
            const bool measures = formats.activation_scale.source == ScaleSource::amax;
            for (const std::vector<std::size_t>& starts :
                 {std::vector<std::size_t>{0, 1, 2, 7, 9}, {0, 5, 6, 7, 8, 9}}) {
                const std::vector<float> parts = in_parts(starts);
                if (!measures) CHECK(parts == whole);
                CHECK(distance(parts) > 0.5 * distance(whole));
                CHECK(distance(parts) < 1.5 * distance(whole));
            }
        }
}

TEST_CASE("attention in formats: a NaN that the format cannot hold is an error") {
    const Recipe recipe = attention_recipe({.activation = Quantiser{.format = e2m1}});
    ScalingState state(1);
    Tape<float> tape(recipe, state);
    tape.begin_step();
    const auto x = tape.input(full<float>({1, 2, 4}, std::numeric_limits<float>::quiet_NaN()));
    CHECK_THROWS_WITH(ops::attention(x, x, x, {}), "matmul: a: e2m1 has no NaN: element [0,0] is NaN");
}
