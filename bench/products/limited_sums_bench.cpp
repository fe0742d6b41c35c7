// SPDX-License-Identifier: MIT
// GFLOP/s of products with limited sums (2 m n k / time), for each model and instruction set. Operands are e4m3
// numbers, 128 x 1024 times 1024 x 256, packed in every call.
//   naive     GFLOP/s of the definition (`limited_product_naive`)
//   of_naive  ratio to it
//   of_loop   ratio to three scalar loops over i, j and p, written for this model alone
// All contenders are measured in turn, on one thread; figures are medians of the rounds. Times are processor times.
//   bench_products_limited_sums --benchmark_filter='avx512/hopper'
#include "measure.hpp"

#include <unitscale/base/wait_briefly.hpp>
#include <unitscale/products/limited_sums.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <ctime>
#include <string>
#include <vector>

using namespace unitscale;
using bench::median;
using namespace unitscale::products;

namespace {

constexpr std::ptrdiff_t m = 128, n = 256, k = 1024;

struct Matrices {
    std::vector<float> a, b, c;

    Matrices() : a(m * k), b(k * n), c(m * n) {
        for (std::size_t i = 0; i < a.size(); ++i) a[i] = quantise(e4m3, static_cast<float>(random_normal({1, 2}, i)));
        for (std::size_t i = 0; i < b.size(); ++i) b[i] = quantise(e4m3, static_cast<float>(random_normal({1, 3}, i)));
    }
    /// The product's first rows; `format` is the one that operands are said to hold.
    LimitedArguments rows(std::ptrdiff_t count, const FloatFormat& format) {
        return {.m = count,
                .n = n,
                .k = k,
                .a = {a.data(), k, 1},
                .b = {b.data(), n, 1},
                .c = {c.data(), n, 1},
                .format_a = format,
                .format_b = format};
    }
};

/// Rounds to nearest even: to the format's mantissa bits in float's range (`by_word`), or to fp16's normal and
/// subnormal numbers, overflow left out.
template <int mantissa_bits, bool by_word>
float rounded(float x) {
    const auto word = std::bit_cast<std::uint32_t>(x);
    if constexpr (by_word) {
        constexpr int dropped = 23 - mantissa_bits;
        return std::bit_cast<float>((word + ((word >> dropped) & 1u) + ((1u << (dropped - 1)) - 1)) & (~0u << dropped));
    } else {
        const std::uint32_t field = std::max(word & infinity_word, std::uint32_t{113} << 23);
        const auto magic = std::bit_cast<float>(field + (std::uint32_t{23 - mantissa_bits} << 23) + (1u << 22));
        return (x + magic) - magic;
    }
}
template <int mantissa_bits, bool by_word>
void loop(const LimitedArguments& args) {
    for (std::ptrdiff_t i = 0; i < args.m; ++i)
        for (std::ptrdiff_t j = 0; j < args.n; ++j) {
            float sum = 0;
            for (std::ptrdiff_t p = 0; p < args.k; ++p)
                sum = rounded<mantissa_bits, by_word>(sum + *args.a.at(i, p) * *args.b.at(p, j));
            *args.c.at(i, j) = sum;
        }
}

/// Hopper's sums of e4m3 numbers, in float.
void hopper_loop(const LimitedArguments& args) {
    const auto exponent = [](float x) {
        const auto word = std::bit_cast<std::uint32_t>(x) & infinity_word;
        return static_cast<int>(std::max(word >> 23, 121u)) - 127;
    };
    const auto power = [](int e) { return std::bit_cast<float>(static_cast<std::uint32_t>(e + 127) << 23); };
    for (std::ptrdiff_t i = 0; i < args.m; ++i)
        for (std::ptrdiff_t j = 0; j < args.n; ++j) {
            float sum = 0;
            for (std::ptrdiff_t begin = 0; begin < args.k; begin += 32) {
                int top =
                    std::max(static_cast<int>((std::bit_cast<std::uint32_t>(sum) & infinity_word) >> 23) - 127, -60);
                for (std::ptrdiff_t p = begin; p < begin + 32; ++p) {
                    const float a = *args.a.at(i, p), b = *args.b.at(p, j);
                    if (a != 0 && b != 0) top = std::max(top, exponent(a) + exponent(b));
                }
                const float scale = power(13 - top);
                auto terms = static_cast<std::int32_t>(sum * scale);
                for (std::ptrdiff_t p = begin; p < begin + 32; ++p)
                    terms += static_cast<std::int32_t>(*args.a.at(i, p) * *args.b.at(p, j) * scale);
                const auto word = std::bit_cast<std::uint32_t>(static_cast<float>(terms)) & (~0u << 10);
                sum = std::bit_cast<float>(word) * power(top - 13);
            }
            *args.c.at(i, j) = sum;
        }
}

struct Model {
    std::string name;
    Accumulate options;
    FloatFormat operands;
    void (*loop)(const LimitedArguments&);
};

double seconds_of(auto&& work) {
    const std::clock_t begin = std::clock();
    work();
    benchmark::ClobberMemory();
    return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

void measure(benchmark::State& state, Matrices& matrices, Isa isa, const Model& model) {
    constexpr std::ptrdiff_t few = 4, some = 32;
    constexpr double work = 2e-9 * n * k;  // of a row
    std::vector<double> fast, naive, of_naive, of_loop;
    for (auto _ : state) {
        const double own = seconds_of([&] {
            for (int i = 0; i < 3; ++i) limited_product_with(isa, {}, model.options, matrices.rows(m, model.operands));
        });
        const double slow =
            seconds_of([&] { limited_product_naive(model.options, matrices.rows(few, model.operands)); });
        fast.push_back(3 * m * work / own);
        naive.push_back(few * work / slow);
        of_naive.push_back(fast.back() / naive.back());
        if (model.loop != nullptr) {
            const double looped = seconds_of([&] { model.loop(matrices.rows(some, model.operands)); });
            of_loop.push_back(fast.back() / (some * work / looped));
        }
        state.SetIterationTime(own / 3);
    }
    state.counters["GFLOP/s"] = median(fast);
    state.counters["naive"] = median(naive);
    state.counters["of_naive"] = median(of_naive);
    if (!of_loop.empty()) state.counters["of_loop"] = median(of_loop);
}

}  // namespace

int main(int argc, char** argv) {
    wait_briefly(argv);
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
    Matrices matrices;
    const Accumulate saturating{.sums = fp16, .rounding = Rounding::toward_zero, .overflow = Overflow::saturate};
    const std::vector<Model> models{
        {"e8m13 fused", mptorch_sums(e8m13), e4m3, loop<13, true>},
        {"e8m13 fused, wide operands", mptorch_sums(e8m13), fp32, loop<13, true>},
        {"e8m13 fused, promoted every 128", {.sums = e8m13, .run_length = 128}, e4m3, nullptr},
        {"fp16 fused", mptorch_sums(fp16), e4m3, loop<10, false>},
        {"fp16 fused, toward zero, saturating", saturating, e4m3, nullptr},
        {"fp16, products in fp16", mptorch_sums(fp16, fp16), e4m3, nullptr},
        {"bf16 fused", mptorch_sums(bf16), e4m3, loop<7, true>},
        {"bf16 fused, mptorch's CUDA order", mptorch_cuda_sums(bf16), e4m3, nullptr},
        {"hopper", hopper_sums, e4m3, hopper_loop},
        {"hopper promoted", hopper_sums_promoted, e4m3, nullptr},
        {"blackwell", blackwell_sums, e4m3, nullptr},
    };
    for (const Isa isa : {Isa::avx512, Isa::avx2, Isa::baseline}) {
        if (isa > active_isa()) continue;
        for (const Model& model : models)
            benchmark::RegisterBenchmark(
                concatenate(name(isa), '/', model.name).c_str(),
                [&matrices, isa, model](benchmark::State& state) { measure(state, matrices, isa, model); })
                ->UseManualTime()
                ->Unit(benchmark::kMillisecond)
                ->Iterations(7);
    }
    benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
}
