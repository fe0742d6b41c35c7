// SPDX-License-Identifier: MIT
#include "experiments/tokens.hpp"

#include <unitscale/base/error.hpp>
#include <unitscale/io/text.hpp>
#include <unitscale/io/vocabulary.hpp>
#ifdef UNITSCALE_HAS_JSON_TOKENISER
#include <unitscale/io/byte_pair_training.hpp>
#include <unitscale/io/json_tokeniser.hpp>
#endif
#ifdef UNITSCALE_HAS_SENTENCEPIECE
#include <unitscale/io/sentencepiece.hpp>
#endif

#include <nlohmann/json.hpp>

#include <charconv>
#include <filesystem>
#include <span>
#include <system_error>
#include <utility>

namespace unitscale::experiments {

namespace {

constexpr std::string_view byte_pairs = "bpe:", pieces = "sentencepiece:";

/// The N of bpe:N. Error: another number.
std::size_t byte_pair_count(const std::string& tokens) {
    std::size_t count = 0;
    const char* const end = tokens.data() + tokens.size();
    const auto [stop, error] = std::from_chars(tokens.data() + byte_pairs.size(), end, count);
    check(error == std::errc() && stop == end && count >= 256 && count <= (std::size_t{1} << 24), "--tokens: is ",
          tokens, "; expected bpe:N with N from 256 to 2^24");
    return count;
}

[[noreturn, maybe_unused]] void fail_without(const char* libraries, std::string_view tokens,
                                             const char* place = "--tokens") {
    fail(place, ": ", tokens, " needs ", libraries, ", which this program was built without");
}

/// A switch of the tokenizer_config.json of a folder; `usual` if it is not there.
/// Errors: a file that is not a JSON object; a value other than true and false.
[[maybe_unused]] bool tokeniser_switch(const std::filesystem::path& folder, const char* key, bool usual) {
    const std::filesystem::path path = folder / "tokenizer_config.json";
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored)) return usual;
    const auto json = nlohmann::json::parse(io::read_bytes(path), nullptr, false);
    check(json.is_object(), "tokeniser: ", path.string(), " is not a JSON object");
    const auto found = json.find(key);
    if (found == json.end() || found->is_null()) return usual;
    check(found->is_boolean(), "tokeniser: ", path.string(), ": ", key, " is ", found->dump(),
          "; expected true or false");
    return found->get<bool>();
}

}  // namespace

void check_tokens(const std::string& tokens) {
    check(!tokens.empty(), "--tokens: is empty; expected characters, bytes, bpe:N or a file");
    if (tokens.starts_with(byte_pairs)) static_cast<void>(byte_pair_count(tokens));
    if (tokens == "characters" || tokens == "bytes" || tokens.starts_with(byte_pairs)) return;
    std::error_code ignored;
    check(std::filesystem::exists(tokens, ignored), "--tokens: is ", tokens,
          "; expected characters, bytes, bpe:N or a file that is there");
}

TokeniserPointer make_tokeniser(const std::string& tokens, std::u32string_view text, std::u32string_view training) {
    check_tokens(tokens);
    if (tokens == "characters") return std::make_shared<io::CharacterVocabulary>(text);
    if (tokens == "bytes") return std::make_shared<io::ByteTokeniser>();
    std::error_code ignored;
    if (std::filesystem::is_directory(tokens, ignored)) return published_tokeniser(tokens);
    if (tokens.ends_with(".model")) {
#ifdef UNITSCALE_HAS_SENTENCEPIECE
        return std::make_shared<io::SentencePieces>(io::SentencePieces::load(tokens));
#else
        fail_without("libsentencepiece", tokens);
#endif
    }
#ifdef UNITSCALE_HAS_JSON_TOKENISER
    if (!tokens.starts_with(byte_pairs)) return std::make_shared<io::JsonTokeniser>(io::JsonTokeniser::load(tokens));
    return std::make_shared<io::BytePairTokeniser>(
        io::train_byte_pairs(io::encode_utf8(training), byte_pair_count(tokens)));
#else
    static_cast<void>(training);
    fail_without("ICU and PCRE2", tokens);
#endif
}

TokeniserPointer published_tokeniser(const std::filesystem::path& model, const PublishedTokeniserOptions& options) {
    std::error_code ignored;
    auto folder = std::filesystem::is_directory(model, ignored) ? model : model.parent_path();
    if (folder.empty()) folder = ".";
    const auto has = [&](const char* name) { return std::filesystem::exists(folder / name, ignored); };
    static_cast<void>(options);
    if (!has("tokenizer.json") && has("tokenizer.model")) {
        const std::filesystem::path path = folder / "tokenizer.model";
#ifdef UNITSCALE_HAS_SENTENCEPIECE
        const bool special = options.add_special;
        return std::make_shared<io::SentencePieces>(
            io::SentencePieces::load(path, {.add_begin = special && tokeniser_switch(folder, "add_bos_token", true),
                                            .add_end = special && tokeniser_switch(folder, "add_eos_token", false),
                                            .find_special = options.find_added}));
#else
        fail_without("libsentencepiece", path.string(), "tokeniser");
#endif
    }
    check(has("tokenizer.json") || has("vocab.json"), "tokeniser: ", folder.string(),
          " has no tokenizer.json, no tokenizer.model and no vocab.json");
#ifdef UNITSCALE_HAS_JSON_TOKENISER
    return std::make_shared<io::JsonTokeniser>(
        io::JsonTokeniser::load(folder, {.add_special = options.add_special, .find_added = options.find_added}));
#else
    fail_without("ICU and PCRE2", (folder / (has("tokenizer.json") ? "tokenizer.json" : "vocab.json")).string(),
                 "tokeniser");
#endif
}

TokeniserPointer read_tokeniser(const std::string& text) {
    if (text == "bytes") return std::make_shared<io::ByteTokeniser>();
    if (text.starts_with(pieces)) {
#ifdef UNITSCALE_HAS_SENTENCEPIECE
        return std::make_shared<io::SentencePieces>(io::SentencePieces::from_text(text));
#else
        fail_without("libsentencepiece", "the model's tokeniser");
#endif
    }
#ifdef UNITSCALE_HAS_JSON_TOKENISER
    return std::make_shared<io::JsonTokeniser>(std::string_view(text));
#else
    fail_without("ICU and PCRE2", "the model's tokeniser");
#endif
}

bool is_of_characters(const io::Tokeniser& tokeniser) {
    return dynamic_cast<const io::CharacterVocabulary*>(&tokeniser) != nullptr;
}
const char* loss_unit(const io::Tokeniser& tokeniser) {
    return is_of_characters(tokeniser) ? "bits/char" : "bits/token";
}
const char* token_name(const io::Tokeniser& tokeniser) {
    if (is_of_characters(tokeniser)) return "characters";
    return dynamic_cast<const io::ByteTokeniser*>(&tokeniser) != nullptr ? "bytes" : "tokens";
}

TokenisedText::TokenisedText(std::u32string_view text, const io::Tokeniser& tokeniser, std::size_t length, bool test) {
    const std::vector<std::int32_t> points(text.begin(), text.end());
    const bool characters = is_of_characters(tokeniser);
    const train::Split cut = train::split(points, characters ? length : 1, test);
    training_characters = cut.training.size();
    std::size_t at = 0;
    std::vector<std::size_t> counts;
    for (auto [count, bytes] :
         {std::pair(cut.training.size(), &training_bytes), std::pair(cut.validation.size(), &validation_bytes),
          std::pair(cut.test.size(), &test_bytes)}) {
        const std::string part = io::encode_utf8(text.substr(at, count));
        at += count;
        const std::vector<std::int32_t> ids = tokeniser.encode(part);
        tokens.insert(tokens.end(), ids.begin(), ids.end());
        counts.push_back(ids.size());
        *bytes = ids.empty() ? 0.0 : static_cast<double>(part.size()) / static_cast<double>(ids.size());
        check(ids.size() > length || (count == 0 && counts.size() == 3), "data: ", ids.size(), ' ',
              token_name(tokeniser), " of the ",
              counts.size() == 1   ? "nine tenths for training"
              : counts.size() == 2 ? "validation text"
                                   : "test text",
              " are too few; sequences of ", length, " need at least ", length + 1);
    }
    const std::span<const std::int32_t> all = tokens;
    parts = {all.first(counts[0]), all.subspan(counts[0], counts[1]), all.subspan(counts[0] + counts[1])};
}

}  // namespace unitscale::experiments
