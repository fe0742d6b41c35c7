// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/io/tokeniser.hpp>
#include <unitscale/train/batches.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

// The tokens of language models: the option `--tokens`, and the tokenisers that checkpoints keep.
namespace unitscale::experiments {

using TokeniserPointer = std::shared_ptr<const io::Tokeniser>;

/// Error, naming `--tokens`: no `characters`, `bytes`, `bpe:N` with N from 256 to 2^24, or the path of a file.
/// What is not one of the words is a path.
void check_tokens(const std::string& tokens);

/// The tokeniser that the option names.
///   characters   the characters that occur in `text`
///   bytes        the 256 bytes
///   bpe:N        byte pairs, N tokens, trained on `training`
///   PATH         a tokenizer.json, SentencePiece's *.model, or a folder (published_tokeniser)
/// Errors: the errors of check_tokens; the errors of the tokeniser; byte pairs or a file, if the program was built
/// without the libraries for them.   Test: tests/experiments/tokens_test.cpp
[[nodiscard]] TokeniserPointer make_tokeniser(const std::string& tokens, std::u32string_view text,
                                              std::u32string_view training);

struct PublishedTokeniserOptions {
    bool add_special = false;  ///< encode() puts the special tokens around a text that the model was trained with
    bool find_added = true;    ///< a name of an added token in a text is that token; else text like other text
};

/// The tokeniser of a published model: of its folder, or of the folder of a file in it. The first of these that exists:
///   tokenizer.json              special tokens by its template
///   tokenizer.model             SentencePiece's; special tokens as LlamaTokenizer of transformers has them
///   vocab.json and merges.txt   GPT-2's
/// For a tokenizer.model the switches add_bos_token, by default true, and add_eos_token, by default false, of
/// tokenizer_config.json hold.
/// Errors: none of these files; a library that the program was built without; the errors of the tokeniser.
/// Test: tests/experiments/tokens_test.cpp
[[nodiscard]] TokeniserPointer published_tokeniser(const std::filesystem::path& model,
                                                   const PublishedTokeniserOptions& options = {});

/// The tokeniser of a text that Tokeniser::to_text has written, but for characters (train::TokeniserReader).
[[nodiscard]] TokeniserPointer read_tokeniser(const std::string& text);

[[nodiscard]] bool is_of_characters(const io::Tokeniser& tokeniser);
/// A count of bits that is a loss, and its unit: `bits/char` for characters, else `bits/token`.
[[nodiscard]] const char* loss_unit(const io::Tokeniser& tokeniser);
/// What a token is called in counts: `characters`, `bytes` or `tokens`.
[[nodiscard]] const char* token_name(const io::Tokeniser& tokeniser);

/// A text as tokens, in the parts of train::split. They are cut by characters, so that all tokenisers have equal
/// parts, and each part is encoded on its own.
struct TokenisedText {
    /// Errors: a part has too few tokens for sequences of `length`; the errors of `tokeniser`.
    TokenisedText(std::u32string_view text, const io::Tokeniser& tokeniser, std::size_t length, bool test = false);
    TokenisedText(const TokenisedText&) = delete;
    TokenisedText& operator=(const TokenisedText&) = delete;

    std::vector<std::int32_t> tokens{};
    train::Split parts{};                 ///< of `tokens`
    std::size_t training_characters = 0;  ///< of the text's start
    /// Bytes of UTF-8 for each token, by part; 0 for a part without tokens.
    double training_bytes = 0.0, validation_bytes = 0.0, test_bytes = 0.0;
};

}  // namespace unitscale::experiments
