// SPDX-License-Identifier: MIT
#include <unitscale/autograd/handles.hpp>

#include "support/catch.hpp"
#include "support/test_ops.hpp"

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

using namespace unitscale;
using namespace unitscale::test;

TEST_CASE("a handle table counts the handles of tensors that share memory together") {
    auto* table = new HandleTable<double>(nullptr);
    table->begin();
    for (const std::uint32_t root : {0u, 1u, 0u}) table->add_tensor(root);
    REQUIRE(table->size() == 3);
    REQUIRE(table->root(2) == 0);
    const std::uint64_t now = table->generation();
    table->add_handle(0, now);
    table->add_handle(2, now);
    table->add_handle(1, now);
    REQUIRE(table->count(0) == 2);
    table->remove_handle(0, now);
    REQUIRE(table->unnamed().empty());
    table->remove_handle(2, now);
    REQUIRE(std::vector<std::uint32_t>(table->unnamed().begin(), table->unnamed().end()) ==
            std::vector<std::uint32_t>{0});
    table->forget_unnamed();
    table->begin();  // the handle of tensor 1 now belongs to an earlier step
    table->add_tensor(0);
    table->add_handle(0, table->generation());
    table->remove_handle(1, now);
    REQUIRE(table->count(0) == 1);
    REQUIRE(table->unnamed().empty());
    table->remove_handle(0, table->generation());
    table->remove_tape();  // the last owner: deletes the table, as the address sanitizer sees
}

TEST_CASE("copies, moves and assignments of a variable are counted") {
    const Recipe recipe;
    ScalingState state;
    Tape<double> tape(recipe, state);
    tape.begin_step({.gradients = false});
    Variable<double> x = square(vector_input<double>(tape, {2.0}));
    const auto alive = [&] {
        static_cast<void>(tape.make(Shape{1}));  // memory without a handle goes back first
        return tape.slot(1).value != nullptr;
    };
    {
        Variable<double> copy = x;
        const Variable<double> moved = std::move(copy);
        copy = moved;
        const auto& itself = copy;
        copy = itself;
        x = Variable<double>();
        REQUIRE(alive());
        REQUIRE(copy.value().data()[0] == 4.0);
    }
    REQUIRE_FALSE(alive());
    static_assert(std::is_nothrow_move_constructible_v<Variable<double>> &&
                  std::is_nothrow_copy_constructible_v<Variable<double>>);
}

TEST_CASE("a variable that outlives its tape is an error in every use, and nothing else") {
    const Recipe recipe;
    ScalingState state;
    Variable<double> x;
    {
        Tape<double> tape(recipe, state);
        tape.begin_step();
        x = vector_input<double>(tape, {1.0});
    }
    const Variable<double> copy = x;
    REQUIRE_THROWS_WITH(copy.value(), "value: a Variable of a tape that is gone");
    REQUIRE_THROWS_WITH(square(x), "square: a Variable of a tape that is gone");
}
