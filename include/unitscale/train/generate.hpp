// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/nn/decoder.hpp>
#include <unitscale/nn/key_value_cache.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace unitscale::train {

struct GenerateOptions {
    std::size_t tokens = 100;  ///< number of tokens to generate
    /// Divides the logits, times the recipe's alpha_loss_softmax. 0: always the most likely token.
    double temperature = 0.7;
    /// Only the k most likely tokens are drawn; of equally likely tokens, lower ids are kept. 0 or the vocabulary: all.
    std::size_t top_k = 0;
    /// Only the nucleus is drawn: the fewest of the most likely tokens, among those of `top_k`, with a probability of p
    /// in all. 1: no limit. See `sample_token`.
    double top_p = 1.0;
    /// Makes tokens that the prompt or the text already has less likely. 1: no change. See `penalise_repetition`.
    double repetition_penalty = 1.0;
    std::uint64_t seed = 0;
    std::vector<std::int32_t> stop_tokens{};  ///< the text ends with the first of them, which is its last token
    /// How the cache stores keys and values (nn::KeyValueCacheConfig). Empty: in the model's element type.
    std::optional<FloatFormat> cache_format{};
    /// Called with each token as soon as it is drawn. The text ends with a token for which it returns false, for
    /// instance behind a stop string. Empty: none.
    std::function<bool(std::int32_t)> on_token{};
};

/// One token from softmax(logits / temperature) over the `top_k` largest logits (0: all), `u` uniform in [0, 1).
/// `top_p` p < 1 keeps the nucleus: with tokens by falling probability p_1 >= p_2 >= ..., the first n for which
///   p_1 + ... + p_n >= p       n the smallest such number, at least 1
/// Probabilities are those at this temperature among the `top_k` tokens. What is kept is drawn in proportion.
/// Of equal logits the lower ids come first: at the boundaries of top_k and top_p, and at temperature 0.
/// Errors: no logits; a NaN among the logits; no finite largest logit; top_p outside (0, 1].
/// Reference: Holtzman et al. 2020, arXiv:1904.09751, equations 2 and 3.
[[nodiscard]] inline std::int32_t sample_token(std::span<const float> logits, double temperature, double u,
                                               std::size_t top_k = 0, double top_p = 1.0) {
    check(!logits.empty(), "sample_token: no logits");
    check(top_p > 0.0 && top_p <= 1.0, "sample_token: top_p is ", top_p, "; expected a number above 0, at most 1");
    for (std::size_t i = 0; i < logits.size(); ++i)
        check(!std::isnan(logits[i]), "sample_token: logits[", i, "] is NaN");
    const auto largest = static_cast<std::size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    check(std::isfinite(logits[largest]), "sample_token: the largest logit is ", logits[largest],
          "; expected a finite one");
    if (temperature <= 0.0 || top_k == 1) return static_cast<std::int32_t>(largest);

    // The last token that is kept, in order of falling likelihood, then of rising ids.
    float boundary = -std::numeric_limits<float>::infinity();
    std::size_t last = logits.size();
    const auto is_before = [&](std::size_t a, std::size_t b) {
        return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
    };
    std::vector<std::size_t> order;
    if ((top_k > 0 && top_k < logits.size()) || top_p < 1.0) {
        order.resize(logits.size());
        std::iota(order.begin(), order.end(), std::size_t{0});
    }
    if (top_k > 0 && top_k < logits.size()) {
        const auto kth = order.begin() + static_cast<std::ptrdiff_t>(top_k) - 1;
        std::nth_element(order.begin(), kth, order.end(), is_before);
        boundary = logits[*kth];
        last = *kth;
        order.resize(top_k);
    }
    const auto weight = [&](std::size_t i) {
        const bool kept = logits[i] > boundary || (logits[i] == boundary && i <= last);
        return kept ? std::exp(static_cast<double>(logits[i] - logits[largest]) / temperature) : 0.0;
    };
    const auto total_weight = [&] {
        double sum = 0.0;
        for (std::size_t i = 0; i < logits.size(); ++i) sum += weight(i);
        return sum;
    };
    double total = total_weight();
    if (top_p < 1.0) {
        // A heap: the nucleus is small, and the rest need not be sorted.
        const auto is_behind = [&](std::size_t x, std::size_t y) { return is_before(y, x); };
        std::make_heap(order.begin(), order.end(), is_behind);
        double sum = 0.0;
        std::size_t end = largest;
        while (sum < top_p * total && !order.empty()) {
            std::pop_heap(order.begin(), order.end(), is_behind);
            end = order.back();
            order.pop_back();
            sum += weight(end);
        }
        boundary = logits[end];
        last = end;
        total = total_weight();
    }
    double rest = u * total;
    for (std::size_t i = 0; i < logits.size(); ++i) {
        rest -= weight(i);
        if (rest < 0.0) return static_cast<std::int32_t>(i);
    }
    return static_cast<std::int32_t>(largest);  // reached through rounding of `rest` only
}

/// The logits of tokens that have occurred, made smaller: x / penalty if x > 0, else x penalty. Each token counts once,
/// however often it has occurred. `occurred` has an element for each logit. A penalty below 1 favours repetition.
/// Errors: sizes that differ; a penalty that is not positive and finite.
/// Reference: Keskar et al. 2019, arXiv:1909.05858, section 4.1, with the sign rule of the transformers package: the
/// paper divides, which would favour tokens with negative logits.
inline void penalise_repetition(std::span<float> logits, const std::vector<bool>& occurred, double penalty) {
    check(logits.size() == occurred.size(), "penalise_repetition: ", logits.size(), " logits and ", occurred.size(),
          " tokens; expected one for each");
    check(std::isfinite(penalty) && penalty > 0.0, "penalise_repetition: penalty is ", penalty,
          "; expected a positive number");
    for (std::size_t i = 0; i < logits.size(); ++i) {
        if (!occurred[i]) continue;
        const auto x = static_cast<double>(logits[i]);
        logits[i] = static_cast<float>(x > 0.0 ? x / penalty : x * penalty);
    }
}

/// The begin of the window that a model of `length` positions sees of a text of `size` tokens.
/// The text began as a prompt of `prompt` tokens.
/// The window begins at 0 while the text fits; for a longer prompt it begins at the prompt's last `length` tokens.
/// When the window is full, its first half leaves at once.
/// Reason: each move runs the remaining tokens again at other positions, so moves should be rare.
/// A window holds more than (length - 1) / 2 tokens, and moves once for every (length + 1) / 2 tokens.
[[nodiscard]] constexpr std::size_t window_start(std::size_t size, std::size_t prompt, std::size_t length) noexcept {
    const std::size_t first = prompt > length ? prompt - length : 0, step = (length + 1) / 2;
    if (size <= first + length) return first;
    return first + (size - first - length + step - 1) / step * step;
}

/// Error, in the name of `op`: options or a prompt that `generate` cannot take.
inline void check_generation(std::string_view op, std::span<const std::int32_t> prompt, const GenerateOptions& options,
                             std::size_t vocabulary) {
    check(!prompt.empty(), op, ": the prompt is empty; expected at least one token");
    check(std::isfinite(options.temperature) && options.temperature >= 0.0, op, ": temperature is ",
          options.temperature, "; expected 0 or more");
    check(options.top_p > 0.0 && options.top_p <= 1.0, op, ": top_p is ", options.top_p,
          "; expected a number above 0, at most 1");
    check(std::isfinite(options.repetition_penalty) && options.repetition_penalty > 0.0, op, ": repetition_penalty is ",
          options.repetition_penalty, "; expected a positive number");
    const auto check_token = [&](const char* name, std::size_t i, std::int32_t token) {
        check(token >= 0 && static_cast<std::size_t>(token) < vocabulary, op, ": ", name, "[", i, "] is ", token,
              "; expected a number in [0,", vocabulary, ")");
    };
    for (std::size_t i = 0; i < prompt.size(); ++i) check_token("prompt", i, prompt[i]);
    for (std::size_t i = 0; i < options.stop_tokens.size(); ++i) check_token("stop_tokens", i, options.stop_tokens[i]);
}

/// A text that is being written, and how its next token is drawn.
class GeneratedText {
public:
    /// `softmax_mult`: the model's probabilities are softmax(softmax_mult logits), as in its loss.
    GeneratedText(std::span<const std::int32_t> prompt, const GenerateOptions& options, std::size_t vocabulary,
                  double softmax_mult)
        : options_(options),
          key_{options.seed, hash_name("generate")},
          temperature_(options.temperature / softmax_mult),
          prompt_(prompt.size()),
          tokens_(prompt.begin(), prompt.end()),
          logits_(vocabulary),
          occurred_(options.repetition_penalty != 1.0 ? vocabulary : 0, false),
          ended_(options.tokens == 0) {
        if (!occurred_.empty())
            for (const std::int32_t token : prompt) occurred_[static_cast<std::size_t>(token)] = true;
    }

    [[nodiscard]] bool ended() const noexcept { return ended_; }
    /// The tokens from the begin of a model's window on (`window_start`).
    [[nodiscard]] std::size_t start(std::size_t length) const noexcept {
        return window_start(tokens_.size(), prompt_, length);
    }
    [[nodiscard]] std::span<const std::int32_t> from(std::size_t start) const {
        return std::span(tokens_).subspan(start);
    }
    /// The tokens behind the prompt.
    [[nodiscard]] std::vector<std::int32_t> written() const {
        return {tokens_.begin() + static_cast<std::ptrdiff_t>(prompt_), tokens_.end()};
    }

    /// Draws the next token from its logits.
    template <class T>
    void add(const T* logits) {
        std::transform(logits, logits + logits_.size(), logits_.begin(), [](T x) { return static_cast<float>(x); });
        if (!occurred_.empty()) penalise_repetition(logits_, occurred_, options_.repetition_penalty);
        const std::size_t i = tokens_.size() - prompt_;
        const std::int32_t token = sample_token(
            logits_, temperature_, static_cast<double>(uniform(random_word(key_, i))), options_.top_k, options_.top_p);
        tokens_.push_back(token);
        if (!occurred_.empty()) occurred_[static_cast<std::size_t>(token)] = true;
        const auto& stops = options_.stop_tokens;
        ended_ = i + 1 == options_.tokens || std::find(stops.begin(), stops.end(), token) != stops.end();
        if (options_.on_token && !options_.on_token(token)) ended_ = true;
    }

private:
    const GenerateOptions& options_;
    RandomKey key_;
    double temperature_;
    std::size_t prompt_;
    std::vector<std::int32_t> tokens_;
    std::vector<float> logits_;
    std::vector<bool> occurred_;  ///< by token; empty without a penalty
    bool ended_;
};

/// Writes texts that `check_generation` has accepted: see `generate` and `generate_batch`.
template <class T>
void write_texts(nn::Decoder<T>& model, Tape<T>& tape, std::span<GeneratedText> texts, std::size_t capacity,
                 const std::optional<FloatFormat>& cache_format) {
    const std::size_t vocabulary = model.config().vocabulary, length = model.config().length;
    check(model.has_cache() || !cache_format, "generate: a cache_format; context layers of kind ",
          nn::name(model.config().context.kind), " have no cache, expected none");
    std::optional<nn::KeyValueCache<T>> cache;
    if (model.has_cache()) cache.emplace(model.make_cache(texts.size(), std::min(length, capacity), cache_format));
    std::vector<std::size_t> starts(texts.size(), 0);  // item i of the cache holds text i from there on
    // The texts of one call, each with the tokens that its item lacks. Missing tokens at the end of a row are padding.
    const auto run = [&](const std::vector<std::size_t>& members) {
        std::vector<nn::CacheRow> rows;
        std::size_t longest = 0;
        const auto unseen = [&](std::size_t i) { return texts[i].from(starts[i] + (cache ? cache->length(i) : 0)); };
        for (const std::size_t i : members) {
            rows.push_back({i, unseen(i).size()});
            longest = std::max(longest, rows.back().count);
        }
        Tensor<std::int32_t> ids({members.size(), longest});
        std::fill_n(ids.data(), ids.size(), 0);
        for (std::size_t r = 0; r < rows.size(); ++r) {
            const auto tokens = unseen(members[r]);
            std::copy(tokens.begin(), tokens.end(), ids.data() + r * longest);
        }
        tape.begin_step({.training = false, .gradients = false});
        const Variable<T> logits = cache ? model(tape, ids, *cache, rows) : model(tape, ids);
        for (std::size_t r = 0; r < rows.size(); ++r)
            texts[members[r]].add(logits.value().data() + (r * longest + rows[r].count - 1) * vocabulary);
    };
    for (;;) {
        // Texts with one new token, and those with more: prompts, and windows that have moved.
        std::vector<std::size_t> single, several;
        for (std::size_t i = 0; i < texts.size(); ++i) {
            if (texts[i].ended()) continue;
            const std::size_t wanted = texts[i].start(length);
            if (wanted != starts[i] && cache) cache->clear(i);
            starts[i] = wanted;
            const bool one = texts[i].from(wanted).size() == 1 + (cache ? cache->length(i) : 0);
            (one ? single : several).push_back(i);
        }
        if (single.empty() && several.empty()) return;
        if (!cache) {
            single.insert(single.end(), several.begin(), several.end());
            for (const std::size_t i : single) run({i});
            continue;
        }
        for (const auto* members : {&single, &several})
            if (!members->empty()) run(*members);
    }
}

/// Continues a prompt token by token with a key-value cache, and returns the new tokens.
/// The prompt takes one pass. A token's logits, x, become by `options`: x', with the repetition penalty; then a draw
/// from softmax(x' / temperature) among the tokens of top_k and top_p.
/// A model without a cache, run over the same window (`window_start`), would generate equal tokens. With a
/// `cache_format` it would do so if its attention rounded keys and values (nn::KeyValueCache).
/// A token's time is linear in the window's length so far, or in the config's `window` if that is shorter.
/// Where the window of `length` tokens moves, the cache is filled again: one run of half a window for every half a
/// window of tokens. Learned and rotary positions follow one rule.
/// A model without a cache (`Decoder::has_cache`) runs the window again for every token.
/// Errors: an empty prompt; a prompt or stop token outside the vocabulary; a temperature that is negative or not
/// finite; top_p outside (0, 1]; a repetition penalty that is not positive; a format that a cache cannot have, or for
/// a model without one; logits that are NaN. Test: tests/train/generate_test.cpp
template <class T>
[[nodiscard]] std::vector<std::int32_t> generate(nn::Decoder<T>& model, Tape<T>& tape,
                                                 std::span<const std::int32_t> prompt, const GenerateOptions& options) {
    const std::size_t vocabulary = model.config().vocabulary;
    check_generation("generate", prompt, options, vocabulary);
    GeneratedText text(prompt, options, vocabulary, tape.recipe().hyperparameters.alpha_loss_softmax);
    write_texts(model, tape, std::span(&text, 1), prompt.size() + options.tokens, options.cache_format);
    return text.written();
}

/// Continues several prompts of any lengths in one batch, and returns the new tokens of each. Text i has `options[i]`,
/// and so its own random stream. It equals the text that `generate` writes from its prompt alone, except where operands
/// are rounded stochastically, or by an amax of a whole tensor.
/// The prompts take one pass, padded to the longest. A text that has ended leaves the batch.
/// Errors: as `generate`; no prompts; options that are not one for each prompt, or differ in `cache_format`.
/// Test: tests/train/generate_test.cpp
template <class T>
[[nodiscard]] std::vector<std::vector<std::int32_t>> generate_batch(nn::Decoder<T>& model, Tape<T>& tape,
                                                                    std::span<const std::vector<std::int32_t>> prompts,
                                                                    std::span<const GenerateOptions> options) {
    const std::size_t vocabulary = model.config().vocabulary;
    check(!prompts.empty(), "generate_batch: no prompts");
    check(options.size() == prompts.size(), "generate_batch: ", options.size(), " options; expected one for each of ",
          prompts.size(), " prompts");
    std::vector<GeneratedText> texts;
    std::size_t capacity = 0;
    for (std::size_t i = 0; i < prompts.size(); ++i) {
        check_generation(concatenate("generate_batch: text ", i), prompts[i], options[i], vocabulary);
        check(options[i].cache_format == options[0].cache_format, "generate_batch: text ", i,
              ": another cache_format than text 0; expected one for all");
        texts.emplace_back(prompts[i], options[i], vocabulary, tape.recipe().hyperparameters.alpha_loss_softmax);
        capacity = std::max(capacity, prompts[i].size() + options[i].tokens);
    }
    write_texts(model, tape, std::span(texts), capacity, options[0].cache_format);
    std::vector<std::vector<std::int32_t>> written;
    for (const GeneratedText& text : texts) written.push_back(text.written());
    return written;
}

}  // namespace unitscale::train
