// SPDX-License-Identifier: MIT
// The cost of tracking. `statistics/...`: bytes read per second by tensor_statistics, per instruction set. One tensor
// stays in the second-level cache (1 MiB), another does not (64 MiB). `step/...`: a training step of the default model
// of train_transformer. It runs without a tracker, with a tracker of every tensor in every step, and with a tracker
// that only watches for values that are not finite. `overhead` is the median of the time relative to a step without a
// tracker; steps with and without a tracker alternate.
//   OMP_NUM_THREADS=1 bench_analysis_statistics
#include <unitscale/analysis/statistics.hpp>
#include <unitscale/analysis/tracker.hpp>
#include <unitscale/base/wait_briefly.hpp>
#include <unitscale/nn/decoder.hpp>
#include <unitscale/nn/initialise.hpp>
#include <unitscale/ops/softmax_cross_entropy.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/tensor/fill.hpp>

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

using namespace unitscale;

namespace {

double seconds_of(auto&& work) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    benchmark::ClobberMemory();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void measure_statistics(benchmark::State& state, Isa isa, std::size_t count,
                        const analysis::StatisticsOptions& options) {
    Tensor<float> tensor({count});
    fill_normal(tensor, {1, 2});
    for (auto _ : state) benchmark::DoNotOptimize(analysis::tensor_statistics(isa, tensor, options));
    state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) *
                            static_cast<std::int64_t>(count * sizeof(float)));
}

/// Forward and backward of 16 sequences of 128 tokens.
struct Model {
    Recipe recipe;
    nn::Decoder<float> decoder{{.vocabulary = 100, .width = 128, .depth = 4, .heads = 2, .length = 128}};
    ScalingState state{1};
    Tape<float> tape{recipe, state};
    Tensor<std::int32_t> ids{Shape{16, 128}};

    explicit Model(const std::string& name) : recipe(find_recipe(name)) {
        nn::initialise(decoder.parameters(), recipe, 1);
        for (std::size_t i = 0; i < ids.size(); ++i)
            ids.data()[i] = static_cast<std::int32_t>(random_word({7, 1}, i) % 100);
    }
    void step(Observer<float>* observer) {
        tape.set_observer(observer);
        for (Parameter<float>* parameter : decoder.parameters()) parameter->clear_gradient();
        tape.begin_step();
        tape.backward(ops::softmax_cross_entropy(decoder(tape, ids), ids));
    }
};

void measure_step(benchmark::State& state, const std::string& recipe, const analysis::TrackerOptions& options) {
    Model model(recipe);
    analysis::Tracker<float> tracker(options);
    model.step(nullptr);
    model.step(&tracker);
    std::vector<double> overheads;
    for (auto _ : state) {
        const double without = seconds_of([&] { model.step(nullptr); });
        const double with = seconds_of([&] { model.step(&tracker); });
        overheads.push_back(with / without - 1.0);
        state.SetIterationTime(with);
    }
    std::nth_element(overheads.begin(), overheads.begin() + static_cast<std::ptrdiff_t>(overheads.size() / 2),
                     overheads.end());
    state.counters["overhead"] = overheads[overheads.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
    wait_briefly(argv);
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
    for (const Isa isa : {Isa::avx512, Isa::avx2, Isa::baseline}) {
        if (isa > active_isa()) continue;
        for (const std::size_t count : {std::size_t{1} << 18, std::size_t{1} << 24})
            for (const std::size_t sample : {std::size_t{1}, std::size_t{8}}) {
                const std::string label =
                    concatenate("statistics/", name(isa), '/', count * sizeof(float) >> 20, "MiB/sample:", sample);
                benchmark::RegisterBenchmark(label.c_str(), [=](benchmark::State& state) {
                    measure_statistics(state, isa, count, {.format = e4m3, .sample = sample});
                });
            }
    }
    const analysis::TrackerOptions every{.every = 1, .value_format = e4m3, .gradient_format = e5m2};
    const analysis::TrackerOptions watch{.every = 1'000'000'000};
    for (const char* recipe : {"fp32", "unit-fp8"})
        for (const auto& [what, options] : {std::pair{"every_tensor", every}, std::pair{"watch_only", watch}})
            benchmark::RegisterBenchmark(
                concatenate("step/", recipe, '/', what).c_str(),
                [recipe, options = options](benchmark::State& state) { measure_step(state, recipe, options); })
                ->UseManualTime()
                ->Unit(benchmark::kMillisecond)
                ->Iterations(21);
    benchmark::RunSpecifiedBenchmarks();
    benchmark::Shutdown();
}
