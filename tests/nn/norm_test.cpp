// SPDX-License-Identifier: MIT
#include <unitscale/nn/norm.hpp>

#include "support/language_model.hpp"
#include "support/op_checks.hpp"
#include "support/test_ops.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

using namespace unitscale;

TEST_CASE("Norm: rms and layer normalisation, with and without gains") {
    for (const nn::NormKind kind : {nn::NormKind::rms, nn::NormKind::layer})
        for (const bool gains : {false, true}) {
            nn::Norm<float> norm("decoder/block0/ffn_norm",
                                 {.kind = kind, .width = 6, .gains = gains, .epsilon = 0.25});
            std::vector<Parameter<float>*> parameters;
            norm.collect(parameters);
            std::vector<std::string> names;
            for (const Parameter<float>* parameter : parameters) {
                names.push_back(parameter->name());
                CHECK(parameter->shape() == Shape{6});
                CHECK(parameter->facts().role == (names.size() == 1 ? ParameterRole::norm : ParameterRole::bias));
                CHECK(parameter->facts().fan_out == 6);
            }
            std::vector<std::string> expected;
            if (gains) expected.push_back("decoder/block0/ffn_norm/gain");
            if (gains && kind == nn::NormKind::layer) expected.push_back("decoder/block0/ffn_norm/shift");
            CHECK(names == expected);
            test::randomise(parameters, 0.5);

            test::OpTape<float> run;
            const auto x = run.input({3, 6});
            const auto y = norm(x);
            CHECK(run.state.path(run.tape.node(0).site) ==
                  (kind == nn::NormKind::rms ? "ffn_norm/rms_norm" : "ffn_norm/layer_norm"));
            std::optional<Variable<float>> gain, shift;
            if (!parameters.empty()) gain = run.tape.parameter(*parameters[0]);
            if (parameters.size() > 1) shift = run.tape.parameter(*parameters[1]);
            const auto want = kind == nn::NormKind::rms ? ops::rms_norm(x, gain, {.epsilon = 0.25})
                                                        : ops::layer_norm(x, gain, shift, {.epsilon = 0.25});
            CHECK(test::elements(y.value()) == test::elements(want.value()));
            run.tape.backward(test::sum(y));
            for (const Parameter<float>* parameter : parameters) CHECK(parameter->gradient().shape() == Shape{6});
        }
}

TEST_CASE("Norm: a share of rows with a gradient sets the factor of the vectors, unless a call names their number") {
    for (const nn::NormKind kind : {nn::NormKind::rms, nn::NormKind::layer}) {
        nn::Norm<float> norm("norm", {.kind = kind, .width = 6, .gains = true, .gradient_share = 0.25});
        std::vector<Parameter<float>*> parameters;
        norm.collect(parameters);
        test::randomise(parameters, 0.5);
        test::OpTape<float> run(Scaling::unit, {.micro_batches = 3});
        const auto x = run.input({2, 6, 6});
        static_cast<void>(norm(x));
        static_cast<void>(norm(x, 4));
        for (std::size_t i = 1; i < run.tape.node(0).betas.size(); ++i) {
            CHECK(run.tape.node(0).betas[i] == Approx(1.0 / 3.0));
            CHECK(run.tape.node(1).betas[i] == Approx(0.5));
        }
    }
}

TEST_CASE("Norm: an input of another width is an error when there are gains") {
    nn::Norm<float> norm("norm", {.width = 6, .gains = true});
    std::vector<Parameter<float>*> parameters;
    norm.collect(parameters);
    fill_constant(parameters.front()->write(), 1.0f);
    test::OpTape<float> run;
    REQUIRE_THROWS_WITH(norm(run.input({3, 5})), "rms_norm: gain [6] does not fit x [3,5]; expected [5]");
}

TEST_CASE("Norm: a recipe that rescales the gradients of norms' inputs changes their scale and nothing else") {
    for (const nn::NormKind kind : {nn::NormKind::rms, nn::NormKind::layer})
        for (const bool gains : {false, true}) {
            nn::Norm<float> norm("norm", {.kind = kind, .width = 50, .gains = gains});
            const auto run = [&](bool rescale) {
                Recipe recipe = analysis::plain_recipe(Scaling::propagate);
                recipe.propagate.rescale_gradients = rescale;
                ScalingState state(1);
                Tape<float> tape(recipe, state);
                tape.begin_step({.retain = true});
                std::vector<Parameter<float>*> parameters;
                norm.collect(parameters);
                test::randomise(parameters, 0.5);
                const auto x = tape.input(normal<float>({30, 50}, {1, 2}, 100.0), true);  // far from unit data
                const auto y = norm(x);
                tape.backward(analysis::project(y, normal<float>({30, 50}, {1, 3}, 0x1p-20), 0x1p-20));
                CHECK(tape.node_count() == (rescale ? 3 : 2));
                return std::pair(y.scaled(), x.gradient());
            };
            const auto [want, plain] = run(false);
            const auto [got, rescaled] = run(true);
            CHECK(std::equal(got.span().begin(), got.span().end(), want.span().begin()));
            const auto rms = [](const Tensor<float>& t) {
                double sum = 0.0;
                for (const float v : t.span()) sum += static_cast<double>(v) * static_cast<double>(v);
                return std::sqrt(sum / static_cast<double>(t.size()));
            };
            CHECK(rms(plain) < 0.05);
            CHECK(rms(rescaled) >= 1.0);
            CHECK(rms(rescaled) < 2.0);
            CHECK(analysis::relative_error(rescaled, plain, plain.scale() / rescaled.scale()) == 0.0);
        }
}
