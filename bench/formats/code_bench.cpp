// SPDX-License-Identifier: MIT
// Elements per second of encode (float to 8-bit codes) and decode, for an activation of 2048 x 256 and a tensor beyond
// the caches. Covers byte formats, nearest and stochastic rounding, every instruction set.
// `of_memcpy` is the ratio to the speed of a memcpy of the floats, measured alternately: the median of the rounds.
// Times are processor times on one thread, so other programs on the machine disturb both equally and little.
//   bench_formats_code --benchmark_filter='avx512/e4m3'
#include <unitscale/base/wait_briefly.hpp>
#include <unitscale/formats/code.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <string>
#include <vector>

using namespace unitscale;

namespace {

struct Buffers {
    std::vector<float> in, out;
    std::vector<std::uint8_t> codes;

    explicit Buffers(std::size_t count) : in(count), out(count), codes(count) {
        std::vector<std::uint32_t> words(count);
        random_words(active_isa(), {1, 2}, 0, words);
        for (std::size_t i = 0; i < count; ++i) in[i] = (static_cast<float>(words[i]) - 0x1p31f) * 0x1p-30f;
    }
};

/// Processor seconds of `work`, repeated so often that the clock can measure it.
double seconds_of(std::size_t count, auto&& work) {
    const std::size_t repeats = std::max<std::size_t>(1, (std::size_t{1} << 23) / count);
    const std::clock_t begin = std::clock();
    for (std::size_t i = 0; i < repeats; ++i) {
        work();
        benchmark::ClobberMemory();
    }
    return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC / static_cast<double>(repeats);
}

void measure(benchmark::State& state, Buffers& buffers, auto&& work) {
    const std::size_t count = buffers.in.size();
    std::vector<double> ratios;
    for (auto _ : state) {
        const double copy =
            seconds_of(count, [&] { std::memcpy(buffers.out.data(), buffers.in.data(), count * sizeof(float)); });
        const double coding = seconds_of(count, work);
        ratios.push_back(copy / coding);
        state.SetIterationTime(coding);
    }
    std::nth_element(ratios.begin(), ratios.begin() + static_cast<std::ptrdiff_t>(ratios.size() / 2), ratios.end());
    state.counters["of_memcpy"] = ratios[ratios.size() / 2];
    state.SetItemsProcessed(static_cast<std::int64_t>(state.iterations()) * static_cast<std::int64_t>(count));
}

void add(const std::string& label, auto&& run) {
    benchmark::RegisterBenchmark(label.c_str(), run)->UseManualTime()->Unit(benchmark::kMillisecond)->Iterations(7);
}

}  // namespace

int main(int argc, char** argv) {
    wait_briefly(argv);
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
    Buffers small(std::size_t{2048} * 256), large(std::size_t{1} << 23);
    for (const Isa isa : {Isa::avx512, Isa::avx2, Isa::baseline}) {
        if (isa > active_isa()) continue;
        for (const auto& [known, format] : named_formats) {
            if (format.code_bits() > 8) continue;
            for (Buffers* const buffers : {&small, &large}) {
                const std::string of = concatenate(name(isa), '/', known, buffers == &small ? "/activation" : "/large");
                for (const Rounding rounding : {Rounding::nearest_even, Rounding::stochastic}) {
                    const QuantiseOptions options{.rounding = rounding, .key = {3, 4}};
                    add(concatenate("encode/", of, '/', name(rounding)), [=, format = format](benchmark::State& state) {
                        measure(state, *buffers, [&] {
                            encode_span(isa, format, std::span<const float>(buffers->in), std::span(buffers->codes),
                                        options);
                        });
                    });
                }
                add(concatenate("decode/", of), [=, format = format](benchmark::State& state) {
                    measure(state, *buffers, [&] {
                        decode_span(isa, format, std::span<const std::uint8_t>(buffers->codes),
                                    std::span(buffers->out));
                    });
                });
            }
        }
    }
    benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
}
