// SPDX-License-Identifier: MIT
#include <unitscale/io/sentencepiece.hpp>

#include "support/catch.hpp"
#include "support/error_of.hpp"
#include "support/temporary_folder.hpp"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
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
