// SPDX-License-Identifier: MIT
#include <unitscale/autograd/recorded_graph.hpp>

#include "support/catch.hpp"
#include "support/test_ops.hpp"

#include <unitscale/autograd/backward.hpp>
#include <unitscale/autograd/tape.hpp>
#include <unitscale/tensor/fill.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

using namespace unitscale;
using namespace unitscale::test;

namespace {

/// y = 2 x; its backward function reads the values that `reads` lists.
Variable<double> twice(Variable<double> x, Reads reads) {
    Tape<double>& tape = x.tape("twice");
    Tensor<double> y = tape.make(x.shape());
    for (std::size_t i = 0; i < y.size(); ++i) y.data()[i] = 2.0 * x.value().data()[i];
    return tape.record({.name = "twice", .site = tape.next_site("twice"), .betas = {1.0}, .reads = reads}, {x},
                       std::move(y), [](BackwardContext<double>& g) {
                           Tensor<double> dx = g.take_output_gradient();
                           CHECK(g.input_shape(0) == Shape{4});
                           CHECK(g.output_shape() == Shape{4});
                           for (double& d : dx.span()) d *= 2.0;
                           g.add(0, std::move(dx));
                       });
}

/// Codes that are easy to read: the code is the number itself.
void whole_number_codes(const Execution&, const double* in, std::uint8_t* codes, std::ptrdiff_t n, const Quantiser&,
                        RandomKey) {
    for (std::ptrdiff_t i = 0; i < n; ++i) codes[i] = static_cast<std::uint8_t>(in[i]);
}

/// y = x; its backward function reads x rounded to `format`.
Variable<double> rounded(Variable<double> x, const FloatFormat& format, std::vector<std::uint8_t>& seen) {
    Tape<double>& tape = x.tape("rounded");
    Tensor<double> y = tape.make(x.shape());
    std::copy_n(x.value().data(), y.size(), y.data());
    const bool coded = tape.read_rounded(x, {{.format = format}, {}, whole_number_codes});
    const Reads reads{.inputs = coded ? 0u : 1u, .outputs = 0, .rounded = coded ? 1u : 0u};
    return tape.record({.name = "rounded", .site = tape.next_site("rounded"), .betas = {1.0}, .reads = reads}, {x},
                       std::move(y), [&seen](BackwardContext<double>& g) {
                           if (const Tensor<std::uint8_t>* codes = g.codes(0))
                               seen.assign(codes->data(), codes->data() + codes->size());
                           else static_cast<void>(g.input(0));
                           g.add(0, g.take_output_gradient());
                       });
}

struct Step {
    Recipe recipe{};
    ScalingState state{};
    Tape<double> tape{recipe, state};
    [[nodiscard]] bool kept(std::uint32_t slot) {
        static_cast<void>(tape.make(Shape{1}));
        return tape.slot(slot).value != nullptr;
    }
};

}  // namespace

TEST_CASE("a recorded graph numbers tensors and ops in order and knows who made and uses a tensor") {
    RecordedGraph<double> graph;
    Parameter<double> weight("w", {2}, {});
    graph.add_input(full<double>({2}, 3.0), true);
    const auto first = graph.parameter(weight, &weight), again = graph.parameter(weight, &weight),
               frozen = graph.parameter(weight, nullptr);
    CHECK(first.is_new);
    CHECK_FALSE(again.is_new);
    CHECK(again.slot == first.slot);
    CHECK(frozen.slot != first.slot);
    CHECK(graph.parameter_slots().size() == 2);

    Node<double>& node = graph.add_node({.name = "f", .alpha = 0.5, .betas = {2.0, 3.0}, .multiply_adds = 7});
    graph.connect(0, node);
    graph.connect(first.slot, node);
    const Slot<double>& output = graph.add_output(node, full<double>({2}, 4.0));
    CHECK(output.producer == 0);
    CHECK(output.requires_gradient);
    CHECK(output.value->data()[1] == 4.0);
    CHECK(graph.slots()[0].uses == 1);
    CHECK(graph.slots()[0].producer == Slot<double>::no_producer);
    CHECK(node.betas[1] == 3.0);
    CHECK(node.multiply_adds == 7);
    CHECK(graph.last_slot() == node.outputs[0]);
}

TEST_CASE("an op without inputs that need a gradient keeps no backward function; clearing destroys kept functions") {
    RecordedGraph<double> graph;
    const auto token = std::make_shared<int>(1);
    const auto backward = [token](BackwardContext<double>&) {};
    for (const bool wanted : {false, true}) {
        graph.add_input(full<double>({1}, 1.0), wanted);
        Node<double>& node = graph.add_node({.name = "f", .betas = {1.0}});
        graph.connect(graph.last_slot(), node);
        graph.add_output(node, full<double>({1}, 1.0));
        graph.keep_backward(node, backward);
        CHECK((node.closure != nullptr) == wanted);
    }
    CHECK(token.use_count() == 3);
    graph.clear();
    CHECK(token.use_count() == 2);
    CHECK(graph.nodes().size() == 0);
    CHECK(graph.slots().size() == 0);
}

TEST_CASE_METHOD(Step, "a value without a handle is freed while recording, unless a backward function will read it") {
    tape.begin_step();
    const auto x = vector_input<double>(tape, {1.0, 2.0, 3.0, 4.0});  // slot 0
    auto y = twice(x, reads_nothing);                                 // 1: never read
    y = twice(y, reads_nothing);                                      // 2: read as an input
    y = twice(y, reads_inputs);                                       // 3: read as an output
    CHECK_FALSE(kept(1));
    CHECK(kept(2));
    auto z = twice(y, reads_nothing);  // 4: its handle stays
    y = {};
    CHECK_FALSE(kept(3));
    auto w = twice(z, reads_outputs);  // 5
    const auto loss = sum(w);          // `sum` reads all values, as ops do by default
    w = {};
    CHECK(kept(5));
    CHECK(kept(4));
    tape.backward(loss);
    CHECK_FALSE(kept(4));
    CHECK_THROWS_WITH(z.value(),
                      "value: the output of twice was freed by backward(); begin_step({.retain = true}) keeps it");
    CHECK(x.gradient().data()[0] == 32.0);
    CHECK(kept(0));
}

TEST_CASE_METHOD(Step, "outputs that repeat an input live as long as any of them has a handle") {
    tape.begin_step({.gradients = false});
    auto y = twice(vector_input<double>(tape, {1.0, 2.0, 3.0, 4.0}), reads_nothing);
    auto parts = split(y);
    y = {};
    CHECK(kept(1));
    parts[0] = {};
    CHECK(parts[1].value().data()[3] == 8.0);
    CHECK(kept(1));
    parts[1] = {};
    CHECK_FALSE(kept(1));
    CHECK_FALSE(kept(3));
}

TEST_CASE_METHOD(Step, "a step with .retain keeps every value") {
    tape.begin_step({.retain = true});
    const auto x = vector_input<double>(tape, {1.0, 2.0, 3.0, 4.0});
    tape.backward(sum(twice(twice(x, reads_nothing), reads_nothing)));
    CHECK(kept(1));
    CHECK(tape.slot(1).value->data()[3] == 8.0);
    CHECK(tape.slot(1).has_gradient);
}

TEST_CASE_METHOD(Step, "an op that reads a value against its declaration is an error") {
    tape.begin_step();
    const auto x = vector_input<double>(tape, {1.0});
    const auto y = square(square(x));
    const auto liar = [&](Variable<double> input) {
        return tape.record({.name = "liar", .site = tape.next_site("liar"), .betas = {1.0}, .reads = reads_nothing},
                           {input}, tape.make(Shape{1}),
                           [](BackwardContext<double>& g) { static_cast<void>(g.input(0)); });
    };
    const auto z = liar(twice(vector_input<double>(tape, {1.0, 1.0, 1.0, 1.0}), reads_nothing));
    const auto loss = sum(z);
    CHECK_THROWS_WITH(tape.backward({sum(y), loss}, {1.0, 1.0}),
                      "backward: liar reads input 0, which its OpInfo::reads leaves out; it was freed");
}

TEST_CASE_METHOD(Step, "a value that is only read rounded becomes codes when its last handle dies") {
    std::vector<std::uint8_t> first, second;
    for (const bool read_too : {false, true}) {
        first.clear(), second.clear();
        tape.begin_step();
        const auto x = vector_input<double>(tape, {1.0, 2.0, 3.0, 4.0});
        auto y = twice(x, reads_nothing);
        const auto a = rounded(y, e4m3, first), b = rounded(y, e4m3, second);  // the codes serve both
        Variable<double> c;
        if (read_too) c = twice(y, reads_inputs);
        CHECK(kept(1));
        y = {};
        CHECK(kept(1) == read_too);
        CHECK(tape.slot(1).codes.size() == (read_too ? 0 : 4));
        tape.backward({sum(a), sum(b)}, {1.0, 1.0});
        const std::vector<std::uint8_t> want =
            read_too ? std::vector<std::uint8_t>{} : std::vector<std::uint8_t>{2, 4, 6, 8};
        CHECK(first == want);
        CHECK(second == want);
        CHECK(x.gradient().data()[2] == 4.0);
        CHECK(tape.slot(1).codes.size() == 0);
    }
}

TEST_CASE_METHOD(Step, "ops that round one value differently read the value") {
    std::vector<std::uint8_t> first, second;
    tape.begin_step();
    const auto x = vector_input<double>(tape, {1.0, 2.0, 3.0, 4.0});
    auto y = twice(x, reads_nothing);
    const auto a = rounded(y, e4m3, first), b = rounded(y, e5m2, second);
    y = {};
    CHECK(kept(1));
    tape.backward({sum(a), sum(b)}, {1.0, 1.0});
    CHECK(first.empty());
    CHECK(second.empty());
}

TEST_CASE_METHOD(Step, "a handle knows the parameter that it stands for") {
    Parameter<double> weight("weight", Shape{2}, {});
    fill_zero(weight.write());
    tape.begin_step();
    const auto w = tape.parameter(weight);
    CHECK(tape.source(w) == &weight);
    CHECK(tape.source(square(w)) == nullptr);
}

TEST_CASE("a value is plain numbers for those who ask so, and data and scale for others") {
    const Recipe recipe{.name = "test", .description = "", .scaling = Scaling::propagate};
    ScalingState state;
    Tape<double> tape(recipe, state);
    for (const double data : {3.0, 5.0}) {  // the second step finds no values of the first
        tape.begin_step();
        Tensor<double> tensor(Shape{1}, {data});
        tensor.set_scale(4.0);
        const auto x = tape.input(std::move(tensor)), y = vector_input<double>(tape, {7.0});
        CHECK(tape.scaled_value(x).data()[0] == data);
        CHECK(tape.scaled_value(x).scale() == 4.0);
        CHECK(tape.value(x).data()[0] == 4.0 * data);
        CHECK(tape.value(x).scale() == 1.0);
        CHECK(&tape.value(x) == &tape.value(x));         // its scale is multiplied out once
        CHECK(&tape.value(y) == &tape.scaled_value(y));  // scale 1: no copy
    }
    const Variable<double> old = vector_input<double>(tape, {7.0});
    tape.begin_step();
    REQUIRE_THROWS_WITH(tape.scaled_value(old),
                        "value: a handle of an earlier step; begin_step() ends the life of all handles");
}
