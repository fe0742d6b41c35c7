// SPDX-License-Identifier: MIT
// A network with the residual rule `depth` computes the function of a plain pre-norm network.
// Reference: Blake et al. 2024, arXiv:2407.17465, lemma F.1.
//
// Plain network: R_0 is the embedding. For residual layers l = 1..L
//   R_l = R_{l-1} + c_l f_l(norm(R_{l-1})),  c_l = a_l (L/2)^-1/2,
//   a_l = a_attn where f_l is attention, a_ffn where it is a feed-forward layer.
// Its logits are readout(norm(R_L)).
// Network with the rule: x_0 = R_0 and
//   x_l = (tau_l f_l(norm(x_{l-1})) + x_{l-1}) / d_l,  d_l = (tau_l^2 + 1)^1/2.
// Suppose R_{l-1} = s_{l-1} x_{l-1}. Without an epsilon norm(R) = norm(x), so f_l is equal in both networks.
// With tau_l = c_l / s_{l-1}
//   R_l = s_{l-1} (x_{l-1} + tau_l f_l) = s_{l-1} d_l x_l
//   s_l^2 = s_{l-1}^2 (1 + tau_l^2) = s_{l-1}^2 + c_l^2,   s_0 = 1
// Hence tau_l = a_l / (L/2 + sum of a^2 before l)^1/2, which is the residual rule.
// The last norm removes s_L. So logits, loss and true gradients are equal in both networks.
// The gradients under `unit` carry a constant per parameter, which the audit computes.
#include <unitscale/analysis/audit.hpp>

#include "support/catch.hpp"
#include "support/language_model.hpp"

#include <unitscale/ops/linear.hpp>
#include <unitscale/ops/mul.hpp>
#include <unitscale/scaling/known_recipes.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

using namespace unitscale;

namespace {

/// A Llama-like decoder of `depth` blocks, and the multipliers of its residual branches.
struct Case {
    std::size_t depth = 1;
    double multiplier = 1.0, attention_ratio = 1.0;  // alpha_res, alpha_res_attn_ratio
    double attention_mult = 1.0, epsilon = 0.0;

    [[nodiscard]] nn::DecoderConfig config() const {
        return {.vocabulary = 11,
                .width = 16,
                .depth = depth,
                .heads = 2,
                .length = 7,
                .hidden_ratio = 2.75,
                .feed_forward = nn::FeedForwardKind::gated_silu,
                .norm = {.kind = nn::NormKind::rms, .epsilon = epsilon},
                .positions = nn::Positions::rotary,
                .residual =
                    ResidualRule{
                        .scheme = ResidualScheme::depth, .multiplier = multiplier, .attention_ratio = attention_ratio},
                .attention_mult = attention_mult};
    }
    [[nodiscard]] double ffn_factor() const {
        return multiplier * std::sqrt(2.0 / (1.0 + attention_ratio * attention_ratio));
    }
    [[nodiscard]] double attention_factor() const { return attention_ratio * ffn_factor(); }
};

/// A random case: multiplier and ratio from 1/4 to 4, attention multiplier from 1/2 to 4.
/// The logarithms of all three are uniformly distributed.
Case random_case(std::size_t depth, std::uint64_t stream) {
    const auto draw = [&](std::uint64_t i, double low, double high) {
        const double u = static_cast<double>(random_word({3, stream}, i) >> 11) * 0x1p-53;
        return low * std::pow(high / low, u);
    };
    return {.depth = depth,
            .multiplier = draw(0, 0.25, 4.0),
            .attention_ratio = draw(1, 0.25, 4.0),
            .attention_mult = draw(2, 0.5, 4.0)};
}

/// Results of a network for one batch.
struct Outcome {
    std::vector<double> logits{};
    double loss = 0.0;
    std::map<std::string, std::vector<double>> gradients{};  ///< true gradients, by parameter
};

std::vector<double> elements(const Tensor<double>& tensor, double divisor = 1.0) {
    std::vector<double> result;
    for (const double x : tensor.span()) result.push_back(x * tensor.scale() / divisor);
    return result;
}

/// Results of the library's model under Unit Scaling.
Outcome run_scheme(test::LanguageModel<double>& model, const train::Batch& batch) {
    Outcome outcome;
    model.tape.begin_step({.retain = true});
    const Variable<double> logits = model.decoder(model.tape, batch.ids);
    const Variable<double> loss = ops::softmax_cross_entropy(logits, batch.labels);
    outcome.logits = elements(logits.value());
    outcome.loss = loss.value().data()[0];
    const analysis::Audit audit = analysis::audit(model.tape, loss);
    CHECK(audit.valid());
    model.tape.backward(loss);
    for (Parameter<double>* parameter : model.decoder.parameters())
        for (const analysis::AuditedLeaf& leaf : audit.leaves)
            if (leaf.name == parameter->name()) outcome.gradients[leaf.name] = elements(parameter->gradient(), leaf.s);
    return outcome;
}

/// Results of the plain network on the model's parameters, written op by op without scaling.
/// The constants are the multipliers of the weights.
Outcome run_plain(test::LanguageModel<double>& model, const train::Batch& batch, const Case& c, double attention_factor,
                  double ffn_factor) {
    const nn::DecoderConfig& config = model.decoder.config();
    Recipe recipe = find_recipe("fp32");
    ScalingState state(1);
    Tape<double> tape(recipe, state);
    tape.begin_step({.retain = true});
    std::map<std::string, Parameter<double>*> parameters;
    for (Parameter<double>* parameter : model.decoder.parameters()) {
        parameter->clear_gradient();
        parameters[parameter->name()] = parameter;
    }
    const auto times = [&](double factor, Variable<double> x) {
        return ops::mul(x, tape.input(Tensor<double>(Shape{1}, {factor})));
    };
    const auto linear = [&](Variable<double> x,
                            const std::string& name) {  // divided by fan_in^1/2, because weights are unit-normal
        Parameter<double>& weight = *parameters.at(name + "/weight");
        return times(1.0 / std::sqrt(static_cast<double>(weight.shape()[1])), ops::linear(x, tape.parameter(weight)));
    };
    const auto norm = [&](Variable<double> x) { return ops::rms_norm(x, {}, {.epsilon = 0.0}); };

    const std::size_t heads = config.heads, head_size = config.width / heads;
    const double m = c.attention_mult, s = static_cast<double>(config.length);
    const double peaked = 1.0 / (1.0 + 4.0 * static_cast<double>(head_size) / (m * m));
    const double attention_alpha = std::pow(s / std::log(s), (1.0 - peaked) / 2.0);  // reference: table 8 of the paper
    const double silu_alpha =
        std::sqrt(2.0) * std::pow(std::sqrt(2.0), 0.5);  // halfway, in the logarithm, of 2^1/2 and 2

    const double half_root = std::sqrt(static_cast<double>(config.depth));  // (L/2)^1/2: a block has two layers
    Variable<double> stream = ops::embedding(tape.parameter(*parameters.at("decoder/tokens/weight")), batch.ids);
    for (std::size_t block = 0; block < config.depth; ++block) {
        const std::string path = "decoder/block" + std::to_string(block);
        Variable<double> x = norm(stream);
        Variable<double> q = ops::rotary(linear(x, path + "/attention/query"), {.heads = heads});
        Variable<double> k = ops::rotary(linear(x, path + "/attention/key"), {.heads = heads});
        Variable<double> v = linear(x, path + "/attention/value");
        x = times(attention_alpha, ops::attention(q, k, v, {.heads = heads, .mult = m}));
        stream = ops::add(stream, times(attention_factor / half_root, linear(x, path + "/attention/out")));
        x = norm(stream);
        x = times(silu_alpha, ops::gated_silu(linear(x, path + "/ffn/up"), linear(x, path + "/ffn/gate")));
        stream = ops::add(stream, times(ffn_factor / half_root, linear(x, path + "/ffn/down")));
    }
    Parameter<double>& readout = *parameters.at("decoder/readout/weight");
    const Variable<double> logits =
        times(1.0 / static_cast<double>(config.width), ops::readout(norm(stream), tape.parameter(readout)));
    const Variable<double> loss = ops::softmax_cross_entropy(logits, batch.labels);
    tape.backward(loss);
    Outcome outcome{.logits = elements(logits.value()), .loss = loss.value().data()[0]};
    for (const auto& [name, parameter] : parameters) outcome.gradients[name] = elements(parameter->gradient());
    return outcome;
}

/// The largest difference of two elements, relative to the largest element of `b`.
double difference(const std::vector<double>& a, const std::vector<double>& b) {
    REQUIRE(a.size() == b.size());
    double worst = 0.0, largest = 0.0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        worst = std::max(worst, std::abs(a[i] - b[i]));
        largest = std::max(largest, std::abs(b[i]));
    }
    return worst / largest;
}

Recipe unit_recipe() {
    Recipe recipe = find_recipe("unit-fp32");
    recipe.readout_exponent = 1.0;
    return recipe;
}

}  // namespace

TEST_CASE(
    "runs: the residual rule `depth` is the plain pre-norm network: logits, loss and gradients, for random "
    "multipliers") {
    for (std::size_t depth = 1; depth <= 6; ++depth)
        for (std::uint64_t draw = 0; draw < 3; ++draw) {
            const Case c = random_case(depth, 10 * depth + draw);
            INFO("depth " << depth << ", multiplier " << c.multiplier << ", attention ratio " << c.attention_ratio
                          << ", attention multiplier " << c.attention_mult);
            test::LanguageModel<double> model(unit_recipe(), c.config(), depth);
            const train::Batch batch = test::random_batch(2, 7, 11, draw + 1);
            const Outcome scheme = run_scheme(model, batch);
            const Outcome plain = run_plain(model, batch, c, c.attention_factor(), c.ffn_factor());
            CHECK(difference(scheme.logits, plain.logits) < 1e-9);
            CHECK(std::abs(scheme.loss - plain.loss) < 1e-9);
            REQUIRE(scheme.gradients.size() == 2 + 7 * depth);
            for (const auto& [name, gradient] : plain.gradients) {
                INFO(name);
                CHECK(difference(scheme.gradients.at(name), gradient) < 1e-9);
            }
        }
}

TEST_CASE("runs: other residual factors or an epsilon in the norms separate the residual rule from the plain network") {
    const Case c{.depth = 3, .multiplier = 1.5, .attention_ratio = 0.5};
    const train::Batch batch = test::random_batch(2, 7, 11);
    test::LanguageModel<double> model(unit_recipe(), c.config());
    const Outcome scheme = run_scheme(model, batch);
    CHECK(difference(scheme.logits, run_plain(model, batch, c, c.ffn_factor(), c.attention_factor()).logits) > 1e-2);
    CHECK(difference(scheme.logits, run_plain(model, batch, c, 1.01 * c.attention_factor(), c.ffn_factor()).logits) >
          1e-4);
    Case with_epsilon = c;
    with_epsilon.epsilon = 1e-5;
    test::LanguageModel<double> other(unit_recipe(), with_epsilon.config());
    const double separated = difference(run_scheme(other, batch).logits,
                                        run_plain(other, batch, c, c.attention_factor(), c.ffn_factor()).logits);
    CHECK(separated > 1e-9);
    CHECK(separated < 1e-4);
}
