// SPDX-License-Identifier: MIT
#include <unitscale/train/span_batches.hpp>

#include "support/catch.hpp"
#include "support/error_of.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

using namespace unitscale;
using Ids = std::vector<std::int32_t>;
using train::SpanExample;
using train::SpanWindow;
using train::TokenSpan;

namespace {
constexpr io::BertTokens special{.vocabulary = 100};

/// A question of tokens 10, 11, ... and a context of 50, 51, ...
SpanExample example(std::size_t question, std::size_t context, std::optional<TokenSpan> answer = {}) {
    SpanExample made{.question = Ids(question), .context = Ids(context), .answer = answer};
    std::iota(made.question.begin(), made.question.end(), 10);
    std::iota(made.context.begin(), made.context.end(), 50);
    return made;
}
Ids row_of(const Tensor<std::int32_t>& tensor, std::size_t row) {
    const std::size_t length = tensor.shape()[1];
    return Ids(tensor.data() + row * length, tensor.data() + (row + 1) * length);
}
/// The own tokens of a context in windows by the definition, one search for each token.
std::vector<std::size_t> owners(const std::vector<SpanWindow>& windows) {
    std::vector<std::size_t> result;
    const std::size_t total = windows.back().first + windows.back().count;
    for (std::size_t token = 0; token < total; ++token) {
        std::size_t best = windows.size();
        std::pair<std::size_t, std::size_t> most;
        for (std::size_t i = 0; i < windows.size(); ++i) {
            const SpanWindow& in = windows[i];
            if (token < in.first || token >= in.first + in.count) continue;
            const std::pair context(std::min(token - in.first, in.first + in.count - 1 - token), in.count);
            if (best == windows.size() || context > most) best = i, most = context;
        }
        result.push_back(best);
    }
    return result;
}
}  // namespace

TEST_CASE("spans: tokens of a part of a text, and the text of tokens") {
    const std::string context = "The mill's wheel";
    const std::vector<io::TextRange> ranges{{0, 3}, {4, 6}, {6, 8}, {8, 9}, {9, 10}, {11, 16}};  // the mi ll ' s wheel
    CHECK(train::tokens_in(ranges, {4, 8}) == TokenSpan{1, 2});
    CHECK(train::tokens_in(ranges, {5, 12}) == TokenSpan{1, 5});  // parts of tokens count
    CHECK(train::tokens_in(ranges, {3, 4}) == std::nullopt);      // the space
    CHECK(train::tokens_in(ranges, {16, 20}) == std::nullopt);
    CHECK(train::span_text(context, ranges, {1, 2}) == "mill");
    CHECK(train::span_text(context, ranges, {1, 5}) == "mill's wheel");
    CHECK_THROWS_WITH(train::span_text(context, ranges, {1, 6}),
                      "span_text: tokens 1 to 6 of 6 in a context of 16 bytes");
}

TEST_CASE("spans: windows overlap, cover the context, and have the answer's places or [CLS]") {
    const std::vector<SpanExample> examples{example(3, 4, TokenSpan{1, 2}), example(2, 12, TokenSpan{4, 5}),
                                            example(9, 7), example(0, 0)};
    const auto windows = train::span_windows(examples, {.length = 11, .stride = 3, .question = 5});
    const auto at = [&](std::size_t i, std::size_t in, std::size_t question, std::size_t first, std::size_t count,
                        std::size_t start, std::size_t end) {
        INFO(i);
        REQUIRE(i < windows.size());
        CHECK(windows[i].example == in);
        CHECK(windows[i].question == question);
        CHECK(windows[i].first == first);
        CHECK(windows[i].count == count);
        CHECK(windows[i].start == start);
        CHECK(windows[i].end == end);
    };
    at(0, 0, 3, 0, 4, 6, 7);
    at(1, 1, 2, 0, 6, 8, 9);  // 11 - 2 - 3 = 6 tokens of the context
    at(2, 1, 2, 3, 6, 5, 6);
    at(3, 1, 2, 6, 6, 0, 0);
    at(4, 2, 5, 0, 3, 0, 0);  // a question of 9 tokens is cut to 5
    at(5, 2, 5, 3, 3, 0, 0);
    at(6, 2, 5, 6, 1, 0, 0);
    at(7, 3, 0, 0, 0, 0, 0);
    CHECK(windows.size() == 8);
    CHECK(train::mean_length(windows) == Approx((10 + 11 + 11 + 11 + 11 + 11 + 9 + 3) / 8.0));
    // A stride beyond the window: the windows follow each other without a gap.
    const auto wide =
        train::span_windows(std::span(examples).subspan(1, 1), {.length = 11, .stride = 100, .question = 5});
    REQUIRE(wide.size() == 2);
    CHECK(wide[1].first == 6);
    CHECK(wide[1].start == 0);
    // The answer's end is beyond the first window, and its start before the second: both point to [CLS].
    const auto cut = train::span_windows(std::vector{example(2, 12, TokenSpan{5, 6})}, {11, 100, 5});
    CHECK((cut[0].start == 0 && cut[0].end == 0 && cut[1].start == 0 && cut[1].end == 0));
}

TEST_CASE("spans: each token is the own token of the window with the most context") {
    for (const std::size_t total : {1u, 7u, 20u, 21u, 53u})
        for (const std::size_t stride : {1u, 3u, 5u, 9u, 50u}) {
            INFO(total << " tokens, stride " << stride);
            const auto windows =
                train::span_windows(std::vector{example(4, total)}, {.length = 17, .stride = stride, .question = 4});
            const auto expected = owners(windows);
            std::size_t own = 0, wrong = 0;
            for (std::size_t i = 0; i < windows.size(); ++i)
                for (std::size_t token = windows[i].own_begin; token < windows[i].own_end; ++token, ++own)
                    wrong += expected[token] != i;
            CHECK(wrong == 0);
            CHECK(own == total);
        }
}

TEST_CASE("spans: a batch has the rows of its windows") {
    const std::vector<SpanExample> examples{example(2, 12, TokenSpan{4, 5}), example(3, 2)};
    const auto windows = train::span_windows(examples, {.length = 11, .stride = 3, .question = 5});
    train::SpanBatch batch = train::make_span_batch(2, 12);
    train::fill_spans(batch, examples, windows, std::vector<std::size_t>{3, 1}, special);
    CHECK(row_of(batch.ids, 0) == Ids{2, 10, 11, 12, 3, 50, 51, 3, 0, 0, 0, 0});
    CHECK(row_of(batch.segments, 0) == Ids{0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 0});
    CHECK(row_of(batch.ids, 1) == Ids{2, 10, 11, 3, 53, 54, 55, 56, 57, 58, 3, 0});
    CHECK(row_of(batch.segments, 1) == Ids{0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 0});
    CHECK(batch.lengths == std::vector<std::size_t>{8, 11});
    CHECK(batch.starts.data()[0] == 0);
    CHECK(batch.starts.data()[1] == 5);
    CHECK(batch.ends.data()[1] == 6);
    CHECK(batch.ids.data()[12 + 5] == examples[0].context[4]);
}

TEST_CASE("spans: each pass has every window once, in an order of its own, and steps follow without a gap") {
    std::vector<std::size_t> all;
    for (std::uint64_t step = 0; step < 14; ++step)
        for (const std::size_t number : train::shuffled_windows(7, 4, {1, 2}, step)) all.push_back(number);
    std::set<std::vector<std::size_t>> orders;
    for (std::size_t pass = 0; pass < 8; ++pass) {
        std::vector<std::size_t> order(all.begin() + static_cast<std::ptrdiff_t>(7 * pass),
                                       all.begin() + static_cast<std::ptrdiff_t>(7 * pass + 7));
        orders.insert(order);
        std::sort(order.begin(), order.end());
        CHECK(order == std::vector<std::size_t>{0, 1, 2, 3, 4, 5, 6});
    }
    CHECK(orders.size() > 4);
    CHECK(train::shuffled_windows(7, 4, {1, 2}, 3) == train::shuffled_windows(7, 4, {1, 2}, 3));
    CHECK_FALSE(train::shuffled_windows(50, 50, {1, 2}, 0) == train::shuffled_windows(50, 50, {2, 2}, 0));
}

TEST_CASE("spans: the best span ends at or after its start, is not too long, and begins at an own token") {
    const std::vector<SpanExample> examples{example(2, 12)};
    const auto windows = train::span_windows(examples, {.length = 11, .stride = 3, .question = 5});
    std::vector<float> start(11, 0.0f), end(11, 0.0f);
    const auto chosen = [&](std::size_t window, std::size_t most = 30) {
        train::SpanChoice choice;
        train::choose_span<float>(choice, windows[window], start, end, most);
        return choice;
    };
    // The first window: tokens 0 to 5 at places 4 to 9. Tokens 0 to 4 are its own: 4 has one neighbour on its poorer
    // side in the second window too.
    CHECK(windows[0].own_begin == 0);
    CHECK(windows[0].own_end == 5);
    start[5] = 2.0f, end[7] = 3.0f, end[4] = 9.0f;  // the largest end stands before the start
    start[0] = 1.5f, end[0] = 0.25f;
    CHECK(chosen(0).span == TokenSpan{0, 0});  // 0 + 9
    end[4] = 0.0f;
    CHECK(chosen(0).span == TokenSpan{1, 3});
    CHECK(chosen(0).score == 5.0);
    CHECK(chosen(0).no_answer == 1.75);
    CHECK(chosen(0, 2).span == TokenSpan{2, 3});  // 0 + 3 is more than 2 + 0
    CHECK_FALSE(chosen(0).is_impossible());
    CHECK(chosen(0).is_impossible(-4.0));
    start[9] = 100.0f;  // token 5 is another window's
    CHECK(chosen(0).span == TokenSpan{1, 3});
    start[1] = start[2] = end[2] = end[3] = start[10] = end[10] = 100.0f;  // question and [SEP]
    CHECK(chosen(0).span == TokenSpan{1, 3});

    // The best of the windows, and the least score for no answer.
    train::SpanChoice choice = chosen(0);
    std::fill(start.begin(), start.end(), 0.0f);
    std::fill(end.begin(), end.end(), 0.0f);
    start[6] = 6.0f;
    start[0] = -1.0f;
    train::choose_span<float>(choice, windows[1], start, end);
    CHECK(choice.span == TokenSpan{5, 5});
    CHECK(choice.score == 6.0);
    CHECK(choice.no_answer == -1.0);
    // Infinities of padding are below any span, and NaN chooses nothing.
    std::fill(start.begin(), start.end(), std::numeric_limits<float>::quiet_NaN());
    CHECK_FALSE(chosen(0).span.has_value());
    CHECK(chosen(0).is_impossible());
}

TEST_CASE("spans: errors") {
    const auto refused = [](const SpanExample& of, const train::SpanWindowOptions& options) {
        return test::error_of([&] { static_cast<void>(train::span_windows(std::vector{of}, options)); });
    };
    CHECK(refused(example(1, 1), {.stride = 0}) == "span windows: a stride of 0; expected at least 1");
    CHECK(
        refused(example(1, 1), {.length = 8, .question = 5}) ==
        "span windows: rows of 8 tokens; expected at least 9, for [CLS], two [SEP], a question of 5 and a token of its "
        "context");
    CHECK(refused(example(1, 3, TokenSpan{2, 3}), {}) ==
          "span windows: the answer of example 0 is tokens 2 to 3 of a context of 3");
    CHECK_THROWS_WITH(train::mean_length(std::vector<SpanWindow>{}), "span windows: the mean length of no windows");
    CHECK_THROWS_WITH(train::shuffled_windows(0, 1, {}, 0), "span batch: no windows");

    std::vector<SpanExample> examples{example(2, 6)};
    const auto windows = train::span_windows(examples, {.length = 11, .stride = 3, .question = 5});
    const auto fill = [&](std::vector<std::size_t> numbers, std::size_t length, const io::BertTokens& tokens) {
        train::SpanBatch batch = train::make_span_batch(1, length);
        return test::error_of([&] { train::fill_spans(batch, examples, windows, numbers, tokens); });
    };
    CHECK(fill({0}, 11, special).empty());
    CHECK(fill({0, 0}, 11, special) == "span batch: 2 windows for 1 rows");
    CHECK(fill({1}, 11, special) == "span batch: window 1 of 1");
    CHECK(fill({0}, 10, special) == "span batch: a window of 11 tokens for rows of 10");
    CHECK(fill({0}, 11, {.vocabulary = 52}) ==
          "span batch: token 52 in example 0; expected 0 to 51 and no special token but [UNK]");
    CHECK(fill({0}, 11, {.vocabulary = 4}) ==
          "BertTokens: [MASK] is id 4; expected an id of the vocabulary of 4 tokens");
    examples[0].context[1] = special.separator;
    CHECK(fill({0}, 11, special) ==
          "span batch: token 3 in example 0; expected 0 to 99 and no special token but [UNK]");
    examples[0].context[1] = special.unknown;
    CHECK(fill({0}, 11, special).empty());
    examples[0].context.pop_back();
    CHECK(fill({0}, 11, special) == "span batch: window 0 is not of its example 0");

    train::SpanChoice choice;
    const std::vector<float> logits(10);
    CHECK_THROWS_WITH(train::choose_span<float>(choice, windows[0], logits, logits),
                      "choose_span: 10 and 10 logits for a window of 11 tokens");
    CHECK_THROWS_WITH(train::choose_span<float>(choice, windows[0], std::vector<float>(11), std::vector<float>(11), 0),
                      "choose_span: spans of 0 tokens; expected at least 1");
}
