// SPDX-License-Identifier: MIT
#include <unitscale/train/published_weights.hpp>

#include "support/catch.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

using namespace unitscale;

namespace {

using Shapes = std::vector<std::pair<std::string, Shape>>;

/// Vocabulary 5, 4 positions, width 2, 3 hidden columns: names and shapes as the package transformers writes them.
Shapes gpt2(const std::string& prefix = "", std::size_t blocks = 2) {
    Shapes shapes{{prefix + "wte.weight", {5, 2}}, {prefix + "wpe.weight", {4, 2}}};
    for (std::size_t i = 0; i < blocks; ++i) {
        const std::string block = prefix + "h." + std::to_string(i) + ".";
        for (const auto& [name, shape] : Shapes{{"ln_1.weight", {2}},
                                                {"ln_1.bias", {2}},
                                                {"attn.c_attn.weight", {2, 6}},
                                                {"attn.c_attn.bias", {6}},
                                                {"attn.c_proj.weight", {2, 2}},
                                                {"attn.c_proj.bias", {2}},
                                                {"ln_2.weight", {2}},
                                                {"ln_2.bias", {2}},
                                                {"mlp.c_fc.weight", {2, 3}},
                                                {"mlp.c_fc.bias", {3}},
                                                {"mlp.c_proj.weight", {3, 2}},
                                                {"mlp.c_proj.bias", {2}}})
            shapes.emplace_back(block + name, shape);
    }
    shapes.emplace_back(prefix + "ln_f.weight", Shape{2});
    shapes.emplace_back(prefix + "ln_f.bias", Shape{2});
    return shapes;
}

/// Vocabulary 5, width 4, 2 columns of keys, 3 hidden columns.
Shapes llama(const std::string& prefix = "model.", bool bias = false) {
    Shapes shapes{{prefix + "embed_tokens.weight", {5, 4}}, {prefix + "norm.weight", {4}}};
    for (const char* block : {"layers.0.", "layers.1."}) {
        shapes.emplace_back(prefix + block + "input_layernorm.weight", Shape{4});
        shapes.emplace_back(prefix + block + "post_attention_layernorm.weight", Shape{4});
        for (const auto& [name, shape] : Shapes{{"self_attn.q_proj", {4, 4}},
                                                {"self_attn.k_proj", {2, 4}},
                                                {"self_attn.v_proj", {2, 4}},
                                                {"self_attn.o_proj", {4, 4}},
                                                {"mlp.gate_proj", {3, 4}},
                                                {"mlp.up_proj", {3, 4}},
                                                {"mlp.down_proj", {4, 3}}}) {
            shapes.emplace_back(prefix + block + name + ".weight", shape);
            if (bias) shapes.emplace_back(prefix + block + name + ".bias", Shape{shape[0]});
        }
    }
    return shapes;
}

/// Vocabulary 5, 6 positions, width 4, 3 hidden columns, one block.
Shapes bert(const std::string& prefix = "bert.", bool older = false) {
    const std::string weight = older ? "gamma" : "weight", bias = older ? "beta" : "bias";
    Shapes shapes{{prefix + "embeddings.word_embeddings.weight", {5, 4}},
                  {prefix + "embeddings.token_type_embeddings.weight", {2, 4}},
                  {prefix + "embeddings.position_embeddings.weight", {6, 4}}};
    const auto norm = [&](const std::string& name) {
        shapes.emplace_back(name + "." + weight, Shape{4});
        shapes.emplace_back(name + "." + bias, Shape{4});
    };
    const auto layer = [&](const std::string& name, std::size_t out, std::size_t in) {
        shapes.emplace_back(name + ".weight", Shape{out, in});
        shapes.emplace_back(name + ".bias", Shape{out});
    };
    norm(prefix + "embeddings.LayerNorm");
    const std::string block = prefix + "encoder.layer.0.";
    for (const char* part : {"query", "key", "value"}) layer(block + "attention.self." + part, 4, 4);
    layer(block + "attention.output.dense", 4, 4);
    norm(block + "attention.output.LayerNorm");
    layer(block + "intermediate.dense", 3, 4);
    layer(block + "output.dense", 4, 3);
    norm(block + "output.LayerNorm");
    layer(prefix + "pooler.dense", 4, 4);
    layer("cls.predictions.transform.dense", 4, 4);
    norm("cls.predictions.transform.LayerNorm");
    shapes.emplace_back("cls.predictions.bias", Shape{5});
    layer("cls.seq_relationship", 2, 4);
    return shapes;
}

/// A file in memory: element i of the n-th tensor is 100 n + i.
class File {
public:
    explicit File(const Shapes& shapes) {
        io::SafetensorsWriter writer;
        float first = 0.0f;
        for (const auto& [name, shape] : shapes) {
            Tensor<float> tensor(shape);
            for (std::size_t i = 0; i < tensor.size(); ++i) tensor.data()[i] = first + static_cast<float>(i);
            writer.add(name, std::move(tensor));
            first += 100.0f;
        }
        write(writer);
    }
    explicit File(const io::SafetensorsWriter& writer) { write(writer); }

    [[nodiscard]] std::optional<train::PublishedWeights> weights() const {
        return train::PublishedWeights::find(*reader_, "test: file");
    }
    [[nodiscard]] train::PublishedSizes sizes() const { return weights().value().sizes(); }
    [[nodiscard]] std::vector<float> read(const std::string& parameter, const Shape& shape) const {
        const Tensor<float> tensor = weights().value().read<float>(parameter, shape);
        CHECK(tensor.shape() == shape);
        return {tensor.span().begin(), tensor.span().end()};
    }

private:
    void write(const io::SafetensorsWriter& writer) {
        writer.write_to(
            [this](std::span<const std::byte> part) { bytes_.insert(bytes_.end(), part.begin(), part.end()); });
        reader_ = std::make_unique<io::SafetensorsReader>(bytes_, "file");
    }
    std::vector<std::byte> bytes_{};
    std::unique_ptr<io::SafetensorsReader> reader_{};
};

/// The shapes with one of them changed or added; an empty list removes the tensor.
Shapes with(Shapes shapes, const std::string& name, const std::optional<Shape>& shape) {
    const auto found =
        std::find_if(shapes.begin(), shapes.end(), [&](const auto& entry) { return entry.first == name; });
    if (!shape) shapes.erase(found);
    else if (found != shapes.end()) found->second = *shape;
    else shapes.emplace_back(name, *shape);
    return shapes;
}

}  // namespace

TEST_CASE("published weights: a number in a name") {
    CHECK(train::match_numbered("h.*.ln", "h.0.ln") == "0");
    CHECK(train::match_numbered("h.*.ln", "h.120.ln") == "120");
    CHECK(train::match_numbered("ln", "ln") == "");
    for (const char* other :
         {"h..ln", "h.01.ln", "h.1x.ln", "h.-1.ln", "h.1.ln2", "g.1.ln", "h.1234567890.ln", "h.ln", ""})
        CHECK_FALSE(train::match_numbered("h.*.ln", other).has_value());
    CHECK(train::fill_number("h.*.ln", "12") == "h.12.ln");
    CHECK(train::fill_number("ln", "") == "ln");
}

TEST_CASE("published weights: every row of a family has its own parameter and place") {
    const auto check_rows = [](const auto& names) {
        std::set<std::string_view> parameters;
        std::set<std::pair<std::string_view, std::size_t>> places;
        for (const train::PublishedName& row : names) {
            CHECK(parameters.insert(row.parameter).second);
            CHECK(places.emplace(row.tensor, row.part).second);
            CHECK(row.part < row.parts);
        }
    };
    check_rows(train::gpt2_names);
    check_rows(train::llama_names);
    check_rows(train::bert_names);
}

TEST_CASE("published weights: GPT-2's fused and transposed layers become the decoder's layers") {
    for (const char* prefix : {"", "transformer."}) {
        INFO(prefix);
        const File file(gpt2(prefix));
        REQUIRE(file.weights()->family() == train::PublishedFamily::gpt2);
        // c_attn.weight is the fifth tensor: row i is 400 + 6 i + (q0 q1 k0 k1 v0 v1).
        CHECK(file.read("decoder/block0/attention/query/weight", {2, 2}) == std::vector<float>{400, 406, 401, 407});
        CHECK(file.read("decoder/block0/attention/key/weight", {2, 2}) == std::vector<float>{402, 408, 403, 409});
        CHECK(file.read("decoder/block0/attention/value/weight", {2, 2}) == std::vector<float>{404, 410, 405, 411});
        CHECK(file.read("decoder/block0/attention/query/bias", {2}) == std::vector<float>{500, 501});
        CHECK(file.read("decoder/block0/attention/key/bias", {2}) == std::vector<float>{502, 503});
        CHECK(file.read("decoder/block0/attention/value/bias", {2}) == std::vector<float>{504, 505});
        CHECK(file.read("decoder/block0/attention/out/weight", {2, 2}) == std::vector<float>{600, 602, 601, 603});
        CHECK(file.read("decoder/block0/ffn/up/weight", {3, 2}) ==
              std::vector<float>{1000, 1003, 1001, 1004, 1002, 1005});
        CHECK(file.read("decoder/block1/ffn/down/weight", {2, 3}) ==
              std::vector<float>{2400, 2402, 2404, 2401, 2403, 2405});
        CHECK(file.read("decoder/block1/ffn_norm/shift", {2}) == std::vector<float>{2100, 2101});
        CHECK(file.read("decoder/positions/weight", {4, 2})[7] == 107);
        CHECK(file.read("decoder/norm/gain", {2}) == std::vector<float>{2600, 2601});

        const train::PublishedSizes sizes = file.sizes();
        CHECK((sizes.vocabulary == 5 && sizes.positions == 4 && sizes.width == 2 && sizes.hidden == 3 &&
               sizes.keys == 2));
        CHECK((sizes.blocks == 2 && sizes.bias && !sizes.readout));
        CHECK(File(with(gpt2(prefix), "lm_head.weight", Shape{5, 2})).sizes().readout);
    }
}

TEST_CASE("published weights: Llama's layers, with and without biases") {
    for (const char* prefix : {"", "model."})
        for (const bool bias : {false, true}) {
            INFO(prefix << bias);
            const File file(with(llama(prefix, bias), "lm_head.weight", Shape{5, 4}));
            REQUIRE(file.weights()->family() == train::PublishedFamily::llama);
            const train::PublishedSizes sizes = file.sizes();
            CHECK((sizes.vocabulary == 5 && sizes.positions == 0 && sizes.width == 4 && sizes.hidden == 3 &&
                   sizes.keys == 2));
            CHECK((sizes.blocks == 2 && sizes.bias == bias && sizes.readout));
            CHECK(file.read("decoder/tokens/weight", {5, 4})[19] == 19);
            const float step = bias ? 200 : 100;
            CHECK(file.read("decoder/block0/attention/query/weight", {4, 4})[1] == 401);
            CHECK(file.read("decoder/block0/attention/value/weight", {2, 4})[7] == 407 + 2 * step);
            CHECK(file.read("decoder/block0/ffn/gate/weight", {3, 4})[1] == 401 + 4 * step);
            CHECK(file.read("decoder/block0/ffn/up/weight", {3, 4})[1] == 401 + 5 * step);
            CHECK(file.read("decoder/block1/ffn_norm/gain", {4})[3] == 503 + 7 * step);
            CHECK(file.read("decoder/readout/weight", {5, 4})[0] == 600 + 14 * step);
            if (bias) CHECK(file.read("decoder/block0/attention/key/bias", {2}) == std::vector<float>{700, 701});
        }
}

TEST_CASE("published weights: BERT's layers and heads, with older names of norms, and the heads' notes") {
    for (const char* prefix : {"", "bert."})
        for (const bool older : {false, true}) {
            INFO(prefix << older);
            const File file(with(bert(prefix, older), std::string(prefix) + "embeddings.position_ids", Shape{1, 6}));
            REQUIRE(file.weights()->family() == train::PublishedFamily::bert);
            const train::PublishedSizes sizes = file.sizes();
            CHECK((sizes.vocabulary == 5 && sizes.positions == 6 && sizes.width == 4 && sizes.hidden == 3));
            CHECK((sizes.keys == 4 && sizes.blocks == 1 && sizes.segments == 2 && sizes.bias));
            CHECK(file.read("bert/segments/weight", {2, 4})[0] == 100);
            CHECK(file.read("bert/embedding_norm/gain", {4})[0] == 300);
            CHECK(file.read("bert/embedding_norm/shift", {4})[0] == 400);
            CHECK(file.read("bert/block0/attention/query/weight", {4, 4})[1] == 501);
            CHECK(file.read("bert/block0/attention/out/bias", {4})[3] == 1203);
            CHECK(file.read("bert/block0/attention_norm/gain", {4})[0] == 1300);
            CHECK(file.read("bert/block0/ffn/up/weight", {3, 4})[0] == 1500);
            CHECK(file.read("bert/block0/ffn/down/weight", {4, 3})[11] == 1711);
            CHECK(file.read("bert/block0/ffn_norm/shift", {4})[0] == 2000);
            CHECK(file.read("bert/pooler/bias", {4})[0] == 2200);
            CHECK(file.read("bert/transform/weight", {4, 4})[0] == 2300);
            CHECK(file.read("bert/transform_norm/gain", {4})[0] == 2500);
            CHECK(file.read("bert/readout/bias", {5})[4] == 2704);
            CHECK(file.read("bert/next_sentence/weight", {2, 4})[0] == 2800);
        }
    // The copies of the tied readout must equal their originals.
    const std::vector<std::string> model{"bert/tokens/weight", "bert/readout/bias", "bert/spans/weight"};
    for (const float last : {1.5f, 1.25f}) {
        Tensor<float> table({5, 4}, std::vector<float>(20, 1.5f)), bias({5}, std::vector<float>(5, 1.5f)), copy = bias;
        copy.data()[4] = last;
        io::SafetensorsWriter writer;
        writer.add("bert.embeddings.word_embeddings.weight", table);
        writer.add("cls.predictions.decoder.weight", table);
        writer.add("cls.predictions.bias", bias);
        writer.add("cls.predictions.decoder.bias", copy);
        writer.add("cls.seq_relationship.bias", Tensor<float>({2}, {1.0f, 2.0f}));
        const File file(writer);
        if (last == 1.5f) CHECK_NOTHROW(file.weights()->check_all_used(model));
        else
            CHECK_THROWS_WITH(file.weights()->check_all_used(model),
                              "test: file: 'cls.predictions.decoder.bias' is not 'cls.predictions.bias', which is the "
                              "readout of this model too");
        CHECK(file.weights()->holds("bert/readout/bias"));
        CHECK_FALSE(file.weights()->holds("bert/spans/weight"));
        CHECK(file.weights()->head_notes(model) ==
              std::vector<std::string>{": has no 'qa_outputs.weight': these heads keep their values",
                                       ": this model has no heads for 'cls.seq_relationship.bias'"});
    }
    const auto refused = [](const Shapes& shapes, const std::string& message) {
        CHECK_THROWS_WITH(File(shapes).sizes(), "test: file: tensor " + message);
    };
    refused(with(bert(), "classifier.weight", Shape{2, 4}),
            "'classifier.weight' belongs to no parameter of this model");
    refused(with(bert(), "cls.seq_relationship.weight", Shape{3, 4}),
            "'cls.seq_relationship.weight' is [3,4]; expected [2,4]");
    CHECK_THROWS_WITH(File(with(bert(), "bert.encoder.layer.0.output.dense.bias", std::nullopt)).sizes(),
                      Catch::StartsWith("safetensors: file: no tensor 'bert.encoder.layer.0.output.dense.bias'"));
    CHECK(File(with(bert(), "bert.pooler.dense.bias", std::nullopt)).sizes().width == 4);
}

TEST_CASE("published weights: files may hold tensors of any type that are no parameters") {
    Shapes shapes = gpt2();
    shapes.emplace_back("h.0.attn.bias", Shape{1, 1, 4, 4});
    shapes.emplace_back("h.1.attn.masked_bias", Shape{});
    CHECK(File(shapes).sizes().blocks == 2);
    CHECK(File(with(llama(), "model.layers.1.self_attn.rotary_emb.inv_freq", Shape{1})).sizes().blocks == 2);
    CHECK_FALSE(File(Shapes{{"a", {1}}}).weights().has_value());
    CHECK_FALSE(File(Shapes{}).weights().has_value());
}

TEST_CASE("published weights: a tensor that does not fit is an error of one line that names it") {
    const auto refused = [](const Shapes& shapes, const std::string& message) {
        CHECK_THROWS_WITH(File(shapes).sizes(), message);
    };
    const std::string start = "test: file: tensor ";
    refused(with(gpt2(), "h.1.attn.c_attn.weight", Shape{2, 5}),
            start + "'h.1.attn.c_attn.weight' is [2,5]; expected [2,6]");
    refused(with(gpt2(), "h.1.mlp.c_fc.weight", Shape{2, 4}), start + "'h.1.mlp.c_fc.weight' is [2,4]; expected [2,3]");
    refused(with(gpt2(), "ln_f.bias", Shape{2, 1}), start + "'ln_f.bias' is [2,1]; expected rank 1");
    refused(with(gpt2(), "wte.weight", Shape{5}), start + "'wte.weight' is [5]; expected rank 2");
    refused(with(gpt2(), "wte.weight", Shape{0, 2}), start + "'wte.weight' of shape [0,2] is empty");
    refused(with(gpt2(), "h.0.mlp.c_fc.weight", Shape{2, 0}), start + "'h.0.mlp.c_fc.weight' of shape [2,0] is empty");
    refused(with(llama(), "model.layers.1.self_attn.v_proj.weight", Shape{4, 4}),
            start + "'model.layers.1.self_attn.v_proj.weight' is [4,4]; expected [2,4]");
    refused(with(gpt2(), "h.0.attn.scale", Shape{1}), start + "'h.0.attn.scale' belongs to no parameter of this model");
    refused(with(gpt2(), "transformer.h.0.ln_1.weight", Shape{2}),
            start + "'transformer.h.0.ln_1.weight' belongs to no parameter of this model");
    refused(with(gpt2(), "h.0.\n", Shape{2}), start + "'h.0.\\u000a' belongs to no parameter of this model");
    refused(with(gpt2(), "h.999999.ln_1.weight", Shape{2}),
            start + "'h.999999.ln_1.weight' is of block 999999, but the file has 29 tensors in all");
    const auto missing = [](const Shapes& shapes, const std::string& name) {
        CHECK_THROWS_WITH(File(shapes).sizes(),
                          Catch::StartsWith("safetensors: file: no tensor '" + name + "'; the file holds '"));
    };
    missing(with(gpt2(), "h.0.ln_2.bias", std::nullopt), "h.0.ln_2.bias");
    missing(with(gpt2(), "h.3.ln_1.weight", Shape{2}), "h.2.ln_1.weight");
    missing(gpt2("", 0), "h.0.ln_1.weight");
    missing(with(llama(), "model.layers.0.self_attn.q_proj.bias", Shape{4}), "model.layers.1.self_attn.q_proj.bias");

    CHECK_THROWS_WITH(
        File(with(gpt2(), "transformer.wte.weight", Shape{5, 2})).weights(),
        "test: file: holds both 'wte.weight' and 'transformer.wte.weight'; expected the weights of one model");
    CHECK_THROWS_WITH(
        File(with(gpt2(), "model.embed_tokens.weight", Shape{5, 2})).weights(),
        "test: file: holds both 'wte.weight' and 'model.embed_tokens.weight'; expected the weights of one model");

    io::SafetensorsWriter integers;
    integers.add("wte.weight", Tensor<std::int32_t>({5, 2}));
    CHECK_THROWS_WITH(File(integers).sizes(), start + "'wte.weight' is of type 'I32'; expected a floating-point type");

    const File file(gpt2());
    CHECK_THROWS_WITH(file.read("decoder/block0/ffn/gate/weight", {3, 2}),
                      "test: file: holds gpt2 weights, which have no 'decoder/block0/ffn/gate/weight'");
    CHECK_THROWS_WITH(file.read("decoder/block0/attention/key/weight", {3, 2}),
                      "safetensors: file: tensor 'h.0.attn.c_attn.weight' is [2,6]; expected [2,9]");
}

TEST_CASE("published weights: tensors that no parameter of a model uses are refused") {
    const std::vector<std::string> model = {"decoder/tokens/weight"};
    CHECK_THROWS_WITH(File(gpt2()).weights()->check_all_used(model),
                      "test: file: tensor 'h.0.attn.c_attn.bias' belongs to no parameter of this model");
    const Shapes tables{{"embed_tokens.weight", {5, 4}}, {"layers.0.self_attn.rotary_emb.inv_freq", {1}}};
    CHECK_NOTHROW(File(tables).weights()->check_all_used(model));
    // In a model with a tied readout, the file's readout weight must equal the token table to the bit.
    Tensor<float> table({5, 4}, std::vector<float>(20, 1.5f)), other = table;
    for (const float last : {1.5f, 1.25f}) {
        other.data()[19] = last;
        io::SafetensorsWriter writer;
        writer.add("model.embed_tokens.weight", table);
        writer.add("lm_head.weight", other);
        const File file(writer);
        if (last == 1.5f) CHECK_NOTHROW(file.weights()->check_all_used(model));
        else
            CHECK_THROWS_WITH(file.weights()->check_all_used(model),
                              "test: file: 'lm_head.weight' is not 'model.embed_tokens.weight', which is the readout "
                              "of this model too");
    }
}
