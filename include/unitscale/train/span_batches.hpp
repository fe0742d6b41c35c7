// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/base/random.hpp>
#include <unitscale/io/bert_tokens.hpp>
#include <unitscale/io/text.hpp>
#include <unitscale/tensor/fill.hpp>
#include <unitscale/tensor/tensor.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// The data of BERT's fine-tuning on spans: rows of a question and a window of its context, with the answer's first and
// last token; and the span that logits of such rows choose. The tokens may be of any tokeniser that tells their places.
namespace unitscale::train {

/// Tokens of a context, from `first` to `last`, both included.
struct TokenSpan {
    std::size_t first = 0, last = 0;

    friend constexpr bool operator==(const TokenSpan&, const TokenSpan&) = default;
};

/// The tokens of which a part stands in `text`, bytes that `ranges` count. Empty: no token does.
[[nodiscard]] inline std::optional<TokenSpan> tokens_in(std::span<const io::TextRange> ranges,
                                                        const io::TextRange& text) {
    std::optional<TokenSpan> found;
    for (std::size_t i = 0; i < ranges.size(); ++i) {
        if (ranges[i].end <= text.begin || ranges[i].begin >= text.end) continue;
        found = TokenSpan{found ? found->first : i, i};
    }
    return found;
}

/// The text of a span of tokens, as the context has it.
[[nodiscard]] inline std::string span_text(std::string_view context, std::span<const io::TextRange> ranges,
                                           const TokenSpan& span) {
    check(span.first <= span.last && span.last < ranges.size() && ranges[span.last].end <= context.size(),
          "span_text: tokens ", span.first, " to ", span.last, " of ", ranges.size(), " in a context of ",
          context.size(), " bytes");
    return std::string(context.substr(ranges[span.first].begin, ranges[span.last].end - ranges[span.first].begin));
}

/// A question in tokens, without special tokens but [UNK].
struct SpanExample {
    std::vector<std::int32_t> question{}, context{};
    std::optional<TokenSpan> answer{};  ///< tokens of the context; empty: there is no answer, or it is not known
};

struct SpanWindowOptions {
    std::size_t length = 384;   ///< tokens of a row
    std::size_t stride = 128;   ///< tokens from the start of a window to the start of the next
    std::size_t question = 64;  ///< the most tokens of a question; the rest is cut off
};

/// A row to be: [CLS] question [SEP] window [SEP], where the window is a part of the context.
struct SpanWindow {
    std::size_t example = 0;           ///< the number of its SpanExample
    std::size_t question = 0;          ///< the number of the question's tokens
    std::size_t first = 0, count = 0;  ///< tokens of the context
    std::size_t start = 0, end = 0;    ///< places in the row of the answer's first and last token; 0, [CLS]: not in it
    /// Tokens of the context, from here to before `own_end`, for which no other window has more context.
    std::size_t own_begin = 0, own_end = 0;

    /// The place in the row of the window's first token, and the row's length.
    [[nodiscard]] std::size_t offset() const noexcept { return question + 2; }
    [[nodiscard]] std::size_t length() const noexcept { return question + count + 3; }

    friend bool operator==(const SpanWindow&, const SpanWindow&) = default;
};

/// Gives each token of a context to one of its windows (`span_windows`).
inline void share_tokens(std::span<SpanWindow> windows) {
    std::size_t best = 0;  // the windows' own tokens are in their order, so the search goes on where it was
    const auto context = [&](std::size_t window, std::size_t token) {
        const SpanWindow& in = windows[window];
        return std::pair(std::min(token - in.first, in.first + in.count - 1 - token), in.count);
    };
    for (SpanWindow& window : windows) window.own_begin = window.own_end = 0;
    const std::size_t total = windows.back().first + windows.back().count;
    for (std::size_t token = 0; token < total; ++token) {
        while (windows[best].first + windows[best].count <= token) ++best;
        for (std::size_t next = best + 1; next < windows.size() && windows[next].first <= token; ++next)
            if (context(next, token) > context(best, token)) best = next;
        if (windows[best].own_end == 0) windows[best].own_begin = token;
        windows[best].own_end = token + 1;
    }
}

/// The windows of all examples, in their order. A window takes length - question - 3 tokens of the context, or what is
/// left of it, and begins `stride` tokens after the one before. The last window of a context ends with it.
/// A window that holds the whole answer has its places; any other points to [CLS]. Each token of a context belongs to
/// one window as its own: the window in which the smaller number of its neighbours, left or right, is largest. Equal
/// numbers go to the longer window, then to the earlier one. A stride of more than a window would
/// leave out tokens, so it is cut down to one.
/// Errors: a row that has no room for a token of the context beside the longest question; a stride of 0; an answer
/// beyond its context.
/// Reference: Devlin et al. 2019, arXiv:1810.04805, and the published code for SQuAD.
/// Test: tests/train/span_batches_test.cpp
[[nodiscard]] inline std::vector<SpanWindow> span_windows(std::span<const SpanExample> examples,
                                                          const SpanWindowOptions& options = {}) {
    check(options.stride >= 1, "span windows: a stride of 0; expected at least 1");
    check(options.length >= options.question + 4, "span windows: rows of ", options.length,
          " tokens; expected at least ", options.question + 4, ", for [CLS], two [SEP], a question of ",
          options.question, " and a token of its context");
    std::vector<SpanWindow> windows;
    for (std::size_t i = 0; i < examples.size(); ++i) {
        const SpanExample& example = examples[i];
        const std::size_t begin = windows.size();
        const std::size_t total = example.context.size(),
                          question = std::min(example.question.size(), options.question),
                          most = options.length - question - 3;
        if (example.answer)
            check(example.answer->first <= example.answer->last && example.answer->last < total,
                  "span windows: the answer of example ", i, " is tokens ", example.answer->first, " to ",
                  example.answer->last, " of a context of ", total);
        for (std::size_t first = 0;; first += std::min(options.stride, most)) {
            SpanWindow window{
                .example = i, .question = question, .first = first, .count = std::min(most, total - first)};
            if (example.answer && example.answer->first >= first && example.answer->last < first + window.count) {
                window.start = window.offset() + example.answer->first - first;
                window.end = window.offset() + example.answer->last - first;
            }
            windows.push_back(window);
            if (first + window.count == total) break;
        }
        share_tokens(std::span(windows).subspan(begin));
    }
    return windows;
}

/// The mean length of rows without padding: what `BertConfig::mean_length` takes. Error: no windows.
[[nodiscard]] inline double mean_length(std::span<const SpanWindow> windows) {
    check(!windows.empty(), "span windows: the mean length of no windows");
    std::size_t sum = 0;
    for (const SpanWindow& window : windows) sum += window.length();
    return static_cast<double>(sum) / static_cast<double>(windows.size());
}

/// B rows of T tokens: [CLS] question [SEP] window [SEP] [PAD] ... [PAD].
struct SpanBatch {
    Tensor<std::int32_t> ids{};             ///< [B,T]
    Tensor<std::int32_t> segments{};        ///< [B,T]: 1 for the window and its [SEP], else 0
    std::vector<std::size_t> lengths{};     ///< [B], without padding: what AttentionMask takes
    Tensor<std::int32_t> starts{}, ends{};  ///< [B]: places of the answer's first and last token; 0 without one
};

/// Allocates a batch of `rows` rows of `length` tokens.
[[nodiscard]] inline SpanBatch make_span_batch(std::size_t rows, std::size_t length) {
    SpanBatch batch;
    batch.ids = Tensor<std::int32_t>(Shape{rows, length});
    batch.segments = Tensor<std::int32_t>(Shape{rows, length});
    batch.lengths.resize(rows);
    batch.starts = Tensor<std::int32_t>(Shape{rows});
    batch.ends = Tensor<std::int32_t>(Shape{rows});
    return batch;
}

/// Fills a batch with the windows of the given numbers, one for each row.
/// Errors: other numbers of windows than of rows; a number of no window; a window longer than T or not of its example;
/// special ids outside the vocabulary; a token outside the vocabulary, or a special one but [UNK].
inline void fill_spans(SpanBatch& batch, std::span<const SpanExample> examples, std::span<const SpanWindow> windows,
                       std::span<const std::size_t> numbers, const io::BertTokens& tokens) {
    const std::size_t rows = batch.ids.shape()[0], length = batch.ids.shape()[1];
    check(numbers.size() == rows, "span batch: ", numbers.size(), " windows for ", rows, " rows");
    tokens.check_ids();
    fill_constant(batch.ids, tokens.pad);
    fill_constant(batch.segments, 0);
    for (std::size_t row = 0; row < rows; ++row) {
        check(numbers[row] < windows.size(), "span batch: window ", numbers[row], " of ", windows.size());
        const SpanWindow& window = windows[numbers[row]];
        check(window.length() <= length, "span batch: a window of ", window.length(), " tokens for rows of ", length);
        check(window.example < examples.size() && window.question <= examples[window.example].question.size() &&
                  window.first + window.count <= examples[window.example].context.size(),
              "span batch: window ", numbers[row], " is not of its example ", window.example);
        const SpanExample& example = examples[window.example];
        std::int32_t* id = batch.ids.data() + row * length;
        const auto put = [&](std::span<const std::int32_t> part) {
            for (const std::int32_t token : part) {
                check(token >= 0 && token < tokens.vocabulary && (token == tokens.unknown || !tokens.is_special(token)),
                      "span batch: token ", token, " in example ", window.example, "; expected 0 to ",
                      tokens.vocabulary - 1, " and no special token but [UNK]");
                *id++ = token;
            }
        };
        *id++ = tokens.cls;
        put(std::span(example.question).first(window.question));
        *id++ = tokens.separator;
        put(std::span(example.context).subspan(window.first, window.count));
        *id = tokens.separator;
        std::fill_n(batch.segments.data() + row * length + window.offset(), window.count + 1, 1);
        batch.lengths[row] = window.length();
        batch.starts.data()[row] = static_cast<std::int32_t>(window.start);
        batch.ends.data()[row] = static_cast<std::int32_t>(window.end);
    }
}

/// The windows of a training step: `rows` numbers below `count`. Each pass over all windows has an order of its own,
/// drawn by the key and the pass. Passes follow each other without a gap, so a step may hold the end of one and the
/// start of the next. Error: no windows.
[[nodiscard]] inline std::vector<std::size_t> shuffled_windows(std::size_t count, std::size_t rows, RandomKey key,
                                                               std::uint64_t step) {
    check(count >= 1, "span batch: no windows");
    std::vector<std::size_t> numbers(rows);
    std::uint64_t pass = std::numeric_limits<std::uint64_t>::max();
    Tensor<std::int64_t> order;
    for (std::size_t row = 0; row < rows; ++row) {
        const std::uint64_t number = step * rows + row;
        if (pass != number / count) {
            pass = number / count;
            order = permutation<std::int64_t>(count, {key.seed, mix(key.stream, pass)});
        }
        numbers[row] = static_cast<std::size_t>(order.data()[number % count]);
    }
    return numbers;
}

/// The best span of an example so far, over its windows.
struct SpanChoice {
    std::optional<TokenSpan> span{};                             ///< tokens of the context
    double score = -std::numeric_limits<double>::infinity();     ///< start and end logit of `span`, added
    double no_answer = std::numeric_limits<double>::infinity();  ///< the same of [CLS]: the least of all windows

    /// Whether the context has no answer, as the logits say: `no_answer` is above `score` by more than `threshold`.
    [[nodiscard]] bool is_impossible(double threshold = 0.0) const { return !span || no_answer - score > threshold; }
};

/// Adds a window of an example to its choice. `start` and `end` are the logits of its row, at least `window.length()`.
///   span = argmax over s <= e < s + most_tokens of start[s] + end[e]
/// s is one of the window's own tokens, so that a token in several windows counts where it has the most context; e is
/// any token of the window. Equal scores go to the earlier span. Scores that are NaN choose nothing.
/// Errors: fewer logits than tokens; most_tokens of 0.
/// Reference: Devlin et al. 2019, arXiv:1810.04805, section 4.3, and the published code for SQuAD.
/// Test: tests/train/span_batches_test.cpp
template <class Real>
void choose_span(SpanChoice& choice, const SpanWindow& window, std::span<const Real> start, std::span<const Real> end,
                 std::size_t most_tokens = 30) {
    check(start.size() >= window.length() && end.size() >= window.length(), "choose_span: ", start.size(), " and ",
          end.size(), " logits for a window of ", window.length(), " tokens");
    check(most_tokens >= 1, "choose_span: spans of 0 tokens; expected at least 1");
    const auto logit = [&](std::span<const Real> logits, std::size_t token) {
        return static_cast<double>(logits[window.offset() + token - window.first]);
    };
    choice.no_answer = std::min(choice.no_answer, static_cast<double>(start[0]) + static_cast<double>(end[0]));
    const std::size_t stop = window.first + window.count;
    for (std::size_t first = window.own_begin; first < window.own_end; ++first)
        for (std::size_t last = first; last < std::min(first + most_tokens, stop); ++last) {
            const double score = logit(start, first) + logit(end, last);
            if (!(score > choice.score)) continue;
            choice.score = score;
            choice.span = TokenSpan{first, last};
        }
}

}  // namespace unitscale::train
