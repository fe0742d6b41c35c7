// SPDX-License-Identifier: MIT
#include <unitscale/nn/linear.hpp>

#include "support/language_model.hpp"
#include "support/op_checks.hpp"
#include "support/test_ops.hpp"

using namespace unitscale;

TEST_CASE("Linear: is ops::linear of its own weight and bias") {
    for (const bool with_bias : {false, true}) {
        nn::Linear<float> layer("net/block3/up", {.in = 3, .out = 5, .bias = with_bias, .depth = 6});
        std::vector<Parameter<float>*> parameters;
        layer.collect(parameters);
        REQUIRE(parameters.size() == (with_bias ? 2u : 1u));
        CHECK(parameters[0] == &layer.weight());
        CHECK(parameters[0]->name() == "net/block3/up/weight");
        CHECK(parameters[0]->shape() == Shape{5, 3});
        CHECK(parameters[0]->facts().role == ParameterRole::weight);
        CHECK(parameters[0]->facts().fan_in == 3);
        CHECK(parameters[0]->facts().fan_out == 5);
        CHECK(parameters[0]->facts().depth == 6);
        CHECK((layer.bias() != nullptr) == with_bias);
        if (with_bias) {
            CHECK(parameters[1]->name() == "net/block3/up/bias");
            CHECK(parameters[1]->shape() == Shape{5});
            CHECK(parameters[1]->facts().role == ParameterRole::bias);
            CHECK(parameters[1]->facts().depth == 6);
        }
        test::randomise(parameters, 1.0);

        test::OpTape<float> run;
        const auto x = run.input({2, 4, 3});
        const auto y = layer(x);
        CHECK(run.state.path(run.tape.node(0).site) == "up/linear");
        std::optional<Variable<float>> bias;
        if (with_bias) bias = run.tape.parameter(*layer.bias());
        CHECK(test::elements(y.value()) ==
              test::elements(ops::linear(x, run.tape.parameter(layer.weight()), bias).value()));
        CHECK(y.shape() == Shape{2, 4, 5});
    }
}

TEST_CASE("Linear: a constraint of the layer joins its factors, unless a call names another") {
    nn::Linear<float> layer("up", {.in = 4, .out = 9, .constraint = Constraint::gmean});
    test::randomise<float>({&layer.weight()}, 1.0);
    test::OpTape<float> run(Scaling::unit);
    const auto x = run.input({2, 4});
    static_cast<void>(layer(x));
    static_cast<void>(layer(x, {.constraint = Constraint::none}));
    CHECK(run.tape.node(0).alpha == Approx(1.0 / std::sqrt(6.0)));
    CHECK(run.tape.node(1).alpha == Approx(0.5));
}

TEST_CASE("Linear: a share of rows with a gradient sets the factor of the weight, unless a call names their number") {
    nn::Linear<float> layer("up", {.in = 4, .out = 9, .bias = true, .gradient_share = 0.25});
    test::randomise<float>({&layer.weight(), layer.bias()}, 1.0);
    for (const Scaling scaling : {Scaling::unit, Scaling::none}) {
        test::OpTape<float> run(scaling, {.micro_batches = 3});
        const auto x = run.input({2, 6, 4});
        static_cast<void>(layer(x));
        static_cast<void>(layer(x, {.step_rows = 4}));
        const bool unit = scaling == Scaling::unit;
        CHECK(run.tape.node(0).betas[1] == Approx(unit ? 1.0 / 3.0 : 1.0));  // a quarter of 36 rows
        CHECK(run.tape.node(0).betas[2] == Approx(unit ? 1.0 / 3.0 : 1.0));
        CHECK(run.tape.node(1).betas[1] == Approx(unit ? 0.5 : 1.0));
    }
}

TEST_CASE("Linear: gradients reach weight and bias; an input that does not fit is an error") {
    nn::Linear<float> layer("up", {.in = 3, .out = 5, .bias = true});
    test::randomise<float>({&layer.weight(), layer.bias()}, 1.0);
    test::OpTape<float> run;
    run.tape.backward(test::sum(layer(run.input({2, 3}))));
    CHECK(layer.weight().gradient().shape() == Shape{5, 3});
    CHECK(layer.bias()->gradient().shape() == Shape{5});
    REQUIRE_THROWS_WITH(layer(run.input({2, 4})), "linear: x [2,4] and weight [5,3] do not contract: 4 != 3");
}
