// SPDX-License-Identifier: MIT
// Bytes per second (read and written) of quantise on 32M floats: every format, rounding and instruction set, beside memcpy.
// `of_memcpy` is the ratio to memcpy's speed, measured in turn with it: the median of the rounds, so that a busy machine
// disturbs both alike.
//   bench_formats_quantise --benchmark_filter='avx512/e4m3'
#include <unitscale/formats/quantise.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <vector>

using namespace unitscale;

namespace {

constexpr std::size_t count = std::size_t{1} << 25;

struct Buffers {
    std::vector<float> in;
    std::vector<float> out;

    Buffers() : in(count), out(count) {
        for (std::size_t i = 0; i < count; ++i) in[i] = (static_cast<float>(random_word({1, 2}, i)) - 0x1p31f) * 0x1p-30f;
    }
};

double seconds_of(auto&& work) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    benchmark::ClobberMemory();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void measure(benchmark::State& state, Buffers& buffers, Isa isa, const FloatFormat& format, const QuantiseOptions& options) {
    std::vector<double> ratios;
    for (auto _ : state) {
        const double copy = seconds_of([&] { std::memcpy(buffers.out.data(), buffers.in.data(), count * sizeof(float)); });
        const double rounding = seconds_of([&] { quantise_span(isa, format, buffers.in, buffers.out, options); });
        ratios.push_back(copy / rounding);
        state.SetIterationTime(rounding);
    }
    std::nth_element(ratios.begin(), ratios.begin() + static_cast<std::ptrdiff_t>(ratios.size() / 2), ratios.end());
    state.counters["of_memcpy"] = ratios[ratios.size() / 2];
    state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) * static_cast<std::int64_t>(2 * count * sizeof(float)));
}

}  // namespace

int main(int argc, char** argv) {
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
    Buffers buffers;
    benchmark::RegisterBenchmark("memcpy",
                                 [&](benchmark::State& state) {
                                     for (auto _ : state)
                                         state.SetIterationTime(seconds_of(
                                             [&] { std::memcpy(buffers.out.data(), buffers.in.data(), count * sizeof(float)); }));
                                     state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) *
                                                             static_cast<std::int64_t>(2 * count * sizeof(float)));
                                 })
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
    for (const Isa isa : {Isa::avx512, Isa::avx2, Isa::baseline}) {
        if (isa > active_isa()) continue;
        for (const auto& [known, format] : named_formats)
            for (const Rounding rounding : {Rounding::nearest_even, Rounding::toward_zero, Rounding::up, Rounding::down,
                                            Rounding::nearest_away, Rounding::stochastic})
                for (const Overflow overflow : {Overflow::saturate, Overflow::to_infinity}) {
                    if (overflow == Overflow::to_infinity && !format.has_nan()) continue;
                    const QuantiseOptions options{.rounding = rounding, .overflow = overflow, .key = {3, 4}};
                    const std::string label = concatenate(name(isa), '/', known, '/', name(rounding), '/',
                                                          overflow == Overflow::saturate ? "saturate" : "to_infinity");
                    benchmark::RegisterBenchmark(label.c_str(),
                                                 [&buffers, isa, format = format, options](benchmark::State& state) {
                                                     measure(state, buffers, isa, format, options);
                                                 })
                        ->UseManualTime()
                        ->Unit(benchmark::kMillisecond)
                        ->Iterations(7);
                }
    }
    benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
}
