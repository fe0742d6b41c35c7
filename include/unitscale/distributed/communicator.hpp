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

#include <cstddef>
#include <cstdlib>
#include <limits>
#include <memory>
#include <span>
#include <vector>

namespace unitscale::distributed {

/// MPI in this process, from construction to destruction. `mpirun` starts the processes; without it there is one.
/// Make one in `main`, before threads, and let it live longer than every Communicator.
/// An error in MPI itself ends all processes, with MPI's own message.
/// Errors: MPI has been begun or ended before. Test: tests/distributed/communicator_test.cpp
class Session {
public:
    Session() {
        int begun = 0;
        MPI_Initialized(&begun);
        check(begun == 0, "Session: MPI has been begun before; expected one Session in a process");
        int level = 0;
        MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &level);
    }
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
    /// Waits for all processes.
    ~Session() { MPI_Finalize(); }

    /// Ends all processes at once, with this exit code. For a process that cannot go on: the others wait for it.
    [[noreturn]] void abort(int code) const noexcept {
        MPI_Abort(MPI_COMM_WORLD, code);
        std::abort();
    }

    /// The number of processes on this machine: they share its processors.
    [[nodiscard]] std::size_t local_size() const {
        MPI_Comm local = MPI_COMM_NULL;
        MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &local);
        int size = 0;
        MPI_Comm_size(local, &size);
        MPI_Comm_free(&local);
        return static_cast<std::size_t>(size);
    }
};

/// The processes of an MPI communicator as a group that trains together. It duplicates the communicator, so that its
/// messages meet no others.
///   distributed::Session session;
///   auto group = std::make_shared<distributed::Communicator>();
///   trainer.set_reducer(std::make_shared<train::TreeReducer<float>>(group));
/// Test: tests/distributed/communicator_test.cpp
class Communicator final : public train::ProcessGroup {
public:
    explicit Communicator(MPI_Comm of = MPI_COMM_WORLD) { MPI_Comm_dup(of, &comm_); }
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

    /// Error: 2^31 bytes and more.
    void exchange(std::span<const std::byte> send, std::span<const std::size_t> send_bytes,
                  std::span<std::byte> receive, std::span<const std::size_t> receive_bytes) override {
        const Parts out(send_bytes), in(receive_bytes);
        MPI_Alltoallv(send.data(), out.counts.data(), out.begins.data(), MPI_BYTE, receive.data(), in.counts.data(),
                      in.begins.data(), MPI_BYTE, comm_);
    }
    /// Error: 2^31 bytes and more.
    [[nodiscard]] std::unique_ptr<train::PendingExchange> begin_exchange(
        std::span<const std::byte> send, std::span<const std::size_t> send_bytes, std::span<std::byte> receive,
        std::span<const std::size_t> receive_bytes) override {
        auto pending = std::make_unique<Pending>(send_bytes, receive_bytes);
        const Parts &out = pending->out, &in = pending->in;
        MPI_Ialltoallv(send.data(), out.counts.data(), out.begins.data(), MPI_BYTE, receive.data(), in.counts.data(),
                       in.begins.data(), MPI_BYTE, comm_, &pending->request);
        return pending;
    }
    /// Error: 2^31 bytes and more.
    void collect(std::span<const std::byte> mine, std::span<std::byte> all,
                 std::span<const std::size_t> bytes) override {
        const Parts in(bytes);
        MPI_Allgatherv(mine.data(), in.counts[rank()], MPI_BYTE, all.data(), in.counts.data(), in.begins.data(),
                       MPI_BYTE, comm_);
    }

private:
    /// Sizes and places of parts, as MPI takes them.
    struct Parts {
        explicit Parts(std::span<const std::size_t> bytes) {
            std::size_t begin = 0;
            for (const std::size_t part : bytes) {
                begins.push_back(static_cast<int>(begin));
                counts.push_back(static_cast<int>(part));
                begin += part;
                check(begin <= static_cast<std::size_t>(std::numeric_limits<int>::max()), "Communicator: a message of ",
                      begin, " bytes; expected less than 2^31");
            }
        }
        std::vector<int> counts{}, begins{};
    };

    /// An exchange on its way. MPI reads the sizes until its end.
    struct Pending final : train::PendingExchange {
        Pending(std::span<const std::size_t> send_bytes, std::span<const std::size_t> receive_bytes)
            : out(send_bytes), in(receive_bytes) {}
        [[nodiscard]] bool is_done() override {
            int done = 0;
            MPI_Test(&request, &done, MPI_STATUS_IGNORE);
            return done != 0;
        }
        void wait() override { MPI_Wait(&request, MPI_STATUS_IGNORE); }

        Parts out, in;
        MPI_Request request = MPI_REQUEST_NULL;
    };

    MPI_Comm comm_ = MPI_COMM_NULL;
};

}  // namespace unitscale::distributed
