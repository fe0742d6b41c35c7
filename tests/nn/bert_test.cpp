// SPDX-License-Identifier: MIT
#include <unitscale/nn/bert.hpp>

#include "support/language_model.hpp"
#include "support/op_checks.hpp"
#include "support/temporary_folder.hpp"
#include "support/test_ops.hpp"

#include <unitscale/analysis/audit.hpp>
#include <unitscale/analysis/scale_warnings.hpp>
#include <unitscale/io/safetensors.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/train/checkpoint.hpp>
#include <unitscale/train/element.hpp>
#include <unitscale/train/trainer.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

using namespace unitscale;

namespace {

const std::string data_folder = UNITSCALE_TEST_DATA;
constexpr nn::BertConfig tiny{
    .vocabulary = 19, .width = 8, .depth = 2, .heads = 2, .hidden = 12, .length = 9, .mean_length = 5, .spans = true};

/// Inputs and labels of pre-training: every n-th token but the first is masked.
struct Batch {
    nn::BertInput input{};
    Tensor<std::int32_t> rows{}, labels{}, next{};
};
Batch random_batch(std::size_t batch, std::size_t length, std::size_t vocabulary,
                   const std::vector<std::size_t>& lengths, double share, std::uint64_t stream = 1) {
    std::vector<std::int32_t> rows;
    for (std::size_t i = 0; i < batch * length; ++i) {
        const std::size_t place = i % length, end = lengths.empty() ? length : lengths[i / length];
        const double draw = static_cast<double>(random_word({3, stream}, i)) * 0x1p-32;
        if (place > 0 && place < end && draw < share) rows.push_back(static_cast<std::int32_t>(i));
    }
    Batch result{.input = {.ids = test::random_tokens({batch, length}, vocabulary, stream),
                           .segments = Tensor<std::int32_t>({batch, length}),
                           .lengths = lengths},
                 .rows = Tensor<std::int32_t>({rows.size()}, rows),
                 .labels = test::random_tokens({rows.size()}, vocabulary, stream + 1),
                 .next = Tensor<std::int32_t>({batch})};
    for (std::size_t b = 0; b < batch; ++b) result.next.data()[b] = b % 2;
    for (std::size_t i = 0; i < batch * length; ++i) result.input.segments.data()[i] = i % length >= length / 2;
    return result;
}

template <class T>
struct Model {
    Model(const Recipe& how, const nn::BertConfig& config)
        : recipe(recipe_in<T>(how)), bert(config), state(1), tape(recipe, state) {
        nn::initialise(bert.parameters(), recipe, 1);
    }
    Variable<T> loss(const Batch& batch, std::optional<std::size_t> step_rows = {}) {
        hidden = bert(tape, batch.input);
        masked = bert.masked_logits(hidden, batch.rows, step_rows);
        next = bert.next_sentence(bert.pooled(hidden));
        return nn::bert_loss(masked, batch.labels, next, batch.next, step_rows);
    }
    void forget() { hidden = masked = next = {}; }

    Recipe recipe;
    nn::Bert<T> bert;
    ScalingState state;
    Tape<T> tape;
    Variable<T> hidden{}, masked{}, next{};
};

/// The name of a parameter's tensor in tests/data/bert.safetensors.
std::string published_name(const std::string& parameter) {
    for (const train::PublishedName& row : train::bert_names)
        if (const auto number = train::match_numbered(row.parameter, parameter)) {
            const std::string name = train::fill_number(row.tensor, *number);
            return name.starts_with("cls.") || name.starts_with("qa_") ? name : "bert." + name;
        }
    return "";
}

}  // namespace

TEST_CASE("Bert: logits, losses and the gradients of all parameters equal PyTorch's, from published weights") {
    const io::SafetensorsReader expected(data_folder + "/bert_expected.safetensors");
    const auto integers = [&](const char* name) {
        const Tensor<std::int64_t> wide = expected.tensor<std::int64_t>(name);
        Tensor<std::int32_t> narrow(wide.shape());
        std::transform(wide.span().begin(), wide.span().end(), narrow.data(),
                       [](std::int64_t x) { return static_cast<std::int32_t>(x); });
        return narrow;
    };
    Model<double> model(analysis::plain_recipe(Scaling::none), tiny);
    CHECK(train::load_weights(data_folder + "/bert.safetensors", model.bert.parameters()).empty());
    model.tape.begin_step({.retain = true});
    const Batch batch{.input = {.ids = integers("ids"), .segments = integers("segments"), .lengths = {7, 5, 3}},
                      .rows = integers("rows"),
                      .labels = integers("labels"),
                      .next = integers("next_labels")};
    const Variable<double> pretraining = model.loss(batch);
    const auto pooled = model.bert.pooled(model.hidden);
    const nn::SpanLogits<double> spans = model.bert.span_logits(model.hidden, batch.input.lengths);
    const auto start = ops::softmax_cross_entropy(spans.start, integers("starts")),
               end = ops::softmax_cross_entropy(spans.end, integers("ends"));
    const auto check_equal = [&](const Tensor<double>& ours, const std::string& name) {
        INFO(name);
        const Tensor<double> theirs = expected.read_as<double>(name);
        REQUIRE(ours.shape() == theirs.shape());
        double largest = 0.0, worst = 0.0;
        for (std::size_t i = 0; i < ours.size(); ++i) {
            const double x = ours.data()[i], y = theirs.data()[i];
            if (std::isinf(y)) {
                CHECK(x == y);
                continue;
            }
            largest = std::max(largest, std::abs(y));
            worst = std::max(worst, std::abs(x - y));
        }
        // No softmax sees these biases: their gradients are rounding's.
        const bool cancels = name.ends_with("key.bias") || name.ends_with("qa_outputs.bias");
        CHECK(worst <= (cancels ? 1e-13 : 1e-12 * largest));
    };
    check_equal(model.hidden.value(), "hidden");
    check_equal(model.masked.value(), "masked");
    check_equal(pooled.value(), "pooled");
    check_equal(model.next.value(), "next");
    check_equal(spans.start.value(), "start");
    check_equal(spans.end.value(), "end");
    const Tensor<double> losses = expected.read_as<double>("losses");
    CHECK(pretraining.item() == Approx(losses(0)).epsilon(1e-13));
    CHECK(start.item() + end.item() == Approx(losses(1)).epsilon(1e-13));
    model.tape.backward({pretraining, start, end}, {1.0, 1.0, 1.0});
    for (const Parameter<double>* parameter : model.bert.parameters())
        check_equal(parameter->gradient(), "d." + published_name(parameter->name()));
}

TEST_CASE("Bert: parameters, their names and roles; heads that the config leaves out") {
    auto config = tiny;
    config.depth = 1;
    nn::Bert<float> bert(config);
    std::vector<std::string> names;
    for (const Parameter<float>* parameter : bert.parameters()) names.push_back(parameter->name());
    const std::vector<std::string> expected{"bert/tokens/weight",
                                            "bert/segments/weight",
                                            "bert/positions/weight",
                                            "bert/embedding_norm/gain",
                                            "bert/embedding_norm/shift",
                                            "bert/block0/attention_norm/gain",
                                            "bert/block0/attention_norm/shift",
                                            "bert/block0/attention/query/weight",
                                            "bert/block0/attention/query/bias",
                                            "bert/block0/attention/key/weight",
                                            "bert/block0/attention/key/bias",
                                            "bert/block0/attention/value/weight",
                                            "bert/block0/attention/value/bias",
                                            "bert/block0/attention/out/weight",
                                            "bert/block0/attention/out/bias",
                                            "bert/block0/ffn_norm/gain",
                                            "bert/block0/ffn_norm/shift",
                                            "bert/block0/ffn/up/weight",
                                            "bert/block0/ffn/up/bias",
                                            "bert/block0/ffn/down/weight",
                                            "bert/block0/ffn/down/bias",
                                            "bert/pooler/weight",
                                            "bert/pooler/bias",
                                            "bert/transform/weight",
                                            "bert/transform/bias",
                                            "bert/transform_norm/gain",
                                            "bert/transform_norm/shift",
                                            "bert/readout/bias",
                                            "bert/next_sentence/weight",
                                            "bert/next_sentence/bias",
                                            "bert/spans/weight",
                                            "bert/spans/bias"};
    CHECK(names == expected);
    CHECK(bert.parameters()[0]->facts().role == ParameterRole::embedding);
    CHECK(bert.parameters()[7]->facts().depth == 1);
    CHECK(bert.parameters()[21]->facts().depth == 0);
    config.pretraining = config.spans = false;
    CHECK(nn::Bert<float>(config).parameters().size() == 23);
    config.pooler = false;
    Model<float> bare(find_recipe("fp32"), config);
    CHECK(bare.bert.parameters().size() == 21);
    bare.tape.begin_step();
    const auto hidden = bare.bert(bare.tape, {.ids = test::random_tokens({2, 5}, 19)});
    CHECK_THROWS_WITH(bare.bert.masked_logits(hidden, Tensor<std::int32_t>({1}, {0})),
                      "Bert: masked_logits without its head; expected BertConfig::pretraining");
    CHECK_THROWS_WITH(bare.bert.next_sentence(hidden),
                      "Bert: next_sentence without its head; expected BertConfig::pretraining");
    CHECK_THROWS_WITH(bare.bert.pooled(hidden), "Bert: pooled without its layer; expected BertConfig::pooler");
    CHECK_THROWS_WITH(bare.bert.span_logits(hidden), "Bert: span_logits without its head; expected BertConfig::spans");
}

TEST_CASE("Bert: errors name the setting or the input") {
    const auto refused = [](auto change, const auto& message) {
        nn::BertConfig config = tiny;
        change(config);
        CHECK_THROWS_WITH(nn::Bert<float>(config), message);
    };
    refused([](auto& c) { c.vocabulary = 0; }, "Bert: vocabulary is 0; expected at least 1");
    refused([](auto& c) { c.hidden = 0; }, "Bert: hidden is 0; expected at least 1");
    refused([](auto& c) { c.heads = 3; }, "Bert: width 8 is not divisible by 3 heads");
    refused([](auto& c) { c.mean_length = 10; }, "Bert: mean_length 10; expected at most the length 9");
    refused([](auto& c) { c.masked_share = 1.5; }, "Bert: masked_share is 1.5; expected a number in [0,1]");
    refused([](auto& c) { c.depth = std::size_t{1} << 50; }, Catch::StartsWith("Bert: depth 1125899906842624: takes"));
    Model<float> model(find_recipe("fp32"), tiny);
    model.tape.begin_step();
    CHECK_THROWS_WITH(model.bert(model.tape, {.ids = test::random_tokens({5}, 19)}), "Bert: ids [5]; expected [B,T]");
    CHECK_THROWS_WITH(model.bert(model.tape, {.ids = test::random_tokens({1, 10}, 19)}),
                      "Bert: sequences of 10 tokens; positions end at 9");
    CHECK_THROWS_WITH(
        model.bert(model.tape, {.ids = test::random_tokens({2, 3}, 19), .segments = test::random_tokens({3, 2}, 2)}),
        "Bert: segments [3,2] do not fit ids [2,3]");
    const auto hidden = model.bert(model.tape, {.ids = test::random_tokens({2, 3}, 19)});
    CHECK_THROWS_WITH(model.bert.span_logits(hidden, {3}), "Bert: 1 lengths for hidden [2,3,8]; expected 2");
    CHECK_THROWS_WITH(model.bert.pooled(ops::reshape(hidden, {6, 8})), "Bert: hidden [6,8]; expected [B,T,8]");
}

TEST_CASE("Bert: published weights load with and without heads, and notes name those that are not in both") {
    const std::filesystem::path path = data_folder + "/bert.safetensors";
    auto config = tiny;
    config.spans = false;
    Model<float> pretrained(find_recipe("fp32"), config);
    const auto notes = train::load_weights(path, pretrained.bert.parameters());
    REQUIRE(notes.size() == 1);
    CHECK_THAT(notes[0], Catch::EndsWith(": this model has no heads for 'qa_outputs.weight' 'qa_outputs.bias'"));

    // A pre-trained file without heads, and without the prefix, in a model for spans: the head keeps its values.
    const io::SafetensorsReader file(path);
    io::SafetensorsWriter writer;
    for (const auto& [name, entry] : file.tensors())
        if (name.starts_with("bert.") && !name.starts_with("bert.pooler"))
            writer.add(name.substr(5), file.read_as<float>(name));
    const test::TemporaryFolder folder;
    writer.write(folder.path() / "bare.safetensors");
    config.pretraining = config.pooler = false;
    config.spans = true;
    Model<float> spans(find_recipe("fp32"), config);
    const auto parameters = spans.bert.parameters();
    Parameter<float>* const head = parameters[parameters.size() - 2];
    REQUIRE(head->name() == "bert/spans/weight");
    const auto before = test::elements(head->value());
    const auto lines = train::load_weights(folder.path() / "bare.safetensors", parameters);
    REQUIRE(lines.size() == 1);
    CHECK_THAT(lines[0],
               Catch::EndsWith(": has no 'qa_outputs.weight' 'qa_outputs.bias': these heads keep their values"));
    CHECK(test::elements(head->value()) == before);
    CHECK(test::elements(parameters[0]->value()) ==
          test::elements(file.read_as<float>("bert.embeddings.word_embeddings.weight")));
}

TEST_CASE("span_loss: the mean of both cross-entropies and of their gradients") {
    Model<double> model(analysis::plain_recipe(Scaling::none), tiny);
    train::load_weights(data_folder + "/bert.safetensors", model.bert.parameters());
    const nn::BertInput input{.ids = test::random_tokens({3, 7}, 19, 1), .lengths = {7, 5, 3}};
    const Tensor<std::int32_t> starts({3}, {2, 0, 1}), ends({3}, {6, 0, 2});
    std::map<std::string, std::vector<double>> gradients[2];
    for (const bool joined : {false, true}) {
        for (Parameter<double>* parameter : model.bert.parameters()) parameter->clear_gradient();
        model.tape.begin_step();
        const nn::SpanLogits<double> logits = model.bert.span_logits(model.bert(model.tape, input), input.lengths);
        const auto start = ops::softmax_cross_entropy(logits.start, starts),
                   end = ops::softmax_cross_entropy(logits.end, ends);
        if (joined) {
            const Variable<double> loss = nn::span_loss(logits, starts, ends);
            CHECK(loss.item() == Approx(0.5 * (start.item() + end.item())).epsilon(1e-13));
            model.tape.backward(loss);
        } else {
            model.tape.backward({start, end}, {0.5, 0.5});
        }
        for (const Parameter<double>* parameter : model.bert.parameters())
            if (parameter->has_gradient()) gradients[joined][parameter->name()] = test::elements(parameter->gradient());
    }
    REQUIRE(gradients[0].size() == gradients[1].size());
    REQUIRE(gradients[1].contains("bert/spans/weight"));
    for (const auto& [name, separate] : gradients[0]) {
        INFO(name);
        double largest = 0.0, worst = 0.0;
        for (std::size_t i = 0; i < separate.size(); ++i) {
            largest = std::max(largest, std::abs(separate[i]));
            worst = std::max(worst, std::abs(separate[i] - gradients[1].at(name).at(i)));
        }
        CHECK(worst <= std::max(1e-13 * largest, 1e-15));
    }
    model.tape.begin_step();
    const auto logits = model.bert.span_logits(model.bert(model.tape, input));
    CHECK_THROWS_WITH(nn::span_loss(logits, starts, Tensor<std::int32_t>({2}, {1, 1})),
                      "span_loss: 3 starts and 2 ends");
}

TEST_CASE("bert_loss: a weight of the loss of pairs, under every scaling") {
    const Batch batch = random_batch(4, 9, 19, {9, 7, 4, 8}, 0.3);
    for (const char* name : {"fp32", "us-fp32", "scalify-fp16-1"}) {
        INFO(name);
        Recipe recipe = find_recipe(name);
        recipe.storage = {};
        Model<double> model(recipe, tiny);
        const auto loss_of = [&](double weight) {
            const auto hidden = model.bert(model.tape, batch.input);
            return nn::bert_loss(model.bert.masked_logits(hidden, batch.rows), batch.labels,
                                 model.bert.next_sentence(model.bert.pooled(hidden)), batch.next, {}, weight);
        };
        model.tape.plan([&] { return loss_of(1.0); });
        std::vector<double> losses;
        std::vector<Tensor<double>> gradients;  // true ones, of the head of pairs, which sees one of the losses only
        for (const double weight : {1.0, 0.25}) {
            model.tape.begin_step({.retain = true, .true_gradients = recipe.scaling == Scaling::unit});
            const auto loss = loss_of(weight);
            losses.push_back(loss.item());
            for (Parameter<double>* parameter : model.bert.parameters()) parameter->clear_gradient();
            model.tape.backward(loss);
            CHECK(analysis::audit(model.tape, loss).valid());
            for (const Parameter<double>* parameter : model.bert.parameters())
                if (parameter->name() == "bert/next_sentence/weight") gradients.push_back(value(parameter->gradient()));
        }
        model.tape.begin_step();
        const auto hidden = model.bert(model.tape, batch.input);
        const double pairs =
            ops::softmax_cross_entropy(model.bert.next_sentence(model.bert.pooled(hidden)), batch.next).item();
        CHECK(losses[0] - losses[1] == Approx(0.75 * pairs).epsilon(1e-9));
        REQUIRE(gradients.size() == 2);
        for (std::size_t i = 0; i < gradients[0].size(); ++i)
            CHECK(gradients[1].data()[i] == Approx(0.25 * gradients[0].data()[i]).epsilon(1e-9).margin(1e-15));
    }
}

TEST_CASE("span_loss: gradients are consistent under unit, and of unit scale in the last block, with padding too") {
    constexpr std::size_t width = 64, length = 64, batch = 32;
    Tensor<std::int32_t> starts({batch}), ends({batch});
    std::vector<std::size_t> lengths;
    for (std::size_t b = 0; b < batch; ++b) {
        lengths.push_back(length - b % 4 * 10);  // on average 49: 77 %, as in the published training
        starts.data()[b] = static_cast<std::int32_t>(random_word({5, 1}, b) % lengths[b]);
        ends.data()[b] = static_cast<std::int32_t>(random_word({5, 2}, b) % lengths[b]);
    }
    // Factors count rows as independent. Where attention's output outweighs the stream, the rows of a sequence are
    // alike. The gradients of a softmax's logits have the sum 0, so they cancel in the weights' gradients. Under the
    // running mean of us-fp32 the first attention replaces the stream. A small share of the branches keeps rows apart.
    for (const auto& [name, share] : {std::pair("unit-fp32", 0.05), {"us-fp32", 0.05}, {"us-fp32", 0.0}}) {
        INFO(name << " " << share);
        Recipe recipe = find_recipe(name);
        if (share > 0.0) recipe.residual = {.scheme = ResidualScheme::fixed, .share = share};
        Model<float> model(recipe, {.vocabulary = 128,
                                    .width = width,
                                    .depth = 2,
                                    .heads = 4,
                                    .hidden = 4 * width,
                                    .length = length,
                                    .mean_length = 49,
                                    .masked_share = 1.0,
                                    .pooler = false,
                                    .pretraining = false,
                                    .spans = true});
        const nn::BertInput input{.ids = test::random_tokens({batch, length}, 128, 1), .lengths = lengths};
        nn::SpanLogits<float> logits;
        Variable<float> hidden;
        const auto loss_of = [&] {
            hidden = model.bert(model.tape, input);
            logits = model.bert.span_logits(hidden, lengths);
            return nn::span_loss(logits, starts, ends);
        };
        model.tape.plan(loss_of);
        model.tape.begin_step({.retain = true});
        const Variable<float> loss = loss_of();
        CHECK(analysis::audit(model.tape, loss).faults == std::vector<std::string>{});
        model.tape.backward(loss);
        const auto near_one = [&](const char* what, double size, double within) {
            INFO(what << " " << size);
            CHECK(size > 1.0 / within);
            CHECK(size < within);
        };
        near_one("start", root_mean_square(logits.start.gradient()), 1.5);
        near_one("end", root_mean_square(logits.end.gradient()), 1.5);
        near_one("hidden", root_mean_square(hidden.gradient()), 2.0);
        for (const Parameter<float>* parameter : model.bert.parameters()) {
            const std::string& of = parameter->name();
            const double size = root_mean_square(parameter->gradient());
            if (share == 0.0 && of == "bert/spans/weight") CHECK(size < 0.1);
            if (share > 0.0 && (of == "bert/spans/weight" || of == "bert/block1/ffn/down/weight" ||
                                of == "bert/block1/ffn/up/weight" || of == "bert/block1/ffn_norm/gain"))
                near_one(of.c_str(), size, 3.0);
        }
        logits = {};
        hidden = {};
    }
}

TEST_CASE("Bert: gradients of both losses are consistent under unit, and their sizes are the predicted ones") {
    constexpr std::size_t width = 64, length = 64, batch_size = 32, vocabulary = 128;
    const Batch batch = random_batch(batch_size, length, vocabulary, {}, 0.15);
    for (const char* name : {"unit-fp32", "us-fp32"}) {
        INFO(name);
        nn::BertConfig config{.vocabulary = vocabulary,
                              .width = width,
                              .depth = 2,
                              .heads = 4,
                              .hidden = 4 * width,
                              .length = length,
                              .mean_length = length};
        std::map<std::string, double> sizes[2];  // of the parameters' gradients
        double row_size = 0.0;                   // rms of the rows with a gradient, at the last block's output
        std::map<std::string, double> heads;     // rms of the gradients of the outputs of linear layers
        const double share = (static_cast<double>(batch.rows.size()) + batch_size) / (batch_size * length);
        for (const bool counts : {true, false}) {
            config.masked_share = counts ? static_cast<double>(batch.rows.size()) / (batch_size * length) : 1.0;
            Model<float> model(find_recipe(name), config);
            model.tape.plan([&] { return model.loss(batch); });
            model.tape.begin_step({.retain = true});
            const Variable<float> loss = model.loss(batch);
            CHECK(analysis::audit(model.tape, loss).faults == std::vector<std::string>{});
            model.tape.backward(loss);
            for (const Parameter<float>* parameter : model.bert.parameters())
                sizes[counts][parameter->name()] = root_mean_square(parameter->gradient());
            if (!counts) continue;
            row_size = root_mean_square(model.hidden.gradient()) / std::sqrt(share);

            // Both losses have one factor, the geometric mean of the ideal ones. So their logits' gradients differ.
            const double ideal_masked = static_cast<double>(batch.rows.size()) * vocabulary / std::sqrt(127.0),
                         ideal_next = batch_size * 2.0, between = std::sqrt(ideal_masked / ideal_next);
            const double masked_size = root_mean_square(model.masked.gradient());
            const double next_size = root_mean_square(model.next.gradient());
            CHECK(masked_size * between > 0.5);
            CHECK(masked_size * between < 2.0);
            CHECK(next_size / between > 0.5);
            CHECK(next_size / between < 2.0);

            for (std::size_t i = 0; i < model.tape.node_count(); ++i) {
                const Node<float>& node = model.tape.node(i);
                const std::string path = model.state.path(node.site);
                const Slot<float>& slot = model.tape.slot(node.outputs[0]);
                if (element_count(slot.shape) == 1) continue;
                if (path.ends_with("/linear")) heads[path] = root_mean_square(slot.gradient);
                INFO("value of " << path);
                const double value = root_mean_square(*slot.value);
                // The tokens of a segment share its vector, a third of the variance. Attention's average over the keys
                // keeps it, while alpha makes up for the average of independent rows.
                const bool averaged = path.find("attention/attention") != std::string::npos ||
                                      path.find("attention/out/") != std::string::npos ||
                                      path.ends_with("/residual_add");
                const bool few = path.find("next_sentence") != std::string::npos;  // alpha other than in^-1/2
                CHECK(value > (few ? 0.1 : 0.5));
                CHECK(value < (averaged ? 6.0 : few ? 4.0 : 2.0));
            }
        }
        const auto relative = [&](const std::string& parameter, double expected) {
            INFO(parameter);
            REQUIRE(sizes[1].contains(parameter));
            CHECK(sizes[1][parameter] > 0.5 * expected);
            CHECK(sizes[1][parameter] < 2.0 * expected);
        };
        const std::string last = "bert/block1/", first = "bert/block0/";
        const std::vector<std::string> of_rows{"ffn_norm/gain", "ffn_norm/shift",      "ffn/down/weight",
                                               "ffn/down/bias", "attention_norm/gain", "attention_norm/shift"};
        double with = 1.0, without = 1.0;
        for (const std::string& of : of_rows) {
            relative(last + of, row_size);
            with *= std::pow(sizes[1][last + of] / row_size, 1.0 / 6.0);
            without *= std::pow(sizes[0][last + of] / row_size, 1.0 / 6.0);
        }
        CHECK(with > 0.6);
        CHECK(with < 1.6);
        CHECK(without < 0.55);
        for (const std::string head : {"bert/next_sentence", "bert/pooler", "bert/transform"})
            relative(head + "/weight", heads[head + "/linear"]);
        // alpha = beta_x at `down`: the gradient that enters `up` has (width / hidden)^1/2, or the root of it (gmean).
        const double narrow = std::string(name) == "unit-fp32" ? 0.5 : std::sqrt(0.5);
        for (const char* of : {"ffn/up/weight", "ffn/up/bias"}) relative(last + of, narrow * row_size);
        // Without the count of rows, the last block's gradients are smaller by the root of the share.
        for (const auto& [parameter, size] : sizes[1]) {
            INFO(parameter);
            const bool in_last = parameter.starts_with(last);
            if (parameter.ends_with("key/bias")) continue;
            CHECK(sizes[0][parameter] == Approx(size * (in_last ? std::sqrt(share) : 1.0)).epsilon(0.02));
        }
        // The block before passes gradients to all rows, but no more of them in all: they have the root of the share.
        for (const char* of : {"ffn_norm/gain", "ffn_norm/shift", "attention_norm/gain", "attention_norm/shift"})
            relative(first + of, std::sqrt(share) * row_size);
        // The others: attention's weights see the shared vectors, too, and the word table's two uses have the factor of
        // the values, not their own.
        for (const auto& [parameter, size] : sizes[1]) {
            INFO(parameter);
            if (parameter.ends_with("key/bias")) continue;
            CHECK(size > 0.02);
            CHECK(size < 16.0);
        }
    }
}

TEST_CASE("Bert: rows of a padded batch have the bits of the rows alone") {
    for (const char* name : {"fp32", "us-fp32"}) {
        INFO(name);
        Model<float> model(find_recipe(name), tiny);
        const Tensor<std::int32_t> ids = test::random_tokens({3, 7}, 19), kinds = test::random_tokens({3, 7}, 2, 2);
        const std::vector<std::size_t> lengths{7, 5, 3};
        // The plan fixes forward factors, for all batches.
        model.tape.plan([&] { return test::sum(model.bert(model.tape, {.ids = ids, .segments = kinds})); });
        const auto run = [&](const nn::BertInput& input) {
            model.tape.begin_step({.training = false, .gradients = false});
            return test::elements(model.bert(model.tape, input).value());
        };
        const auto padded = run({.ids = ids, .segments = kinds, .lengths = lengths});
        for (std::size_t b = 0; b < 3; ++b) {
            const auto cut = [&](const Tensor<std::int32_t>& whole) {
                return Tensor<std::int32_t>({1, lengths[b]}, std::span(whole.data() + b * 7, lengths[b]));
            };
            const auto alone = run({.ids = cut(ids), .segments = cut(kinds)});
            REQUIRE(alone.size() == lengths[b] * 8);
            CHECK(std::equal(alone.begin(), alone.end(), padded.begin() + static_cast<std::ptrdiff_t>(b * 7 * 8)));
        }
    }
}

TEST_CASE("Bert: three micro-batches with different numbers of masked tokens give the gradients of one batch") {
    for (const char* name : {"fp32", "unit-fp32", "us-fp32"}) {
        INFO(name);
        const std::vector<std::size_t> lengths{7, 5, 3, 6, 7, 4};
        const Batch whole = random_batch(6, 7, 19, lengths, 0.6);
        const auto count = whole.rows.size();
        std::vector<Batch> parts(3);
        for (std::size_t p = 0; p < 3; ++p) {
            std::vector<std::int32_t> rows, labels;
            for (std::size_t i = 0; i < count; ++i)
                if (whole.rows(i) / 14 == static_cast<std::int32_t>(p)) {
                    rows.push_back(whole.rows(i) % 14);
                    labels.push_back(whole.labels(i));
                }
            const auto cut = [&](const Tensor<std::int32_t>& from, const Shape& shape) {
                return Tensor<std::int32_t>(shape,
                                            std::span(from.data() + p * element_count(shape), element_count(shape)));
            };
            parts[p] = {.input = {.ids = cut(whole.input.ids, {2, 7}),
                                  .segments = cut(whole.input.segments, {2, 7}),
                                  .lengths = {lengths[2 * p], lengths[2 * p + 1]}},
                        .rows = Tensor<std::int32_t>({rows.size()}, rows),
                        .labels = Tensor<std::int32_t>({labels.size()}, labels),
                        .next = cut(whole.next, {2})};
        }
        REQUIRE(parts[0].rows.size() != parts[1].rows.size());
        auto config = tiny;
        config.spans = false;
        Model<double> model(find_recipe(name), config);
        model.tape.plan([&] { return model.loss(whole); });
        const auto gradients = [&](const std::vector<Batch>& batches) {
            for (Parameter<double>* parameter : model.bert.parameters()) parameter->clear_gradient();
            double loss = 0.0;
            for (std::size_t i = 0; i < batches.size(); ++i) {
                model.forget();
                model.tape.begin_step({.micro_batches = batches.size(), .micro_batch = i});
                const Variable<double> part = model.loss(batches[i], count);
                // The next sentence's loss is a mean of alike micro-batches, the other one of the whole step's rows.
                loss += part.item();
                model.tape.backward(part);
            }
            std::vector<Tensor<double>> result;
            for (const Parameter<double>* parameter : model.bert.parameters()) result.push_back(parameter->gradient());
            return std::pair(loss, result);
        };
        const auto one = gradients({whole}), three = gradients(parts);
        CHECK(three.first == Approx(one.first).epsilon(1e-12));
        const auto parameters = model.bert.parameters();
        for (std::size_t i = 0; i < parameters.size(); ++i) {
            INFO(parameters[i]->name());
            if (parameters[i]->name().ends_with("key/bias")) continue;
            CHECK(analysis::relative_error(three.second[i], one.second[i]) < 1e-12);
        }
    }
}

TEST_CASE("Bert: runs in 16 bits, with loss and gradients near those in float") {
    const Batch batch = random_batch(4, 9, 19, {9, 7, 4, 8}, 0.3);
    const auto run = [&]<class T>(T, const char* name) {
        auto config = tiny;
        config.spans = false;
        Recipe recipe = find_recipe(name);
        Model<T> model(recipe, config);
        model.tape.plan([&] { return model.loss(batch); });
        model.tape.begin_step();
        const Variable<T> loss = model.loss(batch);
        const double value = loss.item();
        model.tape.backward(loss);
        std::vector<Tensor<float>> gradients;
        for (const Parameter<T>* parameter : model.bert.parameters())
            gradients.push_back(set_scaling(cast<float>(parameter->gradient()), 1.0));
        return std::pair(value, gradients);
    };
    for (const auto& [narrow, wide] : {std::pair("us-fp16", "us-fp32"), std::pair("unit-fp16", "unit-fp32")}) {
        INFO(narrow);
        const auto half = run(Half(0.0F), narrow), full = run(0.0F, wide);
        CHECK(half.first == Approx(full.first).epsilon(0.01));
        for (std::size_t i = 0; i < full.second.size(); ++i) {
            if (root_mean_square(full.second[i]) < 1e-4) continue;  // the keys' biases
            CHECK(analysis::relative_error(half.second[i], full.second[i]) < 0.1);
        }
    }
    CHECK(run(0.0F, "scalify-fp8-4").first > 0.0);
}

TEST_CASE("Bert: dropout acts in training only, and recompute changes no bit") {
    const Batch batch = random_batch(2, 9, 19, {9, 6}, 0.3);
    auto config = tiny;
    config.spans = false;
    config.dropout = 0.25;
    config.attention_dropout = 0.5;
    const auto run = [&](bool recompute, bool training) {
        config.recompute = recompute;
        Model<float> model(find_recipe("unit-fp32"), config);
        model.tape.begin_step({.training = training});
        const Variable<float> loss = model.loss(batch);
        const double value = loss.item();
        model.forget();
        model.tape.backward(loss);
        std::vector<float> all{static_cast<float>(value)};
        for (const Parameter<float>* parameter : model.bert.parameters()) {
            const auto gradient = test::elements(parameter->gradient());
            all.insert(all.end(), gradient.begin(), gradient.end());
        }
        return all;
    };
    CHECK(run(true, true) == run(false, true));
    CHECK(run(false, true) != run(false, false));
}

TEST_CASE("Bert: a micro-batch without masked tokens has the other loss alone") {
    Batch batch = random_batch(2, 9, 19, {}, 0.0);
    REQUIRE(batch.rows.empty());
    auto config = tiny;
    config.spans = false;
    Model<float> model(find_recipe("unit-fp32"), config);
    model.tape.begin_step();
    const Variable<float> loss = model.loss(batch, 3);
    CHECK(loss.item() == Approx(ops::softmax_cross_entropy(model.next, batch.next).item()));
    model.tape.backward(loss);
    for (const Parameter<float>* parameter : model.bert.parameters())
        for (const float element : parameter->gradient().span()) CHECK(std::isfinite(element));
}

TEST_CASE("Bert: learns one batch under recipes of every scaling") {
    const Batch batch = random_batch(4, 9, 19, {9, 7, 4, 8}, 0.3);
    auto config = tiny;
    config.spans = false;
    for (const char* name : {"fp32", "us-fp32", "us-fp8", "unit-fp8", "scalify-fp8-4"}) {
        INFO(name);
        const Recipe recipe = find_recipe(name);
        const std::pair<double, double> losses = train::with_element(recipe, [&]<class T>(std::type_identity<T>) {
            nn::Bert<T> bert(config);
            train::Trainer<T> trainer(bert, recipe, {.schedule = {.peak = 0.0, .steps = 60, .warmup = 5}});
            const auto step = [&] {
                return trainer.step([&](Tape<T>& tape, std::size_t) {
                    const auto hidden = bert(tape, batch.input);
                    return nn::bert_loss(bert.masked_logits(hidden, batch.rows), batch.labels,
                                         bert.next_sentence(bert.pooled(hidden)), batch.next);
                });
            };
            const double first = step().loss;
            double last = first;
            for (int i = 0; i < 59; ++i) last = step().loss;
            return std::pair(first, last);
        });
        CHECK(losses.second < 0.5 * losses.first);
    }
}
