// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/train/process_group.hpp>

#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1  // Open MPI's C++ interface, which programs would have to link
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace unitscale::distributed {

/// Seconds that a process waits for others, where nothing else is said.
inline constexpr double default_wait_limit = 600.0;

/// Ends this process with exit code 1, and so all processes, if it lives longer than so many seconds:
///   processes: waited 600 s for all to begin
/// For calls of MPI that wait for all processes and know no limit.
class Deadline {
public:
    Deadline(double seconds, const char* act)
        : thread_([seconds, act](std::stop_token stop) {
              std::mutex mutex;
              std::unique_lock lock(mutex);
              std::condition_variable_any sleep;
              sleep.wait_for(lock, stop, std::chrono::duration<double>(seconds), [] { return false; });
              if (stop.stop_requested()) return;
              std::fprintf(stderr, "processes: waited %g s for all to %s\n", seconds, act);
              std::_Exit(1);
          }) {}

private:
    std::jthread thread_;
};

/// MPI in this process, from construction to destruction. `mpirun` starts the processes; without it there is one.
/// Make one in `main`, before threads, and let it live longer than every Communicator.
/// An error in MPI itself ends all processes, with MPI's own message. So does a begin or an end of MPI that takes
/// longer than `wait_limit` seconds (Deadline): a process hangs, or has not come so far.
/// Errors: MPI has been begun or ended before. Test: tests/distributed/communicator_test.cpp
class Session {
public:
    explicit Session(double wait_limit = default_wait_limit) : wait_limit_(wait_limit) {
        int begun = 0;
        MPI_Initialized(&begun);
        check(begun == 0, "Session: MPI has been begun before; expected one Session in a process");
        const Deadline deadline(wait_limit_, "begin");
        int level = 0, size = 0;
        MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level);
        MPI_Comm local = MPI_COMM_NULL;
        MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &local);
        MPI_Comm_size(local, &size);
        MPI_Comm_free(&local);
        local_size_ = static_cast<std::size_t>(size);
    }
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
    /// Waits for all processes.
    ~Session() {
        const Deadline deadline(wait_limit_, "end");
        MPI_Finalize();
    }

    /// Ends all processes at once, with this exit code. For a process that cannot go on: the others wait for it.
    [[noreturn]] void abort(int code) const noexcept {
        MPI_Abort(MPI_COMM_WORLD, code);
        std::abort();
    }

    /// The number of processes on this machine: they share its processors.
    [[nodiscard]] std::size_t local_size() const noexcept { return local_size_; }

private:
    double wait_limit_;
    std::size_t local_size_ = 1;
};

/// Processes have not answered within the limit of a wait. Unlike Error, not caused by arguments.
class NoAnswer : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

/// The processes of an MPI communicator as a group that trains together. It duplicates the communicator, so that its
/// messages meet no others.
///   distributed::Session session;
///   auto group = std::make_shared<distributed::Communicator>();
///   trainer.set_reducer(std::make_shared<train::TreeReducer<float>>(group));
/// Each process sends its parts to each other one directly, so a process that waits knows for whom. A wait of more than
/// `wait_limit` seconds is an error, after which the processes cannot go on together (Session::abort):
///   processes: rank 0 has waited 600 s for rank 2
/// A process that computes or writes a file makes the others wait, as one that hangs does. A process that waits yields
/// its processor to others. After a second it sleeps, too, for a millisecond at a time. It does not before: processes
/// of one machine copy a message piece by piece, and only while both are awake.
/// Test: tests/distributed/communicator_test.cpp
class Communicator final : public train::ProcessGroup {
public:
    /// Error: a limit that is not positive.
    explicit Communicator(MPI_Comm of = MPI_COMM_WORLD, double wait_limit = default_wait_limit)
        : wait_limit_(wait_limit) {
        check(wait_limit > 0.0, "Communicator: a wait limit of ", wait_limit, " s; expected a positive number");
        const Deadline deadline(wait_limit, "join a group");
        MPI_Comm_dup(of, &comm_);
    }
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;
    ~Communicator() override { MPI_Comm_free(&comm_); }

    [[nodiscard]] std::size_t rank() const noexcept override {
        int rank = 0;
        MPI_Comm_rank(comm_, &rank);
        return static_cast<std::size_t>(rank);
    }
    [[nodiscard]] std::size_t size() const noexcept override {
        int size = 0;
        MPI_Comm_size(comm_, &size);
        return static_cast<std::size_t>(size);
    }

    /// Errors: a part of 2^31 bytes and more; NoAnswer.
    void exchange(std::span<const std::byte> send, std::span<const std::size_t> send_bytes,
                  std::span<std::byte> receive, std::span<const std::size_t> receive_bytes) override {
        Requests requests = start(send, begins_of(send_bytes), send_bytes, receive, receive_bytes);
        wait(requests);
    }
    /// Errors: a part of 2^31 bytes and more; NoAnswer, when its end is waited for.
    [[nodiscard]] std::unique_ptr<train::PendingExchange> begin_exchange(
        std::span<const std::byte> send, std::span<const std::size_t> send_bytes, std::span<std::byte> receive,
        std::span<const std::size_t> receive_bytes) override {
        return std::make_unique<Pending>(*this, start(send, begins_of(send_bytes), send_bytes, receive, receive_bytes));
    }
    /// Errors: a part of 2^31 bytes and more; NoAnswer.
    void collect(std::span<const std::byte> mine, std::span<std::byte> all,
                 std::span<const std::size_t> bytes) override {
        const std::vector<std::size_t> begins(bytes.size(), 0), sizes(bytes.size(), mine.size());
        Requests requests = start(mine, begins, sizes, all, bytes);
        wait(requests);
    }

private:
    /// A receive from each process, then a send to each; MPI_REQUEST_NULL where there is none, and once it is done.
    using Requests = std::vector<MPI_Request>;

    [[nodiscard]] static std::vector<std::size_t> begins_of(std::span<const std::size_t> bytes) {
        std::vector<std::size_t> begins(bytes.size(), 0);
        for (std::size_t r = 1; r < bytes.size(); ++r) begins[r] = begins[r - 1] + bytes[r - 1];
        return begins;
    }
    static void check_sizes(std::span<const std::size_t> bytes) {
        for (const std::size_t part : bytes)
            check(part <= static_cast<std::size_t>(std::numeric_limits<int>::max()), "Communicator: a message of ",
                  part, " bytes; expected less than 2^31");
    }

    /// Begins to send `send_bytes[r]` bytes from `send_begins[r]` on to each process r, and to receive from each. All
    /// processes begin their operations in one order. The spans stay as they are until `wait` has returned.
    [[nodiscard]] Requests start(std::span<const std::byte> send, std::span<const std::size_t> send_begins,
                                 std::span<const std::size_t> send_bytes, std::span<std::byte> receive,
                                 std::span<const std::size_t> receive_bytes) const {
        check_sizes(send_bytes);
        check_sizes(receive_bytes);
        const std::vector<std::size_t> begins = begins_of(receive_bytes);
        const std::size_t processes = size(), own = rank();
        Requests requests(2 * processes, MPI_REQUEST_NULL);
        // Sends come first: a peer that has begun learns of this message before it may send its own. Over TCP its
        // answer would otherwise wait behind the bytes of its message, and the two would travel one after the other.
        for (std::size_t i = 1; i < processes; ++i) {  // each process begins with another one
            const std::size_t r = (own + i) % processes;
            if (send_bytes[r] > 0)
                MPI_Isend(send.data() + send_begins[r], static_cast<int>(send_bytes[r]), MPI_BYTE, static_cast<int>(r),
                          0, comm_, &requests[processes + r]);
        }
        for (std::size_t i = 1; i < processes; ++i) {
            const std::size_t r = (own + i) % processes;
            if (receive_bytes[r] > 0)
                MPI_Irecv(receive.data() + begins[r], static_cast<int>(receive_bytes[r]), MPI_BYTE, static_cast<int>(r),
                          0, comm_, &requests[r]);
        }
        const std::byte* const from = send.data() + send_begins[own];
        std::copy(from, from + send_bytes[own], receive.data() + begins[own]);
        return requests;
    }

    /// Waits until all requests are done. Time in which this process was stopped does not count.
    void wait(Requests& requests) const {
        using Clock = std::chrono::steady_clock;
        using Seconds = std::chrono::duration<double>;
        constexpr Seconds patience(1.0), pause(1e-3), most_at_once(0.1);
        std::vector<int> places(requests.size());
        Seconds waited(0.0);
        for (Clock::time_point last = Clock::now();;) {
            int done = 0;
            MPI_Testsome(static_cast<int>(requests.size()), requests.data(), &done, places.data(), MPI_STATUSES_IGNORE);
            if (std::ranges::all_of(requests, [](MPI_Request request) { return request == MPI_REQUEST_NULL; })) return;
            if (waited.count() > wait_limit_) give_up(requests);
            if (waited < patience) std::this_thread::yield();
            else std::this_thread::sleep_for(pause);
            const Clock::time_point now = Clock::now();
            waited += std::min(Seconds(now - last), most_at_once);
            last = now;
        }
    }

    /// Throws NoAnswer, which names the first processes that have not answered. Cancels what would be received.
    [[noreturn]] void give_up(Requests& requests) const {
        constexpr std::size_t most = 2;
        const std::size_t processes = size();
        std::string ranks;
        std::size_t count = 0;
        for (std::size_t r = 0; r < processes; ++r) {
            if (requests[r] == MPI_REQUEST_NULL && requests[processes + r] == MPI_REQUEST_NULL) continue;
            if (++count <= most) ranks += concatenate(count == 1 ? "" : ", ", r);
            if (requests[r] == MPI_REQUEST_NULL) continue;
            MPI_Cancel(&requests[r]);
            MPI_Request_free(&requests[r]);
        }
        if (count > most) ranks += concatenate(" and ", count - most, " more");
        throw NoAnswer(concatenate("processes: rank ", rank(), " has waited ", wait_limit_, " s for ",
                                   count == 1 ? "rank " : "ranks ", ranks));
    }

    /// An exchange on its way.
    struct Pending final : train::PendingExchange {
        Pending(const Communicator& communicator, Requests&& begun) : of(communicator), requests(std::move(begun)) {}
        [[nodiscard]] bool is_done() override {
            int done = 0;
            MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE);
            return done != 0;
        }
        void wait() override { of.wait(requests); }

        const Communicator& of;
        Requests requests;
    };

    MPI_Comm comm_ = MPI_COMM_NULL;
    double wait_limit_;
};

}  // namespace unitscale::distributed
