// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/train/process_group.hpp>

#include <algorithm>
#include <barrier>
#include <cstddef>
#include <memory>
#include <span>
#include <thread>
#include <vector>

// Groups of threads in place of processes, so that every test can train in a group.
namespace unitscale::test {

/// What the threads of a group share: the data that each shows to the others between two meetings.
struct ThreadMeeting {
    explicit ThreadMeeting(std::size_t size) : barrier(static_cast<std::ptrdiff_t>(size)), data(size), bytes(size) {}

    std::barrier<> barrier;
    std::vector<std::span<const std::byte>> data;
    std::vector<std::span<const std::size_t>> bytes;
};

class ThreadGroup final : public train::ProcessGroup {
public:
    ThreadGroup(ThreadMeeting& meeting, std::size_t rank) : meeting_(meeting), rank_(rank) {}

    [[nodiscard]] std::size_t rank() const noexcept override { return rank_; }
    [[nodiscard]] std::size_t size() const noexcept override { return meeting_.data.size(); }

    void exchange(std::span<const std::byte> send, std::span<const std::size_t> send_bytes,
                  std::span<std::byte> receive, std::span<const std::size_t> /*receive_bytes*/) override {
        show(send, send_bytes);
        auto to = receive.begin();
        for (std::size_t r = 0; r < size(); ++r) {
            std::size_t begin = 0;
            for (std::size_t i = 0; i < rank_; ++i) begin += meeting_.bytes[r][i];
            const auto part = meeting_.data[r].subspan(begin, meeting_.bytes[r][rank_]);
            to = std::copy(part.begin(), part.end(), to);
        }
        meeting_.barrier.arrive_and_wait();
    }
    void collect(std::span<const std::byte> mine, std::span<std::byte> all,
                 std::span<const std::size_t> /*bytes*/) override {
        show(mine, {});
        auto to = all.begin();
        for (const auto part : meeting_.data) to = std::copy(part.begin(), part.end(), to);
        meeting_.barrier.arrive_and_wait();
    }

private:
    void show(std::span<const std::byte> data, std::span<const std::size_t> bytes) {
        meeting_.data[rank_] = data;
        meeting_.bytes[rank_] = bytes;
        meeting_.barrier.arrive_and_wait();
    }

    ThreadMeeting& meeting_;
    std::size_t rank_;
};

/// Calls body(group) in `size` threads, each with its place in one group. `body` must not throw.
template <class Body>
void in_group(std::size_t size, const Body& body) {
    ThreadMeeting meeting(size);
    std::vector<std::thread> threads;
    for (std::size_t rank = 0; rank < size; ++rank)
        threads.emplace_back([&, rank] { body(std::make_shared<ThreadGroup>(meeting, rank)); });
    for (std::thread& thread : threads) thread.join();
}

}  // namespace unitscale::test
