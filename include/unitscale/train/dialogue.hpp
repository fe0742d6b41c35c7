// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/nn/decoder.hpp>
#include <unitscale/nn/key_value_cache.hpp>
#include <unitscale/train/generate.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace unitscale::train {

/// A text that the user and a model write in turns. The key-value cache is kept between turns: a turn runs its own
/// tokens alone.
///   Dialogue<float> dialogue(model, tape);
///   dialogue.reply(ids_of_first_question, options);
///   dialogue.reply(ids_of_second_question, options);    // sees the first question and its reply
/// A reply equals the text that `generate` writes from the whole text so far.
/// Model and tape are borrowed. The weights must not change between turns.
/// Errors: a model without a cache; a turn that leaves no position for a reply; the errors of `generate`. After an
/// error the text is as it was before the turn. Test: tests/train/dialogue_test.cpp
template <class T>
class Dialogue {
public:
    Dialogue(nn::Decoder<T>& model, Tape<T>& tape, const std::optional<FloatFormat>& cache_format = {})
        : model_(model), tape_(tape), cache_(model.make_cache(1, 0, cache_format)) {}

    /// The tokens of all turns and replies.
    [[nodiscard]] std::span<const std::int32_t> tokens() const noexcept { return tokens_; }
    /// Positions that are free for the next turn and its reply.
    [[nodiscard]] std::size_t room() const noexcept { return model_.config().length - tokens_.size(); }
    /// Begins anew.
    void clear() noexcept {
        tokens_.clear();
        cache_.clear();
    }

    /// Adds the user's turn, and the model's reply, which is returned: at most `options.tokens`, and as many as there
    /// is room for. `options.cache_format` is ignored.
    [[nodiscard]] std::vector<std::int32_t> reply(std::span<const std::int32_t> turn, const GenerateOptions& options) {
        check(turn.size() < room(), "dialogue: ", tokens_.size(), " tokens and ", turn.size(),
              " more leave no position for a reply; the model has ", model_.config().length);
        std::vector<std::int32_t> text = tokens_;
        text.insert(text.end(), turn.begin(), turn.end());
        GenerateOptions limited = options;
        limited.tokens = std::min(options.tokens, room() - turn.size());
        const std::size_t vocabulary = model_.config().vocabulary;
        check_generation("dialogue", text, limited, vocabulary);
        GeneratedText written(text, limited, vocabulary, tape_.recipe().hyperparameters.alpha_loss_softmax);
        try {
            while (!written.ended()) {
                const std::span<const std::int32_t> unseen = written.from(cache_.length());
                tape_.begin_step({.training = false, .gradients = false});
                const Variable<T> logits = model_(tape_, Tensor<std::int32_t>({1, unseen.size()}, unseen), cache_);
                written.add(logits.value().data() + (unseen.size() - 1) * vocabulary);
            }
        } catch (...) {
            cache_.clear();  // the next turn runs the whole text
            throw;
        }
        const std::span<const std::int32_t> all = written.from(0);
        tokens_.assign(all.begin(), all.end());
        return written.written();
    }

private:
    nn::Decoder<T>& model_;
    Tape<T>& tape_;
    nn::KeyValueCache<T> cache_;
    std::vector<std::int32_t> tokens_{};
};

}  // namespace unitscale::train
