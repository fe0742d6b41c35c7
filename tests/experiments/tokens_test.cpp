// SPDX-License-Identifier: MIT
#include "experiments/tokens.hpp"

#include <unitscale/io/text.hpp>

#include "support/catch.hpp"
#include "support/error_of.hpp"
#include "support/temporary_folder.hpp"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

using namespace unitscale;
using experiments::make_tokeniser;
using experiments::TokenisedText;

namespace {
std::u32string lines(std::size_t count) {
    std::u32string text;
    for (std::size_t i = 0; i < count; ++i) text += U"the caf\u00e9 sells the worm\n";
    return text;
}
}  // namespace

TEST_CASE("tokens: the option names characters, bytes, byte pairs or a file") {
    const std::u32string text = lines(20);
    const auto characters = make_tokeniser("characters", text, text);
    CHECK(characters->size() == 15);
    CHECK(std::string(experiments::loss_unit(*characters)) == "bits/char");
    CHECK(std::string(experiments::token_name(*characters)) == "characters");
    const auto bytes = make_tokeniser("bytes", text, text);
    CHECK(bytes->size() == 256);
    CHECK(std::string(experiments::loss_unit(*bytes)) == "bits/token");
    CHECK(std::string(experiments::token_name(*bytes)) == "bytes");
    const auto pairs = make_tokeniser("bpe:270", text, text.substr(0, 100));
    CHECK(pairs->size() == 270);
    CHECK(std::string(experiments::token_name(*pairs)) == "tokens");
    const auto folder = std::filesystem::path(UNITSCALE_TEST_DATA) / "tokenisers";
    CHECK(make_tokeniser((folder / "llama2.json").string(), text, text)->size() == 1000);
}

TEST_CASE("tokens: a checkpoint's text makes the tokeniser again") {
    const std::u32string text = lines(20);
    for (const char* const name : {"bytes", "bpe:280"}) {
        const auto tokens = make_tokeniser(name, text, text);
        const auto again = experiments::read_tokeniser(tokens->to_text());
        CHECK(again->encode("the worm\xff") == tokens->encode("the worm\xff"));
        CHECK(again->size() == tokens->size());
    }
}

TEST_CASE("tokens: a published folder's tokeniser, with its special tokens") {
    const auto data = std::filesystem::path(UNITSCALE_TEST_DATA);
    const test::TemporaryFolder folder;
    const auto copy = [&](const std::filesystem::path& from, const char* name) {
        std::filesystem::copy_file(from, folder.path() / name);
    };
    const auto fault = [&](const std::filesystem::path& model) {
        return test::error_of([&] { static_cast<void>(experiments::published_tokeniser(model)); });
    };
    using Ids = std::vector<std::int32_t>;
    const std::string none = " has no tokenizer.json, no tokenizer.model and no vocab.json";
    CHECK(fault(folder.path()) == "tokeniser: " + folder.path().string() + none);
    CHECK(fault("none.safetensors") == "tokeniser: ." + none);

    copy(data / "tokenisers" / "sentencepiece_bpe.model", "tokenizer.model");
    const auto model = folder.path() / "tokenizer.model";
    const std::string lacks =
        "tokeniser: " + model.string() + " needs libsentencepiece, which this program was built without";
    if (const std::string error = fault(folder.path()); !error.empty()) {
        CHECK(error == lacks);
    } else {
        const auto encode = [&](bool add_special) {
            return experiments::published_tokeniser(folder.path() / "model.safetensors", {.add_special = add_special})
                ->encode("a<s>b");
        };
        CHECK(encode(false) == Ids{261, 1, 271});
        CHECK(encode(true) == Ids{1, 261, 1, 271});
        CHECK(experiments::published_tokeniser(folder.path(), {.find_added = false})->encode("a<s>b").size() > 3);
        CHECK(make_tokeniser(folder.path().string(), U"", U"")->encode("a") == Ids{261});
        const auto settings =
            folder.write("tokenizer_config.json", R"({"add_bos_token": false, "add_eos_token": true})");
        CHECK(encode(true) == Ids{261, 1, 271, 2});
        CHECK(encode(false) == Ids{261, 1, 271});
        folder.write("tokenizer_config.json", R"({"add_bos_token": null})");
        CHECK(encode(true) == Ids{1, 261, 1, 271});
        folder.write("tokenizer_config.json", R"({"add_bos_token": "yes"})");
        CHECK_THROWS_WITH(encode(true),
                          "tokeniser: " + settings.string() + ": add_bos_token is \"yes\"; expected true or false");
        folder.write("tokenizer_config.json", "[]");
        CHECK_THROWS_WITH(encode(true), "tokeniser: " + settings.string() + " is not a JSON object");
    }

    copy(data / "tokenisers" / "llama2.json", "tokenizer.json");  // it comes first
    CHECK(experiments::published_tokeniser(folder.path())->size() == 1000);
    CHECK(experiments::published_tokeniser(folder.path(), {.add_special = true})->encode("") == Ids{1});
}

TEST_CASE("tokens: parts are cut by characters, whatever the tokens are") {
    const std::u32string text = lines(100);
    const auto characters = make_tokeniser("characters", text, text), pairs = make_tokeniser("bpe:290", text, text);
    const TokenisedText by_character(text, *characters, 8, true), by_pair(text, *pairs, 8, true);
    const auto text_of = [](const io::Tokeniser& tokens, const train::Split& parts) {
        return std::vector<std::string>{tokens.decode(parts.training), tokens.decode(parts.validation),
                                        tokens.decode(parts.test)};
    };
    CHECK(text_of(*characters, by_character.parts) == text_of(*pairs, by_pair.parts));
    CHECK(by_pair.training_characters == by_character.parts.training.size());
    CHECK(by_pair.validation_bytes == Approx(static_cast<double>(pairs->decode(by_pair.parts.validation).size()) /
                                             static_cast<double>(by_pair.parts.validation.size())));
    CHECK(by_character.validation_bytes > 1.0);
    CHECK(by_pair.test_bytes > by_character.test_bytes);
    CHECK(TokenisedText(text, *pairs, 8).parts.test.empty());
}

TEST_CASE("tokens: bad options and texts of too few tokens are errors") {
    const test::TemporaryFolder folder;
    const auto fault = [](const std::string& tokens) {
        try {
            static_cast<void>(make_tokeniser(tokens, U"a", U"a"));
        } catch (const Error& error) {
            return std::string(error.what());
        }
        return std::string();
    };
    CHECK(fault("") == "--tokens: is empty; expected characters, bytes, bpe:N or a file");
    CHECK(fault("words") == "--tokens: is words; expected characters, bytes, bpe:N or a file that is there");
    for (const std::string number : {"", "255", "x", "300x", "-1", "16777217"})
        CHECK(fault("bpe:" + number) == "--tokens: is bpe:" + number + "; expected bpe:N with N from 256 to 2^24");
    const auto path = folder.write("small.json", "{}");
    CHECK(fault(path.string()) == path.string() + ": tokeniser: the file has no key 'model'");
    const std::u32string text = lines(8);
    const auto pairs = make_tokeniser("bpe:400", text, text);
    CHECK_THROWS_WITH(TokenisedText(text, *pairs, 30),
                      Catch::Contains("tokens of the validation text are too few; sequences of 30 need at least 31"));
    const auto characters = make_tokeniser("characters", text, text);
    CHECK_THROWS_WITH(TokenisedText(text, *characters, 100), Catch::Contains("192 characters are too few"));
    CHECK_THROWS_WITH(experiments::read_tokeniser("no tokeniser"), "tokeniser: the text is not JSON");
}
