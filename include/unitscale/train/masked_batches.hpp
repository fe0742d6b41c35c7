// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/io/bert_tokens.hpp>
#include <unitscale/tensor/fill.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

// The data of BERT's pre-training: pairs of segments, of which the second follows the first in the text or does not,
// with masked tokens. The tokens may be of any tokeniser; io::WordPiece is BERT's.
namespace unitscale::train {

using io::BertTokens;

/// Documents as lists of sentences, and sentences as lists of token ids, all in the order of the text.
///   train::SentenceCorpus corpus;
///   corpus.add_document({{8, 9, 10}, {11, 12}});      // two sentences
/// Empty sentences are left out, and so are documents without sentences.
class SentenceCorpus {
public:
    void add_document(std::span<const std::vector<std::int32_t>> sentences) {
        const std::size_t first = size();
        for (const std::vector<std::int32_t>& sentence : sentences) {
            if (sentence.empty()) continue;
            tokens_.insert(tokens_.end(), sentence.begin(), sentence.end());
            starts_.push_back(tokens_.size());
        }
        document_ends_.resize(size(), size());
        for (std::size_t i = first; i + 1 < size(); ++i) firsts_.push_back(i);
    }
    void add_document(const std::vector<std::vector<std::int32_t>>& sentences) {
        add_document(std::span<const std::vector<std::int32_t>>(sentences));
    }

    /// The number of sentences, and of all their tokens.
    [[nodiscard]] std::size_t size() const noexcept { return starts_.size() - 1; }
    [[nodiscard]] std::size_t token_count() const noexcept { return tokens_.size(); }
    [[nodiscard]] std::span<const std::int32_t> tokens() const noexcept { return tokens_; }

    /// Sentence `i` of all, counted over the documents.
    [[nodiscard]] std::span<const std::int32_t> sentence(std::size_t i) const { return tokens_of(i, i + 1); }
    /// The tokens of the sentences from `first` to before `last`.
    [[nodiscard]] std::span<const std::int32_t> tokens_of(std::size_t first, std::size_t last) const {
        return std::span(tokens_).subspan(starts_[first], starts_[last] - starts_[first]);
    }
    /// The number of the first sentence behind the document of sentence `i`.
    [[nodiscard]] std::size_t document_end(std::size_t i) const { return document_ends_[i]; }
    /// The sentences with a successor in their document.
    [[nodiscard]] const std::vector<std::size_t>& with_successor() const noexcept { return firsts_; }

private:
    std::vector<std::int32_t> tokens_{};
    std::vector<std::size_t> starts_{0};        ///< of each sentence in tokens_, and the end of the last one
    std::vector<std::size_t> document_ends_{};  ///< of each sentence
    std::vector<std::size_t> firsts_{};
};

/// What BERT's rows are made of. The shares are the published ones.
struct MaskedBatchOptions {
    double neighbour_share = 0.5;     ///< pairs whose second segment follows the first
    double short_share = 0.1;         ///< rows for which a shorter length is drawn
    double masked_share = 0.15;       ///< of a row's tokens, without [CLS] and [SEP]
    double mask_token_share = 0.8;    ///< of the masked tokens: become [MASK]
    double random_token_share = 0.1;  ///< of the masked tokens: become another token; the rest stays as it is
};

/// B rows of T tokens: [CLS] a [SEP] b [SEP] [PAD] ... [PAD].
struct MaskedBatch {
    Tensor<std::int32_t> ids{};          ///< [B,T], masked
    Tensor<std::int32_t> segments{};     ///< [B,T]: 1 for b and its [SEP], else 0
    std::vector<std::size_t> lengths{};  ///< [B], without padding: what AttentionMask takes
    Tensor<std::int32_t> places{};       ///< [M]: masked places b T + t, ascending
    Tensor<std::int32_t> labels{};       ///< [M]: the tokens that stood there
    Tensor<std::int32_t> follows{};      ///< [B]: 1 if b follows a in the text, else 0
};

/// Allocates a batch of `rows` rows of `length` tokens. `fill_masked` allocates places and labels.
[[nodiscard]] inline MaskedBatch make_masked_batch(std::size_t rows, std::size_t length) {
    MaskedBatch batch;
    batch.ids = Tensor<std::int32_t>(Shape{rows, length});
    batch.segments = Tensor<std::int32_t>(Shape{rows, length});
    batch.lengths.resize(rows);
    batch.follows = Tensor<std::int32_t>(Shape{rows});
    return batch;
}

/// The number of masked tokens in a row of n tokens without its [CLS] and [SEP]: max(1, round(share n)).
[[nodiscard]] inline std::size_t masked_count(std::size_t n, double share) noexcept {
    return std::max<std::size_t>(1, static_cast<std::size_t>(std::llround(share * static_cast<double>(n))));
}

/// [CLS] and the two [SEP] of a row.
inline constexpr std::size_t frame_tokens = 3;

/// The errors of rows that cannot be made. A corpus needs three sentences, and one that follows another in a document.
inline void check_masked_rows(const SentenceCorpus& corpus, std::size_t length, const MaskedBatchOptions& options) {
    check(length >= frame_tokens + 2, "masked batch: rows of ", length, " tokens; expected at least ", frame_tokens + 2,
          ", for [CLS], two [SEP] and a token of each segment");
    check(corpus.size() >= 3, "masked batch: a corpus of ", corpus.size(), " sentences; expected at least 3");
    check(!corpus.with_successor().empty(), "masked batch: ", corpus.size(),
          " documents of one sentence; expected one with a sentence that follows another");
    const auto share = [](double value, const char* name) {
        check(value >= 0.0 && value <= 1.0, "masked batch: ", name, " is ", value, "; expected 0 to 1");
    };
    share(options.neighbour_share, "neighbour_share");
    share(options.short_share, "short_share");
    share(options.masked_share, "masked_share");
    share(options.mask_token_share, "mask_token_share");
    share(options.random_token_share, "random_token_share");
    share(options.mask_token_share + options.random_token_share, "mask_token_share + random_token_share");
}

/// The two segments of a row. They are parts of the corpus.
struct SegmentPair {
    std::span<const std::int32_t> a{}, b{};
    bool follows = false;
};

/// Draws the segments of a row of at most `length` tokens, from words 0 to 5 of a stream.
///   1. The pair begins at a drawn sentence that has a successor. It takes the sentences from there on, up to the end
///      of the document, until they have length - 3 tokens or more. In `short_share` of the rows, this number is
///      smaller, drawn from 2 to length - 3.
///   2. The pair is split at a drawn end of a sentence: a before, b after.
///   3. With probability 1 - `neighbour_share`, b is replaced. The new b begins at a drawn sentence that is not in a
///      and does not follow a. It takes sentences of its document in the same way, but none of a.
///   4. While a and b together have more than length - 3 tokens, the longer one loses a token; if they are equal, b
///      does. a loses its first token and b its last one, so that neighbours stay neighbours.
[[nodiscard]] inline SegmentPair draw_segments(const SentenceCorpus& corpus, std::size_t length,
                                               const MaskedBatchOptions& options, RandomKey stream) {
    const auto chance = [&](std::uint64_t index, double share) {
        return static_cast<double>(uniform(random_word(stream, index))) < share;
    };
    const auto below = [&](std::uint64_t index, std::size_t n) {
        return static_cast<std::size_t>(random_below(stream, index, n));
    };
    const std::size_t most = length - frame_tokens;
    const std::size_t wanted = chance(0, options.short_share) ? 2 + below(1, most - 1) : most;
    const auto end_of = [&](std::size_t first, std::size_t least, std::size_t tokens, std::size_t limit) {
        std::size_t end = first + least;
        while (end < limit && corpus.tokens_of(first, end).size() < tokens) ++end;
        return end;
    };
    const std::size_t first = corpus.with_successor()[below(2, corpus.with_successor().size())];
    const std::size_t end = end_of(first, 2, wanted, corpus.document_end(first));
    // Two sentences at least stay outside a: the one after it, and one that b can begin at instead.
    const std::size_t split = first + 1 + below(3, std::min(end - first - 1, corpus.size() - 2));
    SegmentPair pair{corpus.tokens_of(first, split), corpus.tokens_of(split, end), chance(4, options.neighbour_share)};
    if (!pair.follows) {
        std::size_t other = below(5, corpus.size() - (split + 1 - first));
        if (other >= first) other += split + 1 - first;
        const std::size_t limit =
            other < first ? std::min(first, corpus.document_end(other)) : corpus.document_end(other);
        const std::size_t left = wanted > pair.a.size() ? wanted - pair.a.size() : 0;
        pair.b = corpus.tokens_of(other, end_of(other, 1, left, limit));
    }
    while (pair.a.size() + pair.b.size() > most) {
        if (pair.a.size() > pair.b.size()) pair.a = pair.a.subspan(1);
        else pair.b = pair.b.first(pair.b.size() - 1);
    }
    return pair;
}

/// The mean number of tokens of a row without its padding, over the first `rows` rows of a stream. Factors that count
/// keys or rows use it in place of T.
[[nodiscard]] inline double mean_length(const SentenceCorpus& corpus, std::size_t length, RandomKey key,
                                        std::size_t rows = 4096, const MaskedBatchOptions& options = {}) {
    check_masked_rows(corpus, length, options);
    check(rows >= 1, "masked batch: the mean length of 0 rows; expected at least 1");
    std::size_t sum = 0;
    for (std::size_t row = 0; row < rows; ++row) {
        const SegmentPair pair = draw_segments(corpus, length, options, {key.seed, mix(key.stream, row)});
        sum += frame_tokens + pair.a.size() + pair.b.size();
    }
    return static_cast<double>(sum) / static_cast<double>(rows);
}

/// Fills a batch with rows of `draw_segments`, and masks `masked_count` of the tokens of each row's segments.
/// Every masked token becomes [MASK] with probability 0.8, any token that is not special with 0.1, and else stays.
/// [UNK] stands for a word of the text, so it may be masked; the other special tokens never are.
/// Row r of the batch depends on (key, step, first_row + r) alone.
/// The micro-batches of one step (first_row = 0, B, 2B, ...) therefore hold the rows of the whole step's batch.
/// Errors: too few sentences; T below 5; shares beyond [0,1]; special ids outside the vocabulary, or no other ids; a
/// token of the corpus outside the vocabulary, or a special one but [UNK].
/// Reference: Devlin, Chang, Lee, Toutanova 2019, arXiv:1810.04805, appendix A, and the published code for data.
/// Test: tests/train/masked_batches_test.cpp
inline void fill_masked(MaskedBatch& batch, const SentenceCorpus& corpus, const BertTokens& tokens, RandomKey key,
                        std::uint64_t step, std::size_t first_row = 0, const MaskedBatchOptions& options = {}) {
    const std::size_t rows = batch.ids.shape()[0], length = batch.ids.shape()[1];
    check_masked_rows(corpus, length, options);
    tokens.check_ids();
    auto special = tokens.ids();
    std::sort(special.begin(), special.end());
    const auto ordinary = static_cast<std::size_t>(tokens.vocabulary) - special.size();
    check(ordinary > 0, "masked batch: a vocabulary of special tokens alone");
    fill_constant(batch.ids, tokens.pad);
    fill_constant(batch.segments, 0);
    std::vector<std::int32_t> places, labels;
    std::vector<std::size_t> order;  // the tokens of a and b, drawn ones first
    for (std::size_t row = 0; row < rows; ++row) {
        const RandomKey stream{key.seed, mix(mix(key.stream, step), first_row + row)};
        const SegmentPair pair = draw_segments(corpus, length, options, stream);
        const std::size_t before = pair.a.size(), count = before + pair.b.size();
        std::int32_t* const ids = batch.ids.data() + row * length;
        const auto place_of = [&](std::size_t i) { return i < before ? i + 1 : i + 2; };
        for (std::size_t i = 0; i < count; ++i) {
            const std::int32_t id = i < before ? pair.a[i] : pair.b[i - before];
            check(id >= 0 && id < tokens.vocabulary && (id == tokens.unknown || !tokens.is_special(id)),
                  "masked batch: token ", id, " in the corpus; expected 0 to ", tokens.vocabulary - 1,
                  " and no special token but [UNK]");
            ids[place_of(i)] = id;
        }
        ids[0] = tokens.cls;
        ids[before + 1] = ids[count + 2] = tokens.separator;
        std::fill(batch.segments.data() + row * length + before + 2, batch.segments.data() + row * length + count + 3,
                  1);
        batch.lengths[row] = count + frame_tokens;
        batch.follows.data()[row] = pair.follows ? 1 : 0;

        std::uint64_t word = 6;  // behind those of draw_segments
        const std::size_t masked = masked_count(count, options.masked_share);
        order.resize(count);
        std::iota(order.begin(), order.end(), std::size_t{0});
        for (std::size_t i = 0; i < masked; ++i)
            std::swap(order[i], order[i + static_cast<std::size_t>(random_below(stream, word++, count - i))]);
        std::sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(masked));
        for (std::size_t i = 0; i < masked; ++i) {
            std::int32_t& id = ids[place_of(order[i])];
            places.push_back(static_cast<std::int32_t>(row * length + place_of(order[i])));
            labels.push_back(id);
            const double draw = uniform(random_word(stream, word++));
            auto random = static_cast<std::int32_t>(random_below(stream, word++, ordinary));
            for (const std::int32_t left_out : special) random += random >= left_out ? 1 : 0;
            if (draw < options.mask_token_share) id = tokens.mask;
            else if (draw < options.mask_token_share + options.random_token_share) id = random;
        }
    }
    batch.places = from(places);
    batch.labels = from(labels);
}

}  // namespace unitscale::train
