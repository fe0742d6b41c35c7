// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace unitscale::train {

/// An exchange that has begun, and goes on while the process does other work. This class is one that has ended.
class PendingExchange {
public:
    PendingExchange() = default;
    PendingExchange(const PendingExchange&) = delete;
    PendingExchange& operator=(const PendingExchange&) = delete;
    virtual ~PendingExchange() = default;

    /// Whether it has ended. The call lets it go on.
    [[nodiscard]] virtual bool is_done() { return true; }
    /// Waits for its end.
    virtual void wait() {}
};

/// Processes that train one model together. This class is a group of one process; distributed::Communicator is a group
/// over MPI. Every process of a group calls the same functions in the same order. Data are bytes: all processes hold
/// numbers alike, which `check_same` of their builds ensures.
/// Test: tests/train/process_group_test.cpp
class ProcessGroup {
public:
    ProcessGroup() = default;
    ProcessGroup(const ProcessGroup&) = delete;
    ProcessGroup& operator=(const ProcessGroup&) = delete;
    virtual ~ProcessGroup() = default;

    /// The number of this process, from 0, and of all.
    [[nodiscard]] virtual std::size_t rank() const noexcept { return 0; }
    [[nodiscard]] virtual std::size_t size() const noexcept { return 1; }

    /// Sends each process its part, and receives a part from each. `send` holds the parts for processes 0, 1, ... one
    /// behind the other, of `send_bytes[0]`, `send_bytes[1]`, ... bytes; `receive` is filled likewise.
    virtual void exchange(std::span<const std::byte> send, std::span<const std::size_t> /*send_bytes*/,
                          std::span<std::byte> receive, std::span<const std::size_t> /*receive_bytes*/) {
        std::copy(send.begin(), send.end(), receive.begin());
    }
    /// Begins such an exchange. The buffers belong to it until it is done; the sizes do not.
    [[nodiscard]] virtual std::unique_ptr<PendingExchange> begin_exchange(std::span<const std::byte> send,
                                                                          std::span<const std::size_t> send_bytes,
                                                                          std::span<std::byte> receive,
                                                                          std::span<const std::size_t> receive_bytes) {
        exchange(send, send_bytes, receive, receive_bytes);
        return std::make_unique<PendingExchange>();
    }
    /// Gives `mine` to all. `all` gets the bytes of processes 0, 1, ... one behind the other, `bytes[r]` of process r.
    virtual void collect(std::span<const std::byte> mine, std::span<std::byte> all,
                         std::span<const std::size_t> /*bytes*/) {
        std::copy(mine.begin(), mine.end(), all.begin());
    }

    /// numbers[i] := the largest numbers[i] of all processes. Every process gives as many numbers, without NaN.
    void maximise(std::span<float> numbers) {
        const std::size_t processes = size(), own = rank();
        if (processes == 1) return;
        const auto begin = [&](std::size_t r) { return numbers.size() * r / processes; };
        const std::size_t count = begin(own + 1) - begin(own);
        std::vector<std::size_t> bytes(processes);
        for (std::size_t r = 0; r < processes; ++r) bytes[r] = (begin(r + 1) - begin(r)) * sizeof(float);
        std::vector<float> received(processes * count), largest(count);
        exchange(std::as_bytes(numbers), bytes, std::as_writable_bytes(std::span(received)),
                 std::vector<std::size_t>(processes, bytes[own]));
        for (std::size_t i = 0; i < count; ++i) {
            largest[i] = received[i];
            for (std::size_t r = 1; r < processes; ++r) largest[i] = std::max(largest[i], received[r * count + i]);
        }
        collect(std::as_bytes(std::span(largest)), std::as_writable_bytes(numbers), bytes);
    }

    /// numbers[i] := the sum of the numbers[i] of all processes, added in their order. Every process gives as many
    /// numbers.
    void sum(std::span<double> numbers) {
        if (size() == 1) return;
        std::vector<double> all(size() * numbers.size());
        collect(std::as_bytes(numbers), std::as_writable_bytes(std::span(all)),
                std::vector<std::size_t>(size(), numbers.size_bytes()));
        for (std::size_t i = 0; i < numbers.size(); ++i) {
            numbers[i] = all[i];
            for (std::size_t r = 1; r < size(); ++r) numbers[i] += all[r * numbers.size() + i];
        }
    }

    /// The bytes of every process, in the order of processes. Their numbers of bytes may differ.
    [[nodiscard]] std::vector<std::vector<std::byte>> gather(std::span<const std::byte> mine) {
        const std::uint64_t count = mine.size();
        std::vector<std::uint64_t> counts(size());
        const std::vector<std::size_t> words(size(), sizeof count);
        collect(std::as_bytes(std::span(&count, 1)), std::as_writable_bytes(std::span(counts)), words);
        const std::vector<std::size_t> bytes(counts.begin(), counts.end());
        std::vector<std::byte> all(std::accumulate(bytes.begin(), bytes.end(), std::size_t{0}));
        collect(mine, all, bytes);
        std::vector<std::vector<std::byte>> parts;
        auto at = all.cbegin();
        for (const std::size_t part : bytes) {
            parts.emplace_back(at, at + static_cast<std::ptrdiff_t>(part));
            at += static_cast<std::ptrdiff_t>(part);
        }
        return parts;
    }
};

/// A fact that all processes of a training share, as a name and a text.
using SharedFact = std::pair<std::string, std::string>;

/// Compares facts between the processes of a group. Every process gives facts of equal names.
/// Error, in every process: a process has another fact than process 0. It names the first such process and fact, and
/// shows where the two texts part: `processes: rank 2 has another seed than rank 0: '8', not '7'`.
/// Test: tests/train/process_group_test.cpp
inline void check_same(ProcessGroup& group, std::span<const SharedFact> facts) {
    if (group.size() == 1) return;
    std::string mine;
    for (const auto& [name, text] : facts) mine.append(name).append(1, '\0').append(text).append(1, '\0');
    const auto parts = group.gather(std::as_bytes(std::span(mine.data(), mine.size())));
    const auto texts = [](const std::vector<std::byte>& bytes) {
        std::vector<std::string> all(1);
        for (const std::byte byte : bytes) {
            if (byte == std::byte{0}) all.emplace_back();
            else all.back() += static_cast<char>(byte);
        }
        return all;
    };
    const std::vector<std::string> first = texts(parts.front());
    for (std::size_t rank = 1; rank < parts.size(); ++rank) {
        if (parts[rank] == parts.front()) continue;
        const std::vector<std::string> other = texts(parts[rank]);
        for (std::size_t i = 1; i < std::min(first.size(), other.size()); i += 2) {
            const std::string &a = other[i], &b = first[i];
            if (a == b) continue;
            const std::size_t same = static_cast<std::size_t>(
                std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(std::min(a.size(), b.size())),
                              b.begin())
                    .first -
                a.begin());
            const auto excerpt = [&](const std::string& text) {
                if (a.size() <= 60 && b.size() <= 60) return text;
                return "..." + text.substr(same - std::min<std::size_t>(same, 30), 60) + "...";
            };
            fail("processes: rank ", rank, " has another ", other[i - 1], " than rank 0: '", excerpt(a), "', not '",
                 excerpt(b), "'");
        }
        fail("processes: rank ", rank, " has facts of other names than rank 0");
    }
}

}  // namespace unitscale::train
