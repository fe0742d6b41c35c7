// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/base/parallel.hpp>
#include <unitscale/formats/accumulate.hpp>
#include <unitscale/products/limited_kernels.hpp>
#include <unitscale/products/pack.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>

namespace unitscale::products {

/// A batch of products with limited sums:
///   C[b] = A[b] B[b]      A [m,k]   B [k,n]   C [m,n]
/// Strides are arbitrary; a batch stride of 0 shares an operand (not C). C overlaps no operand. Operands are rounded
/// already: A to `format_a`, B to `format_b`. Aligned sums take the exponents of subnormal factors from these formats.
struct LimitedArguments {
    std::ptrdiff_t m = 0, n = 0, k = 0, batch = 1;
    MatrixView<const float> a{};
    MatrixView<const float> b{};
    MatrixView<float> c{};
    FloatFormat format_a = fp32, format_b = fp32;
};

/// Factors of one sum: number p is at data[p step], and is a number of the format.
struct Factors {
    const float* data = nullptr;
    std::ptrdiff_t step = 1;
    FloatFormat format = fp32;
    [[nodiscard]] float at(std::ptrdiff_t p) const noexcept { return data[p * step]; }
    /// floor of log2 of a magnitude, at least the format's least exponent. -126 for 0.
    [[nodiscard]] static int exponent(double x, int least) noexcept {
        return x == 0 ? -126 : std::max(std::ilogb(x), least);
    }
    [[nodiscard]] int exponent(std::ptrdiff_t p) const noexcept { return exponent(at(p), format.min_exponent()); }
};

/// One aligned step: acc and the products from `begin` to `end`.
[[nodiscard]] inline float aligned_step_naive(const Accumulate& options, float acc, const Factors& a, const Factors& b,
                                              std::ptrdiff_t begin, std::ptrdiff_t end) {
    double plain = acc;
    int top = Factors::exponent(acc, -126);
    for (std::ptrdiff_t p = begin; p < end; ++p) {
        const double product = double{a.at(p)} * double{b.at(p)};
        plain += product;
        if (std::isfinite(product) && product != 0) top = std::max(top, a.exponent(p) + b.exponent(p));
    }
    if (!std::isfinite(plain)) return static_cast<float>(plain);
    double sum = std::trunc(std::ldexp(double{acc}, options.fraction_bits - top));
    for (std::ptrdiff_t p = begin; p < end; ++p)
        sum += std::trunc(std::ldexp(double{a.at(p)} * double{b.at(p)}, options.fraction_bits - top));
    sum = std::ldexp(sum, top - options.fraction_bits);
    const int last = Factors::exponent(sum, -126) - options.sums.mantissa_bits;
    return static_cast<float>(std::ldexp(std::trunc(std::ldexp(sum, -last)), last));
}

/// The definition of a limited sum of k products (`Accumulate`). Tests compare the kernels with it.
[[nodiscard]] inline float limited_sum_naive(const Accumulate& options, const Factors& a, const Factors& b,
                                             std::ptrdiff_t k) {
    const std::ptrdiff_t run = options.run_length == 0 ? k : options.run_length;
    const std::ptrdiff_t step = options.summation == Summation::aligned ? options.group : 1;
    float total = 0;
    for (std::ptrdiff_t begin = 0; begin < k; begin += run) {
        const std::ptrdiff_t end = std::min(begin + run, k);
        float acc = 0;
        for (std::ptrdiff_t p = begin; p < end; p += step) {
            if (options.summation == Summation::aligned) {
                acc = aligned_step_naive(options, acc, a, b, p, std::min(p + step, end));
            } else if (options.fused) {
                acc = round_sum(options, options.sums, options.rounding, std::fma(a.at(p), b.at(p), acc));
            } else {
                const float product = round_sum(options, options.products, options.rounding, a.at(p) * b.at(p));
                acc = round_sum(options, options.sums, options.rounding, acc + product);
            }
        }
        total = options.run_length == 0 ? acc : round_sum(options, options.totals, Rounding::nearest_even, total + acc);
    }
    return is_nan(total) ? std::numeric_limits<float>::quiet_NaN() : total + 0.0f;  // +0 for -0
}
inline void limited_product_naive(const Accumulate& options, const LimitedArguments& args) {
    for (std::ptrdiff_t item = 0; item < args.batch; ++item)
        for (std::ptrdiff_t i = 0; i < args.m; ++i)
            for (std::ptrdiff_t j = 0; j < args.n; ++j)
                *args.c.item(item).at(i, j) =
                    limited_sum_naive(options, {args.a.item(item).at(i, 0), args.a.col_stride, args.format_a},
                                      {args.b.item(item).at(0, j), args.b.row_stride, args.format_b}, args.k);
}

/// Multiply-adds per thread below which another thread costs more than it gains.
inline constexpr std::ptrdiff_t limited_work_threshold = std::ptrdiff_t{1} << 16;
/// Rows of A in a job. Each job packs a panel of B.
inline constexpr std::ptrdiff_t limited_block_rows = 256;

/// A packed panel: some rows of A or columns of B. `powers` (null for sequential sums) is as in `LimitedTile`.
struct LimitedPanel {
    float* values = nullptr;
    float* powers = nullptr;
    bool special = false;  ///< a value is NaN or infinite

    /// Packs `view` [k,width], of which `cols` columns exist, and prepares it. The buffers hold whole vectors.
    void pack(Isa isa, const MatrixView<const float>& view, std::ptrdiff_t k, std::ptrdiff_t cols, std::ptrdiff_t width,
              const FloatFormat& format) {
        widen_block(isa, view, k, cols, width, values, width);
        std::fill(values + k * width, values + round_up(k * width, 16), 0.0f);
        special = limited_kernels(isa).prepare(values, powers, round_up(k * width, 16), format.min_normal());
    }
};

/// `limited_product` with the kernels of one instruction set, which the processor must have: for tests and benchmarks.
inline void limited_product_with(Isa isa, const Execution& execution, const Accumulate& options,
                                 const LimitedArguments& args) {
    check_accumulate("limited_product", options);
    for (const auto* format : {&args.format_a, &args.format_b})
        if (const auto message = problem(*format); !message.empty())
            fail("limited_product: ", format == &args.format_a ? "format_a: " : "format_b: ", message);
    if (args.m <= 0 || args.n <= 0 || args.batch <= 0) return;
    const LimitedKernels kernels = limited_kernels(isa);
    const std::ptrdiff_t k = std::max<std::ptrdiff_t>(args.k, 0), height = limited_rows, width = limited_columns(isa);
    const LimitedConstants constants = limited_constants(options, args.format_a, args.format_b, k);
    const std::ptrdiff_t left_size = round_up(k * height, 16), right_size = round_up(k * width, 16);
    const std::ptrdiff_t groups = (args.m + height - 1) / height, panels = (args.n + width - 1) / width,
                         block = limited_block_rows / height, blocks = (groups + block - 1) / block,
                         jobs = panels * blocks, copies = constants.aligned ? 2 : 1;
    const std::ptrdiff_t work = args.m * args.n * std::max<std::ptrdiff_t>(k, 1);
    const std::ptrdiff_t parts = std::clamp<std::ptrdiff_t>(
        std::min<std::ptrdiff_t>(execution.threads, work / limited_work_threshold), 1, std::max(jobs, groups));
    Scratch<float> scratch(execution, static_cast<std::size_t>(copies * (groups * left_size + parts * right_size)));
    Scratch<LimitedPanel> rows(execution, static_cast<std::size_t>(groups));
    float* const rights = scratch.data() + copies * groups * left_size;

    const auto panel_at = [&](float* data, std::ptrdiff_t index, std::ptrdiff_t size) {
        float* const values = data + copies * index * size;
        return LimitedPanel{values, constants.aligned ? values + size : nullptr};
    };
    const auto run_job = [&](std::ptrdiff_t item, std::ptrdiff_t job, LimitedPanel& right) {
        const std::ptrdiff_t j = job / blocks * width, cols = std::min(width, args.n - j);
        const std::ptrdiff_t begin = job % blocks * block, end = std::min(groups, begin + block);
        const MatrixView<const float> b = args.b.item(item).block(0, j);
        right.pack(isa, b, k, cols, width, args.format_b);
        for (std::ptrdiff_t g = begin; g < end; ++g) {
            const LimitedPanel& left = rows.data()[g];
            const std::ptrdiff_t i = g * height, count = std::min(height, args.m - i);
            const MatrixView<float> c = args.c.item(item).block(i, j);
            if (constants.aligned && (left.special || right.special)) {  // aligned kernels know finite numbers only
                limited_product_naive(options, {.m = count,
                                                .n = cols,
                                                .k = k,
                                                .a = args.a.item(item).block(i, 0),
                                                .b = b,
                                                .c = c,
                                                .format_a = args.format_a,
                                                .format_b = args.format_b});
                continue;
            }
            alignas(64) float sums[limited_rows * 32];
            kernels.tile(constants, {k, left.values, right.values, left.powers, right.powers, sums});
            for (std::ptrdiff_t r = 0; r < count; ++r)
                for (std::ptrdiff_t l = 0; l < cols; ++l) *c.at(r, l) = sums[r * width + l];
        }
    };
    for (std::ptrdiff_t item = 0; item < args.batch; ++item) {
        if (item == 0 || args.a.batch_stride != 0)
            parallel_for(static_cast<int>(parts), groups, 1, [&](std::ptrdiff_t begin, std::ptrdiff_t end) {
                for (std::ptrdiff_t g = begin; g < end; ++g) {
                    rows.data()[g] = panel_at(scratch.data(), g, left_size);
                    rows.data()[g].pack(isa, args.a.item(item).block(g * height, 0).transposed(), k,
                                        std::min(height, args.m - g * height), height, args.format_a);
                }
            });
        parallel_jobs(parts, jobs, [&](std::ptrdiff_t worker, auto next) {
            LimitedPanel right = panel_at(rights, worker, right_size);
            while (const std::optional<std::ptrdiff_t> job = next()) run_job(item, *job, right);
        });
    }
}

/// A matrix product with limited sums. Every step is exact, so bits depend neither on the number of threads nor on the
/// instruction set. Each sum is formed in one thread. NaN is the quiet NaN, and a zero result +0. The processor must
/// round to nearest even and keep subnormals, as it does by default.
///   limited_product({}, hopper_sums_promoted, {.m = m, .n = n, .k = k, .a = {a, k}, .b = {b, n}, .c = {c, n},
///                                              .format_a = e4m3, .format_b = e4m3});
/// Errors: `limited_product: accumulate.<field> (<value>) ...` for options that make no sense; an invalid format.
/// Test: tests/products/limited_sums_test.cpp
inline void limited_product(const Execution& execution, const Accumulate& options, const LimitedArguments& args) {
    limited_product_with(active_isa(), execution, options, args);
}

}  // namespace unitscale::products
