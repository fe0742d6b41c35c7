// SPDX-License-Identifier: MIT
// One training step of a transformer, measured: time, memory, allocations, and time by op. Each process measures one
// configuration, because peak memory belongs to a process: bench/training.sh runs a table of them.
#include <unitscale/autograd/observer.hpp>
#include <unitscale/nn/decoder.hpp>
#include <unitscale/nn/initialise.hpp>
#include <unitscale/optim/adam.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/train/batches.hpp>
#include <unitscale/train/step.hpp>

#include "experiments/resources.hpp"
#include "support/allocation_count.hpp"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

using namespace unitscale;

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

/// Adds the time between two events to the op between them. An op's value is seen at the end of its forward pass, its
/// gradient at the start of its backward pass. The update after the backward pass belongs to no op.
class OpClock : public Observer<float> {
public:
    void begin_step(const ObservedStep&) override { finish(), last_ = Clock::now(); }
    void observe(const TensorEvent<float>& event) override {
        if (event.op == "parameter") {
            if (event.pass == Pass::gradient) finish();  // seen when the whole backward pass is done
            return;
        }
        if (event.pass == Pass::gradient) finish(), running_ = event.op;
        else forward_[std::string(event.op)] += lap();
    }
    /// Ends the backward pass in progress.
    void finish() {
        if (!running_.empty()) backward_[running_] += lap();
        running_.clear();
    }
    void clear() { forward_.clear(), backward_.clear(); }
    [[nodiscard]] const std::map<std::string, double>& forward() const noexcept { return forward_; }
    [[nodiscard]] const std::map<std::string, double>& backward() const noexcept { return backward_; }

private:
    double lap() {
        const auto now = Clock::now();
        return std::chrono::duration<double>(now - std::exchange(last_, now)).count();
    }
    Clock::time_point last_ = Clock::now();
    std::string running_{};
    std::map<std::string, double> forward_{}, backward_{};
};

double median(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.end());
    return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
    std::string recipe_name = "unit-fp8";
    nn::DecoderConfig config{.vocabulary = 256, .width = 256, .depth = 4, .heads = 4, .length = 256};
    std::size_t batch = 8, steps = 10, warmup = 3;
    int threads = 1;
    bool json = false;
    CLI::App app("Measures training steps of a transformer: time, memory, allocations, share of time by op.");
    app.add_option("--recipe", recipe_name, "see train_transformer --list-recipes")->capture_default_str();
    app.add_option("--width", config.width, "width of the residual stream")->capture_default_str();
    app.add_option("--depth", config.depth, "transformer blocks")->capture_default_str();
    app.add_option("--heads", config.heads, "attention heads")->capture_default_str();
    app.add_option("--seq", config.length, "tokens in a sequence")->capture_default_str();
    app.add_option("--batch", batch, "sequences in a step")->capture_default_str();
    app.add_option("--steps", steps, "measured steps")->capture_default_str()->check(CLI::PositiveNumber);
    app.add_option("--threads", threads, "threads")->capture_default_str()->check(CLI::PositiveNumber);
    app.add_flag("--recompute", config.recompute, "blocks keep their input only and run again in the backward pass");
    app.add_flag("--json", json, "one JSON object instead of text");
    CLI11_PARSE(app, argc, argv);

    try {
        const double empty_megabytes = experiments::peak_resident_megabytes();
        const Recipe recipe = find_recipe(recipe_name);
        nn::Decoder<float> model(config);
        nn::initialise(model.parameters(), recipe, 1);
        ScalingState state(1);
        Tape<float> tape(recipe, state, threads);
        optim::Adam<float> optimiser(
            model.parameters(),
            {.beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.01, .decay = optim::WeightDecay::coupled});
        std::vector<train::Batch> batches = {train::make_batch(batch, config.length)};
        for (auto* ids : {&batches[0].ids, &batches[0].labels})
            for (std::size_t i = 0; i < ids->size(); ++i)
                ids->data()[i] = static_cast<std::int32_t>(random_word({1, 2}, i) % config.vocabulary);
        const auto step = [&] { static_cast<void>(train::train_step<float>(model, tape, optimiser, batches, 1e-3)); };

        for (std::size_t i = 0; i < warmup; ++i) step();
        std::vector<double> times;
        std::size_t allocations = 0;
        for (std::size_t i = 0; i < steps; ++i) {
            const auto start = Clock::now();
            test::AllocationCount count;
            step();
            allocations = std::max(allocations, count.stop());
            times.push_back(seconds_since(start));
        }
        const double megabytes = experiments::peak_resident_megabytes(), seconds = median(times);

        OpClock op_clock;
        tape.set_observer(&op_clock);
        step();
        op_clock.clear();
        double observed = 0.0;
        for (std::size_t i = 0; i < 3; ++i) {
            const auto start = Clock::now();
            step();
            observed += seconds_since(start);
        }
        std::map<std::string, std::pair<double, double>> shares;
        double in_ops = 0.0;
        for (const auto& [op, time] : op_clock.forward()) shares[op].first = time / observed, in_ops += time;
        for (const auto& [op, time] : op_clock.backward()) shares[op].second = time / observed, in_ops += time;

        const double tokens = static_cast<double>(batch * config.length);
        nlohmann::ordered_json result = {
            {"recipe", recipe_name},
            {"width", config.width},
            {"depth", config.depth},
            {"heads", config.heads},
            {"seq", config.length},
            {"batch", batch},
            {"threads", threads},
            {"recompute", config.recompute},
            {"parameters", model.parameter_count()},
            {"step_seconds", seconds},
            {"tokens_per_s", tokens / seconds},
            {"peak_megabytes", megabytes},
            {"above_empty_megabytes", megabytes - empty_megabytes},
            {"allocations", test::can_count_allocations() ? nlohmann::ordered_json(allocations) : nullptr}};
        for (const auto& [op, share] : shares)
            result["ops"][op] = {{"forward", share.first}, {"backward", share.second}};
        result["ops"]["optimiser and the rest"] = {{"share", 1.0 - in_ops / observed}};
        if (json) {
            std::printf("%s\n", result.dump().c_str());
            return 0;
        }
        std::printf(
            "%s width %zu depth %zu heads %zu, %zu x %zu tokens, %d thread%s: %.1f ms a step, %.0f tokens/s, peak %.0f "
            "MB, "
            "%.0f MB above the empty process, %zu allocations\n",
            recipe_name.c_str(), config.width, config.depth, config.heads, batch, config.length, threads,
            threads == 1 ? "" : "s", 1e3 * seconds, tokens / seconds, megabytes, megabytes - empty_megabytes,
            allocations);
        std::vector<std::pair<std::string, std::pair<double, double>>> rows(shares.begin(), shares.end());
        std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
            return a.second.first + a.second.second > b.second.first + b.second.second;
        });
        std::printf("%-24s %8s %8s\n", "share of time", "forward", "backward");
        for (const auto& [op, share] : rows)
            std::printf("%-24s %7.1f%% %7.1f%%\n", op.c_str(), 100 * share.first, 100 * share.second);
        std::printf("%-24s %7.1f%%\n", "optimiser and the rest", 100 * (1.0 - in_ops / observed));
    } catch (const Error& error) {
        std::fprintf(stderr, "training_bench: %s\n", error.what());
        return 2;
    }
    return 0;
}
