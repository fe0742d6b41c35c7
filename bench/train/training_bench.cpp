// SPDX-License-Identifier: MIT
// One training step of a transformer, measured: time, memory, allocations, and time by op. Each process measures one
// configuration, because peak memory belongs to a process: bench/training.sh runs a table of them.
#include <unitscale/autograd/observer.hpp>
#include <unitscale/base/crc32.hpp>
#include <unitscale/base/parallel.hpp>
#include <unitscale/base/wait_briefly.hpp>
#include <unitscale/io/atomic_file.hpp>
#include <unitscale/io/json_recipe.hpp>
#include <unitscale/nn/decoder.hpp>
#include <unitscale/nn/initialise.hpp>
#include <unitscale/optim/adam.hpp>
#include <unitscale/train/batches.hpp>
#include <unitscale/train/element.hpp>
#include <unitscale/train/step.hpp>

#include "experiments/resources.hpp"
#include "measure.hpp"
#include "support/allocation_count.hpp"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <deque>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <pthread.h>

using namespace unitscale;
using namespace unitscale::bench;

namespace {

/// Processor times of the threads of parallel regions. With OMP_WAIT_POLICY=passive threads that wait sleep, so these
/// are times of work. Otherwise they contain the first 30 microseconds of each wait (wait_briefly).
class ThreadClocks {
public:
    explicit ThreadClocks(int threads) : clocks_(static_cast<std::size_t>(threads)) {
        parallel_jobs(threads, threads, [this](std::ptrdiff_t worker, auto) {
            pthread_getcpuclockid(pthread_self(), &clocks_[static_cast<std::size_t>(worker)]);
        });
    }
    [[nodiscard]] std::vector<double> seconds() const {
        std::vector<double> all;
        for (const clockid_t clock : clocks_) {
            std::timespec time{};
            clock_gettime(clock, &time);
            all.push_back(static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec));
        }
        return all;
    }

private:
    std::vector<clockid_t> clocks_;
};

/// A pass of one op: its time, and the time that each thread worked in it.
struct OpSpan {
    std::string op{};
    bool forward = true;
    double begin = 0, seconds = 0;
    std::vector<double> work{};
};

/// Cuts a step's time into passes of ops: the time between two events belongs to the op between them. An op's value is
/// seen at the end of its forward pass, its gradient at the start of its backward pass. The update after the backward
/// pass belongs to no op.
template <class T>
class OpClock : public Observer<T> {
public:
    explicit OpClock(int threads) : clocks_(threads) {}
    void begin_step(const ObservedStep&) override { finish(), start(); }
    void observe(const TensorEvent<T>& event) override {
        if (event.op == "parameter") {
            if (event.pass == Pass::gradient) finish();  // seen when the whole backward pass is done
            return;
        }
        if (event.pass == Pass::gradient) finish(), running_ = event.op;
        else add(std::string(event.op), true);
    }
    /// Ends the backward pass in progress.
    void finish() {
        if (!running_.empty()) add(running_, false);
        running_.clear();
    }
    void clear() { spans_.clear(), begin_ = Clock::now(), start(); }
    [[nodiscard]] const std::vector<OpSpan>& spans() const noexcept { return spans_; }

private:
    void start() { last_ = Clock::now(), worked_ = clocks_.seconds(); }
    void add(std::string op, bool forward) {
        const std::vector<double> before = worked_;
        const Clock::time_point from = last_;
        start();
        OpSpan span{std::move(op), forward, std::chrono::duration<double>(from - begin_).count(),
                    std::chrono::duration<double>(last_ - from).count(), worked_};
        for (std::size_t i = 0; i < before.size(); ++i) span.work[i] -= before[i];
        spans_.push_back(std::move(span));
    }
    ThreadClocks clocks_;
    Clock::time_point begin_ = Clock::now(), last_ = begin_;
    std::vector<double> worked_{};
    std::string running_{};
    std::vector<OpSpan> spans_{};
};

/// Writes the spans in the format of Chrome's traces (chrome://tracing, Perfetto): a row for each thread. A box is as
/// long as the thread's work in the op, and stands where the op begins.
void write_timeline(const std::string& path, const std::vector<OpSpan>& spans) {
    nlohmann::ordered_json events = nlohmann::ordered_json::array();
    for (const OpSpan& span : spans)
        for (std::size_t thread = 0; thread < span.work.size(); ++thread)
            if (span.work[thread] > 0)
                events.push_back({{"name", span.op},
                                  {"cat", span.forward ? "forward" : "backward"},
                                  {"ph", "X"},
                                  {"ts", 1e6 * span.begin},
                                  {"dur", 1e6 * span.work[thread]},
                                  {"pid", 1},
                                  {"tid", thread},
                                  {"args", {{"wall_us", 1e6 * span.seconds}}}});
    io::write_atomically("--timeline", path, nlohmann::ordered_json{{"traceEvents", events}}.dump());
}

struct Options {
    std::string recipe = "unit-fp8", timeline{};
    nn::DecoderConfig config{.vocabulary = 256, .width = 256, .depth = 4, .heads = 4, .length = 256};
    std::size_t batch = 8, steps = 10, warmup = 3;
    int threads = 1, against = 0;  ///< against: threads of the steps in turn; 0: no such steps
    bool json = false, plain = false;
};

/// Trains in T, the recipe's element type, and prints what it measured.
template <class T>
void run(const Options& options, const Recipe& recipe) {
    const auto& [recipe_name, timeline, config, batch, steps, warmup, threads, against, json, plain] = options;
    const double empty_megabytes = experiments::peak_resident_megabytes();
    nn::Decoder<T> model(config);
    nn::initialise(model.parameters(), recipe, 1);
    ScalingState state(1);
    std::deque<Tape<T>> tapes;  // one for each number of threads; they train the same model in turn
    tapes.emplace_back(recipe, state, threads);
    if (against > 0) tapes.emplace_back(recipe, state, against);
    optim::Adam<T> optimiser(model.parameters(), recipe,
                             {.beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.01, .decay = optim::WeightDecay::coupled});
    std::vector<train::Batch> batches = {train::make_batch(batch, config.length)};
    for (auto* ids : {&batches[0].ids, &batches[0].labels})
        for (std::size_t i = 0; i < ids->size(); ++i)
            ids->data()[i] = static_cast<std::int32_t>(random_word({1, 2}, i) % config.vocabulary);
    const auto step_on = [&](Tape<T>& used) {
        static_cast<void>(train::train_step<T>(model, used, optimiser, batches, 1e-3));
    };

    for (std::size_t i = 0; i < warmup; ++i)
        for (Tape<T>& tape : tapes) step_on(tape);
    std::vector<std::vector<double>> times(tapes.size());
    std::size_t allocations = 0;
    for (std::size_t i = 0; i < steps; ++i)
        for (std::size_t j = 0; j < tapes.size(); ++j) {
            const std::size_t side = (i + j) % tapes.size();
            const auto start = Clock::now();
            test::AllocationCount count;
            step_on(tapes[side]);
            allocations = std::max(allocations, count.stop());
            times[side].push_back(seconds_since(start));
        }
    const double megabytes = experiments::peak_resident_megabytes(), seconds = median(times[0]);
    std::uint32_t crc = 0;  // equal for builds and numbers of threads that train with the same bits
    for (const Parameter<T>* const parameter : model.parameters())
        crc = crc32(std::as_bytes(parameter->value().span()), crc);

    OpClock<T> op_clock(threads);
    tapes[0].set_observer(&op_clock);
    if (!plain) step_on(tapes[0]);
    op_clock.clear();
    double observed = 0.0;
    for (std::size_t i = 0; i < 3 && !plain; ++i) {
        const auto start = Clock::now();
        step_on(tapes[0]);
        observed += seconds_since(start);
    }
    if (!timeline.empty()) write_timeline(timeline, op_clock.spans());
    struct Share {
        double forward = 0, backward = 0, work = 0;  ///< of the step's time; work: of all threads
    };
    std::map<std::string, Share> shares;
    double in_ops = 0.0;
    for (const OpSpan& span : op_clock.spans()) {
        Share& share = shares[span.op];
        (span.forward ? share.forward : share.backward) += span.seconds / observed;
        for (const double work : span.work) share.work += work / observed;
        in_ops += span.seconds;
    }

    const double tokens = static_cast<double>(batch * config.length);
    const bool counts = test::can_count_allocations() && tapes.size() == 1;  // a change of the tape allocates
    nlohmann::ordered_json result = {{"recipe", recipe_name},
                                     {"width", config.width},
                                     {"depth", config.depth},
                                     {"heads", config.heads},
                                     {"seq", config.length},
                                     {"batch", batch},
                                     {"threads", threads},
                                     {"recompute", config.recompute},
                                     {"parameters", model.parameter_count()},
                                     {"weights_crc32", crc},
                                     {"step_seconds", seconds},
                                     {"tokens_per_s", tokens / seconds},
                                     {"peak_megabytes", megabytes},
                                     {"above_empty_megabytes", megabytes - empty_megabytes},
                                     {"allocations", counts ? nlohmann::ordered_json(allocations) : nullptr}};
    if (against > 0) {
        std::vector<double> ratios;
        for (std::size_t i = 0; i < steps; ++i) ratios.push_back(times[1][i] / times[0][i]);
        std::sort(ratios.begin(), ratios.end());
        result["against"] = {{"threads", against},
                             {"step_seconds", median(times[1])},
                             {"times_as_fast", median(ratios)},
                             {"quartiles", {ratios[steps / 4], ratios[steps * 3 / 4]}},
                             {"fastest_steps", std::ranges::min(times[1]) / std::ranges::min(times[0])}};
    }
    for (const auto& [op, share] : shares)  // none if plain
        result["ops"][op] = {{"forward", share.forward},
                             {"backward", share.backward},
                             {"threads", share.work / (share.forward + share.backward)}};
    if (!plain) result["ops"]["optimiser and the rest"] = {{"share", 1.0 - in_ops / observed}};
    if (json) {
        std::printf("%s\n", result.dump().c_str());
        return;
    }
    std::printf(
        "%s width %zu depth %zu heads %zu, %zu x %zu tokens, %d thread%s: %.1f ms a step, %.0f tokens/s, peak %.0f "
        "MB, %.0f MB above the empty process",
        recipe_name.c_str(), config.width, config.depth, config.heads, batch, config.length, threads,
        threads == 1 ? "" : "s", 1e3 * seconds, tokens / seconds, megabytes, megabytes - empty_megabytes);
    if (counts) std::printf(", %zu allocations", allocations);
    std::printf("\n");
    if (against > 0) {
        const auto& found = result["against"];
        std::printf("%.2f times as fast as with %d thread%s (quartiles %.2f and %.2f; the fastest steps %.2f)\n",
                    found["times_as_fast"].get<double>(), against, against == 1 ? "" : "s",
                    found["quartiles"][0].get<double>(), found["quartiles"][1].get<double>(),
                    found["fastest_steps"].get<double>());
    }
    if (plain) return;
    std::vector<std::pair<std::string, Share>> rows(shares.begin(), shares.end());
    std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
        return a.second.forward + a.second.backward > b.second.forward + b.second.backward;
    });
    std::printf("%-24s %8s %8s %8s\n", "share of time", "forward", "backward", "threads");
    for (const auto& [op, share] : rows)
        std::printf("%-24s %7.1f%% %7.1f%% %8.2f\n", op.c_str(), 100 * share.forward, 100 * share.backward,
                    share.work / (share.forward + share.backward));
    std::printf("%-24s %7.1f%%\n", "optimiser and the rest", 100 * (1.0 - in_ops / observed));
}

}  // namespace

int main(int argc, char** argv) {
    wait_briefly(argv);
    Options options;
    auto& [recipe_name, timeline, config, batch, steps, warmup, threads, against, json, plain] = options;
    CLI::App app("Measures training steps of a transformer: time, memory, allocations, share of time by op.");
    app.add_option("--recipe", recipe_name, "a name of train_transformer --list-recipes, or a JSON file")
        ->capture_default_str();
    app.add_option("--width", config.width, "width of the residual stream")->capture_default_str();
    app.add_option("--depth", config.depth, "transformer blocks")->capture_default_str();
    app.add_option("--heads", config.heads, "attention heads")->capture_default_str();
    app.add_option("--seq", config.length, "tokens in a sequence")->capture_default_str();
    app.add_option("--batch", batch, "sequences in a step")->capture_default_str();
    app.add_option("--steps", steps, "measured steps")->capture_default_str()->check(CLI::PositiveNumber);
    app.add_option("--warmup", warmup, "steps before the measured ones")->capture_default_str();
    app.add_option("--threads", threads, "threads")->capture_default_str()->check(CLI::PositiveNumber);
    app.add_option("--against", against, "also steps with so many threads, in turn; peak memory is of both")
        ->check(CLI::PositiveNumber);
    app.add_flag("--recompute", config.recompute, "blocks keep their input only and run again in the backward pass");
    app.add_flag("--json", json, "one JSON object instead of text");
    auto* const no_ops = app.add_flag("--plain", plain, "no share of time by op, which takes four more steps");
    app.add_option("--timeline", timeline, "write the ops of three steps, by thread, to this file as a Chrome trace")
        ->excludes(no_ops);
    CLI11_PARSE(app, argc, argv);

    try {
        if (!timeline.empty()) io::check_writable("--timeline", timeline);
        const Recipe recipe = io::load_recipe(recipe_name);
        train::with_element(recipe, [&]<class T>(std::type_identity<T>) { run<T>(options, recipe); });
    } catch (const Error& error) {
        std::fprintf(stderr, "training_bench: %s\n", error.what());
        return 2;
    }
    return 0;
}
