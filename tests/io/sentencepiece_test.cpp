// SPDX-License-Identifier: MIT
#include <unitscale/io/sentencepiece.hpp>

#include "support/catch.hpp"
#include "support/error_of.hpp"
#include "support/temporary_folder.hpp"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

using namespace unitscale;
using io::SentencePieces;
using Ids = std::vector<std::int32_t>;

namespace {
const std::filesystem::path folder = std::filesystem::path(UNITSCALE_TEST_DATA) / "tokenisers";
nlohmann::json read_json(const std::filesystem::path& path) { return nlohmann::json::parse(io::read_bytes(path)); }
}  // namespace

TEST_CASE("ids are those of the sentencepiece package, for both kinds of models") {
    const auto samples = read_json(folder / "samples.json");
    for (const std::string name : {"sentencepiece_unigram", "sentencepiece_bpe"}) {
        const auto pieces = SentencePieces::load(folder / (name + ".model"));
        const auto again = SentencePieces::from_text(pieces.to_text());
        REQUIRE(pieces.size() == 600);
        const auto expected = read_json(folder / (name + "_ids.json"));
        for (std::size_t i = 0; i < samples.size(); ++i) {
            const auto text = samples[i].get<std::string>();
            INFO(name << ", sample " << i << ": " << text);
            REQUIRE(pieces.encode(text) == expected[i].get<Ids>());
            REQUIRE(again.encode(text) == expected[i].get<Ids>());
        }
    }
}

TEST_CASE("text comes back, and tokens have names") {
    const auto pieces = SentencePieces::load(folder / "sentencepiece_bpe.model");
    REQUIRE(pieces.decode(pieces.encode("So it goes, \u65e5.")) == "So it goes, \u65e5.");
    REQUIRE(pieces.begin_of_text() == pieces.id_of("<s>"));
    REQUIRE(pieces.end_of_text() == pieces.id_of("</s>"));
    REQUIRE(pieces.id_of("<unk>") == 0);
    REQUIRE_FALSE(pieces.id_of("no such piece").has_value());
    REQUIRE_THROWS_WITH(pieces.decode(Ids{0, 600}), "sentencepiece: id 600 at position 1; expected 0 to 599");
}

// The ids are those of transformers 4.57: LlamaTokenizer(vocab_file=..., legacy=True)(text).input_ids.
TEST_CASE("special tokens stand where LlamaTokenizer has them") {
    const io::SentencePieceOptions llama{.add_begin = true, .find_special = true};
    const auto pairs = SentencePieces::load(folder / "sentencepiece_bpe.model", llama);
    REQUIRE(pairs.encode("a<s>b</s> c") == Ids{1, 261, 1, 271, 2, 281});
    REQUIRE(pairs.encode("</s>") == Ids{1, 2});
    REQUIRE(pairs.encode("<unk> x<unk>") == Ids{1, 0, 536, 591, 0});
    REQUIRE(pairs.encode("  <s>") == Ids{1, 1});
    REQUIRE(pairs.encode("So</s>\nit") == Ids{1, 326, 539, 2, 536, 13, 278});
    REQUIRE(pairs.encode("") == Ids{1});
    const auto unigram = SentencePieces::load(folder / "sentencepiece_unigram.model", llama);
    REQUIRE(unigram.encode("a<s>b</s> c") == Ids{1, 17, 1, 83, 2, 84});

    const auto plain = SentencePieces::load(folder / "sentencepiece_bpe.model");
    REQUIRE(plain.encode("").empty());
    REQUIRE(plain.decode(plain.encode("a</s>")) == "a</s>");
    const auto end = SentencePieces::load(folder / "sentencepiece_bpe.model", {.add_end = true});
    Ids ids = plain.encode("a</s>");
    ids.push_back(2);
    REQUIRE(end.encode("a</s>") == ids);
}

TEST_CASE("ids that arrive one by one give the text of all ids") {
    const auto samples = read_json(folder / "samples.json");
    const io::SentencePieceOptions llama{.add_begin = true, .find_special = true};
    for (const std::string name : {"sentencepiece_unigram", "sentencepiece_bpe"}) {
        const auto pieces = SentencePieces::load(folder / (name + ".model"), llama);
        for (const auto& sample : samples) {
            const Ids ids = pieces.encode(sample.get<std::string>());
            INFO(name << ": " << sample);
            std::string text;
            for (std::size_t i = 0; i < ids.size(); ++i) {
                // As the programs show text: a token's bytes are those that it adds to the few tokens before it.
                const std::size_t from = i - std::min<std::size_t>(i, 8);
                const auto before = pieces.decode(std::span(ids).subspan(from, i - from));
                const auto all = pieces.decode(std::span(ids).subspan(from, i - from + 1));
                REQUIRE(all.starts_with(before));
                text += all.substr(before.size());
            }
            REQUIRE(text == pieces.decode(ids));
        }
    }
}

TEST_CASE("byte pieces are bytes, and a space behind them stays") {
    const auto pieces = SentencePieces::load(folder / "sentencepiece_bpe.model");
    const auto id = [&](const char* piece) { return pieces.id_of(piece).value(); };
    const Ids ids{id("<0xE6>"), id("<0x97>"), id("<0xA5>"), id("\u2581the"), id("<0xFF>"), id("\u2581"), id("a")};
    REQUIRE(pieces.decode(ids) == "\u65e5 the\xff a");
    REQUIRE(pieces.decode(std::span(ids).first(2)) == "\xe6\x97");
    REQUIRE(pieces.decode(std::span(ids).subspan(3, 1)) == "the");
    REQUIRE(pieces.decode(Ids{1, id("\u2581the"), 2, id("\u2581the")}) == "the the");
}

TEST_CASE("files that are no models and texts that are not UTF-8 are errors") {
    const test::TemporaryFolder temporary;
    const auto path = temporary.write("small.model", "no model");
    const std::string begin = "sentencepiece: " + path.string() + " is no model: ";
    REQUIRE(test::error_of([&] { static_cast<void>(SentencePieces::load(path)); }).starts_with(begin));
    const auto missing = temporary.path() / "none.model";
    REQUIRE_THROWS_WITH(SentencePieces::load(missing), "data: " + missing.string() + " does not exist");
    REQUIRE_THROWS_WITH(SentencePieces::load(folder / "sentencepiece_bpe.model").encode("a\xff"),
                        "data: text is not UTF-8: byte 0xff at offset 1");
    REQUIRE_THROWS_WITH(SentencePieces::from_text("bytes"), "sentencepiece: the text is not one of to_text");
    REQUIRE_THROWS_WITH(SentencePieces::from_text("sentencepiece:0z"), "sentencepiece: the text is damaged at byte 14");
}
