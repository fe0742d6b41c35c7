// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/base/memory.hpp>
#include <unitscale/formats/accumulate.hpp>
#include <unitscale/products/limited_sums.hpp>
#include <unitscale/products/product.hpp>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <type_traits>

namespace unitscale::products {

/// The numbers of an operand in float, as limited sums take them, with the memory that this needs.
template <class T>
class FloatNumbers {
public:
    FloatNumbers(const Execution& execution, const Operand<T>& operand, std::ptrdiff_t rows, std::ptrdiff_t cols,
                 std::ptrdiff_t batch) {
        using P = Accum<T>;
        format_ = operand.codes        ? operand.codes->format
                  : operand.numbers    ? operand.numbers->format
                  : operand.quantiser ? operand.quantiser->format
                                      : fp32;
        if constexpr (std::is_same_v<P, float>) {
            if (operand.numbers && !operand.codes) {
                view_ = operand.numbers->view;
                return;
            }
            if (!operand.codes && operand.quantiser) {
                memory_.emplace(execution, static_cast<std::size_t>(rows * cols * batch));
                view_ = quantise_operand(execution, active_isa(), operand.view, rows, cols, batch, *operand.quantiser,
                                         operand.key, memory_->data());
                return;
            }
        }
        memory_.emplace(execution, static_cast<std::size_t>(rows * cols * batch));
        float* out = memory_->data();
        for (std::ptrdiff_t b = 0; b < batch; ++b)
            for (std::ptrdiff_t i = 0; i < rows; ++i)
                for (std::ptrdiff_t j = 0; j < cols; ++j) *out++ = static_cast<float>(operand_number(operand, b, i, j));
        view_ = {memory_->data(), cols, 1, rows * cols};
    }

    [[nodiscard]] const MatrixView<const float>& view() const noexcept { return view_; }
    [[nodiscard]] const FloatFormat& format() const noexcept { return format_; }

private:
    std::optional<Scratch<float>> memory_{};
    MatrixView<const float> view_{};
    FloatFormat format_ = fp32;
};

/// `matmul` with limited sums: `matmul`'s formula, where each sum over k is formed as `accumulate` says. Factors, bias,
/// alpha and gamma follow in Accum<T>. Doubles are rounded to float first.
/// If both operands have scales of runs, each run of `run_length` numbers is summed without them:
///   total = 0;   for each run r: total = Q(totals, total + s_a[i,r] s_b[r,j] sum of the run)
/// That is how tensor cores promote the sums of tiles: DeepSeek-V3, arXiv:2412.19437, section 3.3.2.
/// Errors: as `limited_product`; a packed B; scales of runs in one operand only, or without a run_length.
/// Test: tests/products/limited_matmul_test.cpp
template <class T>
void matmul_limited(const Execution& execution, const Accumulate& accumulate, const MatmulArguments<T>& args) {
    using P = Accum<T>;
    check(args.b.packed == nullptr, "matmul_limited: b is packed; expected elements, numbers or codes");
    check_accumulate("matmul_limited", accumulate);
    if (args.m <= 0 || args.n <= 0 || args.batch <= 0) return;
    check_operand("matmul_limited: a", args.a, args.m, args.k, args.batch);
    check_operand("matmul_limited: b", args.b, args.k, args.n, args.batch);
    const float *const runs_a = args.a.numbers ? args.a.numbers->run_scales : nullptr,
                *const runs_b = args.b.numbers ? args.b.numbers->run_scales : nullptr;
    check((runs_a == nullptr) == (runs_b == nullptr) && (runs_a == nullptr || accumulate.run_length > 0),
          "matmul_limited: scales of runs need a run_length, and both operands");
    const FloatNumbers<T> a(execution, args.a, args.m, args.k, args.batch),
        b(execution, args.b, args.k, args.n, args.batch);
    const std::ptrdiff_t size = args.m * args.n;
    Scratch<float> sums(execution, static_cast<std::size_t>(size * args.batch));
    LimitedArguments limited{.m = args.m,
                             .n = args.n,
                             .k = args.k,
                             .batch = args.batch,
                             .a = a.view(),
                             .b = b.view(),
                             .c = {sums.data(), args.n, 1, size},
                             .format_a = a.format(),
                             .format_b = b.format()};
    if (runs_a == nullptr) {
        limited_product(execution, accumulate, limited);
    } else {
        check(args.batch == 1, "matmul_limited: scales of runs are those of one product, not of ", args.batch);
        Scratch<float> run(execution, static_cast<std::size_t>(size));
        std::fill_n(sums.data(), size, 0.0f);
        limited.c.data = run.data();
        Accumulate of_run = accumulate;
        of_run.run_length = 0;
        for (std::ptrdiff_t r = 0; r * accumulate.run_length < args.k; ++r) {
            const std::ptrdiff_t first = r * accumulate.run_length;
            limited.k = std::min<std::ptrdiff_t>(accumulate.run_length, args.k - first);
            limited.a = a.view().block(0, first);
            limited.b = b.view().block(first, 0);
            limited_product(execution, of_run, limited);
            for (std::ptrdiff_t i = 0; i < args.m; ++i) {
                const float scale = runs_a[i * args.a.numbers->run_stride + r];
                for (std::ptrdiff_t j = 0; j < args.n; ++j) {
                    // Products of floats are exact in double, so the sum is the only one that is rounded.
                    const float both = scale * runs_b[j * args.b.numbers->run_stride + r];
                    const double scaled = static_cast<double>(both) * static_cast<double>(run.data()[i * args.n + j]);
                    float& total = sums.data()[i * args.n + j];
                    const auto sum = static_cast<float>(static_cast<double>(total) + scaled);
                    total = round_sum(accumulate, accumulate.totals, Rounding::nearest_even, sum);
                }
            }
        }
    }
    const P factor = args.a.factor() * args.b.factor();
    for (std::ptrdiff_t item = 0; item < args.batch; ++item)
        for (std::ptrdiff_t i = 0; i < args.m; ++i)
            for (std::ptrdiff_t j = 0; j < args.n; ++j)
                finish_sum(args, item, i, j, static_cast<P>(sums.data()[item * size + i * args.n + j]) * factor);
}

}  // namespace unitscale::products
