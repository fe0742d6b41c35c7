// SPDX-License-Identifier: MIT
#include <unitscale/autograd/tape.hpp>
#include <unitscale/scaling/known_recipes.hpp>
#include <unitscale/tensor/rescale.hpp>

#include "support/allocation_count.hpp"
#include "support/catch.hpp"
#include "support/test_ops.hpp"

#include <cmath>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace unitscale;
using namespace unitscale::test;

namespace {

using Vector = std::vector<double>;

struct Fixture {
    Recipe recipe{};
    ScalingState state{11};
    Tape<double> tape{recipe, state};
};

void set(Parameter<double>& parameter, std::initializer_list<double> values) {
    std::copy(values.begin(), values.end(), parameter.write().data());
}

}  // namespace

TEST_CASE_METHOD(Fixture, "the gradient of a chain is the product of its derivatives") {
    tape.begin_step();
    const auto x = vector_input<double>(tape, {3.0, -0.5});
    tape.backward(sum(square(square(x))));  // x^4
    REQUIRE(elements(x.gradient()) == Vector{108.0, -0.5});
}

TEST_CASE_METHOD(Fixture, "gradients of all uses of a tensor add up, parallel edges included") {
    tape.begin_step();
    const auto x = vector_input<double>(tape, {3.0});
    const auto y = square(x);
    tape.backward(sum(mul(mul(y, y), mul(y, x))));  // x^7
    REQUIRE(x.gradient().data()[0] == Approx(7.0 * 729.0).epsilon(1e-14));

    tape.begin_step();
    const auto z = vector_input<double>(tape, {2.0});
    const auto parts = split(square(z));
    tape.backward(mul(square(parts[0]), parts[1]));  // z^6
    REQUIRE(z.gradient().data()[0] == 192.0);
}

TEST_CASE_METHOD(Fixture, "an op with several outputs gathers the gradients of each") {
    tape.begin_step();
    const auto x = vector_input<double>(tape, {1.0, 2.0, 3.0, 4.0});
    const auto parts = halves(x);
    tape.backward(sum(mul(parts[0], square(parts[1]))));  // a b^2
    REQUIRE(elements(x.gradient()) == Vector{9.0, 16.0, 6.0, 16.0});
}

TEST_CASE_METHOD(Fixture, "values carry alpha and gradients beta") {
    tape.begin_step();
    const auto x = vector_input<double>(tape, {3.0});
    const auto y = square(x, {.alpha = 0.5, .beta_a = 10.0});
    REQUIRE(y.item() == 4.5);
    tape.backward(y);
    REQUIRE(x.gradient().data()[0] == 60.0);
}

TEST_CASE_METHOD(Fixture, "several losses are joined with their seeds") {
    Parameter<double> weight("weight", Shape{1}, {});
    set(weight, {3.0});
    tape.begin_step();
    const auto w = tape.parameter(weight);
    const auto first = square(w), second = mul(square(w), w);
    tape.backward({first, second}, {2.0, -1.0});  // 2 * 2w - 3w^2
    REQUIRE(weight.gradient().data()[0] == 12.0 - 27.0);
    REQUIRE(first.item() == 9.0);  // losses can still be read
    REQUIRE(second.item() == 27.0);

    tape.begin_step();  // one loss may be part of another, and may come twice
    const auto x = vector_input<double>(tape, {2.0});
    const auto y = square(x);
    tape.backward({y, square(y), y}, {1.0, 1.0, 1.0});
    REQUIRE(x.gradient().data()[0] == 4.0 + 32.0 + 4.0);
}

TEST_CASE_METHOD(Fixture, "micro-batches add to the gradients of parameters and belong to one step") {
    Parameter<double> weight("weight", Shape{2}, {});
    set(weight, {1.0, 2.0});
    Vector whole;
    for (const std::size_t parts : {1u, 2u}) {
        const auto before = state.step();
        weight.clear_gradient();
        for (std::size_t part = 0; part < parts; ++part) {
            tape.begin_step({.micro_batches = parts, .micro_batch = part});
            REQUIRE(tape.step_rows(10) == 10 * parts);
            const auto w = tape.parameter(weight);
            if (parts == 1) {
                tape.backward({sum(mul(square(w), vector_input<double>(tape, {3.0, 4.0}, false))),
                               sum(mul(w, vector_input<double>(tape, {5.0, 6.0}, false)))},
                              {1.0, 1.0});
            } else {
                tape.backward(part == 0 ? sum(mul(square(w), vector_input<double>(tape, {3.0, 4.0}, false)))
                                        : sum(mul(w, vector_input<double>(tape, {5.0, 6.0}, false))));
            }
        }
        REQUIRE(state.step() == before + 1);
        if (parts == 1) whole = elements(weight.gradient());
        else REQUIRE(elements(weight.gradient()) == whole);
    }
    REQUIRE(whole == Vector{11.0, 22.0});
    REQUIRE_THROWS_WITH(tape.begin_step({.micro_batches = 2, .micro_batch = 2}),
                        "begin_step: micro_batch 2 of 2; expected a number below micro_batches");
}

TEST_CASE_METHOD(Fixture,
                 "random streams differ by site, step, micro-batch and part, and evaluation does not advance them") {
    const auto key = [&](const StepOptions& options, std::uint64_t part = 0) {
        tape.begin_step(options);
        const Site site = tape.next_site("dropout");
        return tape.random_key(site, part);
    };
    const RandomKey first = key({.micro_batches = 2});
    const RandomKey second = key({.micro_batches = 2, .micro_batch = 1});
    const RandomKey evaluated = key({.training = false, .gradients = false});
    const RandomKey part = key({.training = false, .gradients = false}, 1);
    const RandomKey next = key({});
    REQUIRE(state.step() == 2);
    REQUIRE(first.seed == 11);
    REQUIRE_FALSE(first == second);
    REQUIRE(evaluated == first);
    REQUIRE_FALSE(part == first);
    REQUIRE_FALSE(next == first);
    tape.begin_step({.training = false, .gradients = false});
    REQUIRE_FALSE(tape.random_key(tape.next_site("dropout")) == tape.random_key(tape.next_site("dropout")));
}

TEST_CASE_METHOD(Fixture, "frozen parameters, const parameters and plain inputs get no gradient") {
    Parameter<double> frozen("frozen", Shape{1}, {}), shared("shared", Shape{1}, {}), trained("trained", Shape{1}, {});
    for (auto* parameter : {&frozen, &shared, &trained}) set(*parameter, {2.0});
    frozen.set_requires_gradient(false);
    tape.begin_step();
    const auto x = vector_input<double>(tape, {5.0}, false);
    const auto y = mul(x, tape.parameter(frozen));
    REQUIRE_FALSE(y.requires_gradient());
    REQUIRE(tape.node(0).closure == nullptr);
    const auto z = mul(y, tape.parameter(std::as_const(shared)));
    REQUIRE_FALSE(z.requires_gradient());
    tape.backward(mul(z, tape.parameter(trained)));
    REQUIRE(trained.gradient().data()[0] == 20.0);
    REQUIRE_FALSE(frozen.has_gradient());
    REQUIRE_FALSE(shared.has_gradient());
}

TEST_CASE_METHOD(Fixture,
                 "a const use of a parameter stops its gradient there and nowhere else, whichever comes first") {
    Parameter<double> weight("weight", Shape{1}, {});
    set(weight, {3.0});
    for (const bool const_first : {false, true}) {
        weight.clear_gradient();
        tape.begin_step();
        auto a = const_first ? tape.parameter(std::as_const(weight)) : tape.parameter(weight);
        auto b = const_first ? tape.parameter(weight) : tape.parameter(std::as_const(weight));
        tape.backward(mul(square(a), b));
        REQUIRE(weight.gradient().data()[0] == (const_first ? 9.0 : 18.0));
    }
}

TEST_CASE_METHOD(Fixture, "a step without gradients keeps nothing for a backward pass and refuses one") {
    Parameter<double> weight("weight", Shape{1}, {});
    set(weight, {3.0});
    tape.begin_step({.training = false, .gradients = false});
    const auto y = square(tape.parameter(weight));
    REQUIRE_FALSE(y.requires_gradient());
    REQUIRE_FALSE(vector_input<double>(tape, {1.0}).requires_gradient());
    REQUIRE(tape.node(0).closure == nullptr);
    REQUIRE(state.step() == 0);
    REQUIRE_THROWS_WITH(tape.backward(y), "backward: this step was begun with gradients = false");
}

TEST_CASE_METHOD(Fixture, "a detached value has no way back") {
    tape.begin_step();
    Tensor<double> three(Shape{1}, {3.0});
    three.set_scale(2.0);
    const auto x = tape.input(std::move(three), true);
    const auto cut = tape.detach(x);
    REQUIRE_FALSE(cut.requires_gradient());
    REQUIRE(cut.value().data()[0] == 6.0);
    tape.backward(mul(x, cut));
    REQUIRE(x.gradient().data()[0] == 6.0);
    const Recipe propagate{.name = "test", .description = "", .scaling = Scaling::propagate};
    Tape<double> scaled(propagate, state);
    scaled.begin_step();
    Tensor<double> five(Shape{1}, {5.0});
    five.set_scale(2.0);
    const auto copy = scaled.detach(scaled.input(std::move(five), true));
    REQUIRE(copy.scaled().data()[0] == 5.0);
    REQUIRE(copy.scaled().scale() == 2.0);
    REQUIRE_FALSE(copy.scaled().any_scale());
    Tensor<double> zeros(Shape{2}, {0.0, 0.0});
    zeros.set_any_scale(true);
    REQUIRE(scaled.detach(scaled.input(std::move(zeros), true)).scaled().any_scale());
}

TEST_CASE_METHOD(Fixture, "handles of an earlier step, of another tape and of freed values are errors") {
    REQUIRE_THROWS_WITH(vector_input<double>(tape, {1.0}), "input: call begin_step() first");
    tape.begin_step();
    const auto old = vector_input<double>(tape, {1.0});
    tape.begin_step();
    REQUIRE_THROWS_WITH(old.value(), "value: a handle of an earlier step; begin_step() ends the life of all handles");
    const auto x = vector_input<double>(tape, {1.0});
    REQUIRE_THROWS_WITH(tape.check_handle("gelu", old),
                        "gelu: a handle of an earlier step; begin_step() ends the life of all handles");
    REQUIRE_THROWS_WITH(mul(x, old), "value: a handle of an earlier step; begin_step() ends the life of all handles");

    ScalingState other_state;
    Tape<double> other(recipe, other_state);
    other.begin_step();
    const auto foreign = vector_input<double>(other, {1.0});
    REQUIRE_THROWS_WITH(mul(x, foreign), "mul: a Variable of another tape");

    const auto y = square(x);
    tape.backward(sum(y));
    REQUIRE_THROWS_WITH(y.value(),
                        "value: the output of square was freed by backward(); begin_step({.retain = true}) keeps it");
    REQUIRE_THROWS_WITH(square(y),
                        "value: the output of square was freed by backward(); begin_step({.retain = true}) keeps it");
    REQUIRE(x.value().data()[0] == 1.0);
}

TEST_CASE_METHOD(Fixture, "backward refuses invalid losses and seeds") {
    tape.begin_step();
    const auto x = vector_input<double>(tape, {1.0, 2.0});
    const auto constant = vector_input<double>(tape, {1.0}, false);
    REQUIRE_THROWS_WITH(tape.backward(x), "backward: loss of shape [2]; expected one element");
    REQUIRE_THROWS_WITH(tape.backward(constant),
                        "backward: no loss depends on a parameter or input that requires a gradient");
    REQUIRE_THROWS_WITH(tape.backward({constant}, {1.0, 2.0}), "backward: 1 losses but 2 seeds");
    REQUIRE_THROWS_WITH(tape.backward(Variable<double>()),
                        "backward: an empty Variable; make one with Tape::input, Tape::parameter or an op");
    tape.backward(sum(x));  // the errors above have left the step intact
    REQUIRE_THROWS_WITH(tape.backward(sum(square(x))),
                        "backward: called twice in one step; join the losses in one call");
    REQUIRE_THROWS_WITH(Tape<double>(recipe, state, 0), "Tape: threads is 0; expected at least 1");
    const auto wrong = [&] {
        static_cast<void>(tape.record({"op", tape.next_site("op"), 1.0, {1.0}}, {x, x}, tape.make(Shape{2}),
                                      [](BackwardContext<double>&) {}));
    };
    REQUIRE_THROWS_WITH(wrong(), "op: recorded with 1 betas for 2 inputs");
}

TEST_CASE_METHOD(Fixture, "a throw on the way forward or back leaves the tape usable") {
    Parameter<double> weight("weight", Shape{1}, {});
    set(weight, {3.0});
    tape.begin_step();
    REQUIRE_THROWS_WITH(broken(tape.parameter(weight), true), "broken: throws on its way forward");
    tape.backward(square(tape.parameter(weight)));
    REQUIRE(weight.gradient().data()[0] == 6.0);

    weight.clear_gradient();
    tape.begin_step();
    REQUIRE_THROWS_WITH(tape.backward(square(broken(square(tape.parameter(weight)), false))),
                        "broken: throws on its way back");
    {
        tape.begin_step();
        const auto scope = tape.scope("module");
        const auto x = tape.parameter(weight);
        REQUIRE_THROWS(mul(x, vector_input<double>(tape, {1.0, 2.0})));
    }
    weight.clear_gradient();
    tape.begin_step();
    tape.backward(square(tape.parameter(weight)));
    REQUIRE(weight.gradient().data()[0] == 6.0);
}

TEST_CASE("a tape refuses a recipe with inconsistent rules") {
    Recipe recipe = find_recipe("fp8-delayed");
    recipe.products.front().formats.activation_scale.granularity = ScaleGranularity::row;
    ScalingState state;
    CHECK_THROWS_WITH(Tape<double>(recipe, state),
                      "recipe: products.0.activation_scale: scale by row needs the source amax; it is delayed");
}

TEST_CASE("a tape of another type than the recipe's is an error; a tape keeps a copy of its recipe") {
    ScalingState state;
    CHECK_THROWS_WITH(Tape<float>(find_recipe("fp16"), state),
                      "Tape: recipe fp16 computes in fp16, and T is fp32; train::with_element picks T, recipe_in<T> "
                      "changes the recipe");
    const Tape<double> reference(find_recipe("fp16"), state);  // the temporary is gone
    CHECK(reference.recipe().name == "fp16");
    Recipe recipe = find_recipe("fp32");
    const Tape<float> tape(recipe, state);
    recipe.clip_norm = 5.0;
    CHECK(tape.recipe().clip_norm == find_recipe("fp32").clip_norm);
}

TEST_CASE_METHOD(Fixture, "a parameter that was never written, or is written before backward, is an error") {
    Parameter<double> weight("weight", Shape{1}, {});
    tape.begin_step();
    CHECK_THROWS_WITH(tape.parameter(weight),
                      "parameter weight: was never written; expected nn::initialise, loaded weights or write()");
    CHECK_THROWS_WITH(tape.parameter(std::as_const(weight)), Catch::StartsWith("parameter weight: was never written"));
    set(weight, {3.0});
    const auto loss = square(tape.parameter(weight));
    set(weight, {4.0});
    CHECK_THROWS_WITH(tape.backward(loss),
                      "backward: parameter weight was written after the forward pass; expected that pass's values");
    CHECK_FALSE(weight.has_gradient());
    tape.begin_step();
    tape.backward(square(tape.parameter(weight)));
    CHECK(weight.gradient().data()[0] == 8.0);
    CHECK(weight.gradient_recipe().get() == &tape.recipe());
}

TEST_CASE_METHOD(Fixture, "retain keeps values and gradients of ops until the next step") {
    tape.begin_step({.retain = true});
    const auto x = vector_input<double>(tape, {3.0});
    const auto y = square(x);
    const auto parts = split(y);
    const auto z = mul(parts[0], parts[1]);
    tape.backward(sum(z));
    REQUIRE(y.item() == 9.0);
    REQUIRE(z.item() == 81.0);
    REQUIRE(y.gradient().data()[0] == 18.0);
    REQUIRE(parts[0].gradient().data()[0] == 9.0);
    REQUIRE(z.gradient().data()[0] == 1.0);
    REQUIRE(x.gradient().data()[0] == 108.0);
}

TEST_CASE_METHOD(Fixture, "sites are unique within a step and the same from step to step") {
    std::vector<std::vector<std::string>> paths;
    for (int step = 0; step < 3; ++step) {
        tape.begin_step({.training = step != 1, .gradients = step != 1});
        std::vector<std::string> names;
        const auto x = vector_input<double>(tape, {1.0});
        static_cast<void>(square(x));
        for (int call = 0; call < 2; ++call) {  // a module that is called twice
            const auto module = tape.scope("block");
            static_cast<void>(square(square(x)));
        }
        static_cast<void>(square(x));
        for (std::size_t i = 0; i < tape.node_count(); ++i) names.push_back(state.path(tape.node(i).site));
        paths.push_back(names);
    }
    REQUIRE(paths[0] == std::vector<std::string>{"square", "block/square", "block/square.1", "block/square.2",
                                                 "block/square.3", "square.1"});
    REQUIRE(paths[1] == paths[0]);
    REQUIRE(paths[2] == paths[0]);
    REQUIRE(state.site_count() == 6);
}

TEST_CASE_METHOD(Fixture, "a scope ends with its guard, also when an op throws inside") {
    tape.begin_step();
    const auto x = vector_input<double>(tape, {1.0});
    try {
        const auto module = tape.scope("module");
        static_cast<void>(broken(x, true));
    } catch (const Error&) {
    }
    static_cast<void>(square(x));
    REQUIRE(state.path(tape.node(0).site) == "square");
}

TEST_CASE("tapes in several threads share a parameter that none of them trains") {
    const Recipe recipe;
    Parameter<double> shared("shared", Shape{64}, {});
    fill_normal(shared.write(), {1, 2});
    const Parameter<double>& weight = shared;
    std::vector<Vector> gradients(2);
    const auto work = [&](std::size_t which) {
        ScalingState state;
        Tape<double> tape(recipe, state);
        for (int step = 0; step < 50; ++step) {
            tape.begin_step();
            const auto x = tape.input(normal<double>(Shape{64}, {3, which}), true);
            tape.backward(sum(square(mul(x, tape.parameter(weight)))));
            gradients[which] = elements(x.gradient());
        }
    };
    std::thread first(work, 0), second(work, 1);
    first.join();
    second.join();
    REQUIRE_FALSE(shared.has_gradient());
    for (std::size_t which = 0; which < 2; ++which) {
        const Tensor<double> x = normal<double>(Shape{64}, {3, which});
        for (std::size_t i = 0; i < 64; ++i) {
            const double w = shared.value().data()[i];
            REQUIRE(gradients[which][i] == Approx(2.0 * x.data()[i] * w * w).epsilon(1e-12));
        }
    }
}

TEST_CASE("a step after the first of its kind allocates nothing") {
    const Recipe recipe;
    ScalingState state;
    const int threads = 1;  // OpenMP itself may allocate in every parallel region
    Tape<float> tape(recipe, state, threads);
    Parameter<float> weight("weight", Shape{100, 1000}, {});
    fill_normal(weight.write(), {1, 2}, 0.1);
    const auto step = [&](bool training) {
        weight.clear_gradient();
        tape.begin_step({.training = training, .gradients = training});
        const auto module = tape.scope("a module with a name that does not fit a small string");
        Tensor<float> ones = tape.make(Shape{100, 1000});
        fill_constant(ones, 1.0f);
        const auto x = tape.input(std::move(ones));
        auto y = mul(x, tape.parameter(weight));
        for (int layer = 0; layer < 10; ++layer) {
            const auto inner = tape.scope("layer");
            const auto parts = split(y);
            y = mul(square(parts[0]), parts[1]);
        }
        const auto cut = tape.detach(y);
        const auto loss = sum(mul(mul(y, cut), tape.parameter(weight)));
        if (training) tape.backward(loss, 0.5f);
        return loss.item();
    };
    for (int warm = 0; warm < 3; ++warm) static_cast<void>(step(warm != 1));
    const auto system = tape.pool()->system_allocations();
    std::size_t counted = 0;
    {
        AllocationCount count;
        for (int i = 0; i < 3; ++i) static_cast<void>(step(i != 1));
        counted = count.stop();
    }
    REQUIRE(tape.pool()->system_allocations() == system);
    if (can_count_allocations()) REQUIRE(counted == 0);
}

TEST_CASE("the allocation counter counts allocations by malloc and operator new") {
    if (!can_count_allocations()) {
        SUCCEED("this build cannot count");
        return;
    }
    std::size_t counted = 0;
    {
        AllocationCount count;
        std::vector<std::string> texts(3, std::string(100, 'x'));
        void* aligned = ::operator new (256, std::align_val_t{64});
        ::operator delete (aligned, std::align_val_t{64});
        counted = count.stop();
        REQUIRE(texts[2].size() == 100);
    }
    REQUIRE(counted >= 5);
}

namespace {
struct Propagating {
    Recipe recipe{.name = "test", .description = "", .scaling = Scaling::propagate};
    ScalingState state{11};
    Tape<double> tape{recipe, state};
    [[nodiscard]] Variable<double> input(double data, double scale) {
        Tensor<double> tensor(Shape{1}, {data});
        tensor.set_scale(scale);
        return tape.input(std::move(tensor), true);
    }
};
}  // namespace

TEST_CASE_METHOD(Propagating, "an input keeps its scale under propagate; elsewhere it becomes plain numbers") {
    CHECK(tape.propagates());
    CHECK(tape.uses_factors());
    CHECK_FALSE(tape.unit_scaled());
    tape.begin_step();
    CHECK(input(3.0, 2.0).scaled().scale() == 2.0);
    CHECK(input(3.0, 2.0).value().data()[0] == 6.0);
    for (const Scaling scaling : {Scaling::none, Scaling::unit}) {
        const Recipe other{.name = "test", .description = "", .scaling = scaling};
        Tape<double> plain(other, state);
        CHECK(plain.uses_factors() == (scaling == Scaling::unit));
        plain.begin_step();
        Tensor<double> tensor(Shape{1}, {3.0});
        tensor.set_scale(2.0);
        const auto x = plain.input(std::move(tensor));
        CHECK(x.scaled().scale() == 1.0);
        CHECK(x.scaled().data()[0] == 6.0);
    }
}

TEST_CASE_METHOD(Propagating, "a constant is split into mantissa and scale, unless it is trained") {
    tape.begin_step();
    CHECK(vector_input<double>(tape, {12.0}, false).scaled().data()[0] == 1.5);
    CHECK(vector_input<double>(tape, {12.0}, false).scaled().scale() == 8.0);
    CHECK(vector_input<double>(tape, {12.0}, true).scaled().scale() == 1.0);
    CHECK(vector_input<double>(tape, {12.0, 12.0}, false).scaled().scale() == 8.0);
    CHECK(vector_input<double>(tape, {12.0, 12.5}, false).scaled().scale() == 1.0);
}

TEST_CASE_METHOD(Propagating, "a recomputed part puts equal tensors on the tape both times") {
    for (const Scaling scaling : {Scaling::none, Scaling::propagate}) {
        recipe.scaling = scaling;
        tape.begin_step();
        const auto x = vector_input<double>(tape, {3.0});
        const auto y = tape.recompute(x, [](Variable<double> v) {
            Tensor<double> five(Shape{1}, {5.0});
            five.set_scale(2.0);
            return square(mul(v, v.tape("f").input(std::move(five))));
        });
        tape.backward(y);
        CHECK(value(x.gradient()).data()[0] == 600.0);  // 2 * 3 * 10^2
    }
}

TEST_CASE_METHOD(Propagating, "a parameter with a scale is for propagate only") {
    Parameter<double> weight("weight", Shape{1}, {});
    set(weight, {3.0});
    weight.write().set_scale(4.0);
    tape.begin_step();
    CHECK(tape.parameter(weight).value().data()[0] == 12.0);
    const Recipe none{};
    Tape<double> plain(none, state);
    plain.begin_step();
    REQUIRE_THROWS_WITH(plain.parameter(weight),
                        "parameter weight: has the scale 4; only scaling 'propagate' carries scales");
}

TEST_CASE_METHOD(Propagating, "an op without a rule for scales works on plain numbers and is noted once") {
    for (int step = 0; step < 2; ++step) {
        tape.begin_step({.retain = true});
        const auto x = input(3.0, 2.0), z = input(0.5, 8.0);
        const auto y = mul(square(x), square(z));  // ops of the tests, without rules for scales: 36 * 16
        CHECK(y.scaled().scale() == 1.0);
        CHECK(y.item() == 576.0);
        tape.backward(y);
        CHECK(value(x.gradient()).data()[0] == 192.0);  // 2 * 6 * 16
        CHECK(value(z.gradient()).data()[0] == 288.0);  // 2 * 4 * 36
    }
    CHECK(state.wide_ops() == std::vector<std::string>{"square", "mul"});
}

TEST_CASE_METHOD(Propagating, "data factors and scales of ops: by the rule under propagate, else the factor itself") {
    tape.begin_step();
    const Site site = tape.next_site("f");
    CHECK(tape.scaled_alpha(site, 0.1, 0.5).scale == 4.0);
    CHECK(tape.scaled_alpha(site, 0.1, 0.5).factor == 0.125);
    CHECK(tape.scaled_sum(site, 3.0, 4.0) == 4.0);
    const Recipe unit{.name = "test", .description = "", .scaling = Scaling::unit};
    Tape<double> other(unit, state);
    CHECK(other.scaled_alpha(site, 0.1, 1.0).scale == 1.0);
    CHECK(other.scaled_alpha(site, 0.1, 1.0).factor == 0.1);
    CHECK(other.scaled_sum(site, 1.0, 1.0) == 1.0);
}

TEST_CASE_METHOD(Propagating, "stochastic scales are drawn from the site's own stream") {
    recipe.propagate.rounding = ScaleRounding::stochastic;
    Tape<double> drawing(recipe, state);
    drawing.begin_step();
    double sum = 0.0;
    const int sites = 2000;
    for (int i = 0; i < sites; ++i) {
        const Site site = drawing.next_site("f");
        const double scale = drawing.scaled_alpha(site, 0.2, 1.0).scale;
        CHECK((scale == 4.0 || scale == 8.0));
        CHECK(drawing.scaled_alpha(site, 0.2, 1.0).scale == scale);
        sum += scale;
    }
    CHECK(sum / sites == Approx(5.0).epsilon(0.02));
}

TEST_CASE_METHOD(Fixture, "backward hands over each parameter with its whole gradient, before it reaches earlier ops") {
    Parameter<double> early("early", Shape{1}, {}), late("late", Shape{1}, {}), frozen("frozen", Shape{1}, {});
    for (Parameter<double>* parameter : {&early, &late, &frozen}) set(*parameter, {3.0});
    frozen.set_requires_gradient(false);
    tape.begin_step();
    const auto a = tape.parameter(early), b = tape.parameter(late), c = tape.parameter(frozen);
    const auto loss = sum(mul(mul(mul(square(a), c), b), mul(b, a)));  // c a^3 b^2: two ops use a, and two b
    std::vector<std::string> order;
    const GradientSink<double> sink = [&](Parameter<double>& parameter) {
        order.push_back(parameter.name());
        CHECK(parameter.gradient_recipe() != nullptr);
        CHECK(parameter.gradient().data()[0] == (order.size() == 1 ? 486.0 : 729.0));
        CHECK(early.has_gradient());  // from its last use
    };
    tape.backward(loss, 1.0, sink);
    CHECK(order == std::vector<std::string>{"late", "early"});
    const double whole = early.gradient().data()[0];
    early.clear_gradient();
    late.clear_gradient();
    tape.begin_step();
    const auto x = tape.parameter(early), y = tape.parameter(late), z = tape.parameter(frozen);
    tape.backward(sum(mul(mul(mul(square(x), z), y), mul(y, x))));
    CHECK(early.gradient().data()[0] == whole);
}

TEST_CASE_METHOD(Fixture, "backward hands over parameters of recomputed parts once, and one that is a loss itself") {
    Parameter<double> outer("outer", Shape{1}, {}), inner("inner", Shape{1}, {}), loss("loss", Shape{1}, {});
    for (Parameter<double>* parameter : {&outer, &inner, &loss}) set(*parameter, {3.0});
    tape.begin_step();
    const auto y = tape.recompute(square(tape.parameter(outer)), [&](Variable<double> x) {
        const auto w = tape.parameter(inner);
        return mul(mul(x, w), w);
    });
    std::vector<std::string> order;
    const std::vector<Variable<double>> losses = {sum(y), tape.parameter(loss)};  // outer^2 inner^2, and loss
    const Vector seeds = {1.0, 2.0};
    tape.backward(losses, seeds, [&](Parameter<double>& parameter) {
        order.push_back(parameter.name());
        CHECK(parameter.gradient_recipe() != nullptr);
        CHECK(parameter.gradient().data()[0] == (&parameter == &loss ? 2.0 : 54.0));
    });
    CHECK(order == std::vector<std::string>{"inner", "outer", "loss"});
}
