// SPDX-License-Identifier: MIT
#include <unitscale/scaling/magnitudes.hpp>

#include "support/catch.hpp"
#include "support/error_of.hpp"

#include <limits>
#include <map>
#include <string>

using namespace unitscale;

namespace {

const ScaleRule delayed{.source = ScaleSource::delayed, .margin = 0, .history = 3};
constexpr Magnitudes::Step training(std::uint64_t number) { return {number, true}; }

}  // namespace

TEST_CASE("magnitudes: a delayed bias follows the largest of past training steps, and micro-batches are one step") {
    Magnitudes magnitudes;
    const auto bias = [&](float now, Magnitudes::Step step) {
        return magnitudes.bias("block/linear", operand_place(OperandRole::weight), e4m3, delayed, step,
                               [now] { return now; });
    };
    const auto of = [](float amax) { return amax_bias(e4m3, amax, 0); };
    CHECK(bias(1.0f, training(1)) == of(1.0f));  // no past: the present
    CHECK(bias(64.0f, training(1)) == of(64.0f));
    CHECK(bias(0.25f, training(2)) == of(64.0f));
    CHECK(bias(1024.0f, {2, false}) == of(64.0f));  // not remembered
    CHECK(bias(0.25f, training(3)) == of(64.0f));
    CHECK(bias(0.25f, training(4)) == of(64.0f));
    CHECK(bias(0.25f, training(5)) == of(0.25f));  // step 1 is four steps ago
    CHECK(magnitudes.last_bias("block/linear", operand_place(OperandRole::weight)) == of(0.25f));
    CHECK(magnitudes.last_bias("block/linear", operand_place(OperandRole::gradient)) == 0);
    CHECK(magnitudes.last_bias("elsewhere", operand_place(OperandRole::weight)) == 0);
    CHECK(magnitudes.has_bias("block/linear", operand_place(OperandRole::weight)));
    CHECK_FALSE(magnitudes.has_bias("block/linear", operand_place(OperandRole::gradient)));
    CHECK_FALSE(magnitudes.has_bias("elsewhere", operand_place(OperandRole::weight)));
}

TEST_CASE("magnitudes: an operand that is not finite is counted once") {
    Magnitudes magnitudes;
    const ScaleRule amax{.source = ScaleSource::amax};
    for (int i = 0; i < 3; ++i)
        static_cast<void>(
            magnitudes.bias("p", 0, e4m3, amax, training(1), [] { return std::numeric_limits<float>::infinity(); }));
    CHECK(magnitudes.non_finite_operands() == 1);
}

TEST_CASE("magnitudes: a delayed size is the last training step's, by op and number; the first step has its own") {
    Magnitudes magnitudes;
    CHECK(magnitudes.delayed_size("a", 0, 4.0, training(1)) == 4.0);
    CHECK(magnitudes.delayed_size("a", 0, 16.0, training(1)) == 16.0);  // a micro-batch of the first step
    CHECK(magnitudes.delayed_size("a", 0, 1.0, training(2)) == 16.0);
    CHECK(magnitudes.delayed_size("a", 0, 64.0, {2, false}) == 16.0);
    CHECK(magnitudes.delayed_size("a", 0, 2.0, training(3)) == 1.0);
    CHECK(magnitudes.delayed_size("a", 1, 8.0, training(3)) == 8.0);
    CHECK(magnitudes.delayed_size("b", 0, 8.0, training(3)) == 8.0);
    CHECK(magnitudes.delayed_size("c", 0, 8.0, {3, false}) == 8.0);
}

TEST_CASE("magnitudes: the table restores the past, of operands and sizes, and refuses other entries") {
    using Table = std::map<std::string, double>;
    Magnitudes from;
    const auto use = [](Magnitudes& magnitudes, std::uint64_t step, float now) {
        return std::pair(magnitudes.bias("block/linear", 1, e4m3, delayed, training(step), [now] { return now; }),
                         magnitudes.delayed_size("block/norm", 2, static_cast<double>(now), training(step)));
    };
    for (std::uint64_t step = 1; step <= 3; ++step) static_cast<void>(use(from, step, static_cast<float>(8 * step)));
    const Table table = from.table<Table>();
    CHECK(table.at("block/linear|weight|step") == 3.0);
    CHECK(table.at("block/norm|size.2|current") == 24.0);
    CHECK(table.at("block/norm|size.2|0") == 16.0);
    Magnitudes to;
    to.set_table(table);
    CHECK(to.table<Table>() == table);
    CHECK(use(to, 4, 0.5f) == use(from, 4, 0.5f));
    const auto message = [](const Table& entries) {
        try {
            Magnitudes().set_table(entries);
        } catch (const Error& error) {
            return std::string(error.what());
        }
        return std::string("no error");
    };
    CHECK(message({{"block", 1.0}}) == "ScalingState: amax entry 'block'; expected path|role|name");
    CHECK(message({{"block|other|step", 1.0}}) == "ScalingState: amax entry 'block|other|step' has an unknown role");
    CHECK(message({{"block|size|x", 1.0}}) ==
          "ScalingState: amax entry 'block|size|x'; expected step, current or a number");
}

TEST_CASE("magnitudes: a process takes over those of another process's micro-batches") {
    // Two processes with a micro-batch each, and one with both.
    Magnitudes first, second, whole;
    const auto use = [](Magnitudes& magnitudes, float now, Magnitudes::Step step) {
        return magnitudes.bias("p", 1, e4m3, delayed, step, [now] { return now; });
    };
    for (std::uint64_t step = 1; step <= 5; ++step) {
        const float here = static_cast<float>(step), there = step == 2 ? 256.0f : 0.5f;
        CHECK(use(first, here, training(step)) == use(whole, here, training(step)));
        CHECK(use(second, there, training(step)) == use(whole, there, training(step)));
        if (step == 3)
            static_cast<void>(second.delayed_size("q", 0, 4.0, training(step)));  // no micro-batch of `first`
        if (step == 3) static_cast<void>(whole.delayed_size("q", 0, 4.0, training(step)));
        std::size_t seen = 0;
        second.for_each_of_step(step,
                                [&](const std::string& path, std::size_t place, float largest, std::size_t history) {
                                    ++seen;
                                    first.raise(path, place, largest, history, training(step));
                                });
        CHECK(seen == (step == 3 ? 2 : 1));
        first.for_each_of_step(step,
                               [&](const std::string& path, std::size_t place, float largest, std::size_t history) {
                                   second.raise(path, place, largest, history, training(step));
                               });
        using Table = std::map<std::string, double>;
        CHECK(first.table<Table>() == whole.table<Table>());
        CHECK(second.table<Table>() == whole.table<Table>());
    }
    first.for_each_of_step(4, [](const std::string&, std::size_t, float, std::size_t) { FAIL("a past step"); });
    CHECK(test::error_of([&] {
              first.raise("p", 99, 1.0f, 1, training(6));
          }).starts_with("ScalingState: magnitude 99 of p; "));
}
