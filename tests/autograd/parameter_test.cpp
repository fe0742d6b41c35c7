// SPDX-License-Identifier: MIT
#include <unitscale/autograd/parameter.hpp>

#include "support/catch.hpp"

#include <unitscale/scaling/recipe.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

using namespace unitscale;

TEST_CASE("a new parameter holds zeros, has its facts, wants a gradient and has none") {
    const Parameter<float> weight("block0/ffn/weight", Shape{2, 3},
                                  {.role = ParameterRole::readout, .fan_in = 3, .fan_out = 2, .depth = 8});
    REQUIRE(weight.name() == "block0/ffn/weight");
    REQUIRE(weight.facts().role == ParameterRole::readout);
    REQUIRE(weight.facts().fan_in == 3);
    REQUIRE(weight.facts().fan_out == 2);
    REQUIRE(weight.facts().depth == 8);
    REQUIRE(weight.shape() == Shape{2, 3});
    REQUIRE(weight.size() == 6);
    for (const float value : weight.value().span()) REQUIRE(value == 0.0f);
    REQUIRE(weight.requires_gradient());
    REQUIRE_FALSE(weight.has_gradient());
    REQUIRE(weight.version() == 0);
    static_assert(!std::is_copy_constructible_v<Parameter<float>> && !std::is_move_constructible_v<Parameter<float>>);
}

TEST_CASE("every write raises a parameter's version and reading does not") {
    Parameter<float> bias("bias", Shape{2}, {.role = ParameterRole::bias});
    REQUIRE(bias.value().any_scale());
    bias.write().data()[1] = 3.0f;
    REQUIRE(bias.version() == 1);
    REQUIRE(bias.value().data()[1] == 3.0f);
    REQUIRE_FALSE(bias.value().any_scale());
    REQUIRE(bias.version() == 1);
    static_cast<void>(bias.write());
    REQUIRE(bias.version() == 2);
}

TEST_CASE("a parameter's gradient adds up until it is cleared") {
    Parameter<float> weight("weight", Shape{2}, {});
    weight.add_gradient(Tensor<float>(Shape{2}, {1.0f, 2.0f}));
    weight.add_gradient(Tensor<float>(Shape{2}, {0.5f, -2.0f}));
    REQUIRE(std::as_const(weight).gradient().data()[0] == 1.5f);
    REQUIRE(weight.gradient().data()[1] == 0.0f);
    weight.clear_gradient();
    REQUIRE_FALSE(weight.has_gradient());
    weight.add_gradient(Tensor<float>(Shape{2}, {7.0f, 8.0f}));
    REQUIRE(weight.gradient().data()[0] == 7.0f);
    REQUIRE(weight.version() == 0);
}

TEST_CASE("a gradient knows its recipe and the steps that were made since") {
    Parameter<float> p("p", Shape{1}, {});
    CHECK(p.gradient_recipe() == nullptr);
    const auto recipe = std::make_shared<const Recipe>();
    p.mark(GradientStep::clip);
    p.set_gradient_recipe(recipe);
    CHECK(p.gradient_recipe() == recipe);
    for (const GradientStep step : {GradientStep::round, GradientStep::unscale, GradientStep::clip})
        CHECK_FALSE(p.has_made(step));
    p.mark(GradientStep::unscale);
    CHECK(p.has_made(GradientStep::unscale));
    CHECK_FALSE(p.has_made(GradientStep::round));
    CHECK_FALSE(p.has_made(GradientStep::clip));
    p.clear_gradient();
    CHECK(p.gradient_recipe() == nullptr);
}

#if defined(__linux__)
TEST_CASE("a parameter that no memory holds is an error before it is allocated") {
    CHECK_THROWS_WITH(Parameter<float>("table", Shape{std::size_t{1} << 40, std::size_t{1} << 40}, {}),
                      Catch::StartsWith("parameter table: takes 4.8357e+15 GB; this machine has "));
}
#endif

TEST_CASE("a missing gradient and one of another shape are errors that name the parameter") {
    Parameter<float> weight("head/weight", Shape{2}, {});
    REQUIRE_THROWS_WITH(
        weight.gradient(),
        "parameter head/weight: no gradient; backward() has not reached it since the last clear_gradient()");
    REQUIRE_THROWS_WITH(weight.add_gradient(Tensor<float>(Shape{1, 2}, {1.0f, 2.0f})),
                        "parameter head/weight: gradient of shape [1,2] for a value of shape [2]");
}

TEST_CASE("freezing is a flag and roles have names") {
    Parameter<float> weight("weight", Shape{1}, {});
    weight.set_requires_gradient(false);
    REQUIRE_FALSE(weight.requires_gradient());
    REQUIRE(name(ParameterRole::weight) == "weight");
    REQUIRE(name(ParameterRole::bias) == "bias");
    REQUIRE(name(ParameterRole::norm) == "norm");
    REQUIRE(name(ParameterRole::embedding) == "embedding");
    REQUIRE(name(ParameterRole::readout) == "readout");
}

TEST_CASE("results computed from a parameter's value are kept by type and key until the value is written") {
    Parameter<float> weight("weight", Shape{2}, {});
    weight.write().data()[1] = 3.0f;
    int made = 0;
    const auto twice = [&made](const Tensor<float>& value) {
        ++made;
        return 2.0f * value.data()[1];
    };
    const auto first = weight.cached<float>(1, twice);
    REQUIRE(*first == 6.0f);
    REQUIRE(weight.cached<float>(1, twice) == first);
    REQUIRE(made == 1);
    REQUIRE(*weight.cached<float>(2, twice) == 6.0f);
    REQUIRE(*weight.cached<double>(1, twice) == 6.0);
    REQUIRE(made == 3);
    REQUIRE(weight.cached<float>(1, twice) == first);
    weight.write().data()[1] = 4.0f;
    REQUIRE(*weight.cached<float>(1, twice) == 8.0f);
    REQUIRE(*first == 6.0f);  // the pointer keeps the object alive
}

TEST_CASE("a gradient is kept as codes in its own place, and decoded for who asks for numbers") {
    const auto pool = std::make_shared<MemoryPool>();
    Parameter<float> p("p", Shape{100}, {});
    const auto give = [&] {
        Tensor<float> gradient(Shape{100}, pool);
        for (std::size_t i = 0; i < 100; ++i) gradient.data()[i] = static_cast<float>(i % 16);
        gradient.set_scale(0.25);
        p.add_gradient(std::move(gradient));
    };
    const auto code = [&] {
        p.code_gradient(e4m3, pool, [&](Tensor<std::uint8_t>& codes) {
            for (std::size_t i = 0; i < 100; ++i)
                codes.data()[i] =
                    static_cast<std::uint8_t>(encode(e4m3, static_cast<double>(p.gradient().data()[i]) + 1.0));
        });
    };
    give();
    const std::size_t plain = pool->live_bytes();
    CHECK(p.coded_gradient() == nullptr);
    code();
    REQUIRE(p.coded_gradient() != nullptr);
    CHECK(p.gradient_data() == nullptr);
    CHECK(pool->live_bytes() <= plain / 2);  // a quarter, in whole cache lines
    CHECK(p.has_gradient());
    CHECK(p.gradient_scale() == 0.25);
    p.set_gradient_scale(0.5);
    CHECK(p.coded_gradient()->format == e4m3);
    CHECK(decode(e4m3, p.coded_gradient()->codes.data()[5]) == 6.0f);
    // Reading the numbers ends the coded form.
    CHECK(std::as_const(p).gradient().scale() == 0.5);
    CHECK(p.gradient().data()[5] == 6.0f);
    CHECK(p.coded_gradient() == nullptr);
    CHECK(p.gradient_data() == std::as_const(p).gradient().data());
    // A further contribution is added to the numbers.
    code();
    p.add_gradient(Tensor<float>(Shape{100}, std::vector<float>(100, 2.0f)));
    CHECK(p.coded_gradient() == nullptr);
    CHECK(p.gradient().data()[5] == 9.0f);
    // The next step has a gradient of its own.
    code();
    p.clear_gradient();
    CHECK_FALSE(p.has_gradient());
    CHECK(p.coded_gradient() == nullptr);
    give();
    CHECK(p.gradient().data()[5] == 5.0f);
    CHECK(p.gradient_scale() == 0.25);
}

TEST_CASE("Parameter: a value kept as codes has no elements until it is written") {
    Parameter<float> p("w", {3, 2}, {});
    fill_constant(p.write(), 1.5f);
    const std::uint64_t version = p.version();
    CHECK(p.coded_value() == nullptr);
    CHECK_THROWS_WITH(p.keep_coded(CodedWeight(2, 3, e4m3)), "parameter w: codes of shape [2,3]; expected [3,2]");
    p.keep_coded(coded_weight(p.value(), e4m3));
    CHECK(p.version() > version);
    REQUIRE(p.coded_value() != nullptr);
    CHECK(p.coded_value()->value(2, 1) == 1.5f);
    CHECK(p.shape() == Shape{3, 2});
    CHECK(p.size() == 6);
    CHECK_THROWS_WITH(p.value(),
                      "parameter w: its value is kept as codes; expected elements, which write() makes of them");
    CHECK_NOTHROW(p.check_usable(false, false));
    CHECK_THROWS_WITH(p.check_usable(true, false),
                      "parameter w: its value is kept as codes; expected a step with gradients = false");
    CHECK(p.write().data()[5] == 1.5f);
    CHECK(p.coded_value() == nullptr);
    CHECK(p.value().shape() == Shape{3, 2});
}
