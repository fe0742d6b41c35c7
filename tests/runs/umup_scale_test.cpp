// SPDX-License-Identifier: MIT
// Unit scale of the u-µP Llama at initialisation, and the growth of attention's outputs with depth.
//
// Reference: Blake et al. 2024, arXiv:2407.17465, appendix L.
// With nearly flat logits, row i of attention's output is the average of value rows 1 to i.
// The op's factor (s / ln s)^1/2 restores unit scale if the value rows are independent.
// Rows of one sequence are not independent: equal tokens have equal rows, and averages of overlapping parts are alike.
// The likeness grows with every layer.
// Averaging does not shrink the common part of the rows, so the factor makes it larger than 1.
// The limit is (s / ln s)^1/2, when all rows are equal.
//
// Let K [T,T] be the covariance of the rows of one sequence: K_ij is the mean of x_i x_j over the columns.
// With many columns and random weights, each layer changes K as follows.
//   embedding         K_ij = 1 where tokens i and j are equal, else 0
//   rms_norm          K_ij / (K_ii K_jj)^1/2
//   linear            K
//   attention         f^2 A K A^T, A_ij = 1/i for j <= i: flat logits; f the op's factor
//   gated silu        f^2 K_ij S(K_ij), S(r) the mean of silu(a) silu(b) over unit normals with correlation r;
//                     f the op's factor
//   residual layer    (tau^2 K_branch + K) / (tau^2 + 1)
// The mean of K's diagonal is the square of the activation's root mean square.
#include <unitscale/analysis/scale_check.hpp>

#include "support/catch.hpp"
#include "support/language_model.hpp"

#include <unitscale/io/vocabulary.hpp>
#include <unitscale/nn/llama.hpp>
#include <unitscale/scaling/known_recipes.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

using namespace unitscale;

namespace {

constexpr std::size_t length = 128, head_size = 64, sequences = 2;

/// Covariance of the rows of one sequence: a symmetric matrix [T,T].
using Covariance = std::vector<double>;
double& at(Covariance& k, std::size_t i, std::size_t j) { return k[i * length + j]; }
double at(const Covariance& k, std::size_t i, std::size_t j) { return k[i * length + j]; }

double mean_square(const Covariance& k) {
    double sum = 0.0;
    for (std::size_t i = 0; i < length; ++i) sum += at(k, i, i);
    return sum / static_cast<double>(length);
}

Covariance normalised(const Covariance& k) {
    Covariance result(k.size());
    for (std::size_t i = 0; i < length; ++i)
        for (std::size_t j = 0; j < length; ++j) at(result, i, j) = at(k, i, j) / std::sqrt(at(k, i, i) * at(k, j, j));
    return result;
}

/// Attention with flat logits: factor^2 A K A^T, with A_ij = 1/i for j <= i.
Covariance averaged(const Covariance& k, double factor) {
    Covariance half(k.size()), result(k.size());
    for (std::size_t j = 0; j < length; ++j) {
        double sum = 0.0;
        for (std::size_t i = 0; i < length; ++i) at(half, i, j) = (sum += at(k, i, j)) / static_cast<double>(i + 1);
    }
    for (std::size_t i = 0; i < length; ++i) {
        double sum = 0.0;
        for (std::size_t j = 0; j < length; ++j)
            at(result, i, j) = factor * factor * (sum += at(half, i, j)) / static_cast<double>(j + 1);
    }
    return result;
}

/// The mean of silu(a) silu(b) over unit normals a, b with correlation r.
/// It is computed on a grid of a and b for r = -1, -0.95, ..., 1, and interpolated linearly between these r.
class SiluCovariance {
public:
    SiluCovariance() {
        for (std::size_t n = 0; n < points; ++n) {
            const double r = correlation(n), rest = std::sqrt(std::max(0.0, 1.0 - r * r));
            double sum = 0.0, total = 0.0;
            for (double a = -6.0; a <= 6.0; a += 0.125)
                for (double c = -6.0; c <= 6.0; c += 0.125) {
                    const double weight = std::exp(-0.5 * (a * a + c * c));
                    sum += weight * silu(a) * silu(r * a + rest * c);
                    total += weight;
                }
            values_.push_back(sum / total);
        }
    }
    double operator()(double r) const {
        const double place = std::clamp((r + 1.0) / step, 0.0, static_cast<double>(points - 1));
        const std::size_t n = std::min(static_cast<std::size_t>(place), points - 2);
        const double part = place - static_cast<double>(n);
        return (1.0 - part) * values_[n] + part * values_[n + 1];
    }

private:
    static constexpr std::size_t points = 41;
    static constexpr double step = 0.05;
    static double correlation(std::size_t n) { return -1.0 + step * static_cast<double>(n); }
    static double silu(double x) { return x / (1.0 + std::exp(-x)); }
    std::vector<double> values_{};
};

/// The predicted root mean square, in infinite width, of every activation that attention's outputs contribute to.
/// Keys are paths; `[1]` is an op's second output.
/// Activations before the first block and inside the other branches have root mean square 1.
std::map<std::string, double> predicted(std::size_t depth, const ResidualRule& rule, const Tensor<std::int32_t>& ids) {
    static const SiluCovariance silu_covariance;
    constexpr double s = length, d = head_size;
    const double attention_factor = std::pow(s / std::log(s), 0.5 * (1.0 - 1.0 / (1.0 + 4.0 * d))),
                 silu_factor = std::pow(2.0, 0.75);
    std::map<std::string, double> result;
    for (std::size_t row = 0; row < sequences; ++row) {
        const std::int32_t* tokens = ids.data() + row * length;
        Covariance stream(length * length);
        for (std::size_t i = 0; i < length; ++i)
            for (std::size_t j = 0; j < length; ++j) at(stream, i, j) = tokens[i] == tokens[j] ? 1.0 : 0.0;
        const auto note = [&](const std::string& path, const Covariance& k) {
            result[path] += mean_square(k) / sequences;
        };
        const auto layer = [&](std::size_t index, const auto& branch) {
            const std::string path = concatenate("decoder/block", index / 2, '/'), ordinal = index % 2 == 0 ? "" : ".1";
            note(path + "residual_split" + ordinal, stream);
            note(path + "residual_split" + ordinal + "[1]", stream);
            const Covariance inner = branch(path, normalised(stream));
            const double tau = residual_tau(rule, index, 2 * depth);
            for (std::size_t i = 0; i < stream.size(); ++i)
                stream[i] = (tau * tau * inner[i] + stream[i]) / (tau * tau + 1.0);
            note(path + "residual_add" + ordinal, stream);
        };
        for (std::size_t block = 0; block < depth; ++block) {
            layer(2 * block, [&](const std::string& path, const Covariance& k) {
                Covariance out = averaged(k, attention_factor);
                note(path + "attention/attention", out);
                note(path + "attention/out/linear", out);
                return out;
            });
            layer(2 * block + 1, [&](const std::string&, Covariance k) {
                for (double& covariance : k) covariance *= silu_factor * silu_factor * silu_covariance(covariance);
                return k;
            });
        }
    }
    for (auto& [path, number] : result) number = std::sqrt(number);
    return result;
}

/// The root mean square of every tensor of a step, by path, and of the products of queries and keys over the head size.
class Recorder : public Observer<float> {
public:
    void observe(const TensorEvent<float>& event) override {
        std::string path(event.path);
        if (event.index > 0) path += concatenate('[', event.index, ']');
        (event.op == "parameter" ? weights : activations)[path] = analysis::moments(event.tensor).rms;
        if (path.ends_with("/attention/rotary")) queries_ = event.tensor;
        if (path.ends_with("/attention/rotary.1")) add_products(event.tensor);
    }
    [[nodiscard]] double logits() const { return std::sqrt(squares_ / static_cast<double>(count_)); }

    std::map<std::string, double> activations, weights;

private:
    /// Adds the squared products of every query with the keys at its own and earlier positions.
    void add_products(const Tensor<float>& keys) {
        const std::size_t width = keys.dim(2);
        for (std::size_t row = 0; row < sequences; ++row)
            for (std::size_t i = 0; i < length; ++i)
                for (std::size_t j = 0; j <= i; ++j)
                    for (std::size_t head = 0; head < width; head += head_size, ++count_) {
                        const float* q = queries_.data() + (row * length + i) * width + head;
                        const float* k = keys.data() + (row * length + j) * width + head;
                        const double product = std::inner_product(q, q + head_size, k, 0.0) / head_size;
                        squares_ += product * product;
                    }
    }
    Tensor<float> queries_{};
    double squares_ = 0.0;
    std::size_t count_ = 0;
};

/// Sequences of English prose, and the size of their vocabulary of characters. The text is fixed: the prediction holds
/// for most texts, and a text that changes would now and then be one of the others.
std::pair<Tensor<std::int32_t>, std::size_t> prose() {
    const std::u32string text =
        U"A number format of eight bits holds few numbers, and most of them lie near one. Values that are too large "
        U"become infinite, values that are too small become zero, and training fails without a word. A factor for "
        U"every operation keeps activations, weights and gradients where the format is fine.";
    const io::CharacterVocabulary vocabulary(text);
    const std::vector<std::int32_t> tokens = vocabulary.encode(text);
    Tensor<std::int32_t> ids(Shape{sequences, length});
    REQUIRE(tokens.size() >= sequences * length);
    std::copy_n(tokens.data(), ids.size(), ids.data());
    return {std::move(ids), vocabulary.size()};
}

void check_activations(const Recorder& seen, const Recipe& recipe, const nn::DecoderConfig& config,
                       const Tensor<std::int32_t>& ids) {
    const auto expected = predicted(config.depth, recipe.residual, ids);
    const auto width = static_cast<double>(config.width);
    // The common part of the rows is a vector of `width` numbers.
    // Its root mean square varies by (2 width)^-1/2 in every layer.
    // With three seeds and six texts, measurements were within 2.5 width^-1/2 of the prediction.
    const double tolerance = 3.0 / std::sqrt(width);
    std::size_t found = 0;
    for (const auto& [path, rms] : seen.activations) {
        INFO(path << ": rms " << rms);
        if (const auto number = expected.find(path); number != expected.end()) {
            ++found;
            CHECK(rms == Approx(number->second).epsilon(tolerance));
            CHECK(number->second < std::sqrt(length / std::log(double{length})));
        } else if (path == "decoder/readout/readout") {
            CHECK(rms == Approx(1.0 / std::sqrt(width)).epsilon(0.3));
        } else {
            CHECK(rms > 0.5);
            CHECK(rms < 2.0);
        }
    }
    CHECK(found == 8 * config.depth);
    // Other activations of each block: two norms, q, k, v, up, gate, down, two rotations and the gated silu.
    // Activations outside the blocks: embedding, norm and logits.
    CHECK(seen.activations.size() == found + 11 * config.depth + 3);
    CHECK(seen.weights.size() == 7 * config.depth + 2);
    for (const auto& [path, rms] : seen.weights) {
        INFO(path);
        CHECK(rms == Approx(1.0).epsilon(0.05));
    }
    // Products of queries and keys are divided by the head size.
    // They are small at initialisation by design, because queries and keys align in training.
    INFO("logits: rms " << seen.logits());
    CHECK(seen.logits() > 0.8 / std::sqrt(double{head_size}));
    CHECK(seen.logits() < 1.25 / std::sqrt(double{head_size}));
}

}  // namespace

TEST_CASE(
    "runs: at initialisation the u-µP Llama's activations have unit scale, apart from attention's predicted growth") {
    const Recipe recipe = find_recipe("umup-fp32");
    const auto [text, vocabulary] = prose();
    const Tensor<std::int32_t> random = test::random_tokens({sequences, length}, vocabulary);
    for (const std::size_t width : {64u, 128u, 256u, 512u})
        for (const std::size_t depth : {2u, 4u, 8u}) {
            if (width == 512 && depth == 4) continue;  // depths 2 and 8 suffice; this case takes a quarter of the time
            const nn::DecoderConfig config = nn::llama_config(
                {.vocabulary = vocabulary, .width = width, .depth = depth, .head_size = head_size, .length = length});
            test::LanguageModel<float> model(recipe, config, 1, 2);
            for (const Tensor<std::int32_t>* ids : {&random, &text}) {
                INFO("width " << width << ", depth " << depth << (ids == &text ? ", prose" : ", random tokens"));
                Recorder recorder;
                model.tape.set_observer(&recorder);
                model.tape.begin_step();
                static_cast<void>(model.decoder(model.tape, *ids));
                model.tape.set_observer(nullptr);
                check_activations(recorder, recipe, config, *ids);
            }
        }
}

namespace {

/// The root mean square of every gradient of a step, by path.
class GradientRecorder : public Observer<float> {
public:
    void observe(const TensorEvent<float>& event) override {
        if (event.pass == Pass::gradient)
            gradients[concatenate(event.path, '#', event.index)] = analysis::moments(event.tensor).rms;
    }
    std::map<std::string, double> gradients;
};

}  // namespace

// Gradients of logits have unit scale. On their way down they shrink and grow by known factors:
// - a residual layer gives its branch the share tau / (tau^2 + 1)^1/2 of the gradient;
// - up and gate have the factor (width / hidden)^1/2, 0.60 here, because `down` joins alpha and beta_x;
// - attention's growth in the forward pass (above) makes a stream larger than 1, by which norms divide gradients;
// - queries and keys have gradients of about d^-1/2 = 1/8 times the output's, and less where rows are alike.
TEST_CASE(
    "runs: at initialisation the u-µP Llama's gradients have unit scale within a factor of 6, but queries and keys") {
    constexpr std::size_t vocabulary = 100;
    for (const std::size_t width : {64u, 128u, 256u})
        for (const std::size_t depth : {2u, 4u}) {
            const nn::DecoderConfig config = nn::llama_config(
                {.vocabulary = vocabulary, .width = width, .depth = depth, .head_size = head_size, .length = length});
            test::LanguageModel<float> model(find_recipe("umup-fp32"), config);
            GradientRecorder seen;
            model.tape.set_observer(&seen);
            model.tape.begin_step();
            model.tape.backward(model.loss(test::random_batch(4, length, vocabulary)));
            model.tape.set_observer(nullptr);
            std::size_t small = 0;
            for (const auto& [path, rms] : seen.gradients) {
                INFO("width " << width << ", depth " << depth << ", " << path << ": rms " << rms);
                const auto has = [&path = path](const char* part) { return path.find(part) != std::string::npos; };
                if (has("/query/") || has("/key/") || has("/rotary")) {
                    ++small;
                    CHECK(rms > 0.02);
                    CHECK(rms < 0.2);
                } else {
                    CHECK(rms > 1.0 / 6.0);
                    CHECK(rms < 4.0);
                }
            }
            // Of each block: two products with their weights, two rotations.
            CHECK(small == 6 * depth);
            // 26 of each block, then embedding, last norm, readout, two tables and the loss.
            CHECK(seen.gradients.size() == 26 * depth + 6);
            CHECK(seen.gradients.at("softmax_cross_entropy#0") == 1.0);
            CHECK(seen.gradients.at("decoder/readout/readout#0") == Approx(1.0).epsilon(0.02));
        }
}
