// SPDX-License-Identifier: MIT
// The time that processes need for each other's gradients, measured and predicted by train/communication_cost.hpp.
// `constants` measures the model's constants between two processes. `exchange` measures steps of a TreeReducer in as
// many processes as there are. `work` measures a processor's part of such steps in a group of any size, in which it
// hears itself alone. `predict` makes the table of a cluster. docs/cluster.md has the commands.
#include <unitscale/distributed/communicator.hpp>
#include <unitscale/io/atomic_file.hpp>
#include <unitscale/nn/decoder.hpp>
#include <unitscale/train/communication_cost.hpp>

#include "measured_costs.hpp"
#include "reducer_steps.hpp"

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

using namespace unitscale;
using namespace unitscale::bench;

namespace {

struct Options {
    std::string constants_file = "constants.json";
    std::string format = "e4m3";  ///< of communication in few bits
    std::size_t block = 0;
    std::size_t width = 768, depth = 12, length = 256, repetitions = 9;
    std::size_t micro_batches = 1;  ///< of each process
    std::string sharding = "none";
    std::vector<std::size_t> ranks = {8, 16, 64, 256, 1024};
    double compute = 0.0;                                     ///< seconds of a process alone
    double tokens = 2048, operations = 0.0;                   ///< of a process in a step; a second
    double backward = 2.0 / 3.0;                              ///< share of a micro-batch's time
    std::optional<double> latency, overhead, gap, bandwidth;  ///< microseconds, and GB/s: of a named network

    [[nodiscard]] Communication rule() const {
        Communication how{.element = {.format = find_format(format)}, .block = block};
        how.validate();
        return how;
    }
};

/// Elements of a decoder's parameters, in the optimiser's order. One block is made: all are alike.
std::vector<std::size_t> decoder_sizes(std::size_t width, std::size_t depth, std::size_t length) {
    nn::Decoder<float> model({.vocabulary = 256, .width = width, .depth = 1, .heads = 1, .length = length});
    std::vector<std::size_t> sizes, block;
    const auto end_block = [&] {
        for (std::size_t i = 0; i < depth && !block.empty(); ++i) sizes.insert(sizes.end(), block.begin(), block.end());
        block.clear();
    };
    for (const Parameter<float>* parameter : model.parameters()) {
        if (parameter->name().starts_with("decoder/block0")) {
            block.push_back(parameter->size());
            continue;
        }
        end_block();
        sizes.push_back(parameter->size());
    }
    end_block();
    return sizes;
}
double sum_of(const std::vector<std::size_t>& sizes) {
    double sum = 0;
    for (const std::size_t size : sizes) sum += static_cast<double>(size);
    return sum;
}

/// Constants of processors depend on the rule of codes: a scale for each gradient, or for each block.
struct Constants {
    train::NetworkCosts network{};
    train::ElementCosts gradient{}, block{};

    [[nodiscard]] const train::ElementCosts& of(const std::optional<Communication>& rule) const {
        return rule && rule->block > 0 ? block : gradient;
    }
};
/// Calls use(name, constant) for each constant of a processor.
template <class Costs, class Use>
void for_each_cost(Costs& costs, const Use& use) {
    use("move", costs.move), use("add", costs.add), use("convert", costs.convert), use("measure", costs.measure);
    use("encode", costs.encode), use("decode", costs.decode), use("entry", costs.entry);
}
Constants read_constants(const std::string& path) {
    std::ifstream file(path);
    check(file.good(), "--constants ", path, ": cannot be read; expected a file that `constants` has written");
    const auto json = nlohmann::json::parse(file);
    const auto take = [&](const char* part, const char* name, double& to) { json.at(part).at(name).get_to(to); };
    Constants constants{.network = {.by_processors = true}};
    take("network", "L", constants.network.latency), take("network", "o", constants.network.overhead);
    take("network", "g", constants.network.gap), take("network", "G", constants.network.byte);
    for_each_cost(constants.gradient, [&](const char* name, double& to) { take("gradient", name, to); });
    for_each_cost(constants.block, [&](const char* name, double& to) { take("block", name, to); });
    return constants;
}
nlohmann::ordered_json json_of(const Constants& of) {
    nlohmann::ordered_json json;
    json["network"] = {
        {"L", of.network.latency}, {"o", of.network.overhead}, {"g", of.network.gap}, {"G", of.network.byte}};
    for_each_cost(of.gradient, [&](const char* name, double cost) { json["gradient"][name] = cost; });
    for_each_cost(of.block, [&](const char* name, double cost) { json["block"][name] = cost; });
    return json;
}

/// What `exchange` and `work` measure: fp32, and codes with a scale for each gradient and for each block of 128.
struct Case {
    std::string name;
    std::optional<Communication> rule{};
};
std::vector<Case> cases_of(const Options& options) {
    std::vector<Case> cases = {{"fp32", {}}};
    for (const std::size_t block : {std::size_t{0}, std::size_t{128}}) {
        Communication rule = options.rule();
        rule.block = block;
        cases.push_back({options.format + (block == 0 ? "" : concatenate(" by ", block)), rule});
    }
    return cases;
}
train::GradientPlan plan_of(const Options& options, std::size_t processes) {
    return {.sizes = decoder_sizes(options.width, options.depth, options.length),
            .processes = processes,
            .micro_batches = processes * options.micro_batches,
            .sharding = train::parse_sharding(options.sharding)};
}

void run_constants(const Options& options, const std::shared_ptr<distributed::Communicator>& group) {
    check(group->size() == 2, "constants: ", group->size(), " processes; expected 2");
    Communication rule = options.rule();
    rule.block = 0;
    Constants constants{.network = measured_network(*group), .gradient = measured_elements(rule, options.repetitions)};
    rule.block = 128;
    constants.block = measured_elements(rule, options.repetitions);
    const double entries = 128 * 256;  // of many processes, with gradients of an element
    constants.gradient.entry = constants.block.entry =
        work_seconds({.sizes = std::vector<std::size_t>(128, 1), .processes = 256, .micro_batches = 256},
                     options.repetitions) /
        entries;
    if (group->rank() > 0) return;
    const auto json = json_of(constants);
    for (const auto& [part, costs] : json.items()) {
        std::printf("\n%s, ns:", part.c_str());
        for (const auto& [name, cost] : costs.items()) std::printf(" %s %.4g", name.c_str(), 1e9 * cost.get<double>());
    }
    std::printf("\n");
    io::write_atomically("--constants", options.constants_file, json.dump(2) + "\n");
}

void run_exchange(const Options& options, const std::shared_ptr<distributed::Communicator>& group,
                  std::size_t local_size) {
    const Constants constants = read_constants(options.constants_file);
    const double sharing =
        std::max(1.0, static_cast<double>(local_size) / static_cast<double>(std::thread::hardware_concurrency()));
    train::GradientPlan plan = plan_of(options, group->size());
    if (group->rank() == 0)
        std::printf("%zu processes, %.1f million elements\n%-12s %10s %12s %12s %10s %8s\n", group->size(),
                    1e-6 * sum_of(plan.sizes), "", "MB sent", "measured ms", "predicted ms", "of it work", "ratio");
    for (const Case& each : cases_of(options)) {
        plan.communication = each.rule;
        Steps steps(group, plan);
        const double measured = measured_seconds(steps, options.repetitions);
        const train::StepTraffic traffic = train::step_traffic(plan);
        check(traffic.sent_bytes[group->rank()] == steps.sent_bytes(), "exchange: ", steps.sent_bytes(),
              " bytes were sent; ", traffic.sent_bytes[group->rank()], " were counted");
        const train::StepSeconds step =
            train::step_seconds(traffic, constants.network, constants.of(each.rule), 0, 0, sharing);
        if (group->rank() == 0)
            std::printf("%-12s %10.1f %12.1f %12.1f %10.1f %8.2f\n", each.name.c_str(),
                        1e-6 * static_cast<double>(steps.sent_bytes()), 1e3 * measured, 1e3 * step.total(),
                        1e3 * step.work, measured / step.total());
    }
}

void run_work(const Options& options, bool prints) {
    const Constants constants = read_constants(options.constants_file);
    if (prints) std::printf("%6s %-12s %12s %12s %8s\n", "ranks", "", "measured ms", "predicted ms", "ratio");
    for (const std::size_t processes : options.ranks)
        for (const Case& each : cases_of(options)) {
            train::GradientPlan plan = plan_of(options, processes);
            plan.communication = each.rule;
            const double measured = work_seconds(plan, options.repetitions);
            const double predicted =
                train::step_seconds(train::step_traffic(plan), {}, constants.of(each.rule), 0).work;
            if (prints)
                std::printf("%6zu %-12s %12.1f %12.1f %8.2f\n", processes, each.name.c_str(), 1e3 * measured,
                            1e3 * predicted, measured / predicted);
        }
}

void run_predict(const Options& options) {
    Constants constants = read_constants(options.constants_file);
    const bool named = options.latency || options.overhead || options.gap || options.bandwidth;
    if (named) {
        check(options.latency && options.overhead && options.bandwidth,
              "predict: a network needs --latency, --overhead and --bandwidth");
        constants.network = {.latency = 1e-6 * *options.latency,
                             .overhead = 1e-6 * *options.overhead,
                             .gap = 1e-6 * options.gap.value_or(*options.overhead),
                             .byte = 1e-9 / *options.bandwidth};
    }
    const double elements = sum_of(decoder_sizes(options.width, options.depth, options.length));
    double compute = options.compute;
    if (compute <= 0.0) {
        check(options.operations > 0.0, "predict: expected --compute or --operations");
        // A weight and a token: 2 operations forward, 4 backward. Attention: as many for each pair of positions and
        // column, in two products, of which causality leaves half.
        compute = options.tokens * 6.0 *
                  (elements + static_cast<double>(options.depth * options.width * options.length)) /
                  (1e9 * options.operations);
    }
    std::printf("width %zu, depth %zu: %.1f million elements; %.4g s of computing\n", options.width, options.depth,
                1e-6 * elements, compute);
    std::printf("%6s %-8s %-8s %9s %9s %10s %10s %10s %10s %10s\n", "ranks", "sent as", "overlap", "messages",
                "GB sent", "work s", "messages s", "hidden s", "step s", "efficiency");
    for (const std::size_t processes : options.ranks)
        for (const bool coded : {false, true})
            for (const bool overlap : {false, true}) {
                if (coded && overlap) continue;  // codes wait for the end of the step
                train::GradientPlan plan = plan_of(options, processes);
                plan.overlap = overlap;
                if (coded) plan.communication = options.rule();
                const train::StepTraffic traffic = train::step_traffic(plan);
                std::size_t messages = 0;
                for (const train::MessageExchange& exchange : traffic.exchanges) messages += exchange.messages;
                const double backward = compute * options.backward / static_cast<double>(options.micro_batches);
                const train::StepSeconds step = train::step_seconds(
                    traffic, constants.network, constants.of(plan.communication), compute, backward);
                std::printf("%6zu %-8s %-8s %9zu %9.3f %10.4f %10.4f %10.4f %10.4f %10.3f\n", processes,
                            coded ? options.format.c_str() : "fp32", overlap ? "on" : "off", messages,
                            1e-9 * static_cast<double>(*std::ranges::max_element(traffic.sent_bytes)), step.work,
                            step.messages, step.hidden, step.total(), step.efficiency(compute));
            }
    std::printf("\nThe sums alone, without additions, in one bucket, ms:\n%6s %10s %10s %10s\n", "ranks", "direct",
                "ring", "halving");
    for (const std::size_t processes : options.ranks) {
        const double bytes = 4.0 * std::min(elements, static_cast<double>(std::size_t{1} << 22));
        std::printf("%6zu %10.3f %10.3f %10.3f\n", processes,
                    1e3 * train::direct_seconds(constants.network, processes, bytes),
                    1e3 * train::ring_seconds(constants.network, processes, bytes),
                    1e3 * train::halving_seconds(constants.network, processes, bytes));
    }
}

}  // namespace

int main(int argc, char** argv) {
    Options options;
    CLI::App app("Measures and predicts the communication of data-parallel training.");
    app.require_subcommand(1);
    auto* const constants = app.add_subcommand("constants", "measure the model's constants, in two processes");
    auto* const exchange = app.add_subcommand("exchange", "measure steps of a reducer, in any number of processes");
    auto* const work = app.add_subcommand("work", "measure the work of one process among many");
    auto* const predict = app.add_subcommand("predict", "the table of a cluster");
    for (CLI::App* const each : {constants, exchange, work, predict}) {
        each->add_option("--constants", options.constants_file, "file of constants")->capture_default_str();
        each->add_option("--format", options.format, "format of codes")->capture_default_str();
        if (each != predict)
            each->add_option("--repetitions", options.repetitions, "of each measurement")
                ->capture_default_str()
                ->check(CLI::PositiveNumber);
        if (each == constants) continue;
        each->add_option("--width", options.width, "width of the decoder")->capture_default_str();
        each->add_option("--depth", options.depth, "transformer blocks")->capture_default_str();
        each->add_option("--seq", options.length, "tokens in a sequence")->capture_default_str();
        each->add_option("--micro-batches", options.micro_batches, "of each process")->capture_default_str();
        each->add_option("--shard", options.sharding, "none, optimiser or gradients")->capture_default_str();
    }
    for (CLI::App* const each : {work, predict})
        each->add_option("--ranks", options.ranks, "numbers of processes")->delimiter(',')->capture_default_str();
    predict->add_option("--block", options.block, "block of codes; 0: a gradient")->capture_default_str();
    predict->add_option("--compute", options.compute, "seconds of a process alone for a step");
    predict->add_option("--tokens", options.tokens, "of a process in a step, without --compute")->capture_default_str();
    predict->add_option("--operations", options.operations, "billions a second of a process, without --compute");
    predict->add_option("--backward", options.backward, "share of the backward pass in it")->capture_default_str();
    predict->add_option("--latency", options.latency, "L of a network, microseconds; without it: of --constants");
    predict->add_option("--overhead", options.overhead, "o, microseconds");
    predict->add_option("--gap", options.gap, "g, microseconds; without it: o");
    predict->add_option("--bandwidth", options.bandwidth, "1 / G, billion bytes a second");
    CLI11_PARSE(app, argc, argv);

    const distributed::Session session;
    try {
        const auto group = std::make_shared<distributed::Communicator>();
        if (*constants) run_constants(options, group);
        else if (*exchange) run_exchange(options, group, session.local_size());
        else {
            if (*work) run_work(options, group->rank() == 0);
            else if (group->rank() == 0) run_predict(options);
        }
    } catch (const std::exception& error) {
        std::fprintf(stderr, "communication_bench: %s\n", error.what());
        session.abort(2);
    }
    return 0;
}
