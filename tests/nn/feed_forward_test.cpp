// SPDX-License-Identifier: MIT
#include <unitscale/nn/feed_forward.hpp>

#include "support/language_model.hpp"
#include "support/op_checks.hpp"
#include "support/test_ops.hpp"

using namespace unitscale;

TEST_CASE("FeedForward: gelu in both forms and gated silu, parameters and value") {
    for (const nn::FeedForwardKind kind :
         {nn::FeedForwardKind::gelu, nn::FeedForwardKind::gelu_tanh, nn::FeedForwardKind::gated_silu}) {
        const bool gated = kind == nn::FeedForwardKind::gated_silu;
        nn::FeedForward<float> layer("block0/ffn",
                                     {.kind = kind, .width = 4, .hidden = 6, .bias = true, .mult = 2.0, .depth = 8});
        std::vector<Parameter<float>*> parameters;
        layer.collect(parameters);
        std::vector<std::string> names;
        for (const Parameter<float>* parameter : parameters) {
            names.push_back(parameter->name());
            CHECK(parameter->facts().depth == 8);
        }
        std::vector<std::string> expected = {"block0/ffn/up/weight", "block0/ffn/up/bias", "block0/ffn/down/weight",
                                             "block0/ffn/down/bias"};
        if (gated) expected.insert(expected.begin() + 2, {"block0/ffn/gate/weight", "block0/ffn/gate/bias"});
        REQUIRE(names == expected);
        CHECK(parameters[0]->shape() == Shape{6, 4});
        CHECK(parameters[parameters.size() - 2]->shape() == Shape{4, 6});
        test::randomise(parameters, 1.0);

        test::OpTape<float> run;
        const auto x = run.input({3, 4});
        const auto y = layer(x);
        const auto linear = [&](Variable<float> input, std::size_t i) {
            return ops::linear(input, run.tape.parameter(*parameters[i]),
                               std::optional(run.tape.parameter(*parameters[i + 1])));
        };
        const auto form = kind == nn::FeedForwardKind::gelu_tanh ? ops::GeluForm::tanh : ops::GeluForm::erf;
        const auto inner = gated ? ops::gated_silu(linear(x, 0), linear(x, 2), {.mult = 2.0})
                                 : ops::gelu(linear(x, 0), {.mult = 2.0, .form = form});
        CHECK(test::elements(y.value()) == test::elements(linear(inner, parameters.size() - 2).value()));
        CHECK(run.state.path(run.tape.node(0).site) == "ffn/up/linear");
        run.tape.backward(test::sum(y));
        for (const Parameter<float>* parameter : parameters) CHECK(parameter->has_gradient());
    }
}

TEST_CASE("FeedForward: relu, which has no multiplier") {
    nn::FeedForward<float> layer("block0/ffn", {.kind = nn::FeedForwardKind::relu, .width = 4, .hidden = 6});
    std::vector<Parameter<float>*> parameters;
    layer.collect(parameters);
    REQUIRE(parameters.size() == 2);
    test::randomise(parameters, 1.0);
    test::OpTape<float> run(Scaling::unit);
    const auto x = run.input({3, 4});
    const auto want =
        ops::linear(ops::relu(ops::linear(x, run.tape.parameter(*parameters[0]))), run.tape.parameter(*parameters[1]));
    CHECK(test::elements(layer(x).value()) == test::elements(want.value()));
    CHECK_THROWS_WITH((nn::FeedForward<float>("block0/ffn", {.kind = nn::FeedForwardKind::relu, .mult = 2.0})),
                      "FeedForward block0/ffn: mult is 2; relu has none");
}
