// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/scaling/parameter_facts.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <string_view>

namespace unitscale {

/// How initial values, multipliers and learning rates follow from a parameter's facts. `parameter_scaling` holds the
/// table.
///   standard: weights normal with standard deviation 0.02 (GPT-2), one learning rate for all
///   unit: Unit Scaling: weights of unit variance, the ops' factors do the rest, one learning rate for all, or a rate
///     of their own for vectors
///   mup: µP: standard at a base width and depth, from which initial values, multipliers and learning rates are
///     transferred
///   umup: u-µP: Unit Scaling with learning rates that also transfer, and no base
/// References: Blake, Orr, Luschi 2023, arXiv:2303.11257; Yang et al. 2022, arXiv:2203.03466; Blake et al. 2024,
/// arXiv:2407.17465.
enum class Parametrisation { standard, unit, mup, umup };

inline constexpr std::array<std::string_view, 4> parametrisation_names = {"standard", "unit", "mup", "umup"};
[[nodiscard]] constexpr std::string_view name(Parametrisation p) noexcept {
    return parametrisation_names[static_cast<std::size_t>(p)];
}

/// The factor of an embedding's learning rate under `umup`.
///   fan_out: width^-1/2, which transfers over widths in the paper     constant: 1, as µP has it
/// Reference: Blake et al. 2024, arXiv:2407.17465, section 4.4 and figure 3.
enum class EmbeddingRate { fan_out, constant };

inline constexpr std::array<std::string_view, 2> embedding_rate_names = {"fan_out", "constant"};
[[nodiscard]] constexpr std::string_view name(EmbeddingRate rate) noexcept {
    return embedding_rate_names[static_cast<std::size_t>(rate)];
}

/// The distribution of initial weights, with the standard deviation sigma of `parameter_scaling`.
///   normal: N(0, sigma^2)     uniform: between -3^1/2 sigma and 3^1/2 sigma, as in the Unit Scaling experiments
enum class InitialDistribution { normal, uniform };

inline constexpr std::array<std::string_view, 2> initial_distribution_names = {"normal", "uniform"};
[[nodiscard]] constexpr std::string_view name(InitialDistribution distribution) noexcept {
    return initial_distribution_names[static_cast<std::size_t>(distribution)];
}

/// The optimisers that rules distinguish. Adam's step does not depend on the gradient's size, SGD's does, and LAMB's is
/// relative to the parameter's own size.
enum class OptimiserKind { adam, sgd, lamb };

inline constexpr std::array<std::string_view, 3> optimiser_kind_names = {"adam", "sgd", "lamb"};

[[nodiscard]] constexpr std::string_view name(OptimiserKind kind) noexcept {
    return optimiser_kind_names[static_cast<std::size_t>(kind)];
}

/// The kind with the name `text`. Error: an unknown name; the message lists the known names.
[[nodiscard]] inline OptimiserKind parse_optimiser_kind(std::string_view text) {
    for (std::size_t i = 0; i < optimiser_kind_names.size(); ++i)
        if (optimiser_kind_names[i] == text) return static_cast<OptimiserKind>(i);
    fail("optimiser: unknown kind '", text, "'; expected one of adam, sgd, lamb");
}

/// The meaning of weight decay of strength wd. lr_t is the learning rate of the update, lr_peak the largest of the run.
///   gradient:    wd p is added to the gradient (an L2 penalty: it goes through momentum and Adam's denominators)
///   coupled:     p -= lr_t wd p, beside the gradient's step (AdamW)
///   independent: p -= wd (lr_t / lr_peak) p: decay that does not depend on the learning rate
/// References: Loshchilov, Hutter 2017, arXiv:1711.05101; Blake et al. 2024, arXiv:2407.17465, section 3.1.
enum class WeightDecay { gradient, coupled, independent };

/// Numbers of a model that are chosen by search. The first three act in every parametrisation, the others in `mup`.
/// u-µP's alpha_res and alpha_res_attn_ratio are the residual rule's `multiplier` and `attention_ratio`; the learning
/// rate is the recipe's.
struct Hyperparameters {
    double alpha_attn = 1.0;          ///< factor of attention's logits
    double alpha_ffn_act = 1.0;       ///< multiplier before the feed-forward non-linearity
    double alpha_loss_softmax = 1.0;  ///< factor of the logits in the loss and in text generation
    double init_sigma = 1.0;          ///< factor of the standard deviation 0.02 of initial weights
    double alpha_emb = 1.0;           ///< factor of the embedding
    double alpha_out = 1.0;           ///< factor of the readout
    double embedding_rate = 1.0;      ///< factor of the embedding's learning rate
    std::size_t base_width = 128;     ///< width at which `mup` is the standard model
    std::size_t base_depth = 4;       ///< blocks at which `mup` is the standard model

    friend constexpr bool operator==(const Hyperparameters&, const Hyperparameters&) = default;
};

/// A parametrisation and its hyperparameters: the part of a recipe that an optimiser needs.
struct ParametrisationRule {
    Parametrisation kind = Parametrisation::standard;
    Hyperparameters hyperparameters{};
    /// Whether the readout's factors are joined, as with tied embeddings. Read for SGD under `umup`.
    bool constrained_readout = false;
    bool vector_learning_rate = false;                 ///< under `unit`, biases and gains have a factor of their own
    EmbeddingRate embedding = EmbeddingRate::fan_out;  ///< read under `umup`

    friend constexpr bool operator==(const ParametrisationRule&, const ParametrisationRule&) = default;
};

/// Initial value, multiplier and learning rate of one parameter.
struct ParameterScaling {
    double initial_stddev = 0.0;  ///< 0 for biases, which start at 0, and gains, which start at 1
    double multiplier = 1.0;      ///< of the product or lookup with the parameter, in the forward pass
    double learning_rate_factor = 1.0;
    bool decays = true;  ///< weight decay acts on it
};

/// Error, naming the field: hyperparameters that are not positive and finite, a base of 0.
inline void check_hyperparameters(const Hyperparameters& h) {
    const auto positive = [](std::string_view field, double value) {
        check(std::isfinite(value) && value > 0.0, "hyperparameters: ", field, " is ", value,
              "; expected a positive number");
    };
    positive("alpha_attn", h.alpha_attn);
    positive("alpha_ffn_act", h.alpha_ffn_act);
    positive("alpha_loss_softmax", h.alpha_loss_softmax);
    positive("init_sigma", h.init_sigma);
    positive("alpha_emb", h.alpha_emb);
    positive("alpha_out", h.alpha_out);
    positive("embedding_rate", h.embedding_rate);
    check(h.base_width >= 1, "hyperparameters: base_width is 0; expected at least 1");
    check(h.base_depth >= 1, "hyperparameters: base_depth is 0; expected at least 1");
}

/// The factor of an embedding's or a readout's result under `mup`, where the model applies it. An embedding has
/// alpha_emb. A readout has alpha_out base_width / width, which keeps logits from growing with the width once the
/// readout has aligned with its input. 1 otherwise: under `unit` and `umup` the ops' own factors are the multipliers.
[[nodiscard]] inline double model_multiplier(const ParametrisationRule& rule, const ParameterFacts& facts) noexcept {
    if (rule.kind != Parametrisation::mup) return 1.0;
    const Hyperparameters& h = rule.hyperparameters;
    if (facts.role == ParameterRole::embedding) return h.alpha_emb;
    if (facts.role != ParameterRole::readout) return 1.0;
    return h.alpha_out * static_cast<double>(h.base_width) / static_cast<double>(stream_width(facts));
}

/// The multiplier m in attention's softmax(m q k^T / d). It is alpha_attn d^1/2 for `standard` and `unit`, as in the
/// textbook's 1 / d^1/2. It is alpha_attn for `mup` and `umup`: queries and keys become correlated in training, and
/// their products grow as d.
[[nodiscard]] inline double attention_multiplier(const ParametrisationRule& rule, std::size_t head_size) noexcept {
    const bool textbook = rule.kind == Parametrisation::standard || rule.kind == Parametrisation::unit;
    return rule.hyperparameters.alpha_attn * (textbook ? std::sqrt(static_cast<double>(head_size)) : 1.0);
}

/// The factor of the branch in a plain residual layer x + f(x) of a model of `depth` blocks. Under `mup` it is
/// (base_depth / depth)^1/2, so that the sum of the branches keeps its variance. Otherwise it is 1 (ResidualRule has
/// u-µP's).
[[nodiscard]] inline double branch_multiplier(const ParametrisationRule& rule, std::size_t depth) noexcept {
    if (rule.kind != Parametrisation::mup) return 1.0;
    return std::sqrt(static_cast<double>(rule.hyperparameters.base_depth) / static_cast<double>(depth));
}

/// The parametrisation's default kind of weight decay. It is `independent` where learning rates differ by width,
/// because `coupled` decay would follow them.
[[nodiscard]] constexpr WeightDecay weight_decay_kind(Parametrisation kind) noexcept {
    return kind == Parametrisation::mup || kind == Parametrisation::umup ? WeightDecay::independent
                                                                         : WeightDecay::coupled;
}

/// The table of every parametrisation. r = base_width / width; D = depth inside residual branches, 1 outside;
/// q = (base_depth / D)^1/2 inside residual branches, 1 outside.
///
///   | parametrisation, role | initial stddev   | multiplier  | Adam            | SGD     | LAMB      |
///   | standard              | 0.02             | 1           | 1               | 1       | 1         |
///   | unit                  | 1                | fan_in^-1/2 | 1               | 1       | 1         |
///   | unit, vector rate:    |                  |             |                 |         |           |
///   |   bias and norm       |                  | 1           | width^-1/2      | as Adam | 1         |
///   | mup, embedding        | 0.02 sigma       | alpha_emb   | e               | e / r   | e         |
///   | mup, weight           | 0.02 sigma r^1/2 | 1           | q r             | 1       | q r^1/2   |
///   | mup, readout          | 0.02 sigma       | alpha_out r | 1               | 1 / r   | 1         |
///   | mup, bias and norm    |                  | 1           | q               | 1 / r   | as Adam   |
///   | umup, embedding       | 1                | 1           | fan_out^-1/2    | as Adam | as Adam   |
///   |   constant rate       | 1                | 1           | 1               | as Adam | as Adam   |
///   | umup, weight          | 1                | fan_in^-1/2 | (fan_in D)^-1/2 | as Adam | as Adam   |
///   | umup, readout         | 1                | 1 / fan_in  | 1               | as Adam | as Adam   |
///   | umup, bias and norm   |                  | 1           | D^-1/2          | as Adam | as Adam   |
///
/// Multipliers of embeddings under `unit` are 1; sigma is init_sigma; e is embedding_rate, a hyperparameter of µP.
/// Vector rate: unit weights are width^1/2 times as large as the textbook's, and so is the best rate of Adam. Biases
/// and gains are as large as in the textbook's model, so they take that rate times width^-1/2. A step of LAMB is
/// relative to the parameter's size already. The argument holds for biases beside alpha (Recipe::bias_inside_alpha is
/// false): inside, alpha reduces their effect by about width^-1/2 a second time.
/// Adam: every weight moves by the learning rate lr, and a hidden weight's moves add up coherently over fan_in inputs.
/// Times the multiplier fan_in^-1/2 the result moves by lr fan_in^1/2, hence the factor fan_in^-1/2.
/// SGD: the step follows the gradient, and its size depends on the multipliers. With a readout of free gradient factor,
/// u-µP's gradients have unit scale and the factors are Adam's. With a `constrained_readout`, the readout's factor
/// 1/width stands in all gradients of the trunk. The factors then make up for it: weight fan_in^1/2, embedding
/// fan_out^1/2 (Adam's times the width), bias and norm the length of the vector, readout 1. Each is divided by D^1/2 in
/// branches. In µP a branch's own multiplier is already in the gradients: no q for SGD.
/// LAMB: the step is relative to the parameter's size, so the factor is Adam's over the r^1/2 of the initial standard
/// deviation.
/// A tied table counts as an embedding in its initial values and its learning rate (under `umup` the smaller of the two
/// uses' rates). Both uses have their own multipliers. Biases and norms do not decay.
/// Error: hyperparameters out of range.
/// References: Blake et al. 2024, arXiv:2407.17465, table 2 and appendix; the vector rate: the experiments of Blake,
/// Orr, Luschi 2023, arXiv:2303.11257. LAMB's column is derived here.
/// Test: tests/scaling/parametrisation_test.cpp
[[nodiscard, gnu::cold]] inline ParameterScaling parameter_scaling(const ParametrisationRule& rule,
                                                                   const ParameterFacts& facts,
                                                                   OptimiserKind optimiser = OptimiserKind::adam,
                                                                   double readout_exponent = 1.0) {
    const Hyperparameters& h = rule.hyperparameters;
    check_hyperparameters(h);
    const ParameterRole role = facts.role;
    const bool vector_like = role == ParameterRole::bias || role == ParameterRole::norm;
    const bool matrix = role == ParameterRole::weight, readout = role == ParameterRole::readout;
    const auto count = [](std::size_t n) { return static_cast<double>(n == 0 ? 1 : n); };
    const double fan_in = count(facts.fan_in), fan_out = count(facts.fan_out), depth = count(facts.depth);
    const double ratio = static_cast<double>(h.base_width) / count(stream_width(facts));

    ParameterScaling result{.decays = !vector_like};
    switch (rule.kind) {
        case Parametrisation::standard:
            result.initial_stddev = vector_like ? 0.0 : 0.02;
            break;
        case Parametrisation::unit:
            result.initial_stddev = vector_like ? 0.0 : 1.0;
            result.multiplier = matrix ? 1.0 / std::sqrt(fan_in) : readout ? std::pow(fan_in, -readout_exponent) : 1.0;
            if (rule.vector_learning_rate && vector_like && optimiser != OptimiserKind::lamb)
                result.learning_rate_factor = 1.0 / std::sqrt(count(stream_width(facts)));
            break;
        case Parametrisation::mup: {
            result.initial_stddev = vector_like ? 0.0 : 0.02 * h.init_sigma * (matrix ? std::sqrt(ratio) : 1.0);
            result.multiplier = model_multiplier(rule, facts);
            const double in_branch = facts.depth == 0 ? 1.0 : std::sqrt(count(h.base_depth) / depth);
            if (optimiser == OptimiserKind::sgd) result.learning_rate_factor = matrix ? 1.0 : 1.0 / ratio;
            else
                result.learning_rate_factor = in_branch * (!matrix                            ? 1.0
                                                           : optimiser == OptimiserKind::adam ? ratio
                                                                                              : std::sqrt(ratio));
            if (role == ParameterRole::embedding) result.learning_rate_factor *= h.embedding_rate;
            break;
        }
        case Parametrisation::umup: {
            result.initial_stddev = vector_like ? 0.0 : 1.0;
            result.multiplier = matrix ? 1.0 / std::sqrt(fan_in) : readout ? std::pow(fan_in, -readout_exponent) : 1.0;
            const double in_branch = 1.0 / std::sqrt(depth),
                         embedding = rule.embedding == EmbeddingRate::fan_out ? 1.0 / std::sqrt(fan_out) : 1.0;
            if (optimiser == OptimiserKind::sgd && rule.constrained_readout)
                result.learning_rate_factor = in_branch * (readout       ? 1.0
                                                           : vector_like ? fan_out
                                                                         : std::sqrt(matrix ? fan_in : fan_out));
            else
                result.learning_rate_factor = in_branch * (matrix                             ? 1.0 / std::sqrt(fan_in)
                                                           : role == ParameterRole::embedding ? embedding
                                                                                              : 1.0);
            break;
        }
    }
    return result;
}

}  // namespace unitscale
