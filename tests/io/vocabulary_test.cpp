// SPDX-License-Identifier: MIT
#include <unitscale/io/vocabulary.hpp>

#include "support/catch.hpp"

#include <cstdint>
#include <string>
#include <vector>

using namespace unitscale::io;

TEST_CASE("a vocabulary numbers the distinct characters in the order of their code points") {
    const CharacterVocabulary vocabulary(U"hello \u00e9\U0001F600 hello");
    REQUIRE(vocabulary.size() == 7);
    REQUIRE(vocabulary.characters() == U" ehlo\u00e9\U0001F600");
    REQUIRE(vocabulary.encode(U"hole\u00e9") == std::vector<std::int32_t>{2, 4, 3, 1, 5});
    REQUIRE(vocabulary.encode(U"").empty());
}

TEST_CASE("ids decode to the text that they were made from, in UTF-8") {
    const std::u32string text = U"\n z\u00fc\u20ac \U0001F600a";
    const CharacterVocabulary vocabulary(text);
    REQUIRE(vocabulary.decode(vocabulary.encode(text)) == encode_utf8(text));
    REQUIRE(vocabulary.decode(std::vector<std::int32_t>{}).empty());
}

TEST_CASE("an unknown character is named with its position, an id outside with the known range") {
    const CharacterVocabulary vocabulary(U"abc");
    REQUIRE_THROWS_WITH(vocabulary.encode(U"ab\u00e9"),
                        "vocabulary: character '\xc3\xa9' (U+00E9) at position 2 is not among the 3 known ones");
    REQUIRE_THROWS_WITH(vocabulary.encode(U"\t"),
                        "vocabulary: character U+0009 at position 0 is not among the 3 known ones");
    REQUIRE_THROWS_WITH(vocabulary.encode(U"z"),
                        "vocabulary: character 'z' (U+007A) at position 0 is not among the 3 known ones");
    REQUIRE_THROWS_WITH(
        vocabulary.encode(U"\U0001F600"),
        "vocabulary: character '\xf0\x9f\x98\x80' (U+1F600) at position 0 is not among the 3 known ones");
    REQUIRE_THROWS_WITH(vocabulary.decode(std::vector<std::int32_t>{0, 3}),
                        "vocabulary: id 3 at position 1; expected 0 to 2");
    REQUIRE_THROWS_WITH(vocabulary.decode(std::vector<std::int32_t>{-1}),
                        "vocabulary: id -1 at position 0; expected 0 to 2");
    REQUIRE_THROWS_WITH(CharacterVocabulary(U""), "vocabulary: the text is empty");
}

TEST_CASE("a vocabulary is a tokeniser of UTF-8, and its text makes it again") {
    const CharacterVocabulary vocabulary(U"b\u00e9a");
    const Tokeniser& tokens = vocabulary;
    REQUIRE(tokens.encode("\u00e9ab") == std::vector<std::int32_t>{2, 0, 1});
    REQUIRE(tokens.id_of("\u00e9") == 2);
    REQUIRE_FALSE(tokens.id_of("c").has_value());
    REQUIRE_FALSE(tokens.id_of("ab").has_value());
    REQUIRE_FALSE(tokens.id_of("").has_value());
    REQUIRE(tokens.to_text() == "ab\u00e9");
    REQUIRE(CharacterVocabulary(decode_utf8(tokens.to_text())).characters() == vocabulary.characters());
    REQUIRE_THROWS_WITH(tokens.encode("a\xff"), "data: text is not UTF-8: byte 0xff at offset 1");
}
