// SPDX-License-Identifier: MIT
#include <unitscale/io/text_stream.hpp>

#include "support/catch.hpp"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

using namespace unitscale;
using io::TextStream;

namespace {

const std::string replacement = "\xEF\xBF\xBD";

/// The pieces that a stream shows, one for each piece it takes, and the end.
std::vector<std::string> shown(TextStream stream, const std::vector<std::string>& pieces) {
    std::vector<std::string> text;
    for (const std::string& piece : pieces) text.push_back(stream.add(piece));
    text.push_back(stream.finish());
    return text;
}
using Texts = std::vector<std::string>;

}  // namespace

TEST_CASE("replace_invalid_utf8: one U+FFFD for each maximal part, as Python has it") {
    const std::string r = replacement;
    const std::vector<std::pair<std::string, std::string>> cases{
        {"", ""},
        {"a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80z", "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80z"},
        {"\x80\xBF", r + r},
        {"\xC0\xAF", r + r},
        {"\xE2\x82", r},
        {"\xE2\x82g", r + "g"},
        {"\xE2g\x82", r + "g" + r},
        {"\xF0\x9F\x98", r},
        {"\xF0\x9F\x98\xC3\xA9", r + "\xC3\xA9"},
        {"\xF0\x80\x80", r + r + r},
        {"\xED\xA0\x80", r + r + r},
        {"\xF4\x90\x80\x80", r + r + r + r},
        {"\xF5\xFF", r + r},
        {std::string("\0a", 2), std::string("\0a", 2)},
    };
    for (const auto& [bytes, text] : cases) CHECK(io::replace_invalid_utf8(bytes) == text);
}

TEST_CASE("text stream: characters are shown when they are whole") {
    CHECK(shown(TextStream(), {"a", "b\xE2", "\x82", "\xACz", "\xF0\x9F", "\x98\x80"}) ==
          Texts{"a", "b", "", "\xE2\x82\xACz", "", "\xF0\x9F\x98\x80", ""});
    // What turns out to be no character is replaced at once.
    CHECK(shown(TextStream(), {"\xE2\x82", "x", "\x82", "\xF0"}) ==
          Texts{"", replacement + "x", replacement, "", replacement});
    CHECK(shown(TextStream(), {}) == Texts{""});
}

TEST_CASE("text stream: a stop string ends the text, in whatever pieces it comes, and no part of it is shown") {
    CHECK(shown(TextStream({"stop"}), {"a st", "ar st", "o", "p more", "and more"}) ==
          Texts{"a ", "star ", "", "", "", ""});
    CHECK(shown(TextStream({"stop"}), {"a sto"}) == Texts{"a ", "sto"});
    // The one that ends first counts; of those, the one that begins first.
    CHECK(shown(TextStream({"abc", "b"}), {"xabc"}) == Texts{"xa", ""});
    CHECK(shown(TextStream({"abc", "b"}), {"xa", "bc"}) == Texts{"x", "a", ""});
    CHECK(shown(TextStream({"later", "la"}), {"x la", "ter"}) == Texts{"x ", "", ""});
    CHECK(shown(TextStream({"ab", "b"}), {"xab"}) == Texts{"x", ""});
    // A stop string that repeats itself, and one that overlaps the start of another.
    CHECK(shown(TextStream({"aab"}), {"aaa", "aa", "b"}) == Texts{"a", "aa", "", ""});
    CHECK(shown(TextStream({"abc", "bd"}), {"ab", "d"}) == Texts{"", "a", ""});
    // Stop strings of several bytes, and characters that are not whole.
    CHECK(shown(TextStream({"\xE2\x82\xAC"}), {"5 \xE2", "\x82", "\xAC more"}) == Texts{"5 ", "", "", ""});
    CHECK(shown(TextStream({"\xE2\x82\xAC"}), {"5 \xE2\x82", "\xAD"}) == Texts{"5 ", "\xE2\x82\xAD", ""});

    TextStream stream({"."});
    CHECK(stream.add("a") == "a");
    CHECK_FALSE(stream.stopped());
    CHECK(stream.add("b.c") == "b");
    CHECK(stream.stopped());
    CHECK(stream.finish().empty());
    CHECK_THROWS_WITH(TextStream({"a", ""}), "stop: a stop string is empty");
}

TEST_CASE("text stream: any division of any bytes shows the same text") {
    const std::string bytes = "The \xC3\xA9t\xC3\xA9 \xF0\x9F\x98\x80\xF0\x9F en\x80 d\xE2\x82. end";
    for (const std::vector<std::string>& stops : {std::vector<std::string>{}, {"end"}, {" d", "\xF0\x9F en"}}) {
        TextStream whole(stops);
        std::string expected = whole.add(bytes);
        expected += whole.finish();
        for (std::size_t a = 0; a <= bytes.size(); ++a)
            for (std::size_t b = a; b <= bytes.size(); ++b) {
                std::string text;
                for (const std::string& piece :
                     shown(TextStream(stops), {bytes.substr(0, a), bytes.substr(a, b - a), bytes.substr(b)}))
                    text += piece;
                if (text != expected) FAIL("divided at " << a << " and " << b << ": " << text);
            }
    }
    SUCCEED();
}
