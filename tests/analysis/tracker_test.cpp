// SPDX-License-Identifier: MIT
#include <unitscale/analysis/tracker.hpp>
#include <unitscale/autograd/tape.hpp>

#include "support/language_model.hpp"
#include "support/op_checks.hpp"
#include "support/test_ops.hpp"

#include <unitscale/ops/linear.hpp>
#include <unitscale/ops/matmul.hpp>
#include <unitscale/ops/readout.hpp>
#include <unitscale/ops/scale.hpp>
#include <unitscale/scaling/known_recipes.hpp>

#include <cmath>
#include <cstdint>
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
        CHECK(explain(found) ==
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
    CHECK(explain(*tracker.track().non_finite) ==
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
    CHECK(explain(*watcher.track().non_finite) ==
          "step 2: the value of model/weight [4] has 1 NaN and 0 infinite of 4 elements; computed by the last update; "
          "gradient of model/weight: largest 4");
}

namespace {

/// x, a linear layer, a readout: both weights are parameters, x is a tensor of the model.
struct Layers {
    Recipe recipe;
    ScalingState state{1};
    Tape<float> tape{recipe, state};
    Parameter<float> up{"model/up/weight", Shape{32, 64}, {}}, out{"model/readout/weight", Shape{16, 32}, {}};

    static Recipe with(const ProductFormats& formats) {
        Recipe recipe = analysis::plain_recipe(Scaling::none);
        recipe.products.push_back({.kind = ProductKind::linear, .formats = formats});
        return recipe;
    }
    explicit Layers(const ProductFormats& formats) : recipe(with(formats)) {
        fill_normal(up.write(), {1, 1});
        fill_normal(out.write(), {1, 2});
    }
    /// `hold`: the layer's input stays alive until the backward pass, so that no codes replace it.
    void step(double size = 1.0, Accum<float> seed = 1.0f, bool hold = true) {
        up.clear_gradient();
        out.clear_gradient();
        tape.begin_step();
        const auto model = tape.scope("model");
        Variable<float> x = ops::scale_forward(tape.input(normal<float>({32, 64}, {1, 3}, size), true), 1.0);
        Variable<float> y, kept;
        {
            const auto scope = tape.scope("up");
            y = ops::linear(x, tape.parameter(up));
        }
        if (hold) kept = x;
        x = {};
        const auto scope = tape.scope("readout");
        tape.backward(analysis::project(ops::readout(y, tape.parameter(out)), normal<float>({32, 16}, {1, 4})), seed);
    }
};

const analysis::TrackedOperand& find_operand(const Track& track, const std::string& path, OperandSlot slot) {
    for (const analysis::TrackedOperand& operand : track.operands)
        if (operand.path == path && operand.slot == slot) return operand;
    FAIL("no operand " << path << ' ' << name(slot));
    throw 0;
}

constexpr const char* linear_path = "model/up/linear";

}  // namespace

TEST_CASE("tracker: every rounded operand of a product, with its tensor, scale and losses") {
    ProductFormats formats{.activation = Quantiser{.format = e4m3},
                           .weight = Quantiser{.format = e4m3},
                           .gradient = Quantiser{.format = e5m2},
                           .activation_scale = {.source = ScaleSource::constant, .bias = 2},
                           .weight_scale = {.source = ScaleSource::amax, .granularity = ScaleGranularity::row},
                           .gradient_scale = {.source = ScaleSource::amax}};
    formats.set(OperandSlot::weight_gradient_x, OperandRule::in_blocks(mxfp4));
    Layers layers(formats);
    Tracker<float> tracker({.every = 2, .last_step = 4});
    layers.tape.set_observer(&tracker);
    for (int i = 0; i < 4; ++i) layers.step(std::ldexp(1.0, 2 * i));
    const Track& track = tracker.finish();
    CHECK(track.storage == fp32);
    REQUIRE(track.operands.size() == linear_slot_count);  // none of the readout, which is not rounded
    for (const analysis::TrackedOperand& operand : track.operands) {
        INFO(name(operand.slot));
        CHECK(operand.path == linear_path);
        CHECK(operand.op == "linear");
        std::vector<std::uint64_t> steps;
        for (const analysis::TrackedRounding& one : operand.steps) steps.push_back(one.step);
        CHECK(steps == std::vector<std::uint64_t>{1, 3, 4});
        CHECK(operand.at(2) == nullptr);
        REQUIRE(operand.at(3) == &operand.steps[1].summary);
        REQUIRE(operand.tensor != analysis::TrackedOperand::no_tensor);
        const TrackedTensor& tensor = track.tensors[operand.tensor];
        const OperandRole role = role_of(operand.slot);
        CHECK(tensor.label() == (role == OperandRole::activation ? "model/scale_forward"
                                 : role == OperandRole::weight   ? "model/up/weight"
                                                                 : linear_path));
        // The values are those of the tensor.
        CHECK(operand.steps.back().summary.count == tensor.side(operand.pass()).steps.back().summary.count);
        CHECK(operand.steps.back().summary.rms() ==
              Approx(tensor.side(operand.pass()).steps.back().summary.rms).epsilon(1e-6));
    }
    const auto last = [&](OperandSlot slot) { return find_operand(track, linear_path, slot).steps.back().summary; };
    const auto text = [&](OperandSlot slot) {
        return analysis::scale_text(find_operand(track, linear_path, slot), last(slot));
    };
    // Of step 4, x is 64 times unit normal, times 2^2: many elements saturate at 448.
    std::size_t saturated = 0;
    const Tensor<float> unit = normal<float>({32, 64}, {1, 3});
    for (const float x : unit.span()) saturated += std::abs(x * 64.0f * 4.0f) > 464.0f ? 1U : 0U;
    CHECK(saturated > 100);
    CHECK(last(OperandSlot::forward_x).saturated == saturated);
    CHECK(text(OperandSlot::forward_x) == "bias 2");
    CHECK(last(OperandSlot::forward_w).scales == 32);
    CHECK(last(OperandSlot::forward_w).saturated == 0);
    CHECK(text(OperandSlot::forward_w).starts_with("biases 7 to "));
    CHECK(last(OperandSlot::weight_gradient_x).scales == 64);  // 64 columns of 32 rows
    CHECK(text(OperandSlot::weight_gradient_x).starts_with("scales 2^"));
    CHECK(find_operand(track, linear_path, OperandSlot::weight_gradient_x).format_name() == "mxfp4");
    CHECK(last(OperandSlot::input_gradient_dy).error == last(OperandSlot::weight_gradient_dy).error);
    // One bias is the state's.
    const Site site = layers.state.products().front().site;
    REQUIRE(layers.state.path(site) == linear_path);
    CHECK(-last(OperandSlot::input_gradient_dy).lowest_scale == layers.state.last_bias(site, OperandRole::gradient));
    CHECK(-last(OperandSlot::input_gradient_dy).lowest_scale != 0);
    // The first scales and the last.
    const analysis::TrackedOperand& blocks = find_operand(track, linear_path, OperandSlot::weight_gradient_x);
    CHECK(blocks.first.total() == 64);
    CHECK(blocks.last.at(last(OperandSlot::weight_gradient_x).lowest_scale) > 0);
    CHECK(blocks.first.counts != blocks.last.counts);
    // The tensors' readers, by side.
    CHECK(track.roundings(find(track, "model/scale_forward"), Pass::value).size() == 2);
    CHECK(track.roundings(find(track, "model/scale_forward"), Pass::gradient).empty());
    CHECK(track.roundings(find(track, linear_path), Pass::gradient).size() == 2);
    CHECK(track.roundings(find(track, "model/readout/readout"), Pass::gradient).empty());
}

TEST_CASE("tracker: operands kept as codes, patterns, micro-batches, products of activations, segments") {
    const ProductFormats fp8{.activation = Quantiser{.format = e4m3},
                             .weight = Quantiser{.format = e4m3},
                             .gradient = Quantiser{.format = e5m2}};
    for (const bool hold : {true, false}) {
        Layers layers(fp8);
        Tracker<float> tracker({.every = 1});
        layers.tape.set_observer(&tracker);
        layers.step(1.0, 1.0f, hold);
        const auto summary = [&](OperandSlot slot) {
            const auto& steps = find_operand(tracker.track(), linear_path, slot).steps;
            REQUIRE(steps.size() == 1);
            return steps.front().summary;
        };
        CHECK(summary(OperandSlot::forward_x).error > 0.0);
        CHECK(summary(OperandSlot::weight_gradient_x).error == summary(OperandSlot::forward_x).error);
        CHECK(summary(OperandSlot::weight_gradient_x).count == 32 * 64);
    }
    Layers selected(fp8);
    Tracker<float> some({.every = 1, .patterns = {"*weight"}});
    selected.tape.set_observer(&some);
    selected.step();
    for (const analysis::TrackedOperand& operand : some.track().operands) CHECK(operand.steps.empty());

    // A product of two activations, its right operand kept as codes. The segment runs twice, and is seen once.
    Recipe recipe = analysis::plain_recipe(Scaling::none);
    recipe.products.push_back({.kind = ProductKind::matmul, .formats = fp8});
    ScalingState state(1);
    Tape<float> tape(recipe, state);
    class Count : public Tracker<float> {
    public:
        Count() : Tracker<float>({.every = 1}) {}
        void observe_operand(const OperandEvent<float>& event) override {
            ++seen[static_cast<std::size_t>(event.slot)];
            Tracker<float>::observe_operand(event);
        }
        std::array<int, linear_slot_count> seen{};
    } tracker;
    tape.set_observer(&tracker);
    tape.begin_step({.micro_batches = 2});
    const auto x = tape.input(normal<float>({3, 8, 16}, {1, 1}), true);
    const auto y = tape.recompute(x, [](const Variable<float>& in) {
        return ops::matmul(ops::scale_forward(in, 2.0), in.tape("test").input(normal<float>({3, 16, 8}, {1, 2}), true));
    });
    tape.backward(analysis::project(y, normal<float>({3, 8, 8}, {1, 3})));
    for (const int seen : tracker.seen) CHECK(seen == 1);
    REQUIRE(tracker.track().operands.size() == linear_slot_count);
    for (const analysis::TrackedOperand& operand : tracker.track().operands) {
        REQUIRE(operand.steps.size() == 1);
        CHECK(operand.steps.front().summary.count == (role_of(operand.slot) == OperandRole::gradient ? 192U : 384U));
    }
    tape.begin_step({.micro_batches = 2, .micro_batch = 1});
    static_cast<void>(
        ops::matmul(tape.input(normal<float>({8, 16}, {1, 1})), tape.input(normal<float>({16, 8}, {1, 2}))));
    CHECK(tracker.seen[0] == 2);
    for (const analysis::TrackedOperand& operand : tracker.track().operands) CHECK(operand.steps.size() == 1);
}

TEST_CASE("tracker: tensors that nothing rounds but their storage lose nothing; an operand's own format decides") {
    // The readout is not rounded. Its gradient would vanish in e5m2, and the layer's output would exceed e4m3.
    Layers layers({.activation = Quantiser{.format = e4m3},
                   .weight = Quantiser{.format = e4m3},
                   .gradient = Quantiser{.format = e5m2}});
    Tracker<float> tracker({.every = 1});
    layers.tape.set_observer(&tracker);
    layers.step(1.0, 1e-9f);
    const Track& track = tracker.finish();
    const TrackedTensor& readout = find(track, "model/readout/readout");
    CHECK(readout.gradient.steps.front().summary.rms < 1e-8);
    for (const TrackedTensor& tensor : track.tensors)
        for (const Pass pass : {Pass::value, Pass::gradient})
            for (const analysis::TrackedStep& step : tensor.side(pass).steps) {
                CHECK(step.summary.underflow == 0);
                CHECK(step.summary.overflow == 0);
                CHECK(step.summary.noise == 0.0);
            }
    const analysis::OperandSummary& dy =
        find_operand(track, linear_path, OperandSlot::input_gradient_dy).steps.front().summary;
    CHECK(dy.flushed == dy.count);
    CHECK(dy.snr() == Approx(0.0).margin(1e-12));  // nothing is left of it
}

TEST_CASE("tracker: values beyond the operand that rounds them explain infinity, in units of its scale") {
    Layers layers({.activation = Quantiser{.format = e4m3, .overflow = Overflow::to_infinity},
                   .activation_scale = {.source = ScaleSource::constant, .bias = 3}});
    Tracker<float> tracker({.every = 100});
    layers.tape.set_observer(&tracker);
    layers.step();
    CHECK_FALSE(tracker.track().non_finite);
    layers.step(100.0);
    REQUIRE(tracker.track().non_finite);
    std::size_t beyond = 0;
    const Tensor<float> large = normal<float>({32, 64}, {1, 3}, 100.0);
    for (const float x : large.span()) beyond += std::abs(x) > 464.0f / 8.0f ? 1U : 0U;
    const std::string text = explain(*tracker.track().non_finite);
    INFO(text);
    CHECK(text.find("; computed by linear at model/up/linear; model/scale_forward: largest ") != std::string::npos);
    CHECK(text.find(concatenate(", ", beyond, " of 2048 elements beyond e4m3's 448 times 0.125; ")) !=
          std::string::npos);
    CHECK(text.find("model/up/weight: ") != std::string::npos);
}

TEST_CASE("tracker: training has equal bits with and without it") {
    for (const char* recipe : {"unit-fp8", "fp8-delayed", "mxfp8-hybrid", "nvfp4", "scalify-fp8-3"}) {
        INFO(recipe);
        std::array<std::vector<float>, 2> weights;
        for (const bool track : {false, true}) {
            test::LanguageModel<float> model(find_recipe(recipe),
                                             {.vocabulary = 20, .width = 32, .depth = 2, .heads = 2, .length = 16});
            Tracker<float> tracker({.every = 1, .sample = 1, .threads = 2});
            if (track) model.tape.set_observer(&tracker);
            for (std::uint64_t step = 0; step < 3; ++step) {
                model.tape.begin_step();
                model.tape.backward(model.loss(test::random_batch(2, 16, 20, step)));
                for (Parameter<float>* parameter : model.decoder.parameters()) {
                    if (!parameter->has_gradient()) continue;
                    const Tensor<float>& gradient = parameter->gradient();
                    Tensor<float>& value = parameter->write();
                    const auto rate = static_cast<float>(0.1 * gradient.scale() / value.scale());
                    for (std::size_t i = 0; i < value.size(); ++i) value.data()[i] -= rate * gradient.data()[i];
                    parameter->clear_gradient();
                }
            }
            for (Parameter<float>* parameter : model.decoder.parameters())
                for (const float x : parameter->value().span()) weights[track ? 1 : 0].push_back(x);
            // Six linear ops per block; nvfp4 leaves the last block in high precision.
            const std::size_t rounded_blocks = std::string_view(recipe) == "nvfp4" ? 1 : 2;
            if (track) CHECK(tracker.track().operands.size() == rounded_blocks * 6 * linear_slot_count);
        }
        CHECK(weights[0] == weights[1]);
    }
}

TEST_CASE("tracker: a tensor without a finite element has no rms") {
    Model model;
    Tracker<float> tracker({.every = 1});
    model.tape.set_observer(&tracker);
    model.step();
    for (float& x : model.weight.write().span()) x = std::nanf("");
    model.step();
    const auto& steps = find(tracker.finish(), "model/weight").value.steps;
    CHECK(steps[0].summary.rms == 0.5);
    CHECK(std::isnan(steps[1].summary.rms));
    CHECK(std::isnan(steps[1].summary.largest));
}
