// SPDX-License-Identifier: MIT
#include <unitscale/optim/whole_recipe.hpp>

#include "support/catch.hpp"

#include <unitscale/optim/adam.hpp>
#include <unitscale/optim/clip.hpp>
#include <unitscale/optim/lamb.hpp>
#include <unitscale/optim/loss_scaler.hpp>
#include <unitscale/optim/quantise_gradients.hpp>
#include <unitscale/optim/sgd.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/tensor/fill.hpp>

#include <memory>
#include <string>
#include <vector>

using namespace unitscale;
using namespace unitscale::optim;

namespace {

/// A hidden weight with a gradient that was computed under a recipe.
template <class T>
struct Weight : Parameter<T> {
    explicit Weight(const Recipe& recipe)
        : Parameter<T>("w", Shape{2, 64}, {.role = ParameterRole::weight, .fan_in = 64, .fan_out = 2}) {
        fill_constant(this->write(), T(1));
        Tensor<T> gradient(this->shape());
        fill_constant(gradient, T(1));
        this->add_gradient(std::move(gradient));
        this->set_gradient_recipe(std::make_shared<const Recipe>(recipe));
    }
    std::vector<Parameter<T>*> all{this};
};

template <class T, class Optimiser>
std::string error_of_step(Weight<T>& weight, Optimiser&& optimiser) {
    const Tensor<T> before = weight.value();
    try {
        optimiser.step({}, 1e-3);
    } catch (const Error& error) {
        CHECK(weight.value()(0, 0) == before(0, 0));
        return error.what();
    }
    CHECK(weight.value()(0, 0) != before(0, 0));
    return "";
}

}  // namespace

TEST_CASE("learning rates by parameter that an optimiser does not know are an error", "[optim]") {
    const Recipe umup = find_recipe("umup-fp32");
    Weight<float> weight(umup);
    CHECK(error_of_step(weight, Adam<float>(weight.all)) ==
          "Adam: parameter w: recipe umup-fp32 has learning rates by parameter; expected an optimiser made with the "
          "recipe");
    CHECK(error_of_step(weight, Lamb<float>(weight.all, {.weight_decay = 0.0})) ==
          "Lamb: parameter w: recipe umup-fp32 has learning rates by parameter; expected an optimiser made with the "
          "recipe");
    Recipe other = umup;
    other.parametrisation = Parametrisation::mup;
    CHECK(error_of_step(weight, Adam<float>(weight.all, other)).find("learning rates") != std::string::npos);
    CHECK(error_of_step(weight, Adam<float>(weight.all, umup)).empty());
    CHECK(error_of_step(weight, Sgd<float>(weight.all, umup)).empty());
    ParametrisationRule joined = umup.parametrisation_rule();
    joined.constrained_readout = true;  // a fact of the model
    CHECK(error_of_step(weight, Sgd<float>(weight.all, {.parametrisation = joined})).empty());
    // Where all factors are 1, an optimiser without a rule makes the recipe's updates.
    Weight<float> unit(find_recipe("unit-fp32"));
    CHECK(error_of_step(unit, Adam<float>(unit.all)).empty());
}

TEST_CASE("master weights and moments that an optimiser does not keep are an error, but for double", "[optim]") {
    Recipe recipe = find_recipe("fp16");
    recipe.clip_norm = 0.0;
    const std::string expected =
        "Adam: parameter w: recipe fp16 stores master weights or moments otherwise; expected an optimiser made with "
        "the recipe";
    Weight<Half> weight(recipe);
    CHECK(error_of_step(weight, Adam<Half>(weight.all)) == expected);
    CHECK(error_of_step(weight, Adam<Half>(weight.all, recipe)).empty());
    Recipe moments = recipe;
    moments.storage.second_moment.format = fp16;
    weight.set_gradient_recipe(std::make_shared<const Recipe>(moments));
    CHECK(error_of_step(weight, Adam<Half>(weight.all, recipe)) == expected);
    CHECK(error_of_step(weight, Adam<Half>(weight.all, moments)).empty());
    Weight<double> reference(recipe);
    CHECK(error_of_step(reference, Adam<double>(reference.all)).empty());
}

TEST_CASE("a step of the recipe between backward pass and update that is left out is an error", "[optim]") {
    Recipe recipe = find_recipe("fp32");
    recipe.loss_scaling.kind = LossScaleKind::constant;
    recipe.loss_scaling.initial = 8.0;
    recipe.storage.weight_gradient = Quantiser{.format = e5m2};
    Weight<float> weight(recipe);
    Adam<float> optimiser(weight.all, recipe);
    CHECK(
        error_of_step(weight, optimiser) ==
        "Adam: parameter w: recipe fp32 rounds weight gradients; expected optim::quantise_weight_gradients before the "
        "update");
    quantise_weight_gradients<float>({}, weight.all, recipe.storage);
    CHECK(error_of_step(weight, optimiser) ==
          "Adam: parameter w: recipe fp32 scales the loss; expected optim::LossScaler::unscale before the update");
    LossScaler(recipe.loss_scaling).unscale<float>(weight.all);
    CHECK(weight.gradient().scale() == 0.125);
    CHECK(error_of_step(weight, optimiser) ==
          "Adam: parameter w: recipe fp32 clips gradients; expected optim::clip_gradients before the update");
    clip_gradients<float>({}, weight.all, recipe.clip_norm);
    CHECK(error_of_step(weight, optimiser).empty());
    weight.set_gradient_recipe(weight.gradient_recipe());  // another backward pass
    CHECK_FALSE(error_of_step(weight, optimiser).empty());
    weight.set_gradient_recipe(nullptr);  // a gradient that no tape computed
    CHECK(error_of_step(weight, optimiser).empty());
}

TEST_CASE("by_recipe: takes parametrisation, storage and peak from the recipe, all else from the options", "[optim]") {
    const Recipe recipe = find_recipe("umup-bf16");
    const AdamOptions options = by_recipe("Adam", AdamOptions{.beta2 = 0.95, .weight_decay = 0.1}, recipe);
    CHECK(options.parametrisation == recipe.parametrisation_rule());
    CHECK(options.storage == recipe.storage);
    CHECK(options.peak_learning_rate == recipe.learning_rate);
    CHECK(options.beta2 == 0.95);
    CHECK(options.weight_decay == 0.1);
    CHECK(by_recipe("Adam", AdamOptions{.peak_learning_rate = 0.5}, recipe).peak_learning_rate == 0.5);
    const std::string twice =
        "Adam: recipe and options both determine parametrisation or storage; expected the recipe alone";
    CHECK_THROWS_WITH(by_recipe("Adam", AdamOptions{.parametrisation = ParametrisationRule{}}, recipe), twice);
    CHECK_THROWS_WITH(by_recipe("Adam", AdamOptions{.storage = recipe.storage}, recipe), twice);
}

TEST_CASE("gradients that travelled otherwise than the recipe says are an error", "[optim]") {
    Recipe recipe = find_recipe("fp32");
    recipe.clip_norm = 0.0;
    recipe.communication = Communication{};
    Weight<float> weight(recipe);
    CHECK(error_of_step(weight, Adam<float>(weight.all)) ==
          "Adam: parameter w: recipe fp32 rounds gradients between micro-batches; expected train::TreeReducer in "
          "train::take_step");
    weight.mark(GradientStep::communicate);
    CHECK(error_of_step(weight, Adam<float>(weight.all)).empty());
}
