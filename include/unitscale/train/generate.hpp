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
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

namespace unitscale::train {

struct GenerateOptions {
    std::size_t tokens = 100;  ///< number of tokens to generate
    /// Divides the logits, times the recipe's alpha_loss_softmax. 0: always the most likely token.
    double temperature = 0.7;
    /// Only the k most likely tokens are drawn; of equally likely tokens, lower ids are kept. 0 or the vocabulary: all.
    std::size_t top_k = 0;
    std::uint64_t seed = 0;
};

/// One token from softmax(logits / temperature) over the `top_k` largest logits (0: all), `u` uniform in [0, 1).
/// Of equal logits the lower ids come first: at the boundary of top_k, and at temperature 0.
/// Errors: no logits; a NaN among the logits; no finite largest logit.
[[nodiscard]] inline std::int32_t sample_token(std::span<const float> logits, double temperature, double u,
                                               std::size_t top_k = 0) {
    check(!logits.empty(), "sample_token: no logits");
    for (std::size_t i = 0; i < logits.size(); ++i)
        check(!std::isnan(logits[i]), "sample_token: logits[", i, "] is NaN");
    const auto largest = static_cast<std::size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    check(std::isfinite(logits[largest]), "sample_token: the largest logit is ", logits[largest],
          "; expected a finite one");
    if (temperature <= 0.0 || top_k == 1) return static_cast<std::int32_t>(largest);

    // The last token that is kept, in order of falling likelihood, then of rising ids.
    float boundary = -std::numeric_limits<float>::infinity();
    std::size_t last = logits.size();
    if (top_k > 0 && top_k < logits.size()) {
        std::vector<std::size_t> order(logits.size());
        std::iota(order.begin(), order.end(), std::size_t{0});
        const auto kth = order.begin() + static_cast<std::ptrdiff_t>(top_k) - 1;
        std::nth_element(order.begin(), kth, order.end(), [&](std::size_t a, std::size_t b) {
            return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
        });
        boundary = logits[*kth];
        last = *kth;
    }
    const auto weight = [&](std::size_t i) {
        const bool kept = logits[i] > boundary || (logits[i] == boundary && i <= last);
        return kept ? std::exp(static_cast<double>(logits[i] - logits[largest]) / temperature) : 0.0;
    };
    double total = 0.0;
    for (std::size_t i = 0; i < logits.size(); ++i) total += weight(i);
    double rest = u * total;
    for (std::size_t i = 0; i < logits.size(); ++i) {
        rest -= weight(i);
        if (rest < 0.0) return static_cast<std::int32_t>(i);
    }
    return static_cast<std::int32_t>(largest);  // reached through rounding of `rest` only
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

/// Continues a prompt token by token with a key-value cache, and returns the new tokens.
/// A model without a cache, run over the same window (`window_start`), would generate equal tokens.
/// A token's time is linear in the window's length so far.
/// Where the window moves, the cache is filled again: one run of half a window for every half a window of tokens.
/// Learned and rotary positions follow one rule.
/// A model without a cache (`Decoder::has_cache`) runs the window again for every token.
/// Errors: an empty prompt; a prompt token outside the vocabulary; a temperature that is negative or not finite;
/// logits that are NaN. Test: tests/train/generate_test.cpp
template <class T>
[[nodiscard]] std::vector<std::int32_t> generate(nn::Decoder<T>& model, Tape<T>& tape,
                                                 std::span<const std::int32_t> prompt, const GenerateOptions& options) {
    const std::size_t vocabulary = model.config().vocabulary, length = model.config().length;
    check(!prompt.empty(), "generate: the prompt is empty; expected at least one token");
    check(std::isfinite(options.temperature) && options.temperature >= 0.0, "generate: temperature is ",
          options.temperature, "; expected 0 or more");
    for (std::size_t i = 0; i < prompt.size(); ++i)
        check(prompt[i] >= 0 && static_cast<std::size_t>(prompt[i]) < vocabulary, "generate: prompt[", i, "] is ",
              prompt[i], "; expected a number in [0,", vocabulary, ")");
    const RandomKey key{options.seed, hash_name("generate")};
    // The model's probabilities are softmax(m x), as in its loss.
    const double temperature = options.temperature / tape.recipe().hyperparameters.alpha_loss_softmax;
    std::vector<std::int32_t> text(prompt.begin(), prompt.end());
    std::vector<float> logits(vocabulary);
    if (options.tokens == 0) return {};

    std::optional<nn::KeyValueCache<T>> cache;
    if (model.has_cache()) cache.emplace(model.make_cache(1, std::min(length, prompt.size() + options.tokens)));
    std::size_t start = 0;  // the cache holds text[start, start + its length)
    for (std::size_t i = 0; i < options.tokens; ++i) {
        const std::size_t wanted = window_start(text.size(), prompt.size(), length);
        if (wanted != start) {
            if (cache) cache->clear();
            start = wanted;
        }
        const auto unseen = std::span<const std::int32_t>(text).subspan(start + (cache ? cache->length() : 0));
        const Tensor<std::int32_t> ids({1, unseen.size()}, unseen);
        tape.begin_step({.training = false, .gradients = false});
        const Variable<T> all = cache ? model(tape, ids, *cache) : model(tape, ids);
        const T* last = all.value().data() + (unseen.size() - 1) * vocabulary;
        std::transform(last, last + vocabulary, logits.begin(), [](T value) { return static_cast<float>(value); });
        text.push_back(
            sample_token(logits, temperature, static_cast<double>(uniform(random_word(key, i))), options.top_k));
    }
    return {text.begin() + static_cast<std::ptrdiff_t>(prompt.size()), text.end()};
}

}  // namespace unitscale::train
