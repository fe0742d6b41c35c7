// SPDX-License-Identifier: MIT
#include <unitscale/nn/sequential.hpp>

#include "support/op_checks.hpp"
#include "support/test_ops.hpp"

#include <unitscale/nn/linear.hpp>
#include <unitscale/ops/gelu.hpp>

#include <utility>
#include <vector>

using namespace unitscale;

namespace {

nn::Sequential<double> network() {
    return nn::Sequential<double>(
        "network", nn::Linear<double>("network/first", {.in = 3, .out = 5}), [](auto x) { return ops::gelu(x); },
        nn::Linear<double>("network/last", {.in = 5, .out = 2}));
}

}  // namespace

TEST_CASE("Sequential: runs its layers in order, in its own scope") {
    nn::Sequential<double> layers = network();  // moved out of the function
    CHECK(layers.size() == 3);
    auto parameters = nn::parameters_of<double>(layers);
    REQUIRE(parameters.size() == 2);
    CHECK(parameters[0]->name() == "network/first/weight");
    CHECK(parameters[1]->name() == "network/last/weight");
    for (Parameter<double>* parameter : parameters)
        fill_normal(parameter->write(), {1, hash_name(parameter->name())}, 1.0);

    test::OpTape<double> run;
    const auto x = run.input({4, 3});
    const auto y = layers(x);
    const auto by_hand =
        ops::linear(ops::gelu(ops::linear(x, run.tape.parameter(*parameters[0]))), run.tape.parameter(*parameters[1]));
    CHECK(test::elements(y.value()) == test::elements(by_hand.value()));
    CHECK(run.state.path(run.tape.node(0).site) == "network/first/linear");
    CHECK(run.state.path(run.tape.node(1).site) == "network/gelu");
    CHECK(run.state.path(run.tape.node(2).site) == "network/last/linear");
    run.tape.backward(test::sum(y));
    for (const Parameter<double>* parameter : parameters) CHECK(parameter->has_gradient());
}

TEST_CASE("Sequential: layers can be added and nested; without layers the result is the input") {
    nn::Sequential<double> outer("outer");
    CHECK(outer.size() == 0);
    test::OpTape<double> run;
    const auto x = run.input({4, 3});
    CHECK(test::elements(outer(x).value()) == test::elements(x.value()));
    outer.add(network()).add([](auto y) { return ops::gelu(y, {.mult = 2.0}); });
    CHECK(outer.size() == 2);
    const auto parameters = nn::parameters_of<double>(outer);
    REQUIRE(parameters.size() == 2);
    for (Parameter<double>* parameter : parameters) fill_constant(parameter->write(), 1.0);
    const auto y = outer(x);
    CHECK(y.shape() == Shape{4, 2});
    CHECK(run.state.path(run.tape.node(0).site) == "outer/network/first/linear");
    CHECK_THROWS_WITH(outer(run.input({4, 2})), Catch::StartsWith("linear: x [4,2]"));
}
