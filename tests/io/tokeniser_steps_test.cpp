// SPDX-License-Identifier: MIT
#include <unitscale/io/tokeniser_steps.hpp>

#include "support/catch.hpp"

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

using namespace unitscale;
using io::DecoderStep;
using io::NormaliserStep;
using io::SplitPattern;
using io::SplitStep;
using Words = std::vector<std::string>;

namespace {
Words parts(const SplitStep& step, std::string_view text, bool begins = true, bool continues = false) {
    Words found;
    step.apply(text, begins, continues, [&](std::string_view part, bool, bool) { found.emplace_back(part); });
    return found;
}
Words decoded(const DecoderStep& step, Words tokens) {
    step.apply(tokens);
    return tokens;
}
/// Plain parts as they are, added tokens as their numbers in brackets.
std::string found_in(const io::AddedTokens& tokens, std::string_view text) {
    std::string all;
    tokens.split(
        text, [&](std::string_view part, std::size_t) { all.append("(").append(part).append(")"); },
        [&](const io::AddedToken& token) { all += "[" + std::to_string(token.id) + "]"; });
    return all;
}
}  // namespace

TEST_CASE("normal forms of Unicode, a text in front, and matches replaced") {
    using Kind = NormaliserStep::Kind;
    const auto apply = [](NormaliserStep step, std::string text) { return step.apply(std::move(text), false); };
    REQUIRE(apply({.kind = Kind::nfc}, "e\u0301 \ufb01") == "\u00e9 \ufb01");
    REQUIRE(apply({.kind = Kind::nfd}, "\u00e9 \ufb01") == "e\u0301 \ufb01");
    REQUIRE(apply({.kind = Kind::nfkc}, "e\u0301 \ufb01") == "\u00e9 fi");
    REQUIRE(apply({.kind = Kind::nfkd}, "\u00e9 \ufb01") == "e\u0301 fi");
    const NormaliserStep front{.kind = Kind::prepend, .content = "_"};
    REQUIRE(front.apply("a", false) == "_a");
    REQUIRE(front.apply("a", true) == "a");
    REQUIRE(front.apply("", false).empty());
    REQUIRE(apply({Kind::replace, SplitPattern(" +"), "_"}, " a  b") == "_a_b");
}

TEST_CASE("a match is cut off, left out, or joined to its neighbours") {
    using Behaviour = SplitStep::Behaviour;
    const auto cut = [](Behaviour behaviour, std::string_view text, bool invert = false) {
        return parts({.pattern = SplitPattern("-", true), .behaviour = behaviour, .invert = invert}, text);
    };
    REQUIRE(cut(Behaviour::isolated, "-a--b") == Words{"-", "a", "-", "-", "b"});
    REQUIRE(cut(Behaviour::removed, "-a--b") == Words{"a", "b"});
    REQUIRE(cut(Behaviour::removed, "-a--b", true) == Words{"-", "-", "-"});
    REQUIRE(cut(Behaviour::merged_with_previous, "-a--b-") == Words{"-", "a-", "-", "b-"});
    REQUIRE(cut(Behaviour::merged_with_next, "-a--b-") == Words{"-a", "-", "-b", "-"});
    REQUIRE(cut(Behaviour::contiguous, "-a--b-") == Words{"-", "a", "--", "b", "-"});
    REQUIRE(cut(Behaviour::isolated, "").empty());
}

TEST_CASE("spaces become metaspaces, and one stands in front of a text") {
    using Prefix = SplitStep::Prefix;
    SplitStep step{.kind = SplitStep::Kind::metaspace, .prefix = Prefix::always, .content = "_"};
    REQUIRE(parts(step, "a b") == Words{"_a_b"});
    REQUIRE(parts(step, " a") == Words{"_a"});
    REQUIRE(parts(step, "a", true, true) == Words{"a"});
    step.prefix = Prefix::first;
    REQUIRE(parts(step, "a") == Words{"_a"});
    REQUIRE(parts(step, "a", false) == Words{"a"});
    step.prefix = Prefix::never;
    step.pattern = SplitPattern("_", true);
    step.behaviour = SplitStep::Behaviour::merged_with_next;
    REQUIRE(parts(step, "a b  c") == Words{"a", "_b", "_", "_c"});
    const SplitStep space{.kind = SplitStep::Kind::prefix_space};
    REQUIRE(parts(space, "a b") == Words{" a b"});
    REQUIRE(parts(space, " a") == Words{" a"});
    REQUIRE(parts(space, "a", true, true) == Words{"a"});
}

TEST_CASE("only the first part begins the text") {
    std::vector<bool> first;
    const SplitStep step{.pattern = SplitPattern("-", true)};
    step.apply("a-b", true, true, [&](std::string_view, bool begins, bool continues) {
        REQUIRE(begins == continues);
        first.push_back(begins);
    });
    REQUIRE(first == std::vector<bool>{true, false, false});
}

TEST_CASE("steps from tokens to text") {
    using Kind = DecoderStep::Kind;
    REQUIRE(decoded({.kind = Kind::byte_level}, {"\u0120a\u00e9", "\u65e5"}) == Words{" a\xe9", "\u65e5"});
    REQUIRE(decoded({.kind = Kind::byte_fallback}, {"<0xE6>", "<0x0a>", "<0x4>", "a"}) ==
            Words{"\xe6", "<0x0a>", "<0x4>", "a"});
    REQUIRE(decoded({.kind = Kind::replace, .pattern = SplitPattern("_", true), .content = " "}, {"_a_", "\xe6_"}) ==
            Words{" a ", "\xe6 "});
    REQUIRE(decoded({.kind = Kind::fuse}, {"a", "b", "c"}) == Words{"abc"});
    REQUIRE(decoded({.kind = Kind::fuse}, {}).empty());
    REQUIRE(decoded({.kind = Kind::strip, .content = " ", .start = 1, .stop = 2}, {"  a   ", " ", ""}) ==
            Words{" a ", "", ""});
    const DecoderStep spaces{
        .kind = Kind::metaspace, .pattern = SplitPattern("_", true), .content = "_", .strips_first = true};
    REQUIRE(decoded(spaces, {"__a", "_b"}) == Words{" a", " b"});
    REQUIRE(decoded({.kind = Kind::spaces}, {"a", "b"}) == Words{"a", " b"});
}

TEST_CASE("of added tokens the leftmost is found, of several the longest, with its white space") {
    io::AddedTokens tokens;
    REQUIRE(found_in(tokens, "<s>") == "(<s>)");
    tokens.add({.id = 1, .content = "<s>"});
    tokens.add({.id = 2, .content = "<s>>"});
    tokens.add({.id = 3, .content = "<m>", .takes_left = true});
    tokens.add({.id = 4, .content = "<r>", .takes_right = true});
    REQUIRE(found_in(tokens, "a<s><s>>b<s") == "(a)[1][2](b<s)");
    REQUIRE(found_in(tokens, "a \u3000<m> b<m>") == "(a)[3]( b)[3]");
    REQUIRE(found_in(tokens, " <r>\n \xff") == "( )[4](\xff)");
    REQUIRE(found_in(tokens, "").empty());
    REQUIRE_THROWS_WITH(tokens.add({.id = 5}), "added token 5: is empty");
}
