// SPDX-License-Identifier: MIT
#include <unitscale/autograd/observer.hpp>

#include "support/catch.hpp"
#include "support/test_ops.hpp"

#include <string>
#include <vector>

using namespace unitscale;
using namespace unitscale::test;

namespace {

/// Writes every event as a line: pass, path, op, index, first element.
class Recorder : public Observer<double> {
public:
    void observe(const TensorEvent<double>& event) override {
        lines.push_back(std::string(event.pass == Pass::value ? "value " : "gradient ") + std::string(event.path) +
                        " " + std::string(event.op) + " " + std::to_string(event.index) + " " +
                        std::to_string(static_cast<int>(event.tensor.data()[0])));
    }
    std::vector<std::string> lines{};
};

}  // namespace

TEST_CASE("an observer sees values on the way forward and complete gradients on the way back, by path and in order") {
    const Recipe recipe;
    ScalingState state;
    Tape<double> tape(recipe, state);
    Recorder recorder;
    tape.set_observer(&recorder);
    Parameter<double> weight("model/weight", Shape{2}, {});
    weight.write().data()[0] = 3.0;
    tape.begin_step();
    {
        const auto model = tape.scope("model");
        const Variable<double> w = tape.parameter(weight);
        const Variable<double> y = square(w);  // 9, used twice
        const auto inner = tape.scope("inner");
        const auto [first, last] = halves(mul(y, tape.parameter(weight)));  // 27
        tape.backward({sum(square(y)), sum(first)}, {1.0, 2.0});
        static_cast<void>(last);
    }
    REQUIRE(recorder.lines ==
            std::vector<std::string>{"value model/weight parameter 0 3", "value model/square square 0 9",
                                     "value model/inner/mul mul 0 27", "value model/inner/halves halves 0 27",
                                     "value model/inner/halves halves 1 0", "value model/inner/square square 0 81",
                                     "value model/inner/sum sum 0 81", "value model/inner/sum.1 sum 0 27",
                                     "gradient model/inner/sum.1 sum 0 2", "gradient model/inner/sum sum 0 1",
                                     "gradient model/inner/square square 0 1", "gradient model/inner/halves halves 0 2",
                                     "gradient model/inner/mul mul 0 2",
                                     "gradient model/square square 0 24",        // 2 y + 2 w, both consumers added
                                     "gradient model/weight parameter 0 162"});  // 24 * 2 w + 2 y
}

TEST_CASE("a detached observer sees nothing and frozen parameters show no gradient") {
    const Recipe recipe;
    ScalingState state;
    Tape<double> tape(recipe, state);
    Recorder recorder;
    Parameter<double> frozen("frozen", Shape{1}, {});
    frozen.set_requires_gradient(false);
    fill_zero(frozen.write());
    tape.set_observer(&recorder);
    tape.begin_step();
    tape.backward(mul(vector_input<double>(tape, {2.0}), tape.parameter(frozen)));
    REQUIRE(recorder.lines ==
            std::vector<std::string>{"value frozen parameter 0 0", "value mul mul 0 0", "gradient mul mul 0 1"});
    tape.set_observer(nullptr);
    tape.begin_step();
    tape.backward(square(vector_input<double>(tape, {2.0})));
    REQUIRE(recorder.lines.size() == 3);
}

TEST_CASE("an event shows the inputs of its op: which tensors they are, and their values") {
    class Inputs : public Observer<double> {
    public:
        void begin_step(const ObservedStep& step) override {
            lines.push_back(concatenate("step ", step.step, step.training ? " training " : " evaluation ",
                                        step.micro_batch, '/', step.micro_batches));
        }
        void observe(const TensorEvent<double>& event) override {
            lines.push_back(concatenate(event.path, " <-"));
            for (const EventInput<double>& input : event.inputs)
                lines.back() += ' ', lines.back() += concatenate(input.path, ' ', input.op, ' ', input.index, ' ',
                                                                 input.value->data()[0]);
        }
        std::vector<std::string> lines{};
    };
    const Recipe recipe;
    ScalingState state;
    Tape<double> tape(recipe, state);
    Inputs inputs;
    tape.set_observer(&inputs);
    Parameter<double> weight("weight", Shape{1}, {});
    weight.write().data()[0] = 3.0;
    tape.begin_step({.micro_batches = 2});
    const auto [first, last] = halves(vector_input<double>(tape, {2.0, 5.0}, false));
    static_cast<void>(first);
    tape.backward(mul(last, tape.parameter(weight)));
    REQUIRE(inputs.lines == std::vector<std::string>{"step 1 training 0/2", "halves <- input input 0 2",
                                                     "halves <- input input 0 2", "weight <-",
                                                     "mul <- halves halves 1 5 weight parameter 0 3",
                                                     "mul <- halves halves 1 5 weight parameter 0 3", "weight <-"});
    inputs.lines.clear();
    tape.begin_step({.micro_batches = 2, .micro_batch = 1});
    tape.begin_step({.training = false});
    tape.begin_step({.gradients = false});
    REQUIRE(inputs.lines ==
            std::vector<std::string>{"step 1 training 1/2", "step 1 evaluation 0/1", "step 1 evaluation 0/1"});
}
