// SPDX-License-Identifier: MIT
#include <unitscale/train/batches.hpp>

#include "support/catch.hpp"
#include "support/test_ops.hpp"

#include <numeric>

using namespace unitscale;

namespace {
std::vector<std::int32_t> counted(std::size_t size) {
    std::vector<std::int32_t> tokens(size);
    std::iota(tokens.begin(), tokens.end(), 0);
    return tokens;
}
}  // namespace

TEST_CASE("batches: a text is split into nine tenths and the last tenth") {
    const auto tokens = counted(1000);
    const train::Split parts = train::split(tokens, 50);
    CHECK(parts.training.size() == 900);
    CHECK(parts.training.front() == 0);
    CHECK(parts.validation.size() == 100);
    CHECK(parts.validation.front() == 900);
    CHECK(parts.validation.back() == 999);
    CHECK(parts.test.empty());
}

TEST_CASE("batches: with a test part the last tenth is halved, and the training part stays") {
    const auto tokens = counted(1005);
    const train::Split parts = train::split(tokens, 20, /*test=*/true);
    CHECK(parts.training.data() == tokens.data());
    CHECK(parts.training.size() == train::split(tokens, 20).training.size());
    CHECK(parts.training.size() == 904);
    CHECK(parts.validation.size() == 50);
    CHECK(parts.validation.front() == 904);
    CHECK(parts.test.size() == 51);
    CHECK(parts.test.front() == 954);
    CHECK(parts.test.back() == 1004);
    for (const std::size_t length : {1u, 2u, 7u, 50u, 128u}) {
        const auto more = counted(20 * length + 11);
        const train::Split least = train::split(more, length, true);
        CHECK(least.validation.size() == length + 1);
        CHECK(least.test.size() == length + 1);
        REQUIRE_THROWS_WITH(
            train::split(std::span(more).first(20 * length + 10), length, true),
            concatenate("data: ", 20 * length + 10, " characters are too few; sequences of ", length, " need at least ",
                        20 * length + 11, ", so that each half of the last tenth holds one"));
    }
}

TEST_CASE("batches: the shortest text of a length is the one that the error names") {
    for (const std::size_t length : {1u, 2u, 7u, 50u, 128u}) {
        const auto tokens = counted(10 * length + 1);
        CHECK(train::split(tokens, length).validation.size() > length);
        REQUIRE_THROWS_WITH(train::split(std::span(tokens).first(10 * length), length),
                            concatenate("data: ", 10 * length, " characters are too few; sequences of ", length,
                                        " need at least ", 10 * length + 1, ", so that the last tenth holds one"));
    }
    REQUIRE_THROWS_WITH(
        train::split({}, 5),
        "data: 0 characters are too few; sequences of 5 need at least 51, so that the last tenth holds one");
    REQUIRE_THROWS_WITH(
        static_cast<void>(train::split({}, 5, false, "tokens")),
        "data: 0 tokens are too few; sequences of 5 need at least 51, so that the last tenth holds one");
}

TEST_CASE("batches: a row is a window and its successors") {
    const auto tokens = counted(20);
    train::Batch batch = train::make_batch(2, 4);
    CHECK(batch.ids.shape() == Shape{2, 4});
    CHECK(batch.labels.shape() == Shape{2, 4});
    train::set_row(batch, 0, tokens, 15);
    train::set_row(batch, 1, tokens, 3);
    CHECK(test::elements(batch.ids) == std::vector<std::int32_t>{15, 16, 17, 18, 3, 4, 5, 6});
    CHECK(test::elements(batch.labels) == std::vector<std::int32_t>{16, 17, 18, 19, 4, 5, 6, 7});
}

TEST_CASE("batches: the first labels of each row leave the loss") {
    const auto tokens = counted(20);
    train::Batch batch = train::make_batch(2, 4);
    for (const std::size_t row : {0u, 1u}) train::set_row(batch, row, tokens, 5 * row);
    train::mask_first(batch, 0);
    CHECK(test::elements(batch.labels) == std::vector<std::int32_t>{1, 2, 3, 4, 6, 7, 8, 9});
    train::mask_first(batch, 3);
    CHECK(test::elements(batch.labels) == std::vector<std::int32_t>{-1, -1, -1, 4, -1, -1, -1, 9});
    CHECK(test::elements(batch.ids) == std::vector<std::int32_t>{0, 1, 2, 3, 5, 6, 7, 8});
    train::mask_first(batch, 9);
    CHECK(test::elements(batch.labels) == std::vector<std::int32_t>(8, train::ignored_label));
}

TEST_CASE(
    "batches: random rows depend on seed, step and place in the step alone, so micro-batches hold the rows of the "
    "whole") {
    const auto tokens = counted(5000);
    const RandomKey key{3, 9};
    train::Batch whole = train::make_batch(6, 5), part = train::make_batch(2, 5), other = train::make_batch(6, 5);
    train::fill_random(whole, tokens, key, 7);
    std::vector<std::int32_t> ids, labels;
    for (std::size_t i = 0; i < 3; ++i) {
        train::fill_random(part, tokens, key, 7, 2 * i);
        ids.insert(ids.end(), part.ids.span().begin(), part.ids.span().end());
        labels.insert(labels.end(), part.labels.span().begin(), part.labels.span().end());
    }
    CHECK(test::elements(whole.ids) == ids);
    CHECK(test::elements(whole.labels) == labels);
    for (std::size_t i = 0; i < whole.ids.size(); ++i) CHECK(whole.labels.data()[i] == whole.ids.data()[i] + 1);
    train::fill_random(other, tokens, key, 8);
    CHECK(test::elements(other.ids) != ids);
    train::fill_random(other, tokens, {4, 9}, 7);
    CHECK(test::elements(other.ids) != ids);
    train::fill_random(other, tokens, {3, 10}, 7);
    CHECK(test::elements(other.ids) != ids);
}

TEST_CASE("batches: every window of the text is drawn, and equally often") {
    const auto tokens = counted(9);  // windows of 4 tokens with a successor start at 0..4
    train::Batch batch = train::make_batch(1, 4);
    std::vector<int> drawn(5, 0);
    for (std::uint64_t step = 1; step <= 5000; ++step) {
        train::fill_random(batch, tokens, {1, 2}, step);
        ++drawn.at(static_cast<std::size_t>(batch.ids.data()[0]));
        REQUIRE(batch.labels.data()[3] <= 8);
    }
    for (const int count : drawn) CHECK(std::abs(count - 1000) < 120);  // four standard deviations
}

TEST_CASE("batches: disjoint windows with successors") {
    CHECK(train::window_count(0, 4) == 0);
    CHECK(train::window_count(4, 4) == 0);
    CHECK(train::window_count(5, 4) == 1);
    CHECK(train::window_count(8, 4) == 1);
    CHECK(train::window_count(9, 4) == 2);
}
