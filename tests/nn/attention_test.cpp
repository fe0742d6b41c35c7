// SPDX-License-Identifier: MIT
#include <unitscale/nn/attention.hpp>

#include "support/language_model.hpp"
#include "support/op_checks.hpp"
#include "support/test_ops.hpp"

#include <unitscale/nn/module.hpp>
#include <unitscale/scaling/known_recipes.hpp>

#include <cmath>

using namespace unitscale;

namespace {
nn::Attention<float> make(const nn::AttentionConfig& config) { return {"block0/attention", config}; }
}  // namespace

TEST_CASE("Attention: four linear layers around ops::attention") {
    for (const bool rotary : {false, true}) {
        const nn::AttentionConfig config{.width = 12,
                                         .heads = 3,
                                         .groups = 1,
                                         .causal = !rotary,
                                         .rotary = rotary,
                                         .rotary_base = 100.0,
                                         .mult = 0.5,
                                         .factor_length = 20,
                                         .depth = 4};
        nn::Attention<float> layer = make(config);
        std::vector<Parameter<float>*> parameters;
        layer.collect(parameters);
        REQUIRE(parameters.size() == 4);
        const std::vector<std::string> names = {"query", "key", "value", "out"};
        for (std::size_t i = 0; i < 4; ++i) {
            CHECK(parameters[i]->name() == "block0/attention/" + names[i] + "/weight");
            CHECK(parameters[i]->shape() ==
                  (i == 1 || i == 2 ? Shape{4, 12} : Shape{12, 12}));  // one head of size 4 for keys and for values
            CHECK(parameters[i]->facts().depth == 4);
        }
        test::randomise(parameters, 1.0);

        test::OpTape<float> run;
        const auto x = run.input({2, 5, 12});
        const auto y = layer(x);
        const auto weight = [&](std::size_t i) { return run.tape.parameter(*parameters[i]); };
        auto q = ops::linear(x, weight(0)), k = ops::linear(x, weight(1));
        if (rotary) {
            q = ops::rotary(q, {.heads = 3, .base = 100.0});
            k = ops::rotary(k, {.heads = 1, .base = 100.0});
        }
        const auto mixed =
            ops::attention(q, k, ops::linear(x, weight(2)),
                           {.heads = 3, .groups = 1, .mult = 0.5, .causal = !rotary, .factor_length = 20});
        CHECK(test::elements(y.value()) == test::elements(ops::linear(mixed, weight(3)).value()));

        std::vector<std::string> paths;
        for (std::size_t i = 0; i < run.tape.node_count(); ++i) paths.push_back(run.state.path(run.tape.node(i).site));
        for (const char* path : {"attention/query/linear", "attention/key/linear", "attention/value/linear",
                                 "attention/attention", "attention/out/linear"})
            CHECK(std::count(paths.begin(), paths.end(), path) == 1);
    }
}

TEST_CASE("CrossAttention: queries of x, keys and values of another sequence with its own width and length") {
    nn::CrossAttention<float> layer("block0/cross",
                                    {.width = 12, .context_width = 6, .heads = 3, .groups = 1, .dropout = 0.0});
    std::vector<Parameter<float>*> parameters;
    layer.collect(parameters);
    REQUIRE(parameters.size() == 4);
    CHECK(parameters[1]->name() == "block0/cross/key/weight");
    CHECK(parameters[1]->shape() == Shape{4, 6});
    CHECK(parameters[3]->shape() == Shape{12, 12});
    test::randomise(parameters, 1.0);
    test::OpTape<float> run;
    const auto x = run.input({2, 5, 12}), context = run.input({2, 7, 6});
    const ops::AttentionMask mask{.lengths = {7, 4}};
    const auto weight = [&](std::size_t i) { return run.tape.parameter(*parameters[i]); };
    const auto mixed =
        ops::attention(ops::linear(x, weight(0)), ops::linear(context, weight(1)), ops::linear(context, weight(2)),
                       {.heads = 3, .groups = 1, .mult = layer.mult(run.tape.recipe()), .causal = false, .mask = mask});
    CHECK(test::elements(layer(x, context, mask).value()) == test::elements(ops::linear(mixed, weight(3)).value()));
    CHECK(test::elements(layer(x, context).value()) != test::elements(layer(x, context, mask).value()));
}

TEST_CASE("Attention: a mask and dropout of weights reach the op") {
    nn::Attention<float> layer = make({.width = 12, .heads = 3, .causal = false, .mult = 2.0, .dropout = 0.5});
    const auto parameters = nn::parameters_of<float>(layer);
    test::randomise(parameters, 1.0);
    test::OpTape<float> run(Scaling::unit);
    const auto x = run.input({2, 5, 12});
    const auto y = layer(x, {.lengths = {5, 2}});
    const Node<float>& node = run.tape.node(3);
    CHECK(run.state.path(node.site) == "attention/attention");
    CHECK(node.alpha == Approx(ops::attention_unit_factor(2.0, 4, 3.5, false) * std::sqrt(0.5)));
    const auto again = layer(x, {.lengths = {5, 2}});
    CHECK(test::elements(y.value()) != test::elements(again.value()));  // another site, other weights dropped
}

TEST_CASE("Attention: the default multiplier is the textbook softmax's, and biases are an option") {
    CHECK(make({.width = 32, .heads = 2}).mult(find_recipe("fp32")) == 4.0);
    CHECK(make({.width = 32, .heads = 2, .mult = 1.0}).mult(find_recipe("fp32")) == 1.0);
    nn::Attention<float> layer = make({.width = 4, .heads = 2, .bias = true});
    std::vector<Parameter<float>*> parameters;
    layer.collect(parameters);
    CHECK(parameters.size() == 8);
}

TEST_CASE("Attention: heads of a size of their own, biases of queries, keys and values alone, slower angles") {
    const ops::RotaryScaling scaling{.kind = ops::RotaryScalingKind::linear, .factor = 4.0};
    const nn::AttentionConfig config{.width = 12,
                                     .heads = 3,
                                     .groups = 1,
                                     .head_size = 6,
                                     .query_key_value_bias = true,
                                     .rotary = true,
                                     .rotary_scaling = scaling};
    nn::Attention<float> layer = make(config);
    CHECK(layer.mult(find_recipe("fp32")) == Approx(std::sqrt(6.0)));
    std::vector<Parameter<float>*> parameters;
    layer.collect(parameters);
    std::vector<Shape> shapes;
    for (const Parameter<float>* parameter : parameters) shapes.push_back(parameter->shape());
    CHECK(shapes == std::vector<Shape>{{18, 12}, {18}, {6, 12}, {6}, {6, 12}, {6}, {12, 18}});
    test::randomise(parameters, 1.0);
    test::OpTape<float> run;
    const auto x = run.input({2, 5, 12});
    const auto weight = [&](std::size_t i) { return run.tape.parameter(*parameters[i]); };
    const auto q = ops::rotary(ops::linear(x, weight(0), weight(1)), {.heads = 3, .scaling = scaling}),
               k = ops::rotary(ops::linear(x, weight(2), weight(3)), {.heads = 1, .scaling = scaling});
    const auto mixed = ops::attention(q, k, ops::linear(x, weight(4), weight(5)),
                                      {.heads = 3, .groups = 1, .mult = std::sqrt(6.0), .causal = true});
    CHECK(test::elements(layer(x).value()) == test::elements(ops::linear(mixed, weight(6)).value()));
}

TEST_CASE("Attention: a constraint reaches its linear layers") {
    nn::Attention<float> layer = make({.width = 4, .heads = 2, .groups = 1, .constraint = Constraint::gmean});
    std::vector<Parameter<float>*> parameters;
    layer.collect(parameters);
    test::randomise(parameters, 1.0);
    test::OpTape<float> run(Scaling::unit);
    static_cast<void>(layer(run.input({2, 3, 4})));
    std::vector<double> alphas;
    for (std::size_t i = 0; i < run.tape.node_count(); ++i)
        if (run.state.op(run.tape.node(i).site) == "linear") alphas.push_back(run.tape.node(i).alpha);
    REQUIRE(alphas.size() == 4);  // query, key and value in some order, out
    CHECK(std::count_if(alphas.begin(), alphas.end(), [](double a) { return a == Approx(std::pow(8.0, -0.25)); }) == 2);
    CHECK(alphas.back() == Approx(0.5));
}

TEST_CASE("Attention: heads, groups and rotary positions that do not fit are errors") {
    REQUIRE_THROWS_WITH(make({.width = 10, .heads = 3}), "attention: width 10 is not divisible by 3 heads");
    REQUIRE_THROWS_WITH(make({.width = 10, .heads = 0}), "attention: width 10 is not divisible by 0 heads");
    REQUIRE_THROWS_WITH(make({.width = 12, .heads = 4, .groups = 3}),
                        "attention: 4 heads are not divisible by 3 groups");
    REQUIRE_THROWS_WITH(make({.width = 12, .heads = 4, .causal = false, .window = 2}),
                        "attention: a window of 2 positions without causality; expected 0");
    REQUIRE_THROWS_WITH(make({.width = 9, .heads = 3, .rotary = true}),
                        "attention: heads of size 3; rotary positions need an even size");
}
