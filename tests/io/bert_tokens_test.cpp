// SPDX-License-Identifier: MIT
#include <unitscale/io/bert_tokens.hpp>

#include "support/catch.hpp"
#include "support/error_of.hpp"

#include <array>
#include <cstdint>

using namespace unitscale;
using io::BertTokens;

TEST_CASE("BERT's special tokens: ids and names have one order, and other ids are not special") {
    constexpr BertTokens tokens{.pad = 9, .unknown = 7, .cls = 5, .separator = 3, .mask = 1, .vocabulary = 10};
    REQUIRE(tokens.ids() == std::array<std::int32_t, 5>{9, 7, 5, 3, 1});
    REQUIRE(io::bert_token_names[0] == "[PAD]");
    REQUIRE(io::bert_token_names[4] == "[MASK]");
    for (std::int32_t id = 0; id < 10; ++id) REQUIRE(tokens.is_special(id) == (id % 2 == 1));
    REQUIRE_NOTHROW(tokens.check_ids());
}

TEST_CASE("BERT's special tokens: an id outside the vocabulary and equal ids are named") {
    const auto message = [](const BertTokens& tokens) { return test::error_of([&] { tokens.check_ids(); }); };
    REQUIRE(message({.vocabulary = 5}).empty());
    REQUIRE(message({.vocabulary = 4}) == "BertTokens: [MASK] is id 4; expected an id of the vocabulary of 4 tokens");
    REQUIRE(message({.pad = -1, .vocabulary = 9}) ==
            "BertTokens: [PAD] is id -1; expected an id of the vocabulary of 9 tokens");
    REQUIRE(message({.separator = 2, .vocabulary = 9}) == "BertTokens: [CLS] and [SEP] are both id 2");
}
