// SPDX-License-Identifier: MIT
#include <unitscale/distributed/communicator.hpp>

#include "support/catch.hpp"
#include "support/error_of.hpp"
#include "support/mpi_session.hpp"
#include "support/shared_training.hpp"

#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/train/element.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

// Runs alone and under mpirun (tests/CMakeLists.txt): every process makes the same checks.
using namespace unitscale;

TEST_CASE("processes exchange, collect and gather through MPI") {
    REQUIRE(test::mpi_session().local_size() >= 1);
    CHECK(test::error_of([] { const distributed::Session second; }) ==
          "Session: MPI has been begun before; expected one Session in a process");
    distributed::Communicator group;
    const std::size_t size = group.size(), rank = group.rank();
    REQUIRE(rank < size);
    CHECK(test::mpi_session().local_size() == size);

    // Process r sends r + s + 1 numbers of value 100 r + s to process s.
    std::vector<std::uint32_t> send;
    std::vector<std::size_t> send_bytes, receive_bytes;
    for (std::size_t s = 0; s < size; ++s) {
        send.insert(send.end(), rank + s + 1, static_cast<std::uint32_t>(100 * rank + s));
        send_bytes.push_back(4 * (rank + s + 1));
        receive_bytes.push_back(4 * (rank + s + 1));
    }
    std::vector<std::uint32_t> receive(send.size()), expected;
    group.exchange(std::as_bytes(std::span(send)), send_bytes, std::as_writable_bytes(std::span(receive)),
                   receive_bytes);
    for (std::size_t r = 0; r < size; ++r)
        expected.insert(expected.end(), rank + r + 1, static_cast<std::uint32_t>(100 * r + rank));
    CHECK(receive == expected);

    std::fill(receive.begin(), receive.end(), 0u);
    const auto pending = group.begin_exchange(std::as_bytes(std::span(send)), send_bytes,
                                              std::as_writable_bytes(std::span(receive)), receive_bytes);
    while (!pending->is_done()) {
    }
    pending->wait();
    CHECK(receive == expected);

    std::vector<std::size_t> bytes(size);
    for (std::size_t r = 0; r < size; ++r) bytes[r] = 4 * r;
    const std::vector<std::uint32_t> mine(rank, static_cast<std::uint32_t>(rank));
    std::vector<std::uint32_t> all(size * (size - 1) / 2), wanted;
    group.collect(std::as_bytes(std::span(mine)), std::as_writable_bytes(std::span(all)), bytes);
    for (std::size_t r = 0; r < size; ++r) wanted.insert(wanted.end(), r, static_cast<std::uint32_t>(r));
    CHECK(all == wanted);

    const auto parts = group.gather(std::as_bytes(std::span(mine)));
    REQUIRE(parts.size() == size);
    for (std::size_t r = 0; r < size; ++r) CHECK(parts[r].size() == 4 * r);

    const std::vector<std::size_t> too_large(size, std::numeric_limits<std::size_t>::max() / 4);
    CHECK(test::error_of([&] { group.collect({}, {}, too_large); }).starts_with("Communicator: a message of "));
}

TEST_CASE("a process that waits too long names those that have not answered") {
    REQUIRE(test::mpi_session().local_size() >= 1);
    CHECK(test::error_of([] { const distributed::Communicator none(MPI_COMM_WORLD, 0.0); }) ==
          "Communicator: a wait limit of 0 s; expected a positive number");
    distributed::Communicator together;
    const std::size_t size = together.size(), rank = together.rank();
    if (size == 1) return;
    distributed::Communicator group(MPI_COMM_WORLD, rank == 0 ? 0.5 : 60.0);
    static_cast<void>(together.gather({}));
    if (rank > 0) std::this_thread::sleep_for(std::chrono::seconds(2));
    std::string line;
    try {
        static_cast<void>(group.gather({}));
    } catch (const distributed::NoAnswer& error) {
        line = error.what();
    }
    if (rank > 0) CHECK(line.empty());  // process 0 was there
    else
        CHECK(line == concatenate("processes: rank 0 has waited 0.5 s for ",
                                  size == 2   ? "rank 1"
                                  : size == 3 ? "ranks 1, 2"
                                              : concatenate("ranks 1, 2 and ", size - 3, " more")));
}

TEST_CASE("a process that is late is waited for") {
    REQUIRE(test::mpi_session().local_size() >= 1);
    distributed::Communicator group(MPI_COMM_WORLD, 60.0);
    if (group.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    const std::vector<std::byte> mine(1 << 20, static_cast<std::byte>(group.rank()));
    const auto all = group.gather(mine);
    for (std::size_t r = 0; r < group.size(); ++r)
        CHECK(all[r] == std::vector<std::byte>(1 << 20, static_cast<std::byte>(r)));
}

TEST_CASE("30 steps have equal bits in the processes of MPI and in one process alone") {
    REQUIRE(test::mpi_session().local_size() >= 1);
    const auto group = std::make_shared<distributed::Communicator>();
    for (const char* name : test::shared_recipes) {
        INFO(name);
        const Recipe recipe = find_recipe(name);
        train::with_element(recipe, [&]<class T>(std::type_identity<T>) {
            const test::Outcome shared = test::shared_run<T>(recipe, 4, group, 30);
            CHECK(shared.losses.size() == 30);
            CHECK(shared == test::shared_run<T>(recipe, 4, std::make_shared<train::ProcessGroup>(), 30));
        });
    }
}

TEST_CASE("30 steps with shared state and overlap have equal bits in the processes of MPI and in one alone") {
    REQUIRE(test::mpi_session().local_size() >= 1);
    const auto group = std::make_shared<distributed::Communicator>();
    for (const char* name : {"fp16-histogram-loss-scaled", "umup-fp8", "scalify-fp8-4", "fp8-delayed"}) {
        const Recipe recipe = find_recipe(name);
        train::with_element(recipe, [&]<class T>(std::type_identity<T>) {
            const test::Outcome one = test::shared_run<T>(recipe, 4, std::make_shared<train::ProcessGroup>(), 30);
            for (const train::TreeReducerOptions& options : test::shared_options()) {
                INFO(name << ", sharding " << train::name(options.sharding) << ", overlap " << options.overlap);
                CHECK(test::shared_run<T>(recipe, 4, group, 30, options) == one);
            }
        });
    }
}

TEST_CASE("gradients that travel as codes have equal bits in the processes of MPI and in one process alone") {
    REQUIRE(test::mpi_session().local_size() >= 1);
    const auto group = std::make_shared<distributed::Communicator>();
    Recipe recipe = find_recipe("fp32");
    for (const Communication& rule :
         {Communication{.element = {.format = bf16}}, Communication{.element = {.format = e5m2}, .block = 64},
          Communication{.element = {.format = e4m3}, .block = 32, .error_feedback = true}}) {
        INFO(name(rule.element.format));
        recipe.communication = rule;
        CHECK(test::shared_run<float>(recipe, 4, group, 10) ==
              test::shared_run<float>(recipe, 4, std::make_shared<train::ProcessGroup>(), 10));
    }
}

TEST_CASE("processes of MPI with other facts are refused") {
    REQUIRE(test::mpi_session().local_size() >= 1);
    distributed::Communicator group;
    const bool last = group.rank() + 1 == group.size();
    const std::vector<train::SharedFact> facts = {{"build", "1"}, {"seed", last ? "8" : "7"}};
    const std::string error = test::error_of([&] { train::check_same(group, facts); });
    if (group.size() == 1) CHECK(error.empty());
    else
        CHECK(error ==
              concatenate("processes: rank ", group.size() - 1, " has another seed than rank 0: '8', not '7'"));
}
