// SPDX-License-Identifier: MIT
#include <unitscale/analysis/operand_statistics.hpp>

#include "support/op_checks.hpp"

#include <unitscale/formats/int8.hpp>
#include <unitscale/ops/linear.hpp>
#include <unitscale/products/pair_kernels.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <vector>

using namespace unitscale;
using analysis::operand_statistics;
using analysis::OperandStatistics;

namespace {

/// The nearest number of a format without regard to its infinity: v in steps of its binade, half way to the even step.
double nearest(double v, const FloatFormat& format) {
    if (v == 0.0) return 0.0;
    const int exponent = std::max(std::ilogb(v), format.min_exponent());
    const double step = std::ldexp(1.0, exponent - format.mantissa_bits);
    return std::nearbyint(v / step) * step;
}
double bounded(double v, const FloatFormat& format) {
    const double most = static_cast<double>(format.max());
    return std::clamp(nearest(v, format), -most, most);
}

/// Sums over elements x with scale s, each rounded by hand to s times a number of the format.
struct ByHand {
    std::size_t count = 0, saturated = 0, flushed = 0;
    double signal = 0.0, error = 0.0;

    void add(double x, double scale, const FloatFormat& format) {
        const double v = x / scale, q = bounded(v, format) * scale;
        ++count;
        saturated += std::abs(nearest(v, format)) > static_cast<double>(format.max()) ? 1U : 0U;
        flushed += x != 0.0 && q == 0.0 ? 1U : 0U;
        signal += x * x;
        error += (q - x) * (q - x);
    }
    [[nodiscard]] double snr() const { return 10.0 * std::log10(signal / error); }
};

void check_equal(const OperandStatistics& have, const ByHand& want, double epsilon = 1e-12) {
    CHECK(have.count == want.count);
    CHECK(have.saturated == want.saturated);
    CHECK(have.flushed == want.flushed);
    CHECK(have.non_finite == 0);
    CHECK(have.signal == Approx(want.signal).epsilon(epsilon));
    CHECK(have.error == Approx(want.error).epsilon(epsilon));
    CHECK(have.snr() == Approx(want.snr()).epsilon(epsilon));
}

/// Normal numbers with a zero, a very large and some very small ones.
Tensor<float> uneven(const Shape& shape) {
    Tensor<float> x = normal<float>(shape, {3, 1});
    for (std::size_t i = 0; i < x.size(); i += 7) x.data()[i] *= 1e-4f;
    x.data()[1] = 0.0f;
    x.data()[2] = 1000.0f;
    x.data()[x.size() - 1] = -900.0f;
    return x;
}

OperandEvent<float> event(const Tensor<float>& x, const OperandRule& rule) {
    return {.path = "linear", .op = "linear", .rule = rule, .tensor = &x, .columns = x.dim(-1)};
}

}  // namespace

TEST_CASE("operand statistics: one bias, with saturated and flushed elements, against rounding by hand") {
    const Tensor<float> x = uneven({37, 129});
    for (const FloatFormat& format : {e4m3, e5m2, e2m1, int8_grid})
        for (const int bias : {0, 3, -2}) {
            INFO(name(format) << " bias " << bias);
            OperandEvent<float> operand =
                event(x, {Quantiser{.format = format}, {.source = ScaleSource::constant, .bias = bias}});
            operand.quantiser = Quantiser{.format = shifted(format, bias)};
            const OperandStatistics have = operand_statistics(operand);
            ByHand want;
            for (const float value : x.span()) want.add(static_cast<double>(value), std::ldexp(1.0, -bias), format);
            check_equal(have, want);
            CHECK(have.scales == 1);
            CHECK(have.lowest_scale == -bias);
            CHECK(have.highest_scale == -bias);
            CHECK(have.rms() == Approx(std::sqrt(want.signal / static_cast<double>(x.size()))));
        }
    // 1000 and 900 saturate, and small numbers are flushed: the case is not empty.
    OperandEvent<float> operand = event(x, {Quantiser{.format = e4m3}, {}});
    operand.quantiser = Quantiser{.format = e4m3};
    CHECK(operand_statistics(operand).saturated == 2);
    CHECK(operand_statistics(operand).flushed > 600);
}

TEST_CASE("operand statistics: halfway above the largest number decides which elements saturate") {
    const Tensor<float> x({1, 4}, {464.0f, -464.0f, 464.1f, 448.0f});  // 464 is halfway from 448 to 480
    OperandEvent<float> operand = event(x, {Quantiser{.format = e4m3}, {}});
    operand.quantiser = Quantiser{.format = e4m3};
    CHECK(operand_statistics(operand).saturated == 1);
    operand.quantiser->overflow = Overflow::to_infinity;
    const OperandStatistics infinite = operand_statistics(operand);
    CHECK(infinite.saturated == 1);
    CHECK(infinite.non_finite == 1);  // e4m3 has no infinity: the element becomes NaN
    CHECK(std::isnan(infinite.snr()));
    CHECK(infinite.rms() == Approx(std::sqrt((2.0 * 464.0 * 464.0 + 448.0 * 448.0) / 3.0)));
}

TEST_CASE("operand statistics: a bias for each row or column") {
    const Tensor<float> x = uneven({19, 40});
    for (const ScaleGranularity granularity : {ScaleGranularity::row, ScaleGranularity::column})
        for (const int margin : {0, 1}) {
            const bool by_row = granularity == ScaleGranularity::row;
            INFO(name(granularity) << " margin " << margin);
            const OperandStatistics have = operand_statistics(
                event(x, {Quantiser{.format = e4m3},
                          {.source = ScaleSource::amax, .margin = margin, .granularity = granularity}}));
            ByHand want;
            int lowest = 1000, highest = -1000;
            for (std::size_t line = 0; line < (by_row ? 19U : 40U); ++line) {
                const auto at = [&](std::size_t i) { return static_cast<double>(by_row ? x(line, i) : x(i, line)); };
                const std::size_t length = by_row ? 40 : 19;
                double amax = 0.0;
                for (std::size_t i = 0; i < length; ++i) amax = std::max(amax, std::abs(at(i)));
                int bias = 0;  // the largest with amax 2^bias <= 448
                while (std::ldexp(amax, bias + 1) <= 448.0) ++bias;
                while (std::ldexp(amax, bias) > 448.0) --bias;
                bias -= margin;
                lowest = std::min(lowest, -bias);
                highest = std::max(highest, -bias);
                for (std::size_t i = 0; i < length; ++i) want.add(at(i), std::ldexp(1.0, -bias), e4m3);
            }
            check_equal(have, want);
            CHECK(have.scales == (by_row ? 19 : 40));
            CHECK(have.lowest_scale == lowest);
            CHECK(have.highest_scale == highest);
            CHECK(have.scale_exponents.total() == have.scales);
        }
}

TEST_CASE("operand statistics: the scales of a constructed matrix in MXFP8, along columns and along rows") {
    // Four blocks of 32, with largest magnitudes 1, 3, 1000 and 0. floor: scales 2^-8, 2^-7, 2^1 and the least.
    Tensor<float> x({2, 64}), turned({64, 2});
    fill_zero(x);
    for (std::size_t k = 0; k < 32; ++k) {
        x(0, k) = std::ldexp(1.0f, -static_cast<int>(k % 16));
        x(0, 32 + k) = 3.0f - 0.05f * static_cast<float>(k);
        x(1, k) = 0.003f * static_cast<float>(k);
    }
    x(1, 5) = 1000.0f;  // 1000 / 2 exceeds 448: it saturates
    x(1, 6) = 0.0019f;  // 0.0019 / 2 is below half of e4m3's least number, 2^-9
    for (std::size_t i = 0; i < 2; ++i)
        for (std::size_t k = 0; k < 64; ++k) turned(k, i) = x(i, k);
    ByHand want;
    for (std::size_t i = 0; i < 2; ++i)
        for (std::size_t k = 0; k < 64; ++k) {
            const int exponent = i == 1 ? (k < 32 ? 1 : -127) : k < 32 ? -8 : -7;
            want.add(static_cast<double>(x(i, k)), std::ldexp(1.0, exponent), e4m3);
        }
    CHECK(want.saturated == 1);
    CHECK(want.flushed == 1);
    OperandEvent<float> along_rows = event(turned, OperandRule::in_blocks(mxfp8_e4m3));
    along_rows.contracts_rows = true;
    for (const OperandStatistics& have :
         {operand_statistics(event(x, OperandRule::in_blocks(mxfp8_e4m3))), operand_statistics(along_rows)}) {
        check_equal(have, want);
        CHECK(have.scales == 4);
        CHECK(have.lowest_scale == -127);
        CHECK(have.highest_scale == 1);
        for (const int exponent : {-127, -8, -7, 1}) CHECK(have.scale_exponents.at(exponent) == 1);
        CHECK(have.scale_exponents.total() == 4);
    }
}

TEST_CASE("operand statistics: two levels, squares, whole lines, a rotation") {
    const Tensor<float> x = normal<float>({48, 64}, {4, 2});
    const auto at = [&x](std::size_t i, std::size_t k) { return static_cast<double>(x(i, k)); };
    double tensor_amax = 0.0;
    for (const float value : x.span()) tensor_amax = std::max(tensor_amax, std::abs(static_cast<double>(value)));

    // NVFP4 in blocks 16x1 and 16x16: s = e4m3 of b (2688 / A) / 6, elements e2m1 times s A / 2688.
    for (const BlockFormat& format : {nvfp4, nvfp4_square}) {
        INFO(name(format));
        const auto across = static_cast<std::size_t>(format.across);
        ByHand want;
        std::size_t blocks = 0;
        for (std::size_t i0 = 0; i0 < 48; i0 += across)
            for (std::size_t k0 = 0; k0 < 64; k0 += 16, ++blocks) {
                double amax = 0.0;
                for (std::size_t i = i0; i < i0 + across; ++i)
                    for (std::size_t k = k0; k < k0 + 16; ++k) amax = std::max(amax, std::abs(at(i, k)));
                const double scale = bounded(amax * 2688.0 / tensor_amax / 6.0, e4m3) * tensor_amax / 2688.0;
                for (std::size_t i = i0; i < i0 + across; ++i)
                    for (std::size_t k = k0; k < k0 + 16; ++k) want.add(at(i, k), scale, e2m1);
            }
        const OperandStatistics have = operand_statistics(event(x, OperandRule::in_blocks(format)));
        check_equal(have, want, 1e-5);  // scales are formed in float
        CHECK(have.scales == blocks);
        CHECK(have.scale_exponents.total() == blocks);
    }

    // A line under one power of two: the largest with amax / scale <= 448.
    ByHand lines;
    for (std::size_t i = 0; i < 48; ++i) {
        double amax = 0.0;
        for (std::size_t k = 0; k < 64; ++k) amax = std::max(amax, std::abs(at(i, k)));
        int exponent = 20;
        while (amax <= std::ldexp(448.0, exponent - 1)) --exponent;
        for (std::size_t k = 0; k < 64; ++k) lines.add(at(i, k), std::ldexp(1.0, exponent), e4m3);
    }
    check_equal(operand_statistics(event(x, OperandRule::in_blocks(float8_line))), lines, 1e-6);

    // Rotated: runs of 16 times S H / 4, then blocks of 32.
    OperandEvent<float> rotated = event(x, OperandRule::in_blocks(mxfp4));
    rotated.rotation = transformer_engine_rotation;
    ByHand turned;
    for (std::size_t i = 0; i < 48; ++i)
        for (std::size_t k0 = 0; k0 < 64; k0 += 32) {
            std::array<double, 32> y{};
            double amax = 0.0;
            for (std::size_t k = 0; k < 32; ++k) {
                for (std::size_t j = 0; j < 16; ++j) {
                    const bool flipped = (rotated.rotation->signs >> j & 1u) != 0;
                    const bool negative = (std::popcount(j & k % 16) % 2 != 0) != flipped;
                    y[k] += (negative ? -0.25 : 0.25) * at(i, k0 + k / 16 * 16 + j);
                }
                amax = std::max(amax, std::abs(y[k]));
            }
            for (const double value : y) turned.add(value, std::ldexp(1.0, std::ilogb(amax) - 2), e2m1);
        }
    check_equal(operand_statistics(rotated), turned, 1e-5);
    CHECK(operand_statistics(rotated).snr() != operand_statistics(event(x, OperandRule::in_blocks(mxfp4))).snr());
}

TEST_CASE("operand statistics: the numbers are those that the products multiply, in every slot") {
    // The other operand of the product is the identity, so that the product's result is the rounded operand.
    class Watch : public Observer<float> {
    public:
        void observe(const TensorEvent<float>&) override {}
        void observe_operand(const OperandEvent<float>& operand) override {
            slots.push_back(operand.slot);
            one = operand_statistics(operand);
            two = operand_statistics(operand, 2);
        }
        std::vector<OperandSlot> slots{};
        OperandStatistics one{}, two{};
    };
    constexpr std::size_t n = 48;
    Tensor<float> identity({n, n});
    fill_zero(identity);
    for (std::size_t i = 0; i < n; ++i) identity(i, i) = 1.0f;
    const Tensor<float> x = uneven({n, n});

    const Quantiser stochastic{.format = e4m3, .rounding = Rounding::stochastic};
    OperandRule stochastic_nvfp4 = OperandRule::in_blocks(nvfp4, Rounding::stochastic);
    stochastic_nvfp4.element->bits = 8;
    const std::vector<OperandRule> rules = {
        {Quantiser{.format = e4m3}, {}},
        {stochastic, {.source = ScaleSource::amax}},
        {Quantiser{.format = e5m2}, {.source = ScaleSource::delayed}},
        {stochastic, {.source = ScaleSource::amax, .granularity = ScaleGranularity::row}},
        {stochastic, {.source = ScaleSource::amax, .granularity = ScaleGranularity::column}},
        OperandRule::in_blocks(mxfp4),
        OperandRule::in_blocks(nvfp4_square),
        OperandRule::in_blocks(nvfp4, Rounding::stochastic),
        stochastic_nvfp4,
        OperandRule::in_blocks(fp8_tile),
        OperandRule::in_blocks(float8_tensor),
    };
    for (std::size_t rule = 0; rule < rules.size(); ++rule)
        for (std::size_t i = 0; i < linear_slot_count; ++i) {
            const auto slot = static_cast<OperandSlot>(i);
            INFO("rule " << rule << ", " << name(slot));
            ProductFormats formats;
            formats.set(slot, rules[rule]);
            Recipe recipe = analysis::plain_recipe(Scaling::none);
            recipe.products.push_back({.formats = formats});
            ScalingState state(1);
            Tape<float> tape(recipe, state);
            Watch watch;
            tape.set_observer(&watch);
            tape.begin_step();
            const OperandRole role = role_of(slot);
            const auto a = tape.input(role == OperandRole::activation ? x : identity, true),
                       w = tape.input(role == OperandRole::weight ? x : identity, true);
            const auto y = ops::linear(a, w);
            Tensor<float> result = y.value();
            tape.backward(analysis::project(y, role == OperandRole::gradient ? x : identity));
            if (i / 2 == 1) result = a.gradient();
            if (i / 2 == 2) result = w.gradient();
            REQUIRE(watch.slots == std::vector<OperandSlot>{slot});
            ByHand want;
            const bool turned = slot == OperandSlot::forward_w || slot == OperandSlot::weight_gradient_dy;
            for (std::size_t row = 0; row < n; ++row)
                for (std::size_t column = 0; column < n; ++column) {
                    const auto exact = static_cast<double>(x(row, column));
                    const auto rounded = static_cast<double>(turned ? result(column, row) : result(row, column));
                    want.flushed += exact != 0.0 && rounded == 0.0 ? 1U : 0U;
                    want.signal += exact * exact;
                    want.error += (rounded - exact) * (rounded - exact);
                }
            CHECK(want.error > 0.0);
            CHECK(watch.one.count == n * n);
            CHECK(watch.one.flushed == want.flushed);
            CHECK(watch.one.signal == Approx(want.signal).epsilon(1e-12));
            // Instructions for bf16 multiply the short numbers of blocks, and the tensor's factor follows in float.
            const auto& blocks = rules[rule].scale.blocks;
            const bool factor_apart = products::active_pair_kernel() != products::PairKernel::none && blocks &&
                                      (blocks->tensor_scale || *blocks == float8_tensor);
            CHECK(watch.one.error == Approx(want.error).epsilon(factor_apart ? 1e-5 : 1e-12));
            // Equal bits with two threads.
            CHECK(watch.two.error == watch.one.error);
            CHECK(watch.two.signal == watch.one.signal);
            CHECK(watch.two.saturated == watch.one.saturated);
            CHECK(watch.two.scale_exponents.counts == watch.one.scale_exponents.counts);
        }
}

TEST_CASE("operand statistics: blocks end with the matrices of an operand") {
    constexpr std::size_t matrices = 3, rows = 20, columns = 24;
    const Tensor<float> all = uneven({matrices, rows, columns});
    for (const BlockFormat& blocks : {mxfp4, nvfp4_square, fp8_tile, float8_tensor})
        for (const bool contracts_rows : {false, true}) {
            INFO(name(blocks) << ", contracts rows: " << contracts_rows);
            OperandEvent<float> operand{.rule = OperandRule::in_blocks(blocks),
                                        .tensor = &all,
                                        .columns = columns,
                                        .matrices = matrices,
                                        .contracts_rows = contracts_rows};
            const OperandStatistics have = operand_statistics(operand);
            // By hand: every matrix alone, under one scale of the tensor.
            ByHand want;
            std::size_t scales = 0;
            const std::size_t lines = contracts_rows ? columns : rows, length = contracts_rows ? rows : columns;
            BlockOptions options = block_options(blocks, *operand.rule.element, {});
            options.tensor_amax = 0.0f;
            for (const float x : all.span()) options.tensor_amax = std::max(*options.tensor_amax, std::abs(x));
            for (std::size_t matrix = 0; matrix < matrices; ++matrix) {
                std::vector<float> exact(rows * columns), rounded(exact.size());
                for (std::size_t i = 0; i < exact.size(); ++i)
                    exact[i] = contracts_rows ? all(matrix, i % rows, i / rows) : all(matrix, i / columns, i % columns);
                quantise_blocks(blocks, {exact.data(), lines, length, length}, {rounded.data(), lines, length, length},
                                options);
                for (std::size_t i = 0; i < exact.size(); ++i) {
                    const auto x = static_cast<double>(exact[i]), q = static_cast<double>(rounded[i]);
                    want.flushed += x != 0.0 && q == 0.0 ? 1U : 0U;
                    want.signal += x * x;
                    want.error += (q - x) * (q - x);
                }
                const auto parts = [](std::size_t whole, int part) {
                    const auto size = static_cast<std::size_t>(part);
                    return part == whole_dimension ? std::size_t{1} : (whole + size - 1) / size;
                };
                scales += parts(lines, blocks.across) * parts(length, blocks.along);
            }
            CHECK(want.error > 0.0);
            CHECK(have.count == all.size());
            CHECK(have.scales == scales);
            CHECK(have.flushed == want.flushed);
            CHECK(have.signal == Approx(want.signal).epsilon(1e-12));
            CHECK(have.error == Approx(want.error).epsilon(1e-12));
            CHECK(operand_statistics(operand, 2).error == have.error);
        }
}

TEST_CASE("operand statistics: NaN, infinity, zeros and nothing") {
    constexpr float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
    Tensor<float> x = full<float>({2, 32}, 1.5f);
    x(0, 3) = nan;
    x(1, 4) = -inf;
    for (const FloatFormat& format : {e2m1, e5m2}) {  // without and with NaN
        OperandEvent<float> operand = event(x, {Quantiser{.format = format}, {}});
        operand.quantiser = Quantiser{.format = format};
        const OperandStatistics have = operand_statistics(operand);
        CHECK(have.non_finite == 2);
        CHECK(have.saturated == 0);
        CHECK(std::isnan(have.snr()));
        CHECK(have.rms() == 1.5);
        const OperandStatistics rows = operand_statistics(event(
            x, {Quantiser{.format = format}, {.source = ScaleSource::amax, .granularity = ScaleGranularity::row}}));
        CHECK(rows.non_finite == 2);
        CHECK(rows.lowest_scale == 0);  // an amax that is not finite: bias 0
    }
    const OperandStatistics blocks = operand_statistics(event(x, OperandRule::in_blocks(mxfp8_e4m3)));
    CHECK(blocks.non_finite == 64);  // both blocks decode to NaN
    CHECK(std::isnan(blocks.rms()));
    CHECK(blocks.scales == 2);
    CHECK(blocks.scale_exponents.total() == 0);

    const Tensor<float> zero = zeros<float>({2, 32}), none({0, 32});
    for (const Tensor<float>* tensor : {&zero, &none}) {
        const OperandStatistics have = operand_statistics(event(*tensor, OperandRule::in_blocks(mxfp8_e4m3)));
        CHECK(have.count == tensor->size());
        CHECK(have.flushed == 0);
        CHECK(have.snr() == std::numeric_limits<double>::infinity());
        CHECK(have.rms() == 0.0);
    }
    OperandEvent<float> codes = event(zero, {Quantiser{.format = e4m3}, {}});
    codes.tensor = nullptr;
    REQUIRE_THROWS_WITH(operand_statistics(codes),
                        "operand_statistics: linear forward.x has no tensor; the forward pass has shown it");
    OperandEvent<float> wrong = event(zero, {Quantiser{.format = e2m1, .overflow = Overflow::to_infinity}, {}});
    wrong.quantiser = wrong.rule.element;
    REQUIRE_THROWS_WITH(operand_statistics(wrong),
                        "operand_statistics: e2m1 has neither infinity nor NaN; expected Overflow::saturate");
}

TEST_CASE("operand statistics: 16-bit and double tensors, and a tensor's own scale") {
    const Tensor<float> x = normal<float>({8, 64}, {9, 1});
    const Tensor<Half> half = cast<Half>(x);
    Tensor<double> wide = cast<double>(x);
    OperandEvent<Half> small{.rule = {Quantiser{.format = e4m3}, {}}, .tensor = &half, .columns = 64};
    small.quantiser = small.rule.element;
    OperandEvent<double> large{.rule = {Quantiser{.format = e4m3}, {}}, .tensor = &wide, .columns = 64};
    large.quantiser = large.rule.element;
    ByHand of_half, of_wide;
    for (std::size_t i = 0; i < x.size(); ++i) {
        of_half.add(static_cast<double>(half.data()[i]), 1.0, e4m3);
        of_wide.add(static_cast<double>(x.data()[i]), 1.0, e4m3);
    }
    check_equal(operand_statistics(small), of_half);
    check_equal(operand_statistics(large), of_wide);
    wide.set_scale(4.0);  // products round the data
    const OperandStatistics scaled = operand_statistics(large);
    check_equal(scaled, of_wide);
    CHECK(scaled.rms() == Approx(4.0 * std::sqrt(of_wide.signal / static_cast<double>(x.size()))));
}
