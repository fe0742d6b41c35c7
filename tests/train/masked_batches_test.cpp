// SPDX-License-Identifier: MIT
#include <unitscale/train/masked_batches.hpp>

#include "support/catch.hpp"
#include "support/error_of.hpp"
#include "support/test_ops.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

using namespace unitscale;
using Ids = std::vector<std::int32_t>;
using Sentences = std::vector<Ids>;

namespace {
/// Documents whose tokens count up from 5 through the whole corpus, so that a token is its own place in the text.
train::SentenceCorpus counted(const std::vector<std::vector<std::size_t>>& documents) {
    train::SentenceCorpus corpus;
    std::int32_t next = 5;
    for (const auto& lengths : documents) {
        Sentences sentences;
        for (const std::size_t length : lengths) {
            sentences.emplace_back();
            for (std::size_t i = 0; i < length; ++i) sentences.back().push_back(next++);
        }
        corpus.add_document(sentences);
    }
    return corpus;
}
train::SentenceCorpus some_documents() {
    std::vector<std::vector<std::size_t>> documents;
    for (std::size_t d = 0; d < 20; ++d) {
        documents.emplace_back();
        for (std::size_t s = 0; s < 6 + d % 5; ++s) documents.back().push_back(3 + (7 * d + 5 * s) % 11);
    }
    return counted(documents);
}
io::BertTokens special_of(const train::SentenceCorpus& corpus) {
    return {.vocabulary = static_cast<std::int32_t>(corpus.token_count()) + 5};
}
/// A row before it was masked.
Ids unmasked_row(const train::MaskedBatch& batch, std::size_t row) {
    const std::size_t length = batch.ids.shape()[1];
    Ids ids(batch.ids.data(), batch.ids.data() + batch.ids.size());
    for (std::size_t i = 0; i < batch.places.size(); ++i)
        ids.at(static_cast<std::size_t>(batch.places.data()[i])) = batch.labels.data()[i];
    return Ids(ids.begin() + static_cast<std::ptrdiff_t>(row * length),
               ids.begin() + static_cast<std::ptrdiff_t>((row + 1) * length));
}
void check_near(double measured, double expected, double draws) {
    INFO(measured << " of " << expected << " in " << draws);
    CHECK(std::abs(measured - expected) < 4.0 * std::sqrt(expected * (1.0 - expected) / draws));
}
}  // namespace

TEST_CASE("sentence corpus: sentences in order, with their documents; empty ones are left out") {
    train::SentenceCorpus corpus;
    corpus.add_document({{7, 8}, {}, {9}});
    corpus.add_document({{}, {}});
    corpus.add_document({{10, 11, 12}});
    corpus.add_document(Sentences{{13}, {14}, {15, 16}});
    REQUIRE(corpus.size() == 6);
    CHECK(corpus.token_count() == 10);
    CHECK(std::ranges::equal(corpus.sentence(0), Ids{7, 8}));
    CHECK(std::ranges::equal(corpus.sentence(1), Ids{9}));
    CHECK(std::ranges::equal(corpus.tokens_of(1, 4), Ids{9, 10, 11, 12, 13}));
    CHECK(corpus.document_end(0) == 2);
    CHECK(corpus.document_end(2) == 3);
    CHECK(corpus.document_end(3) == 6);
    CHECK(corpus.with_successor() == std::vector<std::size_t>{0, 3, 4});
}

TEST_CASE("masked batches: a row is [CLS] a [SEP] b [SEP] and padding, with segments, lengths and masked places") {
    const train::SentenceCorpus corpus = some_documents();
    const io::BertTokens tokens = special_of(corpus);
    train::MaskedBatch batch = train::make_masked_batch(64, 40);
    train::fill_masked(batch, corpus, tokens, {3, 1}, 5);
    REQUIRE(batch.places.shape() == batch.labels.shape());
    std::size_t expected_places = 0, full = 0;
    for (std::size_t row = 0; row < 64; ++row) {
        const Ids ids = unmasked_row(batch, row);
        const std::size_t length = batch.lengths[row];
        REQUIRE(length <= 40);
        full += length == 40;
        const auto first = std::find(ids.begin(), ids.end(), tokens.separator);
        const auto second = std::find(first + 1, ids.end(), tokens.separator);
        REQUIRE(second != ids.end());
        CHECK(ids[0] == tokens.cls);
        CHECK(second - ids.begin() + 1 == static_cast<std::ptrdiff_t>(length));
        CHECK(std::all_of(second + 1, ids.end(), [&](std::int32_t id) { return id == tokens.pad; }));
        const std::int32_t* const segments = batch.segments.data() + row * 40;
        for (std::ptrdiff_t t = 0; t < 40; ++t)
            CHECK(segments[t] == (t > first - ids.begin() && t <= second - ids.begin() ? 1 : 0));
        // Each segment is text without a gap, of one document, and never empty; b follows a or begins elsewhere.
        REQUIRE(first - ids.begin() >= 2);
        REQUIRE(second - first >= 2);
        for (auto at = ids.begin() + 1; at + 1 < second; ++at)
            if (at != first && at + 1 != first) CHECK(at[1] == at[0] + 1);
        CHECK((first[1] == first[-1] + 1) == (batch.follows.data()[row] == 1));
        CHECK(std::count(ids.begin(), ids.end(), tokens.cls) == 1);
        CHECK(std::count(ids.begin(), ids.end(), tokens.mask) == 0);
        expected_places += train::masked_count(length - 3, 0.15);
    }
    CHECK(full > 20);
    CHECK(batch.places.size() == expected_places);
    const Ids places = test::elements(batch.places);
    CHECK(std::is_sorted(places.begin(), places.end()));
    CHECK(std::set<std::int32_t>(places.begin(), places.end()).size() == places.size());
    for (std::size_t i = 0; i < places.size(); ++i) {
        CHECK(batch.labels.data()[i] >= 5);
        CHECK_FALSE((batch.ids.data()[places[i]] != tokens.mask && tokens.is_special(batch.ids.data()[places[i]])));
    }
}

TEST_CASE("masked batches: a segment stays in its document, and one that does not follow never overlaps the other") {
    const train::SentenceCorpus corpus = counted({{2, 3, 2, 4, 3}, {3, 2}, {5}, {1, 1, 1, 1}});
    const Ids document_starts{5, 19, 24, 29};
    const auto document_of = [&](std::int32_t token) {
        return std::upper_bound(document_starts.begin(), document_starts.end(), token) - document_starts.begin();
    };
    std::set<std::int32_t> starts_of_b;
    for (std::uint64_t row = 0; row < 3000; ++row) {
        const train::SegmentPair pair = train::draw_segments(corpus, 12, {}, {1, row});
        REQUIRE(pair.a.size() + pair.b.size() <= 9);
        CHECK(document_of(pair.a.front()) == document_of(pair.a.back()));
        CHECK(document_of(pair.b.front()) == document_of(pair.b.back()));
        CHECK((pair.b.front() == pair.a.back() + 1) == pair.follows);
        CHECK((pair.b.back() < pair.a.front() || pair.b.front() > pair.a.back()));
        if (!pair.follows) starts_of_b.insert(pair.b.front());
    }
    CHECK(starts_of_b == std::set<std::int32_t>{5, 7, 10, 12, 16, 19, 22, 24, 29, 30, 31, 32});  // every sentence
}

TEST_CASE("masked batches: the longer segment loses tokens, a its first ones and b its last ones") {
    const train::MaskedBatchOptions options{.neighbour_share = 1.0, .short_share = 0.0};
    const auto segments_of = [&](std::size_t a, std::size_t b, std::size_t length) {
        // A second document, without successor, makes the pair of the first one the only pair.
        const train::SentenceCorpus corpus = counted({{a, b}, {1}});
        const train::SegmentPair pair = train::draw_segments(corpus, length, options, {1, 1});
        return std::vector<Ids>{Ids(pair.a.begin(), pair.a.end()), Ids(pair.b.begin(), pair.b.end())};
    };
    CHECK(segments_of(6, 2, 9) == std::vector<Ids>{{7, 8, 9, 10}, {11, 12}});
    CHECK(segments_of(2, 6, 9) == std::vector<Ids>{{5, 6}, {7, 8, 9, 10}});
    CHECK(segments_of(5, 5, 9) == std::vector<Ids>{{7, 8, 9}, {10, 11, 12}});
    CHECK(segments_of(5, 5, 8) == std::vector<Ids>{{7, 8, 9}, {10, 11}});
    CHECK(segments_of(3, 3, 9) == std::vector<Ids>{{5, 6, 7}, {8, 9, 10}});
    CHECK(segments_of(7, 9, 5) == std::vector<Ids>{{11}, {12}});
}

TEST_CASE("masked batches: the shares of pairs, of short rows and of the three kinds of masked tokens are as stated") {
    const train::SentenceCorpus corpus = some_documents();
    const io::BertTokens tokens = special_of(corpus);
    train::MaskedBatch batch = train::make_masked_batch(2000, 40);
    train::fill_masked(batch, corpus, tokens, {11, 1}, 1);
    const double rows = 2000.0;
    const auto follows = test::elements(batch.follows);
    check_near(static_cast<double>(std::count(follows.begin(), follows.end(), 1)) / rows, 0.5, rows);
    std::size_t masks = 0, kept = 0, others = 0;
    for (std::size_t i = 0; i < batch.places.size(); ++i) {
        const auto place = static_cast<std::size_t>(batch.places.data()[i]);
        const std::int32_t id = batch.ids.data()[place];
        ++(id == tokens.mask ? masks : id == batch.labels.data()[i] ? kept : others);
    }
    const auto all = static_cast<double>(batch.places.size());
    check_near(static_cast<double>(masks) / all, 0.8, all);
    check_near(static_cast<double>(kept) / all, 0.1, all);
    check_near(static_cast<double>(others) / all, 0.1, all);
    // Every token of a row is masked equally often: the first and the last one, too.
    std::size_t first = 0, last = 0;
    double expected = 0.0;
    for (std::size_t row = 0; row < 2000; ++row) {
        const auto is_masked = [&](std::size_t t) {
            const auto place = static_cast<std::int32_t>(row * 40 + t);
            return std::binary_search(batch.places.data(), batch.places.data() + batch.places.size(), place);
        };
        first += is_masked(1);
        last += is_masked(batch.lengths[row] - 2);
        const std::size_t n = batch.lengths[row] - 3;
        expected += static_cast<double>(train::masked_count(n, 0.15)) / static_cast<double>(n) / rows;
    }
    check_near(static_cast<double>(first) / rows, expected, rows);
    check_near(static_cast<double>(last) / rows, expected, rows);
}

TEST_CASE("masked batches: the number of masked tokens is rounded, and at least one") {
    CHECK(train::masked_count(2, 0.15) == 1);
    CHECK(train::masked_count(9, 0.15) == 1);
    CHECK(train::masked_count(11, 0.15) == 2);
    CHECK(train::masked_count(125, 0.15) == 19);
    CHECK(train::masked_count(10, 0.0) == 1);
    CHECK(train::masked_count(10, 1.0) == 10);
}

TEST_CASE("masked batches: random tokens are any but the special ones, wherever these are") {
    const io::BertTokens tokens{.pad = 9, .unknown = 3, .cls = 4, .separator = 0, .mask = 7, .vocabulary = 10};
    train::SentenceCorpus corpus;
    corpus.add_document({{1, 3}, {2, 2}, {5, 6}});
    train::MaskedBatch batch = train::make_masked_batch(600, 7);
    train::fill_masked(batch, corpus, tokens, {1, 1}, 1, 0,
                       {.masked_share = 1.0, .mask_token_share = 0.0, .random_token_share = 1.0});
    std::vector<int> drawn(10, 0);
    for (const std::int32_t place : batch.places.span()) ++drawn[static_cast<std::size_t>(batch.ids.data()[place])];
    const double all = static_cast<double>(batch.places.size());
    REQUIRE(all > 2000);
    for (const std::size_t id : {1u, 2u, 5u, 6u, 8u}) check_near(drawn[id] / all, 0.2, all);
    for (const std::int32_t id : tokens.ids()) CHECK(drawn[static_cast<std::size_t>(id)] == 0);
    const Ids labels = test::elements(batch.labels);
    CHECK(std::count(labels.begin(), labels.end(), tokens.unknown) > 0);  // a word of the text, masked as others
}

TEST_CASE("masked batches: a row depends on key, step and number alone, so micro-batches hold the rows of the whole") {
    const train::SentenceCorpus corpus = some_documents();
    const io::BertTokens tokens = special_of(corpus);
    train::MaskedBatch whole = train::make_masked_batch(6, 24), part = train::make_masked_batch(2, 24);
    train::fill_masked(whole, corpus, tokens, {3, 9}, 7);
    Ids ids, segments, follows, places, labels;
    std::vector<std::size_t> lengths;
    const auto append = [](Ids& all, const Tensor<std::int32_t>& some, std::int32_t shift = 0) {
        for (const std::int32_t number : some.span()) all.push_back(number + shift);
    };
    for (std::size_t i = 0; i < 3; ++i) {
        train::fill_masked(part, corpus, tokens, {3, 9}, 7, 2 * i);
        append(ids, part.ids);
        append(segments, part.segments);
        append(follows, part.follows);
        append(labels, part.labels);
        append(places, part.places, static_cast<std::int32_t>(2 * i * 24));
        lengths.insert(lengths.end(), part.lengths.begin(), part.lengths.end());
    }
    CHECK(test::elements(whole.ids) == ids);
    CHECK(test::elements(whole.segments) == segments);
    CHECK(test::elements(whole.follows) == follows);
    CHECK(test::elements(whole.places) == places);
    CHECK(test::elements(whole.labels) == labels);
    CHECK(whole.lengths == lengths);
    const auto ids_of = [&](RandomKey key, std::uint64_t step) {
        train::MaskedBatch other = train::make_masked_batch(6, 24);
        train::fill_masked(other, corpus, tokens, key, step);
        return test::elements(other.ids);
    };
    CHECK(ids_of({3, 9}, 7) == ids);
    CHECK(ids_of({3, 9}, 8) != ids);
    CHECK(ids_of({4, 9}, 7) != ids);
    CHECK(ids_of({3, 10}, 7) != ids);
}

TEST_CASE("masked batches: the mean length is that of batches, and without short rows that of full ones") {
    const train::SentenceCorpus corpus = some_documents();
    train::MaskedBatch batch = train::make_masked_batch(4000, 40);
    train::fill_masked(batch, corpus, special_of(corpus), {5, 5}, 1);
    double sum = 0.0, squares = 0.0;
    for (const std::size_t length : batch.lengths) {
        sum += static_cast<double>(length);
        squares += static_cast<double>(length * length);
    }
    const double mean = sum / 4000.0, deviation = std::sqrt(squares / 4000.0 - mean * mean);
    CHECK(std::abs(train::mean_length(corpus, 40, {6, 6}, 4000) - mean) < 4.0 * deviation * std::sqrt(2.0 / 4000.0));
    CHECK(train::mean_length(corpus, 40, {6, 6}, 100) == train::mean_length(corpus, 40, {6, 6}, 100));
    // Any two neighbours of these sentences have 10 tokens, and two sentences of other places have, too.
    const train::SentenceCorpus even = counted({{5, 5, 5, 5}, {5, 5, 5}});
    CHECK(train::mean_length(even, 13, {1, 1}, 500, {.short_share = 0.0}) == 13.0);
    CHECK(train::mean_length(even, 30, {1, 1}, 500, {.neighbour_share = 1.0, .short_share = 0.0}) > 13.0);
}

TEST_CASE("masked batches: both segments take sentences up to the length, which is shorter in short rows") {
    const std::vector<std::size_t> ones(400, 1);
    const train::SentenceCorpus corpus = counted({ones, ones});  // a row takes as many tokens as it wants
    std::vector<std::size_t> lengths(24, 0);
    for (const double neighbours : {0.0, 1.0})
        for (std::uint64_t row = 0; row < 2000; ++row) {
            const train::MaskedBatchOptions full{.neighbour_share = neighbours, .short_share = 0.0};
            const train::MaskedBatchOptions cut{.neighbour_share = neighbours, .short_share = 1.0};
            const auto size_of = [&](const train::MaskedBatchOptions& options) {
                const train::SegmentPair pair = train::draw_segments(corpus, 23, options, {2, row});
                return pair.a.size() + pair.b.size();
            };
            lengths.at(size_of(cut)) += neighbours == 1.0 ? 1u : 0u;
            lengths.at(23) += size_of(full) == 20 ? 1u : 0u;
        }
    CHECK(lengths[23] > 3600);  // all but those that a document's end cuts
    CHECK(lengths[0] + lengths[1] + lengths[21] + lengths[22] == 0);
    for (std::size_t n = 2; n <= 20; ++n) check_near(static_cast<double>(lengths[n]) / 2000.0, 1.0 / 19.0, 2000.0);
}

TEST_CASE("masked batches: errors name what is missing") {
    train::SentenceCorpus corpus;
    corpus.add_document({{5, 6}, {7}, {8}});
    const auto message = [&](const train::SentenceCorpus& text, const io::BertTokens& tokens, std::size_t length = 8,
                             const train::MaskedBatchOptions& options = {}) {
        return test::error_of([&] {
            train::MaskedBatch batch = train::make_masked_batch(8, length);
            train::fill_masked(batch, text, tokens, {1, 1}, 1, 0, options);
        });
    };
    const io::BertTokens tokens{.vocabulary = 9};
    CHECK(message(corpus, tokens).empty());
    CHECK(message(corpus, tokens, 5).empty());
    CHECK(message(corpus, tokens, 4) ==
          "masked batch: rows of 4 tokens; expected at least 5, for [CLS], two [SEP] and a token of each segment");
    CHECK(message(counted({{3, 3}}), tokens) == "masked batch: a corpus of 2 sentences; expected at least 3");
    CHECK(message({}, tokens) == "masked batch: a corpus of 0 sentences; expected at least 3");
    CHECK(message(counted({{3}, {3}, {2}}), tokens) ==
          "masked batch: 3 documents of one sentence; expected one with a sentence that follows another");
    CHECK(message(corpus, {.vocabulary = 4}) ==
          "BertTokens: [MASK] is id 4; expected an id of the vocabulary of 4 tokens");
    CHECK(message(corpus, {.vocabulary = 5}) == "masked batch: a vocabulary of special tokens alone");
    CHECK(message(counted({{1, 1}, {1}}), {.vocabulary = 7}) ==
          "masked batch: token 7 in the corpus; expected 0 to 6 and no special token but [UNK]");
    CHECK(message(corpus, {.pad = 7, .vocabulary = 9}) ==
          "masked batch: token 7 in the corpus; expected 0 to 8 and no special token but [UNK]");
    CHECK(message(corpus, tokens, 8, {.masked_share = 1.5}) == "masked batch: masked_share is 1.5; expected 0 to 1");
    CHECK(message(corpus, tokens, 8, {.random_token_share = 0.3}) ==
          "masked batch: mask_token_share + random_token_share is 1.1; expected 0 to 1");
    CHECK(test::error_of([&] {
              static_cast<void>(train::mean_length(corpus, 4, {1, 1}));
          }) ==
          "masked batch: rows of 4 tokens; expected at least 5, for [CLS], two [SEP] and a token of each segment");
}
