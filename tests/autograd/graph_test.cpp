// SPDX-License-Identifier: MIT
#include <unitscale/autograd/graph.hpp>

#include "support/catch.hpp"
#include "support/test_ops.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

using namespace unitscale;
using namespace unitscale::test;

TEST_CASE("an arena gives aligned objects and the same memory again after a reset") {
    struct alignas(64) Wide {
        std::array<double, 1000> numbers{};
    };
    Arena arena;
    std::vector<const void*> first, second;
    for (auto* addresses : {&first, &second}) {
        for (int i = 0; i < 20; ++i) {
            char* letter = arena.make('a');
            Wide* wide = arena.make(Wide{{static_cast<double>(i)}});
            REQUIRE(*letter == 'a');
            REQUIRE(wide->numbers[0] == i);
            REQUIRE(reinterpret_cast<std::uintptr_t>(wide) % 64 == 0);
            addresses->push_back(letter);
            addresses->push_back(wide);
        }
        arena.reset();
    }
    REQUIRE(first == second);  // 160 kB: several blocks
}

TEST_CASE("objects of an arena do not overlap") {
    Arena arena;
    std::vector<std::array<int, 9>*> made;
    for (int i = 0; i < 5000; ++i) made.push_back(arena.make(std::array<int, 9>{i, 0, 0, 0, 0, 0, 0, 0, -i}));
    for (int i = 0; i < 5000; ++i)
        REQUIRE(((*made[static_cast<std::size_t>(i)])[0] == i && (*made[static_cast<std::size_t>(i)])[8] == -i));
}

TEST_CASE("an arena moves its argument and refuses an object larger than a block") {
    Arena arena;
    std::string* text = arena.make(std::string(100, 'x'));
    REQUIRE(text->size() == 100);
    text->~basic_string();
    struct Huge {
        std::array<char, 1 << 16> bytes{};
    };
    REQUIRE_THROWS_WITH(arena.make(Huge{}), "arena: an object of 65536 bytes does not fit a block of 65536");
}

TEST_CASE("a reused list keeps its objects' addresses and memory") {
    ReusedList<std::vector<int>> list;
    std::vector<int>& first = list.add();
    first.assign(100, 1);
    for (int i = 0; i < 100; ++i) static_cast<void>(list.add());
    REQUIRE(&list[0] == &first);
    list.clear();
    REQUIRE(list.size() == 0);
    REQUIRE(&list.add() == &first);
    REQUIRE(first.capacity() >= 100);
    REQUIRE(list.size() == 1);
}

TEST_CASE("the recorded graph has one vertex per op, input and parameter, and one edge per use") {
    const Recipe recipe;
    ScalingState state;
    Tape<double> tape(recipe, state);
    Parameter<double> weight("weight", Shape{2}, {});
    fill_zero(weight.write());
    tape.begin_step();
    const Variable<double> x = vector_input<double>(tape, {1.0, 2.0});                    // slot 0
    const Variable<double> y = mul(x, x, {.alpha = 0.5, .beta_a = 0.25, .beta_b = 4.0});  // slot 1
    const Variable<double> z = mul(y, tape.parameter(weight));                            // slots 3, 2
    const auto parts = split(mul(z, tape.parameter(weight)));                             // slots 5, 6 of 4
    static_cast<void>(parts);
    REQUIRE(tape.node_count() == 4);
    REQUIRE(std::string(tape.node(0).op) == "mul");
    REQUIRE(state.path(tape.node(1).site) == "mul.1");
    REQUIRE(tape.node(0).inputs == std::vector<std::uint32_t>{0, 0});
    REQUIRE(tape.node(0).outputs == std::vector<std::uint32_t>{1});
    REQUIRE(tape.node(0).alpha == 0.5);
    REQUIRE(tape.node(0).betas == std::vector<double>{0.25, 4.0});
    REQUIRE(tape.node(1).inputs == std::vector<std::uint32_t>{1, 2});
    REQUIRE(tape.node(2).inputs == std::vector<std::uint32_t>{3, 2});
    REQUIRE(tape.node(3).outputs == std::vector<std::uint32_t>{5, 6});
    REQUIRE(tape.slot(0).uses == 2);
    REQUIRE(tape.slot(1).uses == 1);
    REQUIRE(tape.slot(2).uses == 2);
    REQUIRE(tape.slot(2).source == &weight);
    REQUIRE(tape.slot(2).leaf);
    REQUIRE(tape.slot(5).value == tape.slot(4).value);  // repeated, not copied
}

namespace {
struct Counted {
    int* alive;
    explicit Counted(int& count) : alive(&count) { ++*alive; }
    Counted(const Counted& other) : alive(other.alive) { ++*alive; }
    Counted& operator=(const Counted&) = delete;
    ~Counted() { --*alive; }
    void operator()(BackwardContext<double>&) const {}
};
}  // namespace

TEST_CASE("captures of a backward function are destroyed with the step, the backward pass or the tape") {
    const Recipe recipe;
    ScalingState state;
    int alive = 0;
    const auto record = [&](Tape<double>& tape, bool requires_gradient) {
        const Variable<double> x = vector_input<double>(tape, {1.0}, requires_gradient);
        return tape.record({"counted", tape.next_site("counted"), 1.0, {1.0}}, {x}, tape.make(Shape{1}),
                           Counted(alive));
    };
    {
        Tape<double> tape(recipe, state);
        tape.begin_step();
        static_cast<void>(record(tape, true));
        REQUIRE(alive == 1);
        tape.begin_step();
        REQUIRE(alive == 0);
        tape.backward(record(tape, true));
        REQUIRE(alive == 0);
        tape.begin_step({.training = false, .gradients = false});
        static_cast<void>(record(tape, true));
        REQUIRE(tape.node(0).closure == nullptr);
        static_cast<void>(record(tape, false));
        REQUIRE(alive == 0);
        tape.begin_step();
        static_cast<void>(record(tape, false));
        REQUIRE(alive == 0);
        static_cast<void>(record(tape, true));
        REQUIRE(alive == 1);
    }
    REQUIRE(alive == 0);
}
