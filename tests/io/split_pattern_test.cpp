// SPDX-License-Identifier: MIT
#include <unitscale/io/split_pattern.hpp>

#include "support/catch.hpp"

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

using unitscale::io::SplitPattern;

namespace {
std::vector<std::string> matches(std::string_view pattern, std::string_view text, bool literal = false) {
    std::vector<std::string> found;
    SplitPattern(pattern, literal).for_each_match(text, [&](std::size_t begin, std::size_t end) {
        found.emplace_back(text.substr(begin, end - begin));
    });
    return found;
}
}  // namespace

using Words = std::vector<std::string>;

TEST_CASE("GPT-2's pattern cuts contractions, words, numbers, signs and white space") {
    REQUIRE(matches(unitscale::io::gpt2_pattern, "it's  \t12 caf\u00e9s!!\n") ==
            Words{"it", "'s", "  ", "\t", "12", " caf\u00e9s", "!!", "\n"});
    REQUIRE(matches(unitscale::io::gpt2_pattern, "\u65e5\u672c \u0662\u0663\u3000x") ==
            Words{"\u65e5\u672c", " \u0662\u0663", "\u3000", "x"});
}

TEST_CASE("white space is Unicode's, inside and outside of a class") {
    REQUIRE(matches(R"(\s+)", "a\u00a0\u0085b\u180ec\u2028") == Words{"\u00a0\u0085", "\u2028"});
    REQUIRE(matches(R"([^\s]+)", "a\u00a0b\u180ec") == Words{"a", "b\u180ec"});
    REQUIRE(matches(R"([\S]+)", "a\u00a0b") == Words{"a", "b"});
    REQUIRE(matches(R"(\S+)", "a\u3000b") == Words{"a", "b"});
    REQUIRE(matches(R"(\d+)", "1\u0663x\u00b2") == Words{"1\u0663"});
    REQUIRE(matches(R"((?i:'S))", "'s'S'\u017f't") == Words{"'s", "'S", "'\u017f"});
}

TEST_CASE("empty matches are left out, and the search goes on behind the next character") {
    REQUIRE(matches("x*", "\u00e9xx\u65e5x") == Words{"xx", "x"});
    REQUIRE(matches("a", "").empty());
}

TEST_CASE("a literal pattern has no signs of its own") {
    REQUIRE(matches("a.", "a.ab", true) == Words{"a."});
    REQUIRE(matches("\\s^", "\\s^", true) == Words{"\\s^"});
    REQUIRE(matches(R"(\[\^\$\\])", R"([^$\])") == Words{R"([^$\])"});
}

TEST_CASE("an expression with deep groups has memory for long texts") {
    const std::string text(200'000, 'a');
    REQUIRE(matches("(?:a|b)+", text) == Words{text});
}

TEST_CASE("a bad pattern is named with its reason, and so is a part that libraries read in several ways") {
    REQUIRE_THROWS_WITH(SplitPattern(""), "pattern: is empty");
    REQUIRE_THROWS_WITH(SplitPattern("a(b"), "pattern: 'a(b': missing closing parenthesis at offset 3");
    for (const auto& [pattern, part] :
         std::vector<std::pair<std::string, std::string>>{{R"(a\b)", R"(\b)"},
                                                          {R"(\w+)", R"(\w)"},
                                                          {R"([\h])", R"(\h)"},
                                                          {R"((a)\1)", R"(\1)"},
                                                          {"^a", "an unescaped ^"},
                                                          {"a$", "an unescaped $"},
                                                          {"[a&&b]", "an unescaped & in a class"},
                                                          {"[a[b]]", "an unescaped [ in a class"},
                                                          {"[[:alpha:]]", "an unescaped [ in a class"},
                                                          {"[]a]", "] at the start of a class"}}) {
        INFO(pattern);
        REQUIRE_THROWS_WITH(SplitPattern(pattern),
                            "pattern: '" + pattern + "' has " + part + ", which libraries read in several ways");
    }
}
