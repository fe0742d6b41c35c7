// SPDX-License-Identifier: MIT
#pragma once

#include "measure.hpp"

#include <unitscale/autograd/backward.hpp>
#include <unitscale/base/parallel.hpp>
#include <unitscale/distributed/communicator.hpp>
#include <unitscale/train/communication_cost.hpp>
#include <unitscale/train/gradient_codes.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <vector>

// The constants of train/communication_cost.hpp, measured between processes 0 and 1 of MPI, and in all of them.
namespace unitscale::bench {

/// Measurements of large data use several buffers in turn, so that caches do not hold them: gradients of a step are
/// larger.
inline constexpr std::size_t buffers_in_turn = 6;
/// The most of all processes.
[[nodiscard]] inline double most_of_all(double mine) {
    double all = mine;
    MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return all;
}
/// The median time of use(i), over all processes that call it at once: the slowest in each repetition i.
template <class Use>
[[nodiscard]] double seconds_together(std::size_t repetitions, const Use& use) {
    std::vector<double> times;
    for (std::size_t i = 0; i < repetitions + buffers_in_turn; ++i) {  // memory has its pages after the first turn
        MPI_Barrier(MPI_COMM_WORLD);
        const auto start = Clock::now();
        use(i);
        const double seconds = most_of_all(seconds_since(start));
        if (i >= buffers_in_turn) times.push_back(seconds);
    }
    return median(times);
}

/// Half the time of a message of so many bytes and its answer, between processes 0 and 1.
[[nodiscard]] inline double one_way_seconds(int rank, std::vector<char>& buffer, std::size_t bytes) {
    const std::size_t times = std::clamp<std::size_t>((std::size_t{1} << 25) / (bytes + 4096), 5, 500), groups = 9;
    std::vector<double> medians;
    for (std::size_t group = 0; group < groups; ++group) {
        const auto start = Clock::now();
        for (std::size_t i = 0; i < times; ++i)
            for (const int sender : {0, 1}) {
                if (rank == sender)
                    MPI_Send(buffer.data(), static_cast<int>(bytes), MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD);
                else
                    MPI_Recv(buffer.data(), static_cast<int>(bytes), MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD,
                             MPI_STATUS_IGNORE);
            }
        medians.push_back(seconds_since(start) / static_cast<double>(2 * times));
    }
    return median(medians);
}

/// Seconds in which process 0 begins to send a byte, and seconds from message to message until the last one of `count`
/// is answered.
struct Burst {
    double send = 0, whole = 0;
};
[[nodiscard]] inline Burst burst_seconds(int rank, std::size_t count) {
    std::vector<MPI_Request> requests(count);
    std::vector<char> bytes(count);
    char answer = 0;
    std::vector<double> sends, wholes;
    for (std::size_t repetition = 0; repetition < 101; ++repetition) {
        const auto start = Clock::now();
        for (std::size_t i = 0; i < count; ++i) {
            if (rank == 0) MPI_Isend(&bytes[i], 1, MPI_BYTE, 1, 1, MPI_COMM_WORLD, &requests[i]);
            else MPI_Irecv(&bytes[i], 1, MPI_BYTE, 0, 1, MPI_COMM_WORLD, &requests[i]);
        }
        sends.push_back(seconds_since(start));
        MPI_Waitall(static_cast<int>(count), requests.data(), MPI_STATUSES_IGNORE);
        if (rank == 0) MPI_Recv(&answer, 1, MPI_BYTE, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        else MPI_Send(&answer, 1, MPI_BYTE, 0, 2, MPI_COMM_WORLD);
        wholes.push_back(seconds_since(start));
    }
    return {median(sends) / static_cast<double>(count), median(wholes)};
}

/// The constants between processes 0 and 1 of two; process 0 prints the times behind them.
///   o: of a send. g: the slope of the time of bursts of 1 and of 257 messages. L: time of a byte one way, less 2 o.
///   G: the slope of exchanges of 1 and of 16 MB by `group`, both ways at once
[[nodiscard]] inline train::NetworkCosts measured_network(train::ProcessGroup& group) {
    const int rank = static_cast<int>(group.rank());
    const std::size_t largest = std::size_t{1} << 26;
    std::vector<char> buffer(largest, 1);
    const std::vector<std::byte> send(2 * largest, std::byte{1});
    std::vector<std::byte> receive(2 * largest, std::byte{2});
    std::vector<double> one_way, both_ways;  // of 4^0, 4^1, ... bytes
    if (rank == 0) std::printf("%10s %16s %16s %16s\n", "bytes", "one way us", "both ways us", "both ways ns/B");
    for (std::size_t bytes = 1; bytes <= largest; bytes *= 4) {
        one_way.push_back(one_way_seconds(rank, buffer, bytes));
        std::vector<std::size_t> sizes(2, 0);
        sizes[static_cast<std::size_t>(1 - rank)] = bytes;
        const double both = seconds_together(bytes < 100000 ? 201 : 15, [&](std::size_t i) {
            const std::size_t at = i * bytes % (send.size() - bytes);
            group.exchange({send.data() + at, bytes}, sizes, {receive.data() + at, bytes}, sizes);
        });
        both_ways.push_back(both);
        if (rank == 0)
            std::printf("%10zu %16.2f %16.2f %16.3f\n", bytes, 1e6 * one_way.back(), 1e6 * both,
                        1e9 * both / static_cast<double>(bytes));
    }
    const Burst few = burst_seconds(rank, 1), many = burst_seconds(rank, 257);
    train::NetworkCosts costs;
    costs.overhead = many.send;
    costs.gap = (many.whole - few.whole) / 256;
    costs.latency = std::max(0.0, one_way.front() - 2 * costs.overhead);
    costs.byte = (both_ways[12] - both_ways[10]) / (std::pow(4.0, 12) - std::pow(4.0, 10));
    costs.by_processors = true;  // processes 0 and 1 are on one machine
    MPI_Bcast(&costs, static_cast<int>(sizeof costs), MPI_BYTE, 0, MPI_COMM_WORLD);
    return costs;
}

/// The constants of a processor for gradients in float of 16 MB, of which all processes work on one each at once.
/// `entry` is left at 0.
[[nodiscard]] inline train::ElementCosts measured_elements(const Communication& rule, std::size_t repetitions) {
    constexpr std::size_t count = std::size_t{1} << 22, turns = buffers_in_turn;
    const Execution execution;
    std::vector<std::vector<float>> from(turns, std::vector<float>(count)), to = from;
    std::vector<std::vector<std::byte>> codes(turns, std::vector<std::byte>(count * train::code_bytes(rule)));
    std::vector<float> largest(train::block_count(rule, count), 1.0f);
    for (auto& numbers : from)
        for (std::size_t i = 0; i < count; ++i) numbers[i] = std::sin(static_cast<float>(i));
    const volatile double unknown = 1.0;  // a factor that the compiler does not know
    const double factor = unknown;
    const auto per_element = [repetitions](const auto& use) {
        return seconds_together(repetitions, [&](std::size_t i) { use(i % turns); }) / static_cast<double>(count);
    };
    train::ElementCosts costs;
    costs.move = per_element([&](std::size_t i) { std::copy(from[i].begin(), from[i].end(), to[i].begin()); }) / 4;
    costs.add = per_element([&](std::size_t i) {
        add_scaled_elements<float>(execution, to[i].data(), from[i].data(), count, factor, factor);
    });
    costs.convert = per_element([&](std::size_t i) {
        for (std::size_t e = 0; e < count; ++e) to[i][e] = static_cast<float>(static_cast<double>(from[i][e]) * factor);
    });
    costs.measure =
        per_element([&](std::size_t i) { train::measure_blocks(rule, from[i].data(), 0, count, largest.data()); });
    costs.encode = per_element([&](std::size_t i) {
        train::encode_blocks(execution, rule, from[i].data(), 0, count, largest.data(), {1, 2}, codes[i].data());
    });
    costs.decode = per_element([&](std::size_t i) {
        std::vector<float> x(count);  // JoinCodes decodes into new memory, too
        train::decode_blocks(execution, rule, codes[i].data(), 0, count, largest.data(), x.data());
    });
    return costs;
}

}  // namespace unitscale::bench
