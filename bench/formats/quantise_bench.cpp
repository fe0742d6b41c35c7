// SPDX-License-Identifier: MIT
// Bytes per second (read and written) of quantise on 32M floats: every format, rounding and instruction set, beside
// memcpy. stochastic16 and stochastic24 take 16 and 24 random bits.
// `of_memcpy` is the ratio to memcpy's speed, measured alternately: the median of the rounds. Times are processor times
// on one thread, so other programs on the machine disturb both equally and little.
//   bench_formats_quantise --benchmark_filter='avx512/e4m3'
#include <unitscale/base/wait_briefly.hpp>
#include <unitscale/formats/quantise.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

using namespace unitscale;

namespace {

constexpr std::size_t count = std::size_t{1} << 25;

struct Buffers {
    std::vector<float> in;
    std::vector<float> out;

    Buffers() : in(count), out(count) {
        for (std::size_t i = 0; i < count; ++i)
            in[i] = (static_cast<float>(random_word({1, 2}, i)) - 0x1p31f) * 0x1p-30f;
    }
    void copy() { std::memcpy(out.data(), in.data(), count * sizeof(float)); }
};

double seconds_of(auto&& work) {
    const std::clock_t begin = std::clock();
    work();
    benchmark::ClobberMemory();
    return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

void set_bytes(benchmark::State& state) {
    state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) *
                            static_cast<std::int64_t>(2 * count * sizeof(float)));
}

void measure(benchmark::State& state, Buffers& buffers, Isa isa, const FloatFormat& format,
             const QuantiseOptions& options) {
    std::vector<double> ratios;
    for (auto _ : state) {
        const double copy = seconds_of([&] { buffers.copy(); });
        const double rounding = seconds_of([&] { quantise_span(isa, format, buffers.in, buffers.out, options); });
        ratios.push_back(copy / rounding);
        state.SetIterationTime(rounding);
    }
    std::nth_element(ratios.begin(), ratios.begin() + static_cast<std::ptrdiff_t>(ratios.size() / 2), ratios.end());
    state.counters["of_memcpy"] = ratios[ratios.size() / 2];
    set_bytes(state);
}

struct Method {
    const char* name;
    Rounding rounding;
    int bits;
};
constexpr Method methods[] = {{"nearest_even", Rounding::nearest_even, 16},
                              {"toward_zero", Rounding::toward_zero, 16},
                              {"up", Rounding::up, 16},
                              {"down", Rounding::down, 16},
                              {"nearest_away", Rounding::nearest_away, 16},
                              {"stochastic16", Rounding::stochastic, 16},
                              {"stochastic24", Rounding::stochastic, 24}};

}  // namespace

int main(int argc, char** argv) {
    wait_briefly(argv);
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
    Buffers buffers;
    const auto copy = [&](benchmark::State& state) {
        for (auto _ : state) state.SetIterationTime(seconds_of([&] { buffers.copy(); }));
        set_bytes(state);
    };
    benchmark::RegisterBenchmark("memcpy", copy)->UseManualTime()->Unit(benchmark::kMillisecond);
    for (const Isa isa : {Isa::avx512, Isa::avx2, Isa::baseline}) {
        if (isa > active_isa()) continue;
        for (const auto& [known, format] : named_formats)
            for (const auto& [rounding_name, rounding, bits] : methods)
                for (const Overflow overflow : {Overflow::saturate, Overflow::to_infinity}) {
                    if (overflow == Overflow::to_infinity && !format.has_nan()) continue;
                    const QuantiseOptions options{
                        .rounding = rounding, .overflow = overflow, .bits = bits, .key = {3, 4}};
                    const std::string label = concatenate(name(isa), '/', known, '/', rounding_name, '/',
                                                          overflow == Overflow::saturate ? "saturate" : "to_infinity");
                    const auto run = [&buffers, isa, format = format, options](benchmark::State& state) {
                        measure(state, buffers, isa, format, options);
                    };
                    benchmark::RegisterBenchmark(label.c_str(), run)
                        ->UseManualTime()
                        ->Unit(benchmark::kMillisecond)
                        ->Iterations(7);
                }
    }
    benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
}
