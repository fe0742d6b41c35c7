// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/nn/decoder.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace unitscale::train {

struct GenerateOptions {
    std::size_t tokens = 100;  ///< how many to write
    double temperature = 0.7;  ///< logits are divided by it; 0: always the most likely token
    std::uint64_t seed = 0;
};

/// One token from softmax(logits / temperature), `u` uniform in [0, 1).
[[nodiscard]] inline std::int32_t sample_token(std::span<const float> logits, double temperature, double u) {
    const auto largest = std::max_element(logits.begin(), logits.end());
    if (temperature <= 0.0) return static_cast<std::int32_t>(largest - logits.begin());
    double total = 0.0;
    for (const float logit : logits) total += std::exp(static_cast<double>(logit - *largest) / temperature);
    double rest = u * total;
    for (std::size_t i = 0; i < logits.size(); ++i) {
        rest -= std::exp(static_cast<double>(logits[i] - *largest) / temperature);
        if (rest < 0.0) return static_cast<std::int32_t>(i);
    }
    return static_cast<std::int32_t>(largest - logits.begin());  // only rounding leads here
}

/// Continues a prompt token by token; the model sees the last `length` tokens. Returns the new tokens.
/// Errors: an empty prompt; a negative temperature. Test: tests/train/generate_test.cpp
template <class T>
[[nodiscard]] std::vector<std::int32_t> generate(nn::Decoder<T>& model, Tape<T>& tape, std::span<const std::int32_t> prompt,
                                                 const GenerateOptions& options) {
    check(!prompt.empty(), "generate: the prompt is empty; expected at least one token");
    check(options.temperature >= 0.0, "generate: temperature is ", options.temperature, "; expected 0 or more");
    const RandomKey key{options.seed, hash_name("generate")};
    const std::size_t vocabulary = model.config().vocabulary;
    std::vector<std::int32_t> text(prompt.begin(), prompt.end());
    std::vector<float> logits(vocabulary);
    for (std::size_t i = 0; i < options.tokens; ++i) {
        const std::size_t seen = std::min(text.size(), model.config().length);
        const Tensor<std::int32_t> ids({1, seen}, std::span<const std::int32_t>(text).last(seen));
        tape.begin_step({.training = false, .gradients = false});
        const Tensor<T>& values = model(tape, ids).value();
        const T* last = values.data() + (seen - 1) * vocabulary;
        std::transform(last, last + vocabulary, logits.begin(), [](T value) { return static_cast<float>(value); });
        text.push_back(sample_token(logits, options.temperature, static_cast<double>(uniform(random_word(key, i)))));
    }
    return {text.begin() + static_cast<std::ptrdiff_t>(prompt.size()), text.end()};
}

}  // namespace unitscale::train
