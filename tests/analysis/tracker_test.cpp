// SPDX-License-Identifier: MIT
#include <unitscale/analysis/tracker.hpp>
#include <unitscale/autograd/tape.hpp>

#include "support/catch.hpp"
#include "support/test_ops.hpp"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

using namespace unitscale;
using namespace unitscale::test;
using analysis::Track;
using analysis::TrackedTensor;
using analysis::Tracker;

namespace {

/// loss = sum((x w)^2), in its own module.
struct Model {
    Recipe recipe{};
    ScalingState state{};
    Tape<float> tape{recipe, state};
    Parameter<float> weight{"model/weight", Shape{4}, {}};

    Model() { std::fill_n(weight.write().data(), 4, 0.5F); }

    void step(const StepOptions& options = {}, float x = 2.0F) {
        tape.begin_step(options);
        const auto scope = tape.scope("model");
        const Variable<float> product = mul(vector_input<float>(tape, {x, x, x, 0.0F}), tape.parameter(weight));
        const auto [a, b] = split(square(product));
        static_cast<void>(b);
        const Variable<float> loss = sum(a);
        if (options.gradients) tape.backward(loss);
    }
};

const TrackedTensor& find(const Track& track, const std::string& label) {
    for (const TrackedTensor& tensor : track.tensors)
        if (tensor.label() == label) return tensor;
    FAIL("no tensor " << label);
    throw 0;
}

std::vector<std::uint64_t> steps_of(const analysis::TrackedPass& side) {
    std::vector<std::uint64_t> steps;
    for (const analysis::TrackedStep& step : side.steps) steps.push_back(step.step);
    return steps;
}

}  // namespace

TEST_CASE("tracker: both passes of every tensor, at the first step, every N steps and the last one") {
    Model model;
    Tracker<float> tracker({.name = "run", .every = 3, .last_step = 8, .value_format = e2m1, .gradient_format = e5m2});
    model.tape.set_observer(&tracker);
    for (int i = 0; i < 8; ++i) {
        model.weight.clear_gradient();
        model.step({}, static_cast<float>(1 << i));
        model.step({.training = false});
        model.step({.gradients = false});
    }
    const Track& track = tracker.finish();
    CHECK(track.name == "run");
    CHECK_FALSE(track.non_finite);
    std::vector<std::string> labels;
    for (const TrackedTensor& tensor : track.tensors) labels.push_back(tensor.label());
    CHECK(labels == std::vector<std::string>{"model/weight", "model/mul", "model/square", "model/split",
                                             "model/split[1]", "model/sum"});
    const TrackedTensor& product = find(track, "model/mul");
    CHECK(product.shape == Shape{4});
    CHECK(product.inputs == std::vector<std::size_t>{0});
    CHECK(role(product, Pass::value) == "activation");
    CHECK(role(product, Pass::gradient) == "gradient");
    CHECK(role(find(track, "model/weight"), Pass::value) == "weight");
    CHECK(role(find(track, "model/weight"), Pass::gradient) == "weight gradient");
    CHECK(steps_of(product.value) == std::vector<std::uint64_t>{1, 4, 7, 8});
    CHECK(steps_of(product.gradient) == std::vector<std::uint64_t>{1, 4, 7, 8});
    // Step 8: x w = 64, 64, 64, 0.
    const analysis::TensorSummary& last = product.value.steps.back().summary;
    CHECK(last.mean == 48.0);
    CHECK(last.largest == 64.0);
    CHECK(last.zeros == 1);
    CHECK(last.overflow == 3);  // of e2m1, which ends at 6
    CHECK(product.gradient.steps.back().summary.overflow == 0);
    CHECK(product.gradient.steps.back().summary.largest == 128.0);  // 2 x w
    CHECK(product.value.first.at(-1) == 3);
    CHECK(product.value.last.at(6) == 3);
    const TrackedTensor& repeated = find(track, "model/split");
    CHECK(repeated.value.steps.back().summary.largest == 4096.0);
    CHECK(repeated.value.last.counts == find(track, "model/square").value.last.counts);
    CHECK(find(track, "model/split[1]").gradient.steps.empty());  // no gradient arrived there
    CHECK(find(track, "model/weight").gradient.steps.back().summary.largest == 2.0 * 64.0 * 128.0);
}

TEST_CASE("tracker: patterns select tensors, and one that matches nothing is an error") {
    Model model;
    Tracker<float> tracker({.patterns = {"*/mul", "model/w*"}});
    model.tape.set_observer(&tracker);
    REQUIRE_THROWS_WITH(tracker.finish(), "tracker: no training step was observed; attach it with Tape::set_observer");
    model.step();
    for (const TrackedTensor& tensor : tracker.finish().tensors) {
        const bool wanted = tensor.path == "model/mul" || tensor.path == "model/weight";
        CHECK(tensor.selected == wanted);
        CHECK(tensor.value.steps.size() == (wanted ? 1U : 0U));
    }
    Tracker<float> wrong({.patterns = {"*", "foo*"}});
    model.tape.set_observer(&wrong);
    model.step();
    REQUIRE_THROWS_WITH(wrong.finish(),
                        "tracker: pattern 'foo*' matched no tensor; the model's tensors begin model/weight, model/mul, "
                        "model/square, ...");
    REQUIRE_THROWS_WITH(Tracker<float>({.every = 0}), "tracker: every is 0; expected at least 1");
    REQUIRE_THROWS_WITH(Tracker<float>({.sample = 0}), "tracker: sample is 0; expected at least 1");
    REQUIRE_THROWS_WITH(Tracker<float>({.gradient_format = e8m0}),
                        "tensor_statistics: e8m0 is not a format for signed numbers");
}

TEST_CASE("tracker: of micro-batches, the first and the sum of the parameters' gradients") {
    Model model;
    Tracker<float> tracker;
    model.tape.set_observer(&tracker);
    model.step({.micro_batches = 2}, 2.0F);
    model.step({.micro_batches = 2, .micro_batch = 1}, 200.0F);
    const Track& track = tracker.finish();
    CHECK(find(track, "model/mul").value.steps.size() == 1);
    CHECK(find(track, "model/mul").value.steps.back().summary.largest == 1.0);
    CHECK(find(track, "model/weight").gradient.steps.size() == 1);
    CHECK(find(track, "model/weight").gradient.steps.back().summary.largest == 2.0 * 0.5 * (4.0 + 40'000.0));
}

TEST_CASE("tracker: the first value that is not finite is explained, in a step that is not tracked too") {
    for (const bool every_step : {true, false}) {
        Model model;
        Tracker<float> tracker({.every = every_step ? 1U : 100U, .value_format = fp16});
        model.tape.set_observer(&tracker);
        model.step();
        model.step({.training = false}, 1e30F);  // not training
        model.step({}, 4e19F);                   // (2e19)^2 is above the largest float
        model.step({}, 1e30F);
        const Track& track = tracker.finish();
        REQUIRE(track.non_finite);
        const analysis::NonFinite& found = *track.non_finite;
        CHECK(found.step == 2);
        CHECK(found.pass == Pass::value);
        CHECK(found.op == "square");
        CHECK(found.path == "model/square");
        CHECK(found.summary.infinities == 3);
        REQUIRE(found.causes.size() == 1);
        CHECK(found.causes[0].summary->largest == Approx(2e19));
        CHECK(explain(found, track) ==
              "step 2: the value of model/square [4] has 0 NaN and 3 infinite of 4 elements; computed by square at "
              "model/square; "
              "model/mul: largest 2e+19, rms 1.73e+19, 3 of 4 elements beyond fp16's 6.55e+04");
    }
    Model model;
    Tracker<float> tracker({.every = 100, .watch = false});
    model.tape.set_observer(&tracker);
    model.step();
    model.step({}, 4e19F);
    CHECK_FALSE(tracker.track().non_finite);
}

TEST_CASE("tracker: a gradient or a parameter that is not finite names its source") {
    Model model;
    Tracker<float> tracker({.every = 100, .gradient_format = e5m2});
    model.tape.set_observer(&tracker);
    model.step();
    model.tape.begin_step();
    const Variable<float> product =
        mul(vector_input<float>(model.tape, {1e-10F, 0.0F, 0.0F, 0.0F}), model.tape.parameter(model.weight));
    model.tape.backward(sum(mul(square(product), vector_input<float>(model.tape, {1e30F, 1.0F, 1.0F, 1.0F}))), 1e20F);
    REQUIRE(tracker.track().non_finite);
    CHECK(explain(*tracker.track().non_finite, tracker.track()) ==
          "step 2: the gradient of square [4] has 0 NaN and 1 infinite of 4 elements; computed by the backward pass of "
          "mul at "
          "mul.1; "
          "gradient of mul.1: largest 1e+20, beyond e5m2's 5.73e+04");

    Model updated;
    Tracker<float> watcher({.every = 100});
    updated.tape.set_observer(&watcher);
    updated.step();
    updated.weight.write().data()[1] = std::nanf("");
    updated.step();
    REQUIRE(watcher.track().non_finite);
    CHECK(explain(*watcher.track().non_finite, watcher.track()) ==
          "step 2: the value of model/weight [4] has 1 NaN and 0 infinite of 4 elements; computed by the last update; "
          "gradient of model/weight: largest 4");
}
