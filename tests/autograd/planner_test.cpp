// SPDX-License-Identifier: MIT
#include <unitscale/autograd/planner.hpp>

#include "support/catch.hpp"
#include "support/test_ops.hpp"

#include <cstddef>
#include <map>
#include <string>
#include <vector>

using namespace unitscale;
using namespace unitscale::test;

namespace {

Recipe unit_recipe(Constraint rule = Constraint::to_output_scale) {
    return {.name = "check", .scaling = Scaling::unit, .automatic_rule = rule};
}

struct Fixture {
    explicit Fixture(Constraint rule = Constraint::to_output_scale) : recipe(unit_recipe(rule)) {
        fill_zero(weight.write());
        tape.begin_step();
    }

    Recipe recipe;
    ScalingState state{1};
    Tape<double> tape{recipe, state};
    Parameter<double> weight{"weight", Shape{1}, {}};
    static constexpr Factors free{.alpha = 0.5, .beta_a = 8.0, .beta_b = 4.0};

    /// The edges of the n-th op.
    [[nodiscard]] std::vector<EdgeKind> edges(std::size_t n) const { return tape.node(n).edges; }
    [[nodiscard]] const std::vector<double>& betas(std::size_t n) const { return tape.node(n).betas; }
};

using Kinds = std::vector<EdgeKind>;
using Values = std::vector<double>;
constexpr EdgeKind cut = EdgeKind::cut, joined = EdgeKind::joined, none = EdgeKind::none;

}  // namespace

TEST_CASE_METHOD(Fixture, "in a chain every input is a cut-edge and keeps its own beta") {
    const auto x = vector_input<double>(tape, {2.0});
    const auto y = mul(square(x, free), tape.parameter(weight), free);
    tape.backward(sum(y));
    CHECK(edges(0) == Kinds{cut});
    CHECK(edges(1) == Kinds{cut, cut});
    CHECK(betas(0) == Values{8.0});
    CHECK(betas(1) == Values{8.0, 4.0});
}

TEST_CASE_METHOD(Fixture, "a parameter used twice takes beta = alpha at each use, one used once its own") {
    Parameter<double> once("once", Shape{1}, {});
    weight.write().data()[0] = once.write().data()[0] = 3.0;
    const auto x = vector_input<double>(tape, {2.0}, false);
    const auto first = mul(x, tape.parameter(weight), free);
    const auto second = mul(x, tape.parameter(weight), Factors{.alpha = 0.125, .beta_b = 4.0});
    const auto third = mul(x, tape.parameter(once), free);
    tape.backward({first, second, third}, {1.0, 1.0, 1.0});
    CHECK(edges(0) == Kinds{none, joined});
    CHECK(weight.gradient().data()[0] == 2.0 * (0.5 + 0.125));
    CHECK(once.gradient().data()[0] == 2.0 * 4.0);
}

TEST_CASE_METHOD(Fixture, "an input used twice by one op is joined: its edges are parallel") {
    const auto x = vector_input<double>(tape, {2.0});
    tape.backward(sum(mul(x, x, free)));
    CHECK(edges(0) == Kinds{joined, joined});
    CHECK(betas(0) == Values{0.5, 0.5});
    CHECK(x.gradient().data()[0] == 2.0 * 0.5 * 2.0);
}

TEST_CASE_METHOD(Fixture, "between a split and its join activations are joined and weights free") {
    const auto x = vector_input<double>(tape, {2.0});
    const auto parts = split(square(x, free));                        // nodes 0, 1
    const auto branch = mul(parts[0], tape.parameter(weight), free);  // node 2
    const auto y = square(mul(branch, parts[1], free), free);         // nodes 3, 4
    tape.backward(sum(y));
    CHECK(edges(0) == Kinds{cut});
    CHECK(edges(1) == Kinds{cut});
    CHECK(edges(2) == Kinds{joined, cut});
    CHECK(betas(2) == Values{0.5, 4.0});
    CHECK(edges(3) == Kinds{joined, joined});
    CHECK(edges(4) == Kinds{cut});
}

TEST_CASE_METHOD(Fixture, "two losses are joined: an edge on the way to both is no cut-edge") {
    const auto x = vector_input<double>(tape, {2.0});
    const auto trunk = square(x, free), head_a = square(trunk, free), head_b = square(trunk, free);
    tape.backward({head_a, head_b}, {1.0, 1.0});
    CHECK(edges(0) == Kinds{cut});
    CHECK(edges(1) == Kinds{joined});
    CHECK(edges(2) == Kinds{joined});
}

TEST_CASE_METHOD(Fixture, "edges without a gradient and ops that no loss depends on are left out") {
    const auto x = vector_input<double>(tape, {2.0}), constant = vector_input<double>(tape, {1.0}, false);
    Parameter<double> frozen("frozen", Shape{1}, {});
    frozen.set_requires_gradient(false);
    fill_zero(frozen.write());
    const auto side = square(x, free);  // dead: would close a cycle with the next op
    static_cast<void>(mul(side, x, free));
    const auto y = mul(mul(x, constant, free), tape.parameter(frozen), free);
    const auto stopped = mul(y, tape.detach(y), free);
    tape.backward(sum(stopped));
    CHECK(edges(0) == Kinds{none});
    CHECK(edges(1) == Kinds{none, none});
    CHECK(edges(2) == Kinds{cut, none});
    CHECK(edges(3) == Kinds{cut, none});
    CHECK(edges(4) == Kinds{cut, none});
}

TEST_CASE_METHOD(Fixture, "factors joined by hand stand") {
    const auto x = vector_input<double>(tape, {2.0});
    tape.backward(sum(mul(x, x, {.alpha = 0.5, .beta_a = 8.0, .beta_b = 4.0, .joined_by = JoinedBy::hand})));
    CHECK(edges(0) == Kinds{joined, joined});
    CHECK(betas(0) == Values{8.0, 4.0});
}

TEST_CASE_METHOD(Fixture, "true gradients have every beta at its op's alpha") {
    tape.begin_step({.true_gradients = true});
    const auto x = vector_input<double>(tape, {3.0});
    tape.backward(sum(square(x, free)));
    CHECK(x.gradient().data()[0] == 2.0 * 3.0 * 0.5);
}

TEST_CASE("under a mean the plan fixes forward factors from exactly the joined betas, for good") {
    Fixture f(Constraint::gmean);
    const auto model = [&](double alpha_of_square) {
        const auto x = vector_input<double>(f.tape, {2.0});
        const auto parts = split(x);
        return sum(mul(square(parts[0], {.alpha = alpha_of_square, .beta_a = 8.0, .asks = true}), parts[1]));
    };
    REQUIRE_THROWS_WITH(model(0.5),
                        "square: no forward factor planned for square; the rule gmean joins it with gradient factors: "
                        "call Tape::plan before the first step");
    f.tape.plan([&] { return model(0.5); });
    REQUIRE(f.state.has_plan());
    CHECK(f.state.step() == 1);  // the fixture's step: planning is no step
    const Site site = f.state.site(0, "square", 0);
    CHECK(f.state.planned_alpha(site).value() == Approx(2.0).epsilon(1e-15));  // sqrt(0.5 * 8)
    for (const bool gradients : {true, false}) {
        f.tape.begin_step({.training = gradients, .gradients = gradients});
        const auto loss = model(0.25);  // the ideal factor has changed, the model has not
        CHECK(loss.item() == Approx(2.0 * 4.0 * 2.0).epsilon(1e-15));
        if (!gradients) break;
        f.tape.backward(loss);
        CHECK(f.betas(1)[0] == f.tape.node(1).alpha);
    }
    f.tape.plan([&] { return model(100.0); });
    CHECK(f.state.planned_alpha(site).value() == Approx(2.0).epsilon(1e-15));
}

TEST_CASE("planning takes several losses, ends the life of handles and leaves the tape usable when the model throws") {
    Fixture f(Constraint::amean);
    Variable<double> kept;
    REQUIRE_THROWS_WITH(f.tape.plan([&]() -> Variable<double> { fail("model: broken"); }), "model: broken");
    REQUIRE_FALSE(f.state.has_plan());
    f.tape.plan([&] {
        kept = vector_input<double>(f.tape, {2.0});
        std::vector<Variable<double>> losses;
        for (Factors factors : {Fixture::free, Factors{.alpha = 1.0, .beta_a = 2.0}}) {
            factors.asks = true;
            losses.push_back(square(kept, factors));
        }
        losses.push_back(square(kept, Fixture::free));  // does not ask: its forward factor is fixed
        return losses;
    });
    CHECK(f.state.plan() == std::map<std::string, double>{{"square", 4.25}, {"square.1", 1.5}});
    REQUIRE_THROWS_WITH(kept.value(), "value: a handle of an earlier step; begin_step() ends the life of all handles");
    f.tape.begin_step();
    CHECK(vector_input<double>(f.tape, {2.0}).value().data()[0] == 2.0);
}

namespace {

/// Calls `body` `count` times, in modules of a few ops: the tape searches a module for the number of an op's name.
template <class Body>
void repeat(Fixture& f, std::size_t count, Body&& body) {
    for (std::size_t i = 0; i < count; ++i) {
        const auto scope = f.tape.scope("module" + std::to_string(i / 16));
        body();
    }
}

/// Records a graph of more than `length` ops and returns its losses.
using Builder = std::vector<Variable<double>> (*)(Fixture& f, std::size_t length);

std::vector<Variable<double>> chain(Fixture& f, std::size_t length) {
    auto x = vector_input<double>(f.tape, {1.0});
    repeat(f, length, [&] { x = square(x); });
    return {sum(x)};
}
std::vector<Variable<double>> cycles_in_a_row(Fixture& f, std::size_t length) {
    auto x = vector_input<double>(f.tape, {1.0});
    repeat(f, length, [&] {
        const auto parts = split(x);
        x = mul(square(parts[0]), parts[1]);
    });
    return {sum(x)};
}
std::vector<Variable<double>> cycles_in_each_other(Fixture& f, std::size_t length) {
    std::vector<Variable<double>> sides;
    auto x = vector_input<double>(f.tape, {1.0});
    repeat(f, length, [&] {
        const auto parts = split(x);
        sides.push_back(parts[1]);
        x = square(parts[0]);
    });
    repeat(f, length, [&] {
        x = mul(x, sides.back());
        sides.pop_back();
    });
    return {sum(x)};
}
std::vector<Variable<double>> one_weight_everywhere(Fixture& f, std::size_t length) {
    auto x = vector_input<double>(f.tape, {1.0});
    repeat(f, length, [&] { x = mul(x, f.tape.parameter(f.weight)); });
    return {sum(x)};
}
std::vector<Variable<double>> many_losses(Fixture& f, std::size_t length) {
    const auto trunk = square(vector_input<double>(f.tape, {1.0}));
    std::vector<Variable<double>> losses;
    repeat(f, length, [&] { losses.push_back(square(trunk)); });
    return losses;
}
std::vector<Variable<double>> dead_ends(Fixture& f, std::size_t length) {
    const auto x = vector_input<double>(f.tape, {1.0});
    repeat(f, length, [&] { static_cast<void>(square(x)); });
    return {sum(x)};
}

}  // namespace

TEST_CASE("planning takes linear time, whatever the graph") {
    // The size counts ops, their inputs and outputs, and losses. Each is looked at four times at most. A change may add
    // two.
    constexpr std::size_t most_looks = 6;
    for (const Builder build :
         {chain, cycles_in_a_row, cycles_in_each_other, one_weight_everywhere, many_losses, dead_ends}) {
        Fixture f;
        f.weight.write().data()[0] = 1.0;
        for (const std::size_t length : {10000u, 1000u, 100u, 10u}) {  // every step counts anew
            f.tape.begin_step();
            const auto losses = build(f, length);
            f.tape.backward(losses, std::vector<double>(losses.size(), 1.0));
            std::size_t size = losses.size();
            for (std::size_t n = 0; n < f.tape.node_count(); ++n)
                size += 1 + f.tape.node(n).inputs.size() + f.tape.node(n).outputs.size();
            INFO("a graph of " << f.tape.node_count() << " ops and size " << size);
            CHECK(f.tape.node_count() > length);
            CHECK(f.tape.planner().visits() <= most_looks * size);
            // Every op and tensor on which a loss depends must be looked at. A count below the size leaves one out.
            CHECK(f.tape.planner().visits() >= (build == dead_ends ? f.tape.node_count() : size));
        }
    }
}

TEST_CASE("a step that changes the graph is planned anew") {
    Fixture f;
    for (const bool shared : {false, true, false}) {
        f.tape.begin_step();
        const auto x = vector_input<double>(f.tape, {2.0});
        const auto y = square(x, Fixture::free);
        f.tape.backward(sum(shared ? mul(y, x) : y));
        CHECK(f.betas(0)[0] == (shared ? 0.5 : 8.0));
    }
}
