// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/io/json_tokeniser_part.hpp>
#include <unitscale/io/split_pattern.hpp>
#include <unitscale/io/tokeniser_steps.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// The steps of a tokenizer.json. An unknown type or key is an error that names its place: another step would give
// other ids.   Test: tests/io/json_tokeniser_steps_test.cpp
namespace unitscale::io {

/// A Split's pattern, and a Replace's: {"String": "a"} or {"Regex": "a+"}.
[[nodiscard]] inline SplitPattern pattern_of(const TokeniserPart& part) {
    const TokeniserPart pattern = part.part("pattern");
    pattern.know({"String", "Regex"});
    const bool literal = pattern.has("String");
    return SplitPattern(pattern.text(literal ? "String" : "Regex"), literal);
}

/// Appends the steps of a normalizer.
inline void add_normaliser(std::vector<NormaliserStep>& steps, const TokeniserPart& part) {
    using Kind = NormaliserStep::Kind;
    const std::string type = part.type();
    if (type == "Sequence") {
        part.know({"type", "normalizers"});
        for (const TokeniserPart& step : part.parts("normalizers")) add_normaliser(steps, step);
    } else if (type == "Prepend") {
        part.know({"type", "prepend"});
        steps.push_back({.kind = Kind::prepend, .content = part.text("prepend")});
    } else if (type == "Replace") {
        part.know({"type", "pattern", "content"});
        steps.push_back({Kind::replace, pattern_of(part), part.text("content")});
    } else {
        constexpr std::array<std::string_view, 4> forms = {"NFC", "NFD", "NFKC", "NFKD"};
        const auto form = std::find(forms.begin(), forms.end(), type);
        if (form == forms.end()) part.refuse_type("Sequence, NFC, NFD, NFKC, NFKD, Prepend or Replace");
        part.know({"type"});
        steps.push_back({.kind = static_cast<Kind>(form - forms.begin())});
    }
}

/// When a Metaspace puts its sign in front, also in files of older versions.
[[nodiscard]] inline SplitStep::Prefix prefix_of(const TokeniserPart& part) {
    constexpr std::array<std::string_view, 3> names = {"always", "first", "never"};
    if (part.has("prepend_scheme")) return static_cast<SplitStep::Prefix>(part.choice("prepend_scheme", names));
    return part.flag("add_prefix_space", true) ? SplitStep::Prefix::always : SplitStep::Prefix::never;
}

/// Appends the steps of a pre_tokenizer. `of_bytes` is set after ByteLevel, which must be the last one.
inline void add_splits(std::vector<SplitStep>& steps, bool& of_bytes, const TokeniserPart& part) {
    using Kind = SplitStep::Kind;
    if (of_bytes) part.refuse("no step after ByteLevel");
    const std::string type = part.type();
    if (type == "Sequence") {
        part.know({"type", "pretokenizers"});
        for (const TokeniserPart& step : part.parts("pretokenizers")) add_splits(steps, of_bytes, step);
    } else if (type == "ByteLevel") {
        part.know({"type", "add_prefix_space", "trim_offsets", "use_regex"});
        if (part.flag("add_prefix_space", true)) steps.push_back({.kind = Kind::prefix_space});
        if (part.flag("use_regex", true)) steps.push_back({.pattern = SplitPattern(gpt2_pattern)});
        of_bytes = true;
    } else if (type == "Split") {
        part.know({"type", "pattern", "behavior", "invert"});
        constexpr std::array<std::string_view, 5> names = {"Isolated", "Removed", "MergedWithPrevious",
                                                           "MergedWithNext", "Contiguous"};
        steps.push_back({.pattern = pattern_of(part),
                         .behaviour = static_cast<SplitStep::Behaviour>(part.choice("behavior", names)),
                         .invert = part.flag("invert", false)});
    } else if (type == "Digits") {
        part.know({"type", "individual_digits"});
        const bool alone = part.flag("individual_digits", false);
        steps.push_back({.pattern = SplitPattern(alone ? R"(\p{N})" : R"(\p{N}+)")});
    } else if (type == "Metaspace") {
        part.know({"type", "replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"});
        SplitStep step{.kind = Kind::metaspace, .prefix = prefix_of(part), .content = part.text("replacement")};
        if (part.flag("split", true)) step.pattern = SplitPattern(step.content, true);
        step.behaviour = SplitStep::Behaviour::merged_with_next;
        steps.push_back(std::move(step));
    } else {
        part.refuse_type("Sequence, ByteLevel, Split, Digits or Metaspace");
    }
}

/// Appends the steps of a decoder.
inline void add_decoder(std::vector<DecoderStep>& steps, const TokeniserPart& part) {
    using Kind = DecoderStep::Kind;
    const std::string type = part.type();
    if (type == "Sequence") {
        part.know({"type", "decoders"});
        for (const TokeniserPart& step : part.parts("decoders")) add_decoder(steps, step);
    } else if (type == "ByteLevel") {
        part.know({"type", "add_prefix_space", "trim_offsets", "use_regex"});
        steps.push_back({.kind = Kind::byte_level});
    } else if (type == "Replace") {
        part.know({"type", "pattern", "content"});
        steps.push_back({.kind = Kind::replace, .pattern = pattern_of(part), .content = part.text("content")});
    } else if (type == "ByteFallback" || type == "Fuse") {
        part.know({"type"});
        steps.push_back({.kind = type == "Fuse" ? Kind::fuse : Kind::byte_fallback});
    } else if (type == "Strip") {
        part.know({"type", "content", "start", "stop"});
        steps.push_back({.kind = Kind::strip,
                         .content = part.text("content"),
                         .start = static_cast<std::size_t>(part.number("start")),
                         .stop = static_cast<std::size_t>(part.number("stop"))});
    } else if (type == "Metaspace") {
        part.know({"type", "replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"});
        const std::string replacement = part.text("replacement");
        steps.push_back({.kind = Kind::metaspace,
                         .pattern = SplitPattern(replacement, true),
                         .content = replacement,
                         .strips_first = prefix_of(part) != SplitStep::Prefix::never});
    } else {
        part.refuse_type("Sequence, ByteLevel, Replace, ByteFallback, Fuse, Strip or Metaspace");
    }
}

}  // namespace unitscale::io
