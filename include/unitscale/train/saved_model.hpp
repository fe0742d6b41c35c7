// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/autograd/tape.hpp>
#include <unitscale/base/error.hpp>
#include <unitscale/io/json_recipe.hpp>
#include <unitscale/io/safetensors.hpp>
#include <unitscale/io/text.hpp>
#include <unitscale/io/tokeniser.hpp>
#include <unitscale/io/vocabulary.hpp>
#include <unitscale/nn/decoder.hpp>
#include <unitscale/scaling/state.hpp>
#include <unitscale/train/checkpoint.hpp>
#include <unitscale/train/code_weights.hpp>
#include <unitscale/train/element.hpp>
#include <unitscale/train/recipe_switch.hpp>

#include <nlohmann/json.hpp>

#include <array>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace unitscale::train {

inline constexpr std::array<std::string_view, 4> feed_forward_json_names = {"gelu", "gated_silu", "gelu_tanh", "relu"};
inline constexpr std::array<std::string_view, 2> norm_json_names = {"layer", "rms"};
inline constexpr std::array<std::string_view, 3> placement_json_names = {"pre", "post", "none"};
inline constexpr std::array<std::string_view, 3> positions_json_names = {"learned", "rotary", "none"};

inline constexpr std::array<std::string_view, 3> rotary_scaling_json_names = {"none", "linear", "llama3"};

/// The fields of a model that determine its weights and values, named once for reading and writing.
/// The model's own residual rule, constraint and attention multiplier are left out: saved models take the recipe's.
template <class Visitor>
void describe_decoder(Visitor& visitor, nn::DecoderConfig& config) {
    visitor.field("vocabulary", config.vocabulary);
    visitor.field("width", config.width);
    visitor.field("depth", config.depth);
    visitor.field("heads", config.heads);
    visitor.field("groups", config.groups);
    visitor.field("length", config.length);
    visitor.field("hidden_ratio", config.hidden_ratio);
    visitor.field("hidden", config.hidden);
    visitor.choice("feed_forward", config.feed_forward, feed_forward_json_names);
    visitor.object("norm", config.norm, [](auto& v, nn::NormConfig& norm) {
        v.choice("kind", norm.kind, norm_json_names);
        v.field("gains", norm.gains);
        v.field("epsilon", norm.epsilon);
    });
    visitor.choice("placement", config.placement, placement_json_names);
    visitor.choice("positions", config.positions, positions_json_names);
    visitor.field("rotary_base", config.rotary_base);
    visitor.group("rotary_scaling", config.rotary_scaling, [](auto& v, ops::RotaryScaling& scaling) {
        const ops::RotaryScaling usual;
        v.added_choice("kind", scaling.kind, usual.kind, rotary_scaling_json_names);
        v.added_field("factor", scaling.factor, usual.factor);
        v.added_field("low_frequency_factor", scaling.low_frequency_factor, usual.low_frequency_factor);
        v.added_field("high_frequency_factor", scaling.high_frequency_factor, usual.high_frequency_factor);
        v.added_field("original_length", scaling.original_length, usual.original_length);
    });
    visitor.added_field("window", config.window, std::size_t{0});
    visitor.added_field("head_size", config.head_size, std::size_t{0});
    visitor.field("dropout", config.dropout);
    visitor.field("bias", config.bias);
    visitor.added_field("query_key_value_bias", config.query_key_value_bias, false);
    visitor.added_field("readout_bias", config.readout_bias, false);
    visitor.added_field("final_norm", config.final_norm, false);
    visitor.added_field("embedding_norm", config.embedding_norm, false);
    visitor.added_choice("context", config.context.kind, nn::ContextKind::attention, nn::context_kind_names);
    visitor.added_field("kernel", config.context.kernel, nn::ContextConfig{}.kernel);
    visitor.added_field("convolution_groups", config.context.convolution_groups,
                        nn::ContextConfig{}.convolution_groups);
    visitor.added_field("gate_shift", config.context.gate_shift, nn::ContextConfig{}.gate_shift);
    visitor.field("tied", config.tied);
}
[[nodiscard]] inline nlohmann::ordered_json decoder_to_json(nn::DecoderConfig config) {
    io::JsonWriter writer;
    describe_decoder(writer, config);
    return writer.json();
}
[[nodiscard]] inline nn::DecoderConfig decoder_from_json(const nlohmann::ordered_json& json) {
    nn::DecoderConfig config;
    io::JsonReader reader(json, "model");
    describe_decoder(reader, config);
    reader.finish();
    return config;
}

/// The model of a checkpoint or of `save_decoder`. Errors, with `where` in front: the file holds no model; a model that
/// is not JSON; the errors of `decoder_from_json`.
[[nodiscard]] inline nn::DecoderConfig saved_decoder_config(const io::SafetensorsReader& file, std::string_view where) {
    const auto found = file.metadata().find("run/model");
    check(found != file.metadata().end(), where, ": has no 'run/model'; is it a file of weights alone?");
    const auto json = nlohmann::ordered_json::parse(found->second, nullptr, false);
    check(!json.is_discarded(), where, ": its model is not JSON");
    return decoder_from_json(json);
}

/// Saves a decoder's weights under this library's names, with its configuration and the recipe of its training.
/// `pretrained_config` and `load_weights` read the file. It holds no optimiser state.
/// Errors: the errors of CheckpointWriter. Test: tests/train/pretrained_test.cpp
template <class T>
void save_decoder(const std::filesystem::path& path, nn::Decoder<T>& model, const Recipe& recipe) {
    CheckpointWriter writer;
    writer.weights(model.parameters());
    writer.recipe(recipe);
    writer.set_prefix("run/");
    writer.text("model", decoder_to_json(model.config()).dump());
    writer.write(path);
}

/// The name of the text by which a checkpoint keeps a tokeniser, under the prefix `run/`.
[[nodiscard]] inline const char* tokeniser_key(const io::Tokeniser& tokeniser) {
    return dynamic_cast<const io::CharacterVocabulary*>(&tokeniser) != nullptr ? "vocabulary" : "tokeniser";
}

/// The recipe of a model from a checkpoint that was saved under `saved`: `wanted`, or `saved` where there is none.
/// Error: the weights would be another model under the wanted recipe (check_recipe_switch).
[[nodiscard]] inline const Recipe& recipe_of_weights(const std::filesystem::path& path, const Recipe& saved,
                                                     const Recipe* wanted) {
    if (wanted == nullptr) return saved;
    check_recipe_switch(concatenate("checkpoint: ", path.string(), ": another model"), saved, *wanted);
    return *wanted;
}

/// Makes a tokeniser from the text that a checkpoint keeps (io::Tokeniser::to_text).
using TokeniserReader = std::function<std::shared_ptr<const io::Tokeniser>(const std::string&)>;

/// Reads the tokeniser of bytes. Error: another tokeniser. A program with these has a reader of its own, so that this
/// header needs none of their libraries.
[[nodiscard]] inline std::shared_ptr<const io::Tokeniser> read_byte_tokeniser(const std::string& text) {
    check(text == "bytes", "checkpoint: its tokeniser is not of characters or bytes; it needs a TokeniserReader");
    return std::make_shared<io::ByteTokeniser>();
}

/// A trained model of characters or other tokens from a checkpoint, ready to evaluate and to generate text.
/// It holds config, tokeniser, recipe, weights, and the forward factors of its training.
/// Its values therefore equal, bit for bit, the values of the run that saved it.
/// Weights that the file holds as codes stay codes, unless the recipe rounds them to another form.
/// With a `recipe` its products round as that recipe says, for an evaluation after training. The weights are rounded to
/// the recipe's element type.
/// T: the type that the recipe's tape computes in; `with_saved_model` finds it.
/// Errors: the errors of CheckpointReader; a recipe under which the weights would be another model.
/// Test: tests/train/saved_model_test.cpp
template <class T>
class SavedModel {
public:
    explicit SavedModel(const std::filesystem::path& path, int threads = 1,
                        const TokeniserReader& read = read_byte_tokeniser)
        : SavedModel(CheckpointReader(path), path, nullptr, threads, read) {}
    SavedModel(const std::filesystem::path& path, const Recipe& recipe, int threads = 1,
               const TokeniserReader& read = read_byte_tokeniser)
        : SavedModel(CheckpointReader(path), path, &recipe, threads, read) {}

    [[nodiscard]] nn::Decoder<T>& model() noexcept { return model_; }
    [[nodiscard]] Tape<T>& tape() noexcept { return tape_; }
    [[nodiscard]] ScalingState& state() noexcept { return state_; }
    [[nodiscard]] const Recipe& recipe() const noexcept { return recipe_; }
    [[nodiscard]] const io::Tokeniser& tokeniser() const noexcept { return *tokeniser_; }
    /// The characters of a character model; nullptr for a model of other tokens.
    [[nodiscard]] const io::CharacterVocabulary* characters() const noexcept {
        return dynamic_cast<const io::CharacterVocabulary*>(tokeniser_.get());
    }
    /// `*characters()`. Error: the model has other tokens.
    [[nodiscard]] const io::CharacterVocabulary& vocabulary() const {
        check(characters() != nullptr, "checkpoint: the model's tokens are not characters");
        return *characters();
    }

    /// Saves the model as it is, with codes of parameters that keep their values so (`code_weights`).
    /// The file holds no optimiser state.
    void save(const std::filesystem::path& path) { save(path, recipe_); }
    /// Saves the model with another recipe, such as one with measured biases (train/calibrate.hpp).
    void save(const std::filesystem::path& path, const Recipe& recipe) {
        CheckpointWriter writer;
        writer.weights(model_.parameters());
        writer.recipe(recipe);
        writer.set_prefix("state/");
        state_.visit_state(writer);
        writer.set_prefix("run/");
        writer.text(tokeniser_key(*tokeniser_), tokeniser_->to_text());
        writer.text("model", decoder_to_json(model_.config()).dump());
        writer.write(path);
    }

private:
    SavedModel(CheckpointReader&& reader, const std::filesystem::path& path, const Recipe* recipe, int threads,
               const TokeniserReader& read);
    /// Files of character models keep the characters, as they did before there were other tokens.
    static std::shared_ptr<const io::Tokeniser> tokeniser_of(CheckpointReader& reader, const TokeniserReader& read) {
        const bool other = reader.file().metadata().contains("run/tokeniser");
        reader.set_prefix("run/");
        if (other) return read(reader.text("tokeniser"));
        return std::make_shared<io::CharacterVocabulary>(io::decode_utf8(reader.text("vocabulary")));
    }

    Recipe recipe_;
    std::shared_ptr<const io::Tokeniser> tokeniser_;
    nn::Decoder<T> model_;
    ScalingState state_{};
    Tape<T> tape_;
};

template <class T>  // out of the class, so that sources do not compile it whose program instantiates it elsewhere
SavedModel<T>::SavedModel(CheckpointReader&& reader, const std::filesystem::path& path, const Recipe* recipe,
                          int threads, const TokeniserReader& read)
    : recipe_(recipe_of_weights(path, reader.recipe(), recipe)),
      tokeniser_(tokeniser_of(reader, read)),
      model_(saved_decoder_config(reader.file(), concatenate("checkpoint: ", path.string()))),
      tape_(recipe_, state_, threads) {
    reader.weights(model_.parameters(), recipe_.scaling != Scaling::propagate, true);
    reader.set_prefix("state/");
    std::map<std::string, double> ignored;
    for (const char* name : {"plan", "amax"}) reader.table(name, ignored);
    state_.visit_state(reader);
    reader.commit();
    decode_other_forms(model_.parameters(), recipe_);
}

/// Calls f with the model saved at `path` under a recipe, a SavedModel<T>&, and returns the result of f.
/// It compiles f for three types.
template <class F>
auto with_saved_model(const std::filesystem::path& path, const Recipe& recipe, int threads, F&& f,
                      const TokeniserReader& read = read_byte_tokeniser) {
    return with_element(recipe, [&]<class T>(std::type_identity<T>) {
        SavedModel<T> saved(path, recipe, threads, read);
        return f(saved);
    });
}
/// Calls f with the model under its own recipe.
template <class F>
auto with_saved_model(const std::filesystem::path& path, int threads, F&& f,
                      const TokeniserReader& read = read_byte_tokeniser) {
    return with_saved_model(path, CheckpointReader(path).recipe(), threads, std::forward<F>(f), read);
}

}  // namespace unitscale::train
