// SPDX-License-Identifier: MIT
#include <unitscale/io/json_tokeniser.hpp>

#include <unitscale/base/random.hpp>
#include <unitscale/io/byte_pair_training.hpp>

#include "support/catch.hpp"
#include "support/error_of.hpp"
#include "support/temporary_folder.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

using namespace unitscale;
using io::JsonTokeniser;
using Ids = std::vector<std::int32_t>;
using Json = nlohmann::ordered_json;

namespace {

const std::filesystem::path folder = std::filesystem::path(UNITSCALE_TEST_DATA) / "tokenisers";

Json read_json(const std::filesystem::path& path) { return Json::parse(io::read_bytes(path)); }

std::string random_bytes(std::size_t count) {
    std::string bytes;
    for (std::size_t i = 0; i < count; ++i) bytes.push_back(static_cast<char>(random_block({11, 1}, i)[0]));
    return bytes;
}

/// The error of a small file, after a change of it.
template <class Change>
std::string fault(Change&& change) {
    Json json = Json::parse(R"({"version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [{"id": 3, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
                          "normalized": false, "special": true}],
        "normalizer": null, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
        "post_processor": null, "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                  "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})");
    change(json);
    return test::error_of([&] { JsonTokeniser tokens(json.dump()); });
}

}  // namespace

TEST_CASE("ids are those of the tokenizers package in every layout") {
    const Json samples = read_json(folder / "samples.json");
    REQUIRE(samples.size() == 200);
    for (const std::string name : {"gpt2", "llama3", "qwen2", "llama2", "metaspace"}) {
        const auto tokens = JsonTokeniser::load(folder / (name + ".json"));
        const JsonTokeniser again(tokens.to_text());
        const Json expected = read_json(folder / (name + "_ids.json"));
        REQUIRE(expected.size() == samples.size());
        for (std::size_t i = 0; i < samples.size(); ++i) {
            const auto text = samples[i].get<std::string>();
            INFO(name << ", sample " << i << ": " << text);
            const Ids ids = tokens.encode(text);
            REQUIRE(ids == expected[i].get<Ids>());
            REQUIRE(again.encode(text) == ids);
            // Qwen2's normal form changes texts, and the metaspace is read as a space.
            const bool changes = name == "qwen2" || text.find("\u2581") != std::string::npos;
            const bool keeps_spaces = name == "gpt2" || name == "llama3" || !text.starts_with(' ');
            const bool has_names = text.find("<s>") != std::string::npos;
            if (!changes && keeps_spaces && !has_names) REQUIRE(tokens.decode(ids) == text);
        }
    }
}

TEST_CASE("any bytes come back from byte-level tokens and from tokens with byte_fallback") {
    const std::string bytes = random_bytes(5000);
    // Not from Qwen2's, whose normal form changes text.
    for (const char* const name : {"gpt2.json", "llama3.json", "llama2.json", "metaspace.json"}) {
        INFO(name);
        const auto tokens = JsonTokeniser::load(folder / name);
        for (const std::string& text :
             {bytes, bytes + "and text", "\xff a \x80 b \xe6\x97" + bytes, std::string("\xff")})
            REQUIRE((tokens.decode(tokens.encode(text)) == text));
        std::string all;
        for (int byte = 0; byte < 256; ++byte) all.push_back(static_cast<char>(byte));
        REQUIRE((tokens.decode(tokens.encode(all)) == all));
    }
}

TEST_CASE("added tokens are found in text unless they are not to be, and name the ends of a text") {
    const auto path = folder / "gpt2.json";
    const auto tokens = JsonTokeniser::load(path);
    const std::int32_t end = tokens.id_of("<|endoftext|>").value();
    REQUIRE(tokens.size() == 1000);
    REQUIRE(tokens.end_of_text() == end);
    REQUIRE(tokens.begin_of_text() == end);
    const Ids ids = tokens.encode("a<|endoftext|>a");
    REQUIRE(ids == Ids{ids.front(), end, ids.front()});
    REQUIRE(tokens.decode(ids) == "a<|endoftext|>a");
    const auto plain = JsonTokeniser::load(path, {.find_added = false});
    REQUIRE(plain.encode("<|endoftext|>").size() > 1);
    REQUIRE(plain.decode(plain.encode("<|endoftext|>")) == "<|endoftext|>");
    REQUIRE(tokens.id_of("\u0120the").has_value());
    REQUIRE_FALSE(tokens.id_of(" the").has_value());
    REQUIRE_THROWS_WITH(tokens.decode(Ids{1000}), "tokeniser: id 1000 at position 0; expected 0 to 999");
}

TEST_CASE("the template's tokens stand around a text where they are asked for") {
    for (const char* const name : {"llama2.json", "llama3.json"}) {
        const auto plain = JsonTokeniser::load(folder / name);
        const auto with = JsonTokeniser::load(folder / name, {.add_special = true});
        Ids expected = plain.encode("So it goes");
        expected.insert(expected.begin(), plain.begin_of_text().value());
        REQUIRE(with.encode("So it goes") == expected);
        REQUIRE(with.encode("") == Ids{plain.begin_of_text().value()});
    }
    const auto llama2 = JsonTokeniser::load(folder / "llama2.json");
    REQUIRE(llama2.begin_of_text() == llama2.id_of("<s>"));
    REQUIRE(llama2.end_of_text() == llama2.id_of("</s>"));
}

TEST_CASE("a folder may hold a tokenizer.json, or vocab.json and merges.txt") {
    const test::TemporaryFolder temporary;
    const auto whole = JsonTokeniser::load(folder / "gpt2.json");
    const Json json = read_json(folder / "gpt2.json");
    temporary.write("vocab.json", json["model"]["vocab"].dump());
    std::string merges = "#version: 0.2\n";
    for (const Json& pair : json["model"]["merges"])
        merges += pair[0].get<std::string>() + " " + pair[1].get<std::string>() + "\r\n";
    temporary.write("merges.txt", merges);
    const auto parts = JsonTokeniser::load(temporary.path());
    const std::string text = "To be, or not to be<|endoftext|> \u65e5\n\n";
    REQUIRE(parts.encode(text) == whole.encode(text));
    REQUIRE(parts.end_of_text() == whole.end_of_text());
    REQUIRE(JsonTokeniser(parts.to_text()).encode(text) == whole.encode(text));
    temporary.write("tokenizer.json", io::read_bytes(folder / "llama2.json"));
    REQUIRE(JsonTokeniser::load(temporary.path()).begin_of_text() != whole.begin_of_text());
}

TEST_CASE("trained byte pairs are a tokenizer.json with the ids of their training") {
    const std::string text = "it's so, \"so\" \\ it goes, so it goes on\n\tand on; \xc3\xa9\xff";
    const io::BytePairTokeniser trained(io::train_byte_pairs(text, 300));
    const JsonTokeniser read(trained.to_text());
    REQUIRE(read.size() == trained.size());
    REQUIRE(read.encode(text) == trained.encode(text));
    const std::string bytes = random_bytes(3000);
    REQUIRE(read.encode(bytes) == trained.encode(bytes));
    REQUIRE(read.decode(read.encode(bytes)) == bytes);
}

TEST_CASE("spaces around added tokens, tokens in changed text, and a step that joins by spaces") {
    Json json = read_json(folder / "qwen2.json");
    json["added_tokens"].push_back({{"id", 1005}, {"content", "<mask>"}, {"lstrip", true}});
    json["added_tokens"].push_back({{"id", 1006}, {"content", "\u00e9\u00e9"}, {"normalized", true}});
    const JsonTokeniser tokens(json.dump());
    REQUIRE(tokens.size() == 1007);
    REQUIRE(tokens.encode("a <mask>")[1] == 1005);
    REQUIRE(tokens.encode("e\u0301e\u0301") == Ids{1006});
    REQUIRE_THROWS_WITH(tokens.decode(Ids{1003}), "tokeniser: id 1003 at position 0 has no token");
    json = read_json(folder / "llama2.json");
    json["decoder"] = nullptr;
    const JsonTokeniser joined(json.dump());
    REQUIRE(joined.decode(Ids{1, 2}) == "<s> </s>");
}

TEST_CASE("a part of the file that is not known is one error that names it") {
    REQUIRE(fault([](Json&) {}).empty());
    const std::vector<std::pair<std::string, std::function<void(Json&)>>> cases = {
        {"model: type 'Unigram'; expected BPE", [](Json& json) { json["model"]["type"] = "Unigram"; }},
        {"model: unknown key 'scores'", [](Json& json) { json["model"]["scores"] = 1; }},
        {"model.dropout is 0.1; expected null", [](Json& json) { json["model"]["dropout"] = 0.1; }},
        {"model.end_of_word_suffix is \"</w>\"; expected null",
         [](Json& json) { json["model"]["end_of_word_suffix"] = "</w>"; }},
        {"model.merges.0: 'c' is no token", [](Json& json) { json["model"]["merges"][0] = "a c"; }},
        {"model.merges.0 is \"ab\"; expected two tokens", [](Json& json) { json["model"]["merges"][0] = "ab"; }},
        {"model.merges.0 is [\"a\"]; expected two tokens", [](Json& json) { json["model"]["merges"][0] = {"a"}; }},
        {"model.unk_token is '<unk>', which is no token", [](Json& json) { json["model"]["unk_token"] = "<unk>"; }},
        {"model.vocab: id 1 of 'ab' is that of 'b'", [](Json& json) { json["model"]["vocab"]["ab"] = 1; }},
        {"model.vocab.ab is -1; expected a whole number from 0 to below 2^31",
         [](Json& json) { json["model"]["vocab"]["ab"] = -1; }},
        {"truncation is {\"max_length\":8}; expected null",
         [](Json& json) {
             json["truncation"] = {{"max_length", 8}};
         }},
        {"added_tokens.0.single_word is true; expected false",
         [](Json& json) { json["added_tokens"][0]["single_word"] = true; }},
        {"added_tokens.0.content: id 1 of '<s>' is that of 'b'", [](Json& json) { json["added_tokens"][0]["id"] = 1; }},
        {"post_processor: type 'BertProcessing'; expected Sequence, TemplateProcessing or ByteLevel",
         [](Json& json) {
             json["post_processor"] = {{"type", "BertProcessing"}};
         }},
    };
    for (const auto& [message, change] : cases) REQUIRE(fault(change) == "tokeniser: " + message);
    REQUIRE(fault([](Json& json) { json["model"]["merges"][0] = "b a"; }) ==
            "byte pairs: merge 0 of 'b' and 'a' makes a text that is no token");
}

TEST_CASE("files that are missing or no JSON are named, and so is a byte without a token") {
    const test::TemporaryFolder temporary;
    const auto path = temporary.write("tokenizer.json", "{");
    REQUIRE_THROWS_WITH(JsonTokeniser::load(path), path.string() + ": tokeniser: the text is not JSON");
    REQUIRE_THROWS_WITH(JsonTokeniser::load(temporary.path() / "none.json"),
                        "data: " + (temporary.path() / "none.json").string() + " does not exist");
    const JsonTokeniser tokens(R"({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
        "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})");
    REQUIRE(tokens.encode("a") == Ids{0});
    REQUIRE_THROWS_WITH(tokens.encode("ab"), "byte pairs: no token for byte 0x62, and no token for what is unknown");
}
