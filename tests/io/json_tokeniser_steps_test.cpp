// SPDX-License-Identifier: MIT
#include <unitscale/io/json_tokeniser_steps.hpp>

#include "support/catch.hpp"
#include "support/error_of.hpp"

#include <string>
#include <string_view>
#include <vector>

using namespace unitscale;
using Json = io::TokeniserPart::Json;

namespace {
std::vector<io::NormaliserStep> normaliser(std::string_view text) {
    std::vector<io::NormaliserStep> steps;
    const Json json = Json::parse(text);
    io::add_normaliser(steps, {json, "normalizer"});
    return steps;
}
std::vector<io::SplitStep> splits(std::string_view text, bool of_bytes = false) {
    std::vector<io::SplitStep> steps;
    const Json json = Json::parse(text);
    io::add_splits(steps, of_bytes, {json, "pre_tokenizer"});
    return steps;
}
std::vector<io::DecoderStep> decoder(std::string_view text) {
    std::vector<io::DecoderStep> steps;
    const Json json = Json::parse(text);
    io::add_decoder(steps, {json, "decoder"});
    return steps;
}
}  // namespace

TEST_CASE("steps of a sequence are read in order") {
    const auto steps = normaliser(R"({"type": "Sequence", "normalizers": [{"type": "NFKC"},
        {"type": "Prepend", "prepend": "_"}, {"type": "Replace", "pattern": {"String": " "}, "content": "_"}]})");
    REQUIRE(steps.size() == 3);
    REQUIRE(steps[0].kind == io::NormaliserStep::Kind::nfkc);
    REQUIRE(steps[1].content == "_");
    REQUIRE(steps[2].apply("a b", false) == "a_b");

    const auto cuts = splits(R"({"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": true},
        {"type": "Split", "pattern": {"Regex": "a+"}, "behavior": "MergedWithNext", "invert": false},
        {"type": "Metaspace", "replacement": "_", "add_prefix_space": false},
        {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": false}]})");
    REQUIRE(cuts.size() == 4);
    REQUIRE(cuts[1].behaviour == io::SplitStep::Behaviour::merged_with_next);
    REQUIRE(cuts[2].prefix == io::SplitStep::Prefix::never);
    REQUIRE(cuts[3].kind == io::SplitStep::Kind::prefix_space);
    REQUIRE(splits(R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "first"})")[0].prefix ==
            io::SplitStep::Prefix::first);
    REQUIRE(splits(R"({"type": "ByteLevel", "add_prefix_space": false})").size() == 1);

    const auto joins = decoder(R"({"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 2}, {"type": "Metaspace", "replacement": "_",
        "prepend_scheme": "always", "split": true}, {"type": "ByteLevel"}]})");
    REQUIRE(joins.size() == 5);
    REQUIRE(joins[2].start == 1);
    REQUIRE(joins[2].stop == 2);
    REQUIRE(joins[3].strips_first);
}

TEST_CASE("an unknown step, key or value is one error that names it") {
    REQUIRE_THROWS_WITH(normaliser(R"({"type": "Lowercase"})"),
                        "tokeniser: normalizer: type 'Lowercase'; expected Sequence, NFC, NFD, NFKC, NFKD, Prepend or "
                        "Replace");
    REQUIRE_THROWS_WITH(normaliser(R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Nmt"}]})"),
                        "tokeniser: normalizer.normalizers.1: type 'Nmt'; expected Sequence, NFC, NFD, NFKC, NFKD, "
                        "Prepend or Replace");
    REQUIRE_THROWS_WITH(normaliser(R"({"type": "NFC", "more": 1})"), "tokeniser: normalizer: unknown key 'more'");
    REQUIRE_THROWS_WITH(splits(R"({"type": "Whitespace"})"),
                        "tokeniser: pre_tokenizer: type 'Whitespace'; expected Sequence, ByteLevel, Split, Digits or "
                        "Metaspace");
    REQUIRE_THROWS_WITH(splits(R"({"type": "Split", "pattern": {"String": "a"}, "behavior": "Other"})"),
                        "tokeniser: pre_tokenizer.behavior is \"Other\"; expected one of Isolated, Removed, "
                        "MergedWithPrevious, MergedWithNext, Contiguous");
    REQUIRE_THROWS_WITH(splits(R"({"type": "Split", "pattern": {"Other": "a"}, "behavior": "Removed"})"),
                        "tokeniser: pre_tokenizer.pattern: unknown key 'Other'");
    REQUIRE(test::error_of([] { splits(R"({"type": "Digits"})", true); })
                .ends_with("; expected no step after "
                           "ByteLevel"));
    REQUIRE_THROWS_WITH(decoder(R"({"type": "WordPiece"})"),
                        "tokeniser: decoder: type 'WordPiece'; expected Sequence, ByteLevel, Replace, ByteFallback, "
                        "Fuse, Strip or Metaspace");
    REQUIRE_THROWS_WITH(decoder(R"({"type": "Strip", "content": " ", "start": -1, "stop": 0})"),
                        "tokeniser: decoder.start is -1; expected a whole number from 0 to below 2^31");
}
