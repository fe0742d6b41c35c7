// SPDX-License-Identifier: MIT
#include <unitscale/analysis/scale_warnings.hpp>

#include "support/catch.hpp"
#include "support/test_ops.hpp"

#include <limits>
#include <string>
#include <vector>

using namespace unitscale;

namespace {

struct Step {
    Step() { tape.begin_step({.retain = true}); }
    [[nodiscard]] Variable<double> input(double value) { return tape.input(Tensor<double>({2}, {value, value}), true); }
    [[nodiscard]] std::vector<std::string> lines(const analysis::ScaleBounds& bounds = {}) {
        std::vector<std::string> texts;
        for (const auto& warning : analysis::check_scales(tape, bounds)) texts.push_back(analysis::to_text(warning));
        return texts;
    }
    Recipe recipe{};
    ScalingState state{1};
    Tape<double> tape{recipe, state};
};
using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("check_scales: tensors within the bounds, zeros and single numbers pass") {
    Step step;
    const auto x = step.input(2.0);
    step.tape.backward(test::sum(test::mul(x, step.input(0.0))), 100.0);  // the loss and its seed are single numbers
    CHECK(step.lines({0.1, 300.0}).empty());
    CHECK(step.lines({0.1, 150.0}) == Lines{"mul: the gradient that it sends to input has rms 200"});
}

TEST_CASE("check_scales: the op at which values leave the bounds is listed, and nothing that follows from it") {
    Step step;
    const auto scope = step.tape.scope("model");
    const auto large = test::square(step.input(4.0));  // 16
    const auto larger = test::square(large);           // 256: follows
    const auto small = test::square(step.input(0.2));  // 0.04
    step.tape.backward({test::sum(larger), test::sum(small)}, {1e-4, 1.0});
    const Lines lines = step.lines();
    REQUIRE(lines.size() >= 2);
    CHECK(lines[0] == "model/square: its value has rms 16");
    CHECK(lines[1] == "model/square.2: its value has rms 0.04");
}

TEST_CASE("check_scales: the op that sends a gradient out of bounds is listed, and nothing before it") {
    Step step;
    Parameter<double> weight("weight", Shape{2}, {});
    weight.write() = Tensor<double>({2}, {9.0, 9.0});
    const auto x = step.input(1.0);
    const auto y = test::mul(test::square(x), step.tape.parameter(weight));  // 9
    step.tape.backward(test::sum(test::mul(y, step.input(2.0))));
    // dy = 2; then 18 for the square, 36 for x, and 2 for the weight.
    CHECK(step.lines({0.1, 20.0}) == Lines{"square: the gradient that it sends to input has rms 36"});
    CHECK(step.lines({0.1, 1.5}) == Lines{"weight: its value has rms 9", "input: its value has rms 2",
                                          "mul.1: the gradient that it sends to mul has rms 2",
                                          "mul.1: the gradient that it sends to input has rms 9"});
}

TEST_CASE("check_scales: infinity and NaN are out of bounds; a freed step is an error") {
    Step step;
    const auto x = step.input(std::numeric_limits<double>::infinity());
    step.tape.backward(test::sum(test::square(x)));
    CHECK(step.lines().front() == "input: its value has rms inf");
    step.tape.begin_step();
    CHECK_THROWS_WITH(analysis::check_scales(step.tape), "check_scales: begin the step with {.retain = true}");
}
