// SPDX-License-Identifier: MIT
#include <unitscale/autograd/variable.hpp>

#include "support/catch.hpp"
#include "support/test_ops.hpp"

using namespace unitscale;
using namespace unitscale::test;

TEST_CASE("a variable shows value, shape, gradient and whether one flows") {
    const Recipe recipe;
    ScalingState state;
    Tape<double> tape(recipe, state);
    tape.begin_step();
    const Variable<double> x = vector_input<double>(tape, {3.0, -1.0});
    const Variable<double> constant = vector_input<double>(tape, {1.0, 1.0}, false);
    REQUIRE(x.shape() == Shape{2});
    REQUIRE(x.value().data()[1] == -1.0);
    REQUIRE(x.requires_gradient());
    REQUIRE_FALSE(constant.requires_gradient());
    REQUIRE(&x.tape("test") == &tape);
    tape.backward(sum(mul(x, constant)));
    REQUIRE(elements(x.gradient()) == std::vector<double>{1.0, 1.0});
}

TEST_CASE("item is data times scale of the only element") {
    const Recipe recipe;
    ScalingState state;
    Tape<float> tape(recipe, state);
    tape.begin_step();
    Tensor<float> one(Shape{1, 1}, {2.5f});
    one.set_scale(4.0);
    REQUIRE(tape.input(std::move(one)).item() == 10.0);
    REQUIRE_THROWS_WITH(vector_input<float>(tape, {1.0f, 2.0f}).item(),
                        "item: a value of shape [2] has 2 elements, not one");
}

TEST_CASE("item of a loss is the number that its op computed, before rounding to the tape's type") {
    const Recipe recipe = recipe_in<Half>({});
    ScalingState state;
    Tape<Half> tape(recipe, state);
    for (const double value : {1.0 + 0x1p-20, 0x1p17}) {
        tape.begin_step();
        const Variable<Half> x = tape.input(Tensor<Half>(Shape{1}, {Half(2.0f)}));
        Tensor<Half> rounded(Shape{1}, {Half(static_cast<float>(value))});
        const auto site = tape.next_site("loss");
        const auto loss = tape.record({.name = "loss", .site = site, .betas = {1.0}, .item = value}, {x},
                                      std::move(rounded), [](auto&) {});
        REQUIRE(loss.item() == value);
        REQUIRE(static_cast<double>(static_cast<float>(loss.value().data()[0])) != value);
        REQUIRE(x.item() == 2.0);
        tape.begin_step();  // a reused slot, for a tensor without `item`
        REQUIRE(tape.input(Tensor<Half>(Shape{1}, {Half(3.0f)})).item() == 3.0);
        REQUIRE(tape.input(Tensor<Half>(Shape{1}, {Half(4.0f)})).item() == 4.0);
    }
}

TEST_CASE("an empty variable is an error in every use") {
    const Variable<float> empty;
    REQUIRE_THROWS_WITH(empty.value(), "value: an empty Variable; make one with Tape::input, Tape::parameter or an op");
    REQUIRE_THROWS_WITH(empty.shape(), "value: an empty Variable; make one with Tape::input, Tape::parameter or an op");
    REQUIRE_THROWS_WITH(empty.gradient(),
                        "gradient: an empty Variable; make one with Tape::input, Tape::parameter or an op");
    REQUIRE_THROWS_WITH(empty.tape("gelu"),
                        "gelu: an empty Variable; make one with Tape::input, Tape::parameter or an op");
    REQUIRE_THROWS_WITH(square(empty),
                        "square: an empty Variable; make one with Tape::input, Tape::parameter or an op");
}

TEST_CASE("a gradient that was not computed is an error that names the op") {
    const Recipe recipe;
    ScalingState state;
    Tape<float> tape(recipe, state);
    tape.begin_step();
    const Variable<float> x = vector_input<float>(tape, {1.0f});
    const Variable<float> y = square(x);
    REQUIRE_THROWS_WITH(y.gradient(),
                        "gradient: the output of square has none; run backward(), with begin_step({.retain = true}) "
                        "for the gradients of ops");
    REQUIRE_THROWS_WITH(x.gradient(),
                        "gradient: the output of input has none; run backward(), with begin_step({.retain = true}) "
                        "for the gradients of ops");
}
