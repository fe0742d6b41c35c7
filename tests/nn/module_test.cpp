// SPDX-License-Identifier: MIT
#include <unitscale/nn/module.hpp>

#include "support/op_checks.hpp"
#include "support/test_ops.hpp"

#include <unitscale/nn/decoder.hpp>
#include <unitscale/nn/linear.hpp>

#include <type_traits>
#include <utility>
#include <vector>

using namespace unitscale;

namespace {

struct Listed {
    Parameter<float> weight{"w", Shape{2}, {}};
    std::vector<Parameter<float>*> parameters() { return {&weight}; }
};
struct Function {
    Variable<float> operator()(Variable<float> x) const { return x; }
};

static_assert(nn::Module<nn::Linear<float>, float>);
static_assert(nn::Module<nn::TransformerBlock<Half>, Half>);
static_assert(!nn::Module<nn::Linear<float>, double>);
static_assert(!nn::Module<Function, float>);
static_assert(nn::Layer<nn::Linear<float>, float>);
static_assert(nn::Layer<Function, float>);
static_assert(!nn::Layer<Listed, float>);

template <class M>
constexpr bool is_movable = std::is_nothrow_move_constructible_v<M> && !std::is_copy_constructible_v<M>;
static_assert(is_movable<nn::Linear<float>> && is_movable<nn::Embedding<float>> && is_movable<nn::Norm<float>>);
static_assert(is_movable<nn::FeedForward<float>> && is_movable<nn::Attention<float>>);
static_assert(is_movable<nn::TransformerBlock<float>> && is_movable<nn::Decoder<float>>);

}  // namespace

TEST_CASE("parameters_of: of a module, and of a model that lists its parameters itself") {
    nn::Linear<float> layer("net/up", {.in = 2, .out = 3, .bias = true});
    const auto own = nn::parameters_of<float>(layer);
    REQUIRE(own.size() == 2);
    CHECK(own[0] == &layer.weight());
    CHECK(own[1] == layer.bias());
    Listed listed;
    CHECK(nn::parameters_of<float>(listed) == std::vector<Parameter<float>*>{&listed.weight});
}

TEST_CASE("modules stand in containers; their parameters keep their addresses") {
    std::vector<nn::Linear<float>> layers;
    std::vector<Parameter<float>*> before;
    for (int i = 0; i < 5; ++i) {
        layers.emplace_back("net/" + std::to_string(i), nn::LinearConfig{.in = 4, .out = 4});
        before.push_back(&layers.back().weight());
    }
    std::vector<Parameter<float>*> after;
    for (auto& layer : layers) layer.collect(after);
    CHECK(after == before);

    test::OpTape<float> run;
    for (Parameter<float>* parameter : after) fill_constant(parameter->write(), 1.0f);
    Variable<float> x = run.input({2, 4});
    for (auto& layer : layers) x = layer(x);
    run.tape.backward(test::sum(x));
    for (const Parameter<float>* parameter : after) CHECK(parameter->has_gradient());
    CHECK(run.state.path(run.tape.node(4).site) == "4/linear");
}
