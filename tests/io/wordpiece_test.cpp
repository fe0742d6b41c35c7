// SPDX-License-Identifier: MIT
#include <unitscale/io/wordpiece.hpp>

#include "support/catch.hpp"
#include "support/error_of.hpp"
#include "support/temporary_folder.hpp"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

using namespace unitscale;
using io::WordPiece;
using Ids = std::vector<std::int32_t>;
using Tokens = std::vector<std::string>;

namespace {
const Tokens special = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};

Tokens with_special(const Tokens& tokens) {
    Tokens all = special;
    all.insert(all.end(), tokens.begin(), tokens.end());
    return all;
}
Tokens pieces_of(const WordPiece& pieces, std::string_view text) {
    Tokens tokens;
    for (const std::int32_t id : pieces.encode(text))
        tokens.push_back(pieces.tokens().at(static_cast<std::size_t>(id)));
    return tokens;
}
/// Written for this test.
constexpr std::string_view corpus =
    "The river ran low in the summer, and the miller's wheel stood still. \"When will it rain?\" asked the miller; "
    "nobody knew. In the caf\u00e9 at the river's end they played cards: 10 cents a game!\n"
    "When the rain came, it came at night, and by the morning the wheel was turning, turning, turning.\n"
    "Nobody asked the miller about the rain again. \u6f22\u5b57 were painted over the caf\u00e9 door.";
}  // namespace

TEST_CASE("WordPiece: the examples of BERT's paper and test") {
    const WordPiece paper(with_special({"un", "##aff", "##able", "##a", "una"}));
    CHECK(pieces_of(paper, "unaffable") == Tokens{"[UNK]"});  // the longest start is una, and then ##ff is missing
    const WordPiece affable(with_special({"un", "##aff", "##able", "##a"}));
    CHECK(affable.encode("unaffable") == Ids{5, 6, 7});
    CHECK(affable.decode(Ids{5, 6, 7}) == "unaffable");

    const WordPiece pieces(
        {"[UNK]", "[CLS]", "[SEP]", "want", "##want", "##ed", "wa", "un", "runn", "##ing", ",", "[PAD]", "[MASK]"});
    CHECK(pieces.encode("UNwant\u00E9d,running") == Ids{7, 4, 5, 10, 8, 9});
    CHECK(pieces.decode(Ids{7, 4, 5, 10, 8, 9}) == "unwanted , running");
    CHECK(pieces.encode("").empty());
    CHECK(pieces_of(pieces, "unwanted running") == Tokens{"un", "##want", "##ed", "runn", "##ing"});
    CHECK(pieces_of(pieces, "unwantedX running") == Tokens{"[UNK]", "runn", "##ing"});
    CHECK(pieces.special() ==
          io::BertTokens{.pad = 11, .unknown = 0, .cls = 1, .separator = 2, .mask = 12, .vocabulary = 13});
}

TEST_CASE("WordPiece: a word that ends before a token does, a token of one mark, names of special tokens in the text") {
    const WordPiece pieces(with_special({"ab", "abc", "##", "a", "##b", "[", "]", "mask"}));
    CHECK(pieces_of(pieces, "ab abc a abb") == Tokens{"ab", "abc", "a", "ab", "##b"});
    CHECK(pieces_of(pieces, "##") == Tokens{"[UNK]", "[UNK]"});
    CHECK(pieces_of(pieces, "[MASK]") == Tokens{"[", "mask", "]"});
    CHECK(pieces.decode(Ids{2, 5, 9, 3, 1}) == "[CLS] abb [SEP] [UNK]");
    CHECK(pieces.decode(Ids{}).empty());
    CHECK(pieces.decode(Ids{9, 5}) == "b ab");
    CHECK(pieces.decode(Ids{5, 7}) == "ab ##");
    CHECK(pieces.id_of("##b") == 9);
    CHECK_FALSE(pieces.id_of("b").has_value());
}

TEST_CASE("WordPiece: tokens have their places in the text, and their parts of it put together are its words") {
    const WordPiece pieces(with_special({"un", "##aff", "##able", ",", "cafe"}));
    const std::string text = " UNaffable,  caf\u00e9 xyz!";
    const io::EncodedText encoded = pieces.encode_with_ranges(text);
    CHECK(encoded.ids == pieces.encode(text));
    CHECK(encoded.ids == Ids{5, 6, 7, 8, 9, 1, 1});
    Tokens parts;
    for (const io::TextRange& range : encoded.ranges)
        parts.push_back(text.substr(range.begin, range.end - range.begin));
    CHECK(parts == Tokens{"UN", "aff", "able", ",", "caf\u00e9", "xyz", "!"});
    CHECK(pieces.encode_with_ranges("").ids.empty());

    const WordPiece trained = WordPiece::train(corpus, 100);
    const io::EncodedText whole = trained.encode_with_ranges(corpus);
    CHECK(whole.ids == trained.encode(corpus));
    REQUIRE(whole.ranges.size() == whole.ids.size());
    for (std::size_t i = 0; i < whole.ids.size(); ++i) {
        const io::TextRange& range = whole.ranges[i];
        CHECK((range.begin < range.end && (i == 0 || whole.ranges[i - 1].end <= range.begin)));
        std::string token = trained.tokens()[static_cast<std::size_t>(whole.ids[i])];
        if (token.size() > 2 && token.starts_with("##")) token.erase(0, 2);
        CHECK(trained.normalise(corpus.substr(range.begin, range.end - range.begin)) == token);
    }
}

TEST_CASE("WordPiece: words over the largest length are unknown, by characters and not by bytes") {
    const Tokens tokens = with_special({"\u00f8", "##\u00f8"});
    const auto text = [](std::size_t characters) {
        std::string word;
        for (std::size_t i = 0; i < characters; ++i) word += "\u00f8";
        return word;
    };
    CHECK(WordPiece(tokens).encode(text(200)).size() == 200);
    CHECK(WordPiece(tokens).encode(text(201)) == Ids{1});
    CHECK(WordPiece(tokens, {.longest_word = 3}).encode(text(4) + " " + text(3)) == Ids{1, 5, 6, 6});
}

TEST_CASE("WordPiece: options of case and accents") {
    const Tokens tokens = with_special({"e", "E", "\u00e9", "\u00c9"});
    CHECK(WordPiece(tokens).encode("e E \u00e9 \u00c9") == Ids{5, 5, 5, 5});
    CHECK(WordPiece(tokens, {.words = {.lower_case = false, .strip_accents = false}}).encode("e E \u00e9 \u00c9") ==
          Ids{5, 6, 7, 8});
}

TEST_CASE("WordPiece: a trained vocabulary begins with the special tokens and writes its text without [UNK]") {
    for (const std::size_t size : {72u, 100u, 140u}) {
        const WordPiece pieces = WordPiece::train(corpus, size);
        REQUIRE(pieces.size() == size);
        CHECK(Tokens(pieces.tokens().begin(), pieces.tokens().begin() + 5) == special);
        CHECK(std::set<std::string>(pieces.tokens().begin(), pieces.tokens().end()).size() == size);
        const Ids ids = pieces.encode(corpus);
        for (const std::int32_t id : ids) CHECK((id > 4 && id < pieces.special().vocabulary));
        CHECK(pieces.decode(ids) == pieces.normalise(corpus));
        CHECK(pieces.encode(pieces.normalise(corpus)) == ids);
        CHECK(pieces == WordPiece::train(corpus, size));
    }
    CHECK(WordPiece::train(corpus, 140).encode(corpus).size() < WordPiece::train(corpus, 100).encode(corpus).size());
    CHECK(WordPiece::train("ab ab", 100).tokens() == with_special({"##b", "a", "ab"}));  // nothing more to merge
}

TEST_CASE("WordPiece: training is on the words of the text and their counts") {
    io::WordCounts counts;
    for (const std::string& word : io::split_words(corpus)) ++counts[word];
    for (const std::uint64_t least : {0u, 1u, 3u}) {
        const WordPiece pieces = WordPiece::train(corpus, 130, {}, least);
        CHECK(pieces.tokens() == with_special(io::train_pieces(counts, 125, least)));
    }
    CHECK(WordPiece::train("abcd xy", 100, {.longest_word = 3}).tokens() == with_special({"##y", "x", "xy"}));
}

TEST_CASE("WordPiece: saved and loaded it is equal, and the file has a token on each line") {
    const test::TemporaryFolder folder;
    const WordPiece pieces = WordPiece::train(corpus, 120);
    const auto path = folder.path() / "vocab.txt";
    pieces.save(path);
    CHECK(WordPiece::load(path) == pieces);
    CHECK_FALSE(WordPiece::load(path, {.longest_word = 100}) == pieces);
    WordPiece::train("ab", 8).save(path);
    CHECK(folder.read(path) == "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n##b\na\nab\n");
    // Line ends of Windows, and a last line without one.
    CHECK(WordPiece::load(folder.write("dos", "[PAD]\r\n[UNK]\r\n[CLS]\r\n[SEP]\r\n[MASK]\r\n##b\r\na\r\nab")) ==
          WordPiece::load(path));
}

TEST_CASE("WordPiece: each error is one line that names the file and the lines") {
    const test::TemporaryFolder folder;
    const auto message = [&](std::string_view bytes) {
        const auto path = folder.write("vocab.txt", bytes);
        const std::string text = test::error_of([&] { static_cast<void>(WordPiece::load(path)); });
        const std::size_t at = text.find(path.string());
        return at == std::string::npos ? text : text.substr(0, at) + "FILE" + text.substr(at + path.string().size());
    };
    CHECK(message("") == "WordPiece: the vocabulary of FILE is empty");
    CHECK(message("[PAD]\n[UNK]\n[CLS]\n[SEP]\nab\n") ==
          "WordPiece: FILE without [MASK]; expected the tokens [PAD], [UNK], [CLS], [SEP], [MASK]");
    CHECK(message("ab\n[PAD]\ncd\nab\n") == "WordPiece: line 4 of FILE is 'ab', as is line 1");
    CHECK(message("ab\n\ncd\n") == "WordPiece: line 2 of FILE is empty");
    CHECK(message("ab\na\rb\n") == "WordPiece: line 2 of FILE has a line break");
    CHECK(message("ab\nc\xff\n") == "data: FILE is not UTF-8: byte 0xff at offset 4");
    CHECK(test::error_of([&] { static_cast<void>(WordPiece::load(folder.path() / "none")); }) ==
          "data: " + (folder.path() / "none").string() + " does not exist");
    CHECK(test::error_of([] {
              WordPiece({"[PAD]", "a", "a"});
          }) == "WordPiece: token 2 of its tokens is 'a', as is token 1");
    CHECK(test::error_of([] { static_cast<void>(WordPiece::train("ab ba", 8)); }) ==
          "WordPiece: a vocabulary of 8; expected at least 9: 5 special tokens and 4 characters, as starts and "
          "continuations of words");
    const WordPiece pieces(special);
    CHECK(test::error_of([&] { static_cast<void>(pieces.encode("\xc3")); }) ==
          "data: text is not UTF-8: byte 0xc3 at offset 0");
    CHECK(test::error_of([&] {
              static_cast<void>(pieces.decode(Ids{0, 5}));
          }) == "WordPiece: id 5 at position 1; expected 0 to 4");
    CHECK(test::error_of([&] { static_cast<void>(pieces.decode(Ids{-1})); }) ==
          "WordPiece: id -1 at position 0; expected 0 to 4");
}
