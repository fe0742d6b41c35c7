// SPDX-License-Identifier: MIT
#include <unitscale/train/checkpoint.hpp>

#include "support/catch.hpp"
#include "support/language_model.hpp"
#include "support/temporary_folder.hpp"

#include <unitscale/optim/adam.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/train/code_weights.hpp>
#include <unitscale/train/step.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

using namespace unitscale;

namespace {

nn::DecoderConfig small(std::size_t width = 16) {
    return {.vocabulary = 7, .width = width, .depth = 1, .heads = 2, .length = 6, .dropout = 0.25};
}

template <class T = float>
struct Run {
    explicit Run(const Recipe& how, std::uint64_t seed = 1, std::size_t width = 16)
        : model(how, small(width), seed),
          optimiser(model.decoder.parameters(),
                    {.parametrisation = how.parametrisation_rule(), .storage = how.storage}),
          scaler(how.loss_scaling) {}
    void train(std::uint64_t first, std::uint64_t last) {
        for (std::uint64_t step = first; step <= last; ++step) {
            const std::vector<train::Batch> batches = {test::random_batch(4, 6, 7, 2 * step),
                                                       test::random_batch(4, 6, 7, 2 * step + 1)};
            const auto result =
                train::train_step<T>(model.decoder, model.tape, optimiser, batches, 1e-2,
                                     model.recipe.loss_scaling.kind == LossScaleKind::none ? nullptr : &scaler);
            losses.push_back(result.loss);
        }
    }
    [[nodiscard]] train::RunParts<T, optim::Adam<T>> parts() {
        return {model.decoder.parameters(), optimiser, model.state, scaler};
    }
    [[nodiscard]] std::vector<float> values() {
        std::vector<float> all;
        for (const T value : test::all_values(model.decoder)) all.push_back(static_cast<float>(value));
        return all;
    }
    test::LanguageModel<T> model;
    optim::Adam<T> optimiser;
    optim::LossScaler scaler;
    std::vector<double> losses;
};

/// Six steps at once, against three steps, a file, and three more steps.
template <class T>
void check_resumes(const Recipe& recipe, const std::filesystem::path& path) {
    Run<T> whole(recipe), first(recipe), second(recipe, 5);
    whole.train(1, 6);
    first.train(1, 3);
    train::save_run(path, first.parts(), recipe, {{"sum", 0.1}});
    const auto more = train::load_run(path, second.parts());
    CHECK(more.at("sum") == 0.1);
    second.train(4, 6);
    CHECK(std::vector<double>(whole.losses.begin() + 3, whole.losses.end()) == second.losses);
    CHECK(whole.values() == second.values());
    CHECK(train::CheckpointReader(path).recipe().name == recipe.name);
}

}  // namespace

TEST_CASE(
    "checkpoint: training on from a file gives the bits of training on, for every recipe and stochastic rounding") {
    const test::TemporaryFolder folder;
    std::vector<Recipe> recipes = known_recipes();
    recipes.push_back(io::override_recipe(
        io::override_recipe(find_recipe("unit-fp8"), "matmul.gradient.rounding=stochastic"), "automatic_rule=gmean"));
    recipes.push_back(io::override_recipe(find_recipe("fp8-delayed"), "loss_scaling.kind=automatic"));
    recipes.back().loss_scaling.interval = 2;
    recipes.push_back(find_recipe("fp8-delayed"));  // in attention too
    ProductFormats attention = recipes.back().products.front().formats;
    attention.weight.reset();
    attention.weight_scale = {};
    attention.gradient->rounding = Rounding::stochastic;
    attention.set(OperandSlot::value_gradient_p, attention.rule(OperandSlot::output_p));
    recipes.back().products.push_back({.kind = ProductKind::attention, .formats = attention});
    recipes.push_back(find_recipe("fp16"));
    recipes.back().storage.master = StateFormat{.format = bf16, .rounding = Rounding::stochastic};
    recipes.back().storage.first_moment = {.format = e4m3, .block = 128, .rounding = Rounding::stochastic};
    recipes.back().storage.second_moment = {.format = e4m3fnuz, .rounding = Rounding::stochastic};
    recipes.back().storage.weight_gradient = Quantiser{.format = e5m2, .rounding = Rounding::stochastic};
    const auto path = folder.path() / "run.safetensors";
    for (const Recipe& recipe : recipes) {
        INFO(recipe.name);
        if (recipe.storage.element == ElementType::float32) check_resumes<float>(recipe, path);
        if (recipe.storage.element == ElementType::float16) check_resumes<Half>(recipe, path);
        if (recipe.storage.element == ElementType::bfloat16) check_resumes<BFloat16>(recipe, path);
    }
}

TEST_CASE("checkpoint: state is stored in its own type, and taken in no other") {
    const test::TemporaryFolder folder;
    const auto path = folder.path() / "run.safetensors";
    Recipe recipe = find_recipe("scalify-fp8-4");
    recipe.storage.master = StateFormat{.format = bf16};
    recipe.storage.second_moment = {.format = e4m3, .block = 128};
    Run<Half> run(recipe);
    run.train(1, 2);
    train::save_run(path, run.parts(), recipe);
    const io::SafetensorsReader file(path);
    const std::string name = "decoder/tokens/weight";
    CHECK(file.entry(name).dtype == "F16");
    CHECK(file.entry("optimiser/" + name + "/master").dtype == "BF16");
    CHECK(file.entry("optimiser/" + name + "/first_moment").dtype == "F16");
    CHECK(file.entry("optimiser/" + name + "/first_moment.scale").shape == Shape{1});
    CHECK(file.entry("optimiser/" + name + "/second_moment").dtype == "F8_E4M3");
    CHECK(file.entry("optimiser/" + name + "/second_moment.scale").shape ==
          Shape{1});  // 7 x 16 values fit in one block
    CHECK(file.entry("optimiser/" + name + "/second_moment.scale").dtype == "F32");

    const auto before = run.values();
    const auto refused = [&](auto&& change) {
        Recipe other = recipe;
        change(other.storage);
        Run<Half> target(other);
        const auto untouched = target.values();
        std::string message;
        try {
            train::load_run(path, target.parts());
        } catch (const Error& error) {
            message = error.what();
        }
        CHECK((target.values() == untouched) == !message.empty());
        return message;
    };
    CHECK(refused([](Storage&) {}).empty());
    CHECK(refused([](Storage& s) { s.first_moment = {.format = bf16}; }) ==
          "safetensors: " + path.string() + ": tensor 'optimiser/" + name +
              "/first_moment' is of type F16; expected BF16");
    CHECK(refused([](Storage& s) { s.first_moment = {}; }).ends_with("is of type F16; expected F32"));
    CHECK(refused([](Storage& s) {
              s.first_moment.block = 128;
          }).ends_with("/first_moment.scale' is of type F64; expected F32"));
    CHECK(run.values() == before);
}

TEST_CASE("checkpoint: weights alone, with scales where there are any") {
    const test::TemporaryFolder folder;
    const auto path = folder.path() / "weights.safetensors";
    Run<> source(find_recipe("unit-fp8")), target(find_recipe("fp32"), 9);
    train::save_weights(path, source.model.decoder.parameters());
    CHECK(train::load_weights(path, target.model.decoder.parameters()).empty());
    CHECK(target.values() == source.values());
    CHECK(target.model.decoder.parameters()[0]->version() > 0);

    Parameter<float> weight("w", {2}, {}), again("w", {2}, {});
    weight.write() = Tensor<float>({2}, {3.0f, -1.0f});
    weight.write().set_scale(0.25);
    train::save_weights<float>(path, {&weight});
    CHECK(train::load_weights<float>(path, {&again}).empty());
    CHECK(again.value().scale() == 0.25);
    CHECK(again.value().data()[0] == 3.0f);
    weight.write().set_scale(1.0);  // the file has no scale, the parameter has one
    train::save_weights<float>(path, {&weight});
    const auto notes = train::load_weights<float>(path, {&again});
    REQUIRE(notes.size() == 1);
    CHECK(notes[0] == "checkpoint: " + path.string() + ": has no scales; 1 weights were given scales of their sizes");
    CHECK(again.value().scale() == 2.0);  // under 0.25 the data would be 12 and -4, of rms 8.9
    CHECK(again.value().data()[0] == 1.5f);
    Parameter<Half> narrow("w", {2}, {});
    CHECK(train::load_weights<Half>(path, {&narrow}).empty());
    CHECK(static_cast<float>(narrow.value().data()[1]) == -1.0f);
    weight.write() = Tensor<float>({2}, {1.0f + 0x1p-12f, 2.0f});  // 1 + 2^-12 lies between two numbers of Half
    train::save_weights<float>(path, {&weight});
    CHECK(train::load_weights<Half>(path, {&narrow}) ==
          std::vector<std::string>{"checkpoint: " + path.string() +
                                   ": 1 weights were rounded to the type of this model's"});
    CHECK(static_cast<float>(narrow.value().data()[0]) == 1.0f);
    CHECK(train::load_weights<float>(path, {&again}, true).empty());
    CHECK(again.value().data()[0] == 1.0f + 0x1p-12f);
    // Scales are multiplied out before the weights are rounded: the data alone would be 0 in Half.
    weight.write() = Tensor<float>({2}, {0x3p-36f, 0x1p-40f});
    weight.write().set_scale(0x1p30);
    train::save_weights<float>(path, {&weight});
    CHECK(train::load_weights<Half>(path, {&narrow}, true).empty());
    CHECK(static_cast<float>(narrow.value().data()[0]) == 0x3p-6f);
    CHECK(narrow.value().scale() == 1.0);
    weight.write() = Tensor<float>({2}, {1.0f, 65536.0f});
    train::save_weights<float>(path, {&weight});
    CHECK_THROWS_WITH(
        train::load_weights<Half>(path, {&narrow}),
        "checkpoint: " + path.string() + ": w holds 65536, which the type of this model's weights does not");
    CHECK(static_cast<float>(narrow.value().data()[0]) == 0x3p-6f);
}

TEST_CASE("checkpoint: weights as codes have a scale and one decode table for all, and load again") {
    const test::TemporaryFolder folder;
    const auto path = folder.path() / "codes.safetensors";
    Parameter<float> a("a", {2, 2}, {.role = ParameterRole::weight}), b("b", {1, 2}, {.role = ParameterRole::weight}),
        norm("norm", {2}, {.role = ParameterRole::norm});
    a.write() = Tensor<float>(Shape{2, 2}, {0.5f, -1.0f, 3.0f, 4.0f});
    b.write() = Tensor<float>(Shape{1, 2}, {0.001f, 0.002f});
    norm.write() = Tensor<float>(Shape{2}, {1.0f, 0.3f});
    const Tensor<float> plain = a.value();
    train::code_weights<float>({&a, &b}, {{.rule = train::weight_code_rule("e4m3")}});
    train::save_weights<float>(path, {&a, &b, &norm});
    const io::SafetensorsReader reader(path);
    CHECK(reader.entry("a").dtype == "F8_E4M3");
    CHECK(reader.entry("a.block").shape == Shape{0});
    CHECK_FALSE(reader.contains("norm.block"));
    const auto table = reader.tensor<float>("table.e4m3", Shape{256});
    const auto codes = reader.tensor<Minifloat<e4m3>>("a", Shape{2, 2});
    const double scale = reader.tensor<double>("a.scale", Shape{1}).data()[0];
    for (std::size_t i = 0; i < 4; ++i)  // exact: the weights have few bits
        CHECK(table.data()[codes.data()[i].bits()] * scale == plain.data()[i]);
    Parameter<float> again("a", {2, 2}, {.role = ParameterRole::weight});
    static_cast<void>(train::load_weights(path, std::vector<Parameter<float>*>{&again}, true));
    for (std::size_t i = 0; i < 4; ++i) CHECK(again.value().data()[i] == plain.data()[i]);
    train::CheckpointReader reading(path);
    reading.weights(std::vector<Parameter<float>*>{&again}, true, true);
    reading.commit();
    REQUIRE(again.coded_value() != nullptr);
    CHECK(again.coded_value()->value(1, 1) == 4.0f);
}

TEST_CASE("checkpoint: the facts of parameters are kept, and a run continues only if they are equal") {
    const test::TemporaryFolder folder;
    const auto path = folder.path() / "facts.safetensors";
    const auto weight = [](std::size_t depth) {
        return std::make_unique<Parameter<float>>(
            "up/weight", Shape{8, 4},
            ParameterFacts{.role = ParameterRole::weight, .fan_in = 4, .fan_out = 8, .depth = depth, .width = 4});
    };
    const auto saved = weight(2), same = weight(2), deeper = weight(6);
    train::save_weights<float>(path, {saved.get()});
    const train::CheckpointReader reader(path);
    const auto json = nlohmann::ordered_json::parse(reader.file().metadata().at("facts"));
    CHECK(json.at("up/weight") == io::facts_to_json(saved->facts()));
    CHECK(json.at("up/weight").at("depth") == 2);
    CHECK_NOTHROW(reader.facts<float>({same.get()}));
    CHECK_THROWS_WITH(
        reader.facts<float>({deeper.get()}),
        "checkpoint: " + path.string() +
            R"(: up/weight was trained as {"role":"weight","fan_in":4,"fan_out":8,"depth":2,"width":4}; )" +
            R"(here it is {"role":"weight","fan_in":4,"fan_out":8,"depth":6,"width":4})");
    CHECK_NOTHROW(train::load_weights<float>(path, {deeper.get()}));
}

TEST_CASE("checkpoint: what was read and not committed is an error, and changes nothing") {
    const test::TemporaryFolder folder;
    const auto path = folder.path() / "weights.safetensors";
    Parameter<float> weight("w", Shape{2}, {});
    weight.write() = Tensor<float>({2}, {1.0f, 2.0f});
    train::save_weights<float>(path, {&weight});
    weight.write() = Tensor<float>({2}, {3.0f, 4.0f});
    const auto forgetful = [&] { train::CheckpointReader(path).weights<float>({&weight}); };
    CHECK_THROWS_WITH(forgetful(),
                      "checkpoint: " + path.string() + ": was read but not put in place; expected commit()");
    CHECK(weight.value()(1) == 4.0f);
    const auto interrupted = [&] {
        train::CheckpointReader reader(path);
        reader.weights<float>({&weight});
        fail("interrupted");
    };
    CHECK_THROWS_WITH(interrupted(), "interrupted");
    CHECK(weight.value()(1) == 4.0f);
    CHECK_NOTHROW(train::CheckpointReader(path));
}

TEST_CASE("checkpoint: a file that does not fit is an error of one line, and nothing is changed") {
    const test::TemporaryFolder folder;
    const auto path = folder.path() / "run.safetensors";
    const Recipe recipe = find_recipe("unit-fp8");
    Run<> run(recipe);
    run.train(1, 2);
    train::save_run(path, run.parts(), recipe, {}, {{"vocabulary", "abc"}});
    Run<> wider(recipe, 1, 32), same(recipe, 4);
    const auto before = wider.values(), same_before = same.values();
    CHECK_THROWS_WITH(train::load_run(path, wider.parts()),
                      "safetensors: " + path.string() + ": tensor 'decoder/tokens/weight' is [7,16]; expected [7,32]");
    CHECK(wider.values() == before);
    CHECK(wider.model.state.step() == 0);
    CHECK_THROWS_WITH(train::load_run(path, same.parts(), {{"vocabulary", "abd"}}),
                      "checkpoint: " + path.string() + ": its vocabulary is not this run's");
    CHECK(same.values() == same_before);
    {  // one bit of the last element
        const auto damaged = folder.path() / "damaged.safetensors";
        std::filesystem::copy_file(path, damaged);
        std::fstream file(damaged, std::ios::binary | std::ios::in | std::ios::out);
        file.seekg(-1, std::ios::end);
        const int last = file.get();
        file.seekp(-1, std::ios::end);
        file.put(static_cast<char>(last ^ 1));
        file.close();
        CHECK_THROWS_WITH(train::load_run(damaged, same.parts()),
                          Catch::StartsWith("safetensors: " + damaged.string() + ": is damaged: "));
        CHECK(same.values() == same_before);
    }
    const auto weights = folder.path() / "weights.safetensors";
    train::save_weights(weights, run.model.decoder.parameters());
    CHECK_THROWS_WITH(train::load_run(weights, same.parts()),
                      "checkpoint: " + weights.string() + ": has no 'run/numbers'; is it a file of weights alone?");
    CHECK_THROWS_WITH(train::CheckpointReader(weights).recipe(), "checkpoint: " + weights.string() + ": has no recipe");
    CHECK(same.values() == same_before);
    CHECK(same.model.state.step() == 0);
    train::load_run(path, same.parts(), {{"vocabulary", "abc"}});
    CHECK(same.values() == run.values());
    CHECK(same.model.state.step() == 2);
}
