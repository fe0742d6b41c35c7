// SPDX-License-Identifier: MIT
// Modules and ops against PyTorch's, in double: values and gradients of tests/data/pytorch_modules.safetensors, which
// bench/peers/modules.py writes.
#include "support/op_checks.hpp"
#include "support/peer_case.hpp"

#include <unitscale/nn/attention.hpp>
#include <unitscale/nn/channel_norm.hpp>
#include <unitscale/nn/convolution.hpp>
#include <unitscale/nn/module.hpp>
#include <unitscale/nn/recurrent.hpp>
#include <unitscale/nn/transformer_block.hpp>
#include <unitscale/ops/cos.hpp>
#include <unitscale/ops/cumsum.hpp>
#include <unitscale/ops/erf.hpp>
#include <unitscale/ops/maximum.hpp>
#include <unitscale/ops/min.hpp>
#include <unitscale/ops/minimum.hpp>
#include <unitscale/ops/pool.hpp>
#include <unitscale/ops/prod.hpp>
#include <unitscale/ops/sin.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/tensor/cast.hpp>

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

using namespace unitscale;

namespace {

struct Case : test::PeerCase {
    explicit Case(std::string name) : PeerCase("pytorch_modules", std::move(name)) {}
};

}  // namespace

TEST_CASE("pytorch: convolutions of sequences and images") {
    Case images("conv2d");
    nn::Conv2d<double> conv2d("net",
                              {.in = 4,
                               .out = 6,
                               .kernel = {3, 2},
                               .options = {.stride = {2, 1}, .padding = {1, 0}, .dilation = {1, 2}, .groups = 2}});
    images.load(conv2d, {{"net/weight", "weight"}, {"net/bias", "bias"}});
    const auto x = images.input("x");
    images.check(conv2d(x), {{"dx", x}});

    Case sequences("conv1d");
    nn::Conv1d<double> conv1d(
        "net",
        {.in = 4, .out = 6, .kernel = 3, .options = {.stride = 2, .groups = 2, .padding_left = 1, .padding_right = 1}});
    sequences.load(conv1d, {{"net/weight", "weight"}, {"net/bias", "bias"}});
    const auto z = sequences.input("x");
    sequences.check(conv1d(z), {{"dx", z}});
}

TEST_CASE("pytorch: pooling") {
    const ops::PoolOptions options{.kernel = {3, 3}, .stride = {{2, 2}}, .padding = {1, 1}};
    Case average("average_pool"), largest("max_pool");
    const auto x = average.input("x"), z = largest.input("x");
    average.check(ops::average_pool(x, options), {{"dx", x}});
    largest.check(ops::max_pool(z, options), {{"dx", z}});
}

TEST_CASE("pytorch: normalisation by groups of channels and by batch") {
    Case groups("group_norm");
    nn::GroupNorm<double> group_norm("net", {.channels = 6, .groups = 2});
    groups.load(group_norm, {{"net/gain", "weight"}, {"net/shift", "bias"}});
    const auto x = groups.input("x");
    groups.check(group_norm(x), {{"dx", x}});

    Case batch("batch_norm");
    nn::BatchNorm<double> batch_norm("net", {.channels = 3});
    nn::initialise(nn::parameters_of<double>(batch_norm), find_recipe("fp32"), 1);  // running statistics 0 and 1
    batch.load(batch_norm, {{"net/gain", "weight"}, {"net/shift", "bias"}});
    const auto z = batch.input("x");
    batch.check(batch_norm(z), {{"dx", z}});
    const auto parameters = nn::parameters_of<double>(batch_norm);
    batch.check_equal(parameters[2]->value(), "running_mean");
    batch.check_equal(parameters[3]->value(), "running_var");
    batch.tape().begin_step({.training = false, .gradients = false});
    batch.check_equal(batch_norm(batch.input("x")).value(), "y_in_use");
}

TEST_CASE("pytorch: recurrent layers") {
    const std::map<std::string, std::string> names = {{"net/input/weight", "weight_ih_l0"},
                                                      {"net/input/bias", "bias_ih_l0"},
                                                      {"net/state/weight", "weight_hh_l0"},
                                                      {"net/state/bias", "bias_hh_l0"}};
    Case of_gru("gru");
    nn::Gru<double> gru("net", {.in = 4, .hidden = 5});
    of_gru.load(gru, names);
    Tensor<double> first = of_gru.read("x1");
    first.reshape({2, 5});
    const auto x = of_gru.input("x");
    of_gru.check(gru(x, of_gru.tape().input(first)), {{"dx", x}});

    Case of_lstm("lstm");
    nn::Lstm<double> lstm("net", {.in = 4, .hidden = 5});
    of_lstm.load(lstm, names);
    const auto z = of_lstm.input("x");
    of_lstm.check(lstm(z), {{"dx", z}});
}

namespace {

/// The names of an attention's layers, and of PyTorch's.
std::map<std::string, std::string> attention_names(const std::string& ours, const std::string& theirs) {
    std::map<std::string, std::string> names;
    for (const std::string kind : {"weight", "bias"}) {
        for (const std::string layer : {"query", "key", "value"})
            names[ours + "/" + layer + "/" + kind] = theirs + layer + "." + kind;
        names[ours + "/out/" + kind] = theirs + "out_proj." + kind;
    }
    return names;
}
/// The names of a block's norms and feed-forward layers, and of PyTorch's; `norms` in the order of use.
std::map<std::string, std::string> block_names(const std::vector<std::string>& norms) {
    std::map<std::string, std::string> names;
    for (std::size_t i = 0; i < norms.size(); ++i) {
        const std::string theirs = "norm" + std::to_string(i + 1);
        names["net/" + norms[i] + "/gain"] = theirs + ".weight";
        names["net/" + norms[i] + "/shift"] = theirs + ".bias";
    }
    for (const std::string kind : {"weight", "bias"}) {
        names["net/ffn/up/" + kind] = "linear1." + kind;
        names["net/ffn/down/" + kind] = "linear2." + kind;
    }
    return names;
}

const ops::AttentionMask padded{.lengths = {7, 4}};
nn::TransformerBlockConfig block_config(nn::NormPlacement placement, bool causal) {
    return {.attention = {.width = 8, .heads = 2, .bias = true, .causal = causal},
            .feed_forward = {.kind = nn::FeedForwardKind::relu, .width = 8, .hidden = 12, .bias = true},
            .norm = {.kind = nn::NormKind::layer, .gains = true},
            .placement = placement};
}

}  // namespace

TEST_CASE("pytorch: attention to another sequence, with padding and numbers added to the logits") {
    Case of_attention("attention");
    nn::CrossAttention<double> attention("net", {.width = 8, .context_width = 6, .heads = 2, .bias = true});
    auto names = attention_names("net", "");
    for (const std::string layer : {"query", "key", "value"})
        names["net/" + layer + "/weight"] = layer.substr(0, 1) + "_proj_weight";
    of_attention.load(attention, names);
    const auto x = of_attention.input("x"), z = of_attention.input("x1");
    ops::AttentionMask mask = padded;
    mask.bias = ops::attention_bias(cast<float>(of_attention.read("added")));
    of_attention.check(attention(x, z, mask), {{"dx", x}, {"dx1", z}});
}

TEST_CASE("pytorch: blocks of encoders, with padding and the norm before and behind, and of decoders that read them") {
    for (const auto placement : {nn::NormPlacement::pre, nn::NormPlacement::post}) {
        Case of_encoder(placement == nn::NormPlacement::pre ? "encoder_pre" : "encoder_post");
        nn::TransformerBlock<double> encoder("net", block_config(placement, false));
        auto names = block_names({"attention_norm", "ffn_norm"});
        names.merge(attention_names("net/attention", "self_attn."));
        of_encoder.load(encoder, names);
        const auto x = of_encoder.input("x");
        of_encoder.check(encoder(x, padded), {{"dx", x}});
    }
    Case of_decoder("decoder");
    nn::EncoderDecoderBlock<double> decoder(
        "net", {.block = block_config(nn::NormPlacement::post, true), .cross = {.width = 8, .heads = 2, .bias = true}});
    auto names = block_names({"attention_norm", "cross_norm", "ffn_norm"});
    names.merge(attention_names("net/attention", "self_attn."));
    names.merge(attention_names("net/cross", "multihead_attn."));
    of_decoder.load(decoder, names);
    const auto x = of_decoder.input("x"), z = of_decoder.input("x1");
    of_decoder.check(decoder(x, z, padded), {{"dx", x}, {"dx1", z}});
}

TEST_CASE("pytorch: functions of elements, and along an axis") {
    using Op = std::function<Variable<double>(const Variable<double>&)>;
    const std::map<std::string, Op> unary = {{"erf", [](const auto& v) { return ops::erf(v); }},
                                             {"sin", [](const auto& v) { return ops::sin(v); }},
                                             {"cos", [](const auto& v) { return ops::cos(v); }},
                                             {"cumsum", [](const auto& v) { return ops::cumsum(v, 1); }},
                                             {"min", [](const auto& v) { return ops::min(v, {.axes = {1}}); }},
                                             {"prod", [](const auto& v) { return ops::prod(v, {.axes = {1}}); }}};
    for (const auto& [name, op] : unary) {
        Case one(name);
        const auto x = one.input("x");
        one.check(op(x), {{"dx", x}});
    }
    for (const bool largest : {true, false}) {
        Case two(largest ? "maximum" : "minimum");
        const auto x = two.input("x"), z = two.input("x1");
        two.check(largest ? ops::maximum(x, z) : ops::minimum(x, z), {{"dx", x}, {"dx1", z}});
    }
}
