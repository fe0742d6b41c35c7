// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/io/text.hpp>
#include <unitscale/io/tokeniser.hpp>

#include <sentencepiece_processor.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace unitscale::io {

struct SentencePieceOptions {
    bool add_begin = false;     ///< encode() puts the model's token <s>, if it has one, in front of a text
    bool add_end = false;       ///< and </s> behind it
    bool find_special = false;  ///< the name of <s>, </s> or <unk> in a text is that token; else text like other text
};

/// A model of SentencePiece, by its library (Debian: libsentencepiece-dev; link with -lsentencepiece).
///   const auto pieces = io::SentencePieces::load("tokenizer.model");
///   pieces.encode("a text");                            // the ids of the sentencepiece package
/// With {.add_begin = true, .find_special = true} encode() gives the ids of the transformers package's
/// LlamaTokenizer with its setting `legacy`. It encodes each text between two special tokens on its own.
/// The model's own rules change the text first, so that decode(encode(text)) may differ from text: most models join
/// spaces, and one without byte_fallback makes unknown characters one token.
/// Decoding leaves out the space that these rules put in front of a text. Control pieces such as <s> stand for no
/// bytes. Byte pieces are bytes, where the package has U+FFFD for bytes that are not UTF-8.
/// Errors: a file that is missing or is no model; text that is not UTF-8.
/// Reference: Kudo, Richardson 2018, arXiv:1808.06226.   Test: tests/io/sentencepiece_test.cpp
class SentencePieces final : public Tokeniser {
public:
    [[nodiscard]] static SentencePieces load(const std::filesystem::path& path,
                                             const SentencePieceOptions& options = {}) {
        return SentencePieces(read_bytes(path), path.string(), options);
    }
    /// From what `to_text` has written.
    [[nodiscard]] static SentencePieces from_text(std::string_view text) {
        check(text.starts_with(mark), "sentencepiece: the text is not one of to_text");
        std::string bytes;
        for (std::size_t i = mark.size(); i < text.size(); i += 2) {
            unsigned value = 0;
            for (const char digit : text.substr(i, 2)) {
                const std::size_t place = digits.find(digit);
                check(place != digits.npos && i + 2 <= text.size(), "sentencepiece: the text is damaged at byte ", i);
                value = value * 16 + static_cast<unsigned>(place);
            }
            bytes.push_back(static_cast<char>(static_cast<unsigned char>(value)));
        }
        return SentencePieces(bytes, "the text", {});
    }

    [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const override {
        static_cast<void>(decode_utf8(text));
        std::vector<std::int32_t> ids;
        const auto add = [&](const std::optional<std::int32_t>& id) {
            if (id) ids.push_back(*id);
        };
        if (options_.add_begin) add(begin_of_text());
        while (!text.empty()) {
            const auto [at, id] = first_special(text);
            std::vector<int> more;
            check_status(model_->Encode({text.data(), std::min(at, text.size())}, &more), "encode");
            ids.insert(ids.end(), more.begin(), more.end());
            if (at == text.npos) break;
            ids.push_back(id);
            text.remove_prefix(at + model_->IdToPiece(id).size());
        }
        if (options_.add_end) add(end_of_text());
        return ids;
    }
    [[nodiscard]] std::string decode(std::span<const std::int32_t> ids) const override {
        check_ids("sentencepiece", ids, size());
        std::string text;
        for (std::size_t i = 0; i < ids.size();) {
            if (model_->IsByte(ids[i])) {
                text.push_back(byte_of(ids[i++]));
                continue;
            }
            // The library leaves out a space at a text's start, and a byte in front says that this is none.
            std::vector<int> run;
            const bool continues = !text.empty() && letter_ >= 0;
            if (continues) run.push_back(letter_);
            while (i < ids.size() && !model_->IsByte(ids[i])) run.push_back(ids[i++]);
            std::string part;
            check_status(model_->Decode(run, &part), "decode");
            text += continues ? part.substr(1) : part;
        }
        return text;
    }
    [[nodiscard]] std::size_t size() const noexcept override {
        return static_cast<std::size_t>(model_->GetPieceSize());
    }
    /// By the model's text of a piece, as ▁the for " the".
    [[nodiscard]] std::optional<std::int32_t> id_of(std::string_view token) const override {
        const int id = model_->PieceToId({token.data(), token.size()});
        if (id < 0 || model_->IdToPiece(id) != token) return std::nullopt;
        return id;
    }
    [[nodiscard]] std::optional<std::int32_t> begin_of_text() const override { return known(model_->bos_id()); }
    [[nodiscard]] std::optional<std::int32_t> end_of_text() const override { return known(model_->eos_id()); }

    /// The model's file in hexadecimal digits.
    [[nodiscard]] std::string to_text() const override {
        std::string text(mark);
        for (const char byte : model_->serialized_model_proto()) {
            const auto value = static_cast<unsigned char>(byte);
            (text += digits[value >> 4]) += digits[value & 15];
        }
        return text;
    }

private:
    static constexpr std::string_view mark = "sentencepiece:", digits = "0123456789abcdef";

    SentencePieces(const std::string& bytes, const std::string& origin, const SentencePieceOptions& options)
        : options_(options), model_(std::make_shared<sentencepiece::SentencePieceProcessor>()) {
        const auto status = model_->LoadFromSerializedProto(bytes);
        check(!bytes.empty() && status.ok(), "sentencepiece: ", origin, " is no model: ", status.ToString());
        const int letter = model_->PieceToId("<0x41>");
        if (letter >= 0 && model_->IsByte(letter)) letter_ = letter;
    }
    /// The first name of <s>, </s> or <unk> in a text, and its id; npos: none, or none is looked for.
    [[nodiscard]] std::pair<std::size_t, int> first_special(std::string_view text) const {
        std::pair<std::size_t, int> first{text.npos, -1};
        if (!options_.find_special) return first;
        for (const int id : std::array{model_->bos_id(), model_->eos_id(), model_->unk_id()}) {
            if (id < 0) continue;
            const std::size_t at = text.find(model_->IdToPiece(id));
            if (at < first.first) first = {at, id};
        }
        return first;
    }
    /// The byte of a piece such as <0x0A>.
    [[nodiscard]] char byte_of(int id) const {
        const std::string& piece = model_->IdToPiece(id);
        const auto digit = [&](std::size_t at) { return piece[at] <= '9' ? piece[at] - '0' : piece[at] - 'A' + 10; };
        return static_cast<char>(static_cast<unsigned char>(digit(3) * 16 + digit(4)));
    }
    static void check_status(const sentencepiece::util::Status& status, std::string_view action) {
        check(status.ok(), "sentencepiece: cannot ", action, ": ", status.ToString());
    }
    [[nodiscard]] static std::optional<std::int32_t> known(int id) {
        return id < 0 ? std::nullopt : std::optional<std::int32_t>(id);
    }

    SentencePieceOptions options_;
    std::shared_ptr<sentencepiece::SentencePieceProcessor> model_;
    int letter_ = -1;  ///< a byte piece; -1: the model has none
};

}  // namespace unitscale::io
