// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/io/text.hpp>
#include <unitscale/io/tokeniser.hpp>

#include <sentencepiece_processor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace unitscale::io {

/// A model of SentencePiece, by its library (Debian: libsentencepiece-dev; link with -lsentencepiece).
///   const auto pieces = io::SentencePieces::load("tokenizer.model");
///   pieces.encode("a text");                            // the ids of the sentencepiece package
/// The model's own rules change the text first, so that decode(encode(text)) may differ from text: most models join
/// spaces, and one without byte_fallback makes unknown characters one token.
/// Errors: a file that is missing or is no model; text that is not UTF-8.
/// Reference: Kudo, Richardson 2018, arXiv:1808.06226.   Test: tests/io/sentencepiece_test.cpp
class SentencePieces final : public Tokeniser {
public:
    [[nodiscard]] static SentencePieces load(const std::filesystem::path& path) {
        return SentencePieces(read_bytes(path), path.string());
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
        return SentencePieces(bytes, "the text");
    }

    [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const override {
        static_cast<void>(decode_utf8(text));
        std::vector<int> ids;
        check_status(model_->Encode({text.data(), text.size()}, &ids), "encode");
        return {ids.begin(), ids.end()};
    }
    [[nodiscard]] std::string decode(std::span<const std::int32_t> ids) const override {
        check_ids("sentencepiece", ids, size());
        std::string text;
        check_status(model_->Decode(std::vector<int>(ids.begin(), ids.end()), &text), "decode");
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

    SentencePieces(const std::string& bytes, const std::string& origin)
        : model_(std::make_shared<sentencepiece::SentencePieceProcessor>()) {
        const auto status = model_->LoadFromSerializedProto(bytes);
        check(!bytes.empty() && status.ok(), "sentencepiece: ", origin, " is no model: ", status.ToString());
    }
    static void check_status(const sentencepiece::util::Status& status, std::string_view action) {
        check(status.ok(), "sentencepiece: cannot ", action, ": ", status.ToString());
    }
    [[nodiscard]] static std::optional<std::int32_t> known(int id) {
        return id < 0 ? std::nullopt : std::optional<std::int32_t>(id);
    }

    std::shared_ptr<sentencepiece::SentencePieceProcessor> model_;
};

}  // namespace unitscale::io
