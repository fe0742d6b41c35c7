// SPDX-License-Identifier: MIT
#include <unitscale/analysis/audit.hpp>

#include "support/catch.hpp"
#include "support/random_graph.hpp"

#include <unitscale/analysis/grad_check.hpp>
#include <unitscale/scaling/known_recipes.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

using namespace unitscale;
using namespace unitscale::test;

namespace {

const std::vector<double> seeds = {1.0, 0.7};

Recipe unit_recipe(Constraint rule = Constraint::to_output_scale) {
    return {.name = "check", .scaling = Scaling::unit, .automatic_rule = rule, .readout_exponent = 0.5};
}

/// The result of one recording of a random graph.
struct Run {
    double loss = 0.0;
    std::vector<Tensor<double>> gradients{};
    analysis::Audit audit{};
    std::size_t constrained = 0;
};

Run run(RandomGraph& graph, const Recipe& recipe, const Fault& fault, bool true_gradients) {
    ScalingState state(1);
    Tape<double> tape(recipe, state);
    if (recipe.automatic_rule != Constraint::to_output_scale) tape.plan([&] { return graph.record(tape, fault); });
    state.set_step(0);
    graph.clear_gradients();
    tape.begin_step({.true_gradients = true_gradients});
    const std::vector<Variable<double>> losses = graph.record(tape, fault);
    Run result{.audit = analysis::audit(tape, std::span<const Variable<double>>(losses)),
               .constrained = graph.constrained_count()};
    for (std::size_t i = 0; i < losses.size(); ++i) result.loss += seeds[i] * losses[i].item();
    tape.backward(losses, std::span<const double>(seeds).first(losses.size()));
    for (const Variable<double>& leaf : graph.leaves()) {
        const bool reached = tape.has_gradient(leaf);
        result.gradients.push_back(reached ? leaf.gradient() : Tensor<double>());
    }
    return result;
}

/// The largest deviation of the gradients from multiples of the true gradients. Each gradient has its own factor.
double deviation(const std::vector<Tensor<double>>& actual, const std::vector<Tensor<double>>& truth) {
    double worst = 0.0;
    for (std::size_t i = 0; i < truth.size(); ++i)
        if (!truth[i].empty()) worst = std::max(worst, analysis::fit_factor(actual[i], truth[i]).error);
    return worst;
}

}  // namespace

TEST_CASE("under automatic constraints every gradient of 1,000 random graphs is s times the true one, s as audited") {
    std::size_t cut = 0, joined = 0, factors = 0;
    for (std::uint64_t seed = 0; seed < 1000; ++seed) {
        INFO("graph " << seed);
        const Constraint rule = seed % 2 == 0 ? Constraint::to_output_scale : Constraint::gmean;
        const Recipe recipe = unit_recipe(rule);
        RandomGraph graph(seed);
        const Run scaled = run(graph, recipe, {}, false), truth = run(graph, recipe, {}, true);
        REQUIRE(scaled.loss == truth.loss);
        REQUIRE(scaled.audit.faults == std::vector<std::string>{});
        std::size_t reached = 0;
        for (std::size_t i = 0; i < truth.gradients.size(); ++i) {
            if (truth.gradients[i].empty()) continue;
            REQUIRE(reached < scaled.audit.leaves.size());
            const double s = scaled.audit.leaves[reached++].s;
            REQUIRE(analysis::relative_error(scaled.gradients[i], truth.gradients[i], s) < 1e-9);
            if (std::abs(s - 1.0) > 1e-3) ++factors;
        }
        REQUIRE(reached == scaled.audit.leaves.size());
        for (const analysis::AuditedOp& op : scaled.audit.ops)
            for (const analysis::AuditedInput& input : op.inputs) {
                cut += input.edge == EdgeKind::cut ? 1 : 0;
                joined += input.edge == EdgeKind::joined ? 1 : 0;
            }
    }
    CHECK(cut > 4000);
    CHECK(joined > 4000);
    CHECK(factors > 1000);
}

TEST_CASE("the true gradients of 50 random graphs agree with finite differences") {
    for (std::uint64_t seed = 0; seed < 50; ++seed) {
        INFO("graph " << seed);
        const Recipe recipe = unit_recipe();
        RandomGraph graph(seed);
        static_cast<void>(run(graph, recipe, {}, true));  // makes the parameters
        for (const auto& parameter : graph.parameters()) {
            static_cast<void>(run(graph, recipe, {}, true));  // the last run was at another place
            if (!parameter->has_gradient()) continue;
            const Tensor<double> gradient = parameter->gradient();
            Tensor<double> numeric(gradient.shape());
            for (std::size_t i = 0; i < numeric.size(); ++i) {
                const double kept = parameter->value().data()[i], h = 1e-5;
                const auto slope = [&](double step) {
                    parameter->write().data()[i] = kept + step;
                    const double above = run(graph, recipe, {}, true).loss;
                    parameter->write().data()[i] = kept - step;
                    const double below = run(graph, recipe, {}, true).loss;
                    parameter->write().data()[i] = kept;
                    return (above - below) / (2.0 * step);
                };
                numeric.data()[i] = (4.0 * slope(h) - slope(2.0 * h)) / 3.0;  // the error in h^2 cancels
            }
            REQUIRE(analysis::relative_error(gradient, numeric, 1.0, 1e-2) < 1e-7);
        }
    }
}

TEST_CASE(
    "audit and true gradients agree on graphs with a built-in fault: directions differ if and only if a fault is "
    "flagged") {
    std::size_t valid = 0, flagged = 0;
    const auto compare = [&](std::uint64_t seed, const Fault& fault) {
        const Recipe recipe = unit_recipe();
        RandomGraph graph(seed);
        const Run scaled = run(graph, recipe, fault, false), truth = run(graph, recipe, fault, true);
        const double error = deviation(scaled.gradients, truth.gradients);
        INFO("graph " << seed << ", op " << fault.op.value_or(0) << ", deviation " << error);
        // Observed: at most 2e-12 for valid graphs, at least 5e-8 for others.
        if (scaled.audit.valid()) REQUIRE(error < 1e-10);
        else REQUIRE(error > 1e-9);
        ++(scaled.audit.valid() ? valid : flagged);
        return scaled.constrained;
    };
    for (std::uint64_t seed = 0; seed < 300; ++seed) {
        std::size_t count = compare(seed, {.residual = true});
        for (std::size_t op = 0; op < count; ++op) static_cast<void>(compare(seed, {.op = op}));
    }
    CHECK(valid > 500);
    CHECK(flagged > 500);
}

/// The example of the paper's appendix E.3: the two paths back to x need equal factors.
TEST_CASE("x + f(x) is valid as planned, and flagged where f's gradient factor differs from its own") {
    for (const bool broken : {false, true}) {
        const Recipe recipe = unit_recipe();
        ScalingState state(1);
        Tape<double> tape(recipe, state);
        std::vector<Tensor<double>> gradients;
        for (const bool true_gradients : {false, true}) {
            tape.begin_step({.true_gradients = true_gradients});
            const auto x = tape.input(normal<double>({6}, {3, 1}), true);
            // sqrt(1/2) gives x^2 unit variance, 1/2 its gradient 2 x dy unit mean square.
            const auto square = tape.record(
                {.name = "square",
                 .site = tape.next_site("square"),
                 .alpha = std::sqrt(0.5),
                 .betas = {0.5},
                 .joined_by = broken ? JoinedBy::hand : JoinedBy::plan},
                {x},
                [&] {
                    Tensor<double> y(Shape{6});
                    for (std::size_t i = 0; i < 6; ++i)
                        y.data()[i] = std::sqrt(0.5) * x.value().data()[i] * x.value().data()[i];
                    return y;
                }(),
                [](BackwardContext<double>& g) {
                    Tensor<double> dx = g.take_output_gradient();
                    for (std::size_t i = 0; i < 6; ++i) dx.data()[i] *= g.beta(0) * 2.0 * g.input(0).data()[i];
                    g.add(0, std::move(dx));
                });
            const auto loss =
                analysis::project(ops::weighted_add({x, square}, {1.0, 1.0}), normal<double>({6}, {3, 2}));
            const analysis::Audit audit = analysis::audit(tape, loss);
            CHECK(audit.valid() != broken);
            if (broken)
                CHECK(audit.faults ==
                      std::vector<std::string>{"square: sends input a gradient with the factor 0.707107; another "
                                               "consumer's has 1"});
            tape.backward(loss);
            gradients.push_back(x.gradient());
        }
        CHECK((deviation({gradients[0]}, {gradients[1]}) > 0.01) == broken);
    }
}

TEST_CASE(
    "a residual branch keeps its own factor unless it shares a weight with the outside; then the split gives it up") {
    for (const bool shared : {false, true}) {
        const Recipe recipe = unit_recipe();
        ScalingState state(1);
        Tape<double> tape(recipe, state);
        Parameter<double> inner("inner", {4, 4}, {}), outer("outer", {4, 4}, {});
        fill_normal(inner.write(), {1, 1});
        fill_normal(outer.write(), {1, 2});
        tape.begin_step();
        const auto x = tape.input(normal<double>({3, 4}, {1, 3}), true);
        const auto [branch, stream] = ops::residual_split(x, 0.5);
        const auto y = ops::residual_add(ops::linear(branch, tape.parameter(inner)), stream, 0.5);
        const auto z = ops::linear(y, tape.parameter(shared ? inner : outer));
        const analysis::Audit audit = analysis::audit(tape, analysis::project(z, normal<double>({3, 4}, {1, 4})));
        CHECK(audit.valid());
        const double weight = 0.5 / std::sqrt(1.25);
        CHECK(tape.node(0).output_weights[0] == Approx(shared ? 1.0 : weight).epsilon(1e-14));
        CHECK(tape.node(2).betas[0] == Approx(shared ? 1.0 : 1.0 / weight).epsilon(1e-14));
        CHECK(audit.leaves[1].name == "inner");
        // Outside: beta_w / alpha of a lone weight, 3 rows against 4 columns, at most.
        CHECK(audit.leaves[1].s == Approx(shared ? 1.0 : std::sqrt(4.0 / 3.0) / weight).epsilon(1e-12));
    }
}

TEST_CASE("under propagate the audit's constants are the scales that the gradients carry") {
    Recipe recipe = find_recipe("aligned-fp32");
    recipe.storage = {};
    ScalingState state(1);
    Tape<double> tape(recipe, state);
    Parameter<double> weight("weight", {4, 4}, {});
    fill_normal(weight.write(), {1, 1});
    weight.write().set_scale(0.02);
    tape.begin_step({.retain = true});
    const auto x = tape.input(normal<double>({3, 4}, {1, 3}), true);
    const auto loss = analysis::project(ops::linear(x, tape.parameter(weight)), normal<double>({3, 4}, {1, 4}));
    CHECK_THROWS_WITH(analysis::audit(tape, loss),
                      "audit: under scaling propagate, expected a step begun with {.retain = true}, and its backward "
                      "pass");
    tape.backward(loss);
    const analysis::Audit audit = analysis::audit(tape, loss);
    CHECK(audit.valid());
    REQUIRE(audit.leaves.size() == 2);
    CHECK(audit.leaves[0].s == 1.0 / x.gradient().scale());
    CHECK(audit.leaves[1].name == "weight");
    CHECK(audit.leaves[1].s == 1.0 / weight.gradient().scale());
    CHECK(audit.leaves[1].s != audit.leaves[0].s);
}

TEST_CASE("the audit's table and numbers of a small step, as text") {
    const Recipe recipe = unit_recipe();
    ScalingState state(1);
    Tape<double> tape(recipe, state);
    Parameter<double> weight("layer/weight", {16, 4}, {});
    fill_zero(weight.write());
    tape.begin_step();
    const auto x = tape.input(zeros<double>({9, 4}), true);
    const auto y = [&] {
        const auto scope = tape.scope("layer");
        return ops::linear(x, tape.parameter(weight));
    }();
    Tensor<std::int32_t> labels({9});
    fill_zero(labels);
    const auto loss = ops::softmax_cross_entropy(y, labels, {.reduction = ops::Reduction::sum});
    const analysis::Audit audit = analysis::audit(tape, loss);
    CHECK(analysis::to_text(audit) ==
          "gradients: valid, each a constant times the true one\n"
          "scale factors cost 11.227 % of the matrix products' operations\n"
          "\n"
          "op                     inputs        output  alpha  betas               phi\n"
          "layer/linear           [9,4] [16,4]  [9,16]  0.5    0.25 |  0.333333 |  4.13118\n"
          "softmax_cross_entropy  [9,16]        [1]     1      4.13118 |           1\n"
          "\n"
          "parameter     shape   s\n"
          "input         [9,4]   2.06559\n"
          "layer/weight  [16,4]  2.75412\n");
    // By hand: 9 x 16 values times alpha, 9 x 16, 9 x 4 and 16 x 4 gradients times beta; 3 products of 2 x 9 x 4 x 16.
    CHECK(audit.scaling_multiplications == 144.0 + 144.0 + 36.0 + 64.0);
    CHECK(audit.product_operations == 3.0 * 2.0 * 9.0 * 4.0 * 16.0);
    tape.backward(loss);
    CHECK(analysis::to_text(analysis::audit(tape, loss)) ==
          analysis::to_text(audit));  // values are gone, shapes are not
    REQUIRE_THROWS_WITH(analysis::audit(tape, std::span<const Variable<double>>()), "audit: no losses");
}

TEST_CASE("audit: rows that blocks repeat are one row with a count; faults and warnings stand first") {
    using Rows = std::vector<std::vector<std::string>>;
    const Rows rows = {{"op", "phi"},        {"block0/up", "1"},  {"block0/down", "2"}, {"block1/up", "1"},
                       {"block1/down", "3"}, {"block12/up", "1"}, {"readout", "1"}};
    CHECK(analysis::folded(rows) ==
          Rows{{"op", "phi"}, {"block*/up (x 3)", "1"}, {"block0/down", "2"}, {"block1/down", "3"}, {"readout", "1"}});
    analysis::Audit audit;
    audit.faults = {"a is wrong"};
    audit.warnings = {"b is large"};
    CHECK(analysis::to_text(audit) ==
          "gradients: NOT valid\n"
          "fault: a is wrong\n"
          "warning: b is large\n"
          "scale factors cost 0.000 % of the matrix products' operations\n"
          "\n"
          "op  inputs  output  alpha  betas  phi\n"
          "\n"
          "parameter  shape  s\n");
}
