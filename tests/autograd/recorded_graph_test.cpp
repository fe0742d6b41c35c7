// SPDX-License-Identifier: MIT
#include <unitscale/autograd/recorded_graph.hpp>

#include "support/catch.hpp"

#include <unitscale/autograd/backward.hpp>
#include <unitscale/tensor/fill.hpp>

#include <memory>
#include <utility>

using namespace unitscale;

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

TEST_CASE("an op whose inputs need no gradient keeps no backward function; clearing destroys what is kept") {
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
