// SPDX-License-Identifier: MIT
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

// The tensors' names in the published files of GPT-2, Llama (and Qwen2) and BERT, as the Python package transformers
// defines them, and the parameters of nn::Decoder and nn::Bert that they hold.
// Test: tests/train/published_names_test.cpp
namespace unitscale::train {

enum class PublishedFamily { gpt2, llama, bert };
/// The families' names, as in `model_type` of a config.json.
inline constexpr std::array<std::string_view, 3> published_family_names = {"gpt2", "llama", "bert"};

/// A linear layer's bias, in a family where some models have biases: of queries, keys and values, or of another layer.
enum class PublishedBias { none, input, other };

/// The place of a parameter's values in a file. `*` stands for a block's number in both names.
/// `shape` is the shape of the tensor in the file: V vocabulary, P positions, W width, H hidden columns, Q columns of
/// queries, K columns of keys, S segments, N two. A digit multiplies the extent after it.
struct PublishedName {
    std::string_view parameter, tensor, shape;
    bool transposed = false;  ///< the tensor is [in,out], the parameter [out,in]
    std::size_t part = 0;     ///< this parameter's number among the parameters side by side in the tensor's columns
    std::size_t parts = 1;    ///< the number of parameters in the tensor
    PublishedBias bias = PublishedBias::none;
    bool is_head = false;  ///< of a head, which the file or the model may lack
};

/// GPT-2's linear layers are stored for x W. Queries, keys and values are one linear layer.
inline constexpr std::array<PublishedName, 21> gpt2_names{{
    {"decoder/tokens/weight", "wte.weight", "VW"},
    {"decoder/positions/weight", "wpe.weight", "PW"},
    {"decoder/block*/attention_norm/gain", "h.*.ln_1.weight", "W"},
    {"decoder/block*/attention_norm/shift", "h.*.ln_1.bias", "W"},
    {"decoder/block*/attention/query/weight", "h.*.attn.c_attn.weight", "W3W", true, 0, 3},
    {"decoder/block*/attention/query/bias", "h.*.attn.c_attn.bias", "3W", false, 0, 3},
    {"decoder/block*/attention/key/weight", "h.*.attn.c_attn.weight", "W3W", true, 1, 3},
    {"decoder/block*/attention/key/bias", "h.*.attn.c_attn.bias", "3W", false, 1, 3},
    {"decoder/block*/attention/value/weight", "h.*.attn.c_attn.weight", "W3W", true, 2, 3},
    {"decoder/block*/attention/value/bias", "h.*.attn.c_attn.bias", "3W", false, 2, 3},
    {"decoder/block*/attention/out/weight", "h.*.attn.c_proj.weight", "WW", true},
    {"decoder/block*/attention/out/bias", "h.*.attn.c_proj.bias", "W"},
    {"decoder/block*/ffn_norm/gain", "h.*.ln_2.weight", "W"},
    {"decoder/block*/ffn_norm/shift", "h.*.ln_2.bias", "W"},
    {"decoder/block*/ffn/up/weight", "h.*.mlp.c_fc.weight", "WH", true},
    {"decoder/block*/ffn/up/bias", "h.*.mlp.c_fc.bias", "H"},
    {"decoder/block*/ffn/down/weight", "h.*.mlp.c_proj.weight", "HW", true},
    {"decoder/block*/ffn/down/bias", "h.*.mlp.c_proj.bias", "W"},
    {"decoder/norm/gain", "ln_f.weight", "W"},
    {"decoder/norm/shift", "ln_f.bias", "W"},
    {"decoder/readout/weight", "lm_head.weight", "VW"},
}};
inline constexpr std::array<PublishedName, 19> llama_names{{
    {"decoder/tokens/weight", "embed_tokens.weight", "VW"},
    {"decoder/block*/attention_norm/gain", "layers.*.input_layernorm.weight", "W"},
    {"decoder/block*/attention/query/weight", "layers.*.self_attn.q_proj.weight", "QW"},
    {"decoder/block*/attention/query/bias", "layers.*.self_attn.q_proj.bias", "Q", false, 0, 1, PublishedBias::input},
    {"decoder/block*/attention/key/weight", "layers.*.self_attn.k_proj.weight", "KW"},
    {"decoder/block*/attention/key/bias", "layers.*.self_attn.k_proj.bias", "K", false, 0, 1, PublishedBias::input},
    {"decoder/block*/attention/value/weight", "layers.*.self_attn.v_proj.weight", "KW"},
    {"decoder/block*/attention/value/bias", "layers.*.self_attn.v_proj.bias", "K", false, 0, 1, PublishedBias::input},
    {"decoder/block*/attention/out/weight", "layers.*.self_attn.o_proj.weight", "WQ"},
    {"decoder/block*/attention/out/bias", "layers.*.self_attn.o_proj.bias", "W", false, 0, 1, PublishedBias::other},
    {"decoder/block*/ffn_norm/gain", "layers.*.post_attention_layernorm.weight", "W"},
    {"decoder/block*/ffn/up/weight", "layers.*.mlp.up_proj.weight", "HW"},
    {"decoder/block*/ffn/up/bias", "layers.*.mlp.up_proj.bias", "H", false, 0, 1, PublishedBias::other},
    {"decoder/block*/ffn/gate/weight", "layers.*.mlp.gate_proj.weight", "HW"},
    {"decoder/block*/ffn/gate/bias", "layers.*.mlp.gate_proj.bias", "H", false, 0, 1, PublishedBias::other},
    {"decoder/block*/ffn/down/weight", "layers.*.mlp.down_proj.weight", "WH"},
    {"decoder/block*/ffn/down/bias", "layers.*.mlp.down_proj.bias", "W", false, 0, 1, PublishedBias::other},
    {"decoder/norm/gain", "norm.weight", "W"},
    {"decoder/readout/weight", "lm_head.weight", "VW"},
}};
inline constexpr std::array<PublishedName, 32> bert_names{{
    {"bert/tokens/weight", "embeddings.word_embeddings.weight", "VW"},
    {"bert/segments/weight", "embeddings.token_type_embeddings.weight", "SW"},
    {"bert/positions/weight", "embeddings.position_embeddings.weight", "PW"},
    {"bert/embedding_norm/gain", "embeddings.LayerNorm.weight", "W"},
    {"bert/embedding_norm/shift", "embeddings.LayerNorm.bias", "W"},
    {"bert/block*/attention/query/weight", "encoder.layer.*.attention.self.query.weight", "WW"},
    {"bert/block*/attention/query/bias", "encoder.layer.*.attention.self.query.bias", "W"},
    {"bert/block*/attention/key/weight", "encoder.layer.*.attention.self.key.weight", "WW"},
    {"bert/block*/attention/key/bias", "encoder.layer.*.attention.self.key.bias", "W"},
    {"bert/block*/attention/value/weight", "encoder.layer.*.attention.self.value.weight", "WW"},
    {"bert/block*/attention/value/bias", "encoder.layer.*.attention.self.value.bias", "W"},
    {"bert/block*/attention/out/weight", "encoder.layer.*.attention.output.dense.weight", "WW"},
    {"bert/block*/attention/out/bias", "encoder.layer.*.attention.output.dense.bias", "W"},
    {"bert/block*/attention_norm/gain", "encoder.layer.*.attention.output.LayerNorm.weight", "W"},
    {"bert/block*/attention_norm/shift", "encoder.layer.*.attention.output.LayerNorm.bias", "W"},
    {"bert/block*/ffn/up/weight", "encoder.layer.*.intermediate.dense.weight", "HW"},
    {"bert/block*/ffn/up/bias", "encoder.layer.*.intermediate.dense.bias", "H"},
    {"bert/block*/ffn/down/weight", "encoder.layer.*.output.dense.weight", "WH"},
    {"bert/block*/ffn/down/bias", "encoder.layer.*.output.dense.bias", "W"},
    {"bert/block*/ffn_norm/gain", "encoder.layer.*.output.LayerNorm.weight", "W"},
    {"bert/block*/ffn_norm/shift", "encoder.layer.*.output.LayerNorm.bias", "W"},
    {"bert/pooler/weight", "pooler.dense.weight", "WW", false, 0, 1, PublishedBias::none, true},
    {"bert/pooler/bias", "pooler.dense.bias", "W", false, 0, 1, PublishedBias::none, true},
    {"bert/transform/weight", "cls.predictions.transform.dense.weight", "WW", false, 0, 1, PublishedBias::none, true},
    {"bert/transform/bias", "cls.predictions.transform.dense.bias", "W", false, 0, 1, PublishedBias::none, true},
    {"bert/transform_norm/gain", "cls.predictions.transform.LayerNorm.weight", "W", false, 0, 1, PublishedBias::none,
     true},
    {"bert/transform_norm/shift", "cls.predictions.transform.LayerNorm.bias", "W", false, 0, 1, PublishedBias::none,
     true},
    {"bert/readout/bias", "cls.predictions.bias", "V", false, 0, 1, PublishedBias::none, true},
    {"bert/next_sentence/weight", "cls.seq_relationship.weight", "NW", false, 0, 1, PublishedBias::none, true},
    {"bert/next_sentence/bias", "cls.seq_relationship.bias", "N", false, 0, 1, PublishedBias::none, true},
    {"bert/spans/weight", "qa_outputs.weight", "NW", false, 0, 1, PublishedBias::none, true},
    {"bert/spans/bias", "qa_outputs.bias", "N", false, 0, 1, PublishedBias::none, true},
}};
/// Tensors of such files that are not parameters: masks, angles and numbers of positions.
inline constexpr std::array<std::string_view, 4> published_constants = {
    "h.*.attn.bias", "h.*.attn.masked_bias", "layers.*.self_attn.rotary_emb.inv_freq", "embeddings.position_ids"};

/// The text in `name` in place of the `*` of `pattern`: a number without leading zeros. Empty optional: no match.
/// A pattern without `*` matches itself, with an empty number.
[[nodiscard]] inline std::optional<std::string_view> match_numbered(std::string_view pattern,
                                                                    std::string_view name) noexcept {
    const std::size_t star = pattern.find('*');
    if (star == std::string_view::npos) return pattern == name ? std::optional(std::string_view()) : std::nullopt;
    const std::string_view head = pattern.substr(0, star), tail = pattern.substr(star + 1);
    if (name.size() < pattern.size() || !name.starts_with(head) || !name.ends_with(tail)) return std::nullopt;
    const std::string_view number = name.substr(star, name.size() - head.size() - tail.size());
    const bool digits = number.find_first_not_of("0123456789") == std::string_view::npos;
    if (!digits || number.size() > 9 || (number.size() > 1 && number[0] == '0')) return std::nullopt;
    return number;
}
/// The pattern with `number` in place of its `*`.
[[nodiscard]] inline std::string fill_number(std::string_view pattern, std::string_view number) {
    std::string name(pattern);
    if (const std::size_t star = name.find('*'); star != std::string::npos) name.replace(star, 1, number);
    return name;
}

[[nodiscard]] constexpr std::span<const PublishedName> published_names(PublishedFamily family) noexcept {
    if (family == PublishedFamily::bert) return bert_names;
    return family == PublishedFamily::gpt2 ? std::span<const PublishedName>(gpt2_names) : llama_names;
}
/// The name of a readout's weight, which stands without a prefix.
inline constexpr std::string_view published_readout = "lm_head.weight";
/// The prefix that a family's tensors may have.
[[nodiscard]] constexpr std::string_view published_prefix(PublishedFamily family) noexcept {
    constexpr std::array<std::string_view, 3> prefixes{"transformer.", "model.", "bert."};
    return prefixes[static_cast<std::size_t>(family)];
}

}  // namespace unitscale::train
