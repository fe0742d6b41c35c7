// SPDX-License-Identifier: MIT
#include <unitscale/train/recipe_switch.hpp>

#include "support/any_state.hpp"
#include "support/catch.hpp"
#include "support/language_model.hpp"

#include <unitscale/io/json_recipe.hpp>
#include <unitscale/nn/linear.hpp>
#include <unitscale/ops/mse_loss.hpp>
#include <unitscale/optim/adam.hpp>
#include <unitscale/optim/lamb.hpp>
#include <unitscale/optim/sgd.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/tensor/fill.hpp>
#include <unitscale/train/step.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

using namespace unitscale;
using test::AnyState;

namespace {

/// A run of a small decoder with dropout, on random tokens.
template <class T>
struct Run {
    explicit Run(const Recipe& how, std::uint64_t seed = 1)
        : model(how, {.vocabulary = 7, .width = 16, .depth = 1, .heads = 2, .length = 6, .dropout = 0.25}, seed),
          optimiser(model.decoder.parameters(),
                    {.parametrisation = how.parametrisation_rule(), .storage = how.storage}),
          scaler(how.loss_scaling) {}

    void train(std::uint64_t first, std::uint64_t last) {
        const bool scales = model.recipe.loss_scaling.kind != LossScaleKind::none;
        for (std::uint64_t step = first; step <= last; ++step) {
            const std::vector<train::Batch> batches = {test::random_batch(4, 6, 7, step)};
            losses.push_back(
                train::train_step<T>(model.decoder, model.tape, optimiser, batches, 1e-2, scales ? &scaler : nullptr)
                    .loss);
        }
    }
    [[nodiscard]] train::RunParts<T, optim::Adam<T>> parts() {
        return {model.decoder.parameters(), optimiser, model.state, scaler};
    }
    [[nodiscard]] auto leave() { return train::leave_recipe(parts(), model.recipe); }
    void enter(const train::CarriedRun<float>& carried) { train::enter_recipe(carried, parts(), model.recipe); }
    [[nodiscard]] AnyState state() {
        AnyState all;
        optimiser.visit_state(all);
        return all;
    }
    [[nodiscard]] std::map<std::string, double> past_magnitudes() {
        struct Past {
            std::map<std::string, double> amax{};
            void scalar(const std::string&, std::uint64_t&) {}
            void table(const std::string& name, std::map<std::string, double>& table) {
                if (name == "amax") amax = table;
            }
        } past;
        model.state.visit_state(past);
        return past.amax;
    }

    test::LanguageModel<T> model;
    optim::Adam<T> optimiser;
    optim::LossScaler scaler;
    std::vector<double> losses{};
};

/// Calls use(type) with the T of a recipe, as a value.
template <class Use>
void with_type(const Recipe& recipe, const Use& use) {
    if (recipe.storage.element == ElementType::float16) use(Half{});
    else if (recipe.storage.element == ElementType::bfloat16) use(BFloat16{});
    else use(float{});
}

template <class T>
std::vector<T> numbers_of(const AnyState& state, const std::string& name) {
    const std::vector<std::byte>& bytes = state.bytes.at(name);
    std::vector<T> numbers(bytes.size() / sizeof(T));
    std::memcpy(numbers.data(), bytes.data(), bytes.size());
    return numbers;
}

template <class T>
std::vector<float> floats_of(const Tensor<T>& tensor) {
    std::vector<float> floats;
    for (const T x : tensor.span()) floats.push_back(static_cast<float>(x));
    return floats;
}
std::vector<float> floats_of(optim::StoredTensor<float>& tensor) { return floats_of(tensor.values()); }

/// One parameter with Adam, after three updates with its gradients; and all that a switch needs.
template <class T, class Optimiser = optim::Adam<T>>
struct Single {
    template <class Options>
    explicit Single(const Options& options, const Shape& shape = {40, 50}, double scale = 1.0)
        : weight("w", shape, {.role = ParameterRole::weight, .fan_in = shape.back(), .fan_out = shape.front()}) {
        fill_normal(weight.write(), {1, 1});
        weight.write().set_scale(scale);
        optimiser = std::make_unique<Optimiser>(std::vector<Parameter<T>*>{&weight}, options);
    }
    void update(std::uint64_t first, std::uint64_t last) {
        for (std::uint64_t t = first; t <= last; ++t) {
            weight.clear_gradient();
            weight.add_gradient(normal<T>(weight.shape(), {9, t}, t % 2 == 0 ? 1e-3 : 1.0));
            optimiser->step({}, 0.02);
        }
    }
    [[nodiscard]] train::RunParts<T, Optimiser> parts() { return {{&weight}, *optimiser, state, scaler}; }
    [[nodiscard]] AnyState any() {
        AnyState all;
        optimiser->visit_state(all);
        return all;
    }

    Parameter<T> weight;
    std::unique_ptr<Optimiser> optimiser{};
    ScalingState state{3};
    optim::LossScaler scaler{};
};

template <class Optimiser, class T>
void check_equal(Single<T, Optimiser>& a, Single<T, Optimiser>& b) {
    CHECK(a.weight.value().scale() == b.weight.value().scale());
    CHECK(floats_of(a.weight.value()) == floats_of(b.weight.value()));
    CHECK(a.any().bytes == b.any().bytes);
    CHECK(a.any().scales == b.any().scales);
    CHECK(a.any().scalars == b.any().scalars);
}

/// Storage in which all state is codes, each of another kind, and rounded stochastically.
Storage coded(ElementType element) {
    return {.element = element,
            .master = StateFormat{.format = bf16, .rounding = Rounding::stochastic},
            .first_moment = {.format = e4m3, .block = 128, .rounding = Rounding::stochastic},
            .second_moment = {.format = e4m3fnuz, .rounding = Rounding::stochastic}};
}

/// A recipe with this storage.
Recipe stored(const Storage& storage) {
    Recipe recipe = find_recipe("fp32");
    recipe.storage = storage;
    return recipe;
}

template <class F>
std::string message_of(const F& f) {
    try {
        f();
    } catch (const Error& error) {
        return error.what();
    }
    return "none";
}

}  // namespace

TEST_CASE("recipe switch: a switch to the recipe itself changes no bit, for every storage, factor and random choice") {
    std::vector<Recipe> recipes;
    for (const char* name : {"fp32", "fp16", "bf16", "unit-fp8", "umup-bf16", "mxfp8", "nvfp4", "fp16-loss-scaled",
                             "scalify-fp16-1", "scalify-fp8-4"})
        recipes.push_back(find_recipe(name));
    recipes.push_back(io::override_recipe(find_recipe("unit-fp8"), "automatic_rule=gmean"));
    recipes.push_back(stored(coded(ElementType::float16)));
    recipes.back().storage.weight_gradient = Quantiser{.format = e5m2, .rounding = Rounding::stochastic};
    for (const Recipe& recipe : recipes) {
        INFO(recipe.name);
        with_type(recipe, [&]<class T>(T) {
            Run<T> whole(recipe), first(recipe), second(recipe, /*seed=*/5);
            whole.train(1, 6);
            first.train(1, 3);
            second.enter(first.leave());
            CHECK(second.model.state.step() == 3);
            CHECK(second.model.state.plan() == first.model.state.plan());
            second.train(4, 6);
            CHECK(second.losses == std::vector<double>(whole.losses.begin() + 3, whole.losses.end()));
            CHECK(test::all_values(second.model.decoder) == test::all_values(whole.model.decoder));
            CHECK(second.state().bytes == whole.state().bytes);
            CHECK(second.state().scales == whole.state().scales);
            CHECK(second.state().scalars == whole.state().scalars);
            // The first run is unchanged, and may go on.
            first.train(4, 6);
            CHECK(first.losses == whole.losses);
        });
    }
}

TEST_CASE("recipe switch: the loss scale and the magnitudes of past steps begin anew; skipped steps are counted on") {
    Recipe scaled = find_recipe("fp16-auto-loss-scaled");
    scaled.loss_scaling.initial = 0x1p30;
    Run<Half> first(scaled), second(scaled);
    first.train(1, 4);
    REQUIRE(first.scaler.skipped() > 0);
    second.train(1, 1);
    second.enter(first.leave());
    CHECK(second.scaler.scale() == 0x1p30);
    CHECK(second.scaler.skipped() == first.scaler.skipped());
    CHECK(second.scaler.skipped_in_a_row() == 0);

    const Recipe delayed = find_recipe("fp8-delayed");
    Run<float> before(delayed), after(delayed);
    before.train(1, 3);
    after.train(1, 2);
    REQUIRE_FALSE(before.past_magnitudes().empty());
    REQUIRE_FALSE(after.past_magnitudes().empty());
    after.enter(before.leave());
    CHECK(after.past_magnitudes().empty());
    CHECK(after.model.state.step() == 3);
    after.train(4, 4);
    CHECK(std::isfinite(after.losses.back()));
}

TEST_CASE("recipe switch: from float to 16 bits weights are the rounded master weights, and moments are kept") {
    const auto check_into = []<class T>(T, const char* name) {
        INFO(name);
        Run<float> first(find_recipe("mxfp8"));
        first.train(1, 3);
        Run<T> second(find_recipe(name));
        second.enter(first.leave());
        const AnyState from = first.state();
        AnyState expected = second.state();  // with the names and scales of the second recipe's state
        std::size_t rounded = 0;
        for (std::size_t i = 0; i < first.model.decoder.parameters().size(); ++i) {
            const Parameter<float>& before = *first.model.decoder.parameters()[i];
            const Parameter<T>& after = *second.model.decoder.parameters()[i];
            INFO(before.name());
            const std::vector<float> master = numbers_of<float>(second.state(), before.name() + "/master");
            CHECK(master == floats_of(before.value()));
            for (std::size_t k = 0; k < master.size(); ++k) {
                CHECK(after.value().data()[k] == static_cast<T>(master[k]));
                rounded += static_cast<float>(after.value().data()[k]) != master[k];
            }
            for (const std::string moment : {"/first_moment", "/second_moment"})
                CHECK(numbers_of<float>(second.state(), before.name() + moment) ==
                      numbers_of<float>(from, before.name() + moment));
            CHECK(second.state().scalars.at(before.name() + "/updates") == 3);
        }
        CHECK(rounded > 100);

        // The next step is the step of a run that has these weights and this state from elsewhere.
        Run<T> other(find_recipe(name));
        expected.write = true;
        for (std::size_t i = 0; i < first.model.decoder.parameters().size(); ++i) {
            const Parameter<float>& before = *first.model.decoder.parameters()[i];
            Tensor<T>& value = other.model.decoder.parameters()[i]->write();
            for (std::size_t k = 0; k < value.size(); ++k) value.data()[k] = static_cast<T>(before.value().data()[k]);
            const auto bytes = std::as_bytes(before.value().span());
            expected.bytes.at(before.name() + "/master").assign(bytes.begin(), bytes.end());
            for (const std::string moment : {"/first_moment", "/second_moment"})
                expected.bytes.at(before.name() + moment) = from.bytes.at(before.name() + moment);
        }
        other.optimiser.visit_state(expected);
        other.model.state.set_step(3);
        second.train(4, 4);
        other.train(4, 4);
        CHECK(second.losses == other.losses);
        CHECK(test::all_values(second.model.decoder) == test::all_values(other.model.decoder));
        CHECK(second.state().bytes == other.state().bytes);
    };
    check_into(BFloat16{}, "bf16");
    check_into(Half{}, "fp16");
}

TEST_CASE("recipe switch: from 16 bits to float weights are the master's values, unless they were written since") {
    Single<BFloat16> first(optim::AdamOptions{.storage = find_recipe("bf16").storage});
    first.update(1, 3);
    std::vector<float> master = numbers_of<float>(first.any(), "w/master");
    CHECK(master != floats_of(first.weight.value()));
    first.weight.write().data()[7] = BFloat16(3.0f);
    master[7] = 3.0f;
    Single<float> second(optim::AdamOptions{});
    train::enter_recipe(train::leave_recipe(first.parts(), find_recipe("bf16")), second.parts(), find_recipe("fp32"));
    CHECK(floats_of(second.weight.value()) == master);
    CHECK(numbers_of<float>(second.any(), "w/first_moment") == numbers_of<float>(first.any(), "w/first_moment"));
    CHECK(numbers_of<float>(second.any(), "w/second_moment") == numbers_of<float>(first.any(), "w/second_moment"));
    CHECK_FALSE(second.any().bytes.contains("w/master"));
    CHECK(second.state.seed() == 3);
    second.update(4, 4);
    CHECK(second.any().scalars.at("w/updates") == 4);
}

TEST_CASE("recipe switch: state is rounded once, by the second recipe's formats, and decoded exactly") {
    const Storage codes = coded(ElementType::float16);
    Single<float> first(optim::AdamOptions{});
    first.update(1, 3);
    Single<Half> second(optim::AdamOptions{.storage = codes});
    train::enter_recipe(train::leave_recipe(first.parts(), find_recipe("fp32")), second.parts(), stored(codes));
    // By hand, with the tensors' own streams of random words.
    const auto by_hand = [&](const std::string& name, const StateFormat& how, const std::vector<float>& values,
                             bool keep_positive) {
        optim::StoredTensor<float> tensor(Shape{40, 50}, how, keep_positive);
        tensor.assign(values, {hash_name(name), hash_name("recipe switch")});
        return tensor;
    };
    auto master = by_hand("w/master", *codes.master, floats_of(first.weight.value()), false);
    auto mean = by_hand("w/first_moment", codes.first_moment, numbers_of<float>(first.any(), "w/first_moment"), false);
    const std::vector<float> squares = numbers_of<float>(first.any(), "w/second_moment");
    auto square = by_hand("w/second_moment", codes.second_moment, squares, true);
    AnyState expected;
    master.visit_state(expected, "w/master");
    mean.visit_state(expected, "w/first_moment");
    square.visit_state(expected, "w/second_moment");
    CHECK(second.any().bytes == expected.bytes);
    CHECK(second.any().scales == expected.scales);
    const std::vector<float> kept = floats_of(master);
    for (std::size_t i = 0; i < kept.size(); ++i) CHECK(second.weight.value().data()[i] == static_cast<Half>(kept[i]));
    for (const float v : floats_of(square)) CHECK(v > 0.0f);  // a second moment of zero would make a step unbounded
    CHECK(floats_of(square) != squares);

    // Back to state as computed: the decoded values themselves.
    Single<Half> third(optim::AdamOptions{.storage = {.element = ElementType::float16, .master = StateFormat{}}});
    train::enter_recipe(train::leave_recipe(second.parts(), stored(codes)), third.parts(), find_recipe("fp16"));
    CHECK(numbers_of<float>(third.any(), "w/master") == kept);
    CHECK(numbers_of<float>(third.any(), "w/first_moment") == floats_of(mean));
    CHECK(numbers_of<float>(third.any(), "w/second_moment") == floats_of(square));
}

TEST_CASE("recipe switch: weights keep their scales") {
    const Recipe from = find_recipe("scalify-fp8-4"), to = find_recipe("scalify-fp16-1");
    Single<Half> first(optim::AdamOptions{.storage = from.storage}, {40, 50}, 0x1p-6);
    first.update(1, 3);
    Single<Half> second(optim::AdamOptions{.storage = to.storage}, {40, 50}, 0x1p3);
    train::enter_recipe(train::leave_recipe(first.parts(), from), second.parts(), to);
    CHECK(second.weight.value().scale() == 0x1p-6);
    CHECK(floats_of(second.weight.value()) == floats_of(first.weight.value()));
    CHECK(numbers_of<float>(second.any(), "w/master") == floats_of(first.weight.value()));

    Run<Half> model(from), next(to, 7);
    model.train(1, 3);
    next.enter(model.leave());
    next.train(4, 6);
    CHECK(next.losses.back() < 2.0 * model.losses.front());
    for (std::size_t i = 0; i < next.model.decoder.parameters().size(); ++i)
        CHECK(next.model.decoder.parameters()[i]->value().scale() ==
              model.model.decoder.parameters()[i]->value().scale());
}

TEST_CASE("recipe switch: Lamb and Sgd, with state that only one of the recipes has") {
    using optim::Lamb, optim::LambOptions, optim::Sgd, optim::SgdOptions;
    const Storage codes = coded(ElementType::float32);
    {
        Single<float, Lamb<float>> whole(LambOptions{.storage = codes}), first(LambOptions{.storage = codes}),
            second(LambOptions{.storage = codes});
        whole.update(1, 6);
        first.update(1, 3);
        train::enter_recipe(train::leave_recipe(first.parts(), stored(codes)), second.parts(), stored(codes));
        second.update(4, 6);
        check_equal(whole, second);
    }
    const SgdOptions plain{.momentum = 0.5}, with_master{.momentum = 0.5, .storage = find_recipe("bf16").storage};
    Single<float, Sgd<float>> first(plain);
    Single<BFloat16, Sgd<BFloat16>> second(with_master);
    first.update(1, 3);
    train::enter_recipe(train::leave_recipe(first.parts(), find_recipe("fp32")), second.parts(), find_recipe("bf16"));
    CHECK(numbers_of<float>(second.any(), "w/velocity") == numbers_of<float>(first.any(), "w/velocity"));
    CHECK(numbers_of<float>(second.any(), "w/master") == floats_of(first.weight.value()));
    CHECK(second.any().scalars.at("w/updates") == 0);  // plain state counts no updates
    Single<float, Sgd<float>> third(plain);
    train::enter_recipe(train::leave_recipe(second.parts(), find_recipe("bf16")), third.parts(), find_recipe("fp32"));
    check_equal(first, third);
}

namespace {

struct OwnOptions {
    double weight_decay = 0.0;
    std::optional<optim::WeightDecay> decay{};
    double peak_learning_rate = 0.0;
    bool decay_bias_and_norm = true;
    std::vector<optim::ParameterGroup> groups{};
    std::optional<ParametrisationRule> parametrisation{};
    Storage storage{};
    bool odd = false;  ///< state of a type that no switch knows
};
struct OwnState {
    Tensor<float> drift;
    Tensor<double> odd{};
    std::uint64_t updates = 0;
    OwnState(const Shape& shape, const OwnOptions& options) : drift(zeros<float>(shape)) {
        if (options.odd) odd = zeros<double>(shape);
    }
    template <class Visitor>
    void visit_state(Visitor&& visitor, const std::string& name) {
        visitor.tensor(name + "/drift", drift);
        if (!odd.empty()) visitor.tensor(name + "/odd", odd);
        visitor.scalar(name + "/updates", updates);
    }
};
/// An optimiser of one's own, whose state is a plain tensor.
template <class T>
class Drift : public optim::Optimiser<T, OwnOptions, OwnState> {
public:
    explicit Drift(std::vector<Parameter<T>*> parameters, OwnOptions options = {})
        : optim::Optimiser<T, OwnOptions, OwnState>("Drift", OptimiserKind::sgd, optim::WeightDecay::coupled,
                                                    std::move(parameters), std::move(options)) {}
    void step(const Execution&, double rate) {
        this->for_each_update(rate, [](const optim::ParameterUpdate<T, OwnState>& one) {
            ++one.state.updates;
            for (std::size_t i = 0; i < one.value.size(); ++i) {
                float& drift = one.state.drift.data()[i];
                drift = 0.5f * drift + static_cast<float>(one.parameter.gradient().data()[i]);
                one.value.data()[i] = static_cast<T>(static_cast<float>(one.value.data()[i]) -
                                                     static_cast<float>(one.learning_rate) * drift);
            }
        });
    }
};

/// A model and a training loop of one's own.
template <class T>
struct OwnRun {
    explicit OwnRun(const Recipe& how) : recipe(how) {
        std::vector<Parameter<T>*> parameters;
        first.collect(parameters);
        last.collect(parameters);
        nn::initialise(parameters, recipe, 1);
        optimiser = std::make_unique<Drift<T>>(parameters);
    }
    double step(std::uint64_t number) {
        const Tensor<T> x = normal<T>({16, 8}, {4, number});
        Tensor<T> y({16, 1});
        for (std::size_t i = 0; i < 16; ++i) y.data()[i] = x.data()[8 * i];
        tape.begin_step();
        optimiser->clear_gradients();
        const Variable<T> loss = ops::mse_loss(last(first(tape.input(x))), tape.input(y));
        tape.backward(loss);
        optimiser->step({}, 0.1);
        return static_cast<double>(loss.item());
    }
    [[nodiscard]] train::RunParts<T, Drift<T>> parts() { return {optimiser->parameters(), *optimiser, state, scaler}; }

    Recipe recipe;
    nn::Linear<T> first{"own/first", {.in = 8, .out = 8, .bias = true}}, last{"own/last", {.in = 8, .out = 1}};
    ScalingState state{1};
    Tape<T> tape{recipe, state};
    std::unique_ptr<Drift<T>> optimiser{};
    optim::LossScaler scaler{};
};

}  // namespace

TEST_CASE("recipe switch: a model, a loop and an optimiser of one's own") {
    Recipe wide = find_recipe("fp32"), narrow = find_recipe("bf16");
    wide.clip_norm = narrow.clip_norm = 0.0;  // what the loop does not do,
    narrow.storage.master.reset();            // and what its optimiser does not keep
    OwnRun<float> whole(wide), first(wide), same(wide);
    OwnRun<BFloat16> second(narrow);
    std::vector<double> losses, again;
    for (std::uint64_t step = 1; step <= 6; ++step) losses.push_back(whole.step(step));
    for (std::uint64_t step = 1; step <= 3; ++step) CHECK(first.step(step) == losses[step - 1]);
    const auto carried = train::leave_recipe(first.parts(), wide);
    train::enter_recipe(carried, same.parts(), wide);
    for (std::uint64_t step = 4; step <= 6; ++step) again.push_back(same.step(step));
    CHECK(again == std::vector<double>(losses.begin() + 3, losses.end()));

    train::enter_recipe(carried, second.parts(), narrow);
    AnyState before, after;
    first.optimiser->visit_state(before);
    second.optimiser->visit_state(after);
    CHECK(before.bytes == after.bytes);
    CHECK(before.scalars == after.scalars);
    for (std::size_t i = 0; i < 3; ++i) {
        const Parameter<float>& from = *first.optimiser->parameters()[i];
        const Parameter<BFloat16>& to = *second.optimiser->parameters()[i];
        for (std::size_t k = 0; k < from.size(); ++k)
            CHECK(to.value().data()[k] == static_cast<BFloat16>(from.value().data()[k]));
    }
    CHECK(second.step(4) == Approx(losses[3]).epsilon(0.05));
}

TEST_CASE("recipe switch: frozen parameters stay frozen") {
    Single<float> first(optim::AdamOptions{}), second(optim::AdamOptions{});
    first.update(1, 2);
    first.weight.set_requires_gradient(false);
    train::enter_recipe(train::leave_recipe(first.parts(), find_recipe("fp32")), second.parts(), find_recipe("mxfp8"));
    CHECK_FALSE(second.weight.requires_gradient());
    CHECK(floats_of(second.weight.value()) == floats_of(first.weight.value()));
}

TEST_CASE("recipe switch: recipes must agree in the model's function and in the meaning of learning rates") {
    const auto refused = [](const Recipe& from, const Recipe& to) {
        return message_of([&] { train::check_recipe_switch("x", from, to); });
    };
    const std::vector<Recipe> all = known_recipes();
    std::size_t legal = 0;
    for (const Recipe& from : all)
        for (const Recipe& to : all) {
            const bool same = from.scaling == to.scaling && from.parametrisation == to.parametrisation &&
                              from.readout_exponent == to.readout_exponent &&
                              from.residual.scheme == to.residual.scheme &&
                              from.propagate.exact_norms == to.propagate.exact_norms;
            CHECK((refused(from, to) == "none") == same);
            legal += same;
        }
    CHECK(legal > 100);
    const auto changed = [&](const char* name, const std::string& assignment) {
        const Recipe from = find_recipe(name);
        return refused(from, io::override_recipe(from, assignment));
    };
    CHECK(refused(find_recipe("unit-fp8"), find_recipe("bf16")) ==
          "x: bf16 has scaling none; expected unit, as unit-fp8 has");
    CHECK(refused(find_recipe("fp32"), find_recipe("mup-fp32")) ==
          "x: mup-fp32 has parametrisation mup; expected standard, as fp32 has");
    CHECK(changed("umup-fp8", "hyperparameters.alpha_ffn_act=0.5") ==
          "x: umup-fp8 has hyperparameters.alpha_ffn_act 0.5; expected 1, as umup-fp8 has");
    CHECK(changed("mup-fp32", "hyperparameters.base_width=64") ==
          "x: mup-fp32 has hyperparameters.base_width 64; expected 128, as mup-fp32 has");
    for (const char* field : {"alpha_attn", "alpha_loss_softmax", "init_sigma", "alpha_emb", "alpha_out", "base_depth"})
        CHECK(changed("fp32", concatenate("hyperparameters.", field, "=2"))
                  .starts_with(concatenate("x: fp32 has hyperparameters.", field, " 2; expected ")));
    CHECK(changed("unit-fp8", "residual.scheme=fixed") ==
          "x: unit-fp8 has residual.scheme fixed; expected depth, as unit-fp8 has");
    CHECK(changed("unit-fp8", "residual.tau=0.25").starts_with("x: unit-fp8 has residual.tau 0.25; expected 0.5"));
    CHECK(changed("us-fp8", "vector_learning_rate=false") ==
          "x: us-fp8 has vector_learning_rate false; expected true, as us-fp8 has");
    CHECK(changed("umup-fp8", "embedding_rate=constant") ==
          "x: umup-fp8 has embedding_rate constant; expected fan_out, as umup-fp8 has");
    CHECK(changed("mup-fp32", "hyperparameters.embedding_rate=2") ==
          "x: mup-fp32 has hyperparameters.embedding_rate 2; expected 1, as mup-fp32 has");
    CHECK(changed("scalify-fp16-1", "storage.rescale_every=0") == "none");
    CHECK(changed("us-fp8", "gelu_constants=fitted") ==
          "x: us-fp8 has gelu_constants fitted; expected unit_scaling_paper, as us-fp8 has");
    CHECK(changed("us-fp8", "bias_inside_alpha=true") ==
          "x: us-fp8 has bias_inside_alpha true; expected false, as us-fp8 has");
    CHECK(changed("us-fp8", "initial_distribution=normal") == "none");  // of no effect behind the first step
    const Recipe fixed = io::override_recipe(find_recipe("us-fp8"), "residual.scheme=fixed");
    CHECK(refused(fixed, io::override_recipe(fixed, "residual.share=0.5")) ==
          "x: us-fp8 has residual.share 0.5; expected 0, as us-fp8 has");
    CHECK(
        changed("unit-fp8", "residual.multiplier=2").starts_with("x: unit-fp8 has residual.multiplier 2; expected 1"));
    CHECK(changed("unit-fp8", "residual.attention_ratio=2")
              .starts_with("x: unit-fp8 has residual.attention_ratio 2; expected 1"));
    CHECK(changed("unit-fp8", "automatic_rule=gmean").starts_with("x: unit-fp8 has automatic_rule gmean; expected "));
    CHECK(changed("unit-fp8", "constraint=gmean").starts_with("x: unit-fp8 has constraint gmean; expected automatic"));
    CHECK(changed("unit-fp8", "readout_exponent=1") ==
          "x: unit-fp8 has readout_exponent 1; expected 0.5, as unit-fp8 has");
    CHECK(changed("scalify-fp16-1", "propagate.exact_norms=true") ==
          "x: scalify-fp16-1 has propagate.exact_norms true; expected false, as scalify-fp16-1 has");
    // What does not change the function of the weights, or is not read under the recipe's scaling.
    for (const char* free : {"readout_exponent=0.25", "automatic_rule=gmean", "propagate.exact_norms=true",
                             "clip_norm=3", "learning_rate=1", "loss_scaling.kind=automatic", "matmul.gradient=e5m2"})
        CHECK(changed("fp32", free) == "none");
    CHECK(changed("scalify-fp16-1", "propagate.rounding=up") == "none");
}

TEST_CASE("recipe switch: a run that does not fit is an error of one line, and nothing is changed") {
    const Recipe plain = find_recipe("fp32");
    Single<float> first(optim::AdamOptions{});
    first.update(1, 2);
    const auto carried = train::leave_recipe(first.parts(), plain);
    const auto refused = [&](auto& run, const Recipe& recipe) {
        const std::vector<float> before = floats_of(run.weight.value());
        const AnyState state = run.any();
        const std::string message = message_of([&] { train::enter_recipe(carried, run.parts(), recipe); });
        CHECK(floats_of(run.weight.value()) == before);
        CHECK(run.any().bytes == state.bytes);
        CHECK(run.state.step() == 0);
        return message;
    };
    Single<float> second(optim::AdamOptions{}), wide(optim::AdamOptions{}, {40, 60});
    CHECK(refused(second, find_recipe("unit-fp8")) ==
          "recipe switch: unit-fp8 has scaling unit; expected none, as fp32 has");
    CHECK(refused(wide, plain) == "recipe switch: parameter 0 is w [40,60]; before the switch it is w [40,50]");
    Single<float, optim::Sgd<float>> other(optim::SgdOptions{.momentum = 0.5});
    CHECK(refused(other, plain) ==
          "recipe switch: optimiser state w/velocity exists only after the switch; expected the same optimiser and "
          "trained parameters");
    Single<float, optim::Sgd<float>> stateless(optim::SgdOptions{});
    CHECK(refused(stateless, plain) ==
          "recipe switch: optimiser state w/first_moment exists only before the switch; expected the same optimiser "
          "and trained parameters");

    Parameter<float> deeper("w", {40, 50}, {.role = ParameterRole::weight, .fan_in = 50, .fan_out = 40, .depth = 3});
    optim::Adam<float> adam({&deeper});
    CHECK(message_of([&] {
              train::enter_recipe(
                  carried, train::RunParts<float, optim::Adam<float>>{{&deeper}, adam, second.state, second.scaler},
                  plain);
          }) == R"(recipe switch: w has the facts {"role":"weight","fan_in":50,"fan_out":40,"depth":3,"width":0}; )"
                R"(before the switch it has {"role":"weight","fan_in":50,"fan_out":40,"depth":0,"width":0})");
    CHECK(message_of([&] {
              train::enter_recipe(carried,
                                  train::RunParts<float, optim::Adam<float>>{
                                      {&second.weight, &deeper}, adam, second.state, second.scaler},
                                  plain);
          }) == "recipe switch: 2 parameters; before the switch there are 1");

    // A finite weight that would become infinite.
    first.weight.write().data()[5] = 70000.0f;
    const auto large = train::leave_recipe(first.parts(), plain);
    Single<Half> half(optim::AdamOptions{.storage = find_recipe("fp16").storage});
    const std::vector<float> untouched = floats_of(half.weight.value());
    const AnyState state = half.any();
    CHECK(message_of([&] { train::enter_recipe(large, half.parts(), find_recipe("fp16")); }) ==
          "recipe switch: w holds 70000, which the second recipe's weights cannot");
    CHECK(floats_of(half.weight.value()) == untouched);
    CHECK(half.any().bytes == state.bytes);

    // State of one's own that a switch does not know.
    Parameter<float> w("w", {4}, {});
    Drift<float> odd({&w}, {.odd = true});
    CHECK(message_of([&] {
              static_cast<void>(train::leave_recipe(
                  train::RunParts<float, Drift<float>>{{&w}, odd, second.state, second.scaler}, plain));
          }) == "recipe switch: optimiser state w/odd is neither a StoredTensor nor of the type of sums");
}
