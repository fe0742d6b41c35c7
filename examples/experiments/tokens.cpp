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

#include <charconv>
#include <filesystem>
#include <span>
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

[[noreturn, maybe_unused]] void fail_without(const char* libraries, std::string_view tokens) {
    fail("--tokens: ", tokens, " needs ", libraries, ", which this program was built without");
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
