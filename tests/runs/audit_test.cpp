// SPDX-License-Identifier: MIT
// Audits of whole models, and the effect of unit scaling on training (proposition 5.1).
#include <unitscale/analysis/audit.hpp>

#include "support/catch.hpp"
#include "support/language_model.hpp"

#include <unitscale/analysis/grad_check.hpp>
#include <unitscale/ops/linear.hpp>
#include <unitscale/optim/adam.hpp>
#include <unitscale/optim/sgd.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/train/evaluate.hpp>
#include <unitscale/train/step.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

using namespace unitscale;
using namespace unitscale::test;

namespace {

/// The configurations of every kind of decoder that the library builds.
std::vector<nn::DecoderConfig> decoders() {
    std::vector<nn::DecoderConfig> configs;
    for (const bool tied : {false, true})
        for (const auto placement : {nn::NormPlacement::pre, nn::NormPlacement::post, nn::NormPlacement::none})
            for (const auto feed_forward : {nn::FeedForwardKind::gelu, nn::FeedForwardKind::gated_silu})
                for (const auto positions : {nn::Positions::learned, nn::Positions::rotary})
                    configs.push_back({.vocabulary = 11,
                                       .width = 8,
                                       .depth = 2,
                                       .heads = 2,
                                       .length = 6,
                                       .feed_forward = feed_forward,
                                       .norm = {.gains = positions == nn::Positions::learned},
                                       .placement = placement,
                                       .positions = positions,
                                       .dropout = tied ? 0.1 : 0.0,
                                       .bias = true,
                                       .tied = tied});
    return configs;
}

std::vector<Recipe> unit_recipes() {
    std::vector<Recipe> recipes;
    for (Recipe recipe : known_recipes()) {
        if (recipe.scaling != Scaling::unit) continue;
        recipes.push_back(recipe);
        recipe.name += ", gmean";
        recipe.automatic_rule = Constraint::gmean;
        recipes.push_back(recipe);
    }
    return recipes;
}

}  // namespace

TEST_CASE(
    "every decoder has valid gradients under every unit recipe, each s times the true one, with no constraint set in "
    "nn") {
    for (const Recipe& recipe : unit_recipes())
        for (const nn::DecoderConfig& config : decoders()) {
            INFO(recipe.name << ", tied " << config.tied << ", placement " << static_cast<int>(config.placement)
                             << ", feed-forward " << static_cast<int>(config.feed_forward));
            Recipe exact = recipe;
            exact.products.clear();  // no rounding: it is another cause of differences from the true gradients
            LanguageModel<double> model(exact, config);
            const auto batch = random_batch(3, 6, 11);
            train::plan_factors(model.decoder, model.tape, batch);
            analysis::Audit audit;
            std::vector<std::vector<Tensor<double>>> gradients(2);
            for (const bool true_gradients : {false, true}) {
                model.state.set_step(0);
                for (Parameter<double>* parameter : model.decoder.parameters()) parameter->clear_gradient();
                model.tape.begin_step({.true_gradients = true_gradients});
                const Variable<double> loss = model.loss(batch);
                audit = analysis::audit(model.tape, loss);
                model.tape.backward(loss);
                for (const Parameter<double>* parameter : model.decoder.parameters())
                    gradients[true_gradients].push_back(parameter->gradient());
            }
            REQUIRE(audit.faults == std::vector<std::string>{});
            const auto parameters = model.decoder.parameters();
            REQUIRE(audit.leaves.size() == parameters.size());
            for (std::size_t i = 0; i < parameters.size(); ++i) {
                INFO(parameters[i]->name());
                const auto leaf = std::find_if(audit.leaves.begin(), audit.leaves.end(), [&](const auto& audited) {
                    return audited.name == parameters[i]->name();
                });
                REQUIRE(leaf != audit.leaves.end());
                // The floor is for the keys' bias. Its true gradient is 0, because the softmax does not depend on it.
                REQUIRE(analysis::relative_error(gradients[0][i], gradients[1][i], leaf->s, 1e-4) < 1e-9);
            }
        }
}

TEST_CASE("tied embeddings put the whole trunk on a cycle; untied, only branches are") {
    for (const bool tied : {false, true}) {
        LanguageModel<double> model(find_recipe("unit-fp32"),
                                    {.vocabulary = 11, .width = 8, .depth = 1, .heads = 2, .length = 6, .tied = tied});
        model.tape.begin_step();
        const analysis::Audit audit = analysis::audit(model.tape, model.loss(random_batch(3, 6, 11)));
        for (const analysis::AuditedOp& op : audit.ops) {
            INFO(op.path);
            if (op.op == "readout") {
                CHECK(op.inputs[0].edge == (tied ? EdgeKind::joined : EdgeKind::cut));
                CHECK(op.inputs[1].edge == (tied ? EdgeKind::joined : EdgeKind::cut));
                CHECK((op.inputs[0].beta == op.alpha) == tied);
            }
            if (op.path == "decoder/tokens/embedding")
                CHECK(op.inputs[0].edge == (tied ? EdgeKind::joined : EdgeKind::cut));
            if (op.path == "decoder/block0/ffn/up/linear") {
                CHECK(op.inputs[0].edge == EdgeKind::joined);
                CHECK(op.inputs[1].edge == EdgeKind::cut);
            }
            if (op.op == "softmax_cross_entropy") CHECK(op.inputs[0].edge == EdgeKind::cut);
        }
    }
}

TEST_CASE("an explicit constraint `none` inside a branch is found, by op and tensor") {
    for (const char* name : {"unit-fp32", "unit-fp8"}) {
        LanguageModel<float> model(find_recipe(name),
                                   {.vocabulary = 11, .width = 8, .depth = 1, .heads = 2, .length = 6});
        Parameter<float> extra("extra/weight", {16, 8}, {}), back("back/weight", {8, 16}, {});
        nn::initialise<float>({&extra, &back}, model.recipe, 1);
        model.tape.begin_step();
        const Tensor<std::int32_t> ids = random_tokens({3, 6}, 11);
        const Variable<float> x = model.tape.input(normal<float>({18, 8}, {1, 1}), true);
        const auto [branch, stream] = ops::residual_split(x, 0.5);
        const Variable<float> up = ops::linear(branch, model.tape.parameter(extra), {.constraint = Constraint::none});
        const Variable<float> y = ops::residual_add(ops::linear(up, model.tape.parameter(back)), stream, 0.5);
        const analysis::Audit audit = analysis::audit(model.tape, analysis::project(y, normal<float>({18, 8}, {1, 2})));
        CHECK_FALSE(audit.valid());
        REQUIRE(audit.faults.size() == 1);
        // The first factor is 16^-1/2 / 8^-1/2.
        CHECK(audit.faults[0] ==
              "residual_split: the gradients of its outputs carry different factors, 0.707107 and 1");
    }
}

TEST_CASE("under a mean, forward factors do not change from the first step to the last, nor in evaluation") {
    Recipe recipe = find_recipe("unit-fp32");
    recipe.automatic_rule = Constraint::gmean;
    LanguageModel<float> model(recipe,
                               {.vocabulary = 11, .width = 8, .depth = 1, .heads = 2, .length = 6, .tied = true});
    optim::Adam<float> optimiser(model.decoder.parameters());
    REQUIRE_THROWS_WITH(
        train::evaluate(model.decoder, model.tape, std::vector<std::int32_t>(20, 1), 6, 1),
        Catch::Contains("no forward factor planned for decoder/") && Catch::Contains("call Tape::plan"));
    const std::vector<train::Batch> batches = {random_batch(8, 6, 11)};
    REQUIRE(train::train_step<float>(model.decoder, model.tape, optimiser, batches, 0.01).updated);
    const auto plan = model.state.plan();
    CHECK(plan.size() >= 10);
    // Tied: the readout's factor is a mean of three ideal factors, and one of them depends on the step's 48 rows.
    // A step of another size must not change the factor.
    CHECK(plan.at("decoder/readout/readout") ==
          Approx(std::cbrt(std::pow(8.0, -0.5) * std::pow(11.0, -0.5) * std::pow(48.0, -0.5))));
    const std::vector<train::Batch> other = {random_batch(2, 6, 11)};
    REQUIRE(train::train_step<float>(model.decoder, model.tape, optimiser, other, 0.01).updated);
    CHECK(model.state.plan() == plan);
    model.tape.begin_step({.training = false, .gradients = false});
    const auto logits = model.decoder(model.tape, random_tokens({1, 3}, 11));
    CHECK(logits.shape() == Shape{1, 3, 11});
    for (std::size_t i = 0; i < model.tape.node_count(); ++i)
        if (const auto planned = model.state.planned_alpha(model.tape.node(i).site))
            CHECK(model.tape.node(i).alpha == *planned);
}

TEST_CASE("at the shapes of BERT-large scale factors cost less than 0.2 % of the matrix products") {
    // One encoder block: width 1024, 16 heads, feed-forward 4096, sequences of 512.
    nn::TransformerBlockConfig config{.attention = {.width = 1024, .heads = 16, .bias = true, .causal = false},
                                      .feed_forward = {.width = 1024, .hidden = 4096, .bias = true},
                                      .norm = {.kind = nn::NormKind::layer, .gains = true},
                                      .placement = nn::NormPlacement::post};
    nn::TransformerBlock<float> block("block", config);
    const Recipe recipe = find_recipe("unit-fp32");
    std::vector<Parameter<float>*> parameters;
    block.collect(parameters);
    nn::initialise(parameters, recipe, 1);
    ScalingState state(1);
    Tape<float> tape(recipe, state, 2);
    tape.begin_step();
    const Variable<float> y = block(tape.input(zeros<float>({1, 512, 1024}), true));
    const analysis::Audit audit = analysis::audit(tape, analysis::project(y, zeros<float>({1, 512, 1024})));
    CHECK(audit.valid());
    // Per token: 4 width^2 + 2 width hidden multiply-adds. In attention, per pair of tokens: 2 width.
    const double multiply_adds = 512.0 * (4.0 * 1024 * 1024 + 2.0 * 1024 * 4096) + 2.0 * 1024 * 512 * 512;
    CHECK(audit.product_operations == 6.0 * multiply_adds);
    CHECK(audit.extra_work() > 0.0);
    CHECK(audit.extra_work() < 0.002);
}

namespace {

/// Product with a factor: y = forward x, dx = backward dy.
Variable<double> times(Variable<double> x, double forward, double backward) {
    Tape<double>& tape = x.tape("times");
    Tensor<double> y = x.value();
    for (double& v : y.span()) v *= forward;
    return tape.record({"times", tape.next_site("times"), forward, {backward}}, {x}, std::move(y),
                       [](BackwardContext<double>& g) {
                           Tensor<double> dx = g.take_output_gradient();
                           for (double& v : dx.span()) v *= g.beta(0);
                           g.add(0, std::move(dx));
                       });
}

/// Training of y = alpha f(scale theta) with f(theta) = x theta^T, for proposition 5.1.
/// The gradient of theta is beta / alpha times the true gradient.
struct Descent {
    Descent(double a, double ratio, double inner, double start)
        : alpha(a), beta_over_alpha(ratio), inner_scale(inner), theta("theta", {3, 4}, {}) {
        fill_normal(theta.write(), {1, 1}, start);
    }

    [[nodiscard]] std::vector<Tensor<double>> train(auto optimiser, double rate, std::size_t steps) {
        const Recipe recipe = analysis::plain_recipe(Scaling::none);
        ScalingState state(1);
        Tape<double> tape(recipe, state);
        std::vector<Tensor<double>> path;
        Tensor<std::int32_t> labels({6});
        for (std::size_t i = 0; i < 6; ++i) labels.data()[i] = static_cast<std::int32_t>(i % 3);
        for (std::size_t step = 0; step < steps; ++step) {
            tape.begin_step();
            const auto x = tape.input(normal<double>({6, 4}, {2, step % 4}));
            const auto weight = tape.parameter(theta);
            const auto inner = times(weight, inner_scale, inner_scale * beta_over_alpha);
            const auto loss = ops::softmax_cross_entropy(times(ops::linear(x, inner), alpha, alpha), labels);
            tape.backward(loss);
            optimiser.step(tape.execution(), rate);
            optimiser.clear_gradients();
            path.push_back(theta.value());
        }
        return path;
    }

    double alpha, beta_over_alpha, inner_scale;
    Parameter<double> theta;
};

}  // namespace

TEST_CASE("proposition 5.1: with SGD, alpha f with gradient factor beta trains like alpha f(sqrt(beta / alpha) t)") {
    for (const double ratio : {0.2, 3.0, 10.0}) {
        const double root = std::sqrt(ratio);
        Descent scaled(0.7, ratio, 1.0, 1.0), reparametrised(0.7, 1.0, root, 1.0 / root);
        const auto a = scaled.train(optim::Sgd<double>({&scaled.theta}, {.momentum = 0.0}), 0.5, 50);
        const auto b = reparametrised.train(optim::Sgd<double>({&reparametrised.theta}, {.momentum = 0.0}), 0.5, 50);
        for (std::size_t step = 0; step < 50; ++step) {
            INFO("ratio " << ratio << ", step " << step);
            REQUIRE(analysis::relative_error(a[step], b[step], root) < 1e-12);
        }
        Descent other(0.7, 1.0, 1.0, 1.0);
        const auto c = other.train(optim::Sgd<double>({&other.theta}, {.momentum = 0.0}), 0.5, 50);
        CHECK(analysis::relative_error(a.back(), c.back()) > 0.01);  // beta changes the result
    }
}

TEST_CASE("proposition 5.1: with Adam and epsilon 0 beta has no influence") {
    for (const double ratio : {0.2, 3.0, 10.0}) {
        Descent scaled(0.7, ratio, 1.0, 1.0), plain(0.7, 1.0, 1.0, 1.0);
        const auto a = scaled.train(optim::Adam<double>({&scaled.theta}, {.epsilon = 0.0}), 0.02, 50);
        const auto b = plain.train(optim::Adam<double>({&plain.theta}, {.epsilon = 0.0}), 0.02, 50);
        for (std::size_t step = 0; step < 50; ++step) {
            INFO("ratio " << ratio << ", step " << step);
            REQUIRE(analysis::relative_error(a[step], b[step]) < 1e-10);
        }
    }
}
