// SPDX-License-Identifier: MIT
#include <unitscale/io/unicode_words.hpp>

#include "support/catch.hpp"
#include "support/error_of.hpp"

#include <cstdint>
#include <string>
#include <vector>

using namespace unitscale;
using io::split_words;
using Words = std::vector<std::string>;

namespace {
constexpr io::WordOptions cased{.lower_case = false, .strip_accents = false};
}  // namespace

TEST_CASE("words: the cases of BERT's published test") {
    CHECK(split_words(" \tHeLLo!how  \n Are yoU?  ") == Words{"hello", "!", "how", "are", "you", "?"});
    CHECK(split_words(" \tHeLLo!how  \n Are yoU?  ", cased) == Words{"HeLLo", "!", "how", "Are", "yoU", "?"});
    CHECK(split_words("H\u00e9llo") == Words{"hello"});
    CHECK(split_words("ah\u535A\u63A8zz") == Words{"ah", "\u535A", "\u63A8", "zz"});
    for (const char32_t point : U" \t\r\n\u00a0\u3000\u2028\u2029")
        if (point != 0) CHECK(io::is_space(point));
    for (const char32_t point : U"A-\u0085\u200b") CHECK_FALSE(io::is_space(point));
    CHECK(io::is_removed(0x05));
    for (const char32_t point : U"A \t\r\n\U0001F4A9")
        if (point != 0) CHECK_FALSE(io::is_removed(point));
    for (const char32_t point : U"-$`.") CHECK((point == 0 || io::is_punctuation(point)));
    for (const char32_t point : U"A ") CHECK_FALSE(io::is_punctuation(point));
}

TEST_CASE("words: all signs of ASCII are punctuation, and beyond it Unicode's punctuation is") {
    for (char32_t point = 0; point < 0x80; ++point) {
        const bool sign = (point >= 33 && point <= 47) || (point >= 58 && point <= 64) ||
                          (point >= 91 && point <= 96) || (point >= 123 && point <= 126);
        CHECK(io::is_punctuation(point) == sign);
    }
    CHECK(split_words("a\u2014b\u00bfc\u3002d") == Words{"a", "\u2014", "b", "\u00bf", "c", "\u3002", "d"});
    CHECK(split_words("5\u20ac \u00b1x") == Words{"5\u20ac", "\u00b1x"});  // symbols are parts of words
}

TEST_CASE("words: control and format characters and the unreadable character are removed, within words too") {
    using namespace std::string_literals;
    CHECK(split_words("a\0b\x07 c\u200bd\u00ade\ufffd"s) == Words{"ab", "cde"});
    CHECK(split_words("a\x0b"s + "b") == Words{"ab"});  // vertical tab: BERT counts it as control, not as space
    CHECK(split_words("\u200b \ufffd").empty());
    CHECK(split_words("").empty());
}

TEST_CASE("words: case and accents are changed each on its own") {
    const std::string text = "\u00c9t\u00c9 \u00d8re \u01c5";
    CHECK(split_words(text, cased) == Words{"\u00c9t\u00c9", "\u00d8re", "\u01c5"});
    CHECK(split_words(text, {.lower_case = true, .strip_accents = false}) ==
          Words{"\u00e9t\u00e9", "\u00f8re", "\u01c6"});
    CHECK(split_words(text, {.lower_case = false, .strip_accents = true}) == Words{"EtE", "\u00d8re", "\u01c5"});
    CHECK(split_words(text) == Words{"ete", "\u00f8re", "\u01c6"});  // the stroke of ø is no accent
    // Full case mapping: the capital I with a dot becomes two characters, a sigma at the end of a word is final.
    CHECK(split_words("\u0130", {.lower_case = true, .strip_accents = false}) == Words{"i\u0307"});
    CHECK(split_words("\u0130") == Words{"i"});
    CHECK(split_words("\u039f\u0394\u039f\u03a3") == Words{"\u03bf\u03b4\u03bf\u03c2"});
    CHECK(split_words("e\u0301", cased) == Words{"e\u0301"});
    CHECK(split_words("e\u0301") == Words{"e"});
    // A punctuation character that only decomposition makes: the Greek question mark is a semicolon.
    CHECK(split_words("\u03b1\u037e\u03b2") == Words{"\u03b1", ";", "\u03b2"});
}

TEST_CASE("words: the ends of the blocks of ideographs are words of their own, their neighbours are not") {
    for (const std::uint32_t point : {0x4E00u, 0x9FFFu, 0x3400u, 0x4DBFu, 0x20000u, 0x2A6DFu, 0x2A700u, 0x2B73Fu,
                                      0x2B740u, 0x2B81Fu, 0x2B820u, 0x2CEAFu, 0xF900u, 0xFAFFu, 0x2F800u, 0x2FA1Fu})
        CHECK(io::is_ideograph(point));
    for (const std::uint32_t point :
         {0x33FFu, 0x4DC0u, 0xA000u, 0x3042u, 0x30ABu, 0xAC00u, 0x1FFFFu, 0x2A6E0u, 0xF8FFu, 0xFB00u})
        CHECK_FALSE(io::is_ideograph(point));
    CHECK(split_words("\u3042\u30ab\u6f22\u3042", cased) == Words{"\u3042\u30ab", "\u6f22", "\u3042"});
}

TEST_CASE("words: the words joined by spaces are split into the same words") {
    const std::string text =
        "\u0391\u03a3.\u03b1\u03a3 \u0130I\u0131 \u1e9e\ufb01 \u01c4\u1fef\u212b no-one's \u6f22x\u0345y";
    for (const bool lower : {false, true})
        for (const bool strip : {false, true}) {
            const io::WordOptions options{lower, strip};
            const Words words = split_words(text, options);
            REQUIRE(words.size() > 8);
            std::string joined;
            for (const std::string& word : words) joined += word + " ";
            CHECK(split_words(joined, options) == words);
        }
}

TEST_CASE("words: text that is not UTF-8 is an error with the place") {
    CHECK(test::error_of([] { static_cast<void>(split_words("ab\xff")); }) ==
          "data: text is not UTF-8: byte 0xff at offset 2");
}

namespace {
struct Placed {
    std::string word;
    std::vector<io::TextRange> places;
};
std::vector<Placed> placed_words(std::string_view text, const io::WordOptions& options = {}) {
    std::vector<Placed> words;
    io::for_each_word(text, options, [&](std::string word, const std::vector<io::TextRange>& places) {
        words.push_back({std::move(word), places});
    });
    return words;
}
using Places = std::vector<io::TextRange>;
}  // namespace

TEST_CASE("words: each character of a word has its place in the text") {
    const auto words = placed_words(" \u00c9t\u00e9,x");  // E acute has two bytes
    REQUIRE(words.size() == 3);
    CHECK(words[0].word == "ete");
    CHECK(words[0].places == Places{{1, 3}, {3, 4}, {4, 6}});
    CHECK(words[1].places == Places{{6, 7}});
    CHECK(words[2].places == Places{{7, 8}});
    // A removed character within a word, an accent of its own, and an ideograph.
    const auto more = placed_words("a\u200bb e\u0301f\u535A");
    REQUIRE(more.size() == 3);
    CHECK(more[0].word == "ab");
    CHECK(more[0].places == Places{{0, 1}, {4, 5}});
    CHECK(more[1].word == "ef");
    CHECK(more[1].places == Places{{6, 9}, {9, 10}});
    CHECK(more[2].places == Places{{10, 13}});
    // One character that becomes two: both have its place.
    const auto two = placed_words("x\u0130y", {.lower_case = true, .strip_accents = false});
    REQUIRE(two.size() == 1);
    CHECK(two[0].word == "xi\u0307y");
    CHECK(two[0].places == Places{{0, 1}, {1, 3}, {1, 3}, {3, 4}});
}

TEST_CASE("words: with and without places the words are equal, and every character has one place") {
    std::string text;
    for (char32_t point = 1; point < 0x3100; ++point)
        if (point < 0xD800 || point > 0xDFFF) io::append_utf8(text, point), io::append_utf8(text, 'a' + point % 3);
    for (char32_t point = 0xAC00; point < 0xAC80; ++point) io::append_utf8(text, point);  // hangul becomes two or three
    for (const bool lower : {false, true})
        for (const bool strip : {false, true}) {
            const io::WordOptions options{.lower_case = lower, .strip_accents = strip};
            const auto words = placed_words(text, options);
            const Words plain = split_words(text, options);
            REQUIRE(words.size() == plain.size());
            std::size_t wrong = 0, last = 0;
            for (std::size_t i = 0; i < plain.size(); ++i) {
                wrong += words[i].word != plain[i];
                wrong += words[i].places.size() != io::decode_utf8(plain[i]).size();
                for (const io::TextRange& place : words[i].places) {
                    wrong += place.begin < last || place.end <= place.begin || place.end > text.size();
                    last = place.begin;
                }
            }
            CHECK(wrong == 0);
        }
}
