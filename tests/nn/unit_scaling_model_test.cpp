// SPDX-License-Identifier: MIT
#include <unitscale/nn/unit_scaling_model.hpp>

#include "support/catch.hpp"
#include "support/language_model.hpp"
#include "support/test_ops.hpp"

#include <unitscale/analysis/audit.hpp>
#include <unitscale/analysis/statistics.hpp>
#include <unitscale/scaling/known_recipes.hpp>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

using namespace unitscale;

namespace {

/// One of the models of figure 4, under one rule.
struct Setting {
    nn::ContextKind context;
    nn::NormPlacement placement;
    ResidualRule residual;
    Constraint rule;

    [[nodiscard]] Recipe recipe() const {
        Recipe recipe = find_recipe("us-fp32");
        recipe.automatic_rule = rule;
        recipe.residual = residual;
        return recipe;
    }
    [[nodiscard]] std::string text() const {
        return concatenate(name(context), ", placement ", static_cast<int>(placement), ", ", name(residual.scheme),
                           ", ", name(rule));
    }
};

std::vector<Setting> settings() {
    std::vector<Setting> list;
    for (const auto context :
         {nn::ContextKind::relative_attention, nn::ContextKind::convolution, nn::ContextKind::recurrence})
        for (const auto placement : {nn::NormPlacement::pre, nn::NormPlacement::post, nn::NormPlacement::none})
            for (const ResidualRule& residual :
                 {ResidualRule{.scheme = ResidualScheme::fixed, .share = 0.5},
                  ResidualRule{.scheme = ResidualScheme::running_mean}, ResidualRule{.scheme = ResidualScheme::depth}})
                for (const Constraint rule : {Constraint::gmean, Constraint::to_output_scale})
                    list.push_back({context, placement, residual, rule});
    return list;
}

/// The change of the loss per change of a parameter along `direction`.
double slope(test::LanguageModel<double>& model, const train::Batch& batch, Parameter<double>& parameter,
             const Tensor<double>& direction) {
    constexpr double h = 1e-5;
    const Tensor<double> start = parameter.value();
    const auto loss_at = [&](double t) {
        double* const values = parameter.write().data();
        for (std::size_t i = 0; i < start.size(); ++i) values[i] = start.data()[i] + t * direction.data()[i];
        model.tape.begin_step({.gradients = false});
        return model.loss(batch).item();
    };
    const double result = (loss_at(h) - loss_at(-h)) / (2.0 * h);
    parameter.write() = start;
    return result;
}

}  // namespace

TEST_CASE("unit scaling model: the published layers, parameters and initial values") {
    for (const auto context :
         {nn::ContextKind::relative_attention, nn::ContextKind::convolution, nn::ContextKind::recurrence}) {
        const nn::DecoderConfig config = nn::unit_scaling_config(
            {.vocabulary = 11, .width = 32, .depth = 2, .head_size = 8, .length = 6, .context = context});
        nn::Decoder<float> model(config);
        std::vector<std::string> names;
        for (const Parameter<float>* parameter : model.parameters()) names.push_back(parameter->name());
        const auto has = [&](const char* name) { return std::count(names.begin(), names.end(), name) == 1; };
        CHECK(names.front() == "decoder/tokens/weight");
        CHECK(names[1] == "decoder/embedding_norm/gain");
        CHECK(names.back() == "decoder/readout/bias");
        CHECK(has("decoder/norm/shift"));
        CHECK(has("decoder/block1/ffn/down/bias"));
        CHECK_FALSE(has("decoder/positions/weight"));
        CHECK(has(context == nn::ContextKind::relative_attention ? "decoder/block0/attention/qkv/weight"
                  : context == nn::ContextKind::convolution      ? "decoder/block0/convolution/weight"
                                                                 : "decoder/block0/recurrence/first_state"));
        CHECK(has(context == nn::ContextKind::recurrence ? "decoder/block0/recurrence_norm/gain"
                                                         : "decoder/block0/ffn_norm/gain"));

        // The initial values are uniform, with the standard deviations of the regular model.
        const Recipe recipe = find_recipe("fp32");
        nn::initialise(model.parameters(), recipe, 1, nn::unit_scaling_initial(config, recipe));
        for (const Parameter<float>* parameter : model.parameters()) {
            INFO(parameter->name());
            const ParameterFacts& facts = parameter->facts();
            const auto in = static_cast<double>(facts.fan_in), out = static_cast<double>(facts.fan_out);
            double wanted = std::sqrt(2.0 / (in + out));
            if (facts.role == ParameterRole::embedding) wanted = 1.0;
            if (facts.role == ParameterRole::norm || facts.role == ParameterRole::bias) continue;
            if (parameter->name().ends_with("qkv/weight")) wanted = std::sqrt(1.0 / 32.0);
            if (parameter->name().ends_with("positions/weight")) wanted = std::sqrt(1.0 / 128.0);
            double largest = 0.0;
            for (const float x : parameter->value().span())
                largest = std::max(largest, std::abs(static_cast<double>(x)));
            CHECK(largest <= std::sqrt(3.0) * wanted);
            CHECK(largest > 0.9 * std::sqrt(3.0) * wanted);
        }
    }
    CHECK(nn::unit_scaling_initial(nn::unit_scaling_config({}), find_recipe("us-fp32")).rules.empty());
    CHECK_THROWS_WITH(nn::unit_scaling_config({.width = 32, .head_size = 12}),
                      "unit_scaling_config: width 32 is not divisible by heads of size 12");
}

TEST_CASE("unit scaling model: in every setting gradients are the audit's constants times the true gradients") {
    const auto batch = test::random_batch(2, 5, 7);
    for (const Setting& setting : settings()) {
        INFO(setting.text());
        nn::DecoderConfig config = nn::unit_scaling_config({.vocabulary = 7,
                                                            .width = 8,
                                                            .depth = 2,
                                                            .head_size = 4,
                                                            .length = 5,
                                                            .context = setting.context,
                                                            .placement = setting.placement});
        config.context.kernel = 3, config.context.convolution_groups = 2;
        test::LanguageModel<double> model(setting.recipe(), config);
        model.plan(batch);
        test::randomise(model.decoder.parameters(), 1.0);
        model.tape.begin_step({.retain = true});
        const Variable<double> loss = model.loss(batch);
        model.tape.backward(loss);
        const analysis::Audit audit = analysis::audit(model.tape, loss);
        CHECK(audit.faults.empty());
        for (Parameter<double>* parameter : model.decoder.parameters()) {
            INFO(parameter->name());
            const auto leaf = std::find_if(audit.leaves.begin(), audit.leaves.end(),
                                           [&](const auto& one) { return one.name == parameter->name(); });
            REQUIRE(leaf != audit.leaves.end());
            const Tensor<double> gradient = parameter->gradient(),
                                 direction = normal<double>(parameter->shape(), {3, hash_name(parameter->name())});
            double along = 0.0, size = 0.0;
            for (std::size_t i = 0; i < gradient.size(); ++i) {
                along += gradient.data()[i] * direction.data()[i];
                size += gradient.data()[i] * gradient.data()[i];
            }
            CHECK(along == Approx(leaf->s * slope(model, batch, *parameter, direction))
                               .epsilon(1e-5)
                               .margin(1e-6 * std::sqrt(size)));
        }
    }
}
