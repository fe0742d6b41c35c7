// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/scaling/communication.hpp>
#include <unitscale/train/gradient_codes.hpp>
#include <unitscale/train/micro_batch_tree.hpp>
#include <unitscale/train/sharding.hpp>
#include <unitscale/train/step_gradients.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

// A model of the time that the processes of a TreeReducer need for each other. It counts the messages of a step, their
// bytes, and the elements that processors work on for them. Constants of a network and of a processor make times of
// these counts. Skew between processes, and messages that meet in a switch, are left out.
// References: Alexandrov et al. 1995 (LogGP), SPAA '95; Thakur, Rabenseifner, Gropp 2005, IJHPCA 19(1), 49-66.
// Test: tests/train/communication_cost_test.cpp
namespace unitscale::train {

/// The constants of LogGP, in seconds.
struct NetworkCosts {
    double latency = 0;   ///< L: from the end of a send to the begin of its receive
    double overhead = 0;  ///< o: of the processor, for each message sent and for each received
    double gap = 0;       ///< g: at least between two messages that a process sends
    double byte = 0;      ///< G: for each byte, while a process sends and receives as much
    /// Messages are copies in memory, as on one machine. Processors that share it then share this time too, and none
    /// of it passes while they compute.
    bool by_processors = false;
};

/// Seconds of a processor for an element, and for other units of work where said.
struct ElementCosts {
    double move = 0;     ///< for a byte that is copied
    double add = 0;      ///< a sum of two gradients
    double convert = 0;  ///< to float under another scale, or from float
    double measure = 0;  ///< its largest magnitude
    double encode = 0;
    double decode = 0;
    double entry = 0;  ///< for what is told of a parameter's gradient in a node of the tree (NodeEntry)
};

/// The gradients of a step, and the way in which a TreeReducer adds them.
struct GradientPlan {
    std::vector<std::size_t> sizes{};  ///< elements of the trained parameters, in the optimiser's order
    std::size_t processes = 2;
    std::size_t micro_batches = 2;  ///< of all processes
    std::size_t element_bytes = sizeof(float);
    std::optional<Communication> communication{};
    Sharding sharding = Sharding::none;
    bool overlap = false;
    std::size_t bucket_elements = std::size_t{1} << 22;
};

/// Messages between all processes that begin together. A process goes on when its own have arrived.
struct MessageExchange {
    std::size_t messages = 0;  ///< sent and received by the busiest process
    std::size_t bytes = 0;     ///< sent by the busiest process, or received by it, whichever is more
    double begin = 1.0;        ///< the share of the last micro-batch's backward pass that is over; 1: it has ended
};

/// The counts of a step: of the busiest process, except `sent_bytes`.
struct StepTraffic {
    std::vector<MessageExchange> exchanges{};
    std::vector<std::size_t> sent_bytes{};  ///< by process: `TreeReducer::sent_bytes`
    std::size_t moved = 0;                  ///< bytes
    std::size_t added = 0, converted = 0, measured = 0, encoded = 0, decoded = 0;  ///< elements
    std::size_t entries = 0;
};

/// The counts of a step in which every micro-batch reaches every parameter. Left out: magnitudes that later scales
/// follow, norms of shared gradients, and the first step's comparison of facts.
/// Errors: no processes; more processes than micro-batches.
class TrafficCount {
public:
    explicit TrafficCount(const GradientPlan& plan) : plan_(plan), processes_(plan.processes) {
        check(processes_ > 0 && processes_ <= plan.micro_batches, "TrafficCount: ", processes_, " processes for ",
              plan.micro_batches, " micro-batches; expected at least one process, and a micro-batch for each");
        check(plan.bucket_elements > 0, "TrafficCount: bucket_elements is 0; expected a positive number");
        traffic_.sent_bytes.assign(processes_, 0);
        if (processes_ == 1 && !plan.communication) return;
        for (std::size_t r = 0; r < processes_; ++r) {
            const MicroBatchRange share{plan.micro_batches * r / processes_, plan.micro_batches * (r + 1) / processes_};
            batches_.push_back(share.end - share.begin);
            nodes_.push_back(plan.communication ? batches_.back() : nodes_of(share, plan.micro_batches).size());
        }
        all_nodes_ = std::accumulate(nodes_.begin(), nodes_.end(), std::size_t{0});
        owners_ = owners_of(plan.sizes, processes_);
        count_state();
        if (plan.overlap && !plan.communication) count_early();
        else count_at_end();
        if (plan.sharding != Sharding::none) count_values();
        if (processes_ == 1) traffic_.exchanges.clear();
    }
    [[nodiscard]] StepTraffic& traffic() noexcept { return traffic_; }

private:
    using Numbers = std::vector<std::size_t>;

    [[nodiscard]] static std::size_t most(const Numbers& numbers) { return *std::ranges::max_element(numbers); }

    /// An exchange in which process a sends weight[a] (part[b] unit + extra) bytes to process b. Empty messages are not
    /// sent. Returns the bytes that each process sends to others.
    Numbers exchange(const Numbers& weight, const Numbers& part, std::size_t unit, std::size_t extra = 0,
                     double begin = 1.0) {
        std::size_t senders = 0, receivers = 0, parts = 0, weights = 0;
        const auto bytes_to = [&](std::size_t b) { return part[b] * unit + extra; };
        for (std::size_t r = 0; r < processes_; ++r) {
            senders += weight[r] > 0;
            receivers += bytes_to(r) > 0;
            parts += bytes_to(r);
            weights += weight[r];
        }
        MessageExchange whole{.begin = begin};
        Numbers sent(processes_);
        for (std::size_t r = 0; r < processes_; ++r) {
            sent[r] = weight[r] * (parts - bytes_to(r));
            const std::size_t received = (weights - weight[r]) * bytes_to(r);
            const bool sends = weight[r] > 0, receives = bytes_to(r) > 0;
            whole.messages =
                std::max(whole.messages, (sends ? receivers - receives : 0) + (receives ? senders - sends : 0));
            whole.bytes = std::max({whole.bytes, sent[r], received});
        }
        traffic_.exchanges.push_back(whole);
        return sent;
    }
    /// Every process gives bytes[r] to each other one.
    Numbers collect(const Numbers& bytes) { return exchange(bytes, Numbers(processes_, 1), 1); }
    void count_sent(const Numbers& sent) {
        for (std::size_t r = 0; r < processes_; ++r) traffic_.sent_bytes[r] += sent[r];
    }

    /// `begin` of a step, and the state that its end shares.
    void count_state() {
        collect(Numbers(processes_, 2 * sizeof(std::uint64_t)));
        collect(Numbers(processes_, sizeof(std::uint64_t)));
        const bool early = plan_.overlap && !plan_.communication;
        Numbers bytes;
        for (std::size_t r = 0; r < processes_; ++r)
            bytes.push_back(batches_[r] * sizeof(double) +
                            (early ? 0 : nodes_[r] * plan_.sizes.size() * sizeof(NodeEntry)));
        collect(bytes);
        traffic_.entries = all_nodes_ * plan_.sizes.size();
    }
    void count_at_end() {
        Numbers bucket;
        std::size_t elements = 0;
        for (std::size_t p = 0; p < plan_.sizes.size(); ++p) {
            bucket.push_back(p);
            elements += plan_.sizes[p];
            if (elements < plan_.bucket_elements && p + 1 < plan_.sizes.size()) continue;
            if (plan_.communication) join_codes(bucket);
            else join(bucket, 1.0, false);
            bucket.clear();
            elements = 0;
        }
    }
    void count_early() {
        const auto all = static_cast<double>(std::accumulate(plan_.sizes.begin(), plan_.sizes.end(), std::size_t{0}));
        Numbers bucket;
        std::size_t elements = 0, done = 0;
        for (std::size_t p = plan_.sizes.size(); p-- > 0;) {
            bucket.push_back(p);
            elements += plan_.sizes[p];
            if (elements < plan_.bucket_elements && p > 0) continue;
            done += elements;
            join(bucket, static_cast<double>(done) / all, true);
            bucket.clear();
            elements = 0;
        }
    }

    /// Elements of a bucket's parameters that each process sums. `begin_of(size, r)`: where all sum a part.
    template <class Begin>
    [[nodiscard]] Numbers parts_of(const Numbers& bucket, const Begin& begin_of) const {
        Numbers parts(processes_, 0);
        for (const std::size_t p : bucket) {
            if (plan_.sharding == Sharding::gradients) parts[owners_[p]] += plan_.sizes[p];
            else
                for (std::size_t r = 0; r < processes_; ++r)
                    parts[r] += begin_of(plan_.sizes[p], r + 1) - begin_of(plan_.sizes[p], r);
        }
        return parts;
    }
    [[nodiscard]] static Numbers times(Numbers numbers, std::size_t factor) {
        for (std::size_t& number : numbers) number *= factor;
        return numbers;
    }

    /// ElementJoin.
    void join(const Numbers& bucket, double begin, bool early) {
        const Numbers parts = parts_of(bucket, [&](std::size_t size, std::size_t r) { return size * r / processes_; });
        const std::size_t unit = plan_.element_bytes, part = most(parts), nodes = most(nodes_);
        const std::size_t elements = std::accumulate(parts.begin(), parts.end(), std::size_t{0});
        const std::size_t extra = early ? bucket.size() * sizeof(NodeEntry) : 0;
        count_sent(exchange(nodes_, parts, unit, extra, begin));
        traffic_.added += (all_nodes_ - 1) * part;
        traffic_.moved += (nodes * elements + nodes * part + part) * unit;  // packed, the own part, and its sum
        if (plan_.sharding == Sharding::gradients) {
            traffic_.moved += part * unit;
            return;
        }
        count_sent(collect(times(parts, unit)));
        traffic_.moved += (part + elements) * unit;
    }

    /// ProcessGroup::maximise.
    void maximise(std::size_t numbers) {
        Numbers parts;
        for (std::size_t r = 0; r < processes_; ++r)
            parts.push_back(numbers * (r + 1) / processes_ - numbers * r / processes_);
        exchange(Numbers(processes_, 1), parts, sizeof(float));
        collect(times(parts, sizeof(float)));
    }
    /// JoinCodes.
    void join_codes(const Numbers& bucket) {
        const Communication& rule = *plan_.communication;
        const Numbers parts =
            parts_of(bucket, [&](std::size_t size, std::size_t r) { return part_begin(rule, size, r, processes_); });
        const std::size_t unit = code_bytes(rule), part = most(parts), batches = most(batches_);
        const std::size_t elements = std::accumulate(parts.begin(), parts.end(), std::size_t{0});
        const bool shared = plan_.sharding != Sharding::gradients;
        std::size_t blocks = 0;
        for (const std::size_t p : bucket) blocks += block_count(rule, plan_.sizes[p]);
        maximise(blocks);
        count_sent(exchange(batches_, parts, unit));
        if (shared) {
            maximise(blocks);
            count_sent(collect(times(parts, unit)));
        }
        const std::size_t gets = shared ? elements : part;  // elements of sums that a process decodes
        traffic_.converted += batches * elements + gets;
        traffic_.measured += batches * elements + part;
        traffic_.encoded += batches * elements + part;
        traffic_.decoded += all_nodes_ * part + gets + (rule.error_feedback ? batches * elements : 0);
        traffic_.added += (all_nodes_ - 1) * part + (rule.error_feedback ? 2 * batches * elements : 0);
        traffic_.moved += (batches * elements + batches * part + (shared ? part : 0)) * unit;
    }

    /// share_values.
    void count_values() {
        Numbers bytes(processes_, 0);
        std::size_t elements = 0, own = 0;
        for (std::size_t p = 0; p < plan_.sizes.size(); ++p) {
            bytes[owners_[p]] += sizeof(double) + plan_.sizes[p] * plan_.element_bytes;
            elements += plan_.sizes[p];
            if (elements < plan_.bucket_elements && p + 1 < plan_.sizes.size()) continue;
            own = most(bytes);
            count_sent(collect(bytes));
            traffic_.moved += 2 * own + elements * plan_.element_bytes;
            std::ranges::fill(bytes, 0);
            elements = 0;
        }
    }

    const GradientPlan& plan_;
    std::size_t processes_, all_nodes_ = 0;
    Numbers batches_{}, nodes_{};  ///< by process
    Numbers owners_{};             ///< by parameter
    StepTraffic traffic_{};
};

[[nodiscard]] inline StepTraffic step_traffic(const GradientPlan& plan) {
    return std::move(TrafficCount(plan).traffic());
}

/// Seconds of a step, by what a process does in them.
struct StepSeconds {
    double compute = 0;   ///< forward and backward passes, and the update
    double work = 0;      ///< of processors, on gradients that are sent or have arrived
    double messages = 0;  ///< of the network
    double hidden = 0;    ///< of `messages`: while the backward pass goes on

    [[nodiscard]] constexpr double total() const noexcept { return compute + work + messages - hidden; }
    /// The step of a process alone, over the step of a process in the group: 1 where communication costs nothing.
    [[nodiscard]] constexpr double efficiency(double alone) const noexcept { return alone / total(); }
};

/// The time in which messages of an exchange take the processor: o for each, or g for each that is sent, if that is
/// more.
[[nodiscard]] constexpr double overhead_seconds(const NetworkCosts& network, std::size_t messages) noexcept {
    return static_cast<double>(messages) * std::max(network.overhead, 0.5 * network.gap);
}
/// L + G bytes; nothing without messages.
[[nodiscard]] constexpr double wire_seconds(const NetworkCosts& network, const MessageExchange& exchange) noexcept {
    return exchange.messages == 0 ? 0.0 : network.latency + network.byte * static_cast<double>(exchange.bytes);
}

/// A step's seconds.
///   messages = sum over exchanges of L + max(o, g / 2) messages + G bytes
/// Exchanges that begin during the last micro-batch's backward pass use the network one after the other. The part of
/// L + G bytes that ends before the pass does is hidden.
/// `compute`, `backward`: seconds of a process alone for its micro-batches, and for the last one's backward pass.
/// `sharing`: processes for each processor of a machine, if that is more than 1. Its processors' time is divided then.
[[nodiscard]] inline StepSeconds step_seconds(const StepTraffic& traffic, const NetworkCosts& network,
                                              const ElementCosts& elements, double compute, double backward = 0.0,
                                              double sharing = 1.0) {
    const auto times = [](double seconds, std::size_t count) { return seconds * static_cast<double>(count); };
    StepSeconds step{.compute = compute * sharing};
    step.work = sharing * (times(elements.move, traffic.moved) + times(elements.add, traffic.added) +
                           times(elements.convert, traffic.converted) + times(elements.measure, traffic.measured) +
                           times(elements.encode, traffic.encoded) + times(elements.decode, traffic.decoded) +
                           times(elements.entry, traffic.entries));
    double early = 0.0, end = 0.0;
    for (const MessageExchange& exchange : traffic.exchanges) {
        const double wire = wire_seconds(network, exchange);
        step.messages += wire + overhead_seconds(network, exchange.messages);
        if (exchange.begin >= 1.0) continue;
        early += wire;
        end = std::max(end, exchange.begin * backward) + wire;
    }
    if (network.by_processors) step.messages *= sharing;
    else step.hidden = early - std::max(0.0, end - backward);
    return step;
}

/// Seconds of a sum over P processes, of which each has `bytes` and gets the sum, without the additions: direct
/// messages, as TreeReducer sends them.
///   2 (L + (P - 1) max(2 o, g) + (P - 1) / P bytes G)
[[nodiscard]] constexpr double direct_seconds(const NetworkCosts& network, std::size_t processes,
                                              double bytes) noexcept {
    const auto others = static_cast<double>(processes - 1);
    return 2 * (network.latency + others * std::max(2 * network.overhead, network.gap) +
                others / static_cast<double>(processes) * bytes * network.byte);
}
/// The same sum in a ring (Thakur et al. 2005): P - 1 steps to the sums of parts, P - 1 to give them to all.
///   2 (P - 1) (L + 2 o) + 2 (P - 1) / P bytes G
[[nodiscard]] constexpr double ring_seconds(const NetworkCosts& network, std::size_t processes, double bytes) noexcept {
    const auto others = static_cast<double>(processes - 1);
    return 2 * others *
           (network.latency + 2 * network.overhead + bytes * network.byte / static_cast<double>(processes));
}
/// The same sum by recursive halving, then doubling (Thakur et al. 2005), for P a power of two.
///   2 log2(P) (L + 2 o) + 2 (P - 1) / P bytes G
[[nodiscard]] constexpr double halving_seconds(const NetworkCosts& network, std::size_t processes,
                                               double bytes) noexcept {
    const auto steps = static_cast<double>(std::bit_width(processes - 1));
    return 2 * (steps * (network.latency + 2 * network.overhead) +
                static_cast<double>(processes - 1) / static_cast<double>(processes) * bytes * network.byte);
}

}  // namespace unitscale::train
