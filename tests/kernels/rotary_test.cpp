// SPDX-License-Identifier: MIT
#include <unitscale/kernels/rotary.hpp>

#include "kernels/kernel_checks.hpp"

#include <cmath>
#include <cstddef>
#include <numbers>
#include <vector>

using namespace unitscale;
using namespace unitscale::kernels;

namespace {

HeadStrides contiguous(const RotarySizes& sizes) {
    return {sizes.time * sizes.heads * sizes.width, sizes.heads * sizes.width, sizes.width};
}

/// The angle per position, by the wavelengths of the formula.
double frequency(const RotarySizes& s, std::ptrdiff_t i) {
    const double f = std::pow(s.base, -2.0 * static_cast<double>(i) / static_cast<double>(s.width));
    const RotaryScaling& scaling = s.scaling;
    if (scaling.kind == RotaryScalingKind::none) return f;
    if (scaling.kind == RotaryScalingKind::linear) return f / scaling.factor;
    const double wavelength = 2.0 * std::numbers::pi / f, length = scaling.original_length;
    if (wavelength < length / scaling.high_frequency_factor) return f;
    if (wavelength > length / scaling.low_frequency_factor) return f / scaling.factor;
    const double share = (length / wavelength - scaling.low_frequency_factor) /
                         (scaling.high_frequency_factor - scaling.low_frequency_factor);
    return (1.0 - share) * f / scaling.factor + share * f;
}

/// The rotation in double of a contiguous [B, T, H, d] array.
Doubles reference(const Doubles& x, const RotarySizes& s, double sign, double factor) {
    Doubles y(x.size());
    const std::ptrdiff_t half = s.width / 2;
    for (std::ptrdiff_t row = 0; row < s.batch * s.time * s.heads; ++row)
        for (std::ptrdiff_t i = 0; i < half; ++i) {
            const auto position = static_cast<double>(s.first_position + row / s.heads % s.time);
            const double angle = sign * position * frequency(s, i);
            const auto a = static_cast<std::size_t>(row * s.width + i), b = a + static_cast<std::size_t>(half);
            y[a] = factor * (x[a] * std::cos(angle) - x[b] * std::sin(angle));
            y[b] = factor * (x[b] * std::cos(angle) + x[a] * std::sin(angle));
        }
    return y;
}

std::size_t count(const RotarySizes& s) { return static_cast<std::size_t>(s.batch * s.time * s.heads * s.width); }

}  // namespace

TEST_CASE("rotary embedding agrees with its formula in every element type", "[kernels]") {
    const auto run = [](auto zero, const RotarySizes& sizes, double tolerance) {
        using T = decltype(zero);
        const auto x = normal_data<T>(count(sizes), 1);
        std::vector<T> y(x.size());
        rotary_forward(Execution{}, x.data(), contiguous(sizes), y.data(), contiguous(sizes), sizes, Accum<T>(1.5));
        CHECK(largest_error(y, reference(doubles(x), sizes, 1.0, 1.5)) < tolerance);
        rotary_backward(Execution{}, x.data(), contiguous(sizes), y.data(), contiguous(sizes), sizes, Accum<T>(0.5));
        CHECK(largest_error(y, reference(doubles(x), sizes, -1.0, 0.5)) < tolerance);
    };
    run(0.0, {2, 150, 3, 10}, 1e-12);
    run(0.0, {1, 70, 1, 4, 1000, 500.0}, 1e-11);
    run(0.0, {1, 3, 1, 150, 62}, 1e-12);
    run(0.0f, {2, 130, 2, 64}, 1e-6);
    run(Half(0), {1, 9, 2, 8}, 1e-3);
    run(BFloat16(0), {1, 9, 2, 8}, 8e-3);
    run(0.0f, {0, 5, 2, 8}, 1e-6);
    run(0.0, {1, 150, 2, 16, 40, 10000.0, {RotaryScalingKind::linear, 4.0}}, 1e-12);
    run(0.0, {1, 150, 2, 16, 40, 10000.0, {RotaryScalingKind::llama3, 8.0, 1.0, 4.0, 256.0}}, 1e-12);
}

TEST_CASE("rotary scaling slows low frequencies, keeps high ones, and is smooth in between", "[kernels]") {
    RotarySizes sizes{1, 1, 1, 64, 0, 500000.0, {RotaryScalingKind::llama3, 8.0, 1.0, 4.0, 8192.0}};
    std::vector<std::ptrdiff_t> kinds(3);
    double before = 2.0;
    for (std::ptrdiff_t i = 0; i < 32; ++i) {
        const double f = rotary_frequency(sizes, i), plain = std::pow(500000.0, -static_cast<double>(i) / 32.0);
        CHECK(f == Approx(frequency(sizes, i)).epsilon(1e-14));
        CHECK(f < before);
        before = f;
        ++kinds[f == plain ? 0 : f == plain / 8.0 ? 1 : 2];
    }
    // 4 and 1 turns in 8192 positions: the pairs 14 and 17.
    CHECK(kinds == std::vector<std::ptrdiff_t>{15, 14, 3});
    sizes.scaling.kind = RotaryScalingKind::linear;
    CHECK(rotary_frequency(sizes, 0) == 0.125);
}

TEST_CASE("rotary backward is the transpose of forward", "[kernels]") {
    const RotarySizes sizes{1, 5, 2, 6};
    const auto x = normal_data<double>(count(sizes), 1), dy = normal_data<double>(count(sizes), 2);
    std::vector<double> dx(x.size());
    rotary_backward(Execution{}, dy.data(), contiguous(sizes), dx.data(), contiguous(sizes), sizes, 1.0);
    const auto numeric = numeric_gradient(
        [&](const Doubles& v) {
            std::vector<double> y(v.size());
            rotary_forward(Execution{}, v.data(), contiguous(sizes), y.data(), contiguous(sizes), sizes, 1.0);
            return dot(y, dy);
        },
        x);
    CHECK(largest_error(dx, numeric) < 1e-8);
}

TEST_CASE("rotary follows strides inside a joint q, k, v array and leaves the rest alone", "[kernels]") {
    const RotarySizes sizes{2, 3, 2, 4};
    const HeadStrides joint{3 * 3 * 8, 3 * 8, 4};  // k of [B, T, 3, H, d]
    const auto qkv = normal_data<float>(3 * count(sizes), 1);
    std::vector<float> k(count(sizes)), expected(k.size()), out = qkv;
    for (std::size_t row = 0; row < 6; ++row)
        for (std::size_t j = 0; j < 8; ++j) k[row * 8 + j] = qkv[row * 24 + 8 + j];
    rotary_forward(Execution{}, k.data(), contiguous(sizes), expected.data(), contiguous(sizes), sizes, 1.0f);
    rotary_forward(Execution{}, out.data() + 8, joint, out.data() + 8, joint, sizes, 1.0f);
    for (std::size_t row = 0; row < 6; ++row)
        for (std::size_t j = 0; j < 24; ++j)
            CHECK(out[row * 24 + j] == (j / 8 == 1 ? expected[row * 8 + j - 8] : qkv[row * 24 + j]));
}

TEST_CASE("a rotary entry depends on its position alone, and not on the thread count", "[kernels]") {
    const RotarySizes whole{1, 200, 4, 64}, last{1, 1, 4, 64, 199};
    const auto x = normal_data<float>(count(whole), 1);
    std::vector<float> y(x.size()), one(count(last));
    rotary_forward(Execution{}, x.data(), contiguous(whole), y.data(), contiguous(whole), whole, 1.0f);
    rotary_forward(Execution{}, x.data() + 199 * 256, contiguous(last), one.data(), contiguous(last), last, 1.0f);
    CHECK(std::memcmp(one.data(), y.data() + 199 * 256, one.size() * sizeof(float)) == 0);
    CHECK(threads_agree([&](const Execution& execution) {
        std::vector<float> out(x.size());
        rotary_forward(execution, x.data(), contiguous(whole), out.data(), contiguous(whole), whole, 1.0f);
        return out;
    }));
}
