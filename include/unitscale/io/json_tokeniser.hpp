// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/base/error.hpp>
#include <unitscale/io/byte_pair.hpp>
#include <unitscale/io/json_tokeniser_part.hpp>
#include <unitscale/io/json_tokeniser_steps.hpp>
#include <unitscale/io/text.hpp>
#include <unitscale/io/tokeniser.hpp>
#include <unitscale/io/tokeniser_steps.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

// Published tokenisers of byte pairs. This header needs nlohmann-json, ICU (-licuuc) and PCRE2 (-lpcre2-8).
namespace unitscale::io {

struct JsonTokeniserOptions {
    bool add_special = false;  ///< encode() puts the tokens of the file's template around a text, such as <s>
    bool find_added = true;    ///< a name of an added token in a text is that token; else text like other text
};

/// A tokeniser of byte pairs from a tokenizer.json, as the tokenizers package writes it.
///   const auto tokens = io::JsonTokeniser::load("tokenizer.json");    // or a folder with vocab.json and merges.txt
///   tokens.decode(tokens.encode(bytes)) == bytes                      // any bytes, for byte-level layouts
/// Known are the layouts of GPT-2 (ByteLevel), Llama 3 and Qwen2 (Split, then ByteLevel) and Llama 2 (byte_fallback):
///   model           BPE, with unk_token, fuse_unk, byte_fallback, ignore_merges
///   normalizer      NFC, NFD, NFKC, NFKD, Prepend, Replace
///   pre_tokenizer   ByteLevel, Split, Digits, Metaspace
///   post_processor  TemplateProcessing, ByteLevel
///   decoder         ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace
/// and sequences of these, and added tokens but for single_word. Bytes that are not UTF-8 are words of their own.
/// Unlike the package, encode() does not leave out in silence a character that has no token, decode() gives bytes, and
/// the decoder Metaspace takes one space only from the text's start.
/// Errors, in a line that names the key's place: a file that is not JSON; a part or key that is not known; two tokens
/// of one id; the errors of BytePairs and SplitPattern.   Test: tests/io/json_tokeniser_test.cpp
class JsonTokeniser final : public Tokeniser {
public:
    using Json = nlohmann::ordered_json;

    /// From the text of a tokenizer.json.
    explicit JsonTokeniser(std::string_view text, const JsonTokeniserOptions& options = {})
        : JsonTokeniser(parse(text), options) {}

    /// From a tokenizer.json, or from a folder that holds one or the files of `load_gpt2`.
    /// Further errors, naming the path: it is missing or cannot be read.
    [[nodiscard]] static JsonTokeniser load(const std::filesystem::path& path,
                                            const JsonTokeniserOptions& options = {}) {
        std::error_code ignored;
        const auto file = std::filesystem::is_directory(path, ignored) ? path / "tokenizer.json" : path;
        if (file != path && !std::filesystem::exists(file, ignored))
            return load_gpt2(path / "vocab.json", path / "merges.txt", options);
        const std::string text = read_bytes(file);
        return named(file, [&] { return JsonTokeniser(std::string_view(text), options); });
    }
    /// From GPT-2's vocab.json, tokens with their ids, and merges.txt, a pair to a line after a line with #version.
    [[nodiscard]] static JsonTokeniser load_gpt2(const std::filesystem::path& vocabulary,
                                                 const std::filesystem::path& merges,
                                                 const JsonTokeniserOptions& options = {}) {
        const std::string tokens = read_bytes(vocabulary), pairs = read_bytes(merges);
        return named(vocabulary, [&] {
            const Json level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
            Json json = {{"added_tokens", Json::array()}, {"pre_tokenizer", level}, {"decoder", level}};
            json["model"] = {{"type", "BPE"}, {"vocab", parse(tokens)}, {"merges", Json::array()}};
            for (std::size_t start = 0; start < pairs.size();) {
                const std::size_t end = std::min(pairs.find('\n', start), pairs.size());
                std::string line = pairs.substr(start, end - start);
                start = end + 1;
                if (line.ends_with('\r')) line.pop_back();
                if (!line.empty() && !line.starts_with("#version")) json["model"]["merges"].push_back(line);
            }
            const char* const end_name = "<|endoftext|>";
            if (const Json& all = json["model"]["vocab"]; all.is_object() && all.contains(end_name))
                json["added_tokens"].push_back({{"id", all[end_name]}, {"content", end_name}, {"special", true}});
            return JsonTokeniser(json, options);
        });
    }

    [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const override {
        std::vector<std::int32_t> ids;
        if (options_.add_special) ids = before_;
        BytePairs::Cache cache;
        const auto plain = [&](std::string_view part, std::size_t offset) {
            bool continues = false;
            for_each_utf8_run(part, [&](std::string_view run, bool valid) {
                if (!valid) pairs_->encode_word(run, cache, ids);
                else encode_run(run, offset == 0 && run.data() == text.data(), continues, cache, ids);
                continues = true;
            });
        };
        if (options_.find_added) added_.split(text, plain, [&](const AddedToken& token) { ids.push_back(token.id); });
        else if (!text.empty()) plain(text, 0);
        if (options_.add_special) ids.insert(ids.end(), after_.begin(), after_.end());
        return ids;
    }

    [[nodiscard]] std::string decode(std::span<const std::int32_t> ids) const override {
        check_ids("tokeniser", ids, size());
        std::string text;
        std::vector<std::string> tokens;
        for (std::size_t i = 0; i < ids.size(); ++i) {
            const std::string& token = texts_[index(ids[i])];
            check(!token.empty(), "tokeniser: id ", ids[i], " at position ", i, " has no token");
            if (!by_bytes_) tokens.push_back(token);
            else text += bytes_[index(ids[i])];
        }
        if (by_bytes_) return text;
        for (const DecoderStep& step : decoder_) step.apply(tokens);
        for (const std::string& token : tokens) text += token;
        return text;
    }

    [[nodiscard]] std::size_t size() const noexcept override { return texts_.size(); }
    /// By the text that the file has, as Ġthe for " the" at byte level.
    [[nodiscard]] std::optional<std::int32_t> id_of(std::string_view token) const override {
        const auto found = ids_.find(token);
        return found == ids_.end() ? std::nullopt : std::optional(found->second);
    }
    /// The first and the last token of the file's template. Without them: special tokens with the names of GPT-2's,
    /// Llama's and Qwen2's, such as <s>, <|begin_of_text|> and <|endoftext|>.
    [[nodiscard]] std::optional<std::int32_t> begin_of_text() const override { return begin_; }
    [[nodiscard]] std::optional<std::int32_t> end_of_text() const override { return end_; }

    /// The tokenizer.json without line breaks and spaces.
    [[nodiscard]] std::string to_text() const override { return text_; }

private:
    JsonTokeniser(const Json& json, const JsonTokeniserOptions& options) : options_(options), text_(json.dump()) {
        const TokeniserPart file(json, "");
        file.know({"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer", "post_processor",
                   "decoder", "model"});
        for (const char* const key : {"truncation", "padding"})
            if (file.has(key)) file.refuse(key, "null");
        if (file.has("normalizer")) add_normaliser(normaliser_, file.part("normalizer"));
        if (file.has("pre_tokenizer")) add_splits(splits_, of_bytes_, file.part("pre_tokenizer"));
        read_model(file.part("model"));
        if (file.has("added_tokens"))
            for (const TokeniserPart& part : file.parts("added_tokens")) add_token(part);
        if (file.has("decoder")) add_decoder(decoder_, file.part("decoder"));
        else decoder_.push_back({.kind = DecoderStep::Kind::spaces});
        if (file.has("post_processor")) add_template(file.part("post_processor"));
        by_bytes_ = decoder_.size() == 1 && decoder_.front().kind == DecoderStep::Kind::byte_level;
        find_ends();
    }

    [[nodiscard]] static std::size_t index(std::int32_t id) noexcept { return static_cast<std::size_t>(id); }

    [[nodiscard]] static Json parse(std::string_view text) {
        Json json = Json::parse(text, nullptr, false);
        check(!json.is_discarded(), "tokeniser: the text is not JSON");
        return json;
    }
    /// The path in front of errors.
    template <class Make>
    [[nodiscard]] static JsonTokeniser named(const std::filesystem::path& path, Make&& make) {
        try {
            return make();
        } catch (const Error& error) {
            fail(path.string(), ": ", error.what());
        }
    }

    /// Enters a token's text for its id. Error: the id has another text.
    void enter(std::int32_t id, const std::string& text, const std::string& place) {
        check(!text.empty(), "tokeniser: ", place, ": token ", id, " is empty");
        if (index(id) >= texts_.size()) {
            check(index(id) < (std::size_t{1} << 24), "tokeniser: ", place, ": id ", id, " of '", text,
                  "'; expected below 2^24");
            texts_.resize(index(id) + 1);
            bytes_.resize(texts_.size());
        }
        std::string& known = texts_[index(id)];
        check(known.empty() || known == text, "tokeniser: ", place, ": id ", id, " of '", text, "' is that of '", known,
              "'");
        known = text;
        ids_.insert_or_assign(text, id);
    }

    void read_model(const TokeniserPart& model) {
        if (model.has("type") && model.type() != "BPE") model.refuse_type("BPE");
        model.know({"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                    "byte_fallback", "ignore_merges", "vocab", "merges"});
        if (model.has("dropout") && model.at("dropout") != 0) model.refuse("dropout", "null");
        for (const char* const key : {"continuing_subword_prefix", "end_of_word_suffix"})
            if (model.has(key) && model.at(key) != "") model.refuse(key, "null");
        const TokeniserPart vocabulary = model.part("vocab");
        BytePairVocabulary all;
        for (const auto& [text, id] : model.at("vocab").items()) {
            enter(vocabulary.number(text.c_str()), text, "model.vocab");
            const std::int32_t number = id.get<std::int32_t>();
            const auto bytes = of_bytes_ ? from_byte_characters(text) : std::optional(text);
            all.tokens.resize(texts_.size());
            // A token of other characters, such as a special token, is not made by merges.
            if (bytes) all.tokens[index(number)] = *bytes;
            bytes_[index(number)] = from_byte_characters(text).value_or(text);
        }
        if (!model.at("merges").is_array()) model.refuse("merges", "a list");
        const auto token = [&](std::string_view text, std::size_t rank) {
            const auto id = id_of(text);
            check(id.has_value(), "tokeniser: model.merges.", rank, ": '", text, "' is no token");
            return *id;
        };
        for (std::size_t rank = 0; rank < model.at("merges").size(); ++rank) {
            const Json& pair = model.at("merges")[rank];
            std::array<std::string, 2> halves;
            if (pair.is_string()) {
                const auto text = pair.get<std::string>();
                const std::size_t space = std::min(text.find(' '), text.size());
                halves = {text.substr(0, space), text.substr(std::min(space + 1, text.size()))};
            } else if (pair.is_array() && pair.size() == 2 && pair[0].is_string() && pair[1].is_string()) {
                halves = {pair[0].get<std::string>(), pair[1].get<std::string>()};
            }
            check(!halves[0].empty() && !halves[1].empty() && halves[1].find(' ') == std::string::npos,
                  "tokeniser: model.merges.", rank, " is ", pair.dump(), "; expected two tokens");
            all.merges.emplace_back(token(halves[0], rank), token(halves[1], rank));
        }
        BytePairOptions pairs{.of_bytes = of_bytes_,
                              .whole_words = model.flag("ignore_merges", false),
                              .byte_fallback = model.flag("byte_fallback", false),
                              .fuse_unknown = model.flag("fuse_unk", false)};
        if (model.has("unk_token")) {
            const std::string name = model.text("unk_token");
            pairs.unknown = id_of(name);
            check(pairs.unknown.has_value(), "tokeniser: model.unk_token is '", name, "', which is no token");
        }
        pairs_.emplace(std::move(all), pairs);
    }

    void add_token(const TokeniserPart& part) {
        part.know({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
        if (part.flag("single_word", false)) part.refuse("single_word", "false");
        AddedToken token{.id = part.number("id"),
                         .content = part.text("content"),
                         .takes_left = part.flag("lstrip", false),
                         .takes_right = part.flag("rstrip", false),
                         .normalised = part.flag("normalized", false),
                         .special = part.flag("special", false)};
        enter(token.id, token.content, part.place("content"));
        bytes_[index(token.id)] = token.content;
        if (token.special) special_.push_back(token.id);
        // Without a normaliser both searches would be in one text, but the package makes them one after the other.
        if (token.normalised) token.content = normalise(std::move(token.content), false);
        (token.normalised ? added_later_ : added_).add(std::move(token));
    }

    /// The tokens around a single text. ByteLevel changes places in the text alone, and no ids.
    void add_template(const TokeniserPart& part) {
        const std::string type = part.type();
        if (type == "Sequence") {
            part.know({"type", "processors"});
            for (const TokeniserPart& step : part.parts("processors")) add_template(step);
        } else if (type == "TemplateProcessing") {
            part.know({"type", "single", "pair", "special_tokens"});
            std::vector<std::int32_t> before, after;
            bool behind = false;
            for (const TokeniserPart& piece : part.parts("single")) {
                piece.know({"SpecialToken", "Sequence"});
                if (piece.has("Sequence")) {
                    if (std::exchange(behind, true)) piece.refuse("one Sequence");
                    continue;
                }
                const std::string name = piece.part("SpecialToken").text("id");
                for (const Json& id : part.part("special_tokens").part(name.c_str()).at("ids")) {
                    const bool known = id.is_number_unsigned() && id.get<std::uint64_t>() < size();
                    check(known, "tokeniser: post_processor: ", name, " has id ", id.dump(), ", which is no token");
                    (behind ? after : before).push_back(id.get<std::int32_t>());
                }
            }
            before_.insert(before_.begin(), before.begin(), before.end());
            after_.insert(after_.end(), after.begin(), after.end());
        } else if (type != "ByteLevel") {
            part.refuse_type("Sequence, TemplateProcessing or ByteLevel");
        }
    }

    void find_ends() {
        const auto first_of = [&](std::initializer_list<std::string_view> names) -> std::optional<std::int32_t> {
            for (const std::string_view name : names) {
                const auto id = id_of(name);
                if (id && std::find(special_.begin(), special_.end(), *id) != special_.end()) return id;
            }
            return std::nullopt;
        };
        begin_ = before_.empty() ? first_of({"<|begin_of_text|>", "<s>", "<|endoftext|>"}) : before_.front();
        end_ = after_.empty() ? first_of({"<|end_of_text|>", "</s>", "<|endoftext|>"}) : after_.back();
    }

    [[nodiscard]] std::string normalise(std::string text, bool continues) const {
        for (const NormaliserStep& step : normaliser_) text = step.apply(std::move(text), continues);
        return text;
    }

    /// A run of UTF-8 between added tokens.
    void encode_run(std::string_view run, bool begins, bool continues, BytePairs::Cache& cache,
                    std::vector<std::int32_t>& ids) const {
        std::string changed;
        if (!normaliser_.empty()) run = changed = normalise(std::string(run), continues);
        const auto plain = [&](std::string_view part, std::size_t offset) {
            encode_words(0, part, begins && offset == 0, continues && offset == 0, cache, ids);
        };
        const auto found = [&](const AddedToken& token) { ids.push_back(token.id); };
        if (options_.find_added) added_later_.split(run, plain, found);
        else if (!run.empty()) plain(run, 0);
    }
    void encode_words(std::size_t step, std::string_view text, bool begins, bool continues, BytePairs::Cache& cache,
                      std::vector<std::int32_t>& ids) const {
        if (step == splits_.size()) return pairs_->encode_word(text, cache, ids);
        splits_[step].apply(text, begins, continues, [&](std::string_view part, bool part_begins, bool part_continues) {
            encode_words(step + 1, part, part_begins, part_continues, cache, ids);
        });
    }

    JsonTokeniserOptions options_;
    std::string text_;       ///< of the file
    bool of_bytes_ = false;  ///< the words are bytes in GPT-2's characters
    bool by_bytes_ = false;  ///< decoding is to join `bytes_`
    std::vector<NormaliserStep> normaliser_{};
    std::vector<SplitStep> splits_{};
    std::vector<DecoderStep> decoder_{};
    std::optional<BytePairs> pairs_{};
    TokenIds ids_{};
    std::vector<std::string> texts_{};     ///< of all ids; empty: no token
    std::vector<std::string> bytes_{};     ///< at byte level; an added token's are its name
    AddedTokens added_{}, added_later_{};  ///< looked for before and after the text is changed
    std::vector<std::int32_t> special_{}, before_{}, after_{};
    std::optional<std::int32_t> begin_{}, end_{};
};

}  // namespace unitscale::io
