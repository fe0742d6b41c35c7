// SPDX-License-Identifier: MIT
#include <unitscale/nn/relative_attention.hpp>

#include "support/language_model.hpp"
#include "support/op_checks.hpp"
#include "support/peer_case.hpp"
#include "support/step_sizes.hpp"
#include "support/test_ops.hpp"

#include <unitscale/nn/module.hpp>
#include <unitscale/scaling/known_recipes.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <numbers>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

using namespace unitscale;

namespace {

const nn::RelativeAttentionConfig small{.width = 8, .heads = 2, .head_size = 3, .frequencies = 6};

/// A layer with random parameters, and its step: the value, and the gradients of x and of every parameter.
template <class T>
struct Run {
    Run(const Recipe& how, const nn::RelativeAttentionConfig& config, const Shape& shape, const StepOptions& step = {},
        int threads = 1)
        : layer("net", config), parameters(nn::parameters_of<T>(layer)) {
        test::randomise(parameters, how.scaling == Scaling::unit ? 0.7 : 0.25);
        const Recipe recipe = recipe_in<T>(how);
        ScalingState state(1);
        Tape<T> tape(recipe, state, threads);
        const Tensor<T> input = cast<T>(normal<double>(shape, {1, 1})),
                        direction = cast<T>(normal<double>(shape, {1, 2}));
        tape.plan([&] { return analysis::project(layer(tape.input(input, true)), direction); }, step);
        tape.begin_step(step);
        const Variable<T> x = tape.input(input, true), y = layer(x);
        results.push_back(value<double>(y.scaled()));
        tape.backward(analysis::project(y, direction));
        results.push_back(value<double>(x.gradient()));
        for (const Parameter<T>* p : parameters) results.push_back(value<double>(p->gradient()));
    }

    nn::RelativeAttention<T> layer;
    std::vector<Parameter<T>*> parameters;
    std::vector<Tensor<double>> results{};
};

/// The largest relative error of a run's results against another's.
double worst_error(const std::vector<Tensor<double>>& ours, const std::vector<Tensor<double>>& theirs) {
    REQUIRE(ours.size() == theirs.size());
    double worst = 0.0;
    for (std::size_t i = 0; i < ours.size(); ++i) worst = std::max(worst, analysis::relative_error(ours[i], theirs[i]));
    return worst;
}

}  // namespace

TEST_CASE("RelativeAttention: parameters and sites") {
    nn::RelativeAttention<float> layer("decoder/block0/attention",
                                       {.width = 12, .heads = 3, .head_size = 5, .frequencies = 8, .depth = 4});
    const auto parameters = nn::parameters_of<float>(layer);
    const std::vector<std::pair<std::string, Shape>> expected = {{"qkv/weight", {45, 12}},
                                                                 {"query_bias", {15}},
                                                                 {"positions/weight", {15, 8}},
                                                                 {"out/weight", {12, 15}},
                                                                 {"out/bias", {12}}};
    REQUIRE(parameters.size() == expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
        CHECK(parameters[i]->name() == "decoder/block0/attention/" + expected[i].first);
        CHECK(parameters[i]->shape() == expected[i].second);
        CHECK(parameters[i]->facts().depth == 4);
        CHECK((parameters[i]->facts().role == ParameterRole::bias) == (expected[i].second.size() == 1));
        CHECK(stream_width(parameters[i]->facts()) == (i == 2 ? 8 : 12));
    }
    nn::RelativeAttention<float> bare("net", {.width = 12, .heads = 3, .bias = false});
    const auto weights = nn::parameters_of<float>(bare);
    REQUIRE(weights.size() == 3);
    CHECK(weights[0]->shape() == Shape{36, 12});
    CHECK(weights[1]->shape() == Shape{12, 128});
    CHECK(bare.mult(find_recipe("fp32")) == 2.0);
    CHECK(bare.mult(find_recipe("umup-fp32")) == 1.0);

    test::randomise(parameters, 1.0);
    test::OpTape<float> run;
    static_cast<void>(layer(run.input({2, 5, 12})));
    std::vector<std::string> paths;
    for (std::size_t i = 0; i < run.tape.node_count(); ++i) paths.push_back(run.state.path(run.tape.node(i).site));
    for (const char* path : {"attention/qkv/linear", "attention/positions/linear", "attention/out/linear",
                             "attention/matmul", "attention/matmul.2", "attention/softmax"})
        CHECK(std::count(paths.begin(), paths.end(), path) == 1);
}

TEST_CASE("fill_distance_features: sines and cosines of the distances, the longest first") {
    Tensor<double> features({5, 8});
    nn::fill_distance_features(features, std::numbers::sqrt2);
    for (std::size_t s = 0; s < 5; ++s) {
        double square = 0.0;
        for (std::size_t f = 0; f < 8; ++f) {
            const double w = std::numbers::pi * std::pow(2.0 / 1024.0, static_cast<double>(f / 2) / 3.0),
                         phase = f % 2 == 0 ? 0.0 : std::numbers::pi / 2.0;
            const double element = features(4 - s, f);
            CHECK(element == Approx(std::numbers::sqrt2 * std::sin(w * static_cast<double>(s) + phase)).margin(1e-14));
            square += element * element;
        }
        CHECK(square == Approx(8.0));
    }
}

TEST_CASE("RelativeAttention: values and gradients are those of the published form, with and without factors") {
    const std::map<std::string, std::string> names = {{"net/qkv/weight", "qkv"},
                                                      {"net/query_bias", "query_bias"},
                                                      {"net/positions/weight", "positions"},
                                                      {"net/out/weight", "out"},
                                                      {"net/out/bias", "out_bias"}};
    for (const bool unit : {false, true}) {
        test::PeerCase theirs("relative_attention", unit ? "unit" : "standard",
                              unit ? find_recipe("us-fp32") : find_recipe("fp32"));
        nn::RelativeAttention<double> layer(
            "net", {.width = 8, .heads = 2, .head_size = unit ? 3U : 0U, .frequencies = unit ? 10U : 8U});
        theirs.load(layer, names);
        // The second loss makes a cycle: the plan then joins the factors of every linear layer.
        Variable<double> x, y;
        const auto losses = [&] {
            x = theirs.input("x");
            y = layer(x);
            return std::vector{analysis::project(y, theirs.read("dy")), analysis::project(x, theirs.read("dz"))};
        };
        theirs.tape().plan(losses);
        theirs.tape().begin_step();
        const auto joined = losses();
        theirs.check_equal(y.value(), "y");
        theirs.tape().backward({joined[0], joined[1]}, {1.0, 1.0});
        theirs.check_gradients({{"dx", x}});
    }
}

TEST_CASE("RelativeAttention: gradients agree with finite differences, also of the unit-scaled function") {
    for (const Scaling scaling : {Scaling::none, Scaling::unit}) {
        nn::RelativeAttention<double> layer("net", small);
        const auto parameters = nn::parameters_of<double>(layer);
        test::randomise(parameters, 0.7);
        Parameter<double> x("x", {2, 4, 8}, {});
        fill_normal(x.write(), {1, 1});
        const Recipe recipe = analysis::plain_recipe(scaling);
        const Tensor<double> direction = normal<double>({2, 4, 8}, {1, 2});
        ScalingState state(1);
        Tape<double> tape(recipe, state);
        const auto loss = [&] {
            tape.begin_step({.true_gradients = true});
            return analysis::project(layer(tape.parameter(x)), direction);
        };
        tape.backward(loss());
        std::vector<Parameter<double>*> all = parameters;
        all.push_back(&x);
        for (Parameter<double>* parameter : all) {
            const Tensor<double> gradient = parameter->gradient();
            for (std::size_t i = 0; i < parameter->size(); i += 5) {
                INFO(parameter->name() << " " << i << " " << name(scaling));
                const double before = parameter->value().data()[i], step = 1e-5;
                parameter->write().data()[i] = before + step;
                const double above = loss().item();
                parameter->write().data()[i] = before - step;
                const double below = loss().item();
                parameter->write().data()[i] = before;
                CHECK(gradient.data()[i] == Approx((above - below) / (2.0 * step)).epsilon(1e-6).margin(1e-7));
            }
        }
    }
}

TEST_CASE("RelativeAttention: factors of a step are consistent, under both rules of joining") {
    for (const char* name : {"unit-fp32", "us-fp32", "umup-fp32"}) {
        INFO(name);
        const Recipe recipe = find_recipe(name);
        nn::RelativeAttention<float> layer("net", {.width = 16, .heads = 2});
        nn::initialise(nn::parameters_of<float>(layer), recipe, 1);
        ScalingState state(1);
        Tape<float> tape(recipe, state);
        // x passes the layer by, as in a residual layer; and two batches of other sizes share the layer.
        const auto loss = [&](const Shape& shape) {
            const Variable<float> x = tape.input(normal<float>(shape, {1, 1}), true);
            return analysis::project(ops::add(x, layer(x)), normal<float>(shape, {1, 2}));
        };
        for (const bool shared : {false, true}) {
            const auto losses = [&] {
                std::vector<Variable<float>> all{loss({3, 12, 16})};
                if (shared) all.push_back(loss({5, 7, 16}));
                return all;
            };
            state = ScalingState(1);
            tape.plan(losses);
            tape.begin_step();
            const std::vector<Variable<float>> step = losses();
            for (const std::string& fault : analysis::audit<float>(tape, step).faults) FAIL_CHECK(fault);
        }
    }
}

TEST_CASE("RelativeAttention: values and gradients have unit size at initialisation") {
    for (const std::size_t length : {std::size_t{64}, std::size_t{128}}) {
        constexpr std::size_t width = 64, batch = 8, d = 32;
        nn::RelativeAttention<float> layer("net", {.width = width, .heads = 2});
        const auto run = [&](Tape<float>& tape) {
            const auto x = tape.input(normal<float>({batch, length, width}, {1, 1}), true);
            return analysis::project(layer(x), normal<float>({batch, length, width}, {1, 2}));
        };
        // A gradient of p is a sum over the d elements of v, and has the factor s^-1/2: (d / s)^1/2 for it and for the
        // logits' gradients.
        const double of_p = std::sqrt(static_cast<double>(d) / static_cast<double>(length));
        test::check_unit_sizes(
            layer, run, {.least = 0.5, .most = 2.0, .least_gradient = std::min(0.5, 0.9 * of_p), .masked = "select"});
    }
}

TEST_CASE("RelativeAttention: softmax and product share the factor of attention; the plan or a length fixes it") {
    const auto alphas = [](Tape<float>& tape) {
        std::map<std::string, double> found;
        for (std::size_t i = 0; i < tape.node_count(); ++i)
            found[tape.state().path(tape.node(i).site)] = tape.node(i).alpha;
        return found;
    };
    for (const std::size_t factor_length : {std::size_t{0}, std::size_t{32}}) {
        nn::RelativeAttention<float> layer(
            "net", {.width = 8, .heads = 2, .frequencies = 6, .mult = 1.5, .factor_length = factor_length});
        test::randomise(nn::parameters_of<float>(layer), 1.0);
        const Recipe recipe = find_recipe("unit-fp32");
        ScalingState state(1);
        Tape<float> tape(recipe, state);
        const auto run = [&](std::size_t length) {
            return analysis::project(layer(tape.input(normal<float>({2, length, 8}, {1, 1}), true)),
                                     normal<float>({2, length, 8}, {1, 2}));
        };
        tape.plan([&] { return run(16); });
        for (const std::size_t length : {std::size_t{16}, std::size_t{5}}) {
            tape.begin_step();
            static_cast<void>(run(length));
            auto found = alphas(tape);
            const double s = factor_length == 0 ? 16.0 : 32.0;
            CHECK(found["net/matmul"] == Approx(1.0 / std::sqrt(8.0)));
            CHECK(found["net/matmul.1"] == Approx(1.0 / std::sqrt(8.0)));
            CHECK(found["net/matmul.2"] == Approx(1.0 / std::sqrt(s)));
            CHECK(found["net/softmax"] * found["net/matmul.2"] ==
                  Approx(ops::attention_unit_factor(1.5 * std::numbers::sqrt2, 4, s, true)));
        }
    }
}

TEST_CASE("RelativeAttention: a position changes no row before it, to the bit") {
    for (const Scaling scaling : {Scaling::none, Scaling::unit, Scaling::propagate}) {
        nn::RelativeAttention<float> layer("net", small);
        test::randomise(nn::parameters_of<float>(layer), 1.0);
        const auto rows = [&](std::size_t changed) {
            test::OpTape<float> run(scaling);
            Tensor<float> x = normal<float>({2, 7, 8}, {1, 1});
            for (std::size_t column = 0; changed < 7 && column < 8; ++column) x(1, changed, column) += 1.0F;
            return value(layer(run.tape.input(x, true)).scaled());
        };
        const Tensor<float> before = rows(7);
        for (std::size_t changed = 0; changed < 7; ++changed) {
            const Tensor<float> after = rows(changed);
            for (std::size_t item = 0; item < 2; ++item)
                for (std::size_t i = 0; i < 7; ++i) {
                    bool same = true;
                    for (std::size_t column = 0; column < 8; ++column)
                        same = same && before(item, i, column) == after(item, i, column);
                    if (item == 0 || i < changed) CHECK(same);
                    else if (i == changed) CHECK_FALSE(same);
                }
        }
    }
}

TEST_CASE("RelativeAttention: the scaling propagate changes nothing; threads do not change bits") {
    const nn::RelativeAttentionConfig config{.width = 16, .heads = 2, .frequencies = 8};
    const Run<double> plain(find_recipe("fp32"), config, {3, 24, 16});
    Recipe recipe = find_recipe("scalify-fp16-2");
    recipe.storage = find_recipe("fp32").storage;
    CHECK(worst_error(Run<double>(recipe, config, {3, 24, 16}).results, plain.results) < 1e-9);
    for (const char* name : {"fp32", "us-fp32"}) {
        const Run<float> one(find_recipe(name), config, {3, 24, 16}),
            two(find_recipe(name), config, {3, 24, 16}, {}, 2);
        CHECK(worst_error(two.results, one.results) == 0.0);
    }
}

TEST_CASE("RelativeAttention: two micro-batches give the gradients of one batch") {
    const Recipe recipe = find_recipe("us-fp32");
    const Tensor<double> x = normal<double>({4, 6, 8}, {1, 1}), direction = normal<double>({4, 6, 8}, {1, 2});
    const auto gradients = [&](std::size_t parts) {
        nn::RelativeAttention<double> layer("net", small);
        const auto parameters = nn::parameters_of<double>(layer);
        test::randomise(parameters, 0.7);
        ScalingState state(1);
        const Recipe wide = recipe_in<double>(recipe);
        Tape<double> tape(wide, state);
        const auto loss = [&](std::size_t part) {
            const std::size_t rows = 4 / parts;
            const auto cut = [&](const Tensor<double>& all) {
                return Tensor<double>({rows, 6, 8}, all.span().subspan(part * rows * 48, rows * 48));
            };
            return analysis::project(layer(tape.input(cut(x), true)), cut(direction));
        };
        tape.plan([&] { return loss(0); }, {.micro_batches = parts});
        for (std::size_t part = 0; part < parts; ++part) {
            tape.begin_step({.micro_batches = parts, .micro_batch = part});
            tape.backward(loss(part));
        }
        std::vector<Tensor<double>> results;
        for (const Parameter<double>* parameter : parameters) results.push_back(parameter->gradient());
        return results;
    };
    CHECK(worst_error(gradients(2), gradients(1)) < 1e-12);
}

TEST_CASE("RelativeAttention: products are rounded by kind") {
    const nn::RelativeAttentionConfig config{.width = 16, .heads = 2, .frequencies = 8};
    const auto error = [&](ProductKind kind) {
        Recipe recipe = find_recipe("us-fp32");
        const Run<float> exact(recipe, config, {3, 24, 16});
        recipe.products.push_back(
            {.kind = kind,
             .formats = {.activation = Quantiser{.format = e4m3}, .gradient = Quantiser{.format = e5m2}}});
        return analysis::relative_error(Run<float>(recipe, config, {3, 24, 16}).results[0], exact.results[0]);
    };
    CHECK(error(ProductKind::attention) == 0.0);
    CHECK(error(ProductKind::linear) > 0.01);
    CHECK(error(ProductKind::matmul) > 0.01);
    CHECK(error(ProductKind::matmul) < 0.1);
}

TEMPLATE_TEST_CASE("RelativeAttention: 16 bits give the results of float", "", Half, BFloat16) {
    const nn::RelativeAttentionConfig config{.width = 16, .heads = 2};
    const double tolerance = std::is_same_v<TestType, Half> ? 0.005 : 0.04;
    for (const char* name : {"fp32", "us-fp32", "scalify-fp16-2"}) {
        INFO(name);
        Recipe recipe = find_recipe(name);
        recipe.storage.master.reset();
        const Run<TestType> narrow(recipe, config, {3, 24, 16});
        recipe.storage = find_recipe("fp32").storage;
        CHECK(worst_error(narrow.results, Run<float>(recipe, config, {3, 24, 16}).results) < tolerance);
    }
    const Run<TestType> eight(find_recipe("us-fp8"), config, {3, 24, 16});
    const Run<float> exact(find_recipe("us-fp32"), config, {3, 24, 16});
    CHECK(worst_error(eight.results, exact.results) < 0.3);
}

TEST_CASE("RelativeAttention: errors name the sizes") {
    const auto make = [](const nn::RelativeAttentionConfig& config) { nn::RelativeAttention<float>("net", config); };
    REQUIRE_THROWS_WITH(make({.width = 10, .heads = 3}),
                        "RelativeAttention: width 10 is not divisible by 3 heads; state head_size");
    REQUIRE_THROWS_WITH(make({.width = 0, .heads = 1}),
                        "RelativeAttention: width 0 is not divisible by 1 heads; state head_size");
    REQUIRE_THROWS_WITH(make({.heads = 0}), "RelativeAttention: 0 heads; expected at least 1");
    for (const std::size_t frequencies : {std::size_t{2}, std::size_t{5}})
        REQUIRE_THROWS_WITH(
            make({.frequencies = frequencies}),
            "RelativeAttention: " + std::to_string(frequencies) + " frequencies; expected an even number, at least 4");
    nn::RelativeAttention<float> layer("net", {.width = 10, .heads = 3, .head_size = 4});
    test::randomise(nn::parameters_of<float>(layer), 1.0);
    test::OpTape<float> run;
    CHECK(layer(run.input({2, 1, 10})).shape() == Shape{2, 1, 10});
    CHECK(layer(run.input({0, 3, 10})).shape() == Shape{0, 3, 10});
    const std::string end = "; expected [B,T,10] with T at least 1";
    REQUIRE_THROWS_WITH(layer(run.input({5, 10})), "RelativeAttention: x [5,10]" + end);
    REQUIRE_THROWS_WITH(layer(run.input({2, 5, 8})), "RelativeAttention: x [2,5,8]" + end);
    REQUIRE_THROWS_WITH(layer(run.input({2, 0, 10})), "RelativeAttention: x [2,0,10]" + end);
}
