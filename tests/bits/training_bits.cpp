// SPDX-License-Identifier: MIT
// Results that a change that only moves code must not change. Prints a line `<name> <checksum>` for
//   the losses of 20 steps of a small decoder and its checkpoint, under every recipe and for several kinds of decoder
//   the value and the gradients of every op, under each way of scaling and with quantised operands
// against.sh compares two commits.
#include <unitscale/analysis/grad_check.hpp>
#include <unitscale/optim/adam.hpp>
#include <unitscale/optim/lamb.hpp>
#include <unitscale/optim/sgd.hpp>
#include <unitscale/train/checkpoint.hpp>
#include <unitscale/train/step.hpp>
#include <unitscale/train/element.hpp>
#include <unitscale/unitscale.hpp>

#include <cinttypes>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

using namespace unitscale;

namespace {

/// FNV-1a hash.
class Checksum {
public:
    void add(std::span<const std::byte> bytes) {
        for (const std::byte byte : bytes) sum_ = (sum_ ^ static_cast<std::uint64_t>(byte)) * 0x100000001B3u;
    }
    void add(double number) { add(std::as_bytes(std::span(&number, 1))); }
    template <class T>
    void add(const Tensor<T>& tensor) {
        add(std::as_bytes(tensor.span()));
        add(tensor.scale());
    }
    void print(const std::string& name) const { std::printf("%s %016" PRIx64 "\n", name.c_str(), sum_); }

private:
    std::uint64_t sum_ = 0xCBF29CE484222325u;
};

constexpr std::size_t vocabulary = 40, length = 16;

Tensor<std::int32_t> tokens(std::uint64_t stream) {
    Tensor<std::int32_t> ids(Shape{4, length});
    for (std::size_t i = 0; i < ids.size(); ++i)
        ids.data()[i] = static_cast<std::int32_t>(random_word({7, stream}, i) % (i % 3 == 0 ? 5 : vocabulary));
    return ids;
}

std::string read_file(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

template <class Optimiser, class Options>
void train(const std::string& name, const Recipe& recipe, const nn::DecoderConfig& config, Options options) {
    train::with_element(recipe, [&]<class T>(std::type_identity<T>) {
        nn::Decoder<T> decoder(config);
        ScalingState state(3);
        Tape<T> tape(recipe, state, 2);
        nn::initialise(decoder.parameters(), recipe, 3);
        options.parametrisation = recipe.parametrisation_rule();
        options.storage = recipe.storage;
        options.peak_learning_rate = 0.5 * recipe.learning_rate;
        typename Optimiser::template Of<T> optimiser(decoder.parameters(), options);
        optim::LossScaler scaler(recipe.loss_scaling);
        Checksum losses;
        for (std::uint64_t step = 0; step < 20; ++step) {
            const train::Batch batches[] = {{tokens(4 * step), tokens(4 * step + 1)},
                                            {tokens(4 * step + 2), tokens(4 * step + 3)}};
            const auto done =
                train::train_step<T>(decoder, tape, optimiser, batches, 0.5 * recipe.learning_rate, &scaler);
            losses.add(done.loss);
            if (std::getenv("TRAINING_BITS_LOSSES") != nullptr)
                std::fprintf(stderr, "%s %" PRIu64 " %a\n", name.c_str(), step + 1, done.loss);
        }
        losses.print(name + " losses");
        const auto path = std::filesystem::temp_directory_path() /
                          ("training_bits." + std::to_string(hash_name(name)) + ".safetensors");
        train::save_run(
            path,
            train::RunParts<T, typename Optimiser::template Of<T>>{decoder.parameters(), optimiser, state, scaler},
            recipe);
        const std::string bytes = read_file(path);
        std::filesystem::remove(path);
        Checksum checkpoint;
        checkpoint.add(std::as_bytes(std::span(bytes)));
        checkpoint.print(name + " checkpoint");
    });
}

struct Adam {
    template <class T>
    using Of = optim::Adam<T>;
};
struct Lamb {
    template <class T>
    using Of = optim::Lamb<T>;
};
struct Sgd {
    template <class T>
    using Of = optim::Sgd<T>;
};

nn::DecoderConfig small() { return {.vocabulary = vocabulary, .width = 32, .depth = 2, .heads = 2, .length = length}; }

void train_all() {
    for (const Recipe& recipe : known_recipes())
        train<Adam>(recipe.name, recipe, small(), optim::AdamOptions{.weight_decay = 0.01});

    nn::DecoderConfig llama = small();
    llama.groups = 1;
    llama.feed_forward = nn::FeedForwardKind::gated_silu;
    llama.norm.gains = true;
    llama.positions = nn::Positions::rotary;
    llama.tied = true;
    nn::DecoderConfig gpt = small();
    gpt.norm = {.kind = nn::NormKind::layer, .gains = true};
    gpt.dropout = 0.2;
    gpt.bias = true;
    nn::DecoderConfig post = gpt;
    post.placement = nn::NormPlacement::post;
    post.recompute = true;
    for (const char* name : {"fp32", "unit-fp8", "scalify-fp8-4", "fp8-delayed"}) {
        const Recipe recipe = find_recipe(name);
        train<Adam>(std::string(name) + " llama", recipe, llama, optim::AdamOptions{});
        train<Adam>(std::string(name) + " gpt", recipe, gpt, optim::AdamOptions{});
        train<Adam>(std::string(name) + " post", recipe, post, optim::AdamOptions{});
        train<Lamb>(std::string(name) + " lamb", recipe, small(), optim::LambOptions{});
        train<Sgd>(std::string(name) + " sgd", recipe, small(), optim::SgdOptions{.momentum = 0.9});
    }
}

template <class T>
using Op = std::function<Variable<T>(Tape<T>&, std::vector<Variable<T>>&)>;

/// One op: the shapes of its inputs, and the call.
template <class T>
struct Case {
    const char* name;
    std::vector<Shape> shapes;
    Op<T> op;
    bool positive = false;  ///< the inputs are above 0
};

template <class T>
std::vector<Case<T>> cases() {
    using V = std::vector<Variable<T>>;
    const ops::UnruledOptions stated{.unit = ops::Factors<1>{.alpha = 0.5, .betas = {0.25}}};
    const Shape x = {3, 8}, square = {2, 6, 8};
    Tensor<std::int32_t> ids(Shape{5}), labels(Shape{3}), mask(x);
    for (std::size_t i = 0; i < ids.size(); ++i) ids.data()[i] = static_cast<std::int32_t>(i * 2 % 7);
    for (std::size_t i = 0; i < labels.size(); ++i) labels.data()[i] = static_cast<std::int32_t>(i * 3 % 8);
    for (std::size_t i = 0; i < mask.size(); ++i) mask.data()[i] = static_cast<std::int32_t>(i % 3 == 0);
    return {
        {"abs", {x}, [](Tape<T>&, V& v) { return ops::abs(v[0]); }},
        {"add", {x, {8}}, [](Tape<T>&, V& v) { return ops::add(v[0], v[1]); }},
        {"sub", {x, x}, [](Tape<T>&, V& v) { return ops::sub(v[0], v[1]); }},
        {"mul", {x, x}, [](Tape<T>&, V& v) { return ops::mul(v[0], v[1]); }},
        {"div", {x, x}, [](Tape<T>&, V& v) { return ops::div(v[0], v[1]); }, true},
        {"weighted_add",
         {x, x},
         [](Tape<T>&, V& v) {
             return ops::weighted_add<T>(v, std::vector<double>{0.6, 0.8});
         }},
        {"attention",
         {square, square, square},
         [](Tape<T>&, V& v) { return ops::attention(v[0], v[1], v[2], {.heads = 2, .causal = true}); }},
        {"clamp", {x}, [](Tape<T>&, V& v) { return ops::clamp(v[0], {.low = -0.5, .high = 0.75}); }},
        {"concatenate", {x, x}, [](Tape<T>&, V& v) { return ops::concatenate<T>(v, 1); }},
        {"conv1d",
         {{2, 4, 9}, {6, 4, 3}, {6}},
         [](Tape<T>&, V& v) { return ops::conv1d(v[0], v[1], std::optional(v[2])); }},
        {"dropout", {x}, [](Tape<T>&, V& v) { return ops::dropout(v[0], {.p = 0.3}); }},
        {"embedding", {{7, 8}}, [ids](Tape<T>&, V& v) { return ops::embedding(v[0], ids); }},
        {"exp", {x}, [stated](Tape<T>&, V& v) { return ops::exp(v[0], stated); }},
        {"log", {x}, [stated](Tape<T>&, V& v) { return ops::log(v[0], stated); }, true},
        {"pow", {x}, [stated](Tape<T>&, V& v) { return ops::pow(v[0], 1.5, stated); }, true},
        {"sqrt", {x}, [stated](Tape<T>&, V& v) { return ops::sqrt(v[0], stated); }, true},
        {"rsqrt", {x}, [stated](Tape<T>&, V& v) { return ops::rsqrt(v[0], stated); }, true},
        {"gated_silu", {x, x}, [](Tape<T>&, V& v) { return ops::gated_silu(v[0], v[1]); }},
        {"gather", {{7, 8}}, [ids](Tape<T>&, V& v) { return ops::gather(v[0], ids); }},
        {"gelu", {x}, [](Tape<T>&, V& v) { return ops::gelu(v[0]); }},
        {"layer_norm",
         {x, {8}, {8}},
         [](Tape<T>&, V& v) { return ops::layer_norm(v[0], std::optional(v[1]), std::optional(v[2])); }},
        {"rms_norm", {x, {8}}, [](Tape<T>&, V& v) { return ops::rms_norm(v[0], std::optional(v[1])); }},
        {"linear", {x, {6, 8}, {6}}, [](Tape<T>&, V& v) { return ops::linear(v[0], v[1], std::optional(v[2])); }},
        {"readout", {x, {6, 8}}, [](Tape<T>&, V& v) { return ops::readout(v[0], v[1]); }},
        {"matmul", {square, {2, 8, 5}}, [](Tape<T>&, V& v) { return ops::matmul(v[0], v[1]); }},
        {"max", {x}, [](Tape<T>&, V& v) { return ops::max(v[0]); }},
        {"mean", {x}, [](Tape<T>&, V& v) { return ops::mean(v[0]); }},
        {"sum", {x}, [](Tape<T>&, V& v) { return ops::sum(v[0]); }},
        {"mse_loss", {x, x}, [](Tape<T>&, V& v) { return ops::mse_loss(v[0], v[1]); }},
        {"softmax_cross_entropy", {x}, [labels](Tape<T>&, V& v) { return ops::softmax_cross_entropy(v[0], labels); }},
        {"multiplier", {x}, [](Tape<T>&, V& v) { return ops::multiplier(v[0], 0.3); }},
        {"scale_forward", {x}, [](Tape<T>&, V& v) { return ops::scale_forward(v[0], 0.3); }},
        {"scale_backward", {x}, [](Tape<T>&, V& v) { return ops::scale_backward(v[0], 0.3); }},
        {"pad",
         {x},
         [](Tape<T>&, V& v) {
             return ops::pad(v[0], {1, 0}, {0, 2});
         }},
        {"slice",
         {x},
         [](Tape<T>&, V& v) {
             return ops::slice(v[0], {1, 2}, {2, 4});
         }},
        {"reshape",
         {x},
         [](Tape<T>&, V& v) {
             return ops::reshape(v[0], {4, 6});
         }},
        {"transpose",
         {square},
         [](Tape<T>&, V& v) {
             return ops::transpose(v[0], {2, 0, 1});
         }},
        {"relu", {x}, [](Tape<T>&, V& v) { return ops::relu(v[0]); }},
        {"sigmoid", {x}, [](Tape<T>&, V& v) { return ops::sigmoid(v[0]); }},
        {"silu", {x}, [](Tape<T>&, V& v) { return ops::silu(v[0]); }},
        {"tanh", {x}, [](Tape<T>&, V& v) { return ops::tanh(v[0]); }},
        {"softmax", {x}, [](Tape<T>&, V& v) { return ops::softmax(v[0]); }},
        {"log_softmax", {x}, [](Tape<T>&, V& v) { return ops::log_softmax(v[0]); }},
        {"rotary", {square}, [](Tape<T>&, V& v) { return ops::rotary(v[0], {.heads = 2}); }},
        {"scatter_add", {{5, 8}}, [ids](Tape<T>&, V& v) { return ops::scatter_add(v[0], ids, 7); }},
        {"select", {x, x}, [mask](Tape<T>&, V& v) { return ops::select(mask, v[0], v[1]); }},
        {"residual",
         {x},
         [](Tape<T>&, V& v) {
             const auto parts = ops::residual_split(v[0], std::optional<double>(0.5));
             return ops::residual_add(ops::gelu(parts[0]), parts[1], std::optional<double>(0.5));
         }},
    };
}

void run_ops(const std::string& where, const Recipe& recipe) {
    train::with_element(recipe, [&]<class T>(std::type_identity<T>) {
        for (const Case<T>& one : cases<T>()) {
            Checksum checksum;
            std::vector<Tensor<T>> inputs;
            for (const Shape& shape : one.shapes) {
                inputs.push_back(normal<T>(shape, {5, inputs.size() + 1}));
                if (one.positive)
                    for (T& value : inputs.back().span())
                        value = static_cast<T>(0.25f + std::abs(static_cast<float>(value)));
            }
            std::string result = where + " " + one.name;
            try {
                const auto run = analysis::run_op<T>(recipe, inputs, one.op);
                checksum.add(run.value);
                for (const Tensor<T>& gradient : run.gradients) checksum.add(gradient);
            } catch (const Error& error) {  // a rule that this op does not have: the error must stay too
                checksum.add(std::as_bytes(std::span(error.what(), std::string_view(error.what()).size())));
                result += " (error)";
            }
            checksum.print(result);
        }
    });
}

}  // namespace

int main() {
    train_all();
    for (const char* name :
         {"fp32", "unit-fp32", "unit-fp8", "umup-fp8", "fp16", "fp8-amax", "scalify-fp16-1", "scalify-fp8-4", "bf16"}) {
        const auto known = known_recipes();
        for (const Recipe& recipe : known)
            if (recipe.name == name) run_ops(name, recipe);
    }
}
